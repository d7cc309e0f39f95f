//! Connections of another balancer of which the backend's packets come first.

use super::IPV6;
use super::one_worker::{OneWorker, Packet, Way, client, packet, with_tcp};
use crate::config::{Forwarding, Service, UnknownPacket};
use crate::flow::Endpoint;
use crate::frame::{Egress, Frame};
use crate::l4::connection::State;
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Services that pick up, none of which shares a backend's end with another.
fn picks_up(service: &mut Service) {
    service.unknown = UnknownPacket::PickUp;
    if &*service.name == "service-1" {
        service.backends.iter_mut().for_each(|backend| backend.endpoint.port = 8001);
    }
}

/// A fixture that knows nothing, and the backend that has this client's connection.
fn taken_over(ipv6: bool, client: Endpoint) -> (OneWorker, Endpoint) {
    let mut other = OneWorker::new(ipv6, picks_up);
    let backend = other.client_sends(client, ACK).destination;
    (OneWorker::new(ipv6, picks_up), backend)
}

/// The backend's packet in the middle of a download: it has everything up to 511.
fn download(backend: Endpoint, client: Endpoint) -> Packet {
    packet(backend, client, Way::Data(1000))
}

/// The client's RST, of this sequence number.
fn reset(client: Endpoint, vip: Endpoint, sequence: u32) -> Packet {
    with_tcp(packet(client, vip, Way::Tcp(RST)), |tcp| tcp[4..8].copy_from_slice(&sequence.to_be_bytes()))
}

fn acknowledged(packet: &Packet) -> u32 {
    let l4 = packet.data.len() - 1020;
    u32::from_be_bytes(packet.data[l4 + 8..l4 + 12].try_into().unwrap())
}

fn is_passed_to_kernel(fixture: &mut OneWorker, packet: &Packet) -> bool {
    let outcome = fixture.send(packet.clone());
    outcome.frames.len() == 1
        && outcome.frames[0].meta().egress == Egress::Kernel
        && outcome.frames[0].data == packet.data
}

#[test]
fn a_download_is_picked_up_from_its_backends_side() {
    for ipv6 in IPV6 {
        let client = client(ipv6, 1, 40_000);
        let (mut fixture, backend) = taken_over(ipv6, client);
        for flags in [ACK, ACK | PSH, ACK | FIN] {
            let sent = fixture.send(packet(backend, client, Way::Tcp(flags))).sent();
            assert_eq!((sent.source, sent.destination), (fixture.vip(), client));
            assert_eq!(
                (fixture.only().state, fixture.only().pair.state()),
                (State::SynReceived, OffloadState::Software)
            );
        }
        let sent = fixture.client_sends(client, ACK);
        assert_eq!(sent.destination, backend);
        fixture.send(download(backend, client));
        assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::Established, OffloadState::Offloaded));
    }
}

#[test]
fn what_maglev_would_give_to_another_backend_is_left_alone() {
    let client = client(false, 1, 40_000);
    let (mut fixture, backend) = taken_over(false, client);
    let other = fixture.backends().into_iter().find(|other| *other != backend).unwrap();
    assert!(is_passed_to_kernel(&mut fixture, &download(other, client)));
    assert_eq!(fixture.only().state, State::Pass);
}

#[test]
fn an_end_of_two_services_tells_nothing() {
    let client = client(false, 1, 40_000);
    let (_, backend) = taken_over(false, client);
    let mut fixture = OneWorker::new(false, |service| service.unknown = UnknownPacket::PickUp);
    assert!(is_passed_to_kernel(&mut fixture, &download(backend, client)));
    let mut fixture = OneWorker::new(false, |service| {
        picks_up(service);
        service.unknown = UnknownPacket::Drop;
    });
    assert!(
        is_passed_to_kernel(&mut fixture, &download(backend, client)),
        "nor does one of a service that does not pick up"
    );
}

/// Backends of a service of full NAT, HTTP or TLS know its connections by an address of the pool.
#[test]
fn an_end_shared_with_a_service_of_full_nat_tells_of_the_other() {
    let client = client(false, 1, 40_000);
    let (_, backend) = taken_over(false, client);
    let mut fixture = OneWorker::new(false, |service| {
        service.unknown = UnknownPacket::PickUp;
        if &*service.name == "service-1" {
            service.forwarding = Forwarding::FullNat;
        }
    });
    let sent = fixture.send(download(backend, client)).sent();
    assert_eq!((sent.source, sent.destination), (fixture.vip(), client));
    let ours = Endpoint { address: fixture.snapshot().pool.addresses[0], port: client.port };
    assert!(is_passed_to_kernel(&mut fixture, &download(backend, ours)), "no client has an address of the pool");
}

/// A host that talks to the backend itself, whose packets have gone by another way so far.
#[test]
fn who_answers_with_a_reset_talks_to_the_backend_itself() {
    let client = client(false, 1, 40_000);
    let (mut fixture, backend) = taken_over(false, client);
    let packet = download(backend, client);
    let right = acknowledged(&packet);
    fixture.send(packet.clone());
    let forged = fixture.send(reset(client, fixture.vip(), right + 1));
    assert_eq!((forged.frames.len(), fixture.only().state), (1, State::SynReceived), "it may be forged");
    assert!(fixture.send(reset(client, fixture.vip(), right)).frames.is_empty(), "the backend must not see it");
    assert_eq!(fixture.only().state, State::Pass);
    assert_eq!(fixture.engine_keys(), [packet.key()]);
    assert!(is_passed_to_kernel(&mut fixture, &packet));
}

#[test]
fn a_guess_expires_after_ten_seconds_of_silence() {
    let client = client(false, 1, 40_000);
    let (mut fixture, backend) = taken_over(false, client);
    let packet = download(backend, client);
    for _ in 0..5 {
        fixture.send(packet.clone()).sent();
        fixture.wait(Duration::from_secs(2));
    }
    fixture.wait(Duration::from_secs(1));
    assert!(is_passed_to_kernel(&mut fixture, &packet));
    assert_eq!(fixture.only().state, State::Pass);
}

#[test]
fn who_is_accepted_by_the_backend_itself_is_left_alone_for_long() {
    let client = client(false, 1, 40_000);
    let (mut fixture, backend) = taken_over(false, client);
    assert!(is_passed_to_kernel(&mut fixture, &packet(backend, client, Way::Tcp(SYN | ACK))));
    assert_eq!(fixture.only().state, State::Pass);
    fixture.wait(Duration::from_secs(600));
    assert!(is_passed_to_kernel(&mut fixture, &download(backend, client)), "ten minutes later");
    assert!(is_passed_to_kernel(&mut fixture, &packet(backend, client, Way::Tcp(FIN | ACK))));
    fixture.wait(Duration::from_secs(31));
    assert_eq!(fixture.worker().connections().count(), 0, "closed, it is forgotten soon");
}

#[test]
fn a_guess_gives_way_to_the_clients_own_word() {
    let client = client(false, 1, 40_000);
    let (mut fixture, backend) = taken_over(false, client);
    fixture.client_sends(client, ACK);
    let sent = fixture.send(download(backend, client)).sent();
    assert_eq!((sent.source, fixture.only().state), (fixture.vip(), State::Established), "known by its client before");
}
