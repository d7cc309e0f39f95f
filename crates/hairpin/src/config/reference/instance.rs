//! The sections about the instance as a whole.

use super::super::tables::WORDS;
use super::Fallback::{From, Required, Value};
use super::{DAY_MS, ReferenceSection, ValueForm, field};
use hairpin_core::table::LookupMethod;

/// The top level.
pub const TOP: ReferenceSection = ReferenceSection {
    header: "",
    doc: "Fields of the instance come first in the file, before any table.",
    fields: &[
        field(
            "instance",
            ValueForm::Name { length_max: 9 },
            Value("default"),
            "\"edge\"",
            "Name of this instance: it names the worker devices (`hp-<instance>-<n>`), the pins and the control \
             socket, so that several instances can share a machine. 1 to 9 characters.",
        ),
        field(
            "include",
            ValueForm::Texts,
            From("nothing"),
            "\"conf.d/*.toml\"",
            "Files whose tables are read as if they stood behind this file: paths, from this file's directory unless absolute, \
             and patterns with `*`, `?` and `[...]`, whose files are read in the order of their names (not those whose names \
             begin with a dot). 256 at most. An included file has whole services, and no fields of the top level; it includes \
             no others. Messages name the file and its line.",
        ),
        field(
            "interfaces",
            ValueForm::Interfaces,
            Required,
            "[\"eth0\", \"eth1\"]",
            "The network interfaces packets are balanced on: those that face clients and those that face backends. \
             1 to 64; Ethernet. With `plane = \"dpdk\"` they are left out, and ports are named in [[dpdk.port]].",
        ),
        field(
            "workers",
            ValueForm::IntegerOrAuto { min: 1, max: 64 },
            Value("auto"),
            "4",
            "Worker threads, each pinned to a core. `\"auto\"`: one for each core this process may use.",
        ),
        field(
            "plane",
            ValueForm::Choice(&[
                ("linux", "the kernel's own network devices and BPF hooks"),
                ("dpdk", "DPDK's ports, past the kernel; needs a Hairpin built with DPDK (cargo feature `dpdk`)"),
            ]),
            Value("linux"),
            "\"linux\"",
            "How packets reach the workers.",
        ),
        field(
            "connection_table",
            ValueForm::Choice(&WORDS),
            Value(LookupMethod::DEFAULT.name()),
            "\"maglev\"",
            "How a worker finds the connection of a packet. Another one takes effect with a restart or `hairpin upgrade`; \
             connections are kept, unless one of the two methods tracks none. Those that track none need `policy = \
             \"never\"`, services with `mode = \"nat\"` and backends that no two services share; they admit every packet \
             to the workers, whatever the policer's settings.",
        ),
        field(
            "keys_file",
            ValueForm::Text,
            From("keys of its own, made at random"),
            "\"/etc/hairpin/keys\"",
            "A file with the keys of sticky cookies and SYN cookies, an absolute path. Instances on several machines that have \
             the same keys accept each other's cookies (docs/guide/high-availability.md). One key a line, 32 hexadecimal \
             digits; lines that begin with `#` are comments. The first key makes cookies; sticky cookies of all of them, 4 \
             at most, are accepted. It must belong to root or to the user that Hairpin runs as, with no rights for others (mode \
             0600 or 0400). A reload reads it again.",
        ),
        field("limits", ValueForm::Tables, From("each field's default"), "", "See [limits]."),
        field("offload", ValueForm::Tables, From("each field's default"), "", "See [offload]."),
        field("pool", ValueForm::Tables, From("each field's default"), "", "See [pool]."),
        field("linux", ValueForm::Tables, From("each field's default"), "", "See [linux]."),
        field("dpdk", ValueForm::Tables, From("none"), "", "See [dpdk]."),
        field("control", ValueForm::Tables, From("each field's default"), "", "See [control]."),
        field("api", ValueForm::Tables, From("none"), "", "See [api]."),
        field("log", ValueForm::Tables, From("each field's default"), "", "See [log]."),
        field("access_log", ValueForm::Tables, From("none"), "", "See [access_log]."),
        field("tracing", ValueForm::Tables, From("none"), "", "See [tracing]."),
        field("resolver", ValueForm::Tables, From("each field's default"), "", "See [resolver]."),
        field("metrics", ValueForm::Tables, From("each field's default"), "", "See [metrics]."),
        field("monitor", ValueForm::Tables, From("none"), "", "See [[monitor]]."),
        field("acme", ValueForm::Tables, From("none"), "", "See [acme]."),
        field("timeouts", ValueForm::Tables, From("each field's default"), "", "See [timeouts]."),
        field(
            "service",
            ValueForm::Tables,
            From("none, which only a file with [[monitor]] may have"),
            "",
            "See [[service]].",
        ),
    ],
};

/// `[limits]`
pub const LIMITS: ReferenceSection = ReferenceSection {
    header: "[limits]",
    doc: "What the instance holds at most. Memory is set aside at the start and, but for the beginning of each \
          table, touched only as it fills. When the connection table is full, a new connection takes the place of the oldest one that is not \
          established (`worker.evicted`). Where every connection is established, `when_full` says what becomes of the \
          packet that would open another one. Established connections are never evicted.",
    fields: &[
        field(
            "connections_max",
            ValueForm::Integer { min: 64, max: 67_108_864 },
            Value("1000000"),
            "1000000",
            "Connections of the whole instance, divided evenly over the workers.",
        ),
        field(
            "http_connections_max",
            ValueForm::Integer { min: 64, max: 67_108_864 },
            From(
                "65,536 for each worker, but never more than `connections_max`, nor than half of the room in \
                  `memory_directory` takes",
            ),
            "262144",
            "Clients' connections of HTTP and TLS services of the whole instance, divided evenly over the workers, and as \
             many to backends. Each has about 6 KB of the file in `memory_directory`, which takes memory only as it is used.",
        ),
        field(
            "limited_clients_max",
            ValueForm::Integer { min: 1024, max: 268_435_456 },
            Value("262144"),
            "1048576",
            "Clients that [[service.limit]] of all services remember at a time, those of each limit for themselves: 16 bytes of a file in \
             `memory_directory`. A client is remembered until its burst has come back. When there is no room, the client whose \
             burst comes back next is forgotten. As many clients may have connections that `concurrent` counts; connections of others \
             are admitted and not counted.",
        ),
        field(
            "rules_max",
            ValueForm::Integer { min: 64, max: 16_777_216 },
            Value("262144"),
            "262144",
            "Rules in the kernel for each address family; an offloaded connection has two. Connections beyond that \
             stay with the workers. Their memory, 112 bytes each for IPv4 and 176 for IPv6, is taken at the start. For IPv6, if \
             no service is of it then, it is taken as rules come, of which there is room for an eighth, but for 262,144 at \
             least; for IPv4 without such a service there is room for 65,536 at most.",
        ),
        field(
            "memory_directory",
            ValueForm::Text,
            Value("/dev/shm"),
            "\"/dev/shm\"",
            "Where the connections lie, in files that outlive the process; on a file system in memory. Absolute.",
        ),
        field(
            "when_full",
            ValueForm::Choice(&[
                ("drop", "it is dropped: its client sends it again, and there may be room then"),
                ("reset", "it is answered with RST (TCP) or ICMP port unreachable (UDP): its client gives up at once"),
            ]),
            Value("drop"),
            "\"reset\"",
            "What becomes of the packet that would open a connection, while the connection table is full and no other \
             gives way. It is counted (`worker.table-full`) either way. Of HTTP and TLS services that packet is the first \
             with data.",
        ),
        field(
            "drain_limit",
            ValueForm::Duration { min_ms: 0, max_ms: 30 * DAY_MS },
            Value("1h"),
            "\"1h\"",
            "How long connections go on whose backend drains, or whose backend or service is no longer in the \
             configuration; then they are ended. `\"0s\"`: until they end by themselves.",
        ),
        field(
            "upgrade_drain_limit",
            ValueForm::Duration { min_ms: 1000, max_ms: DAY_MS },
            Value("1m"),
            "\"5m\"",
            "How long the old process of an upgrade serves the connections that it has of services whose TLS or HTTP/2 \
             ends here; then it ends them. The connections of other services are the new process's at once.",
        ),
    ],
};

/// `[offload]`
pub const OFFLOAD: ReferenceSection = ReferenceSection {
    header: "[offload]",
    doc: "Which connections the kernel's BPF programs forward without waking a worker.",
    fields: &[
        field(
            "policy",
            ValueForm::Choice(&[
                ("always", "every connection, as soon as it is established"),
                ("never", "none: every packet goes through a worker"),
                ("first-n", "as many as come first; others when some of those have ended"),
                ("heavy-hitter", "what has had so many packets or bytes, or has lasted so long"),
                ("fastest-flow", "what has the highest packet rates; where rules are short, in place of slower ones"),
                (
                    "decision-tree",
                    "what the sizes, gaps and directions of its first packets say is going to be long, by a model",
                ),
                (
                    "auto",
                    "what is expected to have enough packets still to pay for its rules, by what packets and rules are \
                     measured to cost here and by how long connections were so far; where rules are short, the fastest",
                ),
            ]),
            Value("always"),
            "\"always\"",
            "Which connections are offloaded. Of HTTP and TLS services, bodies are, by their length, whatever it says \
             here but `\"never\"`.",
        ),
        field(
            "set_up",
            ValueForm::Choice(&[
                ("worker", "a worker, which hands them to the kernel when the policy says so"),
                (
                    "engine",
                    "the BPF programs, and workers hear of them: of `tcp` and `udp` services in mode `nat` or `dsr` whose \
                     `balance` is `maglev`, `source-hash`, `round-robin` or `weighted-round-robin` and, in mode `nat`, none \
                     of whose backends serves another service, 64 of them; a worker those of the others",
                ),
            ]),
            Value("worker"),
            "\"engine\"",
            "Who sets connections up. What the programs have set up is offloaded at once, whatever the policy; the policy may \
             take it back later. With `\"engine\"` all connections that are offloaded end without a worker, too.",
        ),
        field(
            "connections",
            ValueForm::Integer { min: 1, max: 33_554_432 },
            Value("4096"),
            "4096",
            "With `\"first-n\"`: how many connections of each worker may be offloaded at a time.",
        ),
        field(
            "packets",
            ValueForm::Integer { min: 1, max: 1 << 40 },
            From("none; 16 if neither bytes nor duration is given"),
            "16",
            "With `\"heavy-hitter\"`: packets, both directions together.",
        ),
        field(
            "bytes",
            ValueForm::Integer { min: 1, max: 1 << 50 },
            From("none"),
            "65536",
            "With `\"heavy-hitter\"`: bytes of IP packets, both directions together.",
        ),
        field(
            "duration",
            ValueForm::Duration { min_ms: 1, max_ms: DAY_MS },
            From("none"),
            "\"1s\"",
            "With `\"heavy-hitter\"`: time since the first packet.",
        ),
        field(
            "combine",
            ValueForm::Choice(&[("any", "one that is reached is enough"), ("all", "all must be reached")]),
            Value("any"),
            "\"any\"",
            "With `\"heavy-hitter\"`: how several thresholds go together.",
        ),
        field(
            "packets_per_s",
            ValueForm::Integer { min: 0, max: 100_000_000 },
            Value("100"),
            "100",
            "With `\"fastest-flow\"`: slower connections are not offloaded, however much room there is.",
        ),
        field(
            "model",
            ValueForm::Text,
            Value("built-in"),
            "\"/etc/hairpin/model.tree\"",
            "With `\"decision-tree\"`: the model, a file that `hairpin-lab train` has written (absolute), or \
             `\"built-in\"`.",
        ),
    ],
};

/// `[pool]`
pub const POOL: ReferenceSection = ReferenceSection {
    header: "[pool]",
    doc: "Source addresses and ports for services with `mode = \"full-nat\"`. Hairpin alone uses these ports of these \
          addresses; backends must have a route to them.",
    fields: &[
        field(
            "addresses",
            ValueForm::Addresses,
            Value("[]"),
            "[\"10.0.2.1\", \"fd00:2::1\"]",
            "The addresses, of either family. Needed for each family a full-NAT service has. 256 at most.",
        ),
        field(
            "ports",
            ValueForm::Ports,
            Value("16384-28671"),
            "\"16384-28671\"",
            "First and last port, 1024 to 65535. Keep them out of net.ipv4.ip_local_port_range (32768 to 60999 unless \
             changed), from which the kernel takes ports of the host's own connections.",
        ),
        field(
            "time_wait",
            ValueForm::Duration { min_ms: 0, max_ms: 600_000 },
            Value("60s"),
            "\"60s\"",
            "How long a port rests after a connection that the backend may still hold in TIME_WAIT.",
        ),
    ],
};

/// `[linux]`
pub const LINUX: ReferenceSection = ReferenceSection {
    header: "[linux]",
    doc: "The linux plane.",
    fields: &[
        field(
            "forwarding",
            ValueForm::Choice(&[
                ("check", "refuse to start if the kernel does not forward on a named interface, and say what to run"),
                ("enable", "switch it on where it is off, and back when Hairpin's objects are removed"),
            ]),
            Value("check"),
            "\"enable\"",
            "Packets that Hairpin routes need IP forwarding on the named interfaces, for each family in use.",
        ),
        field(
            "when_absent",
            ValueForm::Choice(&[
                (
                    "drop",
                    "drop and count them, of new and of established connections: clients and backends send again what \
                     gets no answer, and go on when the next process is there. Hosts that talk to a backend directly \
                     are not disturbed",
                ),
                (
                    "pass",
                    "leave them to the kernel, as if Hairpin were not there: it refuses connections to addresses that \
                     are its own, and resets established ones",
                ),
                (
                    "serve",
                    "drop them like `\"drop\"`, but let the BPF programs set connections up for `serve_for`, to the backends \
                     that were up: of services for which `set_up = \"engine\"` holds, as far as workers had room. The next \
                     process takes them over",
                ),
            ]),
            Value("drop"),
            "\"drop\"",
            "What becomes of packets of services that no rule takes while no Hairpin process is alive. Of an HTTPS service it \
             is SYNs, while no process listens for them.",
        ),
        field(
            "serve_for",
            ValueForm::Duration { min_ms: 1000, max_ms: 3_600_000 },
            Value("10s"),
            "\"10s\"",
            "With `when_absent = \"serve\"`: how long after `heartbeat_timeout`. No backend is checked meanwhile.",
        ),
        field(
            "heartbeat_timeout",
            ValueForm::Duration { min_ms: 500, max_ms: 3_600_000 },
            Value("3s"),
            "\"3s\"",
            "How long the BPF programs wait for a sign of life before they apply `when_absent`.",
        ),
        field(
            "policer_floor",
            ValueForm::Integer { min: 1, max: 4_000_000_000 },
            Value("2000"),
            "2000",
            "Packets per second of no known connection that a service admits to the workers, per core, even if \
             none of them leads to a connection. Services at the floor at the same time share it.",
        ),
        field(
            "policer_ceiling",
            ValueForm::Integer { min: 1, max: 4_000_000_000 },
            Value("200000"),
            "200000",
            "The same for each service, while most of what is admitted becomes established connections. Not below \
             the floor; between the two the rate adapts.",
        ),
        field(
            "policer_backend",
            ValueForm::Integer { min: 1, max: 4_000_000_000 },
            Value("20000"),
            "20000",
            "Packets per second of no known connection that are admitted from backends, per core and service.",
        ),
        field(
            "handover_bound",
            ValueForm::Duration { min_ms: 1, max_ms: 1_000 },
            Value("50ms"),
            "\"50ms\"",
            "How long, at most, a connection's packets stay with the worker after its rule is in force so that they \
             keep their order.",
        ),
        field(
            "tap_queue",
            ValueForm::Integer { min: 64, max: 65_536 },
            Value("4096"),
            "4096",
            "Packets that may wait for a worker in its device.",
        ),
        field(
            "coalesce",
            ValueForm::Duration { min_ms: 0, max_ms: 1 },
            Value("50us"),
            "\"50us\"",
            "A worker for which frames come several at a time wakes no more often than this, so that one wake does for \
             many, as network cards moderate their interrupts (`ethtool -C`). `\"0s\"`: at once for every frame.",
        ),
        field(
            "attach",
            ValueForm::Choice(&[
                ("tc", "at tc ingress, by tcx where the kernel has it (6.6 and later), else by clsact"),
                ("clsact", "at tc ingress by a clsact filter, even where the kernel has tcx"),
                (
                    "xdp",
                    "at tc ingress, and natively in the driver of every interface; the start fails where that cannot be",
                ),
                (
                    "auto",
                    "as `xdp` if every service is of UDP, and every interface has a driver that runs XDP natively and is not \
                     veth; else as `tc`",
                ),
            ]),
            Value("tc"),
            "\"tc\"",
            "Where the BPF programs are attached. In XDP they forward packets of offloaded flows, answer SYNs with cookies and \
             refuse floods before the kernel makes socket buffers of them, which pays for small packets; what that asks of \
             interfaces is in docs/guide/networking.md. `auto` decides at a start only.",
        ),
        field(
            "pin_directory",
            ValueForm::Text,
            Value("/sys/fs/bpf/hairpin"),
            "\"/sys/fs/bpf/hairpin\"",
            "Where programs, maps and links are pinned, in a directory per instance; on a bpf file system. Absolute.",
        ),
    ],
};

/// `[control]`
pub const CONTROL: ReferenceSection = ReferenceSection {
    header: "[control]",
    doc: "How `hairpin status`, `hairpin reload` and the other commands reach the process.",
    fields: &[field(
        "directory",
        ValueForm::Text,
        Value("/run/hairpin"),
        "\"/run/hairpin\"",
        "Where the control socket (`<instance>.sock`, for root only), the lock file (`<instance>.lock`), what a \
         restart must know (`<instance>.objects`, `<instance>.numbers`), events (`<instance>.events`) and the socket of [api] \
         (`<instance>.api.sock`) live; not on a file system that outlives the \
         machine's own restart. Absolute.",
    )],
};

/// `[log]`
pub const LOG: ReferenceSection = ReferenceSection {
    header: "[log]",
    doc: "The program's own log, on standard error. Where that is the journal of systemd, entries have a priority and \
          `HAIRPIN_EVENT`, the kind of event, and `format` has no effect. `hairpin events` has all of it, whatever `level` is.",
    fields: &[
        field(
            "format",
            ValueForm::Choice(&[
                ("text", "lines for people: time, level, text"),
                ("json", "an object a line, as `hairpin events -o json` prints it"),
            ]),
            Value("text"),
            "\"json\"",
            "The form of lines.",
        ),
        field(
            "level",
            ValueForm::Choice(&[("info", "everything"), ("warning", "only what a person should look at")]),
            Value("info"),
            "\"warning\"",
            "What is logged.",
        ),
    ],
};

/// `[metrics]`
pub const METRICS: ReferenceSection = ReferenceSection {
    header: "[metrics]",
    doc: "Metrics for monitoring, and a page for people, over HTTP: `/` is the page, `/metrics` has the form of Prometheus, \
          `/status`, `/offload` and `/events` are JSON. Nothing there changes anything.",
    fields: &[
        field(
            "listen",
            ValueForm::EndpointOrOff,
            Value("127.0.0.1:9560"),
            "\"off\"",
            "Address and port, or `\"off\"`. Every host that reaches it can read the names and addresses of all services \
             and backends, and the first lines of events, so keep it on loopback or behind a filter. Instances on one \
             machine need a port each.",
        ),
        field(
            "hosts",
            ValueForm::Texts,
            From("none"),
            "[\"edge.example.com\"]",
            "Names of this machine by which browsers may ask, 16 at most, without port. Requests for an address, or for a name \
             without a dot such as `localhost`, are always answered. Others get 421, because a site on the Internet can \
             have its own name lead here; but `/metrics`, `/healthz` and `/ready` are answered for every name where \
             `listen` is not on loopback.",
        ),
    ],
};
