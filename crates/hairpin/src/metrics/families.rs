//! Every metric, once: its name, type, labels, meaning, and which numbers of a status it is made of.
//!
//! The exposition and the table in `docs/reference/metrics.md` are written from here. How many series there are follows from
//! the configuration and from lists of reasons in the code, never from what packets or clients say.

mod acme;
mod api;
mod emit;
mod http;
mod https;
mod monitor;
mod ports;
mod resolver;
mod server;
mod services;
mod tracing;

use super::counts::MetricsCounts;
use super::labels::Names;
use super::reasons::{drop_reasons, event_names, offload_reasons, reasons};
use super::text::PREFIX;
use crate::status::{Count, OffloadStatus, Status};
use emit::{
    backend_states, backends, checked, ejection_counts, ejections, engine, fullness, health_checks, offload, paths,
    reloaded, services, workers,
};

/// A metric family.
#[derive(Debug)]
pub struct MetricFamily {
    /// Its name, without prefix and suffix.
    pub(super) name: &'static str,
    /// Its type.
    pub(super) kind: MetricKind,
    /// The names of its labels.
    pub(super) labels: &'static [&'static str],
    /// Its meaning: one line without quotes and backslashes, so that it needs no escaping.
    pub(super) help: &'static str,
    /// Its samples.
    pub(super) samples: fn(&MetricView<'_>, &mut Emit<'_>),
}

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    /// A total that grows; its series end in `_total`.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
    /// Always 1; what it says is in the labels. Its series ends in `_info`.
    Info,
}

/// A sample's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum SampleValue<'a> {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// A distribution: the sum of all, and in each bucket its upper end and how many are in it and not in an earlier one.
    Histogram {
        /// The sum.
        sum: f64,
        /// The buckets, in order.
        buckets: &'a [(f64, u64)],
    },
}

impl From<u64> for SampleValue<'_> {
    fn from(count: u64) -> Self {
        SampleValue::Count(count)
    }
}

impl From<bool> for SampleValue<'_> {
    fn from(is: bool) -> Self {
        SampleValue::Count(u64::from(is))
    }
}

impl From<f64> for SampleValue<'_> {
    fn from(number: f64) -> Self {
        SampleValue::Number(number)
    }
}

/// Takes a sample: the values of the family's labels, and its own.
pub(super) type Emit<'a> = dyn FnMut(&[&str], SampleValue<'_>) + 'a;

/// The input from which samples are made.
#[derive(Debug)]
pub(super) struct MetricView<'a> {
    pub(super) status: &'a Status,
    pub(super) names: Names,
    pub(super) counts: &'a MetricsCounts,
}

impl MetricFamily {
    /// The name of its series, without what a histogram adds.
    pub fn series(&self) -> String {
        let suffix = match self.kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        format!("{PREFIX}_{}{suffix}", self.name)
    }
}

/// The only engine there is, as a label.
const ENGINE: &str = "kernel";
/// The states of a backend.
const BACKEND_STATES: [&str; 4] = ["enabled", "drain", "disabled", "removed"];

const NONE: &[&str] = &[];
const BACKEND: &[&str] = &["service", "backend"];
const BACKEND_PATH: &[&str] = &["service", "backend", "path"];
const WORKER: &[&str] = &["worker"];

macro_rules! family {
    ($kind:ident, $name:literal, $labels:expr, $help:literal, $samples:expr) => {
        MetricFamily { name: $name, kind: MetricKind::$kind, labels: $labels, help: $help, samples: $samples }
    };
}

use family;

/// All of them, in the order in which they are written.
pub fn all() -> impl Iterator<Item = &'static MetricFamily> {
    GENERAL
        .iter()
        .chain(services::FAMILIES)
        .chain(http::FAMILIES)
        .chain(https::FAMILIES)
        .chain(acme::FAMILIES)
        .chain(resolver::FAMILIES)
        .chain(tracing::FAMILIES)
        .chain(monitor::FAMILIES)
        .chain(ports::FAMILIES)
        .chain(server::FAMILIES)
        .chain(api::FAMILIES)
}

const GENERAL: &[MetricFamily] = &[
    // The process.
    family!(Info, "build", &["version", "name"], "Version, and the instance's name; always 1.", |view, emit| {
        emit(&[&view.status.version, &view.status.instance], SampleValue::Count(1));
    }),
    family!(Gauge, "start_time_seconds", NONE, "When the process started, in seconds since 1970.", |view, emit| {
        emit(&[], view.counts.started(view.status.uptime_s).into());
    }),
    family!(Gauge, "uptime_seconds", NONE, "Seconds since the process started.", |view, emit| {
        emit(&[], view.status.uptime_s.into());
    }),
    family!(
        Gauge,
        "adopted_connections",
        NONE,
        "Connections of TCP and UDP services that this process took over from the one before it.",
        |view, emit| emit(&[], view.status.adopted_connections.into())
    ),
    family!(
        Gauge,
        "adopted_http_connections",
        &["fate"],
        "Connections of HTTP and TLS services that the process before had: clients' and backends' that go on (`client`, \
         `backend`); those that were reset because it ended in the middle of changing them (`interrupted`), because \
         their service or backend is not there any more (`without-service`), or because another worker has them now \
         (`misplaced`); entries that made no sense (`invalid`).",
        |view, emit| {
            let adopted = &view.status.adopted_http;
            emit(&["client"], adopted.clients.into());
            emit(&["backend"], adopted.backend_connections.into());
            emit(&["interrupted"], adopted.interrupted.into());
            emit(&["without-service"], adopted.without_service.into());
            emit(&["misplaced"], adopted.misplaced.into());
            emit(&["invalid"], adopted.invalid.into());
        }
    ),
    family!(
        Info,
        "connection_table",
        &["method"],
        "How workers find a packet's connection: the connection table's name; always 1.",
        |view, emit| emit(&[&view.status.connection_table], SampleValue::Count(1))
    ),
    // Room.
    family!(
        Gauge,
        "table_entries",
        NONE,
        "Entries of the connection table: connections, and those that are over and kept for a while (time-wait).",
        |view, emit| emit(&[], view.status.capacity.entries.into())
    ),
    family!(
        Gauge,
        "table_connections",
        NONE,
        "Connections in the table, those that are over not among them.",
        |view, emit| {
            emit(&[], view.status.capacity.connections.into());
        }
    ),
    family!(Gauge, "table_connections_peak", NONE, "The most entries there were in the table.", |view, emit| {
        emit(&[], view.status.capacity.connections_peak.into());
    }),
    family!(Gauge, "table_connections_max", NONE, "Entries there can be in the table.", |view, emit| {
        emit(&[], view.status.capacity.connections_max.into());
    }),
    family!(Counter, "table_insert_failures", NONE, "Connections refused because the table was full.", |view, emit| {
        emit(&[], view.status.capacity.table_full_total.into())
    }),
    family!(
        Counter,
        "evictions",
        &["reason"],
        "Connections given up for newer ones before they were established; the only reason is table-full.",
        |view, emit| emit(&["table-full"], view.status.capacity.evicted_total.into())
    ),
    // The access log.
    family!(Counter, "access_log_lines", NONE, "Lines written to the access log, if there is one.", |view, emit| {
        view.status.access_log.iter().for_each(|log| emit(&[], log.lines_total.into()));
    }),
    family!(
        Counter,
        "access_log_lines_lost",
        NONE,
        "Lines that could not be written: a full disk, a syslog server that does not take them.",
        |view, emit| view.status.access_log.iter().for_each(|log| emit(&[], log.lines_lost_total.into()))
    ),
    family!(
        Counter,
        "access_log_records_lost",
        NONE,
        "Records that found a worker's ring full, so that they have no line; buffer in [access_log] makes it larger.",
        |view, emit| view.status.access_log.iter().for_each(|log| emit(&[], log.records_lost_total.into()))
    ),
    // Services and backends.
    family!(Counter, "connections_opened", BACKEND, "New connections.", |view, emit| {
        backends(view, emit, |backend| backend.connections_total.into());
    }),
    family!(
        Gauge,
        "connections",
        BACKEND,
        "Connections to the backend now, also those of an HTTP or TLS service that are idle. A connection counts from its first \
         packet (of a client of an HTTP or TLS service: from its first data) until both ends have closed it, one has reset \
         it, or its timeout is over; not in time-wait.",
        |view, emit| backends(view, emit, |backend| backend.connections.into())
    ),
    family!(
        Gauge,
        "service_connections",
        &["service"],
        "Connections of clients to the service now, counted as in connections; of a group, those to its backends.",
        |view, emit| services(view, emit, |service| service.connections.into())
    ),
    family!(
        Counter,
        "connections_established",
        &["service"],
        "Connections that were established: TCP handshake done, or datagrams in both directions.",
        |view, emit| services(view, emit, |service| service.established_total.into())
    ),
    family!(
        Counter,
        "connections_refused",
        &["service"],
        "Connections refused, for whatever reason; drops have the reasons.",
        |view, emit| services(view, emit, |service| service.refused_total.into())
    ),
    family!(
        Counter,
        "packets",
        BACKEND_PATH,
        "Packets forwarded, both directions: by a worker (software) or by the kernel alone (offloaded). A super-packet \
         counts as the segments it stands for.",
        |view, emit| paths(view, emit, |backend| [backend.software.packets, backend.offloaded.packets])
    ),
    family!(
        Counter,
        "bytes",
        BACKEND_PATH,
        "Bytes of the IP packets forwarded, by path like the packets.",
        |view, emit| paths(view, emit, |backend| [backend.software.bytes, backend.offloaded.bytes])
    ),
    family!(Gauge, "backend_weight", BACKEND, "Weight of the backend, as configured or overridden.", |view, emit| {
        backends(view, emit, |backend| u64::from(backend.weight).into());
    }),
    family!(
        Gauge,
        "backend_state",
        &["service", "backend", "state"],
        "1 for the state the backend is in, 0 for the others: enabled, drain (no new connections), disabled, removed \
         (from the configuration, and draining).",
        backend_states
    ),
    family!(
        Gauge,
        "backend_draining",
        BACKEND,
        "1 while the backend gets no new connections and keeps those it has, else 0.",
        |view, emit| backends(view, emit, |backend| matches!(&*backend.state, "drain" | "removed").into())
    ),
    // Health.
    family!(
        Gauge,
        "backend_up",
        BACKEND,
        "0 if health checks found the backend down, else 1. Backends without checks have no sample.",
        |view, emit| checked(view, emit, |backend| (backend.health.state != "down").into())
    ),
    family!(
        Gauge,
        "backend_health_changed_timestamp_seconds",
        BACKEND,
        "Since when the backend has been up or down, in seconds since 1970.",
        |view, emit| checked(view, emit, |backend| backend.health.since_unix_s.into())
    ),
    family!(
        Gauge,
        "backend_weight_share",
        BACKEND,
        "Share of its weight that the backend has, 0 to 1; below 1 while it starts slowly.",
        |view, emit| checked(view, emit, |backend| backend.health.weight_share.into())
    ),
    family!(
        Counter,
        "health_checks",
        &["service", "backend", "result"],
        "Health checks made, by result: success or failure.",
        health_checks
    ),
    family!(Gauge, "health_check_duration_seconds", BACKEND, "How long the last health check took.", |view, emit| {
        checked(view, emit, |backend| backend.health.last_duration_s.into())
    }),
    family!(
        Gauge,
        "backend_ejected",
        BACKEND,
        "1 while the backend is ejected as an outlier, else 0; of services with `outlier`.",
        |view, emit| ejections(view, emit, |ejection| ejection.ejected.into())
    ),
    family!(
        Counter,
        "backend_ejections",
        &["service", "backend", "result"],
        "Ejections of the backend as an outlier: done, or prevented by their bounds.",
        ejection_counts
    ),
    family!(
        Counter,
        "backend_handshakes_failed",
        BACKEND,
        "Handshakes of clients' connections that failed at the backend.",
        |view, emit| backends(view, emit, |backend| backend.health.handshakes_failed().into())
    ),
    // Workers.
    family!(Counter, "worker_busy_seconds", WORKER, "Processor time the worker has used.", |view, emit| {
        workers(view, emit, |worker| worker.busy_s.into());
    }),
    family!(
        Gauge,
        "worker_connections",
        WORKER,
        "Connections the worker tracks, those that are over not among them.",
        |view, emit| {
            workers(view, emit, |worker| worker.connections.into());
        }
    ),
    family!(
        Gauge,
        "worker_entries",
        WORKER,
        "Entries of the worker's connection table: connections, those that are over and kept for a while (time-wait), and \
         flows that are the kernel's own.",
        |view, emit| workers(view, emit, |worker| worker.entries.into())
    ),
    family!(
        Gauge,
        "worker_connections_max",
        WORKER,
        "Entries there can be in the worker's connection table.",
        |view, emit| {
            workers(view, emit, |worker| worker.connections_max.into());
        }
    ),
    family!(Gauge, "worker_passes", WORKER, "Flows the worker has recognised as the kernel's own.", |view, emit| {
        workers(view, emit, |worker| worker.passes.into())
    }),
    family!(
        Counter,
        "worker_frames",
        WORKER,
        "Frames handed to the worker; a super-packet is one frame.",
        |view, emit| workers(view, emit, |worker| worker.frames.into())
    ),
    family!(Counter, "worker_frames_forwarded", WORKER, "Frames the worker sent on.", |view, emit| {
        workers(view, emit, |worker| worker.forwarded.into());
    }),
    family!(Counter, "worker_frames_to_kernel", WORKER, "Frames the worker passed to the kernel.", |view, emit| {
        workers(view, emit, |worker| worker.to_kernel.into());
    }),
    family!(
        Counter,
        "worker_answers",
        WORKER,
        "Frames the worker answered itself, with RST or an ICMP error.",
        |view, emit| workers(view, emit, |worker| worker.answered.into())
    ),
    family!(Counter, "worker_icmp_errors", WORKER, "ICMP errors the worker translated.", |view, emit| {
        workers(view, emit, |worker| worker.icmp_errors.into());
    }),
    family!(Counter, "worker_fragmented", WORKER, "Packets the worker cut into fragments.", |view, emit| {
        workers(view, emit, |worker| worker.fragmented.into());
    }),
    family!(
        Counter,
        "worker_connections_revived",
        WORKER,
        "Connections that seemed over and went on.",
        |view, emit| workers(view, emit, |worker| worker.revived.into())
    ),
    family!(
        Counter,
        "worker_connections_evicted",
        WORKER,
        "Connections given up for newer ones before they were established, because the table was full.",
        |view, emit| workers(view, emit, |worker| worker.evicted.into())
    ),
    // Rules.
    family!(Gauge, "rules", &["engine"], "Rules in force or asked for.", |view, emit| {
        offload(view, emit, |offload| offload.rules.into());
    }),
    family!(Gauge, "rules_max", &["engine"], "Rules there can be, for each address family.", |view, emit| {
        offload(view, emit, |offload| offload.rules_max.into());
    }),
    family!(
        Gauge,
        "rules_full",
        &["engine"],
        "How full the fuller family's rules are: 0 there is room, 1 nearly full, 2 full.",
        |view, emit| emit(&[engine(view)], fullness(&view.status.capacity.rules_state).into())
    ),
    family!(Counter, "rules_installed", &["engine"], "Rules installed.", |view, emit| {
        offload(view, emit, |offload| offload.installed_total.into());
    }),
    family!(Counter, "rules_removed", &["engine"], "Rules removed.", |view, emit| {
        offload(view, emit, |offload| offload.removed_total.into());
    }),
    family!(
        Counter,
        "rule_refusals",
        &["engine", "reason"],
        "Rules or connections that were not offloaded although the policy wanted it, by reason.",
        |view, emit| { reasons(emit, &[engine(view)], &view.status.offload.not_offloaded, offload_reasons(), |n| *n) }
    ),
    family!(
        Histogram,
        "rule_insertion_seconds",
        &["engine"],
        "From the request for a rule to the engine's answer.",
        |view, emit| {
            let OffloadStatus { latency, latency_sum_s, .. } = &view.status.offload;
            emit(&[engine(view)], SampleValue::Histogram { sum: *latency_sum_s, buckets: latency });
        }
    ),
    // Packets that came to nothing, and others worth knowing about.
    family!(
        Counter,
        "drops",
        &["reason"],
        "Packets dropped: kernel.* by the BPF programs, worker.* by a worker, device.* between the two.",
        |view, emit| reasons(emit, &[], &view.status.drops, drop_reasons(), |count: &Count| count.total)
    ),
    family!(
        Counter,
        "events",
        &["event"],
        "What else became of packets that no rule forwarded.",
        |view, emit| reasons(emit, &[], &view.status.events, event_names(), |count: &Count| count.total)
    ),
    // Reloads.
    family!(Counter, "reloads", &["result"], "Reloads of the configuration, by result.", |view, emit| {
        emit(&["success"], view.status.reloads.succeeded_total.into());
        emit(&["failure"], view.status.reloads.failed_total.into());
    }),
    family!(
        Gauge,
        "last_reload_timestamp_seconds",
        NONE,
        "When the last reload was, in seconds since 1970. No sample before the first.",
        |view, emit| reloaded(view, emit, view.status.reloads.last_unix_s.into())
    ),
    family!(
        Gauge,
        "last_reload_successful",
        NONE,
        "1 if the last reload was applied, 0 if it was refused. No sample before the first.",
        |view, emit| reloaded(view, emit, view.status.reloads.last_succeeded.into())
    ),
];

/// The table of all metrics, as it stands in `docs/reference/metrics.md`.
pub fn markdown() -> String {
    let mut page = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in all() {
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        };
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        page += &format!("| `{}` | {kind} | {} | {} |\n", family.series(), labels.join(", "), family.help);
    }
    page
}
