//! The configuration file: read, checked as a whole, and turned into settings and the data plane's snapshot.
//!
//! Every mistake of a file is reported at once, each with its line and what would be right; a file with an error
//! changes nothing. [`mod@reference`] is the one place that names the fields.

mod access;
mod access_log;
mod acme;
mod api;
mod balance;
mod check;
mod dpdk;
mod encapsulation;
mod fragments;
mod group;
mod health;
mod instance;
pub(crate) mod keys;
mod l7;
mod limit;
mod monitor;
mod names;
mod offload;
mod outlier;
mod print;
pub(crate) mod queue;
mod reader;
pub mod reference;
mod schema;
mod secret_file;
mod service;
mod settings;
mod sharing;
mod stateless;
mod tables;
mod tracing;
pub(crate) mod words;

/// Bounds of a configuration file.
pub(crate) mod limits {
    pub(crate) use super::access::FILE_BYTES_MAX as NETWORKS_FILE_BYTES_MAX;
    pub(crate) use super::acme::NAMES_TOTAL_MAX as ACME_NAMES_TOTAL_MAX;
    pub(crate) use super::dpdk::{ADDRESSES_MAX, DEVICE_BYTES_MAX, PORTS_MAX, ROUTES_MAX as PORT_ROUTES_MAX};
    pub(crate) use super::l7::limits::USERS_FILE_BYTES_MAX;
    pub(crate) use super::l7::limits::{
        BODY_BYTES_MAX, CERTIFICATES_MAX, ENTRIES_MAX, PAGE_BYTES_MAX, PAGES_BYTES_MAX, PATH_BYTES_MAX, ROOTS_MAX,
        ROUTES_MAX, SHARES_MAX,
    };
    pub(crate) use super::names::{NAMES_MAX, SERVERS_MAX};
    pub(crate) use super::secret_file::FILE_BYTES_MAX as SECRET_FILE_BYTES_MAX;
    /// Files that a configuration includes at most.
    pub(crate) const FRAGMENTS_MAX: usize = 256;
    pub(crate) use super::{BACKENDS_MAX, FILE_BYTES_MAX, INTERFACES_MAX, POOL_ADDRESSES_MAX, SERVICES_MAX};
}

pub(crate) use api::tokens_in as api_tokens;
pub use dpdk::{DpdkSettings, IdleMode, Pages, PortSettings, PrefixedAddress, Probes, RouteSettings};
pub(crate) use fragments::VARIABLE_MARK;
pub use fragments::joined;
pub(crate) use hairpin_diagnostics::nearest;
pub use hairpin_diagnostics::{Problem, Problems, Severity};
pub(crate) use l7::network;
pub(crate) use names::host_and_port;
pub use names::{NamedBackends, Resolve};
pub(crate) use print::wrapped;
pub use print::{markdown, template};
pub use schema::schema;
pub use settings::{
    AcmeSettings, Attach, ChallengeChoice, CheckKind, ClientCertificates, ForwardingChoice, HealthSettings,
    HttpSections, HttpsSettings, LinuxSettings, LogFormat, LogLevel, LogSettings, PolicyChoice, ServiceSettings,
    SetUpChoice, Settings, TlsVersion, WhenAbsent, socket_path,
};
pub(crate) use sharing::led_to;
pub use words::{PlaneChoice, SettingWord};

use crate::names::{Answers, Question};
use crate::spans::TracingSettings;
use fragments::Variables;
use hairpin_acme::{Wanted, WantedName};
use hairpin_core::config::{Snapshot, Timeouts};
use hairpin_diagnostics::Sink;
use reader::TomlTable;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The default path of the configuration; `-c` overrides it.
pub const DEFAULT_PATH: &str = "/etc/hairpin/hairpin.toml";
/// Services at most (`SERVICES_MAX` of `crates/linux/bpf/hairpin.h`).
pub const SERVICES_MAX: usize = 1024;
/// Backends of all services at most (`BACKENDS_MAX` of `crates/linux/bpf/hairpin.h`).
pub const BACKENDS_MAX: usize = 16_384;
/// Interfaces at most (`INTERFACES_MAX` of `crates/linux/bpf/hairpin.h`).
pub const INTERFACES_MAX: usize = 64;
/// Pool addresses at most.
pub const POOL_ADDRESSES_MAX: usize = 256;
/// Bytes of a configuration file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file's meaning.
#[derive(Clone, Debug)]
pub struct Config {
    /// The instance's settings.
    pub settings: Settings,
    /// The workers' part. Services and backends are numbered as they stand in the file; numbers that stay are given
    /// by [`crate::registry`].
    pub snapshot: Snapshot,
    /// The other settings of each service of the snapshot.
    pub services: Vec<ServiceSettings>,
    /// The answers that its names have their backends by.
    pub answers: Arc<Answers>,
    /// Addresses of each answer that cannot be backends.
    pub refused: BTreeMap<Question, usize>,
    /// The file's text with that of the files that it includes, and the variables of the environment that it names.
    pub text: Arc<str>,
    /// Warnings: text in the file that is probably a mistake.
    pub warnings: Vec<Problem>,
}

impl Config {
    /// The certificates that are to be obtained; `None`: none.
    pub(crate) fn wanted_certificates(&self) -> Option<Wanted> {
        let acme = self.settings.acme.as_ref()?;
        let mut names: BTreeMap<&str, &WantedName> = BTreeMap::new();
        for wanted in self.services.iter().filter_map(|service| service.https.as_ref()).flat_map(|https| &https.acme) {
            // Of two ways for a name, the first one in the file.
            names.entry(&wanted.name).or_insert(wanted);
        }
        let names: Vec<WantedName> = names.into_values().cloned().collect();
        let wanted =
            Wanted { authority: acme.authority.clone(), state: acme.state.join(&self.settings.instance), names };
        (!wanted.names.is_empty()).then_some(wanted)
    }
}

type ConfigParts = (Settings, Snapshot, Vec<ServiceSettings>);

/// The defaults for every service.
struct Common {
    timeouts: Timeouts,
    drain_limit: Duration,
    /// There is an access log.
    has_access_log: bool,
}

/// Reads the file at `path`, and those that it includes.
///
/// # Errors
/// All of the files' mistakes, or that one cannot be read.
pub fn load(path: &Path) -> Result<Config, Problems> {
    parse(&path.display().to_string(), &joined(path)?)
}

/// Reads `text`, as [`joined`] makes it; `file` names the first file of it in messages.
///
/// # Errors
/// All of its mistakes.
pub fn parse(file: &str, text: &str) -> Result<Config, Problems> {
    let sink = Sink::new(file, text);
    let mut document = sink.document_in_parts();
    let mut variables = Variables::of(text);
    fragments::check(&sink, text);
    let is_whole = document.as_mut().is_some_and(|document| variables.substitute(&sink, document.get_mut()));
    let read = document.as_ref().filter(|_| is_whole).and_then(|document| read(&sink, document.get_ref()));
    let problems = sink.into_problems();
    match read {
        Some((settings, snapshot, services))
            if problems.iter().all(|problem| problem.severity == Severity::Warning) =>
        {
            let text = variables.keep(text).into();
            let (answers, refused) = (Arc::default(), BTreeMap::new());
            Ok(Config { settings, snapshot, services, answers, refused, text, warnings: problems })
        }
        _ => Err(Problems(problems)),
    }
}

fn read<'a>(sink: &'a Sink<'a>, document: &'a toml::de::DeTable<'a>) -> Option<ConfigParts> {
    let top = TomlTable::root(sink, &reference::TOP, document);
    // What it names has been read (`fragments.rs`); here its form is checked.
    top.one_or_more("include");
    let limits = top.table("limits", &reference::LIMITS);
    let common = Common {
        timeouts: instance::read_timeouts(&top.table("timeouts", &reference::TIMEOUTS)),
        drain_limit: limits.duration("drain_limit"),
        has_access_log: top.has("access_log"),
    };
    let access_log = access_log::read(sink, &top);
    let tracing = tracing::read(sink, &top);
    let (keys, keys_file) = keys::read(sink, &top);
    let resolver = names::read(sink, &top);
    let acme = acme::read(sink, &top);
    let acme_settings = acme.as_ref().map(|acme| acme.value.clone());
    let settings = instance::read(sink, &top, &limits, &common).map(|settings| Settings {
        keys_file,
        api: api::read(sink, &top),
        acme: acme_settings,
        access_log,
        tracing,
        ..settings
    });
    let place = settings.as_ref().map(|settings| (settings.plane, settings.linux.attach));
    let monitors = monitor::read(sink, &top, place);
    let settings = settings.zip(resolver).map(|(settings, resolver)| Settings { monitors, resolver, ..settings });
    let pool = instance::read_pool(sink, &top.table("pool", &reference::POOL));
    let mut services = service::read(sink, &top, &common);
    if sink.is_in_parts() {
        // The checks below compare one with another, and either may be missing.
        return None;
    }
    let untracked = settings.as_ref().filter(|settings| !settings.connection_table.tracks_connections());
    if let Some(settings) = untracked {
        stateless::check(sink, &top.span_of("connection_table"), settings, &mut services);
    }
    acme::resolve(sink, &top, acme.as_ref(), &mut services);
    names::check(sink, services.iter().flat_map(|draft| &draft.settings.named));
    let tracing = settings.as_ref().and_then(|settings| settings.tracing.as_ref()).map(TracingSettings::data_plane);
    for http in services.iter_mut().filter_map(|draft| draft.service.kind.http_mut()) {
        http.tracing = http.tracing.and(tracing);
    }
    check::services(sink, &services, &pool, untracked.is_none());
    check::pool(sink, &services, &pool);
    if let Some(settings) = &settings {
        let api = settings.api.as_ref().and_then(|api| api.remote.as_ref()).map(|remote| remote.listen);
        check::own_listeners(
            sink,
            &services,
            [("`listen` of [api]", api), ("`listen` of [metrics]", settings.metrics)],
        );
    }
    if let Some(dpdk) = settings.as_ref().and_then(|settings| settings.dpdk.as_ref()) {
        dpdk::check(sink, dpdk, &services, &pool);
    }
    let (services, service_settings) = service::numbered(services);
    let mut snapshot = Snapshot::new(services, pool.value);
    snapshot.when_full = limits.choice("when_full").unwrap_or_default();
    snapshot.keys = keys;
    Some((settings?, snapshot, service_settings))
}
