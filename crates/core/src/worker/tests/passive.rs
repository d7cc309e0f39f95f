//! The evidence of connections about their backends, and the evidence that forged clients must not be able to give.

use super::one_worker::{OneWorker, Packet, Way, client, complaint, end, packet, with_tcp};
use crate::flow::Endpoint;
use crate::l4::connection::{Kept, State};
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::{Drop, LATENCY_BUCKETS, Latency};

/// Established and failed, of all backends.
fn judged(fixture: &OneWorker) -> (u64, u64) {
    let backends = &fixture.worker().statistics().backends;
    backends.iter().fold((0, 0), |sum, backend| (sum.0 + backend.established, sum.1 + backend.failed))
}

/// A fixture, a client of it, and the backend that has got its SYN.
fn asked(ipv6: bool) -> (OneWorker, Endpoint, Endpoint) {
    let mut fixture = OneWorker::new(ipv6, |_| {});
    let client = client(ipv6, 1, 40_000);
    let backend = fixture.client_sends(client, SYN).destination;
    (fixture, client, backend)
}

#[test]
fn a_handshake_counts_once() {
    let (mut fixture, client, backend) = asked(false);
    fixture.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(judged(&fixture), (0, 0), "a SYN-ACK alone is what a forged client gets too");
    fixture.client_sends(client, ACK);
    fixture.client_sends(client, FIN | ACK);
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    fixture.wait(Duration::from_secs(20));
    assert_eq!(judged(&fixture), (1, 0));
}

#[test]
fn a_refusal_counts_and_so_does_that_of_a_restart() {
    let (mut fixture, client, backend) = asked(false);
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&fixture), (0, 1));
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&fixture), (0, 1), "said twice");
    assert_eq!(fixture.client_sends(client, SYN).destination, backend);
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&fixture), (0, 2));
}

#[test]
fn resets_that_a_client_can_bring_about_do_not_count() {
    // its own
    let (mut fixture, client, _) = asked(false);
    fixture.client_sends(client, RST);
    fixture.client_sends(client, RST | ACK);
    fixture.wait(Duration::from_secs(60));
    assert_eq!((judged(&fixture), fixture.worker().connections().count()), ((0, 0), 0));
    // the backend's, to an ACK that belongs to nothing
    let (mut fixture, client, backend) = asked(false);
    fixture.client_sends(client, ACK);
    fixture.send(packet(backend, client, Way::Tcp(RST)));
    assert_eq!(judged(&fixture), (0, 0));
    // and after the SYN-ACK
    let (mut fixture, client, backend) = asked(false);
    fixture.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    fixture.send(packet(backend, client, Way::Tcp(RST | ACK)));
    fixture.wait(Duration::from_secs(60));
    assert_eq!(judged(&fixture), (0, 0));
}

#[test]
fn silence_counts_at_timeout_not_at_eviction() {
    let (mut fixture, client, _) = asked(false);
    fixture.client_sends(client, SYN);
    fixture.wait(Duration::from_secs(29));
    assert_eq!(judged(&fixture), (0, 0));
    fixture.wait(Duration::from_secs(2));
    assert_eq!(judged(&fixture), (0, 1));
    let mut full = OneWorker::with_capacity(false, 4, |_| {});
    for port in 1..100 {
        full.client_sends(self::client(false, 1, port), SYN);
    }
    assert_eq!((full.worker().statistics().evicted, judged(&full)), (95, (0, 0)));
}

#[test]
fn a_syn_that_no_backend_would_accept_is_no_failure() {
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 80));
    // a wrong checksum makes no connection, neither first nor later
    let mut fixture = OneWorker::new(false, |_| {});
    let mut broken = packet(client, vip, Way::Tcp(SYN));
    broken.data[14 + 20 + 15] ^= 1;
    assert!(fixture.send(broken.clone()).frames.is_empty());
    assert_eq!((fixture.drops(Drop::Checksum), fixture.worker().connections().count()), (1, 0));
    fixture.open(client);
    fixture.client_sends(client, RST);
    assert!(fixture.send(broken).frames.is_empty());
    assert_eq!((fixture.drops(Drop::Checksum), fixture.only().state), (2, State::Reset));
    // options that ask for a key
    for kind in [19, 29] {
        let mut fixture = OneWorker::new(false, |_| {});
        let signed = with_tcp(packet(client, vip, Way::Data(20)), |tcp| {
            tcp[12] = 0xa0;
            tcp[13] = SYN;
            tcp[20..22].copy_from_slice(&[kind, 18]);
        });
        assert_eq!(fixture.send(signed).frames.len(), 1);
        fixture.wait(Duration::from_secs(60));
        assert_eq!((judged(&fixture), fixture.worker().connections().count()), ((0, 0), 0), "option {kind}");
    }
}

#[test]
fn unreachable_counts_if_the_backend_does_not_answer_after_all() {
    for ipv6 in [false, true] {
        for answers in [false, true] {
            let mut fixture = OneWorker::new(ipv6, |_| {});
            let (client, dns) = (client(ipv6, 1, 40_000), end(ipv6, 1, 53));
            let sent = fixture.send(packet(client, dns, Way::Udp(20))).frames.remove(0);
            let backend = sent.key().destination;
            for _ in 0..3 {
                fixture.send_frame(complaint(&sent, backend.address));
            }
            assert_eq!(judged(&fixture), (0, 0), "it may be forged");
            if answers {
                fixture.send(packet(backend, client, Way::Udp(30)));
            }
            fixture.wait(Duration::from_millis(1200));
            assert_eq!(judged(&fixture), if answers { (1, 0) } else { (0, 1) });
            fixture.wait(Duration::from_secs(60));
            assert_eq!(judged(&fixture), if answers { (1, 0) } else { (0, 1) });
        }
    }
}

#[test]
fn one_way_datagrams_are_noticed_before_they_are_offloaded() {
    let mut fixture = OneWorker::new(false, |_| {});
    let (client, syslog) = (client(false, 1, 514), end(false, 1, 53));
    let mut last = fixture.send(packet(client, syslog, Way::Udp(20))).frames.remove(0);
    for _ in 0..20 {
        let backend = last.key().destination.address;
        fixture.send_frame(complaint(&last, backend));
        last = fixture.send(packet(client, syslog, Way::Udp(20))).frames.remove(0);
    }
    assert_eq!(fixture.only().pair.state(), OffloadState::Software);
    fixture.wait(Duration::from_millis(1200));
    assert_eq!(judged(&fixture), (0, 1));
}

#[test]
fn unreachable_counts_only_for_its_silent_backend() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    let sent = fixture.send(packet(client, fixture.vip(), Way::Data(10))).frames.remove(0);
    fixture.send_frame(complaint(&sent, end(false, 200, 0).address));
    // the client's side complains about what the backend sent
    let (mut early, client, backend_too) = asked(false);
    let answer = early.send(packet(backend_too, client, Way::Tcp(SYN | ACK))).frames.remove(0);
    early.send_frame(complaint(&answer, client.address));
    fixture.wait(Duration::from_secs(2));
    early.wait(Duration::from_secs(60));
    assert_eq!((judged(&fixture), judged(&early)), ((1, 0), (0, 0)));
    assert_eq!(fixture.only().backend, backend);
}

fn acknowledging(fixture: &OneWorker, client: Endpoint, number: u32, flags: u8) -> Packet {
    with_tcp(packet(client, fixture.vip(), Way::Tcp(flags)), |tcp| tcp[8..12].copy_from_slice(&number.to_be_bytes()))
}

#[test]
fn who_never_saw_the_syn_ack_opens_nothing() {
    let (mut fixture, client, backend) = asked(false);
    fixture.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    for (number, flags) in [(256, ACK), (0, ACK), (1 << 20, ACK | PSH), (u32::MAX, FIN | ACK)] {
        let forged = acknowledging(&fixture, client, number, flags);
        assert_eq!(fixture.send(forged).frames.len(), 1, "the backend is to judge of it");
        assert_eq!((fixture.only().state, fixture.only().pair.state()), (State::SynReceived, OffloadState::Software));
    }
    assert_eq!(fixture.worker().statistics().half_open_now, 1);
    let real = acknowledging(&fixture, client, 257, FIN | ACK);
    fixture.send(real);
    assert_eq!((fixture.only().state, judged(&fixture)), (State::FinClient, (1, 0)));
    assert_eq!(fixture.worker().statistics().half_open_now, 0);
}

#[test]
fn a_connection_knows_why_it_is_not_offloaded() {
    let mut fixture = OneWorker::new(false, |_| {});
    fixture.engine.room = 0;
    let client = client(false, 1, 40_000);
    fixture.client_sends(client, SYN);
    assert_eq!(fixture.only().kept, Kept::Nothing);
    let backend = fixture.open(client);
    assert_eq!((fixture.only().kept, fixture.only().pair.state()), (Kept::EngineFull, OffloadState::Software));
    let refused = fixture.worker().statistics().offload.refused_full;
    fixture.client_sends(client, ACK);
    assert_eq!(fixture.worker().statistics().offload.refused_full, refused, "not again within a second");
    fixture.engine.room = 100;
    fixture.wait(Duration::from_secs(2));
    fixture.client_sends(client, ACK);
    assert_eq!((fixture.only().kept, fixture.only().pair.state()), (Kept::Nothing, OffloadState::Offloaded));
    assert_eq!(fixture.only().backend, backend);
}

#[test]
fn the_latency_of_rules_is_that_from_request_to_answer() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = fixture.client_sends(client, SYN).destination;
    let vip = fixture.vip();
    fixture.batch(alloc::vec![packet(backend, client, Way::Tcp(SYN | ACK)), packet(client, vip, Way::Tcp(ACK))]);
    fixture.flush();
    fixture.now = fixture.now + Duration::from_micros(100);
    fixture.answer_one();
    fixture.now = fixture.now + Duration::from_micros(100);
    fixture.answer_one();
    let latency = fixture.worker().statistics().offload.latency;
    assert_eq!((latency.count, latency.sum_ns), (2, 300_000));
    assert_eq!((latency.buckets[7], latency.buckets[8]), (1, 1), "less than 128 and less than 256 microseconds");
}

#[test]
fn latencies_fall_into_the_bucket_that_says_so() {
    for (nanos, bucket) in
        [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (4_000_000_000, 22), (u64::MAX, LATENCY_BUCKETS - 1)]
    {
        let mut latency = Latency::default();
        latency.add(Duration::from_nanos(nanos));
        assert_eq!(latency.buckets.iter().position(|&count| count == 1), Some(bucket), "{nanos} ns");
        assert!(bucket == LATENCY_BUCKETS - 1 || nanos / 1000 < 1 << bucket);
        assert_eq!((latency.count, latency.sum_ns), (1, nanos));
    }
}
