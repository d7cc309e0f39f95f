//! Training finds what is there to find, judges it on what it has not seen, and reads connections as a worker tracks them.

use super::grow::grow;
use super::score::{HandedShare, judge, score};
use super::*;
use hairpin_core::flow::Direction;
use hairpin_core::offload::tree::{Node, TreeFeature};
use hairpin_core::wire::tcp::{ACK, FIN, SYN};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use std::path::PathBuf;
use std::time::Duration;

fn bounds() -> TreeBounds {
    let features = features(5, &[]).unwrap();
    TreeBounds { packets: 5, more: 10, depth: 4, nodes: 31, leaf: 10, threshold: 0.5, features }
}

fn options() -> TrainingOptions {
    TrainingOptions { bounds: bounds(), cost: 10.0, seed: 3 }
}

fn origin(name: &str, flows: Vec<TrainingFlow>) -> Origin {
    Origin { name: name.to_string(), flows, left_out: BTreeMap::new() }
}

/// A connection of packets of drawn lengths, gaps and directions, but for the third's length.
fn drawn(random: &mut Rng, third: u32, seen: u64) -> TrainingFlow {
    let mut flow = TrainingFlow::new(Protocol::Tcp, random.u16(1..));
    let mut now = 0;
    for number in 0..seen.min(8) {
        now += random.u64(1..10_000);
        let length = if number == 2 { third } else { random.u32(40..1500) };
        let direction = if random.bool() { Direction::FromClient } else { Direction::FromBackend };
        flow.first.add(length, direction, Duration::from_micros(now));
    }
    TrainingFlow { before: 2, seen, ..flow }
}

/// A long connection has a third packet of 700 bytes or more; one in `wrong` does not keep to that.
fn told_by_the_third(seed: u64, count: usize, wrong: usize) -> Vec<TrainingFlow> {
    let mut random = Rng::with_seed(seed);
    let mut flow = |number: usize| {
        let long = random.bool();
        let third = if long { random.u32(700..1500) } else { random.u32(40..600) };
        let seen = if long != number.is_multiple_of(wrong) { random.u64(20..500) } else { random.u64(5..14) };
        drawn(&mut random, third, seen)
    };
    (0..count).map(&mut flow).collect()
}

#[test]
fn it_finds_what_tells_long_from_short() {
    for seed in 0..5 {
        let origins =
            [origin("a", told_by_the_third(seed, 400, 50)), origin("b", told_by_the_third(seed + 100, 400, 50))];
        let trained = train(&origins, &options()).unwrap();
        let Node::Split { feature, most, .. } = trained.tree.nodes()[0] else { panic!("{}", trained.tree) };
        assert_eq!(feature, Feature::Of(TreeFeature::Length, 3), "{}", trained.tree);
        assert!((599..700).contains(&most), "{}", trained.tree);
        assert_eq!(trained.tree.nodes().len(), 3, "noise is not learnt: {}", trained.tree);
        for score in [trained.by_flows, trained.by_origins.unwrap()] {
            let figures = score.figures(10.0);
            assert_eq!(figures.flows, 800);
            assert!(figures.accuracy > 0.95 && figures.majority < 0.6, "{figures:?}");
            assert!(figures.precision > 0.95 && figures.recall > 0.95, "{figures:?}");
        }
    }
}

#[test]
fn where_nothing_tells_them_apart_it_learns_nothing() {
    let mut random = Rng::with_seed(9);
    let flows: Vec<TrainingFlow> = (0..600)
        .map(|_| {
            let (third, seen) = (random.u32(40..1500), if random.u8(..4) == 0 { 100 } else { 6 });
            drawn(&mut random, third, seen)
        })
        .collect();
    let trained = train(&[origin("noise", flows)], &options()).unwrap();
    let figures = trained.by_flows.figures(10.0);
    assert!(figures.accuracy < figures.majority + 0.02, "{figures:?} {}", trained.tree);
    assert!(trained.tree.nodes().len() <= 5, "{}", trained.tree);
    assert!(trained.by_origins.is_none() && trained.by_origin.is_empty());
}

#[test]
fn bounds_hold() {
    let flows = told_by_the_third(1, 2000, 4);
    let flows: Vec<&TrainingFlow> = flows.iter().collect();
    let tree = grow(&flows, &TreeBounds { nodes: 3, leaf: 1, depth: 16, ..bounds() }).unwrap();
    assert!(tree.nodes().len() <= 3, "{tree}");
    let tree = grow(&flows, &TreeBounds { nodes: 255, leaf: 300, ..bounds() }).unwrap();
    let least = tree.nodes().iter().filter_map(|node| match node {
        Node::Leaf(leaf) => Some(leaf.flows),
        Node::Split { .. } => None,
    });
    assert!(least.min().unwrap() >= 300, "{tree}");
    for (what, wrong) in [
        ("packets", TreeBounds { packets: 9, ..bounds() }),
        ("at least one packet more", TreeBounds { more: 0, ..bounds() }),
        ("depth", TreeBounds { depth: 17, ..bounds() }),
        ("nodes", TreeBounds { nodes: 256, ..bounds() }),
        ("a leaf", TreeBounds { leaf: 0, ..bounds() }),
        ("threshold", TreeBounds { threshold: f64::NAN, ..bounds() }),
    ] {
        let error = grow(&flows, &wrong).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn waiting_for_a_packet_skips_ended_connections() {
    let tree = Tree::parse(
        "decision-tree 1\nmore 10\nif length-3 <= 600\n  short probability=0 expected=1 flows=1\nelse\n  long \
         probability=1 expected=1 flows=1\n",
    );
    let tree = tree.unwrap();
    let mut random = Rng::with_seed(1);
    let mut flow = |third, seen| drawn(&mut random, third, seen);
    let flows = [flow(0, 2), flow(700, 4), flow(700, 103), flow(50, 7), flow(50, 30)];
    assert_eq!(judge(&tree, &flows[0]), None);
    assert_eq!((judge(&tree, &flows[2]), judge(&tree, &flows[3])), (Some((3, true)), Some((3, false))));
    let all: Vec<&TrainingFlow> = flows.iter().collect();
    let score = score(&tree, &all, &options());
    assert_eq!((score.long_long, score.short_long, score.long_short, score.short_short), (1, 1, 1, 2));
    assert_eq!((score.unjudged, score.packets), (1, 146));
    // 1 and 100 after the third packet; of the one that refuted it, after ten more, 17.
    assert_eq!(score.tree, HandedShare { packets: 118, pairs: 3 });
    assert_eq!(score.always, HandedShare { packets: 141, pairs: 5 });
    // Two came before: from the fourteenth on.
    assert_eq!(score.heavy_hitter, HandedShare { packets: 89 + 16, pairs: 2 });
    assert_eq!(score.oracle, HandedShare { packets: 102 + 29, pairs: 2 });
    let figures = score.figures(10.0);
    assert!((figures.of_oracle[0] - 88.0 / 111.0).abs() < 1e-9, "{figures:?}");
    assert_eq!((figures.precision, figures.recall, figures.accuracy, figures.majority), (0.5, 0.5, 0.6, 0.6));
    assert_eq!(figures.waiting, 0.8, "all but the one with seven packets");
}

#[test]
fn same_seed_writes_the_same_file() {
    // The larger the third packet, the more often it is long: where the limit lies depends on what is held out.
    let mut random = Rng::with_seed(7);
    let mut flow = |_| {
        let (third, chance) = (random.u32(40..1500), random.u32(40..1500));
        drawn(&mut random, third, if chance < third { 100 } else { 7 })
    };
    let origins = ["a", "b\nlong"].map(|name| origin(name, (0..300).map(&mut flow).collect()));
    let made = |seed| {
        let options = TrainingOptions { seed, ..options() };
        let trained = train(&origins, &options).unwrap();
        let text = text::text(&trained, &origins, &options, "hairpin-lab train\nlong probability=1 expected=9 flows=9");
        assert_eq!(Tree::parse(&text).unwrap(), trained.tree);
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
        text
    };
    assert_eq!(made(1), made(1));
    assert!((2..9).any(|seed| made(seed) != made(1)), "folds are dealt by the seed");
}

#[test]
fn features_are_left_out_by_name() {
    let left = features(4, &["port".into(), "gap".into(), "length-2".into(), "backend".into()]).unwrap();
    let names: Vec<String> = left.iter().map(|feature| feature.to_string()).collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    assert!(has("udp") && has("length-1") && has("backend-packets-4") && has("bytes-2"), "{names:?}");
    assert!(!has("port") && !has("gap-2") && !has("length-2") && !has("backend-1") && !has("length-5"), "{names:?}");
    for wrong in ["ports", "length-9", "", "udp-1", "bytes-1"] {
        let error = features(4, &[wrong.to_string()]).unwrap_err().to_string();
        assert!(error.contains("there is no feature"), "{error}");
    }
}

#[test]
fn what_cannot_be_learnt_from_is_refused() {
    let short: Vec<TrainingFlow> =
        (0..50).map(|_| TrainingFlow { seen: 2, ..TrainingFlow::new(Protocol::Udp, 53) }).collect();
    for (origins, says) in [
        (vec![], "nothing to learn from"),
        (vec![origin("few", short[..3].to_vec())], "3 connections: at least 10"),
        (vec![origin("short", short)], "0 of 50 connections have 10 packets more"),
    ] {
        let error = train(&origins, &options()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn synthetic_connections_have_their_bytes() {
    let mut random = Rng::with_seed(4);
    let mut uploads = 0;
    for bytes in [1, 1448, 1449, 20_000, 1_000_000, 50_000_000] {
        for _ in 0..200 {
            let flow = mix::connection(bytes, &mut random);
            let segments = bytes.div_ceil(1448);
            assert!((3 + segments..=3 + 2 * segments).contains(&flow.seen), "{bytes}: {flow:?}");
            assert_eq!(u64::from(flow.first.seen()), flow.seen.min(8));
            let value = |name| flow.first.value(Feature::from_name(name).unwrap(), flow.protocol, flow.port);
            assert_eq!(value("length-4"), Some(52 + bytes.min(1448) as u32));
            uploads += value("backend-4").map_or(0, |backend| 1 - backend);
        }
    }
    assert!((180..300).contains(&uploads), "a fifth of 1200: {uploads}");
}

/// A frame between 10.0.0.1 and 192.0.2.9, or back.
fn frame(ports: (u16, u16), from_client: bool, tcp_flags: Option<u8>, payload: usize) -> Vec<u8> {
    let transport = if tcp_flags.is_some() { 20 } else { 8 };
    let total = 20 + transport + payload;
    let mut frame = vec![0; 14 + total];
    frame[12] = 8;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(total as u16).to_be_bytes());
    (frame[22], frame[23]) = (9, if tcp_flags.is_some() { 6 } else { 17 });
    let (client, server) = ([10, 0, 0, 1], [192, 0, 2, 9]);
    let (source, destination) = if from_client { (client, server) } else { (server, client) };
    let (from, to) = if from_client { ports } else { (ports.1, ports.0) };
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&destination);
    frame[34..36].copy_from_slice(&from.to_be_bytes());
    frame[36..38].copy_from_slice(&to.to_be_bytes());
    match tcp_flags {
        Some(flags) => frame[46..48].copy_from_slice(&[0x50, flags]),
        None => frame[38..40].copy_from_slice(&((8 + payload) as u16).to_be_bytes()),
    }
    let sum = hairpin_core::wire::checksum::Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A capture of frames, each so many microseconds after the one before it.
fn capture(name: &str, frames: &[(u64, Vec<u8>)]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hairpin-train-{}-{name}.pcap", std::process::id()));
    let mut writer = PcapWriter::new(std::fs::File::create(&path).unwrap()).unwrap();
    let mut now = 1_600_000_000_000_000;
    for (gap, frame) in frames {
        now += gap;
        writer.write_packet(&PcapPacket::new(Duration::from_micros(now), frame.len() as u32, frame)).unwrap();
    }
    path
}

#[test]
fn training_sees_what_the_policy_sees() {
    let tcp = |from_client, flags, payload| frame((4000, 443), from_client, Some(flags), payload);
    let dns = |from_client| frame((5353, 53), from_client, None, 30);
    let quic = |from_client, payload| frame((6000, 443), from_client, None, payload);
    let frames = [
        (0, tcp(true, SYN, 0)),
        (10, tcp(false, SYN | ACK, 0)),
        (1000, tcp(true, ACK, 0)),
        (20, tcp(true, ACK, 500)),
        (300, tcp(false, ACK, 1400)),
        (5, dns(true)),
        (5, dns(false)),
        (1, quic(true, 1200)),
        (2, quic(false, 1100)),
        (3, quic(true, 60)),
        (4, quic(false, 900)),
        (0, frame((7000, 443), false, Some(ACK), 1400)),
        (9, tcp(true, FIN | ACK, 0)),
        (9, tcp(false, ACK, 700)),
        (9, tcp(false, FIN | ACK, 0)),
        (9, tcp(true, ACK, 0)),
        (9, tcp(true, SYN, 0)),
        (9, tcp(false, SYN | ACK, 0)),
        (9, tcp(true, ACK, 0)),
    ];
    let path = capture("life", &frames);
    let origin = Origin::trace(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(origin.left_out["of connections that began before"], 1);
    assert_eq!(origin.left_out["connections that were never established"], 1, "a question and its answer");
    let [web, quic, again] = origin.flows[..] else { panic!("{:?}", origin.flows) };
    let value =
        |flow: &TrainingFlow, name| flow.first.value(Feature::from_name(name).unwrap(), flow.protocol, flow.port);
    assert_eq!((web.before, web.seen, web.port), (2, 3, 443));
    assert_eq!(
        (value(&web, "elapsed-1"), value(&web, "gap-2"), value(&web, "gap-3")),
        (Some(1010), Some(20), Some(300))
    );
    assert_eq!((value(&web, "length-2"), value(&web, "backend-bytes-3")), (Some(540), Some(1440)));
    assert_eq!((quic.before, quic.seen, quic.protocol), (2, 2, Protocol::Udp));
    assert_eq!((value(&quic, "length-1"), value(&quic, "length-2")), (Some(88), Some(928)));
    assert_eq!((again.before, again.seen), (2, 1));
    let path = capture("none", &[(0, dns(true)), (1, dns(false))]);
    let error = Origin::trace(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("no connection that is established"), "{error}");
}

/// The built-in model's way, on the real captures alone; the bounds leave room below what was measured: 0.74 beside 0.52.
/// (All of that comes from waiting for the fifth packet.)
#[test]
fn tree_beats_the_majority_on_unseen_captures() {
    let Some(folder) = std::env::var_os("HAIRPIN_TRACES").map(PathBuf::from) else {
        return eprintln!("skipped: HAIRPIN_TRACES names no directory of recordings");
    };
    let files = trace::files(&[folder]).unwrap();
    let origins: Vec<Origin> = files.iter().map(|path| Origin::trace(path).unwrap()).collect();
    let without = ["port", "gap", "elapsed"].map(String::from);
    let features = features(5, &without).unwrap();
    let bounds = TreeBounds { packets: 5, leaf: 40, threshold: 0.35, features, ..bounds() };
    let trained = train(&origins, &TrainingOptions { bounds, cost: 10.0, seed: 1 }).unwrap();
    for score in [trained.by_flows, trained.by_origins.unwrap()] {
        let figures = score.figures(10.0);
        assert!(figures.flows > 300, "{figures:?}");
        assert!(figures.accuracy > figures.majority + 0.1, "{figures:?}");
        assert!(figures.of_oracle[0] > figures.of_oracle[2], "better than heavy-hitter: {figures:?}");
    }
}
