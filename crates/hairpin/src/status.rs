//! The status model: what `hairpin status -o json` prints. Field names carry their units and stay as they are; new
//! ones may be added.
//!
//! # Connections
//! Wherever connections are counted (`connections`, `clients`, `backend_connections`), one counts from its first packet, at
//! an HTTP or TLS service from the client's first data, until both ends have closed it, one has reset it, or its timeout is
//! over. What is kept of it after that, as TCP's TIME_WAIT asks, does not count; it takes a place in its table all the same
//! (`entries`).

mod access_log;
mod acme;
mod api;
mod http;
mod https;
mod limit;
mod monitor;
mod resolver;
mod tracing;

pub use access_log::AccessLogStatus;
pub use acme::{AcmeNameStatus, AcmeStatus};
pub use api::ApiStatus;
pub use http::{AdoptedHttpStatus, Histogram, HttpStatus, RequestSizesStatus, RequestTimesStatus};
pub use https::{CertificateStatus, HttpsStatus};
pub use limit::LimitStatus;
pub use monitor::{MonitorStatus, TalkerStatus};
pub use resolver::{NameStatus, ResolverStatus};
pub use tracing::TracingStatus;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An instance at a moment. Totals count from the start of the process, rates are of about the last second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Hairpin's version.
    pub version: String,
    /// The instance's name.
    pub instance: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// The interfaces it works on.
    pub interfaces: Vec<String>,
    /// How packets reach its workers: `linux` or `dpdk`.
    #[serde(default)]
    pub plane: String,
    /// The ports it drives itself, on the dpdk plane.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortStatus>,
    /// Its packet buffers, on the dpdk plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mbufs: Option<BufferStatus>,
    /// How its workers find a packet's connection: the name of the connection table, as in the configuration.
    #[serde(default)]
    pub connection_table: String,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Its services, in the order of the configuration; groups of backends behind the service whose routes lead to them.
    pub services: Vec<ServiceStatus>,
    /// The rules.
    pub offload: OffloadStatus,
    /// HTTP and TLS services, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpStatus>,
    /// HTTPS services, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https: Option<HttpsStatus>,
    /// Automatic certificates, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acme: Option<AcmeStatus>,
    /// The API, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiStatus>,
    /// Look-ups of backends' names, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolver: Option<ResolverStatus>,
    /// The access log, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_log: Option<AccessLogStatus>,
    /// Tracing, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracing: Option<TracingStatus>,
    /// Monitors, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub monitors: Vec<MonitorStatus>,
    /// Packets dropped, by reason: `kernel.*` in the BPF programs, `worker.*` in a worker, `device.*` on the way
    /// between them. Reasons that never occurred are left out.
    pub drops: BTreeMap<String, Count>,
    /// Other fates of packets that no rule forwarded, by name, like `drops`.
    pub events: BTreeMap<String, Count>,
    /// How full the tables are.
    #[serde(default)]
    pub capacity: CapacityStatus,
    /// Processes that have handed over to this one or one before, and still serve connections of HTTPS services; the oldest
    /// first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<DrainingStatus>,
    /// Reloads so far.
    #[serde(default)]
    pub reloads: ReloadStatus,
    /// How this process began: `fresh`, `restart` (it adopted what another had left) or `upgrade`.
    #[serde(default)]
    pub began: String,
    /// Connections of TCP and UDP services adopted from the process before.
    #[serde(default)]
    pub adopted_connections: u64,
    /// What became of the process before's connections of HTTP and TLS services.
    #[serde(default)]
    pub adopted_http: AdoptedHttpStatus,
}

impl Status {
    /// The services and groups that are not ready, and why.
    pub fn not_ready(&self) -> impl Iterator<Item = (&ServiceStatus, &str)> {
        let active = self.services.iter().filter(|service| service.state != "removed");
        active.filter(|service| !service.ready).map(|service| match &*service.not_ready {
            "" => (service, "the instance does not say; its program is older than this one"),
            why => (service, why),
        })
    }

    /// Clients' connections of all services. Those to backends of groups are others.
    pub fn connections(&self) -> u64 {
        let services = self.services.iter().filter(|service| service.group_of.is_none());
        services.map(|service| service.connections).sum()
    }
}

/// A process that has handed over, and serves the connections that it still has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainingStatus {
    /// The process.
    pub pid: u32,
    /// When it handed over, in seconds since 1970.
    pub since_unix_s: u64,
    /// When it ends, whatever is left then.
    pub ends_unix_s: u64,
    /// Clients' connections that are left.
    pub connections: u64,
}

/// Packet buffers. Those that drivers hold for packets to come are in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BufferStatus {
    /// In use now.
    pub in_use: u32,
    /// How many there are.
    pub max: u32,
    /// Bytes of a frame that one takes.
    pub bytes: u16,
}

/// A port of the dpdk plane. Counts are its driver's, since it was opened; what a driver does not count is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The device, as the configuration names it.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Its Ethernet address.
    pub mac: String,
    /// Its own addresses.
    pub addresses: Vec<String>,
    /// The largest IP packet it takes, in bytes.
    pub mtu: u16,
    /// Whether the link is up.
    pub up: bool,
    /// Pairs of queues.
    pub queues: u16,
    /// How it spreads flows over them.
    pub spread: String,
    /// How packets find the worker of their connection.
    pub steering: String,
    /// Rules in its device that bring packets to their worker.
    #[serde(default)]
    pub steering_rules: u64,
    /// Such rules that are wanted and not there: refused, or beyond what a port may have. Workers hand their packets over.
    #[serde(default)]
    pub steering_rules_missing: u64,
    /// The rules that its device takes from a flow engine, or the reason why it takes none.
    #[serde(default)]
    pub rules: String,
    /// Frames.
    pub received: u64,
    /// Bytes of frames.
    pub received_bytes: u64,
    /// Frames.
    pub transmitted: u64,
    /// Bytes of frames.
    pub transmitted_bytes: u64,
    /// Frames that found the receive queues full.
    pub missed: u64,
    /// Frames that came damaged.
    pub receive_errors: u64,
    /// Frames that the driver took and could not send.
    pub transmit_errors: u64,
    /// Frames that came when there was no packet buffer.
    pub no_mbuf: u64,
}

/// How full the tables are: the connection table, which has those of TCP and UDP services, and the rules of the fuller
/// family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CapacityStatus {
    /// Connections in the connection table now.
    pub connections: u64,
    /// Its entries now: those connections, and those that are over and kept for a while.
    #[serde(default)]
    pub entries: u64,
    /// The most entries there were.
    pub connections_peak: u64,
    /// Entries there can be.
    pub connections_max: u64,
    /// `ok`, `nearly-full` (from 90 % on) or `full` of the fullest worker.
    pub connections_state: String,
    /// Connections refused because the table was full.
    pub table_full_total: u64,
    /// Connections not yet established that gave way to newer ones.
    pub evicted_total: u64,
    /// `ok`, `nearly-full` or `full`.
    pub rules_state: String,
}

/// Reloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Those that were applied.
    pub succeeded_total: u64,
    /// Those that were refused.
    pub failed_total: u64,
    /// When the last one was, in seconds since 1970; 0: never.
    pub last_unix_s: u64,
    /// Whether that one was applied.
    pub last_succeeded: bool,
    /// Why not, if it was not.
    pub last_error: String,
}

/// A backend's health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HealthStatus {
    /// `unchecked`, `unknown`, `up` or `down`.
    pub state: String,
    /// Whether its first checks have not come to a verdict: what they found so far is no more than that.
    #[serde(default)]
    pub settling: bool,
    /// The result of the last check.
    pub reason: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: f64,
    /// Checks made.
    pub checks_total: u64,
    /// Checks that failed.
    pub failed_total: u64,
    /// How long the last check took, in seconds.
    pub last_duration_s: f64,
    /// Share of its weight it has while it starts slowly, 0 to 1.
    pub weight_share: f64,
    /// Handshakes that clients' connections have failed at this backend, and requests that it has failed.
    pub passive_failed_total: u64,
    /// Those requests, by how: `lost` (the connection ended before the response), `silent` (no response in time), `status`
    /// (a response with one of `passive_status`). What never happened is left out.
    #[serde(default)]
    pub requests_failed: BTreeMap<String, u64>,
}

/// A backend's ejections as an outlier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EjectionStatus {
    /// Whether it gets no new connections for that.
    pub ejected: bool,
    /// Until when, in seconds since 1970; 0 if it is not ejected.
    pub until_unix_s: f64,
    /// Why it was ejected last.
    pub reason: String,
    /// How often it was, since the process began.
    pub ejections_total: u64,
    /// How often it would have been, but for `max_ejected_percent` or because no other backend takes connections.
    pub prevented_total: u64,
}

impl HealthStatus {
    /// Handshakes that clients' connections have failed.
    pub fn handshakes_failed(&self) -> u64 {
        self.passive_failed_total.saturating_sub(self.requests_failed.values().sum())
    }
}

/// A total and its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// How many there were.
    pub total: u64,
    /// How many there are in a second.
    pub per_s: f64,
}

/// Packets and bytes. Bytes are those of IP packets; a super-packet counts as the segments it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Bits per second.
    pub bits_per_s: f64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Traffic) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.packets_per_s += other.packets_per_s;
        self.bits_per_s += other.bits_per_s;
    }
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub id: u16,
    /// The core it is pinned to.
    pub cpu: usize,
    /// Share of that core it uses, 0 to 1.
    pub busy_share: f64,
    /// Processor time it has used, in seconds.
    #[serde(default)]
    pub busy_s: f64,
    /// Connections it tracks, of TCP and UDP services.
    pub connections: u64,
    /// Entries of its connection table: those connections, those that are over and kept for a while, and `passes`.
    #[serde(default)]
    pub entries: u64,
    /// Entries there can be.
    pub connections_max: u64,
    /// Flows it has recognised as the kernel's own.
    pub passes: u64,
    /// Frames it was handed; a super-packet is one frame.
    pub frames: u64,
    /// Frames per second.
    pub frames_per_s: f64,
    /// Frames it sent on.
    pub forwarded: u64,
    /// Frames it passed to the kernel.
    pub to_kernel: u64,
    /// Frames it answered itself (RST, ICMP errors).
    pub answered: u64,
    /// ICMP errors it translated.
    pub icmp_errors: u64,
    /// Packets it cut into fragments.
    pub fragmented: u64,
    /// Connections that seemed over and went on.
    pub revived: u64,
    /// Connections given up for newer ones before they were established, because the table was full.
    pub evicted: u64,
}

/// A service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Address, port and protocol; empty for a group.
    pub listen: String,
    /// `tcp`, `udp`, `http`, `https`, `tls` or `group`: backends that routes of a service lead to.
    #[serde(default)]
    pub protocol: String,
    /// The name of the service that a group belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_of: Option<String>,
    /// `nat`, `full-nat`, `dsr`, or `terminated`: its connections to backends are this host's own.
    pub mode: String,
    /// With `dsr`: what packets to backends are wrapped in, `ipip` or `gue`; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encapsulation: Option<String>,
    /// How it chooses backends.
    pub balance: String,
    /// Clients' connections now; of a group, those to its backends.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
    /// New connections per second.
    pub connections_per_s: f64,
    /// Requests to an HTTP service, ClientHellos to a TLS service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Count>,
    /// How long its requests took since the process began, of an HTTP service; of a group, those that went to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<RequestTimesStatus>,
    /// How many bytes these had; of messages beyond 4 GiB whose length nothing says before, the lower 32 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<RequestSizesStatus>,
    /// Responses of Hairpin's own, of an HTTP service, by class: refusals, redirects, texts. Those of backends are theirs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replies: BTreeMap<String, u64>,
    /// What access rules of a service without requests have refused or counted; rules that allow are not among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<AccessStatus>,
    /// What limits of clients have decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitStatus>,
    /// Connections so far that were established.
    pub established_total: u64,
    /// Connections so far that were refused.
    pub refused_total: u64,
    /// Traffic that the workers forwarded.
    pub software: Traffic,
    /// Traffic that the kernel forwarded by itself.
    pub offloaded: Traffic,
    /// Share of all its packets that was offloaded, 0 to 1.
    pub offloaded_share: f64,
    /// `active` or `removed` (from the configuration; its connections go on for a while).
    #[serde(default)]
    pub state: String,
    /// Whether one of its backends is up, after first checks that have come to a verdict. Of a service with groups: a backend
    /// of any of them.
    #[serde(default)]
    pub ready: bool,
    /// Why it is not ready; empty if it is.
    #[serde(default)]
    pub not_ready: String,
    /// Whether its backups take new connections, because no other backend does.
    #[serde(default)]
    pub uses_backups: bool,
    /// Its backends.
    pub backends: Vec<BackendStatus>,
}

/// An access rule that refuses or counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AccessStatus {
    /// Its number among the rules of its service, from 1.
    pub rule: u16,
    /// `deny` or `count`.
    pub action: String,
    /// Packets so far that would have begun a connection, and that it has dropped or counted.
    pub packets_total: u64,
}

impl ServiceStatus {
    /// Whether it is a service with requests, not a group of one.
    pub(crate) fn is_http(&self) -> bool {
        matches!(&*self.protocol, "http" | "https")
    }
}

/// A backend of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Address and port.
    pub address: String,
    /// Its weight.
    pub weight: u16,
    /// `enabled`, `drain`, `disabled` or `removed` (from the configuration; it keeps its connections for a while).
    pub state: String,
    /// Whether it takes new connections only while no other backend does.
    #[serde(default)]
    pub backup: bool,
    /// Connections that it may have at a time, of an HTTP service requests; 0: any number.
    #[serde(default)]
    pub connections_max: u32,
    /// Those that it has of them, in this process.
    #[serde(default)]
    pub load: u32,
    /// Whether state or weight are overridden at run time.
    #[serde(default)]
    pub overridden: bool,
    /// Whether it answers.
    #[serde(default)]
    pub health: HealthStatus,
    /// Its ejections as an outlier, where its service has `outlier`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ejection: Option<EjectionStatus>,
    /// Connections to it now; of an HTTP or TLS service also those that are idle.
    pub connections: u64,
    /// Connections so far.
    pub connections_total: u64,
    /// New connections per second.
    pub connections_per_s: f64,
    /// Its responses so far, by class (`1xx` to `5xx`); of an HTTP service and its groups.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub responses: BTreeMap<String, u64>,
    /// Traffic that the workers forwarded.
    pub software: Traffic,
    /// Traffic that the kernel forwarded by itself.
    pub offloaded: Traffic,
}

/// The rules in the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OffloadStatus {
    /// Which connections are offloaded.
    pub policy: String,
    /// The flow engine: `kernel` (BPF programs), `rte_flow` (the ports' devices, on the dpdk plane) or `none`.
    #[serde(default)]
    pub engine: String,
    /// How it does it, or why there is none, where there is something to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine_detail: String,
    /// Its counters, by name, where it counts that itself: rules that its devices have taken (`put-in`), given back
    /// (`taken-out`), `refused`, not given back when they were asked to (`not-let-go`) and `lost`; whether it has `failed`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine_counts: BTreeMap<String, u64>,
    /// Kinds of connections that it cannot take, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine_lacks: BTreeMap<String, String>,
    /// Rules in force or asked for.
    pub rules: u64,
    /// Rules there can be, for each address family.
    pub rules_max: u64,
    /// Rules installed so far.
    pub installed_total: u64,
    /// Rules per second.
    pub installed_per_s: f64,
    /// Rules removed so far.
    pub removed_total: u64,
    /// Rules per second.
    pub removed_per_s: f64,
    /// Why rules or connections were not offloaded, and how many. Reasons that never occurred are left out.
    pub not_offloaded: BTreeMap<String, u64>,
    /// How often the policy has left a connection in software, by reason. Reasons that never occurred are left out.
    #[serde(default)]
    pub kept: BTreeMap<String, u64>,
    /// Connections the policy has taken back from the engine, by reason, likewise.
    #[serde(default)]
    pub evicted: BTreeMap<String, u64>,
    /// From request to answer of an installation, histogram: upper end in seconds, and how many took no longer than it
    /// and longer than the one before.
    #[serde(default)]
    pub latency: Vec<(f64, u64)>,
    /// Sum of all of them, in seconds.
    #[serde(default)]
    pub latency_sum_s: f64,
}
