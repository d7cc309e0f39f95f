//! Mixes are what they say: a wrong distribution does not pass.

use super::*;
use crate::trace::TraceModel;
use crate::traffic::sizes::FlowSizes;
use fastrand::Rng;
use hairpin_core::flow::Direction;
use hairpin_sim::testbed::FlowPart;
use std::collections::HashMap;
use std::sync::Arc;

/// Two recordings: one of a flow of five packets among three small ones, one of two flows.
fn structure() -> Arc<Structure> {
    let unit = |order: &[u32]| RecordingUnit {
        order: order.to_vec(),
        lengths: order.iter().map(|flow| 100 + *flow as u16).collect(),
        flows: order.iter().max().map_or(0, |most| most + 1),
    };
    Arc::new(Structure { units: vec![unit(&[0, 1, 0, 2, 0, 3, 0, 0]), unit(&[0, 1, 1])] })
}

fn all(mut mix: Mix) -> Vec<OfferedPacket> {
    std::iter::from_fn(|| mix.next()).collect()
}

fn replay(flows: u32, seconds: f64, seed: u64) -> Mix {
    Mix::Replay(ReplayMix::new(structure(), flows, 1e6, seconds, None, seed))
}

fn counts(packets: &[OfferedPacket]) -> HashMap<u32, u64> {
    let mut counts = HashMap::new();
    for packet in packets {
        *counts.entry(packet.flow).or_insert(0) += 1;
    }
    counts
}

#[test]
fn replay_multiplies_recorded_flows() {
    // Six flows and eleven packets in both recordings: 600,000 flows are 1.1 million packets.
    assert!((ReplayMix::pass_seconds(&structure(), 600_000, 1e6) - 1.1).abs() < 1e-9);
    let mut mix = replay(600_000, 2.0, 1);
    let packets: Vec<OfferedPacket> = (0..1_100_000).map_while(|_| mix.next()).collect();
    let mut sizes: HashMap<u64, u32> = HashMap::new();
    for count in counts(&packets).values() {
        *sizes.entry(*count).or_default() += 1;
    }
    // Recorded: flows of 5, 1, 1, 1 packets, and of 1 and 2. A few recordings are under way at the end, or begun anew.
    let near = |count: u64, expected: f64| (f64::from(sizes[&count]) / expected - 1.0).abs() < 0.04;
    assert!(near(1, 400_000.0) && near(2, 100_000.0) && near(5, 100_000.0), "{sizes:?}");
    assert!(counts(&packets).len() > 590_000, "{}", counts(&packets).len());
    let lengths = packets.iter().all(|packet| (100..104).contains(&packet.length));
    assert!(lengths && packets.iter().all(|packet| packet.flow < 600_000 && packet.part == FlowPart::Middle));
}

#[test]
fn replay_repeats_the_same_flows() {
    let packets = all(replay(601, 0.02, 1));
    assert_eq!(packets.len(), 20_000);
    let counts = counts(&packets);
    // The last recording has no more than one flow left.
    assert_eq!(counts.len(), 601);
    let heavy = counts.values().filter(|count| **count > 70).count();
    assert!((95..=105).contains(&heavy), "a flow is the same each time round: {heavy}");
}

#[test]
fn packets_come_at_an_even_rate_and_a_seed_says_which() {
    for make in
        [|seed| replay(600, 0.01, seed), |seed| Mix::Popular(Popular::new(1000, Some(1.0), 1e6, 0.01, 1514, seed))]
    {
        let (one, again, other) = (all(make(1)), all(make(1)), all(make(2)));
        assert_eq!(one.len(), 10_000);
        assert!(one.iter().enumerate().all(|(index, packet)| packet.at.as_nanos() == index as u64 * 1000));
        assert_eq!(one, again);
        assert_ne!(one, other);
    }
}

#[test]
fn rotation_visits_each_once_before_any_twice() {
    let packets = all(Mix::Popular(Popular::new(300, None, 1e6, 0.001, 64, 1)));
    assert!(packets.iter().enumerate().all(|(index, packet)| packet.flow == index as u32 % 300));
}

#[test]
fn popularity_is_zipfs() {
    for exponent in [0.0, 0.6, 1.0, 1.3, 2.5] {
        const RANKS: u32 = 50;
        const DRAWS: u32 = 200_000;
        let zipf = Zipf::new(RANKS, exponent);
        let mut random = Rng::with_seed(7);
        let mut drawn = [0_u32; RANKS as usize];
        for _ in 0..DRAWS {
            drawn[zipf.draw(&mut random) as usize - 1] += 1;
        }
        let weight = |rank: u32| f64::from(rank).powf(-exponent);
        let all: f64 = (1..=RANKS).map(weight).sum();
        // Pearson's chi-squared: 49 degrees of freedom, exceeded once in a thousand at 85.4.
        let squares = (1..=RANKS).map(|rank| {
            let expected = f64::from(DRAWS) * weight(rank) / all;
            (f64::from(drawn[rank as usize - 1]) - expected).powi(2) / expected
        });
        let chi_squared: f64 = squares.sum();
        assert!(chi_squared < 85.4, "exponent {exponent}: {chi_squared}");
    }
    assert_eq!(Zipf::new(1, 1.0).draw(&mut Rng::with_seed(1)), 1);
}

const SIZES: &str = "100,0\n1500,0.5\n3000,0.6\n30000,0.9\n300000,1\n";

fn options(packets_per_s: f64, seconds: f64) -> ConnectionsOptions {
    ConnectionsOptions {
        size: ResponseSize::Measured(Arc::new(FlowSizes::parse(SIZES).unwrap()), u64::MAX),
        mbit_s: (100.0, 1000.0),
        packets_per_s,
        seconds,
        round_trip: 100_000,
        ends: true,
    }
}

fn connections(options: ConnectionsOptions, seed: u64) -> Vec<OfferedPacket> {
    all(Mix::Connections(Connections::new(options, seed)))
}

fn by_flow(packets: &[OfferedPacket]) -> HashMap<u32, Vec<OfferedPacket>> {
    let mut flows: HashMap<u32, Vec<OfferedPacket>> = HashMap::new();
    for packet in packets {
        flows.entry(packet.flow).or_default().push(*packet);
    }
    flows
}

#[test]
fn connections_are_whole_and_in_order() {
    let packets = connections(options(1e5, 1.0), 3);
    assert!(packets.windows(2).all(|pair| pair[0].at <= pair[1].at), "times never descend");
    let (mut whole, mut cut) = (0, 0);
    for (flow, packets) in by_flow(&packets) {
        let (from_client, from_backend) = (Direction::FromClient, Direction::FromBackend);
        assert_eq!((packets[0].part, packets[0].direction), (FlowPart::First, from_client), "{flow}");
        if packets.last().unwrap().part != FlowPart::Last {
            cut += 1;
            continue;
        }
        whole += 1;
        assert_eq!((packets[1].part, packets[1].direction), (FlowPart::First, from_backend));
        assert_eq!((packets[2].part, packets[2].direction), (FlowPart::Middle, from_client));
        let last: Vec<Direction> =
            packets.iter().filter(|packet| packet.part == FlowPart::Last).map(|packet| packet.direction).collect();
        assert!(last == [from_backend, from_client] || last == [from_backend], "{last:?}");
        let data =
            packets.iter().filter(|packet| (packet.part, packet.direction) == (FlowPart::Middle, from_backend)).count();
        let acknowledgements =
            packets.iter().filter(|packet| (packet.part, packet.direction) == (FlowPart::Middle, from_client)).count()
                - 1;
        assert_eq!(acknowledgements, data.div_ceil(2));
    }
    assert!(whole > 20 * cut && whole > 1000, "{whole} whole, {cut} cut off by the end");
}

#[test]
fn sizes_follow_the_distribution() {
    let packets = connections(options(1e6, 1.0), 5);
    let mut sizes: Vec<u64> = Vec::new();
    for packets in by_flow(&packets).values() {
        if packets.iter().any(|packet| packet.part == FlowPart::Last) {
            let data = packets
                .iter()
                .filter(|packet| packet.part == FlowPart::Middle && packet.direction == Direction::FromBackend);
            sizes.push(data.map(|packet| u64::from(packet.length) - 66).sum());
        }
    }
    sizes.sort_unstable();
    let count = sizes.len() as f64;
    let expected = FlowSizes::parse(SIZES).unwrap();
    // Kolmogorov and Smirnov's distance, and what the ends of the run take away (large ones do not end in it).
    let most = 1.95 / count.sqrt() + 0.004;
    for hundredth in 1..100 {
        let probability = f64::from(hundredth) / 100.0;
        let share = sizes.partition_point(|size| *size <= expected.at(probability)) as f64 / count;
        assert!((share - probability).abs() < most, "{hundredth}: {share}, {count} flows");
    }
}

#[test]
fn connections_come_by_a_poisson_process_at_the_load() {
    let (rate, seconds) = (1e6, 2.0);
    let packets = connections(options(rate, seconds), 11);
    let offered = packets.len() as f64 / seconds;
    assert!((offered / rate - 1.0).abs() < 0.03, "{offered} packets per second");
    let arrivals: Vec<u64> = packets
        .iter()
        .filter(|packet| (packet.part, packet.direction) == (FlowPart::First, Direction::FromClient))
        .map(|packet| packet.at.as_nanos())
        .collect();
    // In a thousand intervals the counts' variance is their mean: not of even distances (0), nor of bursts (more).
    let mut counts = vec![0_f64; 1000];
    for at in &arrivals {
        counts[(*at as f64 / (seconds * 1e9) * 1000.0) as usize] += 1.0;
    }
    let mean = arrivals.len() as f64 / 1000.0;
    let dispersion = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 999.0 / mean;
    assert!((0.85..1.15).contains(&dispersion), "{dispersion}, mean {mean}");
}

#[test]
fn each_connection_has_a_pace_of_its_own_between_the_bounds() {
    let packets = connections(options(1e5, 1.0), 13);
    let mut rates: Vec<f64> = Vec::new();
    for packets in by_flow(&packets).values() {
        let data: Vec<&OfferedPacket> = packets
            .iter()
            .filter(|packet| (packet.part, packet.direction) == (FlowPart::Middle, Direction::FromBackend))
            .collect();
        if let [first, .., last, _] = data[..] {
            let seconds = last.at.since(first.at).as_secs_f64();
            rates.push((data.len() - 2) as f64 * 1514.0 * 8.0 / seconds / 1e6);
        }
    }
    assert!(rates.len() > 300 && rates.iter().all(|rate| (99.9..1000.1).contains(rate)), "{rates:?}");
    // Evenly in the logarithm: a half below the geometric mean.
    let below = rates.iter().filter(|rate| **rate < 316.2).count() as f64 / rates.len() as f64;
    assert!((0.4..0.6).contains(&below), "{below}");
}

#[test]
fn life_times_are_exponential_around_their_mean() {
    let options = ConnectionsOptions { size: ResponseSize::Frames(20.0), ..options(1e6, 1.0) };
    let packets = connections(ConnectionsOptions { ends: false, ..options }, 17);
    assert!(packets.iter().all(|packet| packet.part != FlowPart::Last), "they fall silent");
    let flows = by_flow(&packets);
    let early = flows.values().filter(|packets| packets[0].at.as_nanos() < 500_000_000);
    let frames: Vec<f64> = early
        .map(|packets| packets.iter().filter(|packet| packet.direction == Direction::FromBackend).count() as f64 - 1.0)
        .collect();
    let mean = frames.iter().sum::<f64>() / frames.len() as f64;
    let above = frames.iter().filter(|frames| **frames > 20.5).count() as f64 / frames.len() as f64;
    assert!((19.0..21.0).contains(&mean), "{mean}");
    // e^(-20.5 / 20)
    assert!((0.33..0.39).contains(&above), "{above}");
}

fn generated(name: &str, seed: u64) -> Vec<OfferedPacket> {
    let model = TraceModel::find(name).unwrap();
    all(Mix::Generated(Box::new(GeneratedMix::new(&model, 200_000.0, 1.0, seed))))
}

#[test]
fn made_traces_have_the_rate_and_whole_connections() {
    for name in ["internet", "enterprise"] {
        let packets = generated(name, 3);
        // The last one would come at the very end.
        assert!((199_000..=200_000).contains(&packets.len()), "{name}: {}", packets.len());
        assert!(packets.windows(2).all(|pair| pair[0].at <= pair[1].at), "{name}");
        assert_eq!(packets, generated(name, 3), "{name}");
        assert_ne!(packets, generated(name, 4), "{name}");
        let flows = by_flow(&packets);
        let ended = flows.values().filter(|all| all.last().is_some_and(|last| last.part == FlowPart::Last)).count();
        assert!(ended * 20 > flows.len(), "{name}: {ended} of {} connections have ended", flows.len());
        for packets in flows.values() {
            let first = packets[0];
            assert_eq!((first.part, first.direction), (FlowPart::First, Direction::FromClient), "{name}");
        }
    }
}

#[test]
fn made_traces_are_replayed_as_recordings() {
    let model = TraceModel::find("enterprise").unwrap();
    let made = Structure::made(&model, 100_000, 3);
    assert_eq!((made.packets(), made.units.len()), (100_000, 1));
    assert_eq!(made, Structure::made(&model, 100_000, 3));
    let flows = made.flows() as u32;
    let mix = Mix::Replay(ReplayMix::new(Arc::new(made), flows, 1e6, 0.1, None, 1));
    // Played once: every packet of every flow.
    let counted = counts(&all(mix));
    assert_eq!(counted.len() as u32, flows);
    assert!(counted.values().max() > Some(&1000), "some are large");
}

#[test]
fn keys_are_distinct_and_lead_to_the_service() {
    let numbers = [0, 1, 0x00ff_ffff, 0x0100_0000, 0x0100_0001, FLOWS_MAX - 1];
    let keys: std::collections::HashSet<_> = numbers.iter().map(|number| key(*number, Protocol::Tcp)).collect();
    assert_eq!(keys.len(), numbers.len());
    assert!(keys.iter().all(|key| key.destination == hairpin_sim::testbed::service()));
}

#[test]
fn the_recordings_at_hand_have_more_small_flows_than_large_ones() {
    let Some(directory) = std::env::var_os("HAIRPIN_TRACES") else {
        return eprintln!("skipped: HAIRPIN_TRACES names no directory of recordings");
    };
    let structure = Structure::read(std::path::Path::new(&directory)).unwrap();
    let mut counts: Vec<u64> = Vec::new();
    for unit in &structure.units {
        let mut of_unit = vec![0; unit.flows as usize];
        unit.order.iter().for_each(|flow| of_unit[*flow as usize] += 1);
        counts.extend(of_unit);
    }
    counts.sort_unstable();
    let all: u64 = counts.iter().sum();
    let largest: u64 = counts.iter().rev().take(counts.len() / 10).sum();
    assert_eq!((all, counts.len() as u64), (structure.packets(), structure.flows()));
    assert!(counts[0] > 0 && counts[counts.len() / 2] <= 10 && largest * 5 > all * 2, "{largest} of {all}");
}
