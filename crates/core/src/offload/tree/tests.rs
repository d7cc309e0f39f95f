//! Any text is either refused, with its line, or a model that is safe with whatever it is shown; and the policy does with
//! it what it says.

use super::*;
use crate::flow::{Address, Direction, Endpoint, Protocol};
use crate::time::Duration;
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

extern crate std;

const MODEL: &str = "# for people\n\ndecision-tree 1\nmore 10\nif length-2 <= 200\n  if gap-3 <= 1000\n    \
                     short probability=0.1 expected=3 flows=90\n  else\n    long probability=0.7 expected=40 flows=20\n\
                     else\n  long probability=0.9 expected=500.5 flows=31\n";

fn tree() -> Arc<Tree> {
    Arc::new(Tree::parse(MODEL).unwrap())
}

fn flow(position: u32, packets: u64, length: u32, direction: Direction) -> FlowStats {
    FlowStats {
        position,
        protocol: Protocol::Tcp,
        packets,
        bytes: packets * 100,
        created: Time::from_nanos(1 << 40),
        length,
        direction,
        client: Endpoint::default(),
        service: Endpoint { address: Address::from_ipv4([192, 0, 2, 1]), port: 443 },
    }
}

const ROOM: EngineRoom = EngineRoom { rules: 0, own: 0, rules_max: 1000, waiting: 0, waiting_max: 100, unanswered: 0 };

/// The policy's decision for packets of these lengths, so many microseconds apart, of a connection that has had two before.
fn says(policy: &mut DecisionTree, packets: &[(u32, u64)]) -> Vec<Verdict> {
    let mut now = Time::from_nanos(1 << 40);
    let verdict = |(number, &(length, gap)): (usize, &(u32, u64))| {
        now = now + Duration::from_micros(gap);
        policy.on_packet(now, &flow(0, 3 + number as u64, length, Direction::FromClient), ROOM)
    };
    packets.iter().enumerate().map(verdict).collect()
}

#[test]
fn it_decides_as_soon_as_it_can() {
    let (small, short) = (Verdict::Keep(Reason::Small), Verdict::Keep(Reason::Short));
    let mut policy = DecisionTree::new(tree(), 1);
    assert_eq!(says(&mut policy, &[(52, 10), (201, 10)]), [small, Verdict::Offload]);
    let mut policy = DecisionTree::new(tree(), 1);
    assert_eq!(says(&mut policy, &[(52, 10), (200, 10), (9, 1001)]), [small, small, Verdict::Offload]);
    let mut policy = DecisionTree::new(tree(), 1);
    // At the third: nothing that comes later but its length changes that.
    let verdicts = says(&mut policy, &[(52, 10), (200, 10), (9, 1000), (1500, 9999), (1500, 1)]);
    assert_eq!(verdicts, [small, small, short, short, short]);
}

#[test]
fn a_short_one_that_goes_on_has_refuted_it() {
    let mut policy = DecisionTree::new(tree(), 1);
    let verdicts = says(&mut policy, &[(52, 1); 20]);
    let first = verdicts.iter().position(|verdict| *verdict == Verdict::Offload);
    // Judged at the third, and ten more.
    assert_eq!(first, Some(12), "{verdicts:?}");
    assert!(verdicts[12..].iter().all(|verdict| *verdict == Verdict::Offload));
}

#[test]
fn a_position_begins_anew_with_the_next_connection() {
    let mut policy = DecisionTree::new(tree(), 1);
    says(&mut policy, &[(52, 1); 20]);
    let one = flow(0, 3, 52, Direction::FromClient);
    let next = FlowStats { created: Time::from_nanos(9), ..one };
    assert_eq!(policy.on_packet(Time::from_nanos(1 << 41), &next, ROOM), Verdict::Keep(Reason::Small));
    says(&mut policy, &[(52, 1); 20]);
    policy.on_end(Time::from_nanos(1 << 41), &one);
    assert_eq!(policy.on_packet(Time::from_nanos(1 << 41), &one, ROOM), Verdict::Keep(Reason::Small));
}

#[test]
fn adopted_flow_counts_only_new_packets() {
    let mut policy = DecisionTree::new(tree(), 1);
    let at = |policy: &mut DecisionTree, packets| {
        policy.on_packet(Time::from_nanos(1 << 41), &flow(0, packets, 1400, Direction::FromBackend), ROOM)
    };
    assert_eq!(at(&mut policy, 1000), Verdict::Keep(Reason::Small));
    assert_eq!(at(&mut policy, 1001), Verdict::Keep(Reason::Small));
    assert_eq!(at(&mut policy, 1010), Verdict::Offload);
}

#[test]
fn full_engine_prefers_longer_expected_flows() {
    let mut policy = DecisionTree::new(tree(), 2);
    let full = EngineRoom { rules: 999, ..ROOM };
    let tight = EngineRoom { rules: 990, ..ROOM };
    let now = |ms: u64| Time::from_nanos((1 << 40) + ms * 1_000_000);
    let look = |policy: &mut DecisionTree, ms, position, length, room| {
        policy.on_packet(now(ms), &flow(position, 4, length, Direction::FromClient), room)
    };
    // Position 0 comes to the leaf of 500, position 1 to that of 40.
    for (position, lengths) in [(0, [60, 900, 60]), (1, [60, 60, 60])] {
        for (number, length) in lengths.into_iter().enumerate() {
            look(&mut policy, 2 * number as u64, position, length, ROOM);
        }
    }
    assert_eq!(look(&mut policy, 6, 0, 60, full), Verdict::Keep(Reason::Room));
    assert_eq!(look(&mut policy, 6, 1, 60, ROOM), Verdict::Offload);
    // The price rises while what is expected to have 40 wants in.
    let verdicts: Vec<_> = (0..40).map(|round| look(&mut policy, 200 + 100 * round, 1, 60, tight)).collect();
    assert_eq!((verdicts[0], verdicts[39]), (Verdict::Offload, Verdict::Keep(Reason::Unprofitable)));
    assert_eq!(look(&mut policy, 4200, 0, 60, tight), Verdict::Offload);
    // It falls when there is plenty.
    let verdicts: Vec<_> = (0..40).map(|round| look(&mut policy, 4300 + 100 * round, 1, 60, ROOM)).collect();
    assert_eq!(verdicts[39], Verdict::Offload);
}

#[test]
fn features_are_of_the_packets_they_name() {
    let mut packets = FirstPackets::NONE;
    let sent = [(60, true, 1), (1500, false, 5), (100_000, false, 6), (70, true, 1000)];
    for (length, from_client, us) in sent {
        let direction = if from_client { Direction::FromClient } else { Direction::FromBackend };
        assert!(packets.add(length, direction, Duration::from_micros(us)));
    }
    let value = |name: &str| packets.value(Feature::from_name(name).unwrap(), Protocol::Udp, 53);
    for (name, expected) in [
        ("udp", 1),
        ("port", 53),
        ("length-1", 60),
        ("length-3", 65_535),
        ("gap-2", 4),
        ("gap-4", 994),
        ("backend-1", 0),
        ("backend-3", 1),
        ("bytes-2", 1560),
        ("backend-packets-4", 2),
        ("backend-bytes-2", 1500),
        ("elapsed-1", 1),
        ("elapsed-4", 1000),
    ] {
        assert_eq!(value(name), Some(expected), "{name}");
    }
    assert_eq!(value("length-5"), None);
    (4..8).for_each(|us| assert!(packets.add(1, Direction::FromClient, Duration::from_micros(us))));
    assert!(!packets.add(1, Direction::FromClient, Duration::ZERO));
    assert_eq!(packets.seen(), 8);
    for feature in Feature::all(8) {
        assert_eq!(Feature::from_name(&feature.to_string()), Some(feature));
        assert!(packets.value(feature, Protocol::Tcp, 1).unwrap() <= feature.largest(), "{feature}");
    }
    for name in ["", "length", "length-0", "length-9", "gap-1", "length-03", "length-+3", "bytes-1", "size-2", "Udp"] {
        assert_eq!(Feature::from_name(name), None, "{name}");
    }
}

#[test]
fn a_model_reads_as_it_was_written() {
    let tree = tree();
    assert_eq!((tree.more(), tree.packets(), tree.nodes().len()), (10, 3, 5));
    let text = tree.to_string();
    assert_eq!(text, MODEL.trim_start_matches("# for people\n\n"));
    assert_eq!(Tree::parse(&text).unwrap(), *tree);
    let built_in = Tree::parse(BUILT_IN).unwrap();
    assert_eq!(Tree::parse(&built_in.to_string()).unwrap(), built_in);
}

#[test]
fn what_is_no_model_is_refused_with_its_line() {
    let leaf = "short probability=0.1 expected=3 flows=1";
    let body = |lines: &str| format!("decision-tree 1\nmore 10\n{lines}");
    let deep = (0..=DEPTH_MAX).map(|depth| format!("{:1$}if elapsed-1 <= {2}\n", "", 2 * depth, 100 - depth));
    let deep: String = deep.collect();
    for (text, says) in [
        (String::new(), "line 1: it ends where `decision-tree 1`"),
        ("decision-tree 2\n".into(), "line 1: \"decision-tree 2\": a model begins"),
        ("decision-tree 1\nless 3\n".into(), "line 2: \"less 3\": write `more NUMBER`"),
        ("decision-tree 1\nmore 0\n".into(), "line 2: "),
        (body(""), "line 2: it ends where"),
        (body("if length-9 <= 3"), "line 3: there is no feature \"length-9\""),
        (body("if length-1 < 3"), "line 3: \"if length-1 < 3\""),
        (body("if length-1 <= -3"), "line 3: \"-3\" is no whole number"),
        (body("if udp <= 0"), "line 3: it ends where `if FEATURE <= NUMBER` is"),
        (body(&format!("if udp <= 1\n  {leaf}\nelse\n  {leaf}")), "line 3: `udp <= 1` separates nothing"),
        (body(&format!("if udp <= 0\n  {leaf}\n{leaf}")), "line 5: \"short"),
        (body(&format!("if udp <= 0\n {leaf}")), "line 4: \"short probability=0.1 expected=3 flows=1\" is 1 spaces in"),
        (body(&format!("if udp <= 0\n  {leaf}\n  else")), "line 5: \"else\" is 2 spaces in, not 0"),
        (body(&format!("{leaf}\n{leaf}")), "line 4: \"short"),
        (body("short probability=1.5 expected=3 flows=1"), "line 3: a probability of 1.5"),
        (body("short probability=NaN expected=3 flows=1"), "line 3: a probability of NaN"),
        (body("short probability=1 expected=inf flows=1"), "line 3: inf expected packets"),
        (body("short probability=1 expected=-1 flows=1"), "line 3: -1 expected packets"),
        (body("short probability=1 flows=1"), "`expected` is missing"),
        (body("short probability=1 expected=x flows=1"), "line 3: \"x\" is no number"),
        (body("short probability=1 expected=1 flows=1 more"), "too many words"),
        (body("perhaps"), "line 3: \"perhaps\": write"),
        (body(&deep), "splits deep"),
        (
            body(&format!("if port <= 80\n  if port <= 90\n    {leaf}\n  else\n    {leaf}\nelse\n  {leaf}\n")),
            "line 4: `port <= 90` separates nothing: port is from 0 to 80 here",
        ),
        ("x".repeat(TEXT_MAX + 1), "line 1: a text of"),
    ] {
        let refused = Tree::parse(&text).unwrap_err().to_string();
        assert!(refused.contains(says), "{}: {refused}", &text[..text.len().min(200)]);
    }
}

#[test]
fn nodes_that_are_no_tree_are_refused() {
    let leaf = Node::Leaf(Leaf { is_long: true, probability: 1.0, expected: 1.0, flows: 1 });
    let split = |above| Node::Split { feature: Feature::Port, most: 80, above };
    assert!(Tree::new([split(2), leaf, leaf].to_vec(), 1).is_ok());
    for nodes in [
        [].to_vec(),
        [split(0), leaf, leaf].to_vec(),
        [split(1), leaf, leaf].to_vec(),
        [split(3), leaf, leaf].to_vec(),
        [split(2), leaf].to_vec(),
        [split(2), leaf, leaf, leaf].to_vec(),
        [Node::Split { feature: Feature::Of(TreeFeature::Length, 0), most: 1, above: 2 }, leaf, leaf].to_vec(),
        std::vec![leaf; NODES_MAX + 1],
    ] {
        assert!(Tree::new(nodes.clone(), 1).is_err(), "{nodes:?}");
    }
    assert!(Tree::new([leaf].to_vec(), 0).is_err());
}

/// A tree's nodes from drawn numbers: each split halves what is left of its feature's values.
fn grown(numbers: &mut impl Iterator<Item = u32>, nodes: &mut Vec<Node>, limits: &mut Vec<(Feature, u32, u32)>) {
    let features: Vec<Feature> = Feature::all(8).collect();
    let mut next = || numbers.next().unwrap_or(0);
    let feature = features[next() as usize % features.len()];
    let earlier = limits.iter().rev().find(|(known, ..)| *known == feature);
    let (least, most) = earlier.map_or((0, feature.largest()), |&(_, least, most)| (least, most));
    if next() % 4 == 0 || limits.len() >= 7 || least == most {
        let leaf = Leaf { is_long: next() % 2 == 0, probability: 0.25, expected: next() as f32 / 1e3, flows: next() };
        return nodes.push(Node::Leaf(leaf));
    }
    let limit = least + next() % (most - least);
    let at = nodes.len();
    nodes.push(Node::Split { feature, most: limit, above: 0 });
    limits.push((feature, least, limit));
    grown(numbers, nodes, limits);
    limits.pop();
    let right = nodes.len();
    if let Node::Split { above, .. } = &mut nodes[at] {
        *above = right as u8;
    }
    limits.push((feature, limit + 1, most));
    grown(numbers, nodes, limits);
    limits.pop();
}

proptest! {
    #[test]
    fn a_sound_tree_is_read_back_as_it_was(numbers in proptest::collection::vec(any::<u32>(), 4..200), more in 1u32..) {
        let (mut nodes, mut numbers) = (Vec::new(), numbers.into_iter());
        grown(&mut numbers, &mut nodes, &mut Vec::new());
        let tree = Tree::new(nodes, more).unwrap();
        prop_assert_eq!(Tree::parse(&tree.to_string()).unwrap(), tree);
    }

    /// A model with some of its text changed, and any packets at all.
    #[test]
    fn any_text_is_refused_or_safe(
        numbers in proptest::collection::vec(any::<u32>(), 4..100),
        cuts in proptest::collection::vec((any::<u16>(), 0usize..6, "[ -~\n]{0,6}"), 0..4),
        packets in proptest::collection::vec((any::<u32>(), any::<bool>(), any::<u64>(), any::<u64>()), 0..20),
    ) {
        let mut nodes = Vec::new();
        grown(&mut numbers.into_iter(), &mut nodes, &mut Vec::new());
        let mut text = Tree::new(nodes, 5).unwrap().to_string();
        for (at, length, instead) in cuts {
            let at = usize::from(at) % (text.len() + 1);
            text.replace_range(at..(at + length).min(text.len()), &instead);
        }
        let tree = match Tree::parse(&text) {
            Ok(tree) => Arc::new(tree),
            Err(refused) => {
                prop_assert!((1..=text.lines().count().max(1)).contains(&refused.line), "{}", refused);
                return Ok(());
            }
        };
        prop_assert_eq!(&Tree::parse(&tree.to_string()).unwrap(), &*tree);
        let mut policy = DecisionTree::new(tree, 2);
        for (number, (length, from_client, at, packets)) in packets.into_iter().enumerate() {
            let direction = if from_client { Direction::FromClient } else { Direction::FromBackend };
            let stats = FlowStats { packets, bytes: at, ..flow(number as u32 % 3, 0, length, direction) };
            let room = EngineRoom { rules: length, rules_max: 1 << 20, ..ROOM };
            let verdict = policy.on_packet(Time::from_nanos(at), &stats, room);
            prop_assert!(length <= (1 << 20) - 2 || verdict != Verdict::Offload);
        }
    }
}
