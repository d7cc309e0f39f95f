//! Services whose connections end here: their certificates, and the runtimes that serve them.
//!
//! Certificates and keys are read by the process that serves them, before anything is changed: at a start, at a reload, and
//! when their files change. A file that cannot be served changes nothing.

use super::acme::OpenChallenges;
use super::generations::DrainReporter;
use super::listeners::{self, Listeners};
use super::reading::{HttpsReading, WorkerReading};
use super::worker_pool::{SPLICES_MAX, WorkerParameters};
use super::{host, log};
use crate::config::{ClientCertificates, Config, HttpsSettings, ServiceSettings, TlsVersion};
use crate::registry::Merged;
use crate::status::CertificateStatus;
use anyhow::{Context, Result};
use hairpin_acme::{WantedName, certificate_file};
use hairpin_core::balance::Tables;
use hairpin_core::config::{BackendState, Service, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_core::keys::{Purpose, Secret};
use hairpin_core::l7::config::Kind;
use hairpin_core::worker::Which;
use hairpin_https::{
    BackendTls, BackendTlsOptions, CertificateFiles, CertificateSummary, Configuration, ConnectionLister, CoreReading,
    Runtimes, RuntimesOptions, ServedCertificates, TerminatedService, TicketSecret, TlsOptions,
};
use hairpin_linux::cpu;
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a drained runtime's connections are looked at again.
const DRAIN_STEP: Duration = Duration::from_millis(50);

/// HTTP/2 streams that are open at a time on one connection without TLS.
const STREAMS_MAX: u32 = 100;
/// Names of a certificate that the status has.
const NAMES_MAX: usize = 16;
/// A certificate that expires within so many seconds is warned of: ten days.
const EXPIRES_SOON_S: i64 = 10 * 86_400;
/// Certificates that are warned of one by one, each time they are read.
const WARNED_MAX: usize = 20;

/// What the terminated services of a configuration and their groups have read from files, by their place in it.
#[derive(Clone, Default)]
pub(crate) struct Certificates(Arc<[Option<LoadedService>]>);

#[derive(Clone)]
struct LoadedService {
    name: String,
    /// A group serves none.
    served: Option<ServedCertificates>,
    backend_tls: Option<BackendTls>,
    files: CertificateFiles,
    /// Of the files when they were read.
    fingerprint: u64,
}

impl Certificates {
    /// Reads what the services of `config` name.
    ///
    /// # Errors
    /// The first service or group whose files cannot be used, and why.
    pub(crate) fn load(config: &Config) -> Result<Certificates> {
        let services = config.snapshot.services.iter().zip(&config.services);
        let load = |(service, settings): (&Service, &ServiceSettings)| {
            if settings.https.is_none() && settings.backend_tls.is_none() {
                return Ok(None);
            }
            let automatic = settings.https.as_ref().map_or_else(Vec::new, |https| automatic_files(config, https));
            let of_https = settings.https.iter().flat_map(|https| https.certificates.iter().chain(&https.client_roots));
            let of_backends = settings.backend_tls.iter().flat_map(BackendTlsOptions::files);
            let files = CertificateFiles(of_https.chain(of_backends).chain(&automatic).cloned().collect());
            // Before they are read: what changes meanwhile is seen.
            let fingerprint = files.fingerprint();
            let who = || if service.kind.is_group() { "group" } else { "service" };
            let said = || format!("{} {}", who(), service.name);
            let served = match (&settings.https, &service.kind) {
                (Some(https), Kind::Terminated(terminated)) => {
                    let options = tls_options(https, terminated.http2, automatic);
                    Some(ServedCertificates::load(&options).with_context(said)?)
                }
                _ => None,
            };
            let backend_tls = settings.backend_tls.as_ref().map(BackendTls::load).transpose();
            let backend_tls = backend_tls.with_context(|| format!("{}: backend_tls", said()))?;
            Ok(Some(LoadedService { name: service.name.to_string(), served, backend_tls, files, fingerprint }))
        };
        Ok(Certificates(services.map(load).collect::<Result<_>>()?))
    }

    /// Whether files have changed since they were read.
    fn have_changed(&self) -> bool {
        self.0.iter().flatten().any(|loaded| loaded.files.fingerprint() != loaded.fingerprint)
    }

    /// Warns of certificates that are not valid now, or will soon not be.
    pub(crate) fn warn(&self) {
        for loaded in self.0.iter().flatten() {
            for why in loaded.served.iter().flat_map(|served| &served.left_out) {
                log(&format!("warning: service {}: {why}; another certificate is ordered", loaded.name));
            }
        }
        self.concerns().iter().for_each(|line| log(line));
    }

    /// Lines of the log about certificates that are not valid now, or will soon not be.
    pub(crate) fn concerns(&self) -> Vec<String> {
        let now = i64::try_from(host::unix_s()).unwrap_or(i64::MAX);
        concerns(self.summaries().chain(self.shown()), now)
    }

    /// What is served, as the status shows it.
    pub(crate) fn statuses(&self) -> Vec<CertificateStatus> {
        let all = self.summaries().flat_map(|(service, all)| all.iter().map(move |one| (service, one)));
        all.map(|(service, certificate)| CertificateStatus {
            service: service.to_string(),
            file: certificate.file.display().to_string(),
            names: certificate.names.iter().take(NAMES_MAX).cloned().collect(),
            names_total: certificate.names.len() as u64,
            key: certificate.key.to_string(),
            valid_from_unix_s: certificate.from_unix_s,
            valid_until_unix_s: certificate.until_unix_s,
            placeholder: certificate.is_placeholder,
        })
        .collect()
    }

    /// What is served, by the name of the service.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (&str, &[CertificateSummary])> {
        self.0.iter().flatten().filter_map(|loaded| Some((&*loaded.name, &*loaded.served.as_ref()?.summaries)))
    }

    /// What backends are shown, by the name of the service or group.
    fn shown(&self) -> impl Iterator<Item = (&str, &[CertificateSummary])> {
        let all = self.0.iter().flatten();
        all.filter_map(|loaded| Some((&*loaded.name, loaded.backend_tls.as_ref()?.summary.as_slice())))
    }

    /// TLS with backends, by the number of the service or group; `numbers`: those of the configuration's services.
    pub(crate) fn backend_tls(&self, numbers: &[u16]) -> HashMap<u16, BackendTls> {
        let numbered = self.0.iter().zip(numbers);
        numbered.filter_map(|(loaded, number)| Some((*number, loaded.as_ref()?.backend_tls.clone()?))).collect()
    }
}

/// Lines of the log about certificates, by service, that are not valid now, or will soon not be.
fn concerns<'a>(all: impl Iterator<Item = (&'a str, &'a [CertificateSummary])>, now: i64) -> Vec<String> {
    let all = all.flat_map(|(service, certificates)| certificates.iter().map(move |one| (service, one)));
    let mut lines: Vec<String> = all.filter_map(|(service, certificate)| concern(service, certificate, now)).collect();
    if lines.len() > WARNED_MAX {
        let more = lines.len() - WARNED_MAX;
        lines.truncate(WARNED_MAX);
        lines.push(format!(
            "warning: {more} more certificates are not valid, or expire soon: `hairpin status -o json` lists all"
        ));
    }
    lines
}

fn concern(service: &str, certificate: &CertificateSummary, now: i64) -> Option<String> {
    let file = certificate.file.display();
    if certificate.is_placeholder {
        return Some(format!("service {service}: serves a certificate that signs itself until one is obtained"));
    }
    let what = match certificate.until_unix_s - now {
        _ if certificate.from_unix_s > now => "is not valid yet".to_string(),
        ..0 => "has expired: renew it".to_string(),
        left if left < EXPIRES_SOON_S => format!("expires in {} days", left / 86_400),
        _ => return None,
    };
    Some(format!("warning: service {service}: the certificate in {file} {what}"))
}

/// Services and groups, by number, whose backends speak HTTP/2.
fn http2_backends(config: &Config, merged: &Merged) -> HashSet<u16> {
    let numbered = config.services.iter().zip(&merged.numbers);
    numbered.filter(|(settings, _)| settings.backend_http2).map(|(_, number)| *number).collect()
}

/// The files in which certificates of a service are, or will be, that are obtained automatically.
fn automatic_files(config: &Config, settings: &HttpsSettings) -> Vec<PathBuf> {
    let Some(wanted) = config.wanted_certificates() else { return Vec::new() };
    let file = |name: &WantedName| certificate_file(&wanted.state, &wanted.authority, &name.name);
    settings.acme.iter().map(file).collect()
}

fn tls_options(settings: &HttpsSettings, http2: bool, automatic: Vec<PathBuf>) -> TlsOptions {
    let required = settings.client_certificates == ClientCertificates::Required;
    let roots = settings.client_roots.clone().filter(|_| settings.client_certificates != ClientCertificates::Off);
    TlsOptions {
        certificates: CertificateFiles(settings.certificates.clone()),
        automatic: CertificateFiles(automatic),
        names: settings.acme.iter().map(|wanted| wanted.name.clone()).collect(),
        only_tls13: settings.versions_min == TlsVersion::V13,
        http2,
        clients: roots.map(|roots| (roots, required)),
    }
}

/// A service whose clients speak clear text.
fn clear_text(number: u16, name: &str) -> TerminatedService {
    TerminatedService {
        number,
        tls: None,
        accept_proxy: Arc::default(),
        // Without TLS there is no handshake.
        handshake_timeout: Duration::ZERO,
        streams_max: STREAMS_MAX,
        // No check of clients' certificates is written so: connections do not go on when the service speaks TLS.
        policy: [name.as_bytes(), b"\0clear text"].concat(),
    }
}

/// The terminating path of a process.
pub(crate) struct Termination {
    pub(crate) certificates: Certificates,
    /// None as long as no service is terminated.
    runtimes: Option<Runtimes>,
    options: RuntimesOptions,
    cpus: Vec<usize>,
    /// Of changed files that could not be served.
    refused: Option<String>,
    /// Once this process has handed over.
    reporter: Option<DrainReporter>,
}

impl Termination {
    /// Beside the workers with these parameters, on their cores.
    pub(crate) fn new(parameters: &WorkerParameters, certificates: Certificates) -> Termination {
        // Workers may share a core; a core has one runtime.
        let cpus: BTreeSet<usize> = parameters.cpus.iter().copied().collect();
        let options = RuntimesOptions {
            loads: parameters.loads.clone(),
            effective_weights: parameters.effective_weights.clone(),
            secret: Secret::new(parameters.steering.key),
            seed: parameters.seeds[3],
            clients_max: clients_max(cpus.len()),
            enter: |cpu| cpu::pin(cpu).with_context(|| format!("cannot pin a thread to core {cpu}")),
            thread_time: cpu::thread_time,
        };
        let cpus = cpus.into_iter().collect();
        Termination { certificates, runtimes: None, options, cpus, refused: None, reporter: None }
    }

    /// Cores that have a runtime, and a socket for each endpoint.
    pub(crate) fn cores(&self) -> usize {
        self.cpus.len()
    }

    /// Maglev tables of a snapshot, where they are needed here.
    pub(crate) fn tables(&self, snapshot: &Snapshot) -> Tables {
        let is_needed = snapshot.services.iter().any(|service| service.kind.is_terminated());
        if is_needed { Tables::new(snapshot, &Tables::default()) } else { Tables::default() }
    }

    /// Ends requests at backends that are to have none.
    pub(crate) fn end(&self, ends: &[(u16, Which)]) {
        let all = ends.iter().filter(|(_, which)| matches!(which, Which::All)).map(|(number, _)| *number);
        let backends: Vec<u16> = all.collect();
        self.runtimes.iter().for_each(|runtimes| runtimes.end_backends(&backends));
    }

    /// Puts a configuration into force. The first one with a terminated service starts the runtimes.
    ///
    /// # Errors
    /// A thread does not start, or does not answer.
    pub(crate) fn configure(
        &mut self,
        config: &Config,
        merged: &Merged,
        (snapshot, tables): (&Arc<Snapshot>, &Tables),
        (listeners, challenges): (&Listeners, &OpenChallenges),
    ) -> Result<()> {
        let services: Vec<TerminatedService> = self.services(config, merged, snapshot);
        if services.is_empty() && self.runtimes.is_none() {
            return Ok(());
        }
        let configuration = Configuration {
            snapshot: Arc::clone(snapshot),
            tables: tables.clone(),
            services,
            backend_tls: self.certificates.backend_tls(&merged.numbers),
            http2_backends: http2_backends(config, merged),
            challenges: challenges.tls.clone(),
        };
        let listening = self.listening(&listeners::endpoints(snapshot), listeners)?;
        match &self.runtimes {
            Some(runtimes) => {
                runtimes.configure(&configuration, listening)?;
                let backends = snapshot.services.iter().flat_map(|service| &service.backends);
                let disabled = backends.filter(|backend| backend.state == BackendState::Disabled);
                runtimes.end_backends(&disabled.map(|backend| backend.number).collect::<Vec<_>>());
                Ok(())
            }
            None => {
                let runtimes = Runtimes::start(&self.options, &configuration, &self.cpus, listening)?;
                self.runtimes = Some(runtimes);
                Ok(())
            }
        }
    }

    fn services(&self, config: &Config, merged: &Merged, snapshot: &Snapshot) -> Vec<TerminatedService> {
        let secret = ticket_secret(snapshot.keys.first().unwrap_or(self.options.secret));
        let of_file = config.snapshot.services.iter().zip(&config.services).zip(&merged.numbers);
        type OfFile<'a> = ((&'a Service, &'a ServiceSettings), &'a u16);
        let service = |(((service, settings), &number), loaded): (OfFile<'_>, &Option<LoadedService>)| {
            if matches!(&service.kind, Kind::Terminated(terminated) if !terminated.tls) {
                return Some(clear_text(number, &service.name));
            }
            let (loaded, https) = (loaded.as_ref()?, settings.https.as_ref()?);
            let served = loaded.served.as_ref()?;
            let tickets = TicketSecret { secret, service: loaded.name.clone() };
            Some(TerminatedService {
                number,
                tls: Some(served.serve(&tickets)),
                handshake_timeout: https.handshake_timeout,
                streams_max: https.streams_max,
                accept_proxy: https.accept_proxy.to_vec().into(),
                policy: [loaded.name.as_bytes(), b"\0", served.client_policy()].concat(),
            })
        };
        of_file.zip(&*self.certificates.0).filter_map(service).collect()
    }

    /// The sockets of each core.
    fn listening(&self, endpoints: &[Endpoint], listeners: &Listeners) -> Result<Vec<Vec<(Endpoint, TcpListener)>>> {
        let of_core = |core: usize| {
            let socket = |endpoint: &Endpoint| Some((*endpoint, listeners.of(endpoint, core)?.try_clone()));
            let sockets = endpoints.iter().filter_map(socket);
            sockets.map(|(endpoint, socket)| Ok((endpoint, socket?))).collect::<Result<Vec<_>>>()
        };
        (0..self.cpus.len()).map(of_core).collect()
    }

    /// How the runtimes are asked for connections, if there are runtimes.
    pub(crate) fn lister(&self) -> Option<ConnectionLister> {
        self.runtimes.as_ref().map(Runtimes::lister)
    }

    /// Reads certificates again whose files have changed. Whether there are others to serve now.
    pub(crate) fn reread(&mut self, config: &Config) -> bool {
        if !self.certificates.have_changed() {
            return false;
        }
        match Certificates::load(config) {
            Ok(certificates) => {
                log("certificates have changed on disk: those are served from now on");
                self.certificates = certificates;
                self.refused = None;
                true
            }
            Err(error) => {
                let why =
                    format!("certificates have changed on disk and cannot be served, so the old ones are: {error:#}");
                if self.refused.as_ref() != Some(&why) {
                    log(&format!("warning: {why}"));
                    self.refused = Some(why);
                }
                false
            }
        }
    }

    /// Has what is read next be of this moment.
    pub(crate) fn refresh(&self, patience: Duration) {
        self.runtimes.iter().for_each(|runtimes| runtimes.refresh(patience));
    }

    /// Adds what the cores' runtimes have counted to what their workers have.
    pub(crate) fn add_to(&self, workers: &mut [WorkerReading]) {
        let readings = self.readings();
        for (worker, core) in workers.iter_mut().zip(&readings) {
            add(worker, core);
            worker.statistics.http.client_conns_max += self.options.clients_max as u64;
        }
    }

    /// What the cores' runtimes have counted that no worker counts.
    pub(crate) fn reading(&self) -> HttpsReading {
        let mut sum = HttpsReading::default();
        for core in self.readings() {
            sum.handshakes += core.statistics.handshakes;
            sum.resumed += core.statistics.resumed;
            core.statistics.events().for_each(|(name, count)| *sum.events.entry(name).or_default() += count);
        }
        sum
    }

    /// What each core has counted.
    pub(crate) fn readings(&self) -> Vec<CoreReading> {
        self.runtimes.as_ref().map_or_else(Vec::new, Runtimes::readings)
    }

    /// Clients' connections now; `None`: no service has been terminated.
    pub(crate) fn clients(&self) -> Option<u64> {
        self.runtimes.as_ref().map(Runtimes::clients)
    }

    /// Tells the process that serves now, while this one drains, what is left here.
    pub(crate) fn report_by(&mut self, reporter: Option<DrainReporter>) {
        self.reporter = reporter;
    }

    /// Accepts no clients any more, and waits until those that are there have what they asked for, or their time is over.
    /// `is_ended` waits for a step and says whether this process is told to end.
    pub(crate) fn drain(self, is_ended: impl Fn(Duration) -> bool) {
        let (Some(runtimes), Some(mut reporter)) = (self.runtimes, self.reporter) else { return };
        runtimes.drain();
        let limit = reporter.limit();
        let until = Instant::now() + limit;
        loop {
            runtimes.refresh(DRAIN_STEP);
            let clients = runtimes.clients();
            reporter.tell(clients);
            if clients == 0 {
                return;
            }
            if Instant::now() >= until {
                return log(&format!(
                    "{clients} HTTPS connections took longer than {} (`upgrade_drain_limit`) and end",
                    humantime::format_duration(limit)
                ));
            }
            if is_ended(DRAIN_STEP) {
                return;
            }
        }
    }
}

/// Descriptors that the rest of the process needs, at most.
const OTHER_FILES: u64 = 1024;

/// Clients' connections that one of so many cores may have: each may need a connection to a backend, too, and all of them
/// descriptors. The limit of open files is raised as far as this process may.
fn clients_max(cores: usize) -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let files = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let each = files.map_or(u64::MAX, |files| files.saturating_sub(OTHER_FILES) / (2 * cores.max(1) as u64));
    usize::try_from(each).unwrap_or(usize::MAX).clamp(64, SPLICES_MAX as usize)
}

/// The key of session tickets, from the secret of this balancer or those that share it.
fn ticket_secret(secret: Secret) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (number, part) in (0u16..).zip(bytes.chunks_exact_mut(8)) {
        let end = Endpoint { port: number, ..Endpoint::default() };
        part.copy_from_slice(&secret.of(Purpose::Tickets, &[end]).to_le_bytes());
    }
    bytes
}

/// Adds what a core's runtime has counted to what its worker has.
fn add(worker: &mut WorkerReading, core: &CoreReading) {
    worker.busy += core.busy;
    let (into, from) = (&mut worker.statistics, &core.statistics);
    into.services.iter_mut().zip(&from.services).for_each(|(into, from)| into.add(from));
    into.backends.iter_mut().zip(&from.backends).for_each(|(into, from)| into.add(from));
    into.http.add_terminated(&from.http);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service and a group with TLS towards backends, in a directory with the service's certificate.
    fn load(directory: &std::path::Path, service: &str, group: &str) -> Result<Certificates, String> {
        let place = directory.display();
        let text = format!(
            "interfaces = [\"eth0\"]\n[[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:443/https\"\nbackends = \
             [\"10.0.0.1:443\"]\nhttps.certificates = \"{place}/web.pem\"\nbackend_tls = {{ {service} }}\n\
             [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:443\"]\nbackend_tls = {{ {group} }}\n"
        );
        let config = crate::config::parse("t.toml", &text).unwrap();
        Certificates::load(&config).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn many_certificates_that_expire_take_few_lines() {
        let certificate = |until_unix_s: i64| CertificateSummary {
            file: "a.pem".into(),
            names: Vec::new(),
            from_unix_s: 1000,
            until_unix_s,
            key: "ECDSA",
            is_placeholder: false,
        };
        let far = 1_000_000_000;
        let all = [certificate(5000), certificate(5000 + 3 * 86_400), certificate(far)];
        let said = concerns([("web", &all[..])].into_iter(), 6000);
        assert_eq!(said.len(), 2);
        assert_eq!(said[0], "warning: service web: the certificate in a.pem has expired: renew it");
        assert!(said[1].ends_with("a.pem expires in 2 days"), "{said:?}");
        let many = vec![certificate(5000); 10_000];
        let said = concerns([("web", &many[..]), ("shop", &many[..5])].into_iter(), 500);
        assert_eq!(said.len(), WARNED_MAX + 1);
        assert!(said[0].ends_with("is not valid yet") && said[WARNED_MAX].contains(" 9985 more "), "{said:?}");
    }

    #[test]
    fn files_for_backends_are_read_and_watched() {
        let directory = std::env::temp_dir().join(format!("hairpin-termination-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let made = rcgen::generate_simple_self_signed(["web.test".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write("web.pem", &format!("{chain}{key}"));
        write("ca.pem", &chain);
        let place = directory.display().to_string();
        let (good, missing) = (format!("roots = \"{place}/ca.pem\""), format!("roots = \"{place}/none.pem\""));
        for (service, group, who) in [(&missing, &good, "service shop"), (&good, &missing, "group shop/a")] {
            let said = load(&directory, service, group).err().unwrap();
            assert!(said.starts_with(&format!("{who}: backend_tls: ")), "{said}");
            assert!(said.contains(&format!("cannot read {place}/none.pem: No such file")), "{said}");
        }
        let loaded = load(&directory, &good, &format!("{good}, certificate = \"{place}/web.pem\"")).unwrap();
        let tls = loaded.backend_tls(&[5, 7]);
        assert!(tls[&5] != tls[&7] && tls[&5].summary.is_none() && tls[&7].summary.is_some());
        // The group's certificate is not served, but looked at.
        assert_eq!((loaded.summaries().count(), loaded.shown().count()), (1, 2));
        assert!(!loaded.have_changed());
        write("ca.pem", &format!("{chain}{chain}"));
        assert!(loaded.have_changed());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
