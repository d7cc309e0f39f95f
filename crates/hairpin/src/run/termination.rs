//! Services whose connections end here, and the runtimes that serve them.

use super::acme::OpenChallenges;
use super::certificates::{Certificates, LoadedService};
use super::generations::DrainReporter;
use super::listeners::{self, Listeners};
use super::reading::{HttpsReading, WorkerReading};
use super::tell;
use super::worker_pool::{SPLICES_MAX, WorkerParameters};
use crate::access_log::AccessLog;
use crate::config::{Config, ServiceSettings};
use crate::events::EventKind;
use crate::registry::Merged;
use crate::spans::Spans;
use anyhow::{Context, Result};
use hairpin_core::balance::Tables;
use hairpin_core::config::{BackendState, Service, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_core::keys::{Purpose, Secret};
use hairpin_core::l7::config::Kind;
use hairpin_core::worker::Which;
use hairpin_https::{
    BasicAuth, Configuration, ConnectionLister, CoreReading, Cors, QueueSettings, Runtimes, RuntimesOptions,
    ServicePages, TerminatedService, TicketSecret,
};
use hairpin_linux::cpu;
use rustix::process::{Resource, Rlimit};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a drained runtime's connections are looked at again.
const DRAIN_STEP: Duration = Duration::from_millis(50);

/// HTTP/2 streams that are open at a time on one connection without TLS.
const STREAMS_MAX: u32 = 100;
/// The queues of services and groups, by number.
fn queues(config: &Config, merged: &Merged) -> HashMap<u16, QueueSettings> {
    let numbered = config.services.iter().zip(&merged.numbers);
    numbered.filter_map(|(settings, number)| Some((*number, settings.queue?))).collect()
}

/// The CORS of services, by number.
fn cors(config: &Config, merged: &Merged) -> HashMap<u16, Vec<Option<Cors>>> {
    let numbered = config.services.iter().zip(&merged.numbers).map(|(settings, number)| (*number, &settings.said.cors));
    let has_cors = numbered.filter(|(_, cors)| cors.iter().any(Option::is_some));
    has_cors.map(|(number, cors)| (number, cors.clone())).collect()
}

/// The error pages of services, by number.
fn pages(config: &Config, merged: &Merged) -> HashMap<u16, ServicePages> {
    let numbered = config.services.iter().zip(&merged.numbers);
    let has_pages = numbered.filter(|(settings, _)| !settings.said.pages.is_empty());
    has_pages.map(|(settings, number)| (*number, settings.said.pages.clone())).collect()
}

/// Who may ask for the routes of services, by number.
fn basic(config: &Config, merged: &Merged) -> HashMap<u16, Vec<Option<Arc<BasicAuth>>>> {
    let numbered = config.services.iter().zip(&merged.numbers);
    let asking = numbered.filter(|(settings, _)| !settings.said.basic.is_empty());
    asking.map(|(settings, number)| (*number, settings.said.basic.clone())).collect()
}

/// Services and groups, by number, whose backends speak HTTP/2.
fn http2_backends(config: &Config, merged: &Merged) -> HashSet<u16> {
    let numbered = config.services.iter().zip(&merged.numbers);
    numbered.filter(|(settings, _)| settings.backend_http2).map(|(_, number)| *number).collect()
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
    access_log: AccessLog,
    spans: Spans,
    /// Of changed files that could not be served.
    refused: Option<String>,
    /// Once this process has handed over.
    reporter: Option<DrainReporter>,
}

impl Drop for Termination {
    fn drop(&mut self) {
        // The last to write records: workers have ended before.
        drop(self.runtimes.take());
        self.access_log.end();
        // It makes the last spans of the last records.
        self.spans.end();
    }
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
            now: cpu::now,
            limits: parameters.limits.of_runtimes(),
            recorder: {
                let (access_log, bytes) = (parameters.access_log.clone(), parameters.record_bytes);
                Arc::new(move || access_log.recorder(bytes))
            },
            enter: |cpu| cpu::pin(cpu).with_context(|| format!("cannot pin a thread to core {cpu}")),
            thread_time: cpu::thread_time,
        };
        let cpus = cpus.into_iter().collect();
        let (access_log, spans) = (parameters.access_log.clone(), parameters.spans.clone());
        Termination { certificates, runtimes: None, options, cpus, access_log, spans, refused: None, reporter: None }
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
            queues: queues(config, merged),
            cors: cors(config, merged),
            pages: pages(config, merged),
            basic: basic(config, merged),
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
        of_file.zip(self.certificates.loaded()).filter_map(service).collect()
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
                tell(EventKind::Certificate, "certificates have changed on disk: those are served from now on");
                self.certificates = certificates;
                self.refused = None;
                true
            }
            Err(error) => {
                let why =
                    format!("certificates have changed on disk and cannot be served, so the old ones are: {error:#}");
                if self.refused.as_ref() != Some(&why) {
                    tell(EventKind::Certificate, &format!("warning: {why}"));
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
    pub(crate) fn drain(mut self, is_ended: impl Fn(Duration) -> bool) {
        let (Some(runtimes), Some(mut reporter)) = (self.runtimes.take(), self.reporter.take()) else { return };
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
                let told = format!(
                    "warning: {clients} HTTPS connections took longer than {} (`upgrade_drain_limit`) and end",
                    humantime::format_duration(limit)
                );
                return tell(EventKind::Limit, &told);
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
