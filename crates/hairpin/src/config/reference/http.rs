//! The sections about HTTP and TLS services as a whole.

use super::Fallback::{From, Required, Value};
use super::route::EDITS;
use super::{DAY_MS, ReferenceField, ReferenceSection, ValueForm, field};

pub(super) const WAIT: ValueForm = ValueForm::Duration { min_ms: 100, max_ms: DAY_MS };

const PROXY_PROTOCOL: ReferenceField = field(
    "proxy_protocol",
    ValueForm::Choice(&[("off", "with what the client sends"), ("v1", "as text"), ("v2", "in binary")]),
    Value("off"),
    "\"v2\"",
    "Whether connections to backends begin with the client's address, in the PROXY protocol. Backends must expect it; \
     checks do not send it, so give them a `port` of their own.",
);
const TIMESTAMPS: &str = "Clients are offered TCP timestamps (RFC 7323), and backends those of clients that take them: both ends measure the way, \
     and recover sooner from losses. Of backends that decline them bodies stay in software: `false` is better there. Without \
     effect where an engine cannot translate them: cards' do not.";
const CONNECT_TIMEOUT: &str = "From the SYN to a backend until it has answered; then another one is tried.";
const CONNECT_TRIES: ValueForm = ValueForm::Integer { min: 1, max: 16 };

/// `[service.http]`
pub const HTTP: ReferenceSection = ReferenceSection {
    header: "[service.http]",
    doc: "What an HTTP service, also one with protocol https, does with all of its requests. `offload_bytes_min` and \
          `timestamps` mean nothing with https or `http2`: connections end in user space.",
    fields: &[
        field(
            "server_timing",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether responses say which backend was chosen, and how long that took (`Server-Timing`).",
        ),
        field(
            "request_id",
            ValueForm::Text,
            From("none"),
            "\"X-Request-Id\"",
            "The field in which backends get an id of each request: 32 hexadecimal digits made here, those of its trace if it has \
             one. Clients in `trusted` of [service.http.forwarded] may give an id of at most 128 visible ASCII characters, which \
             goes on then; that of others is dropped. The access log has it as `request_id`.",
        ),
        field(
            "tracing",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether requests have a place in a trace, and sampled ones a span, where there is [tracing]. `traceparent` goes on as \
             it is otherwise.",
        ),
        field(
            "upgrade",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether requests for an upgrade (WebSocket) are passed on, and the connection is a tunnel once the backend \
             agrees; else they are answered with 501.",
        ),
        field(
            "redirect_to_https",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether requests that no route takes are answered with 308 to `https://`, the same host, path and query. The \
             service has no backends of its own then. Not with protocol https.",
        ),
        field(
            "connect",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether CONNECT is passed on to the backend that its route leads to; else it is answered with 501.",
        ),
        field(
            "http2",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether clients may also speak HTTP/2 in clear text, without having asked for it (prior knowledge). All of the \
             service's connections end at sockets of this host then: `mode` and `unknown` are not said, and `[pool]` is not \
             needed. Services with protocol https have `http2` of [service.https].",
        ),
        PROXY_PROTOCOL,
        field(
            "reuse",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether idle connections to backends are kept for requests of other clients. Never with `proxy_protocol`.",
        ),
        field(
            "offload_bytes_min",
            ValueForm::IntegerOrAuto { min: 0, max: 1 << 50 },
            Value("auto"),
            "1048576",
            "Bodies of at least so many bytes leave the worker and go through the kernel's rules. `\"auto\"`: what the \
             measured costs of packets and rules say.",
        ),
        field("timestamps", ValueForm::Boolean, Value("true"), "false", TIMESTAMPS),
        field("request_headers", ValueForm::Tables, From("none"), "", "See [service.route.request_headers]."),
        field("response_headers", ValueForm::Tables, From("none"), "", "See [service.route.request_headers]."),
        field("forwarded", ValueForm::Tables, From("each field's default"), "", "See [service.http.forwarded]."),
        field("sticky", ValueForm::Tables, From("none"), "", "See [service.http.sticky]."),
        field("limits", ValueForm::Tables, From("each field's default"), "", "See [service.http.limits]."),
    ],
};

/// `[service.http.request_headers]`
pub const HTTP_REQUEST_EDITS: ReferenceSection =
    ReferenceSection { header: "[service.http.request_headers]", doc: EDITS.doc, fields: EDITS.fields };

/// `[service.http.response_headers]`
pub const HTTP_RESPONSE_EDITS: ReferenceSection =
    ReferenceSection { header: "[service.http.response_headers]", doc: EDITS.doc, fields: EDITS.fields };

/// `[service.http.forwarded]`
pub const FORWARDED: ReferenceSection = ReferenceSection {
    header: "[service.http.forwarded]",
    doc: "Fields that tell backends about the client. These fields are dropped from what a client sends, unless it is one \
          of `trusted`.",
    fields: &[
        field(
            "x_forwarded_for",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "`X-Forwarded-For`: the client's address.",
        ),
        field(
            "x_forwarded_proto",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "`X-Forwarded-Proto`: `http`, or `https` in services with that protocol.",
        ),
        field(
            "x_forwarded_host",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "`X-Forwarded-Host`: the host asked for.",
        ),
        field("x_real_ip", ValueForm::Boolean, Value("false"), "true", "`X-Real-IP`: the client's address."),
        field("forwarded", ValueForm::Boolean, Value("false"), "true", "`Forwarded` (RFC 7239): all of that in one."),
        field(
            "trusted",
            ValueForm::Networks,
            Value("[]"),
            "[\"10.0.1.0/24\"]",
            "Proxies in front of Hairpin: what they say in these fields is kept, and added to.",
        ),
    ],
};

/// `[service.http.sticky]`
pub const STICKY: ReferenceSection = ReferenceSection {
    header: "[service.http.sticky]",
    doc: "Clients stay with their backend: a response sets a cookie that names it (by a keyed hash; it does not \
          show which it is), and requests with that cookie go there as long as it takes requests.",
    fields: &[
        field("cookie", ValueForm::Text, Required, "\"backend\"", "The cookie's name, up to 64 characters."),
        field("path", ValueForm::Text, Value("/"), "\"/app\"", "Its path."),
        field("domain", ValueForm::Text, From("the host asked for alone"), "\"example.com\"", "Its domain."),
        field(
            "max_age",
            ValueForm::Duration { min_ms: 1000, max_ms: 400 * DAY_MS },
            From("as long as the browser runs"),
            "\"1h\"",
            "How long clients keep it; whole seconds.",
        ),
        field(
            "secure",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether it is sent over TLS only: for services behind something that speaks TLS for them. The default of \
             services with protocol https is true.",
        ),
        field("http_only", ValueForm::Boolean, Value("true"), "false", "Whether it is kept from scripts."),
        field(
            "same_site",
            ValueForm::Choice(&[
                ("lax", "also when the client follows a link from elsewhere"),
                ("strict", "only from the same site"),
                ("none", "always; needs `secure`"),
            ]),
            Value("lax"),
            "\"strict\"",
            "Whether it is sent with requests that come from other sites.",
        ),
    ],
};

/// `[service.http.limits]`
pub const HTTP_LIMITS: ReferenceSection = ReferenceSection {
    header: "[service.http.limits]",
    doc: "Bounds of an HTTP service. A request beyond one is answered with the status given below, and its \
          connection closed.",
    fields: &[
        field(
            "head_bytes_max",
            ValueForm::Integer { min: 256, max: 16_384 },
            Value("16384"),
            "8192",
            "Bytes of a head with its first line. Requests: 431; responses: 502.",
        ),
        field(
            "fields_max",
            ValueForm::Integer { min: 1, max: 128 },
            Value("100"),
            "50",
            "Fields of a head. Requests: 431; responses: 502.",
        ),
        field(
            "target_bytes_max",
            ValueForm::Integer { min: 64, max: 8192 },
            Value("8192"),
            "2048",
            "Bytes of what is asked for, path and query: 414.",
        ),
        field(
            "body_bytes_max",
            ValueForm::Integer { min: 0, max: 1 << 50 },
            Value("0"),
            "10000000",
            "Bytes of a request's body, without the framing of chunks: 413, or reset if the response has begun. 0: any \
             number.",
        ),
        field(
            "head_timeout",
            WAIT,
            Value("10s"),
            "\"5s\"",
            "From a request's first byte until its head is complete: 408, and a client that does not acknowledge that is \
             forgotten after 3 s.",
        ),
        field("idle_timeout", WAIT, Value("75s"), "\"30s\"", "Between requests: closed."),
        field(
            "body_timeout",
            WAIT,
            Value("60s"),
            "\"20s\"",
            "Without a byte of a request's body: 408, or closed if the response has begun.",
        ),
        field(
            "send_timeout",
            WAIT,
            Value("60s"),
            "\"30s\"",
            "A client has acknowledged nothing new of a response that waits for it, because its window is closed or it does \
             not answer: reset, counted as `send-timeout`. While the kernel forwards the response, this is checked only \
             every half of this time, so the reset comes up to half of it later. Hairpin's own responses: 10 s at most.",
        ),
        field("connect_timeout", WAIT, Value("3s"), "\"1s\"", CONNECT_TIMEOUT),
        field(
            "connect_tries",
            CONNECT_TRIES,
            Value("3"),
            "2",
            "Backends tried for a request: 502, or 504 if the last was silent.",
        ),
        field(
            "response_timeout",
            WAIT,
            Value("60s"),
            "\"30s\"",
            "From a request's last byte until the response's first: 504.",
        ),
        field(
            "retry_percent",
            ValueForm::Integer { min: 0, max: 100 },
            Value("20"),
            "10",
            "How many of a hundred requests may go to another backend for the `retry_status` of their route, and ten more: \
             backends that are all ill are not sent twice as much. 0: none.",
        ),
        field(
            "requests_max",
            ValueForm::Integer { min: 0, max: 4_000_000_000 },
            Value("0"),
            "1000",
            "Requests on one connection of a client; the last one's response says that it closes. 0: any number.",
        ),
        field(
            "idle_per_backend_max",
            ValueForm::Integer { min: 0, max: 65_535 },
            Value("256"),
            "64",
            "Idle connections that a worker keeps to one backend; beyond that the oldest is closed.",
        ),
    ],
};

/// `[service.https]`
pub const HTTPS: ReferenceSection = ReferenceSection {
    header: "[service.https]",
    doc: "How a service with protocol https speaks TLS with its clients. TLS ends here: requests go to backends in clear \
          text, as those of an http service do, unless [service.backend_tls] says otherwise.",
    fields: &[
        field(
            "certificates",
            ValueForm::Texts,
            From("none; one of `certificates` and `acme` must be given"),
            "[\"/etc/hairpin/tls/www.pem\", \"/etc/letsencrypt/live\"]",
            "Where certificates are, absolute paths, 1024 at most: files in PEM with a chain and its private key, or with a \
             chain whose key is beside it in a file with the same name and the extension `.key`; or directories. Of a \
             directory, every `*.pem` and `*.crt` is read like that, and every subdirectory with `fullchain.pem` and \
             `privkey.pem`, as certbot keeps them. Clients get the certificate that fits the name they ask for; without one, \
             the first.",
        ),
        field(
            "acme",
            ValueForm::Texts,
            From("none"),
            "[\"example.com\", \"www.example.com\"]",
            "Names that certificates are obtained for automatically, and renewed, each by itself, as [acme] says; 100 at most. \
             Until there is a first one, clients get those of `certificates`, or one that signs itself.",
        ),
        field(
            "http2",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether HTTP/2 is offered (`h2` in ALPN) beside HTTP/1.1.",
        ),
        field(
            "versions_min",
            ValueForm::Choice(&[("1.2", "TLS 1.2 and 1.3"), ("1.3", "TLS 1.3 alone")]),
            Value("1.2"),
            "\"1.3\"",
            "The lowest version of TLS that is spoken.",
        ),
        field(
            "client_certificates",
            ValueForm::Choice(&[
                ("off", "they are not asked for one"),
                ("optional", "they are asked for one; one that is not valid ends the handshake"),
                ("required", "they are asked for one; without a valid one the handshake ends"),
            ]),
            Value("off"),
            "\"required\"",
            "Whether clients show certificates. Needs `client_roots`, unless it is off.",
        ),
        field(
            "client_roots",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/tls/clients.pem\"",
            "The file in PEM with the CAs that sign clients' certificates, an absolute path. Needs `client_certificates`.",
        ),
        field(
            "handshake_timeout",
            WAIT,
            Value("10s"),
            "\"5s\"",
            "From the connection until the TLS handshake is complete: closed.",
        ),
        field(
            "streams_max",
            ValueForm::Integer { min: 1, max: 1000 },
            Value("100"),
            "50",
            "HTTP/2 streams that are open at a time on one connection: further ones are refused (REFUSED_STREAM).",
        ),
        field(
            "accept_proxy",
            ValueForm::Networks,
            Value("[]"),
            "[\"10.0.1.0/24\"]",
            "Proxies in front of Hairpin: each of their connections must begin with the client's address, in the PROXY protocol \
             (version 1 or 2, up to 536 bytes), or it is closed. That address is the client's from then on. From elsewhere no \
             such header is understood.",
        ),
    ],
};

/// `[service.backend_tls]`
pub const BACKEND_TLS: ReferenceSection = ReferenceSection {
    header: "[service.backend_tls]",
    doc: "How an HTTP or HTTPS service speaks TLS, 1.2 or 1.3, with its backends. Without this table requests go to them in \
          clear text. With it, a service with protocol http ends connections at this host's sockets, as `http2` of \
          [service.http] has it. A backend whose handshake fails counts as one that cannot be connected to. \
          What `proxy_protocol` sends goes before TLS, in clear text. \
          Groups have the same unless they have a table of their own. Files are read as those of [service.https] are: before \
          anything changes, and again when they change.",
    fields: &[
        field(
            "enabled",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether the backends speak TLS. `false` is for a group of a service whose other backends do.",
        ),
        field(
            "roots",
            ValueForm::Texts,
            Value("system"),
            "[\"/etc/hairpin/tls/backends.pem\"]",
            "The CAs that sign the backends' certificates: files in PEM, absolute paths, 64 at most. `\"system\"` is \
             `/etc/ssl/certs/ca-certificates.crt`.",
        ),
        field(
            "name",
            ValueForm::Text,
            From("the backend's address"),
            "\"shop.internal\"",
            "What the backends' certificates are for: a name, which is asked for (SNI), or an address. Without it each \
             backend's certificate must have the backend's address.",
        ),
        field(
            "verify",
            ValueForm::Boolean,
            Value("true"),
            "false",
            "Whether the backends' certificates are verified. `false` is for tests: any host on the way \
             to a backend can then read and change what is sent.",
        ),
        field(
            "certificate",
            ValueForm::Text,
            From("none"),
            "\"/etc/hairpin/tls/client.pem\"",
            "The certificate that is shown to backends that ask for one: a file in PEM, an absolute path, with a chain and \
             its private key, or with a chain whose key is beside it in a file with the extension `.key`.",
        ),
    ],
};

/// `[service.tls]`
pub const TLS: ReferenceSection = ReferenceSection {
    header: "[service.tls]",
    doc: "What a TLS service does with all of its connections. TLS is not ended here: the ClientHello is read and passed on.",
    fields: &[
        PROXY_PROTOCOL,
        field(
            "hello_bytes_max",
            ValueForm::Integer { min: 512, max: 16_384 },
            Value("16384"),
            "8192",
            "Bytes of a ClientHello; beyond that the connection is reset.",
        ),
        field("hello_timeout", WAIT, Value("10s"), "\"5s\"", "Until it is complete; then the connection is reset."),
        field("connect_timeout", WAIT, Value("3s"), "\"1s\"", CONNECT_TIMEOUT),
        field("connect_tries", CONNECT_TRIES, Value("3"), "2", "Backends tried for a connection; then it is reset."),
        field(
            "offload_bytes_min",
            ValueForm::IntegerOrAuto { min: 0, max: 1 << 50 },
            Value("auto"),
            "1048576",
            "Connections leave the worker and go through the kernel's rules after this many bytes in one direction. \
             `\"auto\"`: what the measured costs of packets and rules say.",
        ),
        field("timestamps", ValueForm::Boolean, Value("true"), "false", TIMESTAMPS),
    ],
};
