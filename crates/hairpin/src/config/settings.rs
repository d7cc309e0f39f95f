//! The settings of a file, apart from the data plane's snapshot.

use super::dpdk::DpdkSettings;
use super::names::NamedBackends;
use super::words::{PlaneChoice, SettingWord};
use crate::access_log::{AccessLogSettings, ServiceLog};
use crate::api::ApiSettings;
use crate::health::{Check, CheckTarget, OutlierSettings, Passive, StatusRanges};
use crate::monitor::MonitorSettings;
use crate::names::ResolverSettings;
use crate::spans::TracingSettings;
use hairpin_acme::{Authority, WantedName};
use hairpin_core::access::AccessList;
use hairpin_core::config::{Backend, Forwarding, Service, Timeouts};
use hairpin_core::l7::config::{Network, ServerErrors};
use hairpin_core::limit::Limit;
use hairpin_core::offload::Choice;
use hairpin_core::table::LookupMethod;
use hairpin_https::{BackendTlsOptions, BasicAuth, Cors, QueueSettings, ServicePages};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which connections are offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// Every established one.
    Always,
    /// None.
    Never,
    /// As many as come first.
    FirstN,
    /// Connections that have proved to be large.
    HeavyHitter,
    /// The fastest.
    FastestFlow,
    /// Connections whose first packets announce a large transfer.
    DecisionTree,
    /// Connections that are expected to pay for their rules.
    Auto,
}

impl PolicyChoice {
    /// Its word in the file.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

/// Who sets connections up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUpChoice {
    /// Workers.
    Worker,
    /// The engine, where it can choose the backend.
    Engine,
}

/// The policy for IP forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingChoice {
    /// Refuse to start where it is off.
    Check,
    /// Switch it on, and back at the end.
    Enable,
}

/// The treatment of misses while no process is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAbsent {
    /// Dropped and counted.
    Drop,
    /// The kernel gets them.
    Pass,
    /// As [`WhenAbsent::Drop`]; but the BPF programs set connections up for a while.
    Serve,
}

/// Where the BPF programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// At tc ingress: by tcx if the kernel has it, else by clsact.
    Tc,
    /// At tc ingress, by clsact.
    Clsact,
    /// At tc ingress, and in XDP.
    Xdp,
    /// In XDP, too, if services and drivers are such that it pays and works.
    Auto,
}

/// Settings of the linux plane.
#[derive(Clone, Debug)]
pub struct LinuxSettings {
    /// IP forwarding.
    pub forwarding: ForwardingChoice,
    /// Misses while no process is alive.
    pub when_absent: WhenAbsent,
    /// How long connections are set up without a process.
    pub serve_for: Duration,
    /// After what silence the process counts as dead.
    pub heartbeat_timeout: Duration,
    /// Unknown client packets per second, CPU and service that are always admitted.
    pub policer_floor: u32,
    /// Unknown client packets per second, CPU and service that are admitted at most.
    pub policer_ceiling: u32,
    /// Unknown packets from backends per second, CPU and service.
    pub policer_backend: u32,
    /// Bound of a hand-over.
    pub handover_bound: Duration,
    /// Packets that may wait in a worker's device.
    pub tap_queue: u32,
    /// From one wake of a worker to the next, at least, while frames come several at a time.
    pub coalesce: Duration,
    /// Where programs are attached.
    pub attach: Attach,
    /// The directory of pinned objects; the instance's own directory is below it.
    pub pin_directory: PathBuf,
}

/// How certificates are obtained automatically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The CA, and the account there.
    pub authority: Authority,
    /// The directory in which each instance has one of its own.
    pub state: PathBuf,
    /// How the CA is shown that names lead here.
    pub challenge: ChallengeChoice,
}

/// How the CA is shown that names lead here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChallengeChoice {
    /// As each service allows.
    #[default]
    Auto,
    /// By a text at port 80.
    Http01,
    /// By a certificate at port 443.
    TlsAlpn01,
}

/// All of the file that is not the data plane's snapshot.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The instance's name.
    pub instance: String,
    /// The file of its keys, if it shares them with other instances. The keys are in the snapshot.
    pub keys_file: Option<PathBuf>,
    /// The write API, if the file asks for one.
    pub api: Option<ApiSettings>,
    /// Automatic certificates, if the file has a section about them.
    pub acme: Option<AcmeSettings>,
    /// How packets reach the workers.
    pub plane: PlaneChoice,
    /// The linux plane's interfaces, in the order of the file; their position is their slot.
    pub interfaces: Vec<String>,
    /// Worker threads; `None`: one for each core.
    pub workers: Option<u16>,
    /// How workers find a packet's connection.
    pub connection_table: LookupMethod,
    /// Connections of all workers.
    pub connections_max: u32,
    /// Clients' connections of HTTP and TLS services, of all workers; `None`: as many as fit, within bounds.
    pub http_connections_max: Option<u32>,
    /// Clients that limits remember at a time.
    pub limited_clients_max: u32,
    /// Rules for each address family.
    pub rules_max: u32,
    /// The directory of the files with connections.
    pub memory_directory: PathBuf,
    /// How long connections of draining and removed backends go on, in services that do not say otherwise; zero: until
    /// they end.
    pub drain_limit: Duration,
    /// How long a process that has handed over serves the connections that it still has of terminated services.
    pub upgrade_drain_limit: Duration,
    /// Which connections are offloaded.
    pub policy: PolicyChoice,
    /// The policy with its numbers.
    pub offload: Choice,
    /// Who sets connections up.
    pub set_up: SetUpChoice,
    /// The directory of the socket and the lock file.
    pub control_directory: PathBuf,
    /// The program's log.
    pub log: LogSettings,
    /// The access log; `None`: there is none.
    pub access_log: Option<AccessLogSettings>,
    /// Tracing; `None`: there is none.
    pub tracing: Option<TracingSettings>,
    /// How names of backends are looked up.
    pub resolver: ResolverSettings,
    /// What counts packets per flow.
    pub monitors: Vec<MonitorSettings>,
    /// The address that serves metrics; `None`: metrics are off.
    pub metrics: Option<SocketAddr>,
    /// Names of this machine, in small letters, by which browsers may ask for the page.
    pub metrics_hosts: Vec<String>,
    /// How long silence is borne in services that do not say otherwise.
    pub timeouts: Timeouts,
    /// The linux plane's.
    pub linux: LinuxSettings,
    /// The dpdk plane's, if that is the plane.
    pub dpdk: Option<DpdkSettings>,
}

/// The form of the log's lines on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// An object of JSON a line.
    Json,
}

/// The least serious messages that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// All of them.
    Info,
    /// Warnings alone.
    Warning,
}

/// Settings of the program's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The form of its lines.
    pub format: LogFormat,
    /// What it has.
    pub level: LogLevel,
}

impl Settings {
    /// The sources of packets: interfaces, or ports by their devices.
    pub fn devices(&self) -> Vec<String> {
        match &self.dpdk {
            Some(dpdk) => dpdk.ports.iter().map(|port| port.device.clone()).collect(),
            None => self.interfaces.clone(),
        }
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.control_directory, &self.instance)
    }
}

/// The control socket of an instance.
pub fn socket_path(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.sock"))
}

/// The kind of a health check, without its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckKind {
    /// Nothing.
    #[default]
    None,
    /// A connection is opened.
    Tcp,
    /// A request is sent.
    Http,
    /// A request is sent over TLS.
    Https,
    /// A service is asked for by gRPC.
    Grpc,
    /// A datagram is sent.
    Udp,
}

/// How the health of a service's backends is found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// The kind of check.
    pub check: Check,
    /// From one check of a backend to the next.
    pub interval: Duration,
    /// For the whole of a check; not longer than the interval.
    pub timeout: Duration,
    /// Successes in a row that bring a backend up.
    pub rise: u32,
    /// Failures in a row that take a backend down.
    pub fall: u32,
    /// The port that is checked; `None`: each backend's own.
    pub port: Option<u16>,
    /// Whether clients' failing connections count as well.
    pub passive: Option<Passive>,
    /// HTTP services: statuses from 500 to 599 with which a response counts as failed; `None`: no status does.
    pub passive_status: Option<StatusRanges>,
    /// How long a backend that was down takes to get its full share.
    pub slow_start: Duration,
}

impl HealthSettings {
    /// The checker's target for a backend of `service`.
    pub fn target(&self, service: &Service, backend: &Backend) -> CheckTarget {
        let port = self.port.unwrap_or(backend.endpoint.port);
        let address = SocketAddr::new(IpAddr::from(backend.endpoint.address), port);
        let target = self.aimed(backend.number, service.name.to_string(), backend.name.to_string(), address);
        CheckTarget { direct: service.forwarding == Forwarding::Direct, ..target }
    }

    pub(super) fn aimed(&self, backend: u16, service: String, name: String, address: SocketAddr) -> CheckTarget {
        CheckTarget {
            backend,
            service,
            name,
            address,
            direct: false,
            stand_in: None,
            check: self.check.clone(),
            tls: None,
            http2: false,
            rise: self.rise,
            fall: self.fall,
            interval: self.interval,
            timeout: self.timeout,
            slow_start: self.slow_start,
            passive: self.passive,
        }
    }

    /// The statuses with which responses speak against their backend: none unless clients' failures count.
    pub fn faulty(&self) -> ServerErrors {
        let statuses = self.passive.and(self.passive_status.as_ref());
        (500..=599).filter(|status| statuses.is_some_and(|statuses| statuses.contains(*status))).collect()
    }

    /// The kind of check, without its parameters.
    pub fn kind(&self) -> CheckKind {
        match self.check {
            Check::None => CheckKind::None,
            Check::Tcp => CheckKind::Tcp,
            Check::Http(_) => CheckKind::Http,
            Check::Https(_) => CheckKind::Https,
            Check::Grpc { .. } => CheckKind::Grpc,
            Check::Udp { .. } => CheckKind::Udp,
        }
    }
}

/// The settings of a service that workers do not need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// How the health of its backends is found out.
    pub health: HealthSettings,
    /// When its backends are ejected; `None`: never.
    pub outlier: Option<OutlierSettings>,
    /// HTTP and HTTPS services and their groups: how requests wait for backends; `None`: they do not.
    pub queue: Option<QueueSettings>,
    /// Which of its records become lines of the access log; `None`: none.
    pub access_log: Option<ServiceLog>,
    /// TCP, UDP and TLS services: whose connections may begin; `None`: all.
    pub access: Option<Arc<AccessList>>,
    /// How much each client may ask for.
    pub limits: Box<[Limit]>,
    /// How many routes the file gives it: what takes none of them takes its own backends.
    pub route_count: u16,
    /// HTTP and TLS services: their sections, as text.
    pub said: HttpSections,
    /// HTTPS services: how TLS is spoken with clients. `None` for the groups of one, too.
    pub https: Option<HttpsSettings>,
    /// HTTP and HTTPS services and their groups: how TLS is spoken with backends; `None`: they are sent clear text. As for `https`, the
    /// files are read later.
    pub backend_tls: Option<BackendTlsOptions>,
    /// HTTP and HTTPS services and their groups: whether the backends speak HTTP/2.
    pub backend_http2: bool,
    /// How many of its backends the file gives an address; they come first.
    pub listed: usize,
    /// The names of the others.
    pub named: Vec<NamedBackends>,
}

/// How an HTTPS service speaks TLS with its clients. The files are not read with the configuration: they change without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsSettings {
    /// Names that certificates are obtained for automatically, 100 at most.
    pub acme: Vec<WantedName>,
    /// Files and directories with certificates and their keys, absolute paths, 1024 at most; at least one if `acme` has none. The first
    /// certificate is for clients that ask for no name that fits another one.
    pub certificates: Vec<PathBuf>,
    /// The lowest version of TLS that is spoken.
    pub versions_min: TlsVersion,
    /// Whether clients show certificates.
    pub client_certificates: ClientCertificates,
    /// The file with the CAs that sign clients' certificates; `None` exactly if clients are asked for none.
    pub client_roots: Option<PathBuf>,
    /// From the connection until the handshake is complete, 100 ms to a day: closed.
    pub handshake_timeout: Duration,
    /// HTTP/2 streams that are open at a time on one connection, 1 to 1000: further ones are refused.
    pub streams_max: u32,
    /// Networks whose connections begin with a header of the PROXY protocol.
    pub accept_proxy: Box<[Network]>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    #[default]
    V12,
    /// TLS 1.3 (RFC 8446).
    V13,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Off,
    /// They are asked for one. One that is shown must be valid.
    Optional,
    /// They are asked for one, and without a valid one the handshake fails.
    Required,
}

/// The sections of an HTTP or TLS service, as text, and what is read with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpSections {
    /// Fields, each with what holds for it.
    pub fields: Vec<(String, String)>,
    /// Access rules, as they are written.
    pub access: Vec<String>,
    /// Limits of clients, as they are written.
    pub limits: Vec<String>,
    /// Routes, as they are written.
    pub routes: Vec<String>,
    /// CORS of routes whose requests go on, in their order; also of the one for what the others do not take.
    pub cors: Vec<Option<Cors>>,
    /// Error pages of routes, in their order, and of the service.
    pub pages: ServicePages,
    /// HTTPS services: who may ask for each route, the last one being that of what no other one takes; empty: all for all.
    pub basic: Vec<Option<Arc<BasicAuth>>>,
}
