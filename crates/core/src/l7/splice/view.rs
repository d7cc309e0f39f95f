//! What a caller is told of connections: copies of a few entries at a time, in order of their places.
//!
//! The worker makes them between two turns, so what it takes is bounded: [`LOOKED_MAX`] places, whatever lies there,
//! and nothing is allocated. Entries never move, so a connection that lives from the first look to the last is seen
//! once. A connection to a backend that a client's has at the moment is told with that one, not by itself.

use super::Splices;
use super::rules::{Directions, directions};
use super::timers::TIME_WAIT;
use crate::config::Snapshot;
use crate::engine::EngineCaps;
use crate::flow::{Direction, Endpoint, FlowKey};
use crate::l4::connection::Volume;
use crate::l7::config::{Group, Kind};
use crate::l7::head::{Method, Version};
use crate::l7::splice::stages::read::CLOSING_TIMEOUT;
use crate::l7::splice::stages::remove::IDLE_TIMEOUT;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use crate::l7::splice::state::exchange::StoredMessage;
use crate::l7::splice::state::exchange::{Exchange, Message};
use crate::l7::splice::state::sizes::fit;
use crate::offload::OffloadState;
use crate::time::{Duration, Time};
use alloc::vec::Vec;

/// Places looked at per call at most.
pub const LOOKED_MAX: usize = 128;

/// A connection of an HTTP or TLS service.
#[derive(Clone, Copy, Debug)]
pub struct SplicedConnection {
    /// Where it lies: a look that begins there sees it first.
    pub place: u32,
    /// Its client's end and the one it connected to; `None`: a connection to a backend that no client's has.
    pub client: Option<(Endpoint, Endpoint)>,
    /// The service's number; of one that no client's has, that of the service or group its backend belongs to.
    pub service: u16,
    /// Where it is in its life.
    pub state: SplicedState,
    /// The connection to a backend that belongs to it now.
    pub backend: Option<BackendLeg>,
    /// Requests so far, the one under way among them.
    pub requests: u32,
    /// The request under way.
    pub exchange: Option<ExchangeView>,
    /// What it has forwarded: [from client, from backend], by worker and engine, without what rules in force have counted.
    /// Of a connection that no client's has, nothing is known.
    pub forwarded: [Volume; 2],
    /// What of that the engine has forwarded.
    pub forwarded_by_engine: [Volume; 2],
    /// The flows with a rule in force, which has counted more.
    pub rules: [Option<FlowKey>; 2],
    /// Why its packets are, or are not, with the engine.
    pub path: SplicedPath,
    /// When it began.
    pub created: Time,
    /// When its last packet came by here; of one that no client's has, when its state began.
    pub last_seen: Time,
}

/// Where a connection is in its life: a client's, or one to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplicedState {
    /// A client's.
    Client(ClientConnState),
    /// One to a backend.
    Backend(BackendConnState),
}

impl SplicedState {
    /// The names there are, those of clients' connections first.
    pub const NAMES: [&'static str; 10] = [
        "reading",
        "waiting",
        "spliced",
        "replying",
        "closing",
        "time-wait",
        "resetting",
        "pending-removal",
        "connecting",
        "idle",
    ];

    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            SplicedState::Client(state) => state.name(),
            SplicedState::Backend(BackendConnState::Connecting) => "connecting",
            // No client connection has it: it is between two requests.
            SplicedState::Backend(BackendConnState::Attached | BackendConnState::Idle) => "idle",
            SplicedState::Backend(BackendConnState::Closing) => "closing",
            SplicedState::Backend(BackendConnState::TimeWait) => "time-wait",
            SplicedState::Backend(BackendConnState::Resetting) => "resetting",
        }
    }
}

/// A connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLeg {
    /// The backend's number.
    pub number: u16,
    /// Whom the backend sees.
    pub source: Endpoint,
    /// The backend's end.
    pub target: Endpoint,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeView {
    /// Its method; means nothing to a TLS service.
    pub method: Method,
    /// The client's version.
    pub version: Version,
    /// The route it took, by its place; `None`: the configuration has become another one since.
    pub route: Option<u16>,
    /// The group its backend was chosen from.
    pub group: Group,
    /// What of the request is still to come.
    pub request: MessageView,
    /// What of the response is still to come.
    pub response: MessageView,
    /// When its head was complete.
    pub started: Time,
}

/// What of a message is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageView {
    /// Its head.
    Head,
    /// So many bytes at most: the engine may have forwarded some of them.
    Bytes(u64),
    /// Chunks.
    Chunks,
    /// Whatever comes until its sender closes.
    Endless,
    /// Nothing.
    Done,
}

impl MessageView {
    fn of(message: &StoredMessage) -> MessageView {
        match message.get() {
            Message::Head => MessageView::Head,
            Message::Bytes { left, .. } => MessageView::Bytes(left),
            Message::Chunked(_) => MessageView::Chunks,
            Message::Endless => MessageView::Endless,
            Message::Done => MessageView::Done,
        }
    }
}

/// Why the packets of a connection are, or are not, with the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplicedPath {
    /// A pair of rules is in force.
    Offloaded,
    /// Rules are asked for.
    Installing,
    /// Rules are being taken back.
    Removing,
    /// There is no request under way.
    NoExchange,
    /// The policy is to offload nothing.
    Policy,
    /// The engine cannot do what it needs, or the two ends have not agreed on the same.
    Unsupported,
    /// A link on the way takes smaller packets than the two ends have agreed on, and the engine cuts none.
    Narrow,
    /// One end sends longer segments than the other takes, and the engine cuts none.
    Longer,
    /// No body has begun.
    NoBody,
    /// Chunks are read in order.
    Chunked,
    /// It ends with its connection, and too little of it has gone through to be worth it.
    Endless,
    /// It ends with its connection, and one end has closed.
    Closing,
    /// Fewer bytes are to come than are worth it: so many.
    Small(u64),
    /// The engine has refused it; it will be asked again.
    Refused,
    /// It is offered with its next packet, unless something of Hairpin's own is still to be acknowledged.
    Next,
}

/// What the workers' paths are judged by.
pub(crate) struct Terms<'a> {
    pub(crate) now: Time,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) caps: &'a EngineCaps,
    pub(crate) offloads: bool,
    /// From how many bytes on bodies go to the engine, where the configuration does not say.
    pub(crate) bytes_min: u64,
}

impl Splices {
    /// Looks at the connections that lie at `start` and behind, at most [`LOOKED_MAX`] places, and adds copies to `out` as
    /// far as its capacity goes. Returns where to go on; `None`: there are no more.
    pub(crate) fn look(&self, terms: &Terms<'_>, start: u32, out: &mut Vec<SplicedConnection>) -> Option<u32> {
        let mut place = start;
        for _ in 0..LOOKED_MAX {
            if place < self.client_conns_max && place >= self.client_conns.reach() {
                place = self.client_conns_max;
            }
            if place
                .checked_sub(self.client_conns_max)
                .is_some_and(|backend_conn| backend_conn >= self.backend_conns.reach())
            {
                return None;
            }
            if out.len() == out.capacity() {
                break;
            }
            let seen = match place.checked_sub(self.client_conns_max) {
                None => self.client_conns.get(place).map(|client_conn| self.view_of_client(terms, place, client_conn)),
                Some(backend_conn) => self
                    .backend_conns
                    .get(backend_conn)
                    .and_then(|backend_conn| view_of_backend(terms, place, backend_conn)),
            };
            out.extend(seen);
            place += 1;
        }
        Some(place)
    }

    fn view_of_client(&self, terms: &Terms<'_>, place: u32, client_conn: &ClientConn) -> SplicedConnection {
        let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn));
        let exchange = &client_conn.exchange;
        let under_way = matches!(client_conn.state, ClientConnState::Spliced | ClientConnState::Waiting);
        let rule = |direction, key| (client_conn.pair.holds(direction)).then_some(key);
        SplicedConnection {
            place,
            client: Some((client_conn.key.source, client_conn.key.destination)),
            service: client_conn.service,
            state: SplicedState::Client(client_conn.state),
            backend: backend_conn.map(leg),
            requests: client_conn.requests + u32::from(client_conn.state == ClientConnState::Waiting),
            exchange: under_way.then(|| self.view_of_exchange(exchange)),
            forwarded: client_conn.forwarded,
            forwarded_by_engine: client_conn.forwarded_by_engine,
            rules: [
                rule(Direction::FromClient, client_conn.key.flow()),
                rule(Direction::FromBackend, client_conn.rule_key.flow()),
            ],
            path: path(terms, client_conn, backend_conn),
            created: client_conn.created,
            last_seen: client_conn.last_seen,
        }
    }

    fn view_of_exchange(&self, exchange: &Exchange) -> ExchangeView {
        ExchangeView {
            method: exchange.method,
            version: exchange.version,
            route: Some(exchange.route)
                .filter(|route| exchange.generation == self.configurations.number() && *route != u16::MAX),
            group: exchange.group,
            request: MessageView::of(&exchange.request),
            response: MessageView::of(&exchange.response),
            started: exchange.started,
        }
    }
}

fn leg(backend_conn: &BackendConn) -> BackendLeg {
    BackendLeg { number: backend_conn.number, source: backend_conn.own_end(), target: backend_conn.target() }
}

fn view_of_backend(terms: &Terms<'_>, place: u32, backend_conn: &BackendConn) -> Option<SplicedConnection> {
    if backend_conn.client_conn.get().is_some() {
        return None;
    }
    // When it is over says when it began.
    let lasts = match backend_conn.state {
        BackendConnState::Idle => IDLE_TIMEOUT,
        BackendConnState::Closing => CLOSING_TIMEOUT,
        BackendConnState::TimeWait => TIME_WAIT,
        BackendConnState::Connecting | BackendConnState::Attached | BackendConnState::Resetting => Duration::ZERO,
    };
    let since = backend_conn.deadline.as_nanos().saturating_sub(lasts.as_nanos() as u64);
    let service = terms.snapshot.place(backend_conn.number);
    Some(SplicedConnection {
        place,
        client: None,
        service: service.map_or(u16::MAX, |(service, _)| service),
        state: SplicedState::Backend(backend_conn.state),
        backend: Some(leg(backend_conn)),
        requests: backend_conn.requests,
        exchange: None,
        forwarded: [Volume::default(); 2],
        forwarded_by_engine: [Volume::default(); 2],
        rules: [None; 2],
        path: SplicedPath::NoExchange,
        created: backend_conn.created,
        last_seen: Time::from_nanos(since).max(backend_conn.created).min(terms.now),
    })
}

fn path(terms: &Terms<'_>, client_conn: &ClientConn, backend_conn: Option<&BackendConn>) -> SplicedPath {
    match client_conn.pair.state() {
        OffloadState::Offloaded => return SplicedPath::Offloaded,
        OffloadState::Installing => return SplicedPath::Installing,
        OffloadState::Removing => return SplicedPath::Removing,
        OffloadState::Software => {}
    }
    let configured = match terms.snapshot.services.get(usize::from(client_conn.service)).map(|service| &service.kind) {
        Some(Kind::Http(http)) => http.offload_bytes_min,
        Some(Kind::Tls(tls)) => tls.offload_bytes_min,
        _ => None,
    };
    let (ClientConnState::Spliced, Some(backend_conn)) = (client_conn.state, backend_conn) else {
        return SplicedPath::NoExchange;
    };
    let directions = directions(terms.caps, client_conn, backend_conn);
    let is_upload = matches!(client_conn.exchange.request.get(), Message::Bytes { .. } | Message::Endless);
    let least = configured.unwrap_or(terms.bytes_min);
    let offered = if terms.now < client_conn.offer_after { SplicedPath::Refused } else { SplicedPath::Next };
    match (client_conn.exchange.request.get(), client_conn.exchange.response.get()) {
        _ if !terms.offloads => SplicedPath::Policy,
        _ if directions.is_none() || directions == Some(Directions::Down) && is_upload => SplicedPath::Unsupported,
        _ if client_conn.peer.is_narrow || backend_conn.peer.is_narrow => SplicedPath::Narrow,
        _ if !fit(client_conn, backend_conn) => SplicedPath::Longer,
        (_, Message::Endless) if client_conn.peer.has_closed || backend_conn.peer.has_closed => SplicedPath::Closing,
        (_, Message::Endless) if client_conn.forwarded.iter().all(|way| way.bytes < least) => SplicedPath::Endless,
        (_, Message::Endless) => offered,
        (Message::Chunked(_), _) | (Message::Done, Message::Chunked(_)) => SplicedPath::Chunked,
        (Message::Done, Message::Bytes { left, .. }) | (Message::Bytes { left, .. }, Message::Head) => match left {
            left if left < least => SplicedPath::Small(least),
            _ => offered,
        },
        _ => SplicedPath::NoBody,
    }
}
