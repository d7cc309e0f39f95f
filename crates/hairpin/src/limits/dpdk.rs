//! Bounds of the dpdk plane. All builds list them, also those without it.

use super::Bound::{Number, Option, Time};
use super::{Counter, Group, drops, limit, rule_refusals};
use crate::config::reference::{self, DPDK_PORT, LIMITS};
use crate::run::limits::dpdk;
use hairpin_core::engine::OPS_MAX;
use hairpin_core::flow::STEERING_RULES_MAX;
use hairpin_core::link::{HELD_EACH, HELD_FOR, HELD_MAX, neighbours};
use hairpin_core::worker::limits::ANSWERS_PER_SECOND;

const fn port_drops(reason: &'static str) -> Counter {
    Counter::of("hairpin_port_drops_total", "reason", reason)
}

pub(super) const DPDK: Group = Group {
    title: "The dpdk plane",
    doc: "Bounds of connections, HTTP and the process hold there, too, but for those of `linux` options.",
    limits: &[
        limit(
            "frames that wait for the address of one neighbour",
            Number(HELD_EACH as u64, "frames"),
            &[drops("device.hold-full")],
            "The oldest of them is dropped.",
        ),
        limit(
            "frames of a worker that wait for neighbours' addresses",
            Number(HELD_MAX as u64, "frames"),
            &[drops("device.hold-full")],
            "The oldest of them is dropped.",
        ),
        limit(
            "time that such a frame waits",
            Time(HELD_FOR),
            &[drops("device.hold-expired"), drops("device.unreachable")],
            "The frame is dropped.",
        ),
        limit(
            "neighbours",
            Number(dpdk::NEIGHBOURS_MAX as u64, "neighbours"),
            &[drops("device.neighbours-full")],
            "One that does not answer or is not in use gives way. If there is none, the frame is dropped.",
        ),
        limit(
            "places of one neighbour's address in their table",
            Number(2 * neighbours::BUCKET_SIZE as u64, "places"),
            &[drops("device.neighbours-full")],
            "One of them gives way as above. If there is none, the frame is dropped.",
        ),
        limit(
            "new neighbours that a worker asks for",
            Number(ANSWERS_PER_SECOND, "neighbours per second"),
            &[drops("device.ask-limit")],
            "The frame is dropped.",
        ),
        limit(
            "echo requests that a worker answers",
            Number(ANSWERS_PER_SECOND, "packets per second"),
            &[drops("device.echo-limit")],
            "The request is dropped.",
        ),
        limit(
            "packets that wait for the worker of their connection",
            Number(dpdk::WAITING_MAX as u64, "packets"),
            &[drops("device.handover-full")],
            "They are dropped.",
        ),
        limit(
            "packets that a worker without queues sends",
            Number(dpdk::RELAYED_MAX as u64, "packets"),
            &[],
            "The worker receives nothing until there is room.",
        ),
        limit(
            "packets in a receive queue",
            Option(&DPDK_PORT, "rx_descriptors", "packets"),
            &[port_drops("missed")],
            "The port drops what comes in.",
        ),
        limit(
            "packets in a transmit queue",
            Option(&DPDK_PORT, "tx_descriptors", "packets"),
            &[],
            "The worker keeps its packets and receives nothing until there is room.",
        ),
        limit(
            "packet buffers",
            Option(&reference::DPDK, "mbufs", "buffers"),
            &[port_drops("no-mbuf")],
            "The port drops what comes in.",
        ),
        limit(
            "requests of a worker to the rte_flow engine in progress",
            Number(OPS_MAX as u64, "requests"),
            &[],
            "They are returned, and the worker tries again.",
        ),
        limit(
            "rules in a port's device",
            Option(&LIMITS, "rules_max", "rules"),
            &[rule_refusals("engine-full")],
            "The connection stays in software.",
        ),
        limit(
            "rules that steer packets to workers, for each port",
            Number(STEERING_RULES_MAX as u64, "rules"),
            &[Counter::of("hairpin_port_steering_rules", "state", "missing")],
            "Workers hand these packets over.",
        ),
    ],
};
