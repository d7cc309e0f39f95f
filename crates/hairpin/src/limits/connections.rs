//! Bounds of connections, rules and packets on every plane.

use super::Bound::{Number, OneFor, Option, Time};
use super::{Group, drops, events, http_refusals, limit, rule_refusals, series};
use crate::config::reference::{BACKEND, LIMITS, LINUX, POOL, TIMEOUTS};
use hairpin_core::engine::{OPS_MAX, SET_UP_SERVICES_MAX};
use hairpin_core::worker::limits;
use hairpin_linux::abi::{NEXT_HOPS_MAX, REPORTS_MAX};

const TCP_FORGOTTEN: &str = "The connection is removed, and neither end is told. `unknown` of the service decides about later \
                             packets of it.";
const UDP_FORGOTTEN: &str = "The connection is removed. A later datagram opens a new one.";

pub(super) const CONNECTIONS: Group = Group {
    title: "Connections and rules",
    doc: "",
    limits: &[
        limit(
            "connections of the instance, divided evenly over the workers",
            Option(&LIMITS, "connections_max", "connections"),
            &[
                events("worker.evicted"),
                drops("worker.table-full"),
                series("hairpin_evictions_total"),
                series("hairpin_table_insert_failures_total"),
            ],
            "The oldest half-open connection gives way. If there is none, the packet that would open a connection is dropped \
             and its client sends it again; with `when_full = \"reset\"` it is answered with RST or ICMP port unreachable.",
        ),
        limit(
            "half-open connections of which one is searched that can give way",
            Number(limits::EVICTION_TRIES_MAX as u64, "connections"),
            &[drops("worker.table-full")],
            "The table counts as full.",
        ),
        limit(
            "flows that a worker has recognised as the kernel's own",
            OneFor(limits::PASSES_SHARE as u64, "per entry of the worker's table"),
            &[rule_refusals("passes-full")],
            "The worker passes their packets to the kernel one by one.",
        ),
        limit(
            "rules in the kernel, for each address family",
            Option(&LIMITS, "rules_max", "rules"),
            &[rule_refusals("engine-full")],
            "The connection stays in software, and is offered again later.",
        ),
        limit(
            "rules of HTTP and TLS services in the kernel, for each address family",
            Number(2, "rules for each client's connection that there is room for, within `rules_max`"),
            &[rule_refusals("engine-full")],
            "The connection stays in software, and is offered again later.",
        ),
        limit(
            "time until a connection is offered again that the engine has refused",
            Time(limits::REFUSED_FOR),
            &[],
            "The connection is offered again at its next packet.",
        ),
        limit(
            "requests of a worker that wait for the engine",
            Number(OPS_MAX as u64, "requests"),
            &[rule_refusals("queue-full")],
            "The connection stays in software, and is offered again later. Removals are tried again.",
        ),
        limit(
            "time until a connection is offered again that found that queue full",
            Time(limits::QUEUE_FULL_FOR),
            &[],
            "The connection is offered again at its next packet.",
        ),
        limit(
            "full-NAT ports of each pool address, for each backend address and port, divided over the workers",
            Option(&POOL, "ports", "ports"),
            &[drops("worker.pool-exhausted")],
            "The client is refused with RST or ICMP port unreachable.",
        ),
        limit(
            "connections of a backend, of an HTTP service requests, over all workers",
            Option(&BACKEND, "connections_max", "connections"),
            &[drops("worker.backends-full"), http_refusals("backends-full")],
            "Another backend is chosen. If all are full, the client is refused with RST or ICMP port unreachable; a request waits \
             in its queue, if there is one, or gets 503.",
        ),
        limit(
            "backends tried because the client's port is taken at one (`nat`)",
            Number(limits::BACKEND_TRIES_MAX as u64, "backends"),
            &[drops("worker.tuple-conflict")],
            "The packet that would open the connection is dropped, and its client sends it again.",
        ),
        limit(
            "time that a connection lasts whose backend drains or was removed",
            Option(&LIMITS, "drain_limit", ""),
            &[],
            "Both ends are reset.",
        ),
        limit(
            "services whose connections the BPF programs set up (`set_up = \"engine\"`)",
            Number(SET_UP_SERVICES_MAX as u64, "services"),
            &[],
            "Workers set up the connections of the others; the log names them.",
        ),
        limit(
            "connections that the BPF programs have set up or seen end, of which a worker has not heard yet",
            Number(REPORTS_MAX as u64, "reports"),
            &[events("kernel.reports-full")],
            "Packets that would be reported go to the worker.",
        ),
        limit(
            "next hops of rules in the kernel, each of which is found within 8 places",
            Number(NEXT_HOPS_MAX as u64 - 1, "next hops"),
            &[events("kernel.next-hops-full")],
            "Packets go by the kernel's neighbour entry, with a look-up of the route each.",
        ),
        limit(
            "connections of a worker that the BPF programs may set up: all but a sixteenth of its table",
            Option(&LIMITS, "connections_max", "connections"),
            &[events("kernel.set-up-no-room")],
            "Packets that would open connections, and handshakes that would be over, go to the worker.",
        ),
        limit(
            "time in which a worker still takes a connection's packets after its rule is in force",
            Option(&LINUX, "handover_bound", ""),
            &[events("kernel.handover-bound")],
            "The rule takes over; packets may overtake one another once.",
        ),
        limit(
            "time that a client is silent to packets of a backend that came first (`unknown = \"pick-up\"`)",
            Time(limits::UNHEARD_MAX),
            &[],
            "The flow is taken for the host's own, and its packets go to the kernel.",
        ),
        limit("silence in a TCP handshake", Option(&TIMEOUTS, "tcp_handshake", ""), &[], TCP_FORGOTTEN),
        limit("silence of an established TCP connection", Option(&TIMEOUTS, "tcp_established", ""), &[], TCP_FORGOTTEN),
        limit(
            "silence of a TCP connection after one FIN",
            Option(&TIMEOUTS, "tcp_half_closed", ""),
            &[],
            TCP_FORGOTTEN,
        ),
        limit("silence of a TCP connection after both FINs", Option(&TIMEOUTS, "tcp_closed", ""), &[], TCP_FORGOTTEN),
        limit("silence of a TCP connection after RST", Option(&TIMEOUTS, "tcp_reset", ""), &[], TCP_FORGOTTEN),
        limit(
            "silence of a UDP connection that is not established",
            Option(&TIMEOUTS, "udp_new", ""),
            &[],
            UDP_FORGOTTEN,
        ),
        limit("silence of an established UDP connection", Option(&TIMEOUTS, "udp_established", ""), &[], UDP_FORGOTTEN),
    ],
};

pub(super) const PACKETS: Group = Group {
    title: "Packets and answers",
    doc: "The first three are the rates of token buckets, for each processor and service.",
    limits: &[
        limit(
            "packets of unknown connections from clients, while few of them lead to a connection",
            Option(&LINUX, "policer_floor", "packets per second"),
            &[drops("kernel.policed-client")],
            "They are dropped before they reach a worker. Services at the floor at the same time share it.",
        ),
        limit(
            "packets of unknown connections from clients, while most of them lead to a connection",
            Option(&LINUX, "policer_ceiling", "packets per second"),
            &[drops("kernel.policed-client")],
            "They are dropped before they reach a worker.",
        ),
        limit(
            "packets of unknown connections from backends",
            Option(&LINUX, "policer_backend", "packets per second"),
            &[drops("kernel.policed-backend")],
            "They are dropped before they reach a worker.",
        ),
        limit(
            "packets that wait for a worker in its TAP device",
            Option(&LINUX, "tap_queue", "packets"),
            &[drops("device.queue-full")],
            "They are dropped.",
        ),
        limit(
            "time without a sign of life of the process",
            Option(&LINUX, "heartbeat_timeout", ""),
            &[drops("kernel.absent-drop"), events("kernel.absent-pass")],
            "`when_absent` decides about packets that no rule takes.",
        ),
        limit(
            "time in which the BPF programs set connections up without a process (`when_absent = \"serve\"`)",
            Option(&LINUX, "serve_for", ""),
            &[drops("kernel.absent-drop")],
            "Packets of new connections are dropped.",
        ),
        limit(
            "IPv6 extension headers of a packet",
            Number(hairpin_core::wire::ipv6::EXTENSION_HEADERS_MAX as u64, "headers"),
            &[drops("kernel.malformed"), drops("worker.malformed.ipv6-extension-headers")],
            "The packet is dropped.",
        ),
        limit(
            "RST and ICMP errors that a worker sends",
            Number(limits::ANSWERS_PER_SECOND, "packets per second"),
            &[drops("worker.answer-limit")],
            "The packet is dropped without an answer.",
        ),
        limit(
            "resets that a worker sends to the ends of connections whose backend was taken away",
            Number(limits::RESETS_PER_SECOND, "packets per second"),
            &[drops("worker.answer-limit")],
            "The packet that would be answered with RST is dropped. An end that is to be asked for a packet is asked later, \
             which is not counted.",
        ),
        limit(
            "connections of a worker whose ends are to be asked for a packet at once, to be reset",
            Number(limits::ASKING_MAX as u64, "connections"),
            &[],
            "The others are asked later.",
        ),
        limit(
            "times that a silent end is asked for a packet, to be reset",
            Number(limits::ASKS_MAX as u64, "packets"),
            &[],
            "The end is not told; when it sends something before the connection is forgotten, it is reset.",
        ),
    ],
};
