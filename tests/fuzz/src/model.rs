//! A model of the policy `decision-tree`, and what it is shown.

use hairpin_core::flow::{Direction, Endpoint, Protocol};
use hairpin_core::offload::tree::{DEPTH_MAX, NODES_MAX, PACKETS_MAX};
use hairpin_core::offload::{DecisionTree, EngineRoom, FlowStats, OffloadPolicy, Tree, Verdict};
use hairpin_core::time::Time;
use std::sync::Arc;

/// Bytes of a packet behind the text.
const PACKET: usize = 8;

/// An input is a model's text, a zero byte, and packets of eight bytes each: position, direction, length, time. The text is
/// refused with one of its lines, or read back as it is written, and safe with any packets. Whether it is a model.
pub fn model(input: &[u8]) -> bool {
    let end = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let Ok(text) = std::str::from_utf8(&input[..end]) else { return false };
    let tree = match Tree::parse(text) {
        Ok(tree) => tree,
        Err(refused) => {
            assert!((1..=text.lines().count().max(1)).contains(&refused.line), "{refused}");
            return false;
        }
    };
    assert!((1..=NODES_MAX).contains(&tree.nodes().len()) && usize::from(tree.packets()) <= PACKETS_MAX);
    let written = tree.to_string();
    assert!(written.lines().all(|line| line.len() - line.trim_start().len() <= 2 * DEPTH_MAX));
    assert_eq!(Tree::parse(&written).as_ref(), Ok(&tree));
    play(tree, input.get(end + 1..).unwrap_or_default());
    true
}

fn play(tree: Tree, packets: &[u8]) {
    let mut policy = DecisionTree::new(Arc::new(tree), 2);
    let mut now = 0u64;
    for (number, packet) in packets.chunks_exact(PACKET).enumerate() {
        now = now.wrapping_add(u64::from(packet[4]) << (packet[5] % 56));
        let length = u32::from_be_bytes([0, packet[1] & 1, packet[2], packet[3]]);
        let flow = FlowStats {
            position: u32::from(packet[0] % 3),
            protocol: if packet[1] & 2 == 0 { Protocol::Tcp } else { Protocol::Udp },
            packets: number as u64 + u64::from(packet[6]),
            bytes: u64::from(length),
            created: Time::from_nanos(u64::from(packet[7] % 2)),
            length,
            direction: if packet[1] & 4 == 0 { Direction::FromClient } else { Direction::FromBackend },
            client: Endpoint::default(),
            service: Endpoint { port: u16::from(packet[7]), ..Endpoint::default() },
        };
        let rules = u32::from(packet[6]);
        let room = EngineRoom { rules, own: rules, rules_max: 128, waiting: 0, waiting_max: 100, unanswered: 0 };
        let verdict = policy.on_packet(Time::from_nanos(now), &flow, room);
        assert!(rules <= 126 || verdict != Verdict::Offload, "there is no room");
        if packet[5] == 0xff {
            policy.on_end(Time::from_nanos(now), &flow);
        }
    }
}
