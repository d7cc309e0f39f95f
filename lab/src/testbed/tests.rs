//! The whole chain in memory, on one thread: generator, device, sink, accounts.

use super::account::Books;
use super::balancer::{BalancerOptions, workers};
use super::card::card;
use super::device::{DeviceCore, Handled, ServingCore};
use super::ends::{Inlet, Outlet};
use super::generator::{Generator, SentCounts};
use super::offload::{self, OffloadSetting, PolicySetting};
use super::sources::sources;
use super::table::{TableChoice, names};
use super::{Arrivals, Device, FrameSize, Measurement, PacketSource, SendRate, TransportProtocol, Trial};
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::sink::{PacketSink, SinkOptions};
use crate::traffic::TrafficSource;
use crate::traffic::template::LinkAddresses;
use hairpin_core::flow::{Address, Endpoint, Steering};
use hairpin_core::frame::{Batch, Checksum, FrameIo, VecFrame};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::{Parsed, parse};
use hairpin_sim::nic::CardProfile;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SESSION: u64 = 3;
const ROOM: usize = 256;

/// A queue of bounded length, and what it does to every so many frames.
#[derive(Clone, Default)]
struct Queue {
    frames: Arc<Mutex<VecDeque<VecFrame>>>,
    fault: Option<(usize, Fault)>,
    passed: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Loses,
    Doubles,
    Damages,
}

impl Queue {
    fn push(&mut self, batch: &mut Batch<VecFrame>) {
        let mut frames = self.frames.lock().unwrap();
        while frames.len() < ROOM && !batch.is_empty() {
            let mut frame = batch.remove(0);
            self.passed += 1;
            match self.fault {
                Some((every, fault)) if self.passed.is_multiple_of(every) => match fault {
                    Fault::Loses => continue,
                    Fault::Doubles => frames.push_back(frame.clone()),
                    Fault::Damages => *frame.data.last_mut().unwrap() ^= 1,
                },
                _ => {}
            }
            frames.push_back(frame);
        }
    }

    fn pull(&mut self, out: &mut Batch<VecFrame>) {
        let mut frames = self.frames.lock().unwrap();
        while !out.is_full() {
            let Some(frame) = frames.pop_front() else { return };
            out.push(frame);
        }
    }
}

impl Outlet for Queue {
    type Frame = VecFrame;
    const FULL: &'static str = "queue-full";

    fn lend(&mut self, out: &mut Batch<VecFrame>, count: usize) {
        out.extend((0..count).map(|_| VecFrame::default()));
    }
    fn send(&mut self, batch: &mut Batch<VecFrame>) {
        self.push(batch);
    }
    fn has_room(&self, count: usize) -> bool {
        self.frames.lock().unwrap().len() + count <= ROOM
    }
}

impl Inlet for Queue {
    type Frame = VecFrame;

    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        self.pull(out);
    }
}

/// The device's side.
struct Both {
    from: Queue,
    to: Queue,
}

impl FrameIo for Both {
    type Frame = VecFrame;

    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        self.from.pull(out);
    }
    fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
        self.to.push(batch);
    }
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
}

fn core(trial: &Trial, steering: Steering) -> DeviceCore {
    match trial.device {
        Device::Wire => DeviceCore::Wire,
        Device::Forwarder => DeviceCore::Forwarder(Box::default()),
        Device::Balancer => {
            let choice = TableChoice::named(&trial.table).unwrap();
            let connections_each = trial.table_entries as usize;
            let method = choice.method();
            let backends = trial.backends;
            let options = BalancerOptions { backends, connections_each, method, steering, seeds: [1, 2, 3, 4] };
            let tables = choice.tables(1, options.connections(), options.seeds, &None).unwrap();
            match &trial.offload {
                Some(offload) => {
                    let mut workers = offload::workers(&options, tables, offload).unwrap();
                    DeviceCore::Offloading(Box::new(workers.remove(0)))
                }
                None => DeviceCore::Balancer(Box::new(workers(&options, tables).remove(0))),
            }
        }
    }
}

/// Measures `trial`; what comes back is treated so.
fn measure(trial: &Trial, fault: Option<(usize, Fault)>) -> anyhow::Result<Measurement> {
    let steering = Steering::by_hash([1, 2], 1);
    let made = sources(trial, SESSION, steering, LinkAddresses::default())?;
    let (there, mut back) = (Queue::default(), Queue { fault, ..Queue::default() });
    let mut generator = Generator::new(there.clone(), made.lanes.into_iter().next().unwrap(), SESSION);
    let (core, io) = (core(trial, steering), Both { from: there, to: back.clone() });
    let mut device = match &trial.offload {
        Some(offload) => {
            let nic = card(&offload.card, trial.table_entries as usize, trial.seed);
            let behind = if offload.marks { ServingCore::behind_marks } else { ServingCore::behind };
            behind(core, io, nic)
        }
        None if trial.round_trip => ServingCore::before_backends(core, io),
        None => ServingCore::new(core, io),
    };
    let duration = trial.duration.as_nanos() as u64;
    let balanced = trial.device == Device::Balancer && !trial.round_trip;
    let mut sink =
        PacketSink::new(SinkOptions { session: SESSION, generators: 1, flows: made.flows, balanced, duration }, 0);
    let mut batch = Batch::new();
    if trial.run == 2 {
        while generator.introduce() {
            device.iterate();
            Inlet::receive(&mut back, &mut batch);
            batch.clear();
        }
        while device.iterate() {
            Inlet::receive(&mut back, &mut batch);
            batch.clear();
        }
        Inlet::receive(&mut back, &mut batch);
        batch.clear();
    }
    let before = device.handled();
    let start = clock::now();
    generator.start(trial.rate, 1.0, start, duration);
    sink.start(start);
    while !generator.is_done() {
        generator.step();
        device.iterate();
        Inlet::receive(&mut back, &mut batch);
        sink.take(clock::now(), &batch);
        batch.clear();
    }
    generator.stop();
    while device.iterate() {
        Inlet::receive(&mut back, &mut batch);
        sink.take(clock::now(), &batch);
        batch.clear();
    }
    Inlet::receive(&mut back, &mut batch);
    sink.take(clock::now(), &batch);
    Books {
        sent: generator.sent().clone(),
        full: Queue::FULL,
        behind: generator.behind(),
        timeline: generator.timeline().clone(),
        handled: device.handled().since(&before),
        between: Vec::new(),
        sink: &sink,
        duration,
    }
    .close()
}

fn trial() -> Trial {
    let (table_entries, flows) = (4096, 500);
    Trial { table_entries, flows, duration: Duration::from_millis(150), ..Trial::default() }
}

#[test]
fn every_device_brings_everything_back() {
    for device in [Device::Wire, Device::Forwarder, Device::Balancer] {
        for transport in [TransportProtocol::Udp, TransportProtocol::Tcp] {
            for (run, ipv6) in [(1, false), (2, true)] {
                let source = PacketSource::Synthetic { transport, arrivals: Arrivals::Fixed, sizes: None, ipv6 };
                let measured = measure(&Trial { device, source, run, ..trial() }, None).unwrap();
                assert!(measured.received >= 500, "{device} {transport:?}: {}", measured.received);
                assert_eq!((measured.received, measured.lost()), (measured.sent, 0), "{:?}", measured.lost_by_reason);
                assert!(measured.consistent && measured.flows_seen == 500);
                assert_eq!((measured.reordered, measured.duplicates, measured.corrupted), (0, 0, 0));
                assert!(measured.latency.min > 0 && measured.latency.max >= measured.latency.p99);
                if device == Device::Balancer {
                    assert_eq!(measured.backend_packets.len(), 4);
                    assert!(measured.backend_spread < 1.5, "{}", measured.backend_spread);
                }
                let sent: u64 = measured.over_time.iter().map(|sample| sample.sent).sum();
                assert_eq!(sent, measured.sent);
            }
        }
    }
}

#[test]
fn every_table_keeps_flows_together() {
    for name in names() {
        if !name.starts_with("rte-hash") {
            let measured = measure(&Trial { table: name.to_owned(), ..trial() }, None).unwrap();
            assert!(measured.consistent && measured.lost() == 0 && measured.received > 1000, "{name}: {measured:?}");
        }
    }
}

#[test]
fn a_table_too_small_moves_flows_or_refuses_them() {
    let source = |transport| PacketSource::Synthetic { transport, arrivals: Arrivals::Fixed, sizes: None, ipv6: false };
    let small = |transport, run| Trial { table_entries: 100, source: source(transport), run, ..trial() };
    // Datagrams of flows that no backend has answered push each other out, and come back to another backend.
    let measured = measure(&small(TransportProtocol::Udp, 1), None).unwrap();
    assert!(!measured.consistent && measured.inconsistent_flows > 100 && measured.lost() == 0);
    // Established ones stay, and the others find no room.
    let measured = measure(&small(TransportProtocol::Tcp, 2), None).unwrap();
    assert!(measured.consistent && measured.received > 100);
    assert!(measured.lost_by_reason.iter().any(|(reason, count)| reason == "table-full" && *count > 100));
    assert_eq!(measured.flows_seen, 100);
}

#[test]
fn an_open_loop_is_as_fast_as_it_says() {
    let measured = measure(&Trial { rate: SendRate::Packets(20_000.0), ..trial() }, None).unwrap();
    let due = measured.sent + measured.behind;
    assert!((2990..=3010).contains(&due), "{} sent, {} behind", measured.sent, measured.behind);
    assert_eq!(measured.received, measured.sent);
}

#[test]
fn faulty_path_is_detected() {
    let trial = Trial { device: Device::Wire, ..trial() };
    let lost = measure(&trial, Some((100, Fault::Loses))).unwrap_err().to_string();
    assert!(lost.contains("off"), "{lost}");
    let doubled = measure(&trial, Some((100, Fault::Doubles))).unwrap();
    assert!(doubled.duplicates > 10 && doubled.received == doubled.sent);
    let damaged = measure(&trial, Some((100, Fault::Damages))).unwrap();
    assert_eq!(damaged.lost_by_reason, [("corrupted".to_owned(), damaged.corrupted)]);
    assert!(damaged.corrupted > 10);
}

/// What goes to a backend comes back to the client through the balancer, and is counted once.
#[test]
fn round_trips_go_through_the_balancer_twice() {
    for table in ["cuckoo++", "stateless", "maglev"] {
        let trial = Trial { round_trip: true, run: 2, table: table.to_owned(), ..trial() };
        let measured = measure(&trial, None).unwrap();
        assert_eq!((measured.received, measured.lost()), (measured.sent, 0), "{table}: {:?}", measured.lost_by_reason);
        assert!(measured.received >= 500 && measured.backend_packets.is_empty(), "{table}: {measured:?}");
        assert_eq!((measured.reordered, measured.duplicates, measured.corrupted), (0, 0, 0), "{table}");
    }
}

/// A card that marks turns nothing round: the worker forwards all, as one without a card does.
#[test]
fn marking_card_leaves_packets_to_the_worker() {
    let offload = Some(OffloadSetting { card: fast_card(4096), policy: PolicySetting::Always, marks: true });
    let trial = Trial { offload, run: 2, ..trial() };
    let measured = measure(&trial, None).unwrap();
    let card = measured.offloaded.unwrap();
    assert_eq!((measured.received, measured.lost()), (measured.sent, 0), "{:?}", measured.lost_by_reason);
    assert!(measured.consistent, "{measured:?}");
    assert_eq!(card.packets, 0);
    assert!(card.marked > measured.received / 2, "{card:?}");
}

/// A card that takes a microsecond for a rule, with room for so many.
fn fast_card(rules_max: u32) -> CardProfile {
    let each = "[{ batch = 1, us = 1.0 }]";
    let text = format!(
        "name = \"test\"\nsource = \"a test\"\n[abilities]\n[tables]\nrules_max = {rules_max}\n[updates]\n\
         insert_us = {each}\ndelete_us = {each}\nbatch_max = 64\nwaiting_max = 1024\nconfirmed_us = [1, 50]\n\
         [forwarding]\ngbit_s = 0.001\nmpps = 0.001\nlatency_us = 2\nwaiting_max = 1\n"
    );
    CardProfile::parse(&text).unwrap()
}

/// Most packets never reach the worker, and all accounts are right: each flow's packets come in order to the one backend
/// that the worker has chosen for it, whether the worker or the card forwards them.
#[test]
fn card_forwards_handed_over_flows() {
    let tcp = PacketSource::Synthetic {
        transport: TransportProtocol::Tcp,
        arrivals: Arrivals::Fixed,
        sizes: None,
        ipv6: true,
    };
    for (policy, source, run) in [
        (PolicySetting::Always, PacketSource::default(), 1),
        (PolicySetting::Always, tcp, 2),
        (PolicySetting::HeavyHitter { packets: Some(20), bytes: None, duration: None }, PacketSource::default(), 1),
        (PolicySetting::FirstN(300), PacketSource::default(), 2),
        (PolicySetting::Auto, PacketSource::default(), 1),
        (PolicySetting::DecisionTree(None), PacketSource::default(), 1),
        (PolicySetting::FastestFlow(1), PacketSource::default(), 1),
        (PolicySetting::Never, PacketSource::default(), 1),
    ] {
        // A busy machine may have installed the rules only when the last packet had gone: it gets more time then.
        for longer in [1, 4, 16] {
            let offload = Some(OffloadSetting { card: fast_card(4096), policy: policy.clone(), marks: false });
            let duration = trial().duration * longer;
            let measured = measure(&Trial { offload, source: source.clone(), run, duration, ..trial() }, None).unwrap();
            assert_eq!((measured.received, measured.lost()), (measured.sent, 0), "{policy:?}: {measured:?}");
            assert!(measured.consistent && measured.flows_seen == 500, "{policy:?}: {measured:?}");
            assert_eq!((measured.reordered, measured.duplicates, measured.corrupted), (0, 0, 0), "{policy:?}");
            let card = measured.offloaded.unwrap();
            eprintln!("{policy:?}: {:.3} of {} packets, {card:?}", card.share(), measured.sent);
            assert_eq!(card.arrived, measured.sent, "{policy:?}");
            assert_eq!(card.rules % 2, 0, "rules come in pairs");
            let as_expected = match policy {
                PolicySetting::Never => {
                    assert_eq!((card.packets, card.rules_peak, card.no_room), (0, 0, 0));
                    true
                }
                PolicySetting::FirstN(_) => card.rules == 600 && card.packets > 0 && card.no_room > 0,
                PolicySetting::Always => card.rules == 1000 && card.share() > 0.1,
                // The other policies' choices are not checked.
                _ => card.packets > 0 || card.installed == 0,
            };
            if as_expected {
                break;
            }
            assert!(longer < 16, "{policy:?}: {card:?}");
        }
    }
}

/// A card without enough room, one that fails, one that works for a second at each rule: software forwards the rest.
#[test]
fn software_forwards_what_the_card_refuses() {
    let with = |change: &dyn Fn(&mut CardProfile)| {
        let mut card = fast_card(4096);
        change(&mut card);
        let offload = Some(OffloadSetting { card, policy: PolicySetting::Always, marks: false });
        let measured = measure(&Trial { offload, ..trial() }, None).unwrap();
        assert_eq!((measured.received, measured.lost(), measured.reordered), (measured.sent, 0, 0));
        assert!(measured.consistent && measured.flows_seen == 500);
        measured.offloaded.unwrap()
    };
    let small = with(&|card| card.tables.rules_max = 100);
    assert!(small.rules_peak == 100 && small.no_room > 0 && small.refused_full == 0, "{small:?}");
    let failing = with(&|card| card.updates.failing_ppm = 1_000_000);
    assert!(failing.refused() > 0 && failing.packets == 0 && failing.rules_peak == 0, "{failing:?}");
    let slow = with(&|card| card.updates.insert_us[0].us = 1e6);
    assert_eq!((slow.packets, slow.installed, slow.rules_peak), (0, 0, 0), "{slow:?}");
}

#[test]
fn every_packet_a_new_flow() {
    let source = PacketSource::Synthetic {
        transport: TransportProtocol::Udp,
        arrivals: Arrivals::Closed,
        sizes: None,
        ipv6: false,
    };
    let measured = measure(&Trial { source, table_entries: 1 << 20, ..trial() }, None).unwrap();
    assert_eq!((measured.flows_seen, measured.lost()), (measured.sent, 0));
}

/// The lanes' packets in one sink's hands: `iterations` times 20 of each lane's times its weight, dealt with by `way`.
fn in_one_sink(trial: &Trial, weights: &[usize], iterations: usize, mut way: impl FnMut(&mut VecFrame)) -> PacketSink {
    let lanes = weights.len() as u16;
    let made = sources(trial, SESSION, Steering::by_hash([1, 2], lanes), LinkAddresses::default()).unwrap();
    let (flows, duration) = (made.flows, 1_000_000_000);
    let mut sink =
        PacketSink::new(SinkOptions { session: SESSION, generators: lanes, flows, balanced: true, duration }, 0);
    let mut lanes = made.lanes;
    for iteration in 0..iterations as u64 {
        for (lane, weight) in lanes.iter_mut().zip(weights) {
            for _ in 0..*weight {
                let mut frames: Batch<VecFrame> = (0..20).map(|_| VecFrame::default()).collect();
                let filled = lane.fill(iteration * 1_000_000, &mut frames);
                frames.truncate(filled.packets);
                frames.iter_mut().for_each(&mut way);
                sink.take(iteration * 1_000_000, &frames);
            }
        }
    }
    sink
}

/// The client's end of a frame.
fn client(frame: &VecFrame) -> Endpoint {
    let Ok(Parsed::Transport(at)) = parse(&frame.data) else { panic!("{:?}", parse(&frame.data)) };
    at.key.source
}

/// Flows that last among tens of thousands that come and go, of lanes that send different amounts.
#[test]
fn every_open_flow_is_checked() {
    let file = std::env::temp_dir().join(format!("hairpin-lab-{}-few-last.csv", std::process::id()));
    std::fs::write(&file, "22,0\n22,0.998\n1e9,1\n").unwrap();
    let moved = Endpoint { address: Address::from_ipv4([198, 18, 0, 1]), port: 8080 };
    for (transport, arrivals) in [
        (TransportProtocol::Udp, Arrivals::Closed),
        (TransportProtocol::Tcp, Arrivals::Closed),
        (TransportProtocol::Udp, Arrivals::Poisson(1e6)),
    ] {
        for weights in [&[1][..], &[4, 1], &[1, 3, 2]] {
            let source = PacketSource::Synthetic { transport, arrivals, sizes: Some(file.clone()), ipv6: false };
            let trial = Trial { source, flows: 200, ..trial() };
            let mut packets: BTreeMap<Endpoint, u32> = BTreeMap::new();
            let sink = in_one_sink(&trial, weights, 3000, |frame| {
                let so_far = packets.entry(client(frame)).or_default();
                *so_far += 1;
                // A flow that lasts goes to another backend in the end.
                if *so_far > 50 {
                    let Ok(Parsed::Transport(at)) = parse(&frame.data) else { panic!() };
                    let rewrite = Rewrite { source: at.key.source, destination: moved, ..Rewrite::default() };
                    rewrite.apply(&mut frame.data, &at, Checksum::Complete);
                }
            });
            let (counts, flows) = (*sink.counts(), sink.flows());
            let last = packets.values().filter(|&&count| count > 50).count();
            assert!(packets.len() > 5000 && last > 10, "{} flows, {last} last", packets.len());
            assert_eq!((flows.seen(), flows.moved(), flows.unchecked()), (packets.len() as u64, last as u64, 0));
            assert_eq!((counts.received, counts.reordered), (packets.values().map(|&count| u64::from(count)).sum(), 0));
        }
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_was_not_checked_is_not_called_consistent() {
    let trial = Trial { flows: 10_000, ..trial() };
    let duration = 1_000_000_000;
    for (flows, checked) in [(10_000, true), (1, false)] {
        let mut source =
            sources(&trial, SESSION, Steering::by_hash([1, 2], 1), LinkAddresses::default()).unwrap().lanes.remove(0);
        let options = SinkOptions { session: SESSION, generators: 1, flows, balanced: true, duration };
        let mut sink = PacketSink::new(options, 0);
        for _ in 0..1000 {
            let mut frames: Batch<VecFrame> = (0..20).map(|_| VecFrame::default()).collect();
            source.fill(0, &mut frames);
            sink.take(0, &frames);
        }
        let books = Books {
            sent: SentCounts { packets: 20_000, ..SentCounts::default() },
            full: Queue::FULL,
            behind: 0,
            timeline: Timeline::new(0, duration),
            handled: Handled::default(),
            between: Vec::new(),
            sink: &sink,
            duration,
        };
        let measured = books.close().unwrap();
        assert_eq!((measured.consistent, measured.unchecked == 0), (checked, checked), "{measured:?}");
        assert_eq!(measured.inconsistent_flows, 0);
    }
}

#[test]
fn a_real_recording_goes_through_the_balancer() {
    let Some(traces) = std::env::var_os("HAIRPIN_TRACES") else {
        return eprintln!("skipped: HAIRPIN_TRACES names no directory of recordings");
    };
    let file = std::path::Path::new(&traces).join("teams.pcap");
    for run in [1, 2] {
        let source = PacketSource::Replay { file: file.clone(), masks: None, payload: true };
        let measured = measure(&Trial { source, run, packet_size: FrameSize::Natural, ..trial() }, None).unwrap();
        assert!(measured.consistent && measured.lost() == 0 && measured.received > 1000, "{measured:?}");
    }
}
