//! The sections about services.

use super::Fallback::{From, Required, Value};
use super::{DAY_MS, ReferenceSection, ValueForm, field};

const STATE_TIMEOUT: ValueForm = ValueForm::Duration { min_ms: 100, max_ms: 30 * DAY_MS };
const CHECK_TIME: ValueForm = ValueForm::Duration { min_ms: 10, max_ms: DAY_MS };
const IN_A_ROW: ValueForm = ValueForm::Integer { min: 1, max: 1000 };

/// How a backend is chosen.
pub(super) const BALANCE: ValueForm = ValueForm::Choice(&[
    ("round-robin", "one backend after the other; weights are ignored"),
    ("weighted-round-robin", "in proportion to weights, interleaved"),
    ("least-connections", "the fewest connections per weight"),
    ("power-of-two", "the less loaded of two drawn at random by weight"),
    ("maglev", "consistent hashing of the connection's addresses and ports, with weights"),
    ("source-hash", "consistent hashing of the client's address: one client, one backend"),
    ("header-hash", "http and https: consistent hashing of a field of each request, `hash_name`"),
    ("cookie-hash", "http and https: consistent hashing of a cookie of each request, `hash_name`"),
    (
        "path-hash",
        "http and https: consistent hashing of the path of each request, as it was written, without its query",
    ),
    (
        "least-latency",
        "http and https: of two drawn at random by weight the one whose latency times requests is less; a latency above the \
         mean counts at once, the mean halves in 7 s (peak EWMA)",
    ),
]);
/// The part of a request that backends are chosen by.
pub(super) const HASH_NAME: &str = "The field's name (in any case), or the cookie's, with `balance` \"header-hash\" or \"cookie-hash\". Requests \
                                    without it, or with an empty value, are balanced by the client's address; of several \
                                    the first counts.";
/// The treatment of packets that arrive while all backends are down.
pub(super) const ALL_DOWN: ValueForm = ValueForm::Choice(&[
    ("refuse", "they are refused: RST, or ICMP port unreachable"),
    ("use-all", "they are spread over all enabled backends as if these were up: the checks may be what is wrong"),
]);

/// `[timeouts]`, and `[service.timeouts]` with other defaults.
pub const TIMEOUTS: ReferenceSection = ReferenceSection {
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

pub(super) const BACKEND_PROTOCOL: ValueForm = ValueForm::Choice(&[
    ("http/1.1", "HTTP/1.1"),
    ("h2", "HTTP/2: over TLS where they speak TLS, else in clear text by prior knowledge (h2c)"),
]);

/// `[[service]]`
pub const SERVICE: ReferenceSection = ReferenceSection {
    header: "[[service]]",
    doc: "A service: what clients connect to and who serves it. One `[[service]]` for each, 1024 at most, groups \
          of backends included. The address (VIP) must be this host's own, or be routed to it.",
    fields: &[
        field(
            "name",
            ValueForm::Name { length_max: 64 },
            From("`listen`"),
            "\"web\"",
            "Its name in status and messages; unique.",
        ),
        field(
            "routes_of",
            ValueForm::Text,
            From("none"),
            "\"shop\"",
            "http and https: the name of an http or https service. Requests are treated as its are: by its access rules, routes, \
             groups, backends, health checks and [service.http], of which only `http2`, `offload_bytes_min` and `timestamps` \
             may be given here. Its backends are checked once, and one that is disabled is so for both.",
        ),
        field(
            "listen",
            ValueForm::Listen,
            Required,
            "\"192.0.2.10:80/tcp\"",
            "Address, port and protocol (tcp, udp, http, https or tls); an IPv6 address in brackets: \
             `\"[2001:db8::10]:80/tcp\"`.",
        ),
        field(
            "protocol",
            ValueForm::Choice(&[
                ("tcp", "connections are forwarded as they are"),
                ("udp", "datagrams are forwarded as they are"),
                ("http", "HTTP/1.1 over TCP, every request routed by itself: see [[service.route]], [service.http]"),
                (
                    "https",
                    "HTTP/1.1 and HTTP/2 over TLS, which ends here, every request routed by itself: see \
                     [[service.route]], [service.http], [service.https]",
                ),
                (
                    "tls",
                    "TLS over TCP, passed through, routed by the server's name: see [[service.route]], [service.tls]",
                ),
            ]),
            From("as `listen` says"),
            "\"http\"",
            "The protocol, if `listen` does not say it, or says tcp and means one of those over it.",
        ),
        field(
            "mode",
            ValueForm::Choice(&[
                (
                    "nat",
                    "only the destination changes: backends see the client's address, and must route back \
                         through this host",
                ),
                (
                    "full-nat",
                    "the source changes too, to an address and port of [pool]: backends need no special route",
                ),
                (
                    "dsr",
                    "direct server return: nothing changes but the next hop, so backends have the VIP as well, are on a \
                     link of this host unless there is an `encapsulation`, and answer clients without it",
                ),
            ]),
            Value("nat"),
            "\"full-nat\"",
            "How packets are translated. Services with protocol http or tls always use addresses and ports of [pool] towards \
             backends. Those with https have no mode: their connections to backends are this host's own.",
        ),
        field(
            "proxy_protocol",
            ValueForm::Choice(&[("off", "with what the client sends"), ("v1", "as text"), ("v2", "in binary")]),
            Value("off"),
            "\"v2\"",
            "Whether connections of a tcp service to backends begin with the client's address, in the PROXY protocol. They are \
             connections of Hairpin's own then, from [pool], as those of tls services with the defaults of [service.tls]; `mode` is \
             left out. Backends must expect the header; checks do not send it, so give them a `port` of their own. Services \
             with protocol http, https and tls have the field in [service.http] and [service.tls].",
        ),
        field(
            "encapsulation",
            ValueForm::Choice(&[
                ("none", "nothing: the backend is on a link of this host"),
                ("ipip", "an IP header of the backend's family: backends take it off with ipip, ip6tnl or sit"),
                ("gue", "IP and UDP, GUE variant 1: backends take it off with fou, or with `hairpin decapsulate`"),
            ]),
            Value("none"),
            "\"gue\"",
            "What packets to backends are wrapped in, with `mode = \"dsr\"`, so that backends may be any number of hops away, \
             and of another address family than the service. Backends remove it; `hairpin decapsulate` removes both kinds.",
        ),
        field(
            "encapsulation_port",
            ValueForm::Integer { min: 1, max: 65535 },
            Value("6080"),
            "6080",
            "The UDP port that wrapped packets go to, with `encapsulation = \"gue\"`.",
        ),
        field(
            "encapsulation_source",
            ValueForm::Text,
            From("the address that the kernel has for packets to the backend"),
            "\"10.0.2.1\"",
            "The source address of outer headers to backends of its family, for those that take wrapped packets from known \
             addresses only.",
        ),
        field(
            "balance",
            BALANCE,
            Value("round-robin"),
            "\"maglev\"",
            "How the backend of a new connection is chosen; of http and https services, that of a request.",
        ),
        field("hash_name", ValueForm::Text, From("none"), "\"X-Tenant\"", HASH_NAME),
        field(
            "unknown",
            ValueForm::Choice(&[
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
            "What becomes of a TCP packet, not a SYN, that belongs to no known connection. The default of services with \
             protocol http or tls is reset; pick-up is the same as drop there. For https the kernel answers.",
        ),
        field(
            "all_down",
            ALL_DOWN,
            Value("refuse"),
            "\"use-all\"",
            "What becomes of new connections while all enabled backends are down.",
        ),
        field(
            "drain_limit",
            ValueForm::Duration { min_ms: 0, max_ms: 30 * DAY_MS },
            From("`drain_limit` of [limits]"),
            "\"10m\"",
            "How long connections go on whose backend drains or was removed, or when this service is; `\"0s\"`: until \
             they end by themselves.",
        ),
        field(
            "backends",
            ValueForm::Endpoints,
            Value("[]"),
            "[\"10.0.2.11:8080\", \"10.0.2.12:8080\"]",
            "Backends that need no more than address and port, or name and port. A service has at least one backend, here or as \
             [[service.backend]], unless it is an HTTP or TLS service with routes; 16384 in the whole file.",
        ),
        field("backend", ValueForm::Tables, From("none"), "", "See [[service.backend]]."),
        field(
            "backend_protocol",
            BACKEND_PROTOCOL,
            Value("http/1.1"),
            "\"h2\"",
            "The protocol that backends of an HTTP or HTTPS service speak. With `h2`, a service with protocol http ends \
             connections at this host's sockets, as `http2` of [service.http] has it.",
        ),
        field("health", ValueForm::Tables, From("each field's default"), "", "See [service.health]."),
        field("outlier", ValueForm::Tables, From("none"), "", "See [service.outlier]."),
        field("queue", ValueForm::Tables, From("none"), "", "See [service.queue]."),
        field("cors", ValueForm::Tables, From("none"), "", "See [service.cors]."),
        field("forward_auth", ValueForm::Tables, From("none"), "", "See [service.forward_auth]."),
        field(
            "error_pages",
            ValueForm::Map,
            From("none"),
            "{ \"404\" = \"/etc/hairpin/404.html\", \"5xx\" = \"/etc/hairpin/5xx.html\" }",
            "Services whose connections end here: files with the bodies of responses that Hairpin makes itself, by status (400 to \
             599) or class (`4xx`, `5xx`), of which the status counts first. `.json` and `.txt` are sent as such, others as HTML. They are \
             read at the start and at a reload; 64 KiB each, 1 MiB in all services. Responses of backends keep theirs.",
        ),
        field("basic", ValueForm::Tables, From("none"), "", "See [service.basic]."),
        field("access_log", ValueForm::Tables, From("each field's default"), "", "See [service.access_log]."),
        field("timeouts", ValueForm::Tables, From("[timeouts]"), "", "See [timeouts]."),
        field("group", ValueForm::Tables, From("none"), "", "See [[service.group]]."),
        field("route", ValueForm::Tables, From("none"), "", "See [[service.route]]."),
        field("access", ValueForm::Tables, From("none"), "", "See [[service.access]]."),
        field("limit", ValueForm::Tables, From("none"), "", "See [[service.limit]]."),
        field("http", ValueForm::Tables, From("each field's default"), "", "See [service.http]."),
        field("https", ValueForm::Tables, From("none"), "", "See [service.https]."),
        field("backend_tls", ValueForm::Tables, From("off"), "", "See [service.backend_tls]."),
        field("tls", ValueForm::Tables, From("each field's default"), "", "See [service.tls]."),
    ],
};

/// `[service.health]`
pub const HEALTH: ReferenceSection = ReferenceSection {
    header: "[service.health]",
    doc: "How the health of the backends of the service above it is found out. A backend that is down gets no new \
          connections; over TCP it keeps those it has. The first success of a backend decides at once; of failures, `fall` in a row do, and the \
          first checks follow one another within a second.",
    fields: &[
        field(
            "check",
            ValueForm::Choice(&[
                ("none", "nothing: backends count as up"),
                ("tcp", "a connection is opened, and reset at once"),
                ("http", "a request is sent without TLS, by the backends' protocol; redirects are not followed"),
                ("https", "the same over TLS, as [service.backend_tls] says"),
                (
                    "grpc",
                    "the backend's health is asked for by gRPC (`grpc.health.v1.Health/Check`), over TLS as \
                     [service.backend_tls] says",
                ),
                ("udp", "a datagram is sent and must be answered"),
            ]),
            Value("none"),
            "\"http\"",
            "What is done to find out whether a backend is well.",
        ),
        field("interval", CHECK_TIME, Value("2s"), "\"2s\"", "Time from one check of a backend to the next."),
        field(
            "timeout",
            CHECK_TIME,
            Value("1s"),
            "\"1s\"",
            "How long a check may take as a whole; not longer than `interval`.",
        ),
        field("rise", IN_A_ROW, Value("2"), "2", "Successes in a row that bring a backend up."),
        field("fall", IN_A_ROW, Value("3"), "3", "Failures in a row that take a backend down."),
        field(
            "port",
            ValueForm::Integer { min: 1, max: 65_535 },
            From("each backend's own"),
            "8081",
            "The port that is checked, at each backend's address.",
        ),
        field("method", ValueForm::Text, Value("GET"), "\"HEAD\"", "HTTP: the request's method."),
        field("path", ValueForm::Text, Value("/"), "\"/healthz\"", "HTTP: the request's path, with its query."),
        field(
            "host",
            ValueForm::Text,
            From("the backend's address and port"),
            "\"www.example.com\"",
            "HTTP: the Host header.",
        ),
        field(
            "status",
            ValueForm::Statuses,
            Value("200-399"),
            "\"200,204\"",
            "HTTP: the statuses that are well, numbers and ranges.",
        ),
        field(
            "body",
            ValueForm::Text,
            From("anything"),
            "\"ok\"",
            "HTTP: what the first 64 KiB of the answer's body must contain.",
        ),
        field(
            "grpc_service",
            ValueForm::Text,
            From("the server as a whole"),
            "\"shop.Cart\"",
            "gRPC: the service whose health is asked for.",
        ),
        field(
            "send",
            ValueForm::Text,
            From("required for `check = \"udp\"`, or `send_hex`"),
            "\"ping\"",
            "UDP: what is sent, 1452 bytes at most; may be empty.",
        ),
        field(
            "send_hex",
            ValueForm::Text,
            From("`send`"),
            "\"00 01 0a ff\"",
            "UDP: the same in hexadecimal digits; spaces may stand between bytes.",
        ),
        field("expect", ValueForm::Text, From("any answer"), "\"pong\"", "UDP: what the first answer must contain."),
        field(
            "expect_hex",
            ValueForm::Text,
            From("`expect`"),
            "\"81 80\"",
            "UDP: the same in hexadecimal digits; spaces may stand between bytes.",
        ),
        field(
            "passive",
            ValueForm::Integer { min: 0, max: 1000 },
            Value("0"),
            "5",
            "Clients' connections to a backend that fail in a row (refused, unanswered, or unreachable) and take it \
             down, whatever the checks say; 0: they are not looked at. Of an HTTP service, requests: those whose \
             connection fails, is reset or closed before the response, or that are not answered in time; a response \
             ends the row. Off by default because clients have a part in it: with many addresses that never answer, a \
             dishonest one can make good backends look bad.",
        ),
        field(
            "passive_retry",
            CHECK_TIME,
            Value("10s"),
            "\"30s\"",
            "How long a backend without check that `passive` took down stays so before connections try it again; \
             doubles, up to eightfold, while they fail.",
        ),
        field(
            "passive_status",
            ValueForm::Statuses,
            From("none"),
            "\"500,502-504\"",
            "HTTP services: responses with these statuses, from 500 to 599, count for `passive` like requests that are not \
             answered. Name statuses that tell of the server, not of the request: a client that can ask for one of them on \
             purpose can take backends down.",
        ),
        field(
            "slow_start",
            ValueForm::Duration { min_ms: 0, max_ms: DAY_MS },
            Value("0s"),
            "\"30s\"",
            "How long a backend that was down takes to get its full share of new connections; it grows from a \
             sixteenth. `round-robin` and all that hash (`maglev` and others) know no shares: there it gets all at once.",
        ),
    ],
};

/// `[[service.backend]]`
pub const BACKEND: ReferenceSection = ReferenceSection {
    header: "[[service.backend]]",
    doc: "A backend of the service above it.",
    fields: &[
        field(
            "address",
            ValueForm::Endpoint,
            Required,
            "\"10.0.2.11:8080\"",
            "Address and port; of the service's address family, unless it has an `encapsulation`. Or a name and port, \
             `\"app.internal:8080\"`: its addresses of the service's family are backends, called by them (docs/guide/names.md). One of \
             `address` and `srv` must be given.",
        ),
        field(
            "srv",
            ValueForm::Text,
            From("none"),
            "\"_http._tcp.app.internal\"",
            "The name of SRV records (RFC 2782) that give backends: the addresses of the targets of the best priority, with the \
             records' ports and weights; weight 0 means 1. Other priorities are not used.",
        ),
        field(
            "resolve",
            ValueForm::Choice(&[
                ("all", "each of them is a backend"),
                ("one", "one of them is the backend, the same one as long as the name has it"),
            ]),
            Value("all"),
            "\"one\"",
            "What becomes of the addresses of a name in `address`.",
        ),
        field(
            "name",
            ValueForm::Name { length_max: 64 },
            From("`address`"),
            "\"web-1\"",
            "Its name in status and messages; unique in its service.",
        ),
        field(
            "weight",
            ValueForm::Integer { min: 0, max: 65_535 },
            Value("1"),
            "10",
            "Its share of new connections beside the other backends' weights; with 0 it gets none.",
        ),
        field(
            "state",
            ValueForm::Choice(&[
                ("enabled", "takes new connections"),
                ("drain", "keeps the connections it has, for up to `drain_limit`, and takes no new ones"),
                ("disabled", "has no connections: both ends of those it had are reset"),
            ]),
            Value("enabled"),
            "\"drain\"",
            "Whether it takes connections.",
        ),
        field(
            "backup",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether it takes new connections only while no backend of its service or group that is no backup does: all are \
             down, disabled or have weight 0.",
        ),
        field(
            "connections_max",
            ValueForm::Integer { min: 0, max: 1_000_000 },
            Value("0"),
            "200",
            "Connections that it may have at a time, of all workers together, before it gets no new ones; of HTTP services \
             requests. 0: any number. New ones go to other backends then; where all have as many as they may, they are refused, \
             or wait ([service.queue]). What there is already goes on.",
        ),
    ],
};
