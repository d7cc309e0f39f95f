//! The sections about where requests go.

use super::Fallback::{From, Required, Value};
use super::http::{BACKEND_TLS, WAIT};
use super::outlier::{OUTLIER, QUEUE};
use super::service::{ALL_DOWN, BACKEND, BACKEND_PROTOCOL, BALANCE, HASH_NAME, HEALTH};
use super::{ReferenceField, ReferenceSection, ValueForm, field};

/// `[[service.group]]`
pub const GROUP: ReferenceSection = ReferenceSection {
    header: "[[service.group]]",
    doc: "Backends of an HTTP or TLS service beside those of the service itself; routes lead to them. Status, metrics and \
          `hairpin backend` call a group by its service's name and its own: `web/static`. Its backends are \
          [[service.group.backend]] with the fields of [[service.backend]], its checks [service.group.health] with those \
          of [service.health]; without that, they are the service's; [service.group.outlier] likewise. [service.group.backend_tls] has the fields of \
          [service.backend_tls], with `enabled = false` where the group's backends are sent clear text.",
    fields: &[
        field(
            "name",
            ValueForm::Name { length_max: 64 },
            Required,
            "\"static\"",
            "Its name, for routes; unique in its service. `own` is taken: it means the service's own backends.",
        ),
        field("balance", BALANCE, From("the service's"), "\"maglev\"", "How a backend of it is chosen."),
        field("hash_name", ValueForm::Text, From("the service's, with its `balance`"), "\"X-Tenant\"", HASH_NAME),
        field(
            "all_down",
            ALL_DOWN,
            From("the service's"),
            "\"use-all\"",
            "What becomes of requests while all its enabled backends are down; those refused are answered with 503.",
        ),
        field(
            "backends",
            ValueForm::Endpoints,
            Value("[]"),
            "[\"10.0.2.21:8080\"]",
            "Backends that need no more than address and port, or name and port. A group has at least one backend.",
        ),
        field("backend", ValueForm::Tables, From("none"), "", "See [[service.backend]]."),
        field(
            "backend_protocol",
            BACKEND_PROTOCOL,
            From("the service's"),
            "\"h2\"",
            "The protocol that its backends speak: see [[service]].",
        ),
        field("health", ValueForm::Tables, From("[service.health]"), "", "See [service.health]."),
        field("outlier", ValueForm::Tables, From("[service.outlier]"), "", "See [service.outlier]."),
        field("queue", ValueForm::Tables, From("[service.queue]"), "", "See [service.queue]."),
        field("backend_tls", ValueForm::Tables, From("[service.backend_tls]"), "", "See [service.backend_tls]."),
    ],
};

/// `[[service.group.backend]]`
pub const GROUP_BACKEND: ReferenceSection =
    ReferenceSection { header: "[[service.group.backend]]", doc: BACKEND.doc, fields: BACKEND.fields };

/// `[service.group.health]`
pub const GROUP_HEALTH: ReferenceSection =
    ReferenceSection { header: "[service.group.health]", doc: HEALTH.doc, fields: HEALTH.fields };

/// `[service.group.outlier]`
pub const GROUP_OUTLIER: ReferenceSection =
    ReferenceSection { header: "[service.group.outlier]", doc: OUTLIER.doc, fields: OUTLIER.fields };

/// `[service.group.queue]`
pub const GROUP_QUEUE: ReferenceSection =
    ReferenceSection { header: "[service.group.queue]", doc: QUEUE.doc, fields: QUEUE.fields };

/// `[service.group.backend_tls]`
pub const GROUP_BACKEND_TLS: ReferenceSection =
    ReferenceSection { header: "[service.group.backend_tls]", doc: BACKEND_TLS.doc, fields: BACKEND_TLS.fields };

const HOST: ReferenceField = field(
    "host",
    ValueForm::Texts,
    From("any"),
    "[\"example.com\", \"*.example.com\"]",
    "Hosts asked for, without port: names, `*.` and what all names below it end with, or addresses. In any case.",
);
const PATH: ReferenceField = field(
    "path",
    ValueForm::Texts,
    From("any"),
    "\"/favicon.ico\"",
    "Paths, exactly. Paths are compared as RFC 3986 normalises them: `/a/../b` and `/%62` are `/b`. The query is no part \
     of them. With more than one of `path`, `path_prefix` and `path_regex` given, one has to fit.",
);
const PATH_PREFIX: ReferenceField = field(
    "path_prefix",
    ValueForm::Texts,
    From("any"),
    "[\"/img/\", \"/css/\"]",
    "Beginnings of paths, byte by byte: `/api` is also the beginning of `/apist`, `/api/` is not one of `/api`.",
);
const PATH_REGEX: ReferenceField = field(
    "path_regex",
    ValueForm::Texts,
    From("any"),
    "'\\.(png|jpg)$'",
    "Regular expressions, one of which is found in the path: anywhere, unless anchored with `^` and `$`; no look-around, \
     no back references. Bounded: 1024 bytes, and 1 MiB for the automaton that is made of it.",
);
const METHOD: ReferenceField =
    field("method", ValueForm::Texts, From("any"), "[\"POST\", \"PUT\"]", "Methods, in capitals; GET includes HEAD.");
const HEADER: ReferenceField = field(
    "header",
    ValueForm::Map,
    From("any"),
    "{ X-Version = \"2\", Cookie = { prefix = \"beta=\" }, X-Old = false }",
    "Conditions on fields, all of which must hold: a text for a value, `{ prefix = \"...\" }` for the beginning of one, `true` for a \
     field that is there, `false` for one that is not. Of a field that is there more than once, one line has to fit.",
);
const QUERY: ReferenceField = field(
    "query",
    ValueForm::Map,
    From("any"),
    "{ lang = \"de\", debug = true }",
    "Conditions on the query's parameters, in the forms of `header`, compared byte by byte as they stand in the request.",
);
const CLIENT: ReferenceField = field(
    "client",
    ValueForm::Networks,
    From("any"),
    "[\"192.0.2.0/24\", \"2001:db8::/32\"]",
    "Networks or addresses of clients.",
);

/// `[[service.route]]`
pub const ROUTE: ReferenceSection = ReferenceSection {
    header: "[[service.route]]",
    doc: "Where requests of an HTTP service, or connections of a TLS service, go. The first route whose conditions all hold \
          is taken: `host` to `client` in HTTP services, `sni` and `alpn` in TLS services; one that asks for \
          nothing takes all. What no route takes goes to the service's own backends; without those, requests are answered \
          with 404 and TLS connections reset. A route leads to `group`, `groups`, `redirect` or `reply`, or else to the \
          service's own backends. 1024 at most. A reload that changes routes is in force for the next request.",
    fields: &[
        HOST,
        PATH,
        PATH_PREFIX,
        PATH_REGEX,
        METHOD,
        HEADER,
        QUERY,
        CLIENT,
        field(
            "sni",
            ValueForm::Texts,
            From("any"),
            "[\"example.com\", \"*.example.com\"]",
            "TLS: names of servers, one of which the client asks for; as with `host`.",
        ),
        field("alpn", ValueForm::Texts, From("any"), "[\"h2\"]", "TLS: protocols, one of which the client offers."),
        field(
            "group",
            ValueForm::Name { length_max: 64 },
            From("`own`"),
            "\"static\"",
            "The group that it leads to; `own`: the service's own backends.",
        ),
        field(
            "groups",
            ValueForm::Map,
            From("`group`"),
            "{ own = 9, canary = 1 }",
            "Several groups, each with its share, 1 to 65535.",
        ),
        field("redirect", ValueForm::Tables, From("none"), "", "See [service.route.redirect]."),
        field("reply", ValueForm::Tables, From("none"), "", "See [service.route.reply]."),
        field("mirror", ValueForm::Tables, From("none"), "", "See [service.route.mirror]."),
        field("forward_auth", ValueForm::Tables, From("[service.forward_auth]"), "", "See [service.forward_auth]."),
        field("basic", ValueForm::Tables, From("[service.basic]"), "", "See [service.basic]."),
        field(
            "replace_prefix",
            ValueForm::Text,
            From("the path goes on as it is"),
            "\"/v2/\"",
            "What replaces the matching `path_prefix` or `path` in the path that backends see.",
        ),
        field(
            "response_timeout",
            WAIT,
            From("`response_timeout` of [service.http.limits]"),
            "\"5m\"",
            "From a request's last byte until the response's first: 504.",
        ),
        field(
            "body_timeout",
            WAIT,
            From("`body_timeout` of [service.http.limits]"),
            "\"1h\"",
            "Without a byte of a body. Not for services that splice connections.",
        ),
        field(
            "retry_status",
            ValueForm::Statuses,
            From("none"),
            "\"502-504\"",
            "Statuses from 500 to 599 for which a request goes to another backend: one that can be repeated (GET, HEAD, \
             OPTIONS, TRACE, PUT, DELETE), while nothing of its body has been read from the client, within `retry_percent` \
             of [service.http.limits]. Not for services that splice connections.",
        ),
        field(
            "priority",
            ValueForm::Integer { min: 0, max: 9 },
            From("0"),
            "9",
            "Services whose connections end here: which of the requests that wait for a backend ([service.queue]) goes first, those of \
             the highest number.",
        ),
        field(
            "retries",
            ValueForm::Integer { min: 1, max: 10 },
            Value("1"),
            "2",
            "How often a request goes to another backend for `retry_status`.",
        ),
        field(
            "error_pages",
            ValueForm::Map,
            From("`error_pages` of the service"),
            "{ \"404\" = \"/etc/hairpin/404.html\", \"5xx\" = \"/etc/hairpin/5xx.html\" }",
            "As in [[service]]; what is not given here is that of the service. A `reply` keeps a `body` of its own.",
        ),
        field("cors", ValueForm::Tables, From("[service.cors]"), "", "See [service.cors]."),
        field("request_headers", ValueForm::Tables, From("none"), "", "See [service.route.request_headers]."),
        field("response_headers", ValueForm::Tables, From("none"), "", "See [service.route.request_headers]."),
    ],
};

/// `[service.route.redirect]`
pub const REDIRECT: ReferenceSection = ReferenceSection {
    header: "[service.route.redirect]",
    doc: "The client is sent elsewhere: `redirect = { status = 301, location = \"https://{host}{path}{query}\" }`.",
    fields: &[
        field("status", ValueForm::Integer { min: 301, max: 308 }, Value("302"), "301", "301, 302, 303, 307 or 308."),
        field(
            "location",
            ValueForm::Text,
            Required,
            "\"https://{host}{path}{query}\"",
            "Where to. `{scheme}`, `{host}` (without port), `{authority}` (with it), `{path}` and `{query}` (with its `?`) \
             are replaced by those of the request; `{{` and `}}` for braces.",
        ),
    ],
};

/// `[service.route.mirror]`
pub const MIRROR: ReferenceSection = ReferenceSection {
    header: "[service.route.mirror]",
    doc: "Copies of the route's requests go to a second group, too: `mirror = { group = \"shadow\", percent = 10 }`. Only requests \
          without a body are copied, no WebSockets. No client waits for a copy, and its response is thrown away. For services whose \
          connections end here: protocol https, or `http2` of [service.http].",
    fields: &[
        field("group", ValueForm::Name { length_max: 64 }, Required, "\"shadow\"", "The group that gets the copies."),
        field(
            "percent",
            ValueForm::Integer { min: 1, max: 100 },
            Value("100"),
            "10",
            "Of a hundred requests so many are copied.",
        ),
        field(
            "concurrent",
            ValueForm::Integer { min: 1, max: 10_000 },
            Value("64"),
            "16",
            "Copies that one runtime has on their way at most. Beyond that none is made, which `mirror-dropped` counts.",
        ),
    ],
};

/// `[service.route.reply]`
pub const REPLY: ReferenceSection = ReferenceSection {
    header: "[service.route.reply]",
    doc: "Hairpin answers by itself: `reply = { status = 200, body = \"ok\" }`.",
    fields: &[
        field("status", ValueForm::Integer { min: 200, max: 599 }, Required, "200", "The status."),
        field(
            "body",
            ValueForm::Text,
            From("the status and its meaning"),
            "\"ok\\n\"",
            "The body, plain text of 4096 bytes at most.",
        ),
    ],
};

/// `[service.route.request_headers]` and its like.
pub const EDITS: ReferenceSection = ReferenceSection {
    header: "[service.route.request_headers]",
    doc: "What is changed in requests that take the route: `request_headers = { set = { X-Tier = \"1\" }, remove = \
          [\"Cookie\"] }`. Removed first, then set, then added. [service.route.response_headers] is the same for \
          responses, [service.http.request_headers] and [service.http.response_headers] for all requests and responses \
          of the service, before what its routes change. Fields that frame messages or belong to one connection \
          (Content-Length, Transfer-Encoding, Connection, ...) are Hairpin's own.",
    fields: &[
        field(
            "set",
            ValueForm::Map,
            From("none"),
            "{ X-Client = \"{client_ip}\" }",
            "Fields that replace all of their name. In values `{client_ip}`, `{client_port}`, `{vip}`, `{vip_port}`, \
             `{scheme}`, `{service}` and `{backend}` are replaced by their values, in requests also `{host}`, `{authority}`, \
             `{method}`, `{path}` and `{query}`, and in https services `{client_subject}`, `{client_fingerprint}` (SHA-256) and \
             `{client_verify}` (`SUCCESS` or `NONE`) of the client's certificate; `{{` and `}}` for braces. A field whose \
             variables are all empty is left out.",
        ),
        field(
            "add",
            ValueForm::Map,
            From("none"),
            "{ Cache-Control = \"private\" }",
            "Fields that are added to what there is; a list of values for several of one name.",
        ),
        field("remove", ValueForm::Texts, From("none"), "[\"Server\"]", "Names of fields that are removed."),
    ],
};

/// `[service.route.response_headers]`
pub const RESPONSE_EDITS: ReferenceSection =
    ReferenceSection { header: "[service.route.response_headers]", doc: EDITS.doc, fields: EDITS.fields };

/// `[[service.access]]`
pub const ACCESS: ReferenceSection = ReferenceSection {
    header: "[[service.access]]",
    doc: "Who may have what of the service: the first rule whose conditions all hold decides; if none does, all may. Of http and \
          https services: which requests may pass, decided before any route, 1024 rules at most; a rule asks for the same as \
          [[service.route]]. Of tcp, udp and tls services: whose connections may begin, 16 rules at most, by `client` and \
          `client_file`. Connections that there are when a rule changes stay.",
    fields: &[
        field(
            "action",
            ValueForm::Choice(&[
                ("allow", "the request passes, the connection may begin"),
                (
                    "deny",
                    "the request is answered with `status`; the connection's packets are dropped, without an answer",
                ),
                (
                    "count",
                    "tcp, udp and tls: the rule decides nothing, but counts what it would have refused; a rule behind it decides",
                ),
            ]),
            Required,
            "\"deny\"",
            "What is decided.",
        ),
        field(
            "status",
            ValueForm::Integer { min: 400, max: 599 },
            Value("403"),
            "404",
            "http and https: the status for denied requests.",
        ),
        field(
            "client_file",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/blocked.txt\"",
            "tcp, udp and tls: an absolute path of a file with networks that count as if they stood in `client`, one a line; what \
             follows `#` or `;` is a comment. 100,000 in the rules of a service, 400,000 in those of all. It is read at the start \
             and at each reload.",
        ),
        field(
            "strict",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Paths with parameters (`/a;x/b`) or encoded slashes (`/a%2Fb`) can be read in more than one way. Every rule is \
             compared with all readings, and what one of them denies is denied. `true`: also, a request whose path fits \
             this rule in one reading and not in another is answered with 400.",
        ),
        HOST,
        PATH,
        PATH_PREFIX,
        PATH_REGEX,
        METHOD,
        HEADER,
        QUERY,
        CLIENT,
    ],
};

/// `[[service.limit]]`
pub const LIMIT: ReferenceSection = ReferenceSection {
    header: "[[service.limit]]",
    doc: "How much one client may ask for, 8 limits for a service. Each counts one thing: `requests` (http and https), `connections` that begin, \
          or `concurrent` connections. All limits of its kind count in their order, until one refuses; requests before access rules and \
          routes are asked. All workers count together, and reloads, upgrades and crashes do not begin anew. Connections of \
          a tcp or udp service with limits are set up by workers, whatever `set_up` says.",
    fields: &[
        field(
            "requests",
            ValueForm::Integer { min: 1, max: 1_000_000 },
            From("none"),
            "100",
            "http and https: requests of a client that are admitted within `within`, evenly: one is free again after each part of that \
             time. 1,000,000 a second at most.",
        ),
        field(
            "connections",
            ValueForm::Integer { min: 1, max: 1_000_000 },
            From("none"),
            "20",
            "Connections that a client may begin within `within`, likewise; of udp, flows.",
        ),
        field(
            "concurrent",
            ValueForm::Integer { min: 1, max: 1_000_000 },
            From("none"),
            "50",
            "Connections that a client may have at a time; of udp, flows. Those that are there when the limit is added are not counted.",
        ),
        field(
            "within",
            ValueForm::Duration { min_ms: 1, max_ms: 3_600_000 },
            Value("1s"),
            "\"1m\"",
            "The time for `requests` or `connections`.",
        ),
        field(
            "burst",
            ValueForm::Integer { min: 1, max: 4_000_000_000 },
            From("`requests` or `connections`"),
            "200",
            "How many of them a client may have at once that has had none for a while. All of them are free again after an hour at most.",
        ),
        field(
            "ipv4_prefix",
            ValueForm::Integer { min: 1, max: 32 },
            Value("32"),
            "24",
            "Bits of an IPv4 address that make a client: those that share them count as one.",
        ),
        field(
            "ipv6_prefix",
            ValueForm::Integer { min: 1, max: 128 },
            Value("64"),
            "56",
            "Bits of an IPv6 address that make a client. One that has a whole network can take any address in it.",
        ),
        field(
            "header",
            ValueForm::Text,
            From("none"),
            "\"X-Api-Key\"",
            "`requests`: the name of a field. Requests that have it are counted by its (first) value, whatever their address is; others by \
             address. Who sends another value is another client: have a limit by address as well, unless something behind checks \
             the values.",
        ),
        field(
            "action",
            ValueForm::Choice(&[
                (
                    "refuse",
                    "a request is answered with 429 and Retry-After, a connection with RST, a datagram with ICMP port unreachable",
                ),
                ("drop", "nothing is answered; the connection of a request is reset, over HTTP/2 its stream"),
            ]),
            Value("refuse"),
            "\"drop\"",
            "What becomes of what is beyond the limit. Where connections end at this host, one that is refused is reset in any case.",
        ),
        field(
            "dry_run",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Nothing is refused; what would have been is counted.",
        ),
    ],
};
