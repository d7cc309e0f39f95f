//! The fields of `hairpin status -o json` that tests and benchmarks read. Declared here once more, on purpose: a field that is
//! renamed there breaks its readers, and these.

use serde::Deserialize;
use std::collections::BTreeMap;

/// An instance at a moment.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// How its workers find a packet's connection.
    pub connection_table: String,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Its services.
    pub services: Vec<ServiceStatus>,
    /// The rules.
    pub offload: OffloadStatus,
    /// HTTP and TLS services, if there are any.
    pub http: Option<HttpStatus>,
    /// Look-ups of backends' names, if there are any.
    pub resolver: Option<ResolverStatus>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, Count>,
    /// Other fates of packets that no rule forwarded.
    pub events: BTreeMap<String, Count>,
    /// How full the tables are.
    pub capacity: CapacityStatus,
    /// Processes that have handed over, and still serve connections.
    #[serde(default)]
    pub draining: Vec<DrainingStatus>,
    /// Reloads so far.
    pub reloads: ReloadStatus,
    /// How this process began: `fresh`, `restart` or `upgrade`.
    pub began: String,
    /// Connections adopted from the process before.
    pub adopted_connections: u64,
    /// Its connections of HTTP and TLS services.
    pub adopted_http: AdoptedHttp,
}

/// Look-ups of names.
#[derive(Clone, Debug, Deserialize)]
pub struct ResolverStatus {
    /// Those that found addresses.
    pub lookups_found_total: u64,
    /// Those whose answer is that there are none.
    pub lookups_empty_total: u64,
    /// Those without an answer.
    pub lookups_failed_total: u64,
    /// Changes of backends.
    pub changes_applied_total: u64,
    /// Changes that could not come into force.
    pub changes_refused_total: u64,
    /// The names.
    pub names: Vec<NameStatus>,
}

/// A name of backends.
#[derive(Clone, Debug, Deserialize)]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// `waiting`, `resolved`, `stale` or `empty`.
    pub state: String,
    /// Addresses of its answer.
    pub addresses: Vec<String>,
    /// Addresses of it that are no backends.
    pub refused: u64,
}

/// A process that has handed over.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct DrainingStatus {
    /// The process.
    pub pid: u32,
    /// Clients' connections that are left.
    pub connections: u64,
}

/// What became of the connections of HTTP and TLS services that the process before had.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AdoptedHttp {
    /// Clients' connections that go on.
    pub clients: u64,
    /// Connections that were reset because the process before ended in the middle of changing them.
    pub interrupted: u64,
    /// Connections that were reset because another worker has them now.
    pub misplaced: u64,
    /// Entries that made no sense.
    pub invalid: u64,
}

/// HTTP and TLS services, all together.
#[derive(Clone, Debug, Deserialize)]
pub struct HttpStatus {
    /// Clients' connections now.
    pub clients: u64,
    /// Connections to backends now.
    pub backend_connections: u64,
    /// Idle ones.
    pub backend_connections_idle: u64,
    /// Requests.
    pub requests: Count,
    /// Backends that agreed to less, and were skipped for another.
    pub skipped_total: u64,
    /// Backends' connections without the timestamps that were offered.
    pub timestamps_declined_total: u64,
    /// Bodies that were handed to the engine.
    pub offloaded_total: u64,
    /// SYN cookies that workers sent (others are the kernel's).
    pub cookies_sent_total: u64,
    /// From how many bytes on that is done, where the configuration does not say.
    pub offload_bytes_min: u64,
    /// The value behind that: microseconds that a pair of rules costs a worker; 0: not measured yet.
    pub rule_pair_us: f64,
    /// Microseconds that a frame of a body costs a worker; 0: not measured yet.
    pub body_frame_us: f64,
    /// Bytes of such a frame.
    pub body_frame_bytes: u64,
}

/// How full the tables are.
#[derive(Clone, Debug, Deserialize)]
pub struct CapacityStatus {
    /// Connections now.
    pub connections: u64,
    /// The most there were.
    pub connections_peak: u64,
    /// Connections there can be.
    pub connections_max: u64,
    /// `ok`, `nearly-full` or `full`.
    pub connections_state: String,
    /// Connections refused because the table was full.
    pub table_full_total: u64,
    /// Connections not yet established that gave way to newer ones.
    pub evicted_total: u64,
}

/// Reloads.
#[derive(Clone, Debug, Deserialize)]
pub struct ReloadStatus {
    /// Those that were applied.
    pub succeeded_total: u64,
    /// Those that were refused.
    pub failed_total: u64,
    /// Why the last one was refused, if it was.
    pub last_error: String,
}

/// A total.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Count {
    /// How many there were.
    pub total: u64,
}

/// A worker.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkerStatus {
    /// Connections it tracks.
    pub connections: u64,
    /// Connections it can track.
    pub connections_max: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A service.
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// With direct server return: what packets to backends are wrapped in, if anything.
    pub encapsulation: Option<String>,
    /// Connections now.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
    /// Why it is not ready; empty if it is.
    #[serde(default)]
    pub not_ready: String,
    /// Traffic that the workers forwarded.
    pub software: Traffic,
    /// Traffic that the kernel forwarded by itself.
    pub offloaded: Traffic,
    /// Share of all its packets that was offloaded, 0 to 1.
    pub offloaded_share: f64,
    /// What its access rules have refused or counted.
    #[serde(default)]
    pub access: Vec<AccessStatus>,
    /// What its limits have decided.
    #[serde(default)]
    pub limits: Vec<LimitStatus>,
    /// Its backends.
    pub backends: Vec<BackendStatus>,
}

/// An access rule that refuses or counts.
#[derive(Clone, Debug, Deserialize)]
pub struct AccessStatus {
    /// Its number, from 1.
    pub rule: u16,
    /// Packets that would have begun a connection.
    pub packets_total: u64,
}

/// A limit of clients.
#[derive(Clone, Debug, Deserialize)]
pub struct LimitStatus {
    /// What it has admitted.
    pub admitted_total: u64,
    /// What it has refused.
    pub refused_total: u64,
    /// What it would have refused, had it not been a dry run.
    pub would_refuse_total: u64,
}

/// A backend of a service.
#[derive(Clone, Debug, Deserialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: u16,
    /// `enabled`, `drain`, `disabled` or `removed`.
    pub state: String,
    /// Whether it answers.
    pub health: HealthStatus,
    /// Connections now.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
}

/// A backend's health.
#[derive(Clone, Debug, Deserialize)]
pub struct HealthStatus {
    /// `unchecked`, `unknown`, `up` or `down`.
    pub state: String,
    /// The result of the last check.
    pub reason: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: f64,
    /// Share of its weight that it has, 0 to 1.
    pub weight_share: f64,
}

/// The rules.
#[derive(Clone, Debug, Deserialize)]
pub struct OffloadStatus {
    /// Rules the engine holds.
    pub rules: u64,
    /// How the engine does it.
    #[serde(default)]
    pub engine_detail: String,
}

impl Status {
    /// The service of that name.
    pub fn service(&self, name: &str) -> Option<&ServiceStatus> {
        self.services.iter().find(|service| service.name == name)
    }

    /// The backend of that name of a service.
    pub fn backend(&self, service: &str, backend: &str) -> Option<&BackendStatus> {
        self.service(service)?.backends.iter().find(|have| have.name == backend)
    }

    /// Drops whose reason contains `part`.
    pub fn dropped(&self, part: &str) -> u64 {
        self.drops.iter().filter(|(reason, _)| reason.contains(part)).map(|(_, count)| count.total).sum()
    }

    /// Connections of all workers, and how many they can hold.
    pub fn connections(&self) -> (u64, u64) {
        let sum = |of: fn(&WorkerStatus) -> u64| self.workers.iter().map(of).sum();
        (sum(|worker| worker.connections), sum(|worker| worker.connections_max))
    }
}
