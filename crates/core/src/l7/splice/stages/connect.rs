//! From a request to its backend: which one, over which connection, and sending it.

use super::remove::Detach;
use super::request::RequestWriter;
use crate::balance::Demand;
use crate::flow::Direction;
use crate::frame::FrameIo;
use crate::keys::{Purpose, Secret};
use crate::l7::choice::{self, Stuck};
use crate::l7::config::{Action, Edits, Group, Kind, Route, RouteTerms};
use crate::l7::edit::Facts;
use crate::l7::head;
use crate::l7::route::Conditions;
use crate::l7::sequence::SequenceMap;
use crate::l7::splice::rules::window_clamp;
use crate::l7::splice::state::buffers::{Buffer, Buffers};
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::{Exchange, Message, NO_LENGTH};
use crate::l7::splice::state::joined::joined_mut;
use crate::l7::splice::state::peer::{Owned, Peer};
use crate::l7::splice::state::sizes::{self, Shape};
use crate::l7::splice::tcp::numbers::later;
use crate::l7::splice::tcp::segment::{Abilities, flow};
use crate::l7::splice::tcp::timestamps;
use crate::l7::splice::{Context, End, Next, REMEMBERED_MAX, Refused, Splices, stamp};
use crate::l7::trace::TraceContext;
use crate::offload::OffloadState;
use crate::record::IS_KEPT;
use crate::stored::Optional;
use crate::time::Duration;
use alloc::boxed::Box;

/// How long a backend has for its SYN-ACK before the SYN is sent again; doubled each time.
const SYN_AGAIN_AFTER: Duration = Duration::from_millis(250);

impl Splices {
    /// Bounds of connecting, by service: how long, how often.
    fn connect_bounds<IO: FrameIo>(cx: &Context<'_, IO>, service: u16) -> (Duration, u8) {
        match cx.kind(service) {
            Kind::Http(http) => (http.limits.connect_timeout, http.limits.connect_tries),
            Kind::Tls(tls) => (tls.connect_timeout, tls.connect_tries),
            Kind::Forward | Kind::Terminated(_) | Kind::Group => (Duration::from_secs(1), 1),
        }
    }

    /// A request begins: it is given a backend.
    pub(in crate::l7::splice) fn begin<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        position: u32,
        exchange: Exchange,
        sticky: Option<u64>,
    ) -> Next {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        let stuck = sticky.and_then(|value| Self::stuck_to(cx, exchange.group, value));
        client_conn.exchange = exchange;
        client_conn.state = ClientConnState::Waiting;
        match client_conn.choose(cx, stuck) {
            Ok(()) => self.go(cx, position),
            Err(why) => self.refused(cx, position, 503, why),
        }
    }

    /// The backend of a group that a cookie names, if it takes requests.
    fn stuck_to<IO: FrameIo>(cx: &Context<'_, IO>, group: Group, value: u64) -> Option<Stuck> {
        let balancer = cx.balancers.get(usize::from(group))?;
        choice::stuck_to(cx.snapshot, balancer, group, value, Secret::new(cx.steering.key))
    }

    /// The backend that was chosen is of no use: another one is chosen, and gone to.
    fn go_elsewhere<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        match client_conn.choose(cx, None) {
            Ok(()) => self.go(cx, position),
            Err(why) => self.refused(cx, position, 503, why),
        }
    }

    /// Goes to the chosen backend: by the connection at hand, an idle one, a new one.
    pub(in crate::l7::splice) fn go<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        let (number, attached) = (client_conn.exchange.backend, client_conn.backend_conn.get());
        let is_usable = |entry: &BackendConn| {
            entry.number == number
                && entry.state == BackendConnState::Attached
                && !entry.peer.has_closed
                && !entry.is_spent
                && !client_conn.is_offloaded_down_only()
        };
        if attached.and_then(|attached| self.backend_conns.get(attached)).is_some_and(is_usable) {
            cx.statistics.http.reused += 1;
            return self.dispatch(cx, position);
        }
        if client_conn.pair.state() != OffloadState::Software {
            // The engine still leads to another one, which may have gone already, or would take the next response for the last
            // one's: on when it has answered.
            self.remove_rules(cx, position);
            return Next::Done;
        }
        // One that is sent again goes over a new connection, so that it is sent again once.
        let is_again = client_conn.again.is_some();
        let shape = Shape::of(asked(cx, client_conn), client_conn.key.is_ipv4(), client_conn.peer.has_timestamps);
        if attached.is_some() {
            self.detach(cx, position, Detach::Keep);
        }
        if let Some(idle) = self.idle.youngest(number, shape).filter(|_| !is_again) {
            return self.reuse(cx, position, idle);
        }
        self.connect(cx, position)
    }

    /// Goes over an idle connection.
    fn reuse<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, idle: u32) -> Next {
        self.idle.remove(&mut self.backend_conns, idle);
        self.attach(cx, position, idle);
        cx.statistics.http.reused += 1;
        self.dispatch(cx, position)
    }

    /// There is no room for a new connection: an idle one will do whose segments are cut for the client.
    fn make_do<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let client_conn = self.client_conns.get(position).filter(|client_conn| client_conn.again.is_none());
        match client_conn.and_then(|client_conn| self.idle.any(client_conn.exchange.backend)) {
            Some(idle) => self.reuse(cx, position, idle),
            None => self.refused(cx, position, 503, Refused::NoRoom),
        }
    }

    /// Gives an idle or new backend connection to a client connection. It counts towards its backend's load as long as one
    /// has it.
    fn attach<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, backend_conn: u32) {
        if let (Some(client_conn), Some(entry)) =
            (self.client_conns.get_mut(position), self.backend_conns.get_mut(backend_conn))
        {
            entry.count(cx, true);
            client_conn.backend_conn = Some(backend_conn).into();
            entry.client_conn = Some(position).into();
            (client_conn.clock_up, client_conn.clock_down) = Default::default();
            entry.pairing = self.seals.pair(Some(client_conn.seal), entry.seal);
            if entry.state == BackendConnState::Idle {
                entry.state = BackendConnState::Attached;
            }
        }
    }

    /// Begins a new connection to the chosen backend.
    pub(in crate::l7::splice) fn connect<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        let (number, port, service) = (client_conn.exchange.backend, client_conn.port, client_conn.service);
        let (asked, offers_timestamps) = (asked(cx, client_conn), client_conn.peer.has_timestamps);
        let (timeout, _) = Self::connect_bounds(cx, service);
        let Some(endpoint) = cx.snapshot.backend(number).map(|(_, backend)| backend.endpoint) else {
            return self.refused(cx, position, 503, Refused::NoBackend);
        };
        let Ok(source) = cx.ports.take(cx.now, u32::from(number)) else { return self.make_do(cx, position) };
        // A clock of 4 microseconds, and a secret of the ends (RFC 6528), so that the numbers of a connection lie beyond
        // those of the last one between the same ends.
        let clock = (cx.now.as_nanos() >> 12) as u32;
        let first = clock.wrapping_add(cx.steering.secret(Purpose::Sequence, &[source, endpoint]) as u32);
        let abilities = Abilities { mss: u16::MAX, scale: None, sack: false, timestamps: None };
        let key = flow(endpoint, source);
        let mut peer = Peer::new(0, first.wrapping_add(1), &abilities);
        peer.timestamp_sent = cx.clock();
        let backend_conn = BackendConn {
            port,
            client_conn: Some(position).into(),
            deadline: cx.now + timeout,
            again: cx.now + SYN_AGAIN_AFTER,
            idle_max: idle_max(cx.kind(service)),
            asked,
            offers_timestamps,
            ..BackendConn::new(cx.now, &key, number, peer)
        };
        let again = backend_conn.again;
        let made = self.add_backend(backend_conn).filter(|&made| {
            let indexed = self.find(&key).is_none() && self.index(&key, made, Direction::FromBackend);
            if !indexed {
                self.backend_conns.forget(made);
            }
            indexed
        });
        let Some(made) = made else {
            cx.ports.release(cx.now, u32::from(number), source, false);
            return self.make_do(cx, position);
        };
        cx.known.add(cx.steering.hash(&source));
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(number)) {
            backend.connections += 1;
            backend.connections_now += 1;
            backend.open_now += 1;
        }
        cx.statistics.http.backend_conns_now = self.backend_conns.len().into();
        self.attach(cx, position, made);
        self.stamp_backend(made, again);
        self.send_syn(cx, made);
        Next::Done
    }

    /// Sends a SYN again that was not answered.
    pub(in crate::l7::splice) fn connect_again<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, backend_conn: u32) {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.again = cx.now + SYN_AGAIN_AFTER * (1 << entry.tries.min(6));
        entry.tries = entry.tries.saturating_add(1);
        let next = entry.again.min(entry.deadline);
        self.stamp_backend(backend_conn, next);
        self.send_syn(cx, backend_conn);
    }

    /// The backend has taken the connection up.
    pub(in crate::l7::splice) fn connected<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        backend_conn: u32,
        expected: u32,
        abilities: &Abilities,
        window: u16,
    ) -> Next {
        let Some(entry) = self.backend_conns.get_mut(backend_conn) else { return cx.impossible() };
        entry.state = BackendConnState::Attached;
        let (sent, timestamps) = (entry.peer.sent, abilities.timestamps.filter(|_| entry.offers_timestamps));
        cx.statistics.http.timestamps_declined += u64::from(entry.offers_timestamps && timestamps.is_none());
        entry.peer = Peer::new(expected, sent, &Abilities { timestamps, ..*abilities });
        // A SYN's window is never scaled (RFC 7323, 2.2).
        entry.peer.window = u32::from(window);
        let (number, client_conn) = (entry.number, entry.client_conn.get());
        let service = client_conn
            .and_then(|client_conn| self.client_conns.get(client_conn))
            .map(|client_conn| client_conn.service);
        cx.took_up(number, service);
        match client_conn {
            Some(position) => self.dispatch(cx, position),
            None => {
                self.rest(cx, backend_conn);
                Next::Done
            }
        }
    }

    /// Whether a backend agrees to less than its SYN offered, window scale and SACK, and another one can be tried. The last
    /// of them serves all the same: Linux agrees to neither under its own SYN cookies, and all may be flooded. So does the
    /// only one that a client is to have.
    pub(in crate::l7::splice) fn would_rather<IO: FrameIo>(
        &self,
        cx: &Context<'_, IO>,
        backend_conn: u32,
        agreed: &Abilities,
    ) -> bool {
        let position = self.backend_conns.get(backend_conn).and_then(|entry| entry.client_conn.get());
        let Some(client_conn) = position.and_then(|position| self.client_conns.get(position)) else { return false };
        let group = usize::from(client_conn.exchange.group);
        let is_free = cx.snapshot.services.get(group).is_some_and(|group| !group.algorithm.has_affinity());
        let is_less = agreed.scale.is_none() || !agreed.sack;
        let has_other = cx.balancers.get(group).is_some_and(|balancer| balancer.open().len() > 1);
        let may_try = client_conn.exchange.tries < Self::connect_bounds(cx, client_conn.service).1;
        is_less && is_free && !client_conn.exchange.is_stuck && client_conn.again.is_none() && has_other && may_try
    }

    /// Resets a connection that has just come to be, and tries another backend. Its port can be another's at once: nothing was
    /// sent over it.
    pub(in crate::l7::splice) fn skip_backend<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        backend_conn: u32,
    ) -> Next {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let (position, sent) = (entry.client_conn.get(), entry.peer.sent);
        self.reset_unopened(cx, backend_conn, sent);
        self.remove_backend(cx, backend_conn, false);
        let Some((position, client_conn)) = position.and_then(|at| Some((at, self.client_conns.get_mut(at)?))) else {
            return Next::Done;
        };
        client_conn.backend_conn = None.into();
        cx.statistics.http.skipped += 1;
        self.go_elsewhere(cx, position)
    }

    /// A backend cannot be connected to: another one, or the client is told.
    pub(in crate::l7::splice) fn unconnected<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        backend_conn: u32,
        why: Refused,
    ) -> Next {
        let Some(entry) = self.backend_conns.get(backend_conn) else { return cx.impossible() };
        let (position, number, failed) = (entry.client_conn.get(), entry.number, !entry.is_unwanted);
        if let Some(backend) = cx.statistics.backends.get_mut(usize::from(number)) {
            backend.failed += u64::from(failed);
        }
        if failed {
            cx.loads.latencies().failed(number.into(), cx.now);
        }
        self.remove_backend(cx, backend_conn, false);
        let Some(position) = position else { return cx.impossible() };
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        client_conn.backend_conn = None.into();
        if let Some(again) = client_conn.again.take() {
            // It has been on its way to this one, and was written for it: no other gets it.
            self.buffers.release(again.buffer);
            return self.refused(cx, position, 502, Refused::BackendClosed);
        }
        if client_conn.exchange.tries < Self::connect_bounds(cx, client_conn.service).1 {
            cx.statistics.http.retries += 1;
            return self.go_elsewhere(cx, position);
        }
        let status = if why == Refused::ConnectTimeout { 504 } else { 502 };
        self.refused(cx, position, status, why)
    }

    /// Sends the request at hand over the client connection's backend connection, and splices the two.
    fn dispatch<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) -> Next {
        let Splices { client_conns, backend_conns, buffers, scratch, remembered, stamps, configurations, ids, .. } =
            self;
        let uses = client_conns.generation(position);
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else {
            return cx.impossible();
        };
        let is_again = client_conn.again.is_some();
        let (owned, taken, request) = if let Some(again) = client_conn.again.take() {
            (again.buffer, again.bytes, Message::Done)
        } else {
            if client_conn.exchange.generation != configurations.number() {
                // The configuration has become another one while the request waited: it is decided anew.
                client_conn.state = ClientConnState::Reading;
                self.decided_anew = Some(position);
                return Next::Read(position);
            }
            let head_of = (position, uses, client_conn.requests);
            let remembered = remembered[position as usize % REMEMBERED_MAX].as_ref().filter(|(of, _)| *of == head_of);
            let remembered = remembered.map(|(_, request)| request);
            let mut writer = RequestWriter { buffers, scratch, ids, remembered };
            match writer.prepare(cx, client_conn, backend_conn) {
                Ok(ready) => ready,
                Err((status, why)) => return self.refused(cx, position, status, why),
            }
        };
        client_conn.exchange.chosen_in_us = match cx.kind(client_conn.service) {
            Kind::Http(_) if !is_again => cx.timed(client_conn, |times| &mut times.to_backend),
            _ => cx.now.micros_since(client_conn.exchange.started),
        };
        client_conn.join(cx, buffers, backend_conn, (owned, taken, request));
        timestamps::join(client_conn, backend_conn, cx.clock());
        stamp(stamps, &mut client_conn.stamped, position, client_conn.deadline);
        if let Some(backend_conn) = client_conn.backend_conn.get() {
            self.send_all(cx, End::Backend(backend_conn));
        }
        Next::Done
    }

    /// Refuses the request at hand: nothing comes next.
    fn refused<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, status: u16, why: Refused) -> Next {
        self.refuse(cx, position, status, why);
        Next::Done
    }
}

impl ClientConn {
    /// Chooses a backend of the exchange's group (`stuck`: the one that a cookie names).
    fn choose<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, stuck: Option<Stuck>) -> Result<(), Refused> {
        let exchange = &mut self.exchange;
        let balancer = cx.balancers.get_mut(usize::from(exchange.group)).ok_or(Refused::NoBackend)?;
        let failed = (exchange.tries > 0).then_some(exchange.backend);
        let demand = Demand { flow: &self.key.flow(), hash: Some(exchange.hash).filter(|hash| *hash > 0), now: cx.now };
        let backend = choice::choose(cx.snapshot, balancer, exchange.group, &demand, stuck, failed)?;
        exchange.backend = backend.number;
        exchange.tries += 1;
        exchange.is_stuck = stuck.is_some();
        let wants_cookie = matches!(cx.kind(self.service), Kind::Http(http) if http.sticky.is_some());
        // A client that comes with a cookie of an older key gets one of the first, before the older key goes.
        let has_cookie = stuck.is_some_and(|stuck| !stuck.is_stale);
        exchange.sets_sticky = wants_cookie && !has_cookie;
        if exchange.sets_sticky {
            exchange.sticky = choice::sticky_value(cx.snapshot, backend.endpoint, Secret::new(cx.steering.key));
        }
        Ok(())
    }

    /// Splices it with its backend connection: `owned`, which stands for `taken` bytes of the client's in front of those
    /// that wait, is to be sent, and `request` follows.
    fn join<IO: FrameIo>(
        &mut self,
        cx: &Context<'_, IO>,
        buffers: &mut Buffers,
        backend_conn: &mut BackendConn,
        (owned, taken, request): (Buffer, u32, Message),
    ) {
        let clamp = window_clamp(cx, self, backend_conn);
        self.framing.clear(buffers);
        backend_conn.window_clamp = clamp.unwrap_or(u32::MAX);
        backend_conn.peer.edge = backend_conn.peer.expected;
        let is_endless = matches!(request, Message::Endless);
        self.is_clamped = clamp.is_some() && !is_endless;
        let start = self.input_start().wrapping_sub(taken);
        let put = owned.len() as u32;
        // A tunnel's client has closed behind what it said so far: so the backend is told.
        let closes = self.peer.has_closed && is_endless;
        self.up = SequenceMap::new(backend_conn.peer.sent.wrapping_sub(start));
        self.down = SequenceMap::new(self.peer.sent.wrapping_sub(backend_conn.peer.expected));
        let _ = self.up.edit(start, taken, put + u32::from(closes));
        let exchange = &mut self.exchange;
        exchange.request.set(request);
        if IS_KEPT {
            exchange.lengths[0] = match request {
                Message::Done => taken.into(),
                Message::Bytes { left, .. } => left + u64::from(taken),
                _ => NO_LENGTH,
            };
        }
        let is_tunnel = exchange.method == head::Method::Connect && is_endless;
        exchange.response.set(if is_tunnel { Message::Endless } else { Message::Head });
        exchange.request_floor = start.wrapping_add(taken);
        exchange.response_floor = backend_conn.peer.expected;
        exchange.request_end = exchange.request.is_done().then_some(exchange.request_floor).into();
        exchange.response_end = None.into();
        exchange.has_begun = false;
        exchange.is_sent = true;
        self.state = ClientConnState::Spliced;
        self.offload_range = Optional::NONE;
        backend_conn.peer.told = later(backend_conn.peer.told, backend_conn.peer.expected);
        self.requests = self.requests.wrapping_add(1);
        backend_conn.requests = backend_conn.requests.wrapping_add(1);
        backend_conn.peer.owned = Owned::new(cx.now, backend_conn.peer.sent, Some(owned), closes).into();
        backend_conn.peer.was_closed |= closes;
        self.deadline = cx.now + response_timeout(cx.kind(self.service), self.exchange.route);
    }
}

/// Idle connections there may be of a backend, 0 where each serves one client.
fn idle_max(kind: &Kind) -> u16 {
    match kind {
        Kind::Http(http) if http.reuse => http.limits.idle_per_backend_max,
        _ => 0,
    }
}

/// The MSS that a new connection's backend is told for a client connection.
fn asked<IO: FrameIo>(cx: &Context<'_, IO>, client_conn: &ClientConn) -> u16 {
    sizes::asked_for(client_conn.peer.mss, client_conn.key.is_ipv4(), idle_max(cx.kind(client_conn.service)) > 0)
}

/// How long a backend has to answer. The route is that of the configuration in force: the exchange took it a connection's time ago
/// at most, and a reload meanwhile costs no more than another time.
fn response_timeout(kind: &Kind, route: u16) -> Duration {
    match kind {
        Kind::Http(http) => {
            let of_route = http.routes.get(usize::from(route)).and_then(|route| route.terms.response_timeout);
            of_route.unwrap_or(http.limits.response_timeout)
        }
        _ => Duration::from_secs(3600),
    }
}

/// What stands for the route of an exchange whose configuration is gone: it changes nothing.
pub(in crate::l7::splice) fn no_route() -> Route {
    let action = Action::Reply { status: 500, body: Box::default() };
    Route { conditions: Conditions::default(), action, edits: Edits::default(), terms: RouteTerms::default() }
}

/// What the heads of an exchange may say.
pub(in crate::l7::splice) fn facts<'a, IO: FrameIo>(
    cx: &'a Context<'_, IO>,
    client_conn: &ClientConn,
    (sticky, trace): (Option<u64>, Option<&'a TraceContext>),
) -> Facts<'a> {
    let service = cx.snapshot.services.get(usize::from(client_conn.service));
    let backend = cx.snapshot.backend(client_conn.exchange.backend);
    Facts {
        client: client_conn.key.source,
        vip: client_conn.key.destination,
        backend: backend.map_or("", |(_, backend)| &backend.name),
        service: service.map_or("", |service| &service.name),
        https: false,
        client_certificate: None,
        trace,
        sticky,
        close_client: client_conn.exchange.close_client,
        chosen_in_us: client_conn.exchange.chosen_in_us,
    }
}
