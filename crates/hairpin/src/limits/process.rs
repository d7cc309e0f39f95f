//! Bounds of the process: control, health checks, metrics, captures.

use super::Bound::{Number, Option, Time};
use super::{Counter, Group, limit, series};
use crate::access_log::limits as access_log;
use crate::capture::limits as capture;
use crate::config::limits as config;
use crate::config::reference::{ACCESS_LOG, LIMITS, RESOLVER, TRACING};
use crate::control;
use crate::events;
use crate::health::limits as health;
use crate::metrics::limits as metrics;
use crate::names::limits as names;
use crate::run::limits;
use crate::spans::limits as spans;

const fn closed(reason: &'static str) -> Counter {
    Counter::of("hairpin_metrics_connections_closed_total", "reason", reason)
}

const RECORDS_LOST: &[Counter] =
    &[series("hairpin_access_log_records_lost_total"), Counter::of("hairpin_spans_lost_total", "reason", "ring-full")];
const LINES_LOST: &[Counter] = &[series("hairpin_access_log_lines_lost_total")];
const SPANS_QUEUE_FULL: &[Counter] = &[Counter::of("hairpin_spans_lost_total", "reason", "queue-full")];
const SPANS_UNREACHABLE: &[Counter] = &[Counter::of("hairpin_spans_lost_total", "reason", "unreachable")];
const RELOAD_FAILED: &[Counter] = &[Counter::of("hairpin_reloads_total", "result", "failure")];
const ORDER_FAILED: &[Counter] = &[Counter::of("hairpin_acme_orders_total", "result", "failure")];
const LOOKUP_FAILED: &[Counter] = &[Counter::of("hairpin_name_lookups_total", "result", "failure")];
const ADDRESSES_REFUSED: &[Counter] = &[Counter::of("hairpin_name_addresses", "state", "refused")];
const NO_STATUS: &[Counter] = &[Counter::of("hairpin_metrics_answers_total", "code", "503")];

pub(super) const PROCESS: Group = Group {
    title: "The process",
    doc: "",
    limits: &[
        limit(
            "commands that wait for a worker",
            Number(limits::COMMANDS_MAX as u64, "commands"),
            RELOAD_FAILED,
            "The reload or change is refused. Only reloads are counted.",
        ),
        limit(
            "time in which a worker applies a command",
            Time(limits::COMMAND_PATIENCE),
            RELOAD_FAILED,
            "The reload or change fails, and the log names the worker. Only reloads are counted.",
        ),
        limit(
            "time for a reload, a change or a hand-over",
            Time(limits::CHANGE_PATIENCE),
            &[],
            "The command that asked for it fails; what was begun goes on.",
        ),
        limit(
            "records of exchanges and connections that wait for the access log and for tracing, each worker",
            Option(&ACCESS_LOG, "buffer", "bytes"),
            RECORDS_LOST,
            "Records that find no room have no line and no span. No packet waits.",
        ),
        limit(
            "exchanges that have begun and whose texts the access log keeps, each worker",
            Number(access_log::TEXTS_MAX as u64, "exchanges"),
            &[],
            "The oldest exchange's texts are forgotten: its line has no method, target and host, and it has no span.",
        ),
        limit(
            "bytes of those texts, each worker",
            Number(access_log::TEXTS_BYTES_MAX as u64, "bytes"),
            &[],
            "Likewise.",
        ),
        limit(
            "wait for an output of the access log that has failed",
            Time(access_log::RETRY_AFTER),
            LINES_LOST,
            "Lines are lost meanwhile; a warning once a minute.",
        ),
        limit(
            "time for the access log's last lines when the process ends",
            Time(access_log::PATIENCE),
            RECORDS_LOST,
            "Records that are still in a ring are counted and have no line; a warning says how many.",
        ),
        limit(
            "spans that wait for their export",
            Option(&TRACING, "queue", "spans"),
            SPANS_QUEUE_FULL,
            "Spans that find no room are lost. No packet waits; a warning once a minute.",
        ),
        limit(
            "time for a request to the collector of spans",
            Option(&TRACING, "timeout", ""),
            SPANS_UNREACHABLE,
            "It is tried again after a pause that doubles up to 30 s, or is as long as the collector asks for.",
        ),
        limit(
            "time in which a batch of 512 spans at most is tried again",
            Time(spans::RETRY_FOR),
            SPANS_UNREACHABLE,
            "The batch is lost, and the next one is tried; a warning once a minute.",
        ),
        limit(
            "pause that the collector of spans may ask for",
            Time(spans::PAUSE_MAX),
            &[],
            "It is asked again after this time.",
        ),
        limit(
            "answer of the collector of spans",
            Number(spans::ANSWER_BYTES_MAX as u64, "bytes"),
            SPANS_UNREACHABLE,
            "The request counts as one without an answer.",
        ),
        limit(
            "time for the export of what is left when the process ends",
            Time(spans::PATIENCE),
            &[],
            "The spans that are left are lost, and the log says how many.",
        ),
        limit(
            "addresses of a name",
            Option(&RESOLVER, "addresses_max", "addresses"),
            ADDRESSES_REFUSED,
            "Those beyond are left out; what was there before stays.",
        ),
        limit(
            "targets of SRV records of a name whose addresses are looked up",
            Number(names::TARGETS_MAX as u64, "targets"),
            &[],
            "Those of the worst priority and the lowest weight are left out.",
        ),
        limit(
            "time for a request to a DNS server",
            Option(&RESOLVER, "timeout", ""),
            LOOKUP_FAILED,
            "The next server is asked, then all again as `retries` says. Then the last answer is kept.",
        ),
        limit(
            "time for a look-up with all its requests",
            Time(names::LOOKUP_TIME_MAX),
            LOOKUP_FAILED,
            "The last answer is kept, and the name is asked for again after a pause that doubles.",
        ),
        limit(
            "look-ups under way",
            Number(names::IN_FLIGHT_MAX as u64, "look-ups"),
            &[],
            "Further names wait for their turn.",
        ),
        limit(
            "time between two changes of backends by other answers",
            Time(names::GATHER),
            &[],
            "What changes meanwhile comes into force with the next one.",
        ),
        limit(
            "time in which a start or a reload waits for the first answers of new names",
            Time(names::FIRST_PATIENCE),
            LOOKUP_FAILED,
            "It goes on without them: a name without an answer has no backends yet.",
        ),
        limit(
            "file with the last answers for names",
            Number(names::FILE_BYTES_MAX, "bytes"),
            &[],
            "A start does not read what is beyond, and begins as if there were no file.",
        ),
        limit(
            "names of all services that certificates are obtained for",
            Number(config::ACME_NAMES_TOTAL_MAX as u64, "names"),
            &[],
            "The configuration is refused; likewise past 100 names of one service.",
        ),
        limit(
            "time for a request to an ACME CA",
            Time(hairpin_acme::REQUEST_TIMEOUT),
            ORDER_FAILED,
            "The order fails, and is tried again later.",
        ),
        limit(
            "answer of an ACME CA",
            Number(hairpin_acme::ANSWER_BYTES_MAX as u64, "bytes"),
            ORDER_FAILED,
            "The order fails, and is tried again later.",
        ),
        limit(
            "time for an order of a certificate; there is one at a time",
            Time(hairpin_acme::ORDER_TIMEOUT),
            ORDER_FAILED,
            "The order fails, and is tried again later.",
        ),
        limit(
            "wait after a failed order",
            Time(hairpin_acme::BACK_OFF_MAX),
            ORDER_FAILED,
            "It doubles from a minute to this. Longer, up to a day, only if the CA asks for it.",
        ),
        limit(
            "time for a status",
            Time(limits::STATUS_PATIENCE),
            NO_STATUS,
            "The command fails; `/metrics` answers 503.",
        ),
        limit("time in which all workers start", Time(limits::START_PATIENCE), &[], "The process ends with an error."),
        limit(
            "time in which a new process prepares, and in which it takes over",
            Time(limits::HANDOVER_PATIENCE),
            &[],
            "The new process is ended, and the old one goes on.",
        ),
        limit(
            "time in which the old process of an upgrade serves connections that end at its sockets",
            Option(&LIMITS, "upgrade_drain_limit", ""),
            &[],
            "They end, and the log says how many.",
        ),
        limit(
            "old processes of upgrades that serve at a time",
            Number(limits::GENERATIONS_MAX as u64, "processes"),
            &[series("hairpin_https_events_total")],
            "The oldest is ended with the connections that it still has.",
        ),
        limit(
            "time in which an old process of an upgrade ends when it is told to",
            Time(limits::GENERATION_END_PATIENCE),
            &[],
            "It is killed.",
        ),
        limit(
            "time in which an earlier process releases its lock",
            Time(limits::LOCK_PATIENCE),
            &[],
            "`hairpin run` ends with an error that names the process.",
        ),
        limit(
            "clients of the control socket",
            Number(control::CLIENTS_MAX as u64, "clients"),
            &[],
            "Another one is turned away.",
        ),
        limit(
            "request on the control socket",
            Number(control::REQUEST_BYTES_MAX, "bytes"),
            &[],
            "The connection is closed.",
        ),
        limit("answer on the control socket", Number(control::ANSWER_BYTES_MAX, "bytes"), &[], "The command fails."),
        limit(
            "silence of a client of the control socket",
            Time(control::CLIENT_PATIENCE),
            &[],
            "The connection is closed.",
        ),
        limit(
            "connections in one page of a listing",
            Number(limits::PAGE_MAX as u64, "connections"),
            &[],
            "The next page goes on; `hairpin connections` asks for it.",
        ),
        limit(
            "time in which one page of a listing is searched",
            Time(limits::SEARCH_MAX),
            &[],
            "The page ends with what was found, and the next page goes on.",
        ),
        limit(
            "questions about connections of HTTP and TLS services that wait for a worker",
            Number(limits::QUERIES_MAX as u64, "questions"),
            &[],
            "The command fails and names the worker.",
        ),
        limit("time for such a question", Time(limits::QUERY_PATIENCE), &[], "The command fails and names the worker."),
        limit("health checks in flight", Number(health::IN_FLIGHT_MAX as u64, "checks"), &[], "The next check waits."),
        limit(
            "head of a response to a health check",
            Number(health::HEAD_BYTES_MAX as u64, "bytes"),
            &[Counter::of("hairpin_health_checks_total", "result", "failure")],
            "The check fails.",
        ),
        limit(
            "body of a response to a health check",
            Number(health::BODY_BYTES_MAX as u64, "bytes"),
            &[],
            "What is behind that is not searched.",
        ),
        limit(
            "datagram that answers a health check",
            Number(health::ANSWER_DATAGRAM_BYTES_MAX as u64, "bytes"),
            &[],
            "What is behind that is not searched.",
        ),
        limit(
            "clients of the metrics server",
            Number(metrics::CONNECTIONS_MAX as u64, "connections"),
            &[closed("gave-way"), closed("refused")],
            "The oldest connection without a request is closed. If there is none, the new one is.",
        ),
        limit(
            "head of a request to the metrics server",
            Number(metrics::HEAD_BYTES_MAX as u64, "bytes"),
            &[closed("malformed")],
            "The connection is closed.",
        ),
        limit(
            "fields of such a head",
            Number(metrics::HEADERS_MAX as u64, "fields"),
            &[closed("malformed")],
            "The connection is closed.",
        ),
        limit(
            "time for such a head",
            Time(metrics::HEAD_PATIENCE),
            &[closed("timeout")],
            "The connection is closed. It is counted if it has had no request yet.",
        ),
        limit(
            "time for an answer of the metrics server",
            Time(metrics::EXCHANGE_PATIENCE),
            &[closed("timeout")],
            "The connection is closed.",
        ),
        limit(
            "requests on a connection to the metrics server",
            Number(metrics::REQUESTS_MAX as u64, "requests"),
            &[],
            "The connection is closed behind the last answer.",
        ),
        limit(
            "time in which a connection to the metrics server takes requests",
            Time(metrics::CONNECTION_PATIENCE),
            &[],
            "The connection is closed behind the answer under way.",
        ),
        limit(
            "statuses in memory for slow readers of metrics",
            Number(metrics::ALIVE_MAX as u64, "statuses"),
            &[],
            "Clients get the newest of them.",
        ),
        limit(
            "events that the page of the metrics server shows",
            Number(metrics::EVENTS_MAX as u64, "events"),
            &[],
            "Older ones are left out; `hairpin events` has them.",
        ),
        limit(
            "age of what the page of the metrics server shows of offload",
            Time(metrics::OFFLOAD_FRESH),
            &[],
            "It is made anew; but for ten times as long as that takes, the last one is shown.",
        ),
        limit(
            "connections that a capture tells apart",
            Number(capture::CONNECTIONS_MAX as u64, "connections"),
            &[],
            "Others are left out, and `hairpin capture` says so.",
        ),
        limit(
            "packets that a capture holds until it knows their connection",
            Number(capture::PACKETS_MAX as u64, "packets"),
            &[],
            "Those whose connection is not known are left out; `hairpin capture` says how many at its end.",
        ),
        limit(
            "bytes of these packets",
            Number(capture::BYTES_MAX as u64, "bytes"),
            &[],
            "Those whose connection is not known are left out; `hairpin capture` says how many at its end.",
        ),
        limit(
            "a file of events, of which there are two",
            Number(events::FILE_BYTES_MAX, "bytes"),
            &[],
            "It takes the place of the older one.",
        ),
        limit(
            "text of an event",
            Number(events::MESSAGE_BYTES_MAX as u64, "bytes"),
            &[],
            "What is beyond is not kept; the log has it.",
        ),
        limit(
            "events of a process that does not have its instance yet",
            Number(limits::EARLY_EVENTS_MAX as u64, "events"),
            &[],
            "Further ones are not kept; the log has them.",
        ),
        limit(
            "VIPs, addresses or senders that `hairpin decapsulate` is given",
            Number(hairpin_linux::decapsulate::NETWORKS_MAX as u64, "networks"),
            &[],
            "It does not start.",
        ),
    ],
};
