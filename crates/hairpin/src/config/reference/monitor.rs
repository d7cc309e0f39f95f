//! The sections about monitors.

use super::Fallback::{From, Required, Value};
use super::{ReferenceSection, ValueForm, field};
use hairpin_linux::monitor::FLOWS_MAX;

/// `[[monitor]]`
pub const MONITOR: ReferenceSection = ReferenceSection {
    header: "[[monitor]]",
    doc: "Counts what passes interfaces, per flow, and reports it: by IPFIX to a collector, as lines of JSON, and as top talkers \
          (docs/guide/monitor.md). The kernel counts; packets are neither copied nor changed. 8 monitors at most; an interface has \
          one at most. Changes are in force after a reload; a monitor that changes reports all its flows and begins anew. Only with \
          `plane = \"linux\"`, and not with `attach = \"xdp\"`.",
    fields: &[
        field(
            "name",
            ValueForm::Name { length_max: 32 },
            Required,
            "\"edge\"",
            "Its name in lines, status and metrics.",
        ),
        field(
            "interfaces",
            ValueForm::Interfaces,
            Required,
            "[\"eth0\"]",
            "Whose packets it sees: what comes in, before anything is done with it, and what leaves. They need not be those of \
             the top level. 64 at most.",
        ),
        field(
            "networks",
            ValueForm::Networks,
            From("all"),
            "[\"198.51.100.0/24\", \"2001:db8::/32\"]",
            "Only flows with one end in one of these, 1024 at most.",
        ),
        field(
            "ports",
            ValueForm::Texts,
            From("all"),
            "[\"443\", \"8000-8999\"]",
            "Only TCP and UDP flows with one end at one of these ports, or in one of these ranges.",
        ),
        field(
            "protocols",
            ValueForm::Texts,
            From("all"),
            "[\"tcp\", \"udp\"]",
            "Only flows of these protocols: `tcp`, `udp`, `icmp`, `icmpv6` or the number of an IP protocol.",
        ),
        field(
            "fields",
            ValueForm::Texts,
            From("all of them"),
            "[\"flags\"]",
            "What is reported of TCP beside ends, times, packets and bytes: `flags`; `round_trip`, from the handshake; `resent`, \
             packets that carry nothing new. What is left out is not looked at.",
        ),
        field(
            "active_timeout",
            ValueForm::Duration { min_ms: 1000, max_ms: 3_600_000 },
            Value("1m"),
            "\"5m\"",
            "How often a flow that goes on is reported, each time with what is new.",
        ),
        field(
            "idle_timeout",
            ValueForm::Duration { min_ms: 1000, max_ms: 3_600_000 },
            Value("15s"),
            "\"30s\"",
            "A flow without packets for so long is over. A TCP connection is over two seconds after it was closed or reset.",
        ),
        field(
            "flows_max",
            ValueForm::Integer { min: 16, max: FLOWS_MAX as u64 },
            Value("65536"),
            "262144",
            "Flows that are counted at a time; each takes about 240 bytes of kernel memory, at once. Packets of further flows are \
             counted together, as packets without room.",
        ),
        field(
            "collector",
            ValueForm::Text,
            From("none"),
            "\"udp:10.0.0.5:4739\"",
            "Where IPFIX (RFC 7011) goes: `udp:ADDRESS:PORT` or `tcp:ADDRESS:PORT`. Records that it does not take are lost and counted.",
        ),
        field(
            "observation_domain",
            ValueForm::Integer { min: 0, max: u32::MAX as u64 },
            Value("1"),
            "7",
            "The number by which the collector tells this monitor from others of this machine.",
        ),
        field(
            "file",
            ValueForm::Text,
            From("none"),
            "\"/var/log/hairpin/flows.log\"",
            "Where lines of JSON go, one for each report of a flow: a file by its absolute path, opened again when it was moved away \
             (within a second, or at once at SIGUSR1), or `stdout`.",
        ),
        field(
            "top",
            ValueForm::Integer { min: 0, max: 1000 },
            Value("20"),
            "100",
            "Top talkers that `hairpin monitor` and the status show: far ends by the bytes of their flows, as far as these were reported, \
             since the monitor began. 16 times as many are counted.",
        ),
    ],
};
