//! Every field of the configuration file, once: its name, form, default and meaning.
//!
//! The reader takes defaults, ranges and known names from here, `hairpin config` and `docs/configuration.md` are
//! printed from here, so none of them can disagree.

/// The form of a field's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Text.
    Text,
    /// A short name of letters, digits, `-` and `_`.
    Name {
        /// Characters at most.
        length_max: usize,
    },
    /// One of some words, each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    /// A duration with its unit, bounds in milliseconds.
    Duration {
        /// The shortest, milliseconds.
        min_ms: u64,
        /// The longest, milliseconds.
        max_ms: u64,
    },
    /// A whole number.
    Integer {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A whole number or `"auto"`.
    IntegerOrAuto {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// A list of interface names.
    Interfaces,
    /// A list of IP addresses.
    Addresses,
    /// A port range `"first-last"`.
    Ports,
    /// `"address:port/protocol"`.
    Listen,
    /// `"address:port"`.
    Endpoint,
    /// A list of `"address:port"`.
    Endpoints,
    /// A table or list of tables, described by a section of its own.
    Tables,
}

/// What a field is when the file does not say.
#[derive(Clone, Copy, Debug)]
pub enum Fallback {
    /// It must be given.
    Required,
    /// This value, as in the file but without quotes.
    Value(&'static str),
    /// Taken from elsewhere, in words.
    From(&'static str),
}

/// One field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its form.
    pub kind: Kind,
    /// Its default.
    pub fallback: Fallback,
    /// What it does, one paragraph.
    pub doc: &'static str,
    /// What it may look like.
    pub example: &'static str,
}

/// One table of the file.
#[derive(Debug)]
pub struct Section {
    /// Its header as written, brackets included; empty for the top level.
    pub header: &'static str,
    /// What it is about.
    pub doc: &'static str,
    /// Its fields, in the order they are documented in.
    pub fields: &'static [Field],
}

impl Section {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// How messages name the section.
    pub fn place(&self) -> &'static str {
        if self.header.is_empty() { "the top level" } else { self.header }
    }
}

const fn field(name: &'static str, kind: Kind, fallback: Fallback, example: &'static str, doc: &'static str) -> Field {
    Field { name, kind, fallback, doc, example }
}

const DAY_MS: u64 = 86_400_000;
const STATE_TIMEOUT: Kind = Kind::Duration { min_ms: 100, max_ms: 30 * DAY_MS };

use Fallback::{From, Required, Value};

/// The top level.
pub const TOP: Section = Section {
    header: "",
    doc: "Fields of the instance come first in the file, before any table.",
    fields: &[
        field(
            "instance",
            Kind::Name { length_max: 9 },
            Value("default"),
            "\"edge\"",
            "Name of this instance: it names the worker devices (`hp-<instance>-<n>`), the pins and the control \
             socket, so that several instances can share a machine. 1 to 9 characters.",
        ),
        field(
            "interfaces",
            Kind::Interfaces,
            Required,
            "[\"eth0\", \"eth1\"]",
            "The network interfaces packets are balanced on: those that face clients and those that face backends. \
             1 to 64; Ethernet.",
        ),
        field(
            "workers",
            Kind::IntegerOrAuto { min: 1, max: 64 },
            Value("auto"),
            "4",
            "Worker threads, each pinned to a core. `\"auto\"`: one for each core this process may use.",
        ),
        field(
            "plane",
            Kind::Choice(&[("linux", "the kernel's own network devices and BPF hooks")]),
            Value("linux"),
            "\"linux\"",
            "How packets reach the workers.",
        ),
        field("limits", Kind::Tables, From("each field's default"), "", "See [limits]."),
        field("offload", Kind::Tables, From("each field's default"), "", "See [offload]."),
        field("pool", Kind::Tables, From("each field's default"), "", "See [pool]."),
        field("linux", Kind::Tables, From("each field's default"), "", "See [linux]."),
        field("control", Kind::Tables, From("each field's default"), "", "See [control]."),
        field("timeouts", Kind::Tables, From("each field's default"), "", "See [timeouts]."),
        field("service", Kind::Tables, Required, "", "See [[service]]."),
    ],
};

/// `[limits]`
pub const LIMITS: Section = Section {
    header: "[limits]",
    doc: "What the instance holds at most. Memory is set aside at the start and touched only as it fills. When the \
          connection table is full, packets that would open a connection are dropped and counted; connections that \
          exist are never evicted for new ones.",
    fields: &[
        field(
            "connections_max",
            Kind::Integer { min: 64, max: 67_108_864 },
            Value("1000000"),
            "1000000",
            "Connections of the whole instance, divided evenly over the workers.",
        ),
        field(
            "rules_max",
            Kind::Integer { min: 64, max: 16_777_216 },
            Value("262144"),
            "262144",
            "Rules in the kernel for each address family; an offloaded connection has two. Connections beyond that \
             stay with the workers. Their memory, about half a kilobyte each, is taken at the start.",
        ),
    ],
};

/// `[offload]`
pub const OFFLOAD: Section = Section {
    header: "[offload]",
    doc: "Which connections the kernel's BPF programs carry without waking a worker.",
    fields: &[field(
        "policy",
        Kind::Choice(&[
            ("always", "every connection, as soon as it is established"),
            ("never", "none: every packet goes through a worker"),
        ]),
        Value("always"),
        "\"always\"",
        "Which connections are offloaded.",
    )],
};

/// `[pool]`
pub const POOL: Section = Section {
    header: "[pool]",
    doc: "Source addresses and ports for services with `mode = \"full-nat\"`. Hairpin alone uses these ports of these \
          addresses; backends must have a route to them.",
    fields: &[
        field(
            "addresses",
            Kind::Addresses,
            Value("[]"),
            "[\"10.0.2.1\", \"fd00:2::1\"]",
            "The addresses, of either family. Needed for each family a full-NAT service has. 256 at most.",
        ),
        field(
            "ports",
            Kind::Ports,
            Value("16384-28671"),
            "\"16384-28671\"",
            "First and last port, 1024 to 65535. Keep them out of net.ipv4.ip_local_port_range (32768 to 60999 unless \
             changed), from which the kernel takes ports of the host's own connections.",
        ),
        field(
            "time_wait",
            Kind::Duration { min_ms: 0, max_ms: 600_000 },
            Value("60s"),
            "\"60s\"",
            "How long a port rests after a connection that the backend may still hold in TIME_WAIT.",
        ),
    ],
};

/// `[linux]`
pub const LINUX: Section = Section {
    header: "[linux]",
    doc: "The linux plane.",
    fields: &[
        field(
            "forwarding",
            Kind::Choice(&[
                ("check", "refuse to start if the kernel does not forward on a named interface, and say what to run"),
                ("enable", "switch it on where it is off, and back when Hairpin's objects are removed"),
            ]),
            Value("check"),
            "\"enable\"",
            "Packets that Hairpin routes need IP forwarding on the named interfaces, for each family in use.",
        ),
        field(
            "when_absent",
            Kind::Choice(&[
                ("pass", "leave them to the kernel, as if Hairpin were not there"),
                ("drop", "drop and count them"),
            ]),
            Value("pass"),
            "\"pass\"",
            "What becomes of packets for services that no rule takes while no Hairpin process is alive.",
        ),
        field(
            "heartbeat_timeout",
            Kind::Duration { min_ms: 500, max_ms: 3_600_000 },
            Value("3s"),
            "\"3s\"",
            "How long the BPF programs wait for a sign of life before they apply `when_absent`.",
        ),
        field(
            "policer_floor",
            Kind::Integer { min: 1, max: 4_000_000_000 },
            Value("2000"),
            "2000",
            "Packets per second of no known connection that a service admits to the workers, per core, however \
             useless they turn out to be. Services of which that is so at the same time share it.",
        ),
        field(
            "policer_ceiling",
            Kind::Integer { min: 1, max: 4_000_000_000 },
            Value("200000"),
            "200000",
            "The same for each service, while most of what is admitted becomes established connections. Not below \
             the floor; between the two the rate adapts.",
        ),
        field(
            "policer_backend",
            Kind::Integer { min: 1, max: 4_000_000_000 },
            Value("20000"),
            "20000",
            "Packets per second of no known connection that are admitted from backends, per core and service.",
        ),
        field(
            "handover_bound",
            Kind::Duration { min_ms: 1, max_ms: 1_000 },
            Value("50ms"),
            "\"50ms\"",
            "How long, at most, a connection's packets stay with the worker after its rule is in force so that they \
             keep their order.",
        ),
        field(
            "tap_queue",
            Kind::Integer { min: 64, max: 65_536 },
            Value("4096"),
            "4096",
            "Packets that may wait for a worker in its device.",
        ),
        field(
            "attach",
            Kind::Choice(&[
                ("auto", "tcx where the kernel has it (6.6 and later), else clsact"),
                ("clsact", "a clsact filter, even where the kernel has tcx"),
            ]),
            Value("auto"),
            "\"auto\"",
            "How the BPF programs are attached at tc ingress.",
        ),
        field(
            "pin_directory",
            Kind::Text,
            Value("/sys/fs/bpf/hairpin"),
            "\"/sys/fs/bpf/hairpin\"",
            "Where programs, maps and links are pinned, in a directory per instance; on a bpf file system. Absolute.",
        ),
    ],
};

/// `[control]`
pub const CONTROL: Section = Section {
    header: "[control]",
    doc: "How `hairpin status` and `hairpin stop` reach the process.",
    fields: &[field(
        "directory",
        Kind::Text,
        Value("/run/hairpin"),
        "\"/run/hairpin\"",
        "Where the control socket (`<instance>.sock`, for root only) and the lock file (`<instance>.lock`) live. \
         Absolute.",
    )],
};

/// `[timeouts]`, and `[service.timeouts]` with other defaults.
pub const TIMEOUTS: Section = Section {
    header: "[timeouts]",
    doc: "How long a silent connection is remembered, by state. `[service.timeouts]` under a service takes the same \
          fields and overrides these for that service. 100ms to 30days.",
    fields: &[
        field(
            "tcp_handshake",
            STATE_TIMEOUT,
            Value("30s"),
            "\"30s\"",
            "TCP, from the first SYN until the handshake is complete.",
        ),
        field("tcp_established", STATE_TIMEOUT, Value("1h"), "\"1h\"", "TCP, established."),
        field("tcp_half_closed", STATE_TIMEOUT, Value("2m"), "\"2m\"", "TCP, one side has sent FIN."),
        field("tcp_closed", STATE_TIMEOUT, Value("5s"), "\"5s\"", "TCP, both sides have sent FIN."),
        field(
            "tcp_reset",
            STATE_TIMEOUT,
            Value("5s"),
            "\"5s\"",
            "TCP, after a RST; traffic in this time brings the connection back, so a forged RST kills nothing.",
        ),
        field(
            "udp_new",
            STATE_TIMEOUT,
            Value("30s"),
            "\"30s\"",
            "UDP, until the backend has answered and the client spoken again: one question and its answer end here.",
        ),
        field("udp_established", STATE_TIMEOUT, Value("3m"), "\"3m\"", "UDP, both sides have spoken."),
    ],
};

/// `[[service]]`
pub const SERVICE: Section = Section {
    header: "[[service]]",
    doc: "A service: what clients connect to and who serves it. One `[[service]]` for each, 1024 at most. The address \
          (VIP) must be this host's own, or be routed to it.",
    fields: &[
        field(
            "name",
            Kind::Name { length_max: 64 },
            From("`listen`"),
            "\"web\"",
            "Its name in status and messages; unique.",
        ),
        field(
            "listen",
            Kind::Listen,
            Required,
            "\"192.0.2.10:80/tcp\"",
            "Address, port and protocol (tcp or udp); an IPv6 address in brackets: `\"[2001:db8::10]:80/tcp\"`.",
        ),
        field(
            "mode",
            Kind::Choice(&[
                (
                    "nat",
                    "only the destination changes: backends see the client's address, and must route back \
                         through this host",
                ),
                (
                    "full-nat",
                    "the source changes too, to an address and port of [pool]: backends need no special route",
                ),
            ]),
            Value("nat"),
            "\"full-nat\"",
            "How packets are translated.",
        ),
        field(
            "balance",
            Kind::Choice(&[
                ("round-robin", "one backend after the other; weights are ignored"),
                ("weighted-round-robin", "in proportion to weights, interleaved"),
                ("least-connections", "the fewest connections per weight"),
                ("power-of-two", "the less loaded of two drawn at random by weight"),
                ("maglev", "consistent hashing of the connection's addresses and ports, with weights"),
                ("source-hash", "consistent hashing of the client's address: one client, one backend"),
            ]),
            Value("round-robin"),
            "\"maglev\"",
            "How the backend of a new connection is chosen.",
        ),
        field(
            "unknown",
            Kind::Choice(&[
                ("drop", "dropped and counted"),
                ("reset", "answered with RST"),
                (
                    "pick-up",
                    "taken as part of an established connection of the backend that Maglev names, so that \
                             another balancer's connections can be taken over; with full NAT the same as drop",
                ),
            ]),
            Value("drop"),
            "\"reset\"",
            "What becomes of a TCP packet, not a SYN, that belongs to no known connection.",
        ),
        field(
            "backends",
            Kind::Endpoints,
            Value("[]"),
            "[\"10.0.2.11:8080\", \"10.0.2.12:8080\"]",
            "Backends that need no more than address and port. A service has at least one backend, here or as \
             [[service.backend]]; 16384 in the whole file.",
        ),
        field("backend", Kind::Tables, From("none"), "", "See [[service.backend]]."),
        field("timeouts", Kind::Tables, From("[timeouts]"), "", "See [timeouts]."),
    ],
};

/// `[[service.backend]]`
pub const BACKEND: Section = Section {
    header: "[[service.backend]]",
    doc: "A backend of the service above it.",
    fields: &[
        field(
            "address",
            Kind::Endpoint,
            Required,
            "\"10.0.2.11:8080\"",
            "Address and port; of the service's address family.",
        ),
        field(
            "name",
            Kind::Name { length_max: 64 },
            From("`address`"),
            "\"web-1\"",
            "Its name in status and messages; unique in its service.",
        ),
        field(
            "weight",
            Kind::Integer { min: 0, max: 65_535 },
            Value("1"),
            "10",
            "Its share of new connections beside the other backends' weights; with 0 it gets none.",
        ),
        field(
            "state",
            Kind::Choice(&[
                ("enabled", "takes new connections"),
                ("drain", "keeps the connections it has and takes no new ones"),
                ("disabled", "has no connections: packets of those it had are dropped"),
            ]),
            Value("enabled"),
            "\"drain\"",
            "Whether it takes connections.",
        ),
    ],
};

/// All sections, in the order they are documented in.
pub const SECTIONS: [&Section; 9] = [&TOP, &LIMITS, &OFFLOAD, &POOL, &LINUX, &CONTROL, &TIMEOUTS, &SERVICE, &BACKEND];
