//! Bounds of the API.

use super::Bound::{Number, Time};
use super::{Counter, Group, limit};
use crate::api::limits as api;

const fn closed(reason: &'static str) -> Counter {
    Counter::of("hairpin_api_connections_closed_total", "reason", reason)
}

const fn answered(code: &'static str) -> Counter {
    Counter::of("hairpin_api_answers_total", "code", code)
}

pub(super) const API: Group = Group {
    title: "The API",
    doc: "",
    limits: &[
        limit(
            "clients of the API on its Unix socket, and as many by TLS",
            Number(api::CONNECTIONS_MAX as u64, "connections"),
            &[closed("gave-way"), closed("refused")],
            "The oldest connection without a request is closed. If there is none, the new one is.",
        ),
        limit(
            "time for a TLS handshake of the API",
            Time(api::HANDSHAKE_PATIENCE),
            &[closed("timeout")],
            "The connection is closed.",
        ),
        limit("tokens of the API", Number(api::TOKENS_MAX as u64, "tokens"), &[], "The configuration is refused."),
        limit(
            "lines of the log about clients that the API refuses",
            Time(api::TOLD_WITHIN),
            &[answered("401"), closed("handshake")],
            "One line in this time; the next one says how many clients had none.",
        ),
        limit(
            "head of a request to the API",
            Number(api::HEAD_BYTES_MAX as u64, "bytes"),
            &[closed("malformed")],
            "The connection is closed.",
        ),
        limit(
            "fields of a head of the API",
            Number(api::HEADERS_MAX as u64, "fields"),
            &[closed("malformed")],
            "The connection is closed.",
        ),
        limit(
            "time for a head of the API",
            Time(api::HEAD_PATIENCE),
            &[closed("timeout")],
            "The connection is closed. It is counted if it has had no request yet.",
        ),
        limit(
            "body of a request to the API, and the configuration that it makes",
            Number(api::BODY_BYTES_MAX, "bytes"),
            &[answered("413")],
            "413; nothing changes.",
        ),
        limit("time for a body of the API", Time(api::BODY_PATIENCE), &[answered("408")], "408; nothing changes."),
        limit(
            "objects and lists in each other in a body of the API",
            Number(api::DEPTH_MAX as u64, "levels"),
            &[answered("400")],
            "400; nothing changes.",
        ),
        limit(
            "changes of a transaction of the API",
            Number(api::OPERATIONS_MAX as u64, "changes"),
            &[answered("400")],
            "400; nothing changes.",
        ),
        limit(
            "mistakes that an answer of the API tells",
            Number(api::PROBLEMS_MAX as u64, "mistakes"),
            &[],
            "Further ones are not told.",
        ),
        limit(
            "time for an exchange of the API behind its head",
            Time(api::EXCHANGE_PATIENCE),
            &[closed("timeout")],
            "The connection is closed. A change that was begun goes on; the log has it.",
        ),
        limit(
            "requests on a connection to the API",
            Number(api::REQUESTS_MAX as u64, "requests"),
            &[],
            "The connection is closed behind the last answer.",
        ),
        limit(
            "time in which a connection to the API takes requests",
            Time(api::CONNECTION_PATIENCE),
            &[],
            "The connection is closed behind the answer under way.",
        ),
        limit(
            "certificates that clients of the API upload",
            Number(api::CERTIFICATES_MAX as u64, "certificates"),
            &[answered("409")],
            "409; nothing changes.",
        ),
        limit(
            "file that keeps what the API changed",
            Number(api::KEPT_BYTES_MAX, "bytes"),
            &[answered("409")],
            "409; nothing changes.",
        ),
    ],
};
