//! Bounds of services whose connections end at Hairpin's own sockets: HTTPS, and HTTP in clear text that is terminated.

use super::Bound::{Number, Option, Time};
use super::{Group, http_refusals, limit, series};
use crate::config::reference::{HTTP_LIMITS, HTTPS, MIRROR, QUEUE};
use crate::run::limits::BACKLOG;
use hairpin_core::l7::proxy_protocol;
use hairpin_core::l7::splice::limits as splice;
use hairpin_https::limits::{self, http2, http2_backend};

const EVENTS: &[super::Counter] = &[series("hairpin_https_events_total")];
const REFUSED: &str = "The start or the reload is refused, with the file and what is wrong with it.";
const STALLED: &str = "The sender waits until some of it has gone on (flow control).";
const FLOOD: &str = "The connection is ended (ENHANCE_YOUR_CALM), counted as `http2-floods`.";

pub(super) const HTTPS_SERVICES: Group = Group {
    title: "HTTPS services",
    doc: "Services whose connections end at sockets of Hairpin's own: `https`, and `http` with `http2`, TLS or HTTP/2 to backends. \
          The bounds of heads, bodies and times above hold for them too.",
    limits: &[
        limit(
            "connections to an HTTPS service that wait to be accepted, for each core and endpoint",
            Number(BACKLOG as u64, "connections"),
            &[],
            "The kernel drops further SYNs, and clients send them again (`TcpExtListenOverflows` of `nstat`). It lowers the \
             bound to `net.core.somaxconn`.",
        ),
        limit(
            "header of the PROXY protocol that a connection from a network of `accept_proxy` begins with",
            Number(proxy_protocol::READ_MAX as u64, "bytes"),
            EVENTS,
            "The connection is closed, counted as `proxy-header-invalid`.",
        ),
        limit(
            "such a header of version 1",
            Number(proxy_protocol::READ_V1_MAX as u64, "bytes"),
            EVENTS,
            "The connection is closed, counted as `proxy-header-invalid`.",
        ),
        limit(
            "time for such a header and a handshake with a client of an HTTPS service",
            Option(&HTTPS, "handshake_timeout", ""),
            EVENTS,
            "The connection is closed, counted as `handshake-slow`.",
        ),
        limit(
            "time in which a client that speaks clear text to an HTTPS service takes its answer",
            Time(limits::TOLD_WITHIN),
            &[],
            "The connection is closed.",
        ),
        limit(
            "subject of a client's certificate in `{client_subject}`",
            Number(limits::SUBJECT_BYTES_MAX as u64, "bytes"),
            EVENTS,
            "The subject is left out, counted as `client-subject-too-long`.",
        ),
        limit("file of certificates or of a key", Number(limits::FILE_BYTES_MAX, "bytes"), &[], REFUSED),
        limit("certificates of a service", Number(limits::CERTIFICATES_MAX as u64, "certificates"), &[], REFUSED),
        limit("certificates of one chain", Number(limits::CHAIN_MAX as u64, "certificates"), &[], REFUSED),
        limit(
            "bytes that are read from a client behind the last response of a connection by HTTP/1.1",
            Number(limits::LINGER_BYTES_MAX as u64, "bytes"),
            &[],
            "The connection is closed, and the client may be told so by RST.",
        ),
        limit(
            "body of an answer of `forward_auth` that refuses a request",
            Number(limits::DENIED_BYTES_MAX as u64, "bytes"),
            &[http_refusals("authentication-failed")],
            "The client gets 503, counted as `authentication-failed`.",
        ),
        limit(
            "fields of such an answer that a request goes on with (`copy_headers`)",
            Number(limits::COPIED_BYTES_MAX as u64, "bytes"),
            &[http_refusals("authentication-failed")],
            "The client gets 503, counted as `authentication-failed`.",
        ),
        limit(
            "copies of requests (`mirror` of a route) on their way from one runtime",
            Option(&MIRROR, "concurrent", "copies"),
            EVENTS,
            "No copy is made, counted as `mirror-dropped`.",
        ),
        limit(
            "bytes of the response to such a copy that are read",
            Number(limits::MIRRORED_BYTES_MAX as u64, "bytes"),
            &[],
            "The connection to the backend is closed.",
        ),
        limit(
            "silence of a tunnel (WebSocket), unless `idle_timeout` is longer",
            Time(limits::TUNNEL_SILENCE),
            &[],
            "Both ends are closed.",
        ),
        limit(
            "requests of a group with a queue that wait for a backend with room, on each core",
            Option(&QUEUE, "requests_max", "requests"),
            &[http_refusals("backends-full")],
            "503.",
        ),
        limit(
            "time that a request waits for a backend with room",
            Option(&QUEUE, "timeout", ""),
            &[http_refusals("queue-timeout")],
            "503.",
        ),
        limit(
            "requests that wait until their credentials are checked (`basic`), on each core",
            Number(limits::CHECKS_MAX as u64, "requests"),
            &[http_refusals("authentication-busy")],
            "503.",
        ),
        limit(
            "credentials of a `users_file` that are remembered to be right, on each core",
            Number(limits::REMEMBERED_MAX as u64, "credentials"),
            &[],
            "The oldest are forgotten, and checked again.",
        ),
        limit(
            "streams of an HTTP/2 connection that are open or still served",
            Option(&HTTPS, "streams_max", "streams"),
            EVENTS,
            "The stream is refused (REFUSED_STREAM), counted as `http2-refused-streams`.",
        ),
        limit(
            "bytes of a request's body that a client has sent by HTTP/2 and that have not gone on to the backend, on one stream",
            Number(http2::STREAM_WINDOW as u64, "bytes"),
            &[],
            STALLED,
        ),
        limit(
            "such bytes on all streams of a client's connection",
            Number(http2::CONNECTION_WINDOW as u64, "bytes"),
            &[],
            STALLED,
        ),
        limit(
            "bytes of a response that wait for a client of HTTP/2, on one stream; fewer if `streams_max` is above 128",
            Number(http2::SEND_BUFFER as u64, "bytes"),
            &[],
            "The backend is not read until some of it has gone on.",
        ),
        limit(
            "such bytes on all streams of a client's connection, with up to 512 streams",
            Number(http2::SEND_BUFFERS as u64, "bytes"),
            &[],
            "The backends are not read until some of it has gone on.",
        ),
        limit(
            "frame of HTTP/2 from a client",
            Number(http2::FRAME_BYTES_MAX as u64, "bytes"),
            EVENTS,
            "The connection is ended (FRAME_SIZE_ERROR), counted as `http2-malformed`.",
        ),
        limit(
            "streams that a client resets within 10 s, beyond those that came to their end",
            Number(http2::RESETS_MAX, "streams"),
            EVENTS,
            "The connection is ended (ENHANCE_YOUR_CALM), counted as `http2-resets-excessive`.",
        ),
        limit(
            "streams that a client has reset and that wait to be accepted, or for frames on their way",
            Number(http2::RESET_STREAMS_MAX as u64, "streams"),
            EVENTS,
            "The connection is ended (ENHANCE_YOUR_CALM), counted as `http2-resets-excessive`.",
        ),
        limit(
            "frames without a head or data (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA) of a client within 10 s",
            Number(http2::IDLE_FRAMES_MAX, "frames"),
            EVENTS,
            FLOOD,
        ),
        limit(
            "such frames beyond that, for each frame with a head or data of either side",
            Number(http2::IDLE_FRAMES_EACH, "frames"),
            EVENTS,
            FLOOD,
        ),
        limit(
            "time for the preface of an HTTP/2 connection, and for a header block",
            Option(&HTTP_LIMITS, "head_timeout", ""),
            EVENTS,
            "The connection is closed, counted as `http2-slow`.",
        ),
        limit(
            "time in which an HTTP/2 client takes nothing of what its connection has for it",
            Option(&HTTP_LIMITS, "send_timeout", ""),
            &[http_refusals("send-timeout")],
            "The connection is closed.",
        ),
        limit(
            "time without streams after GOAWAY on an HTTP/2 connection",
            Time(splice::CLOSING_TIMEOUT),
            EVENTS,
            "The connection is closed, counted as `http2-unclosed`.",
        ),
        limit(
            "bytes of a request by HTTP/2 that are read behind its response",
            Number(http2::DISCARDED_MAX as u64, "bytes"),
            &[],
            "The stream is reset (NO_ERROR).",
        ),
        limit("time in which they are read", Time(http2::DISCARDED_WITHIN), &[], "The stream is reset (NO_ERROR)."),
        limit(
            "interim responses of a backend to a request by HTTP/2",
            Number(http2::INTERIM_MAX as u64, "responses"),
            &[http_refusals("bad-response")],
            "502.",
        ),
        limit(
            "requests of a connection to a backend of HTTP/2 at a time; fewer if the backend says so",
            Number(http2_backend::STREAMS_MAX as u64, "requests"),
            &[],
            "Another connection is opened.",
        ),
        limit(
            "bytes of a response that such a backend has sent and that have not gone on to the client",
            Number(http2_backend::STREAM_WINDOW as u64, "bytes"),
            &[],
            STALLED,
        ),
        limit(
            "bytes of a request that wait for such a backend",
            Number(http2_backend::SEND_BUFFER as u64, "bytes"),
            &[],
            "The client is not read until some of it has gone on.",
        ),
        limit(
            "header list, or trailers, of a response of such a backend",
            Number(http2_backend::HEADER_LIST_MAX as u64, "bytes"),
            &[http_refusals("backend-closed")],
            "502, or a reset where the response has begun.",
        ),
        limit(
            "TLS sessions with backends of an HTTPS service or group",
            Number(limits::SESSIONS_MAX as u64, "sessions"),
            &[],
            "The oldest give way. The next handshake with their backend is a full one.",
        ),
        limit(
            "requests sent again for the status of their response",
            Option(&HTTP_LIMITS, "retry_percent", "% of requests, and 10"),
            EVENTS,
            "The client gets the response that there is.",
        ),
        limit(
            "such requests that no others have earned, for each service and core",
            Number(limits::SPARE as u64, "requests"),
            EVENTS,
            "The client gets the response that there is, counted as `retry-denied`.",
        ),
        limit(
            "such requests that are saved, for each service and core",
            Number(limits::SAVED_MAX as u64, "requests"),
            &[],
            "Further requests earn none.",
        ),
    ],
};
