//! The splice: client connections and backend connections, spliced exchange by exchange.
//!
//! # How it works
//! A client's first data carries the number of the SYN cookie. It makes a client connection (`stages/first.rs`). Bytes of
//! requests are stored in order in a buffer until a head is complete (`stages/read.rs`). The request is routed, a backend
//! connection is found or made (`stages/connect.rs`), and the new head is sent to the backend. Hairpin keeps it until the
//! backend has acknowledged it (`Owned`). From then on client and backend connection are *spliced* (`stages/upward.rs`,
//! `stages/downward.rs`, `stages/response.rs`, `stages/delivery.rs`): what either end sends is forwarded to the other with
//! its sequence numbers translated (`tcp/pass.rs`). The end of a message is known by its length, or by reading its chunks.
//! There is one exchange at a time: further requests wait in the buffer. When the response is delivered and everything is
//! acknowledged, the exchange is *concluded* (`stages/conclude.rs`): its sequence maps are no longer needed, and the next
//! request may go to another backend connection.
//!
//! # Where things are
//! `state/` is what there is, `tcp/` how TCP works, `stages/` a connection's life. `dispatch.rs` gives segments to stages,
//! `timers.rs` does what time brings; nothing calls them. `rules.rs` is the pair of rules of a client connection.
//! Calls between these files have no cycle: `scripts/check-stages` reads the code and fails on one. A stage that leads
//! back to an earlier one returns `Next`.
//!
//! # Invariants
//! - A sequence number is translated only if its place in the other stream is certain: everything before an exchange is
//!   acknowledged when the exchange begins.
//! - An acknowledgement of bytes that Hairpin owns, or that stand for bytes it owns, reaches no peer before those bytes are
//!   known to be delivered.
//! - A backend connection is given to another client connection only when no rule of the engine leads to it any more.
//! - Whatever is dropped is sent again: by the sender if it is the sender's, by a timer (`timers.rs`) if Hairpin owns it.

mod adopt;
mod adopt_entry;
mod deal;
mod dispatch;
mod divert;
mod fault;
mod guards;
mod limiting;
mod recording;
mod rules;
mod stages;
mod stalled;
mod state;
mod statistics;
mod tcp;
mod timers;
mod view;

#[cfg(test)]
mod tests;

pub use adopt::AdoptedSplices;
pub(crate) use adopt::Adoption;
pub use deal::{DealtSplices, deal};
/// Bounds of HTTP and TLS services, for programs that list them.
pub mod limits {
    pub use super::stages::read::CLOSING_TIMEOUT;
    pub use super::stages::remove::IDLE_TIMEOUT;
    pub use super::stages::reset::ASKS_MAX;
    pub use super::state::buffers::{CONNECTIONS_EACH, INPUT_MAX, SIZES};
    pub use super::state::configurations::FORMERS_MAX;
    pub use super::state::ended::PER_CONNECTION as ENDED_PER_CONNECTION;
    pub use super::state::framing::BYTES_MAX as RECORDS_BYTES_MAX;
    pub use super::state::peer::{RETRANSMIT_AFTER, RETRANSMIT_AFTER_MAX, RETRANSMITS_MAX};
    pub use super::state::unmatched::PLACES as UNMATCHED_MAX;
    pub use super::timers::{SLOW_RETRANSMITS_MAX, TIME_WAIT};
}

pub use fault::Fault;
pub(crate) use rules::RULE_BIT;
pub use state::entry::{BackendConnState, ClientConnState};
pub use state::memory::SplicedMemory;
pub use statistics::{HttpStatistics, Refused};
pub(crate) use view::Terms;
pub use view::{BackendLeg, ExchangeView, LOOKED_MAX, MessageView, SplicedConnection, SplicedPath, SplicedState};

use super::config::Kind;
use super::cookie::Cookies;
use super::date::Date;
use super::edit::HEAD_ROOM;
use super::head::RememberedRequest;
use super::trace::IdMaker;
use crate::balance::{Balancer, Loads};
use crate::config::{BACKENDS_MAX, Snapshot};
use crate::engine::{EngineCaps, RuleOp};
use crate::flow::{Direction, Endpoint, FlowKey, Steering};
use crate::frame::{Batch, Frame, FrameIo};
use crate::l4::ports::PortPool;
use crate::limit::LimitTable;
use crate::record::Recorder;
use crate::table::ageing::{Ageing, Stamps};
use crate::table::cuckoo::CuckooPlusPlus;
use crate::table::numbered::{Done, NumberedSlab};
use crate::table::{Entries, Hasher, Lookup, Table};
use crate::time::{Duration, Time};
use crate::wire::tcp::ACK;
use crate::worker::{Answers, ByFamily, Known, Statistics};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use state::buffers::Buffers;
use state::configurations::Configurations;
use state::ended::Ended;
use state::entry::{BackendConn, ClientConn};
use state::idle::Idle;
use state::memory::Parts;
use state::peer::Peer;
use state::resting::Resting;
use state::seal::Seals;
use state::unmatched::Unmatched;
use tcp::segment::Own;

/// Heads of requests that are remembered at most: 25 KB in all. In tests few, so that they displace each other.
const REMEMBERED_MAX: usize = if cfg!(test) { 4 } else { 64 };
/// Granularity of timers.
const TICK: Duration = Duration::from_millis(50);

/// One of the two TCP ends that Hairpin stands between, by the position of its connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A client's.
    Client(u32),
    /// A backend's.
    Backend(u32),
}

/// What a worker lends to its splices while they work.
pub(crate) struct Context<'a, IO: FrameIo> {
    pub(crate) now: Time,
    pub(crate) io: &'a mut IO,
    pub(crate) tx: &'a mut Batch<IO::Frame>,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) balancers: &'a mut [Balancer],
    pub(crate) ports: &'a mut PortPool,
    pub(crate) loads: &'a Loads,
    pub(crate) known: &'a Known,
    pub(crate) steering: &'a Steering,
    pub(crate) statistics: &'a mut Statistics,
    pub(crate) ops: &'a mut VecDeque<RuleOp>,
    pub(crate) caps: &'a EngineCaps,
    /// Whether bodies may go to the engine.
    pub(crate) offloads: bool,
    /// What may be answered that calls for no more than an answer.
    pub(crate) answers: &'a mut Answers,
    /// How far the clock that clients see is ahead of the machine's, in ms.
    pub(crate) clock_ahead: u32,
    /// Where records of exchanges go.
    pub(crate) recorder: Option<&'a mut Recorder>,
    /// The clients of limits.
    pub(crate) limits: &'a LimitTable,
}

/// What comes after a stage, where that is an earlier stage: it is returned instead of called, so that calls between stages
/// have no cycle.
#[must_use]
#[derive(Default)]
enum Next {
    /// Nothing, until something is heard or time passes.
    #[default]
    Done,
    /// The next request of this client connection is read.
    Read(u32),
}

/// Names a request at the front of a client connection's input: its position and generation, and how many requests were
/// before.
type HeadOf = (u32, u32, u32);

/// All client connections and backend connections of a worker.
pub(crate) struct Splices {
    done: Done,
    /// See [`Parts`].
    configurations: Configurations,
    table: CuckooPlusPlus,
    client_conns: NumberedSlab<ClientConn>,
    backend_conns: NumberedSlab<BackendConn>,
    client_conns_max: u32,
    buffers: Buffers,
    stamps: Stamps,
    idle: Idle,
    cookies: Cookies,
    /// What responses of our own say of the time; `None`: nothing.
    date: Option<Date>,
    ended: Ended,
    resting: Resting,
    seals: Seals,
    unmatched: Unmatched,
    /// Client connections that can go on without a packet of theirs.
    ready: VecDeque<u32>,
    /// Where heads are written before they lie in a buffer.
    scratch: Box<[u8]>,
    /// Heads of requests that were read and may wait for their backends: whose they are, and where their parts are. By the
    /// client connection's position; of two at one place the later one is remembered, and the other is read again.
    remembered: Box<[Option<(HeadOf, RememberedRequest)>]>,
    /// For shares among groups.
    turn: u32,
    /// Makes the ids of traces.
    ids: IdMaker,
    /// Rules in force or asked for.
    rules: ByFamily,
    /// Where the next connection to give up is looked for.
    hand: u32,
    /// The process ends: no connection begins.
    is_ending: bool,
    /// The client connection whose request was counted by limits, and is decided anew now.
    decided_anew: Option<u32>,
    /// Client connections before this place have been told so.
    abandoned: u32,
    /// Messages to senders that wait for a timer, if any are still to be sent.
    stalled: Option<stalled::Stalled>,
    memory: SplicedMemory,
}

impl Splices {
    /// None yet, as many as `memory` has room for.
    pub(crate) fn new(
        mut memory: SplicedMemory,
        hasher: Hasher,
        steering: &Steering,
        (cookies, ids): (Cookies, IdMaker),
    ) -> Splices {
        let client_conns_max = memory.connections();
        let backend_conns_max = client_conns_max;
        let Parts { done, configurations, client_conns, backend_conns, ended, resting, buffers } = memory.parts();
        let (operation, seals) = (done.operation(), Seals::new(steering));
        Splices {
            done,
            configurations,
            table: CuckooPlusPlus::new((client_conns_max + backend_conns_max) as usize, hasher.clone()),
            client_conns: NumberedSlab::new(client_conns, operation),
            backend_conns: NumberedSlab::new(backend_conns, operation),
            client_conns_max,
            buffers: Buffers::new(buffers, seals.tags()),
            stamps: Stamps::new((client_conns_max + backend_conns_max) as usize, TICK),
            idle: Idle::new(BACKENDS_MAX as usize),
            cookies,
            date: None,
            ended: Ended::new(ended, state::ended::hasher(steering)),
            resting: Resting::new(resting),
            seals,
            unmatched: Unmatched::new(hasher),
            ready: VecDeque::with_capacity(2 * client_conns_max as usize),
            scratch: vec![0; 2 * HEAD_ROOM].into(),
            remembered: vec![None; REMEMBERED_MAX].into(),
            turn: 0,
            ids,
            rules: [0; 2],
            hand: 0,
            is_ending: false,
            decided_anew: None,
            abandoned: 0,
            stalled: None,
            memory,
        }
    }

    /// All that this segment, timer, completion or step has changed fits now: what comes next is another operation
    /// (`table::numbered`).
    #[inline]
    pub(crate) fn finish_operation(&mut self) {
        let next = self.done.finish();
        self.client_conns.begin(next);
        self.backend_conns.begin(next);
    }

    /// Sees the memory as a process leaves it that ends now.
    #[cfg(test)]
    pub(crate) fn image(&self) -> crate::table::region::Image {
        self.memory.image()
    }

    /// The bytes of all entries for client connections and for backend connections.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> [alloc::vec::Vec<alloc::vec::Vec<u8>>; 2] {
        use zerocopy::IntoBytes;
        let clients = self.client_conns.iter().map(|(_, entry)| entry.as_bytes().to_vec());
        [clients.collect(), self.backend_conns.iter().map(|(_, entry)| entry.as_bytes().to_vec()).collect()]
    }

    /// The memory as a process leaves it that ends without a word.
    pub(crate) fn into_memory(mut self) -> SplicedMemory {
        let memory = core::mem::replace(&mut self.memory, SplicedMemory::own(0));
        drop(self);
        memory.again()
    }

    /// Rules in force or asked for.
    pub(crate) fn rules(&self) -> ByFamily {
        self.rules
    }

    /// Goes by these keys from now on.
    pub(crate) fn set_cookies(&mut self, cookies: Cookies) {
        self.cookies = cookies;
    }

    /// What responses of our own say of the time from now on.
    pub(crate) fn set_date(&mut self, date: Date) {
        self.date = Some(date);
    }

    /// The configuration has become another, the one with this [`Snapshot::id`], in the place of `before`. Returns a snapshot
    /// that is to be dropped outside the worker's thread.
    pub(crate) fn reconfigured(&mut self, before: Arc<Snapshot>, id: u64) -> Option<Arc<Snapshot>> {
        self.configurations.follow(before, id)
    }

    /// The client or backend connection whose packets have this key.
    #[inline]
    pub(crate) fn find(&self, key: &FlowKey) -> Option<(u32, Direction)> {
        self.table.find(key, &Flows(self)).map(parts)
    }

    /// Buffers in use, and how often there was none.
    pub(crate) fn buffers(&self) -> (u32, u64) {
        (self.buffers.in_use(), self.buffers.exhausted)
    }

    /// Writes down how much there is of everything.
    pub(crate) fn tell(&self, statistics: &mut HttpStatistics) {
        statistics.client_conns_now = self.client_conns.len().into();
        statistics.client_conns_max = self.client_conns_max.into();
        statistics.backend_conns_now = self.backend_conns.len().into();
        statistics.idle_now = self.idle.total().into();
        (statistics.buffers_now, statistics.buffers_exhausted) = (self.buffers.in_use().into(), self.buffers.exhausted);
        statistics.buffers_max = self.buffers.count().into();
        statistics.ended_overwritten = self.ended.overwritten;
    }

    /// How many client connections and backend connections there are.
    pub(crate) fn len(&self) -> (u32, u32) {
        (self.client_conns.len(), self.backend_conns.len())
    }

    /// Marks the sources of all connections to backends in a pool that is new.
    pub(crate) fn mark_ports(&self, ports: &mut PortPool) {
        for (_, backend_conn) in self.backend_conns.iter() {
            ports.mark(u32::from(backend_conn.number), backend_conn.own_end());
        }
    }

    /// Frees a client connection's place.
    pub(super) fn release_client(&mut self, position: u32) {
        self.client_conns.forget(position);
        self.stamps.ended(position);
    }

    /// Adds a client connection, sealed, if there is room.
    #[inline]
    fn add_client(&mut self, mut client_conn: ClientConn) -> Option<u32> {
        client_conn.seal = self.seals.client(self.client_conns.vacant()?, &client_conn);
        self.client_conns.insert(client_conn).ok()
    }

    /// Adds a backend connection, sealed, if there is room.
    #[inline]
    fn add_backend(&mut self, mut backend_conn: BackendConn) -> Option<u32> {
        let position = self.backend_conns.vacant()?;
        backend_conn.seal = self.seals.backend(position, &backend_conn, backend_conn.number);
        self.backend_conns.insert(backend_conn).ok()
    }

    fn index(&mut self, key: &FlowKey, position: u32, direction: Direction) -> bool {
        self.table.insert(key, value(position, direction)).is_ok()
    }

    fn unindex(&mut self, key: &FlowKey, position: u32, direction: Direction) {
        self.table.remove(key, value(position, direction));
    }

    fn peer(&self, end: End) -> Option<&Peer> {
        match end {
            End::Client(position) => self.client_conns.get(position).map(|client_conn| &client_conn.peer),
            End::Backend(position) => self.backend_conns.get(position).map(|backend_conn| &backend_conn.peer),
        }
    }

    /// Whether the numbers of an end are not known.
    fn is_unknown(&self, end: End) -> bool {
        match end {
            End::Client(position) => self.client_conns.get(position).is_some_and(|client_conn| client_conn.is_unknown),
            End::Backend(position) => {
                self.backend_conns.get(position).is_some_and(|backend_conn| backend_conn.is_unknown)
            }
        }
    }

    fn peer_mut(&mut self, end: End) -> Option<&mut Peer> {
        match end {
            End::Client(position) => self.client_conns.get_mut(position).map(|client_conn| &mut client_conn.peer),
            End::Backend(position) => self.backend_conns.get_mut(position).map(|backend_conn| &mut backend_conn.peer),
        }
    }

    /// Looks at an end's connection at `when` at the latest.
    fn stamp(&mut self, end: End, when: Time) {
        match end {
            End::Client(position) => self.stamp_client(position, when),
            End::Backend(position) => self.stamp_backend(position, when),
        }
    }

    /// Looks at a client connection at `when` at the latest.
    fn stamp_client(&mut self, position: u32, when: Time) {
        let Some(client_conn) = self.client_conns.get_mut_unnumbered(position) else { return };
        stamp(&mut self.stamps, &mut client_conn.stamped, position, when);
    }

    /// Looks at a backend connection at `when` at the latest.
    fn stamp_backend(&mut self, position: u32, when: Time) {
        let Some(backend_conn) = self.backend_conns.get_mut_unnumbered(position) else { return };
        stamp(&mut self.stamps, &mut backend_conn.stamped, self.client_conns_max + position, when);
    }
}

/// Looks at the connection with this place in `stamps` at `when` at the latest; `stamped` is its own note of that time.
#[inline]
fn stamp(stamps: &mut Stamps, stamped: &mut Time, place: u32, when: Time) {
    if when < *stamped {
        *stamped = when;
        stamps.started(place, when);
    }
}

/// The keys of client connections and backend connections, as the index asks for them.
struct Flows<'a>(&'a Splices);

impl Entries<FlowKey> for Flows<'_> {
    #[inline]
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        match parts(value) {
            (position, Direction::FromClient) => {
                self.0.client_conns.get(position).is_some_and(|client_conn| client_conn.key.is(key))
            }
            (position, Direction::FromBackend) => {
                self.0.backend_conns.get(position).is_some_and(|backend_conn| backend_conn.key.is(key))
            }
        }
    }

    fn prefetch(&self, _: u32) {}
}

fn value(position: u32, direction: Direction) -> u32 {
    position << 1 | direction as u32
}

fn parts(value: u32) -> (u32, Direction) {
    let direction = if value & 1 == 0 { Direction::FromClient } else { Direction::FromBackend };
    (value >> 1, direction)
}

impl<IO: FrameIo> Context<'_, IO> {
    /// What a service is.
    fn kind(&self, service: u16) -> &Kind {
        self.snapshot.services.get(usize::from(service)).map_or(&Kind::Forward, |service| &service.kind)
    }

    /// Sends a frame, or counts that there was no room. A packet can lead to more than one of ours: what fills the batch goes
    /// out at once.
    fn send(&mut self, frame: IO::Frame) {
        if self.tx.is_full() {
            self.io.transmit(self.tx);
        }
        match self.tx.try_push(frame) {
            Ok(()) => self.statistics.forwarded += 1,
            Err(_) => self.statistics.drops[crate::worker::Drop::NoFrame as usize] += 1,
        }
    }

    /// Sends a bare acknowledgement between these ends, with this number, for what it calls forth.
    pub(crate) fn acknowledge(&mut self, [source, destination]: [Endpoint; 2], sequence: u32, port: u16) {
        let (acknowledgement, window, mss) = (0, 0, u16::MAX);
        let (flags, abilities, timestamps) = (ACK, None, None);
        let own =
            Own { source, destination, sequence, acknowledgement, flags, window, port, mss, abilities, timestamps };
        tcp::send::emit(self, &own, [&[], &[]]);
    }

    /// Counts a case that cannot happen unless Hairpin has a mistake: a connection that a stage was given is not there. In
    /// the tests of this crate it panics.
    #[cold]
    #[track_caller]
    fn impossible<R: Default>(&mut self) -> R {
        #[cfg(test)]
        std::panic!("impossible: {}", core::panic::Location::caller());
        #[cfg(not(test))]
        {
            self.statistics.drops[crate::worker::Drop::Invariant as usize] += 1;
            R::default()
        }
    }

    /// Counts a dropped frame.
    fn drop(&mut self, reason: crate::worker::Drop) {
        self.statistics.drops[reason as usize] += 1;
    }
}

/// The VIP's or backend's end of an interface's numbering, kept with what we send of our own.
fn port_of<F: Frame>(frame: &F) -> u16 {
    frame.meta().port
}
