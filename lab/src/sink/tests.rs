//! A sink behind a channel that does to packets what a script says.

use super::{PacketSink, SinkOptions};
use crate::testbed::{Arrivals, FrameSize, TransportProtocol};
use crate::traffic::flows::FlowLane;
use crate::traffic::synthetic::{Synthetic, SyntheticOptions};
use crate::traffic::template::LinkAddresses;
use crate::traffic::{Numbering, TrafficSource};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::frame::{Batch, Checksum, VecFrame};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::{Parsed, parse};
use proptest::prelude::*;

const SESSION: u64 = 77;
const FLOWS: u32 = 10;

/// The first `count` packets of a source of ten flows, sent at time 1000.
fn sent(transport: TransportProtocol, count: usize) -> Vec<VecFrame> {
    let options = SyntheticOptions {
        transport,
        ipv6: false,
        arrivals: Arrivals::Fixed,
        sizes: None,
        length: FrameSize::Fixed(64),
        flows: FLOWS,
        known: true,
        link: LinkAddresses::default(),
    };
    let mut source = Synthetic::new(options, FlowLane::only(), Numbering::new(SESSION, 0), 0, 1).unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let mut frames: Batch<VecFrame> = (0..10).map(|_| VecFrame::default()).collect();
        source.fill(1000, &mut frames);
        all.extend(frames.drain(..));
    }
    all.truncate(count);
    all
}

fn sink() -> PacketSink {
    let (flows, duration) = (FLOWS as usize, 1_000_000_000);
    PacketSink::new(SinkOptions { session: SESSION, generators: 1, flows, balanced: true, duration }, 0)
}

/// Sends a packet to a backend, as a balancer does.
fn balance(frame: &mut VecFrame, backend: u8) {
    let Ok(Parsed::Transport(at)) = parse(&frame.data) else { panic!() };
    let destination = Endpoint { address: Address::from_ipv4([198, 18, 0, backend]), port: 8080 };
    let rewrite = Rewrite { source: at.key.source, destination, ..Rewrite::default() };
    rewrite.apply(&mut frame.data, &at, Checksum::Complete);
}

#[test]
fn all_is_well() {
    for transport in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let mut sink = sink();
        let mut frames = sent(transport, 1000);
        // Clients' addresses end in 1 to 10.
        frames.iter_mut().for_each(|frame| balance(frame, frame.data[29] % 5));
        sink.take(1500, &frames);
        let counts = *sink.counts();
        assert_eq!((counts.frames, counts.received, counts.bytes, sink.missing()), (1000, 1000, 64_000, 0));
        assert_eq!((sink.flows().seen(), sink.flows().moved(), counts.reordered), (10, 0, 0));
        let backends = sink.backends().packets();
        assert_eq!(backends.len(), 5);
        assert!(backends.iter().all(|(name, packets)| name.starts_with("198.18.0.") && *packets == 200));
        assert_eq!(sink.backends().spread(), 1.0);
        let latency = sink.latency().summary();
        assert_eq!((latency.count, latency.min, latency.max, latency.mean), (1000, 500, 500, 500.0));
        assert_eq!(sink.timeline().samples(100_000_000)[0].received, 1000);
    }
}

proptest! {
    #[test]
    fn every_fault_is_told(
        faults in prop::collection::vec((0..8u8, 0..600usize), 100..400), bit in 0..8u8, byte in 14..64usize
    ) {
        let mut frames = Vec::new();
        let [mut lost, mut twice, mut corrupted, mut foreign] = [0u64; 4];
        for (frame, &(fault, _)) in sent(TransportProtocol::Udp, faults.len()).into_iter().zip(&faults) {
            match fault {
                0 => lost += 1,
                1 => {
                    twice += 1;
                    frames.extend([frame.clone(), frame]);
                }
                2 => {
                    corrupted += 1;
                    let mut frame = frame;
                    frame.data[byte] ^= 1 << bit;
                    // A frame that is no longer IP, or of another protocol, is foreign; the others count as corrupted.
                    match parse(&frame.data) {
                        Ok(Parsed::Transport(_)) | Err(_) => {}
                        Ok(_) => {
                            corrupted -= 1;
                            foreign += 1;
                        }
                    }
                    frames.push(frame);
                }
                3 => {
                    foreign += 1;
                    frames.push(VecFrame::new(&[0xff; 60]));
                    frames.push(frame);
                }
                _ => frames.push(frame),
            }
        }
        // A wrong packet's number is one that has not come.
        let wrong = faults.iter().filter(|fault| fault.0 == 2).count() as u64;
        let whole = faults.len() as u64 - lost - wrong;
        let mut sink = sink();
        sink.take(1001, &frames);
        let counts = sink.counts();
        prop_assert_eq!(counts.received, whole);
        prop_assert_eq!(counts.duplicates, twice);
        prop_assert_eq!(counts.corrupted, corrupted);
        prop_assert_eq!(counts.foreign, foreign);
        prop_assert_eq!(counts.frames, frames.len() as u64);
        prop_assert!(sink.missing() <= lost + wrong);
    }

    #[test]
    fn late_packet_of_a_flow_counts_as_reordered(order in Just((0..200usize).collect::<Vec<_>>()).prop_shuffle()) {
        let frames = sent(TransportProtocol::Tcp, 200);
        let shuffled: Vec<VecFrame> = order.iter().map(|&number| frames[number].clone()).collect();
        let mut sink = sink();
        sink.take(1001, &shuffled);
        // Every round of ten has each flow once, in an order of its own: the flow is found by its client's port.
        let flow = |number: usize| frames[number].data[26..36].to_vec();
        let behind = |(at, &number): (usize, &usize)| {
            order[..at].iter().any(|&before| before > number && flow(before) == flow(number))
        };
        prop_assert_eq!(sink.counts().reordered, order.iter().enumerate().filter(|&it| behind(it)).count() as u64);
        prop_assert_eq!((sink.counts().received, sink.missing()), (200, 0));
    }
}

#[test]
fn a_flow_that_moves_is_told_once() {
    let mut frames = sent(TransportProtocol::Udp, 100);
    let first = frames[0].data[26..36].to_vec();
    let mut rounds = 0;
    for frame in &mut frames {
        let moves = frame.data[26..36] == first[..];
        rounds += u8::from(moves);
        balance(frame, if moves { rounds % 2 } else { 1 });
    }
    let mut sink = sink();
    sink.take(1001, &frames);
    assert_eq!((sink.flows().seen(), sink.flows().moved()), (10, 1));
}

#[test]
fn another_sessions_packets_do_not_count() {
    let options = SinkOptions { session: 1, generators: 1, flows: 10, balanced: false, duration: 1 };
    let mut sink = PacketSink::new(options, 0);
    sink.take(2000, &sent(TransportProtocol::Udp, 100));
    assert!(sink.counts().foreign > 97 && sink.counts().received < 3);
}

#[test]
fn no_latency_is_negative() {
    let mut sink = sink();
    let frames = sent(TransportProtocol::Udp, 10);
    sink.take(999, &frames);
    assert_eq!((sink.counts().from_the_future, sink.counts().received), (10, 0));
}

#[test]
fn sinks_add_up() {
    let frames = sent(TransportProtocol::Tcp, 200);
    let (mut one, mut other) = (sink(), sink());
    one.take(1001, &frames[..150]);
    other.take(1003, &frames[150..]);
    one.merge(&other);
    assert_eq!((one.counts().received, one.counts().bytes), (200, 12_800));
    assert_eq!((one.latency().summary().count, one.latency().summary().max), (200, 3));
}
