//! A request on its way: which backend it goes to, and how the heads of request and response change. `judge` decides whether it
//! goes anywhere.

mod account;
mod judge;
mod own;

pub(crate) use judge::{Judged, judge};
pub(crate) use own::{plain, refusal};

use crate::backend::{BackendConn, is_no_room};
use crate::basic::PendingCheck;
use crate::client_certificate::ClientCertificate;
use crate::control::Control;
use crate::cors::CorsFields;
use crate::forward_auth::{Permission, Question};
use crate::http2_backend::{Unfit, Ways};
use crate::lease::Lease;
use crate::local::Local;
use crate::pages::Place;
use crate::recording::Recording;
use crate::setup::Setup;
use hairpin_core::balance::Demand;
use hairpin_core::config::BackendState;
use hairpin_core::flow::{Endpoint, FlowKey};
use hairpin_core::l7::body::Length;
use hairpin_core::l7::choice;
use hairpin_core::l7::config::{Group, Http, HttpLimits, Route};
use hairpin_core::l7::edit::{self, Facts, HEAD_ROOM};
use hairpin_core::l7::head::{self, Bounds, Method, ParseStatus, Request, Version};
use hairpin_core::l7::proxy_protocol;
use hairpin_core::l7::splice::Refused;
use hairpin_core::l7::trace::TraceContext;
use hairpin_core::record;
use std::io;
use std::rc::Rc;
use tokio::time::Instant;

/// A client's connection, as requests see it.
#[derive(Clone)]
pub(crate) struct Client {
    /// The number of its service.
    pub(crate) service: u16,
    /// From the client to the VIP.
    pub(crate) key: FlowKey,
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
    /// Whether it speaks HTTP/2.
    pub(crate) http2: bool,
    /// The certificate that the client showed.
    pub(crate) certificate: Option<Rc<ClientCertificate>>,
    /// How it is told to end.
    pub(crate) control: Rc<Control>,
}

/// A request that goes to a backend.
pub(crate) struct Exchange {
    setup: Rc<Setup>,
    client: Client,
    /// The route it takes, by its place in the service.
    route: usize,
    group: Group,
    pub(crate) method: Method,
    version: Version,
    /// The request's body.
    pub(crate) body: Length,
    /// Bytes of the request's head.
    pub(crate) head_bytes: usize,
    pub(crate) upgrade: bool,
    is_idempotent: bool,
    /// The last one of its client's connection.
    pub(crate) close_client: bool,
    close_backend: bool,
    started: Instant,
    chosen_in_us: u32,
    tries: u8,
    /// The request has been sent before, on a connection that was lost.
    is_again: bool,
    /// How often it was sent to another backend for the status of a response.
    retries: u8,
    /// The configuration that the backend was chosen by.
    chosen_by: Rc<Setup>,
    /// The backend's number and end, once it is chosen.
    backend: Option<(u16, Endpoint)>,
    /// The value of the client's cookie.
    asked_for: Option<u64>,
    /// The hash of the part of the request that chooses the backend.
    hash: Option<u64>,
    /// Its part of the load of its backend.
    lease: Option<Lease>,
    /// The value of the cookie to set.
    sticky: Option<u64>,
    /// The fields of CORS for its response, if its route has CORS.
    cors: Option<CorsFields>,
    /// Its credentials, until they have been checked.
    pending: Option<PendingCheck>,
    /// The trace it belongs to, if its service's are marked.
    trace: Option<TraceContext>,
    /// Its record, if one is kept.
    recording: Option<Box<Recording>>,
    /// The question whether it may go on, until it has been answered.
    question: Option<Question>,
    /// Lines of fields that are added to its head behind all edits: those that the answer gave it.
    pub(crate) granted: Vec<u8>,
    /// The answer that the client gets instead.
    denied: Option<Vec<u8>>,
    /// It is no client's: its times do not count.
    is_aside: bool,
    /// The route that it has instead of one of its service, and bounds of its head.
    own: Option<(Box<Route>, Bounds)>,
}

/// The head of a response, as it goes on.
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// Bytes of the backend's head.
    pub(crate) head_bytes: usize,
    /// The head that goes to the client, if it is not the backend's.
    pub(crate) written: Option<Vec<u8>>,
    pub(crate) body: Length,
    /// Whether the backend keeps the connection.
    pub(crate) keep_alive: bool,
}

impl Answered {
    /// Whether another response follows to the same request.
    pub(crate) fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// Whether its backend's connection can be kept without reading on: it is `response`, and has no body.
    pub(crate) fn leaves_clean(&self, response: &[u8]) -> bool {
        self.keep_alive && self.body == Length::None && response.len() == self.head_bytes
    }
}

/// The status for a client whose request's backend cannot be connected to.
fn unreachable(local: &Local, error: &io::Error) -> (u16, Refused) {
    if is_no_room(error) {
        // Idle connections give way.
        local.pool.borrow_mut().clear();
        return (503, Refused::NoRoom);
    }
    match error.kind() {
        io::ErrorKind::TimedOut => (504, Refused::ConnectTimeout),
        _ => (502, Refused::Unreachable),
    }
}

/// The status for a client whose request cannot go to its backend by HTTP/2.
pub(crate) fn unfit(unfit: Unfit) -> (u16, Refused) {
    match unfit {
        Unfit::Head => (400, Refused::Malformed),
        Unfit::WebSocket => (501, Refused::Tunnel),
    }
}

impl Exchange {
    pub(crate) fn new(
        setup: &Rc<Setup>,
        client: Client,
        http: &Http,
        request: &Request<'_>,
        (route, group): (u16, Group),
        close_client: bool,
    ) -> Exchange {
        let service = client.service;
        Exchange {
            setup: Rc::clone(setup),
            client,
            route: usize::from(route),
            group,
            method: request.method,
            version: request.version,
            body: request.body,
            head_bytes: request.bytes.len(),
            upgrade: request.upgrade,
            is_idempotent: request.method.is_idempotent(),
            close_client,
            close_backend: !http.reuse || request.version == Version::Http10 && !request.keep_alive,
            started: Instant::now(),
            chosen_in_us: 0,
            tries: 0,
            is_again: false,
            retries: 0,
            chosen_by: Rc::clone(setup),
            backend: None,
            asked_for: http.sticky.as_ref().and_then(|sticky| edit::sticky_value(request, sticky)),
            hash: setup.service(group).and_then(|group| choice::hash(group, request)),
            lease: None,
            sticky: None,
            cors: setup.cors(service, route).map(|cors| cors.fields(request)),
            pending: None,
            trace: None,
            recording: None,
            question: None,
            granted: Vec::new(),
            denied: None,
            is_aside: false,
            own: None,
        }
    }

    /// It is a request beside a client's, of this trace. `own`: its route and the bounds of its head, if they are not those of its
    /// service.
    pub(crate) fn set_aside(&mut self, trace: Option<TraceContext>, own: Option<(Box<Route>, Bounds)>) {
        (self.is_aside, self.trace, self.own, self.cors) = (true, trace, own, None);
    }

    /// The route whose error pages its responses have.
    fn place(&self) -> Place<'_> {
        let route = u16::try_from(self.route).unwrap_or(record::NONE);
        Place { setup: &self.setup, service: self.client.service, route }
    }

    /// The service's number.
    pub(crate) fn service(&self) -> u16 {
        self.client.service
    }

    /// The service's HTTP, as it was when the request was judged.
    pub(crate) fn http(&self) -> Option<&Http> {
        self.setup.http(self.client.service)
    }

    /// Whether the client speaks HTTP/1.0, which knows no interim responses (RFC 9110, 15.2).
    pub(crate) fn is_http10(&self) -> bool {
        self.version == Version::Http10
    }

    fn route(&self) -> Option<&Route> {
        match &self.own {
            Some((route, _)) => Some(route),
            None => self.http()?.routes.get(self.route),
        }
    }

    /// The limits that hold for it.
    pub(crate) fn limits(&self) -> Option<HttpLimits> {
        let limits = self.http()?.limits;
        let terms = self.route().map(|route| &route.terms);
        let (response, body) = terms.map_or((None, None), |terms| (terms.response_timeout, terms.body_timeout));
        Some(HttpLimits {
            response_timeout: response.unwrap_or(limits.response_timeout),
            body_timeout: body.unwrap_or(limits.body_timeout),
            ..limits
        })
    }

    /// Whether a request goes to another backend for the status of its response, of which the client has seen nothing.
    /// `is_untouched`: all of the request is still there.
    pub(crate) fn retries(&mut self, local: &Local, status: u16, is_untouched: bool) -> bool {
        let Some((retries, retry_status)) = self.route().map(|route| (route.terms.retries, route.terms.retry_status))
        else {
            return false;
        };
        let may = is_untouched && self.is_idempotent && self.retries < retries;
        if !may || !retry_status.contains(status) {
            return false;
        }
        let percent = self.http().map_or(0, |http| http.limits.retry_percent);
        if !local.retry_budgets.spend(self.client.service, percent) {
            local.counts.change(|statistics| statistics.retries_denied += 1);
            return false;
        }
        self.retries += 1;
        local.counts.change(|statistics| statistics.http.retries += 1);
        true
    }

    /// Chooses a backend: its number and end.
    ///
    /// # Errors
    /// No backend takes requests, or those that do have as many as they may.
    fn choose(&mut self, local: &Local) -> Result<(u16, Endpoint), Refused> {
        local.refresh();
        let mut balancers = local.balancers.borrow_mut();
        let balancer = balancers.get_mut(usize::from(self.group)).ok_or(Refused::NoBackend)?;
        // The balancers are those of the configuration in force, which may be a later one.
        let setup = local.setup();
        let snapshot = &setup.snapshot;
        // The cookie counts for the first try.
        let asked_for = self.asked_for.filter(|_| self.tries == 0);
        let stuck = asked_for.and_then(|value| choice::stuck_to(snapshot, balancer, self.group, value, local.secret));
        let failed = self.backend.filter(|_| self.tries > 0).map(|(number, _)| number);
        let demand = Demand { flow: &self.client.key, hash: self.hash, now: (local.now)() };
        let backend = choice::choose(snapshot, balancer, self.group, &demand, stuck, failed)?;
        self.tries += 1;
        self.chosen_by = Rc::clone(&setup);
        self.lease = Some(Lease::new(local, self.group, backend.number));
        self.backend = Some((backend.number, backend.endpoint));
        if let Some(recording) = &self.recording {
            recording.note(|record| {
                (record.backend, record.group) = (backend.number, self.group);
                record.tries = self.tries;
            });
        }
        self.client.control.set_backend(Some(backend.number));
        let wants_cookie = self.http().is_some_and(|http| http.sticky.is_some());
        let has_cookie = stuck.is_some_and(|stuck| !stuck.is_stale);
        self.sticky =
            (wants_cookie && !has_cookie).then(|| choice::sticky_value(snapshot, backend.endpoint, local.secret));
        Ok((backend.number, backend.endpoint))
    }

    /// [`Exchange::choose`], for which the request waits if its group has a queue.
    async fn choose_in_turn(&mut self, local: &Local) -> Result<(u16, Endpoint), Refused> {
        // The backend before counts no longer: those that wait before this request may be waiting for it.
        self.lease = None;
        let Some(queue) = self.setup.queue(self.group) else { return self.choose(local) };
        let priority = self.route().map_or(0, |route| route.terms.priority);
        if !local.queues.precede(self.group, priority) {
            match self.choose(local) {
                Err(Refused::BackendsFull) => {}
                other => return other,
            }
        }
        local.counts.change(|statistics| statistics.queued += 1);
        local.queues.wait((self.group, priority), queue, || self.choose(local)).await
    }

    /// The credentials that the client is asked for, if it is refused with this status for its lack of them.
    fn challenge(&self, status: u16) -> Option<Vec<u8>> {
        let guard = self.setup.guard(self.client.service, u16::try_from(self.route).ok()?).ok().flatten();
        guard.filter(|_| status == 401).map(|guard| guard.challenge().to_vec())
    }

    /// A connection to a backend for the request, an idle one or a new one, once its credentials are known to be right.
    ///
    /// # Errors
    /// The status that the client gets, and why.
    pub(crate) async fn acquire(&mut self, local: &Local) -> Result<BackendConn, (u16, Refused)> {
        if let Some(pending) = self.pending.take() {
            local.checks.check(pending).await?;
        }
        if let Some(question) = self.question.take() {
            // Boxed: it has an exchange of its own.
            match Box::pin(question.ask(local, &self.setup, &self.client)).await {
                Some(Permission::Granted(lines)) => self.granted = lines,
                Some(Permission::Denied { status, response }) => {
                    self.denied = Some(response);
                    return Err((status, Refused::Unauthorized));
                }
                None => return Err((503, Refused::AuthenticationFailed)),
            }
        }
        loop {
            let (number, endpoint) = self.choose_in_turn(local).await.map_err(|why| (503, why))?;
            let shares = self.http().is_some_and(|http| http.reuse);
            let tls = self.chosen_by.backend_tls(self.group);
            let is_kept = shares && !self.chosen_by.has_http2_backends(self.group);
            let idle = if is_kept { local.pool.borrow_mut().take(number, tls) } else { None };
            let conn = match idle {
                Some(conn) => Ok(conn),
                None => self.connect(local, number, endpoint).await,
            };
            let tries = self.http().map_or(1, |http| http.limits.connect_tries);
            match conn {
                Ok(conn) => {
                    self.chosen_in_us = u32::try_from(self.started.elapsed().as_micros()).unwrap_or(u32::MAX);
                    if let Some(recording) = &self.recording {
                        let us = recording.so_far();
                        recording.note(|record| record.to_backend_us = record.to_backend_us.min(us));
                    }
                    if self.retries == 0 && !self.is_aside {
                        self.timed(local, |times| &mut times.to_backend);
                    }
                    return Ok(conn);
                }
                Err(error) if self.tries < tries && !is_no_room(&error) => {
                    local.counts.change(|statistics| statistics.http.retries += 1);
                }
                Err(error) => return Err(unreachable(local, &error)),
            }
        }
    }

    /// Whether a request is sent once more whose connection was lost before a byte of its response had come. `is_reused`: the
    /// connection had served others, so that the backend may have closed it just then; `is_untouched`: all of the request is
    /// still there.
    pub(crate) fn may_go_again(&self, conn: &BackendConn, is_reused: bool, is_untouched: bool) -> bool {
        is_untouched && !self.is_again && (conn.stream.is_refused() || is_reused && self.is_idempotent)
    }

    /// A new connection to the backend that was chosen.
    ///
    /// # Errors
    /// The status that the client gets, and why.
    pub(crate) async fn connect_again(&mut self, local: &Local) -> Result<BackendConn, (u16, Refused)> {
        let (number, endpoint) = self.backend.ok_or((503, Refused::NoBackend))?;
        self.is_again = true;
        local.counts.change(|statistics| statistics.http.retries += 1);
        self.connect(local, number, endpoint).await.map_err(|error| unreachable(local, &error))
    }

    async fn connect(&self, local: &Local, number: u16, endpoint: Endpoint) -> io::Result<BackendConn> {
        let http = self.http().ok_or(io::ErrorKind::NotFound)?;
        // As long as the request takes: a later configuration may have the backend no longer, and say nothing of its TLS.
        let tls = self.chosen_by.backend_tls(self.group);
        let within = http.limits.connect_timeout;
        if self.chosen_by.has_http2_backends(self.group) {
            let conns = if http.reuse { local.pool.borrow_mut().http2(number) } else { Rc::default() };
            return BackendConn::http2(&local.counts, number, &conns, &Ways { endpoint, tls, within }).await;
        }
        let mut preface = Vec::new();
        if let Some(version) = http.proxy_protocol.filter(|_| tls.is_some()) {
            let (client, vip) = (self.client.key.source, self.client.key.destination);
            let mut heads = local.heads.borrow_mut();
            let length =
                proxy_protocol::write(&mut heads, version, client, vip).map_err(|_| io::ErrorKind::InvalidInput)?;
            preface.extend_from_slice(&heads[..length]);
        }
        BackendConn::connect(&local.counts, number, endpoint, (tls, &preface), within).await
    }

    fn facts(&self) -> Facts<'_> {
        let snapshot = &self.setup.snapshot;
        let backend = self.backend.and_then(|(number, _)| snapshot.backend(number));
        Facts {
            client: self.client.key.source,
            vip: self.client.key.destination,
            backend: backend.map_or("", |(_, backend)| &backend.name),
            service: self.setup.service(self.client.service).map_or("", |service| &service.name),
            https: self.client.tls,
            client_certificate: self.client.certificate.as_deref().map(ClientCertificate::facts),
            trace: self.trace.as_ref(),
            sticky: self.sticky,
            close_client: self.close_client,
            chosen_in_us: self.chosen_in_us,
        }
    }

    /// What `conn` is sent for the request whose head is `bytes`: the head that goes on, behind what a new connection begins
    /// with. `None`: it has no room.
    pub(crate) fn request_head(&self, local: &Local, bytes: &[u8], conn: &BackendConn) -> Option<Vec<u8>> {
        let (http, route) = (self.http()?, self.route()?);
        let bounds = self.own.as_ref().map_or_else(|| http.limits.head_bounds(), |(_, bounds)| *bounds);
        let read = head::request(bytes, &bounds);
        let Ok(ParseStatus::Complete(request)) = &read else { return None };
        let mut heads = local.heads.borrow_mut();
        let mut before = 0;
        // Before TLS it has been sent already.
        if let Some(version) = http.proxy_protocol.filter(|_| conn.requests == 0 && conn.stream.is_plain()) {
            before =
                proxy_protocol::write(&mut heads, version, self.client.key.source, self.client.key.destination).ok()?;
        }
        let room = &mut heads[before..before + HEAD_ROOM];
        let length = edit::request_head(room, request, http, route, &self.facts()).ok()?;
        let mut written = heads[..before + length].to_vec();
        // In front of the empty line.
        let end = written.len().checked_sub(2)?;
        written.splice(end..end, self.granted.iter().copied());
        Some(written)
    }

    /// Reads the head of a response at the start of `bytes`, and writes the one that goes to the client.
    ///
    /// # Errors
    /// The bytes are no response that could be passed on.
    pub(crate) fn response_head(&self, local: &Local, bytes: &[u8]) -> Result<ParseStatus<Answered>, ()> {
        let (http, route) = (self.http().ok_or(())?, self.route().ok_or(())?);
        let read = head::response(bytes, &http.limits.head_bounds(), self.method);
        let response = match &read {
            Ok(ParseStatus::Partial) => return Ok(ParseStatus::Partial),
            Ok(ParseStatus::Complete(response)) => response,
            Err(_) => return Err(()),
        };
        // Behind a 101 nothing is read any more: one that the client has not asked for would let it past the routes.
        let is_unasked = response.status == 101 && !self.upgrade;
        if is_unasked || !edit::can_go_to(response, self.version) {
            return Err(());
        }
        let mut heads = local.heads.borrow_mut();
        let out = &mut heads[..HEAD_ROOM];
        let written = edit::response_head(out, response, self.version, http, route, &self.facts()).map_err(|_| ())?;
        let written = written.map(|length| &out[..length]);
        // Interim responses are not edited, and a tunnel is no concern of CORS (Fetch, 3.2).
        let written = match self.cors.as_ref().filter(|_| response.status >= 200) {
            Some(cors) => Some(cors.put_into(written.unwrap_or(response.bytes))),
            None => written.map(<[u8]>::to_vec),
        };
        let answered = Answered {
            status: response.status,
            head_bytes: response.bytes.len(),
            written,
            body: response.body,
            keep_alive: response.keep_alive,
        };
        match answered.is_interim() {
            true => self.count(local, response.status),
            false => self.health(local, response.status),
        }
        Ok(ParseStatus::Complete(answered))
    }

    /// Keeps a connection whose response is complete for other requests, if both sides do.
    pub(crate) fn keep(&self, local: &Local, conn: BackendConn, keep_alive: bool) {
        // As the configuration in force has it: the backend may have been disabled meanwhile.
        let setup = local.setup();
        let takes = setup.snapshot.backend(conn.number).is_some_and(|(_, backend)| {
            backend.state == BackendState::Enabled && self.backend == Some((backend.number, backend.endpoint))
        });
        let idle_max = match self.http() {
            Some(http) if keep_alive && takes && !self.close_backend => http.limits.idle_per_backend_max,
            _ => 0,
        };
        local.pool.borrow_mut().keep(conn, idle_max);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.client.control.set_backend(None);
    }
}
