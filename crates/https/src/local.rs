//! The state that the tasks of one core share.

use crate::backend::Pool;
use crate::basic::CredentialChecks;
use crate::control::Controls;
use crate::exchange::Client;
use crate::mirror::Mirrors;
use crate::queue::Queues;
use crate::retry_budget::RetryBudgets;
use crate::setup::{Configuration, Setup};
use hairpin_core::balance::{Balancer, EffectiveWeights, Loads};
use hairpin_core::config::Snapshot;
use hairpin_core::flow::Address;
use hairpin_core::keys::Secret;
use hairpin_core::l7::date::Date;
use hairpin_core::l7::edit::HEAD_ROOM;
use hairpin_core::l7::head::Request;
use hairpin_core::l7::splice::{Fault, HttpStatistics, Refused};
use hairpin_core::l7::trace::{IdMaker, TraceContext};
use hairpin_core::limit::{self, LimitTable, Limiting};
use hairpin_core::record::Recorder;
use hairpin_core::time::Time;
use hairpin_core::worker::{BackendStatistics, ServiceStatistics, class};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::SystemTime;

/// Bytes that are read at a time, and lie in the core's buffer until they are written.
pub(crate) const COPY_BYTES: usize = 256 * 1024;

/// The counters of one core, in the words of the workers' counters.
#[derive(Clone, Debug, Default)]
pub struct TerminationStatistics {
    /// By number of the service.
    pub services: Vec<ServiceStatistics>,
    /// By number of the backend.
    pub backends: Vec<BackendStatistics>,
    /// Of all services together.
    pub http: HttpStatistics,
    /// TLS handshakes completed, those of resumed sessions among them.
    pub handshakes: u64,
    /// TLS handshakes that resumed a session.
    pub resumed: u64,
    /// TLS handshakes that failed: no common version or cipher, no certificate, a client that went away.
    pub handshakes_failed: u64,
    /// TLS handshakes that took too long.
    pub handshakes_slow: u64,
    /// Connections from networks that begin with a header of the PROXY protocol, which began with none, or with a wrong one.
    pub proxy_headers_invalid: u64,
    /// TLS handshakes with backends that failed: nothing could be agreed on, or the backend's certificate was refused.
    pub backend_handshakes_failed: u64,
    /// Requests that were not sent to another backend, because too many were (`retry_percent`).
    pub retries_denied: u64,
    /// Requests that waited because their backends had as many as they may, or others waited before them.
    pub queued: u64,
    /// Copies of requests that were sent to another group.
    pub mirrored: u64,
    /// Copies that were not made, because as many as may be were on their way.
    pub mirrors_dropped: u64,
    /// Copies that got no whole response.
    pub mirrors_failed: u64,
    /// Preflights of CORS that Hairpin has answered.
    pub cors_preflights: u64,
    /// Clients that spoke clear-text HTTP where TLS was awaited.
    pub clear_text: u64,
    /// Handshakes of clients whose certificate has a subject that is too long to be passed on.
    pub client_subjects_too_long: u64,
    /// Handshakes of a CA that answered a challenge (tls-alpn-01).
    pub challenges: u64,
    /// Connections over HTTP/2.
    pub http2_connections: u64,
    /// Streams that clients have reset (RST_STREAM).
    pub http2_resets: u64,
    /// Streams refused because their connection had too many (REFUSED_STREAM): a client may send these requests again.
    pub http2_refused_streams: u64,
    /// Streams reset because what the client sent on them breaks HTTP/2.
    pub http2_malformed_streams: u64,
    /// Connections over HTTP/2 ended because what the client sent breaks HTTP/2.
    pub http2_malformed: u64,
    /// Connections over HTTP/2 ended because the client reset too many streams (ENHANCE_YOUR_CALM).
    pub http2_resets_excessive: u64,
    /// Connections over HTTP/2 ended because the client sent too much that is no request (ENHANCE_YOUR_CALM).
    pub http2_floods: u64,
    /// Connections over HTTP/2 ended because the preface, or a header block, did not come in time.
    pub http2_slow: u64,
    /// Connections over HTTP/2 broken off because the client did not close them after GOAWAY.
    pub http2_unclosed: u64,
    /// Clients' connections refused because there were too many.
    pub connections_refused: u64,
}

impl TerminationStatistics {
    /// The events of connections beside completed handshakes and requests, each with its name.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("handshake-failed", self.handshakes_failed),
            ("handshake-slow", self.handshakes_slow),
            ("proxy-header-invalid", self.proxy_headers_invalid),
            ("backend-handshake-failed", self.backend_handshakes_failed),
            ("retry-denied", self.retries_denied),
            ("queued", self.queued),
            ("mirrored", self.mirrored),
            ("mirror-dropped", self.mirrors_dropped),
            ("mirror-failed", self.mirrors_failed),
            ("cors-preflights", self.cors_preflights),
            ("clear-text", self.clear_text),
            ("client-subject-too-long", self.client_subjects_too_long),
            ("acme-challenges", self.challenges),
            ("http2-connections", self.http2_connections),
            ("http2-resets", self.http2_resets),
            ("http2-refused-streams", self.http2_refused_streams),
            ("http2-malformed-streams", self.http2_malformed_streams),
            ("http2-malformed", self.http2_malformed),
            ("http2-resets-excessive", self.http2_resets_excessive),
            ("http2-floods", self.http2_floods),
            ("http2-slow", self.http2_slow),
            ("http2-unclosed", self.http2_unclosed),
            ("connections-refused", self.connections_refused),
        ]
        .into_iter()
    }
}

/// The counters of one core, and the loads that it shares with others.
pub(crate) struct Counts {
    statistics: RefCell<TerminationStatistics>,
    loads: Loads,
    /// The clock of latencies, which is the workers'.
    now: fn() -> Time,
}

impl Counts {
    pub(crate) fn change(&self, change: impl FnOnce(&mut TerminationStatistics)) {
        change(&mut self.statistics.borrow_mut());
    }

    pub(crate) fn copy(&self) -> TerminationStatistics {
        self.statistics.borrow().clone()
    }

    fn resize(&self, snapshot: &Snapshot) {
        self.change(|statistics| {
            statistics.services.resize(snapshot.services.len(), ServiceStatistics::default());
            statistics.backends.resize(snapshot.backends() as usize, BackendStatistics::default());
        });
    }

    pub(crate) fn service(&self, number: u16, change: impl FnOnce(&mut ServiceStatistics)) {
        self.change(|statistics| {
            statistics.services.get_mut(usize::from(number)).into_iter().for_each(change_once(change))
        });
    }

    pub(crate) fn backend(&self, number: u16, change: impl FnOnce(&mut BackendStatistics)) {
        self.change(|statistics| {
            statistics.backends.get_mut(usize::from(number)).into_iter().for_each(change_once(change))
        });
    }

    /// A client of a service has sent a request.
    pub(crate) fn request(&self, service: u16) {
        self.change(|statistics| statistics.http.requests += 1);
        self.service(service, |service| service.requests += 1);
    }

    /// A client gets a response of Hairpin's own with this status.
    pub(crate) fn reply(&self, service: u16, status: u16) {
        self.change(|statistics| statistics.http.replies += 1);
        self.service(service, |service| service.replies[class(status)] += 1);
    }

    pub(crate) fn refused(&self, why: Refused) {
        self.change(|statistics| statistics.http.refused[why as usize] += 1);
    }

    pub(crate) fn failed(&self, backend: u16, fault: Fault) {
        self.backend(backend, |backend| backend.faults[fault as usize] += 1);
        self.slow(backend);
    }

    /// A backend has begun to answer a request, so many microseconds after that was sent.
    pub(crate) fn measured(&self, backend: u16, us: u32) {
        self.loads.latencies().measured(backend.into(), (self.now)(), us);
    }

    /// A backend has failed a request, or a connection: it counts as slow.
    pub(crate) fn slow(&self, backend: u16) {
        self.loads.latencies().failed(backend.into(), (self.now)());
    }

    /// A backend has a client's request, or has one no longer.
    pub(crate) fn load(&self, backend: u16, has: bool) {
        if has { self.loads.add(backend.into()) } else { self.loads.take(backend.into()) }
    }
}

/// `change` for the only element of an iterator.
fn change_once<T>(change: impl FnOnce(&mut T)) -> impl FnMut(&mut T) {
    let mut change = Some(change);
    move |value| {
        if let Some(change) = change.take() {
            change(value);
        }
    }
}

/// The state of one core.
pub(crate) struct Local {
    setup: RefCell<Rc<Setup>>,
    pub(crate) balancers: RefCell<Vec<Balancer>>,
    pub(crate) pool: RefCell<Pool>,
    /// Requests that wait for backends.
    pub(crate) queues: Rc<Queues>,
    /// Copies of requests.
    pub(crate) mirrors: Mirrors,
    /// Where credentials are checked.
    pub(crate) checks: CredentialChecks,
    pub(crate) counts: Rc<Counts>,
    /// Bytes that were read and are not written yet.
    pub(crate) copied: RefCell<Box<[u8]>>,
    /// Where heads are written: two of them.
    pub(crate) heads: RefCell<Box<[u8]>>,
    /// For shares among groups.
    pub(crate) turn: Cell<u32>,
    /// The secret of a balancer that shares none with others.
    pub(crate) secret: Secret,
    /// Makes the ids of traces.
    ids: RefCell<IdMaker>,
    /// Clients' connections at most.
    pub(crate) clients_max: usize,
    /// Clients' connections.
    pub(crate) controls: Controls,
    pub(crate) retry_budgets: RetryBudgets,
    effective_weights: EffectiveWeights,
    weights_seen: Cell<u32>,
    date: Cell<Option<(u64, Date)>>,
    /// Where records of exchanges go.
    pub(crate) recorder: Rc<RefCell<Recorder>>,
    /// The clock of records and limits.
    pub(crate) now: fn() -> Time,
    /// The clients of limits.
    limits: LimitTable,
    /// Which of how many cores.
    core: (u16, u16),
    seed: u64,
}

/// The parts that a core's state is made of.
pub(crate) struct LocalParts {
    pub(crate) loads: Loads,
    pub(crate) effective_weights: EffectiveWeights,
    pub(crate) secret: Secret,
    pub(crate) core: (u16, u16),
    pub(crate) seed: u64,
    pub(crate) clients_max: usize,
    pub(crate) recorder: Recorder,
    pub(crate) now: fn() -> Time,
    pub(crate) limits: LimitTable,
}

impl Local {
    pub(crate) fn new(parts: LocalParts, configuration: &Configuration) -> Rc<Local> {
        let LocalParts { loads, effective_weights, secret, core, seed, clients_max, recorder, now, limits } = parts;
        let counts = Rc::new(Counts { statistics: RefCell::default(), loads, now });
        let local = Rc::new(Local {
            setup: RefCell::new(Rc::new(Setup::new(configuration))),
            balancers: RefCell::default(),
            pool: RefCell::default(),
            queues: Rc::default(),
            mirrors: Mirrors::default(),
            checks: CredentialChecks::default(),
            counts,
            copied: RefCell::new(vec![0; COPY_BYTES].into()),
            heads: RefCell::new(vec![0; 2 * HEAD_ROOM].into()),
            turn: Cell::new(0),
            secret,
            ids: RefCell::new(IdMaker::new(secret, first_number(seed, core.0))),
            clients_max,
            controls: Controls::default(),
            retry_budgets: RetryBudgets::default(),
            effective_weights,
            weights_seen: Cell::new(0),
            date: Cell::new(None),
            recorder: Rc::new(RefCell::new(recorder)),
            now,
            limits,
            core,
            seed,
        });
        local.configure(configuration);
        local
    }

    /// Puts another configuration into force: for the next request of every connection.
    pub(crate) fn configure(&self, configuration: &Configuration) {
        let snapshot = &configuration.snapshot;
        let balancer = |(number, service): (u16, &hairpin_core::config::Service)| {
            let seed = self.seed.wrapping_add(u64::from(number));
            let tables = (&configuration.tables, number);
            let mut balancer = Balancer::with_table(service, tables, self.counts.loads.clone(), self.core, seed);
            balancer.refresh(&self.effective_weights);
            balancer
        };
        *self.balancers.borrow_mut() = (0..).zip(&snapshot.services).map(balancer).collect();
        self.weights_seen.set(self.effective_weights.version());
        self.counts.resize(snapshot);
        self.pool.borrow_mut().follow(snapshot);
        let setup = Rc::new(Setup::new(configuration));
        let before = self.setup.replace(Rc::clone(&setup));
        let [services, former] = [&setup.snapshot.services, &before.snapshot.services];
        if limit::have_new(services, former) {
            self.controls.each_held(|service, client| {
                limit::hold_anew(services, former, &self.limits, (service, client));
            });
        }
        self.controls.drain(|service| setup.continues(&before, service));
    }

    /// The configuration that is in force now.
    pub(crate) fn setup(&self) -> Rc<Setup> {
        Rc::clone(&self.setup.borrow())
    }

    /// The trace that a client's request belongs to, if its service's are marked.
    pub(crate) fn mark(&self, client: &Client, request: &Request<'_>) -> Option<TraceContext> {
        let setup = self.setup();
        let http = setup.http(client.service).filter(|http| http.is_marked())?;
        let mut ids = self.ids.borrow_mut();
        let number = ids.next_number();
        Some(TraceContext::of(http, request, &client.key.source.address, &ids.ids(number)))
    }

    /// Asks the limits of a service.
    pub(crate) fn limiting<R>(&self, service: u16, setup: &Setup, ask: impl FnOnce(&mut Limiting<'_>) -> R) -> R {
        let limits = setup.service(service).map_or(&[][..], |service| &service.limits[..]);
        if limits.is_empty() {
            return ask(&mut Limiting::none());
        }
        let mut statistics = self.counts.statistics.borrow_mut();
        let counts = statistics.services.get_mut(usize::from(service)).map(|service| &mut service.limits[..]);
        ask(&mut Limiting { limits, table: &self.limits, now: (self.now)(), counts: counts.unwrap_or_default() })
    }

    /// A client's connection that [`Limiting::connection`] has admitted has ended.
    pub(crate) fn release(&self, service: u16, client: &Address) {
        if let Some(service) = self.setup().service(service) {
            limit::release(&service.limits, &self.limits, client);
        }
    }

    /// Has balancers follow the health of backends.
    pub(crate) fn refresh(&self) {
        let version = self.effective_weights.version();
        if self.weights_seen.replace(version) != version {
            let mut balancers = self.balancers.borrow_mut();
            balancers.iter_mut().for_each(|balancer| balancer.refresh(&self.effective_weights));
        }
    }

    /// The time of day, as responses of Hairpin's own have it.
    pub(crate) fn date(&self) -> Option<Date> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
        match self.date.get() {
            Some((second, date)) if second == now => Some(date),
            _ => {
                let date = Date::new(now);
                self.date.set(Some((now, date)));
                Some(date)
            }
        }
    }
}

/// Where the numbers of a core's ids begin. The secret outlives the process, so every process begins elsewhere.
fn first_number(seed: u64, core: u16) -> u64 {
    seed.wrapping_add(u64::from(core) << 48)
}
