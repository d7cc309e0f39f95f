//! What is known of a client's connection (`ClientConn`), of a connection to a backend (`BackendConn`), and of the exchange
//! that joins them.

use super::buffers::Buffer;
use super::exchange::{Exchange, Message};
use super::framing::Framing;
pub(in crate::l7::splice) use super::parts::{Again, OffloadRange, TcpKey};
use super::peer::Peer;
use crate::flow::{Direction, Endpoint, FlowKey};
use crate::l4::connection::Volume;
use crate::l7::sequence::SequenceMap;
use crate::l7::splice::rules::OFFLOAD_RANGE_MAX;
use crate::l7::splice::tcp::numbers::{before, beyond, follow, later};
use crate::offload::{OffloadState, RulePair};
use crate::stored::{Optional, OptionalNumber, OptionalPosition, stored, stored_leaf};
use crate::time::Time;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Where a client connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum ClientConnState {
    /// A request is awaited, or part of its head is there.
    Reading,
    /// A request is there and waits for its backend.
    Waiting,
    /// A request has gone to the backend connection, or is going: the two are spliced.
    Spliced,
    /// A response of ours is on its way.
    Replying,
    /// We have closed, and wait for the client.
    Closing,
    /// Both have closed; what the client sends again is acknowledged for a while.
    TimeWait,
    /// It is reset: whatever its client sends is answered with RST, and its client is asked for a packet.
    Resetting,
    /// It has left the index, and goes as soon as the engine holds no rule of it.
    PendingRemoval,
}

impl ClientConnState {
    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            ClientConnState::Reading => "reading",
            ClientConnState::Waiting => "waiting",
            ClientConnState::Spliced => "spliced",
            ClientConnState::Replying => "replying",
            ClientConnState::Closing => "closing",
            ClientConnState::TimeWait => "time-wait",
            ClientConnState::Resetting => "resetting",
            ClientConnState::PendingRemoval => "pending-removal",
        }
    }
}

/// Where a backend connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum BackendConnState {
    /// Its SYN is sent.
    Connecting,
    /// A client connection has it.
    Attached,
    /// No client connection has it; it can be taken.
    Idle,
    /// We have closed, and wait for the backend.
    Closing,
    /// Both have closed.
    TimeWait,
    /// It is reset: whatever its backend sends is answered with RST, and its backend is asked for a packet.
    Resetting,
}

stored_leaf!(ClientConnState: 1, BackendConnState: 1);

/// A client's connection.
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct ClientConn {
    /// Client to VIP.
    pub(in crate::l7::splice) key: TcpKey,
    pub(in crate::l7::splice) service: u16,
    /// The interface its packets come in on.
    pub(in crate::l7::splice) port: u16,
    pub(in crate::l7::splice) peer: Peer,
    pub(in crate::l7::splice) exchange: Exchange,
    /// From the client's numbers to the backend connection's.
    pub(in crate::l7::splice) up: SequenceMap,
    /// From the backend connection's numbers to the client's.
    pub(in crate::l7::splice) down: SequenceMap,
    /// The numbers it began with: the client's first, and ours.
    pub(in crate::l7::splice) first: [u32; 2],
    /// When its state has lasted too long.
    pub(in crate::l7::splice) deadline: Time,
    /// When it will be looked at.
    pub(in crate::l7::splice) stamped: Time,
    pub(in crate::l7::splice) last_seen: Time,
    pub(in crate::l7::splice) forwarded: [Volume; 2],
    /// What of that the engine has.
    pub(in crate::l7::splice) forwarded_by_engine: [Volume; 2],
    /// Bytes of responses that its present rules were to carry at most, in the ranges they have had so far.
    pub(in crate::l7::splice) offered: u64,
    pub(in crate::l7::splice) created: Time,
    pub(in crate::l7::splice) offer_after: Time,
    /// Before that, no reset of it is asked about again.
    pub(in crate::l7::splice) challenge_after: Time,
    /// When its client last took something of a response, or began to be sent one.
    pub(in crate::l7::splice) taken: Time,
    /// When rules of it last went so that its client could be asked.
    pub(in crate::l7::splice) looked: Time,
    /// The seal of the fields that never change ([`Seals::client`](super::seal::Seals::client)).
    pub(in crate::l7::splice) seal: u64,
    /// The seal of `rule_key` ([`Seals::rule`](super::seal::Seals::rule)).
    pub(in crate::l7::splice) rule_seal: u64,
    /// Bytes of requests that are read and not used yet: those before `peer.expected`.
    pub(in crate::l7::splice) input: Optional<Buffer>,
    pub(in crate::l7::splice) backend_conn: OptionalPosition,
    pub(in crate::l7::splice) again: Optional<Again>,
    /// What of the request at hand must not be another when it comes again.
    pub(in crate::l7::splice) framing: Framing,
    pub(in crate::l7::splice) requests: u32,
    /// The key of the backend connection's flow that has a rule.
    pub(in crate::l7::splice) rule_key: TcpKey,
    /// The number that its client was last reset with.
    pub(in crate::l7::splice) reset_with: OptionalNumber,
    pub(in crate::l7::splice) offload_range: Optional<OffloadRange>,
    /// What is added to its client's timestamps on their way to the backend it has, once that is settled.
    pub(in crate::l7::splice) clock_up: OptionalNumber,
    /// What is added to its backend's.
    pub(in crate::l7::splice) clock_down: OptionalNumber,
    /// The backend connection that it had last and left to others,
    pub(in crate::l7::splice) left: OptionalPosition,
    /// and that backend connection's generation.
    pub(in crate::l7::splice) left_generation: u32,
    pub(in crate::l7::splice) state: ClientConnState,
    /// Its pair of rules, as far as is known what the engine holds.
    pub(in crate::l7::splice) pair: RulePair,
    /// Which it was last asked to hold.
    pub(in crate::l7::splice) wanted: u8,
    /// How often its client was asked for a packet, to answer it with RST or to see what it has taken.
    pub(in crate::l7::splice) asks: u8,
    /// It is one of its service's connections: not over yet.
    pub(in crate::l7::splice) is_open: bool,
    /// The backend is shown a small window, until it is known whether the engine carries the response.
    pub(in crate::l7::splice) is_clamped: bool,
    /// It is of a TLS service.
    pub(in crate::l7::splice) is_tls: bool,
    /// It is reset, and its numbers are not known.
    pub(in crate::l7::splice) is_unknown: bool,
    /// It is reset because its backend has gone, unless its client has got all of its response.
    pub(in crate::l7::splice) may_go_on: bool,
    pub(in crate::l7::splice) unused: [u8; 3],
}

stored!(
    ClientConn: key,
    service,
    port,
    peer,
    exchange,
    up,
    down,
    first,
    deadline,
    stamped,
    last_seen,
    forwarded,
    forwarded_by_engine,
    offered,
    created,
    offer_after,
    challenge_after,
    taken,
    looked,
    seal,
    rule_seal,
    input,
    backend_conn,
    again,
    framing,
    requests,
    rule_key,
    reset_with,
    offload_range,
    clock_up,
    clock_down,
    left,
    left_generation,
    state,
    pair,
    wanted,
    asks,
    is_open,
    is_clamped,
    is_tls,
    is_unknown,
    may_go_on,
    unused,
);

impl ClientConn {
    /// One of `service` that begins now, at interface 0.
    pub(in crate::l7::splice) fn new(now: Time, key: &FlowKey, service: u16, peer: Peer) -> ClientConn {
        let key = TcpKey::of(key);
        ClientConn {
            key,
            service,
            port: 0,
            peer,
            exchange: Exchange::default(),
            up: SequenceMap::new(0),
            down: SequenceMap::new(0),
            first: [0; 2],
            deadline: now,
            stamped: Time::from_nanos(u64::MAX),
            last_seen: now,
            forwarded: [Volume::default(); 2],
            forwarded_by_engine: [Volume::default(); 2],
            offered: 0,
            created: now,
            offer_after: Time::ZERO,
            challenge_after: Time::ZERO,
            taken: now,
            looked: now,
            seal: 0,
            rule_seal: 0,
            input: Optional::NONE,
            backend_conn: OptionalPosition::NONE,
            again: Optional::NONE,
            framing: Framing::default(),
            requests: 0,
            rule_key: key,
            reset_with: OptionalNumber::default(),
            offload_range: Optional::NONE,
            clock_up: OptionalNumber::default(),
            clock_down: OptionalNumber::default(),
            left: OptionalPosition::NONE,
            left_generation: 0,
            state: ClientConnState::Reading,
            pair: RulePair::default(),
            wanted: 0,
            asks: 0,
            is_open: true,
            is_clamped: false,
            is_tls: false,
            is_unknown: false,
            may_go_on: false,
            unused: [0; 3],
        }
    }

    /// The last numbers of the exchange: of its request, and of its response as the client gets it. `None`: they are not
    /// known yet.
    pub(in crate::l7::splice) fn exchange_ends(&self) -> Option<(u32, u32)> {
        let exchange = &self.exchange;
        let request = exchange.request.end(exchange.request_end.get())?;
        let response = exchange.response.end(exchange.response_end.get())?;
        Some((request, response.wrapping_add(self.down.delta_at_end())))
    }

    /// Its exchange is over: the next request is awaited until `deadline`.
    pub(in crate::l7::splice) fn end_exchange(&mut self, (request, response): (u32, u32), deadline: Time) {
        self.peer.expected = later(self.peer.expected, request);
        self.peer.highest = later(self.peer.highest, self.peer.expected);
        self.peer.sent = later(self.peer.sent, response);
        self.state = ClientConnState::Reading;
        self.deadline = deadline;
    }

    /// Whether its connection ends with the exchange. A client that has closed may have requests waiting here.
    pub(in crate::l7::splice) fn closes_after_exchange(&self) -> bool {
        self.exchange.close_client || self.peer.has_closed && self.waiting() == 0
    }

    /// What the client has acknowledged of a response that the engine alone carries has come of the backend, and it may
    /// acknowledge so much more.
    pub(in crate::l7::splice) fn catch_up_downwards(&mut self, backend_conn: &mut BackendConn) {
        let (exchange, acknowledged) = (&mut self.exchange, self.peer.acknowledged);
        let through = acknowledged.wrapping_sub(self.down.delta_at_end());
        let ahead = match exchange.response.get() {
            Message::Bytes { next, left } => {
                let progress = u64::from(beyond(next, through)).min(left);
                let (next, left) = (next.wrapping_add(progress as u32), left - progress);
                exchange.response.set(Message::Bytes { next, left });
                backend_conn.peer.highest = later(backend_conn.peer.highest, next);
                backend_conn.peer.expected = later(backend_conn.peer.expected, next);
                if left == 0 {
                    exchange.response.set(Message::Done);
                    exchange.response_end = Some(next).into();
                }
                left.min(OFFLOAD_RANGE_MAX)
            }
            Message::Endless => {
                backend_conn.peer.highest = later(backend_conn.peer.highest, through);
                backend_conn.peer.expected = later(backend_conn.peer.expected, through);
                OFFLOAD_RANGE_MAX
            }
            _ => return,
        };
        follow(&mut exchange.response_floor, backend_conn.peer.highest);
        self.peer.reach = later(self.peer.reach, acknowledged.wrapping_add(ahead as u32));
    }

    /// Whether nothing is asked and nothing answered: the next request is awaited, or none will come.
    pub(in crate::l7::splice) fn is_between_exchanges(&self) -> bool {
        matches!(self.state, ClientConnState::Reading | ClientConnState::Closing | ClientConnState::TimeWait)
    }

    /// Whether the request is complete, and its backend has acknowledged all of it.
    pub(in crate::l7::splice) fn is_request_received(&self, backend_conn: &BackendConn) -> bool {
        let end = self.exchange.request_end.get().filter(|_| self.exchange.request.is_done());
        end.is_some_and(|end| !before(backend_conn.peer.acknowledged, end.wrapping_add(self.up.delta_at_end())))
    }

    /// How many bytes wait to be used.
    pub(in crate::l7::splice) fn waiting(&self) -> usize {
        self.input.as_ref().map_or(0, Buffer::len)
    }

    /// Whether the engine may carry bytes of the client's that software does not see.
    pub(in crate::l7::splice) fn uploads_by_engine(&self) -> bool {
        let all = !self.is_offloaded_down_only();
        self.pair.held() != 0 && all && matches!(self.exchange.request.get(), Message::Bytes { .. } | Message::Endless)
    }

    /// Whether the engine has been asked to carry what the backend sends, and not what the client sends.
    pub(in crate::l7::splice) fn is_offloaded_down_only(&self) -> bool {
        self.pair.state() != OffloadState::Software && self.wanted == 1 << Direction::FromBackend as u8
    }

    /// Whether the engine may carry bytes of the backend's that software does not see.
    pub(in crate::l7::splice) fn downloads_by_engine(&self) -> bool {
        self.pair.held() != 0 && matches!(self.exchange.response.get(), Message::Bytes { .. } | Message::Endless)
    }

    /// The client's number of the first byte that waits.
    pub(in crate::l7::splice) fn input_start(&self) -> u32 {
        self.peer.expected.wrapping_sub(self.waiting() as u32)
    }
}

/// A connection to a backend.
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct BackendConn {
    /// Backend to pool.
    pub(in crate::l7::splice) key: TcpKey,
    /// The backend's number.
    pub(in crate::l7::splice) number: u16,
    pub(in crate::l7::splice) port: u16,
    pub(in crate::l7::splice) peer: Peer,
    pub(in crate::l7::splice) deadline: Time,
    pub(in crate::l7::splice) stamped: Time,
    /// When the SYN is sent again.
    pub(in crate::l7::splice) again: Time,
    pub(in crate::l7::splice) created: Time,
    /// The seal of the fields that never change ([`Seals::backend`](super::seal::Seals::backend)).
    pub(in crate::l7::splice) seal: u64,
    /// The seal of its client connection and itself, or of an idle connection ([`Seals::pair`](super::seal::Seals::pair)).
    pub(in crate::l7::splice) pairing: u64,
    /// A response's head that is not complete yet: the bytes before `peer.expected`.
    pub(in crate::l7::splice) input: Optional<Buffer>,
    pub(in crate::l7::splice) client_conn: OptionalPosition,
    /// Requests it was sent.
    pub(in crate::l7::splice) requests: u32,
    /// The next idle one of the same backend.
    pub(in crate::l7::splice) next_idle: OptionalPosition,
    pub(in crate::l7::splice) previous_idle: OptionalPosition,
    pub(in crate::l7::splice) reset_with: OptionalNumber,
    /// Bytes it is shown room for until the head of its response is read: what follows a large one's head at once would
    /// come before the engine carries it.
    pub(in crate::l7::splice) window_clamp: u32,
    /// Idle ones there may be of its backend.
    pub(in crate::l7::splice) idle_max: u16,
    /// The MSS that its backend was told: it sends no longer segments.
    pub(in crate::l7::splice) asked: u16,
    pub(in crate::l7::splice) state: BackendConnState,
    /// SYNs sent; of one that is reset, how often its backend was asked for a packet.
    pub(in crate::l7::splice) tries: u8,
    /// It closed before we did, so TIME_WAIT is its.
    pub(in crate::l7::splice) closed_first: bool,
    /// It is to end, whatever it is doing: its backend was taken away.
    pub(in crate::l7::splice) is_unwanted: bool,
    /// It gets no more requests, and is closed when the engine has let go of it.
    pub(in crate::l7::splice) is_spent: bool,
    /// It counts towards its backend's load.
    pub(in crate::l7::splice) is_counted: bool,
    /// Its backend has retransmitted a segment, so its congestion window may be small: no other client gets this connection.
    pub(in crate::l7::splice) has_repeated: bool,
    /// Its backend has retransmitted the last segment of the exchange at hand once. That may be a probe for a late
    /// acknowledgement (RFC 8985, 7); a second time it is a timeout.
    pub(in crate::l7::splice) has_probed: bool,
    /// It is reset, and its numbers are not known.
    pub(in crate::l7::splice) is_unknown: bool,
    /// Its packets are steered to another worker: a rule brings them.
    pub(in crate::l7::splice) is_diverted: bool,
    /// Its SYN has timestamps.
    pub(in crate::l7::splice) offers_timestamps: bool,
    pub(in crate::l7::splice) unused: [u8; 1],
}

stored!(
    BackendConn: key,
    number,
    port,
    peer,
    deadline,
    stamped,
    again,
    created,
    seal,
    pairing,
    input,
    client_conn,
    requests,
    next_idle,
    previous_idle,
    reset_with,
    window_clamp,
    idle_max,
    asked,
    state,
    tries,
    closed_first,
    is_unwanted,
    is_spent,
    is_counted,
    has_repeated,
    has_probed,
    is_unknown,
    is_diverted,
    offers_timestamps,
    unused,
);

impl BackendConn {
    /// One to a backend whose SYN is sent now, of no client connection, at interface 0.
    pub(in crate::l7::splice) fn new(now: Time, key: &FlowKey, number: u16, peer: Peer) -> BackendConn {
        BackendConn {
            key: TcpKey::of(key),
            number,
            port: 0,
            peer,
            deadline: now,
            stamped: Time::from_nanos(u64::MAX),
            again: now,
            created: now,
            seal: 0,
            pairing: 0,
            input: Optional::NONE,
            client_conn: OptionalPosition::NONE,
            requests: 0,
            next_idle: OptionalPosition::NONE,
            previous_idle: OptionalPosition::NONE,
            reset_with: OptionalNumber::default(),
            window_clamp: u32::MAX,
            idle_max: 0,
            asked: 0,
            state: BackendConnState::Connecting,
            tries: 1,
            closed_first: false,
            is_unwanted: false,
            is_spent: false,
            is_counted: false,
            is_unknown: false,
            has_repeated: false,
            has_probed: false,
            is_diverted: false,
            offers_timestamps: false,
            unused: [0; 1],
        }
    }

    /// Whom the backend sees.
    pub(in crate::l7::splice) fn own_end(&self) -> Endpoint {
        self.key.destination
    }

    /// Whether its backend may have closed it before the request at hand reached it, as any connection that was idle
    /// (RFC 9112, 9.3.1): nothing of that is acknowledged.
    pub(in crate::l7::splice) fn is_stale(&self) -> bool {
        self.requests > 1 && self.peer.owned.as_ref().is_some_and(|owned| self.peer.acknowledged == owned.start)
    }

    /// Where the backend listens.
    pub(in crate::l7::splice) fn target(&self) -> Endpoint {
        self.key.source
    }
}
