//! What connections tell of their backends, and what forged clients must not be able to tell.

use super::stage::{Packet, Stage, Way, client, complaint, end, packet, with_tcp};
use crate::flow::Endpoint;
use crate::l4::connection::{Kept, State};
use crate::offload::OffloadState;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::{Drop, LATENCY_BUCKETS, Latency};

/// Established and failed, of all backends.
fn judged(stage: &Stage) -> (u64, u64) {
    let backends = &stage.worker().statistics().backends;
    backends.iter().fold((0, 0), |sum, backend| (sum.0 + backend.established, sum.1 + backend.failed))
}

/// A stage, a client of it, and the backend that has got its SYN.
fn asked(ipv6: bool) -> (Stage, Endpoint, Endpoint) {
    let mut stage = Stage::new(ipv6, |_| {});
    let client = client(ipv6, 1, 40_000);
    let backend = stage.client_sends(client, SYN).destination;
    (stage, client, backend)
}

#[test]
fn a_handshake_counts_once() {
    let (mut stage, client, backend) = asked(false);
    stage.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    assert_eq!(judged(&stage), (0, 0), "a SYN-ACK alone is what a forged client gets too");
    stage.client_sends(client, ACK);
    stage.client_sends(client, FIN | ACK);
    stage.send(packet(backend, client, Way::Tcp(RST | ACK)));
    stage.wait(Duration::from_secs(20));
    assert_eq!(judged(&stage), (1, 0));
}

#[test]
fn a_refusal_counts_and_so_does_that_of_a_restart() {
    let (mut stage, client, backend) = asked(false);
    stage.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&stage), (0, 1));
    stage.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&stage), (0, 1), "said twice");
    assert_eq!(stage.client_sends(client, SYN).destination, backend);
    stage.send(packet(backend, client, Way::Tcp(RST | ACK)));
    assert_eq!(judged(&stage), (0, 2));
}

#[test]
fn resets_that_a_client_can_bring_about_do_not_count() {
    // its own
    let (mut stage, client, _) = asked(false);
    stage.client_sends(client, RST);
    stage.client_sends(client, RST | ACK);
    stage.wait(Duration::from_secs(60));
    assert_eq!((judged(&stage), stage.worker().connections().count()), ((0, 0), 0));
    // the backend's, to an ACK that belongs to nothing
    let (mut stage, client, backend) = asked(false);
    stage.client_sends(client, ACK);
    stage.send(packet(backend, client, Way::Tcp(RST)));
    assert_eq!(judged(&stage), (0, 0));
    // and after the SYN-ACK
    let (mut stage, client, backend) = asked(false);
    stage.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    stage.send(packet(backend, client, Way::Tcp(RST | ACK)));
    stage.wait(Duration::from_secs(60));
    assert_eq!(judged(&stage), (0, 0));
}

#[test]
fn silence_counts_at_timeout_not_at_eviction() {
    let (mut stage, client, _) = asked(false);
    stage.client_sends(client, SYN);
    stage.wait(Duration::from_secs(29));
    assert_eq!(judged(&stage), (0, 0));
    stage.wait(Duration::from_secs(2));
    assert_eq!(judged(&stage), (0, 1));
    let mut full = Stage::with_capacity(false, 4, |_| {});
    for port in 1..100 {
        full.client_sends(self::client(false, 1, port), SYN);
    }
    assert_eq!((full.worker().statistics().evicted, judged(&full)), (95, (0, 0)));
}

#[test]
fn a_syn_that_no_backend_would_accept_is_no_failure() {
    let (client, vip) = (client(false, 1, 40_000), end(false, 1, 80));
    // a wrong checksum makes no connection, neither first nor later
    let mut stage = Stage::new(false, |_| {});
    let mut broken = packet(client, vip, Way::Tcp(SYN));
    broken.data[14 + 20 + 15] ^= 1;
    assert!(stage.send(broken.clone()).frames.is_empty());
    assert_eq!((stage.drops(Drop::Checksum), stage.worker().connections().count()), (1, 0));
    stage.open(client);
    stage.client_sends(client, RST);
    assert!(stage.send(broken).frames.is_empty());
    assert_eq!((stage.drops(Drop::Checksum), stage.only().state), (2, State::Reset));
    // options that ask for a key
    for kind in [19, 29] {
        let mut stage = Stage::new(false, |_| {});
        let signed = with_tcp(packet(client, vip, Way::Data(20)), |tcp| {
            tcp[12] = 0xa0;
            tcp[13] = SYN;
            tcp[20..22].copy_from_slice(&[kind, 18]);
        });
        assert_eq!(stage.send(signed).frames.len(), 1);
        stage.wait(Duration::from_secs(60));
        assert_eq!((judged(&stage), stage.worker().connections().count()), ((0, 0), 0), "option {kind}");
    }
}

#[test]
fn unreachable_counts_if_the_backend_does_not_answer_after_all() {
    for ipv6 in [false, true] {
        for answers in [false, true] {
            let mut stage = Stage::new(ipv6, |_| {});
            let (client, dns) = (client(ipv6, 1, 40_000), end(ipv6, 1, 53));
            let sent = stage.send(packet(client, dns, Way::Udp(20))).frames.remove(0);
            let backend = sent.key().destination;
            for _ in 0..3 {
                stage.send_frame(complaint(&sent, backend.address));
            }
            assert_eq!(judged(&stage), (0, 0), "it may be forged");
            if answers {
                stage.send(packet(backend, client, Way::Udp(30)));
            }
            stage.wait(Duration::from_millis(1200));
            assert_eq!(judged(&stage), if answers { (1, 0) } else { (0, 1) });
            stage.wait(Duration::from_secs(60));
            assert_eq!(judged(&stage), if answers { (1, 0) } else { (0, 1) });
        }
    }
}

#[test]
fn one_way_datagrams_are_noticed_before_they_are_offloaded() {
    let mut stage = Stage::new(false, |_| {});
    let (client, syslog) = (client(false, 1, 514), end(false, 1, 53));
    let mut last = stage.send(packet(client, syslog, Way::Udp(20))).frames.remove(0);
    for _ in 0..20 {
        let backend = last.key().destination.address;
        stage.send_frame(complaint(&last, backend));
        last = stage.send(packet(client, syslog, Way::Udp(20))).frames.remove(0);
    }
    assert_eq!(stage.only().pair.state(), OffloadState::Software);
    stage.wait(Duration::from_millis(1200));
    assert_eq!(judged(&stage), (0, 1));
}

#[test]
fn unreachable_counts_only_for_its_silent_backend() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = stage.open(client);
    let sent = stage.send(packet(client, stage.vip(), Way::Data(10))).frames.remove(0);
    stage.send_frame(complaint(&sent, end(false, 200, 0).address));
    // the client's side complains about what the backend sent
    let (mut early, client, backend_too) = asked(false);
    let answer = early.send(packet(backend_too, client, Way::Tcp(SYN | ACK))).frames.remove(0);
    early.send_frame(complaint(&answer, client.address));
    stage.wait(Duration::from_secs(2));
    early.wait(Duration::from_secs(60));
    assert_eq!((judged(&stage), judged(&early)), ((1, 0), (0, 0)));
    assert_eq!(stage.only().backend, backend);
}

fn acknowledging(stage: &Stage, client: Endpoint, number: u32, flags: u8) -> Packet {
    with_tcp(packet(client, stage.vip(), Way::Tcp(flags)), |tcp| tcp[8..12].copy_from_slice(&number.to_be_bytes()))
}

#[test]
fn who_never_saw_the_syn_ack_opens_nothing() {
    let (mut stage, client, backend) = asked(false);
    stage.send(packet(backend, client, Way::Tcp(SYN | ACK)));
    for (number, flags) in [(256, ACK), (0, ACK), (1 << 20, ACK | PSH), (u32::MAX, FIN | ACK)] {
        let forged = acknowledging(&stage, client, number, flags);
        assert_eq!(stage.send(forged).frames.len(), 1, "the backend is to judge of it");
        assert_eq!((stage.only().state, stage.only().pair.state()), (State::SynReceived, OffloadState::Software));
    }
    assert_eq!(stage.worker().statistics().half_open_now, 1);
    let real = acknowledging(&stage, client, 257, FIN | ACK);
    stage.send(real);
    assert_eq!((stage.only().state, judged(&stage)), (State::FinClient, (1, 0)));
    assert_eq!(stage.worker().statistics().half_open_now, 0);
}

#[test]
fn a_connection_knows_why_it_is_not_offloaded() {
    let mut stage = Stage::new(false, |_| {});
    stage.engine.room = 0;
    let client = client(false, 1, 40_000);
    stage.client_sends(client, SYN);
    assert_eq!(stage.only().kept, Kept::Nothing);
    let backend = stage.open(client);
    assert_eq!((stage.only().kept, stage.only().pair.state()), (Kept::EngineFull, OffloadState::Software));
    let refused = stage.worker().statistics().offload.refused_full;
    stage.client_sends(client, ACK);
    assert_eq!(stage.worker().statistics().offload.refused_full, refused, "not again within a second");
    stage.engine.room = 100;
    stage.wait(Duration::from_secs(2));
    stage.client_sends(client, ACK);
    assert_eq!((stage.only().kept, stage.only().pair.state()), (Kept::Nothing, OffloadState::Offloaded));
    assert_eq!(stage.only().backend, backend);
}

#[test]
fn the_latency_of_rules_is_that_from_request_to_answer() {
    let mut stage = Stage::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = stage.client_sends(client, SYN).destination;
    let vip = stage.vip();
    stage.batch(alloc::vec![packet(backend, client, Way::Tcp(SYN | ACK)), packet(client, vip, Way::Tcp(ACK))]);
    stage.flush();
    stage.now = stage.now + Duration::from_micros(100);
    stage.answer_one();
    stage.now = stage.now + Duration::from_micros(100);
    stage.answer_one();
    let latency = stage.worker().statistics().offload.latency;
    assert_eq!((latency.count, latency.sum_ns), (2, 300_000));
    assert_eq!((latency.buckets[7], latency.buckets[8]), (1, 1), "less than 128 and less than 256 microseconds");
}

#[test]
fn latencies_fall_into_the_bucket_that_says_so() {
    for (nanos, bucket) in [(0, 0), (999, 0), (1000, 1), (1999, 1), (2000, 2), (4_000_000_000, 22), (u64::MAX, 23)] {
        let mut latency = Latency::default();
        latency.add(Duration::from_nanos(nanos));
        assert_eq!(latency.buckets.iter().position(|&count| count == 1), Some(bucket), "{nanos} ns");
        assert!(bucket == LATENCY_BUCKETS - 1 || nanos / 1000 < 1 << bucket);
        assert_eq!((latency.count, latency.sum_ns), (1, nanos));
    }
}
