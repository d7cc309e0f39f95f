//! Bounds of HTTP and TLS services.

use super::Bound::{Number, OneFor, Option, Time};
use super::{Group, drops, events, http_refusals, limit, series};
use crate::config::reference::{HTTP_LIMITS, LIMITS, TLS};
use crate::run::limits::SPLICES_MAX;
use hairpin_core::l7::splice::limits;
use hairpin_core::l7::{body, client_hello, cookie, head};
use hairpin_core::limit::{ENTRIES_OF_SET, TRIES_MAX};

const DISPLACED: &[super::Counter] = &[super::Counter::of("hairpin_limit_decisions_total", "decision", "displaced")];
const BUFFERS: &[super::Counter] = &[series("hairpin_http_buffers_exhausted_total"), http_refusals("no-room")];
const NO_BUFFER: &str = "A smaller or bigger buffer serves where it can. Else the segment is dropped and its sender repeats \
                         it; where not even a head fits, 503 or a reset.";
const RESET: &str = "The connection is reset.";

pub(super) const HTTP: Group = Group {
    title: "HTTP and TLS services",
    doc: "What this page calls a reset of an HTTP connection goes to both of its ends.",
    limits: &[
        limit(
            "client connections of a worker, unless `limits.http_connections_max` says how many; never more than its part of \
             `connections_max`",
            Number(SPLICES_MAX as u64, "connections"),
            &[events("worker.evicted"), drops("worker.table-full")],
            "A connection between two requests or in time-wait gives way, if a search of bounded length finds one. If not, \
             the first data of the new connection is dropped, and its client sends it again; with `when_full = \"reset\"` \
             it is answered with RST.",
        ),
        limit(
            "clients that limits of all services remember",
            Option(&LIMITS, "limited_clients_max", "clients"),
            DISPLACED,
            "The client whose burst comes back next is forgotten: its burst is whole again. A connection that `concurrent` would count is \
             admitted and not counted.",
        ),
        limit(
            "clients that have the same place there",
            Number(ENTRIES_OF_SET as u64, "clients"),
            DISPLACED,
            "As above: of those that have the same place.",
        ),
        limit(
            "attempts to count a request of a client that other workers count requests of at the same moment",
            Number(TRIES_MAX as u64, "attempts"),
            &[],
            "The request is admitted.",
        ),
        limit(
            "backend connections of a worker, likewise",
            Number(SPLICES_MAX as u64, "connections"),
            &[http_refusals("no-room")],
            "An idle connection to the same backend serves, if there is one; else 503.",
        ),
        limit(
            "small buffers of a worker, for heads and for bytes that Hairpin repeats itself",
            OneFor(limits::CONNECTIONS_EACH[0] as u64, "per client connection"),
            BUFFERS,
            NO_BUFFER,
        ),
        limit(
            "medium buffers of a worker",
            OneFor(limits::CONNECTIONS_EACH[1] as u64, "per client connection"),
            BUFFERS,
            NO_BUFFER,
        ),
        limit(
            "big buffers of a worker",
            OneFor(limits::CONNECTIONS_EACH[2] as u64, "per client connection"),
            BUFFERS,
            NO_BUFFER,
        ),
        limit("bytes of a small buffer", Number(limits::SIZES[0] as u64, "bytes"), &[], "The next size is taken."),
        limit("bytes of a medium buffer", Number(limits::SIZES[1] as u64, "bytes"), &[], "The next size is taken."),
        limit(
            "bytes of a big buffer: also interim responses that a client has not acknowledged",
            Number(limits::SIZES[2] as u64, "bytes"),
            &[],
            "The rest is dropped, and its sender repeats it.",
        ),
        limit(
            "bytes of a client that wait for a backend",
            Number(limits::INPUT_MAX as u64, "bytes"),
            &[],
            "The rest is dropped, and the client repeats it.",
        ),
        limit(
            "head of a request",
            Option(&HTTP_LIMITS, "head_bytes_max", "bytes"),
            &[http_refusals("too-large")],
            "431; of a response 502, counted as `bad-response`.",
        ),
        limit(
            "fields of a request's head",
            Option(&HTTP_LIMITS, "fields_max", "fields"),
            &[http_refusals("too-large")],
            "431; of a response 502, counted as `bad-response`.",
        ),
        limit(
            "target of a request",
            Option(&HTTP_LIMITS, "target_bytes_max", "bytes"),
            &[http_refusals("too-large")],
            "414.",
        ),
        limit("method of a request", Number(head::METHOD_MAX as u64, "bytes"), &[http_refusals("malformed")], "400."),
        limit(
            "body of a request, without the framing of chunks",
            Option(&HTTP_LIMITS, "body_bytes_max", "bytes"),
            &[http_refusals("too-large")],
            "413, or a reset where the response has begun.",
        ),
        limit(
            "extensions of a chunk",
            Number(body::EXTENSION_MAX as u64, "bytes"),
            &[http_refusals("malformed")],
            "400, or a reset where the response has begun.",
        ),
        limit(
            "trailers of a body",
            Number(body::TRAILERS_MAX as u64, "bytes"),
            &[http_refusals("too-large")],
            "431, or a reset where the response has begun.",
        ),
        limit(
            "record of the chunks that a backend has not acknowledged",
            Number(limits::RECORDS_BYTES_MAX as u64, "bytes"),
            &[series("hairpin_http_unrecorded_total")],
            "The segment is dropped and the client repeats it.",
        ),
        limit("a ClientHello", Option(&TLS, "hello_bytes_max", "bytes"), &[], RESET),
        limit("records of a ClientHello", Number(client_hello::RECORDS_MAX as u64, "records"), &[], RESET),
        limit("extensions of a ClientHello", Number(client_hello::EXTENSIONS_MAX as u64, "extensions"), &[], RESET),
        limit(
            "application protocols of a ClientHello",
            Number(client_hello::PROTOCOLS_MAX as u64, "protocols"),
            &[],
            RESET,
        ),
        limit("time for a ClientHello", Option(&TLS, "hello_timeout", ""), &[http_refusals("slow")], RESET),
        limit("time for a request's head", Option(&HTTP_LIMITS, "head_timeout", ""), &[http_refusals("slow")], "408."),
        limit(
            "silence between two requests",
            Option(&HTTP_LIMITS, "idle_timeout", ""),
            &[],
            "The connection is closed.",
        ),
        limit(
            "silence within a request's body",
            Option(&HTTP_LIMITS, "body_timeout", ""),
            &[http_refusals("slow")],
            "408. Where the response has begun, the connection is reset, which is not counted.",
        ),
        limit(
            "silence of a client that a response waits for",
            Option(&HTTP_LIMITS, "send_timeout", ""),
            &[http_refusals("send-timeout")],
            RESET,
        ),
        limit(
            "time in which a client takes a response of Hairpin's own, and an end closes",
            Time(limits::CLOSING_TIMEOUT),
            &[http_refusals("send-timeout")],
            "The connection is reset. It is counted where the client's window was closed.",
        ),
        limit(
            "time for a handshake with a backend",
            Option(&HTTP_LIMITS, "connect_timeout", ""),
            &[http_refusals("connect-timeout"), series("hairpin_http_retries_total")],
            "Another backend is tried.",
        ),
        limit(
            "backends tried for a request",
            Option(&HTTP_LIMITS, "connect_tries", "backends"),
            &[http_refusals("connect-timeout"), http_refusals("unreachable")],
            "504 if the last backend was silent, else 502.",
        ),
        limit(
            "time for a handshake with a backend of a TLS service",
            Option(&TLS, "connect_timeout", ""),
            &[http_refusals("connect-timeout"), series("hairpin_http_retries_total")],
            "Another backend is tried.",
        ),
        limit(
            "backends tried for a connection of a TLS service",
            Option(&TLS, "connect_tries", "backends"),
            &[http_refusals("connect-timeout"), http_refusals("unreachable")],
            RESET,
        ),
        limit(
            "time from a request's end to the response",
            Option(&HTTP_LIMITS, "response_timeout", ""),
            &[http_refusals("response-timeout")],
            "504.",
        ),
        limit(
            "requests on one client connection",
            Option(&HTTP_LIMITS, "requests_max", "requests"),
            &[],
            "The last response says that the connection closes.",
        ),
        limit(
            "idle connections of a worker to one backend",
            Option(&HTTP_LIMITS, "idle_per_backend_max", "connections"),
            &[],
            "The oldest is closed.",
        ),
        limit(
            "time that a connection to a backend is idle",
            Time(limits::IDLE_TIMEOUT),
            &[],
            "The connection is closed.",
        ),
        limit(
            "time that a closed connection is remembered (time-wait)",
            Time(limits::TIME_WAIT),
            &[],
            "The connection is forgotten.",
        ),
        limit(
            "repetitions of bytes that Hairpin has to repeat itself",
            Number(limits::RETRANSMITS_MAX as u64, "repetitions"),
            &[http_refusals("vanished"), series("hairpin_http_retransmitted_total")],
            RESET,
        ),
        limit(
            "repetitions of 408 to a client that does not acknowledge it",
            Number(limits::SLOW_RETRANSMITS_MAX as u64, "repetitions"),
            &[http_refusals("vanished"), series("hairpin_http_retransmitted_total")],
            RESET,
        ),
        limit(
            "time before the first repetition; each further one waits twice as long",
            Time(limits::RETRANSMIT_AFTER),
            &[series("hairpin_http_retransmitted_total")],
            "The bytes are repeated.",
        ),
        limit(
            "longest time before a repetition",
            Time(limits::RETRANSMIT_AFTER_MAX),
            &[series("hairpin_http_retransmitted_total")],
            "The bytes are repeated.",
        ),
        limit(
            "times that an end is asked for a packet, to be reset",
            Number(limits::ASKS_MAX as u64, "packets"),
            &[],
            "The connection is forgotten.",
        ),
        limit(
            "life of a SYN cookie",
            Time(cookie::LIFE_MAX),
            &[series("hairpin_http_cookies_invalid_total")],
            "The first data of the connection is dropped.",
        ),
        limit(
            "connections that have ended and are remembered while their cookies are good, for each connection there can be",
            Number(limits::ENDED_PER_CONNECTION as u64, "connections"),
            &[series("hairpin_http_ended_overwritten_total")],
            "An older one is forgotten: if the network repeats its first segment, its request is made again.",
        ),
        limit(
            "former configurations that exchanges end by",
            Number(limits::FORMERS_MAX as u64, "configurations"),
            &[],
            "An exchange that began with an older one ends without the edits of its route.",
        ),
        limit(
            "connections of a worker that are remembered because data came without their first segment",
            Number(limits::UNMATCHED_MAX as u64, "connections"),
            &[],
            "One takes the place of another. Data of the other one is answered with RST later, or not at all.",
        ),
    ],
};
