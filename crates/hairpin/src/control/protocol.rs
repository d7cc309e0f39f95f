//! The protocol of the control socket: one JSON request per line, one JSON answer per line. Field names carry their
//! units and stay as they are; new ones may be added.

use crate::status::Status;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// The status.
    Status,
    /// End the process.
    Stop {
        /// Remove every object from the kernel and the connections, too.
        flush: bool,
    },
    /// Read the configuration file again and apply it.
    Reload {
        /// The file that the client means, if it names one; refused if the instance was started with another one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
        /// Give up what the API changed; refused otherwise, if the file lacks it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        discard: bool,
    },
    /// The configuration in force.
    Configuration,
    /// Hand over to a new process.
    Upgrade(Upgrade),
    /// The changes that a configuration would make. Nothing is applied.
    Diff {
        /// The configuration's text.
        text: String,
        /// The name of the file in its problems.
        file: String,
    },
    /// Change a backend at run time.
    Backend(BackendChange),
    /// Connections, page by page.
    Connections(Query),
    /// The engine's contents and its state.
    Offload,
    /// What would become of a request. Nothing is sent.
    Route(RouteQuery),
}

/// A request that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteQuery {
    /// Its method, in capitals.
    pub method: String,
    /// Its URL, with scheme and host.
    pub url: String,
    /// Its fields, each `Name: value`; the host of the URL, unless one of them is `Host`.
    pub headers: Vec<String>,
    /// Its client's IP address; 127.0.0.1 unless given.
    pub client: Option<String>,
    /// The service that it reaches; unless given, those whose port and protocol are the URL's.
    pub service: Option<String>,
}

/// What would become of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteAnswer {
    /// What each service that it may reach would do with it, in the file's order.
    pub services: Vec<RouteView>,
}

/// What a service would do with a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteView {
    /// The service's name.
    pub service: String,
    /// Its address and port.
    pub listen: String,
    /// `forward` (to a backend), `redirect`, `reply` (by the configuration), or `refuse`.
    pub outcome: String,
    /// The access rule that decides; none: no rule's conditions hold, and the request passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<RuleView>,
    /// The route that it takes; none: no route takes it, and it goes to the service's own backends, or is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RuleView>,
    /// The status of Hairpin's own answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why it is refused; empty if it is not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Where a redirection leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The cookie that keeps clients with their backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
    /// What takes the place of the route's path prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_prefix: Option<String>,
    /// Where it may go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<RouteGroup>,
}

/// An access rule or a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleView {
    /// Counted from 1, as they stand in the file.
    pub number: u16,
    /// As it is written.
    pub written: String,
    /// Whether it is an access rule that refuses the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub denies: bool,
}

/// A group of backends that a route leads to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteGroup {
    /// Its name; the service's: its own backends.
    pub name: String,
    /// Which share of the route's requests it gets, 0 to 1.
    pub share: f64,
    /// How it chooses backends.
    pub balance: String,
    /// Its backends.
    pub backends: Vec<RouteBackend>,
}

/// A backend that a request may go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteBackend {
    /// Its name.
    pub name: String,
    /// Address and port.
    pub address: String,
    /// Its weight.
    pub weight: u16,
    /// `enabled`, `drain` or `disabled`.
    pub state: String,
    /// Whether it answers, of a running instance: `up`, `down` and the like; empty: from a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub health: String,
}

/// How to hand over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program to start; the one this process was started from, if none is named.
    #[serde(default)]
    pub program: Option<PathBuf>,
    /// Reset connections of HTTP and TLS services, whose table the new program may not know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset_http: bool,
}

/// An override of a backend. It holds, across reloads, restarts and upgrades, until it is taken back, or the
/// configuration says something else about this backend than it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendChange {
    /// The service's name.
    pub service: String,
    /// The backend's name or address.
    pub backend: String,
    /// The action.
    pub action: BackendAction,
}

/// An action on a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendAction {
    /// Take new connections.
    Enable,
    /// Keep connections, take no new ones.
    Drain,
    /// Have no connections.
    Disable,
    /// Another weight, 0 to 65,535.
    Weight(u16),
    /// As the configuration says.
    Reset,
}

/// Which connections, and how many of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Query {
    /// Only of clients at `address`, `address/prefix length`, `address:port` or `[address]:port`.
    pub client: Option<String>,
    /// Only of the service of this name and its groups, or of the group of this name.
    pub service: Option<String>,
    /// Only of the backend of this name or address.
    pub backend: Option<String>,
    /// Only in this state (`established`, `syn-sent`, ...; of HTTP and TLS services `spliced`, `reading`, `idle`, ...).
    pub state: Option<String>,
    /// Only offloaded ones, or only those in software.
    pub offloaded: Option<bool>,
    /// Go on where the page before ended.
    pub cursor: Option<u64>,
    /// Connections of a page at most, 1 to 10,000; 0: only count.
    pub limit: u32,
}

/// A page of connections. A connection that lives from the first page to the last is on exactly one of them; one to a
/// backend of an HTTP service may become a client's meanwhile, and be told with that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Page {
    /// The connections.
    pub connections: Vec<ConnectionView>,
    /// How many were examined and fit the query (only counting: all of them).
    pub matched: u64,
    /// The start of the next page; none after the last.
    pub next: Option<u64>,
}

/// A connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionView {
    /// Service's name.
    pub service: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The client's end.
    pub client: String,
    /// The end the client connected to.
    pub vip: String,
    /// Backend's name.
    pub backend: String,
    /// The backend's end.
    pub backend_end: String,
    /// The source that the backend sees, if it is not the client.
    pub source: Option<String>,
    /// State (`established`, `syn-sent`, ...; of HTTP and TLS services `spliced`, `reading`, `idle`, ...).
    pub state: String,
    /// The worker it belongs to.
    pub worker: u16,
    /// Whether the engine forwards it.
    pub offloaded: bool,
    /// Why it is, or is not, with the engine.
    pub offload: String,
    /// Packets from the client and from the backend, by workers and engine.
    pub packets: [u64; 2],
    /// Bytes from the client and from the backend.
    pub bytes: [u64; 2],
    /// Of those packets, the ones the engine forwarded.
    pub packets_offloaded: [u64; 2],
    /// Of those bytes, likewise.
    #[serde(default)]
    pub bytes_offloaded: [u64; 2],
    /// Seconds since it began.
    pub age_s: f64,
    /// Seconds since its last packet.
    pub idle_s: f64,
    /// The further fields of a connection of an HTTP or TLS service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spliced: Option<SplicedView>,
}

/// A connection of an HTTP or TLS service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplicedView {
    /// `client`: a client's, with the connection to a backend that is its at the moment. `backend`: one to a backend that
    /// no client's has; it has no `client` and no `vip`, and of what it forwarded only requests are known.
    pub end: String,
    /// `http` or `tls`; of a service that ends here `http/1.1` or `h2`; empty: one that no client's has.
    pub speaks: String,
    /// Requests so far, the one under way among them.
    pub requests: u32,
    /// The request under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeView>,
}

/// A request under way; of a TLS service, the connection as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExchangeView {
    /// Its method, `other` if it is a rare one; nothing of a TLS service.
    pub method: Option<String>,
    /// `1.0` or `1.1`; nothing of a TLS service.
    pub version: Option<String>,
    /// The route it took, counted from 1 as they stand in the file; nothing if none did and it went to the service's own
    /// backends, or the configuration has become another one since.
    pub route: Option<u16>,
    /// The group its backend was chosen from; the service's name: its own backends.
    pub group: String,
    /// The part of the request that is still to come: `head`, `bytes`, `chunks`, `until-close`, `nothing`.
    pub request: String,
    /// The part of the response that is still to come.
    pub response: String,
    /// How many bytes are still to come of a message of known length, as far as the worker knows: [request, response].
    pub bytes_left: [Option<u64>; 2],
    /// Seconds since its head was complete.
    pub age_s: f64,
}

/// The engine, and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OffloadView {
    /// Which connections are offloaded.
    pub policy: String,
    /// The engine's name.
    pub engine: String,
    /// Rules by family, as counted in the engine: IPv4, IPv6.
    pub rules: [u64; 2],
    /// Rules there can be: IPv4, IPv6.
    pub rules_max: [u64; 2],
    /// Rules that leave a flow to the kernel.
    pub passes: u64,
    /// Rules installed so far.
    pub installed_total: u64,
    /// Rules installed per second.
    pub installed_per_s: f64,
    /// Rules removed so far.
    pub removed_total: u64,
    /// From request to answer, in microseconds: median, 90th and 99th percentile, and the longest bucket's upper end.
    pub latency_us: LatencyView,
    /// Connections in software now, by why they are not offloaded.
    pub in_software: Vec<(String, u64)>,
    /// Connections offloaded now.
    pub offloaded: u64,
    /// Whether counting took too long and ended early: there are at least as many connections, offloaded and in software.
    #[serde(default)]
    pub is_part: bool,
}

/// Percentiles; upper ends of histogram buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyView {
    /// Half of them took no longer.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// All.
    pub max: f64,
    /// How many were measured.
    pub count: u64,
}

impl LatencyView {
    /// Of a histogram: upper ends of buckets, in seconds, and how many are in each. The percentiles are in microseconds.
    pub(crate) fn of(buckets: &[(f64, u64)]) -> LatencyView {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| percentile(buckets, share) * 1e6);
        LatencyView { p50, p90, p99, max, count: buckets.iter().map(|(_, count)| count).sum() }
    }
}

/// Percentiles of sizes; upper ends of histogram buckets, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeView {
    /// Half of them had no more.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
    /// All; 4 GiB stands for more than 1 GiB.
    pub max: f64,
    /// How many were counted.
    pub count: u64,
}

impl SizeView {
    /// Of a histogram: upper ends of buckets, in bytes, and how many are in each.
    pub(crate) fn of(buckets: &[(f64, u64)]) -> SizeView {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| percentile(buckets, share));
        SizeView { p50, p90, p99, max, count: buckets.iter().map(|(_, count)| count).sum() }
    }
}

/// The upper end of the bucket up to which there is this share of all; 0: there is none.
fn percentile(buckets: &[(f64, u64)], share: f64) -> f64 {
    let count: u64 = buckets.iter().map(|(_, count)| count).sum();
    let wanted = (count as f64 * share).ceil() as u64;
    let mut seen = 0;
    let bucket = buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= wanted.max(1)
    });
    bucket.map_or(0.0, |(upper, _)| *upper)
}

/// The changes that a configuration makes, or has made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// A sentence each, such as `service web: backend 10.0.2.13:8080 added`.
    pub changes: Vec<String>,
    /// Changes that need a restart or an upgrade to take effect, a sentence each; they were not applied.
    pub later: Vec<String>,
    /// Warnings: text in the file that is probably a mistake.
    pub warnings: Vec<String>,
}

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningConfiguration {
    /// Its version, by which the API tells it from others.
    pub version: String,
    /// Whether it has changes by the API that the configuration file lacks.
    pub differs_from_file: bool,
    /// As TOML, with what the file includes as a part of it.
    pub text: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlAnswer {
    /// To [`ControlRequest::Status`].
    Status(Box<Status>),
    /// To [`ControlRequest::Stop`]; the connection is closed when the process ends.
    Stopping,
    /// To [`ControlRequest::Reload`] and [`ControlRequest::Diff`].
    Changes(Changes),
    /// To [`ControlRequest::Upgrade`]: the process that serves now.
    Upgraded {
        /// Its number.
        pid: u32,
    },
    /// To [`ControlRequest::Backend`]: what is different now, in a sentence.
    Done(String),
    /// To [`ControlRequest::Connections`].
    Connections(Page),
    /// To [`ControlRequest::Offload`].
    Offload(Box<OffloadView>),
    /// To [`ControlRequest::Route`].
    Route(RouteAnswer),
    /// To [`ControlRequest::Configuration`].
    Configuration(RunningConfiguration),
    /// The request was not understood, or cannot be served now, or failed; nothing changed.
    Error(String),
}
