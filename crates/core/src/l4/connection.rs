//! A tracked connection, as it lies in the slab.
//!
//! # What may be seen half changed
//! The slab's rule ("Whole or absent") is that an inserted entry changes by stores of single aligned words. A process
//! that adopts it after a crash, or a thread that reads it while its worker writes, must accept any mixture of old and
//! new words.
//!
//! Never changed after insertion: `client`, `vip`, `backend`, `source`, `protocol`, `service`, `backend_number`.
//! The others change one by one, in any order. What that can look like, and what it means:
//! - `pair` (each of its bytes) and `kept`: any combination. What the engine really holds decides, not these.
//! - `state` with flags of before or after: [`Flags::COUNTED`] there or missing in any state (it follows from the state),
//!   [`Flags::PROVEN`] missing in an established one (it is then among those that give way when the table is full),
//!   [`Flags::REVIVED`] and [`Flags::BACKEND_CLOSED_FIRST`] in any: they only choose a timeout or let a port rest.
//! - [`Flags::SEVERED`] and what goes with it, in any state: it is to go.
//! - `proof` and [`Flags::CHALLENGED`] of before, in any state: the handshake is recognised at the next SYN-ACK.
//! - `proof` of before with [`Flags::GUESSED`]: a RST of the client is recognised after the backend's next packet.
//! - `state` with `changed` of before or after: it is judged early or late by at most one timeout.
//! - [`Flags::PENDING_REMOVAL`] on an entry that looks alive: it is to go.
//! - `forwarded`, `offloaded`: packets without their bytes; what a rule had carried when it went lost, or told twice.
//! - `last_seen` before `created` or `changed`; `offer_after` of before: harmless.

use crate::engine::Counters;
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::Egress;
use crate::offload::{BOTH, RulePair};
use crate::rewrite::Rewrite;
use crate::stored::{stored, stored_leaf};
use crate::time::Time;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The state of a connection in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum State {
    /// TCP: the client's SYN has passed.
    SynSent,
    /// TCP: the backend's SYN-ACK has passed.
    SynReceived,
    /// TCP: the handshake is complete.
    Established,
    /// TCP: the client has sent FIN.
    FinClient,
    /// TCP: the backend has sent FIN.
    FinBackend,
    /// TCP: both have sent FIN.
    Closed,
    /// TCP: a RST has passed; it may have been forged.
    Reset,
    /// UDP: the backend has not answered, or the client has not spoken again after that.
    UdpNew,
    /// UDP: both have spoken, or one has spoken for a while.
    UdpEstablished,
    /// Not a connection of ours: what comes from this backend end to this address belongs to the kernel.
    Pass,
}

impl State {
    /// All of them, in order.
    pub const ALL: [State; 10] = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinClient,
        State::FinBackend,
        State::Closed,
        State::Reset,
        State::UdpNew,
        State::UdpEstablished,
        State::Pass,
    ];

    /// Its name in status and documentation.
    pub fn name(self) -> &'static str {
        match self {
            State::SynSent => "syn-sent",
            State::SynReceived => "syn-received",
            State::Established => "established",
            State::FinClient => "fin-client",
            State::FinBackend => "fin-backend",
            State::Closed => "closed",
            State::Reset => "reset",
            State::UdpNew => "udp-new",
            State::UdpEstablished => "udp-established",
            State::Pass => "pass",
        }
    }

    /// Whether both ends have agreed to talk, so that a policy may hand the connection to an engine.
    pub fn is_established(self) -> bool {
        matches!(self, State::Established | State::FinClient | State::FinBackend | State::UdpEstablished)
    }

    /// Whether a forged packet may have made it: it gives way to a newer one when the table is full.
    pub fn is_half_open(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::UdpNew)
    }

    /// Whether it is over, as far as software can tell.
    pub fn is_over(self) -> bool {
        matches!(self, State::Closed | State::Reset)
    }
}

/// Why a connection is not with the engine, or was not when that was last decided. Meaningful while the offload state says
/// [`Software`](crate::offload::OffloadState::Software) or [`Removing`](crate::offload::OffloadState::Removing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Kept {
    /// Nothing has been decided: it is not established yet, or no longer, or it was with the engine.
    #[default]
    Nothing,
    /// The policy has kept it.
    Policy,
    /// The engine had no room.
    EngineFull,
    /// The queue of requests to the engine was full.
    QueueFull,
    /// The engine cannot do what its rules ask.
    Unsupported,
    /// The engine failed.
    Failed,
}

impl Kept {
    /// All of them, in order.
    pub const ALL: [Kept; 6] =
        [Kept::Nothing, Kept::Policy, Kept::EngineFull, Kept::QueueFull, Kept::Unsupported, Kept::Failed];

    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            Kept::Nothing => "undecided",
            Kept::Policy => "policy",
            Kept::EngineFull => "engine-full",
            Kept::QueueFull => "queue-full",
            Kept::Unsupported => "unsupported",
            Kept::Failed => "engine-failed",
        }
    }
}

/// Facts about a connection that are no state of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Flags(pub u16);

impl Flags {
    /// Source address and port are from the pool.
    pub const FULL_NAT: u16 = 1;
    /// It counts as a connection of its backend.
    pub const COUNTED: u16 = 2;
    /// It has left the index and goes as soon as the engine holds no rule of it.
    pub const PENDING_REMOVAL: u16 = 4;
    /// The backend sent the first FIN, so TIME_WAIT is at the backend.
    pub const BACKEND_CLOSED_FIRST: u16 = 8;
    /// The handshake has been completed once.
    pub const PROVEN: u16 = 16;
    /// It seemed over and went on. Until it goes on once more, silence is borne only as long as after a FIN. In
    /// [`State::SynSent`]: it was established before the FIN or RST, which may be forged, as may the SYN that came after that.
    pub const REVIVED: u16 = 32;
    /// How its beginning went has been counted for its backend (see `BackendStatistics`), or never will be.
    pub const JUDGED: u16 = 64;
    /// Its backend was said to be unreachable before it had answered; it may answer yet.
    pub const REPORTED: u16 = 128;
    /// Its two flows steer to different workers, because the number of workers has changed since it began: only the
    /// engine can carry it.
    pub const MISSTEERED: u16 = 256;
    /// The policy has heard of its end.
    pub const TOLD: u16 = 512;
    /// The backend's SYN-ACK has passed, so the client's next word may prove the connection (see `proof`).
    pub const CHALLENGED: u16 = 1024;
    /// Its backend was taken away: whatever either end sends is answered with RST. `proof` says how often the ends were
    /// asked for a packet.
    pub const SEVERED: u16 = 2048;
    /// Severed, and the client has said that it has no connection any more.
    pub const CLIENT_GONE: u16 = 4096;
    /// Severed, and the backend has said that it has no connection any more.
    pub const BACKEND_GONE: u16 = 8192;

    /// It was taken up by a packet of its backend, and its client has not spoken since (see `proof`).
    pub const GUESSED: u16 = 16384;
    /// Direct server return: only the client's packets pass, and nothing of them changes (`worker::one_way`).
    pub const DIRECT: u16 = 32768;

    /// Whether `flag` is set.
    pub fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    /// Sets `flag`.
    pub fn set(&mut self, flag: u16) {
        self.0 |= flag;
    }

    /// Clears `flag`.
    pub fn clear(&mut self, flag: u16) {
        self.0 &= !flag;
    }

    /// Sets or clears `flag`.
    pub fn put(&mut self, flag: u16, there: bool) {
        if there { self.set(flag) } else { self.clear(flag) }
    }
}

/// Packets and bytes of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Volume {
    /// Packets; segments of super-packets counted one by one.
    pub packets: u64,
    /// Bytes of IP packets, headers of every segment included.
    pub bytes: u64,
}

stored_leaf!(State: 1, Kept: 1, Flags: 1);
stored!(Volume: packets, bytes);
stored!(
    Connection: client,
    vip,
    backend,
    source,
    protocol,
    state,
    kept,
    pair,
    flags,
    backend_number,
    last_seen,
    forwarded,
    proof,
    service,
    carried,
    created,
    changed,
    offer_after,
    offloaded,
);

impl Volume {
    /// Adds to it.
    pub fn add(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// A connection: both its flows, and what is known of them. 184 bytes, so that a slot of the slab is three cache lines.
/// The fields that a packet in software needs are in the first two.
#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Connection {
    /// The client's end.
    pub client: Endpoint,
    /// The service's end, where the client connects to.
    pub vip: Endpoint,
    /// The backend's end.
    pub backend: Endpoint,
    /// Whom the backend sees: the client, or an end of the pool.
    pub source: Endpoint,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its state.
    pub state: State,
    /// Why the engine has none of its rules.
    pub kept: Kept,
    /// Its rules, as far as is known what the engine holds.
    pub pair: RulePair,
    /// Facts.
    pub flags: Flags,
    /// Its backend's number in the snapshot.
    pub backend_number: u16,
    /// When a packet was last seen, in software or by the engine as far as it has told.
    pub last_seen: Time,
    /// Traffic forwarded by software and by removed rules: [from client, from backend].
    pub forwarded: [Volume; 2],
    /// TCP, until the handshake is complete: what a client who has got the backend's SYN-ACK acknowledges at least. 0
    /// before there is one. With [`Flags::DIRECT`]: the client's next sequence number, as far as software has seen.
    pub proof: u32,
    /// Its service's number in the snapshot.
    pub service: u16,
    /// 1 once a rule has told of a packet, else 0.
    pub(crate) carried: u16,
    /// When it was created.
    pub created: Time,
    /// When its state last changed.
    pub changed: Time,
    /// Not to be offered to the engine before. While the pair is
    /// [`Installing`](crate::offload::OffloadState::Installing): when its rules were asked for.
    pub offer_after: Time,
    /// The traffic of the rules in force at the last query.
    pub offloaded: [Volume; 2],
}

/// No padding: the sum of the fields.
const _: () = assert!(size_of::<Connection>() == 4 * 18 + 16 + 4 * 8 + 4 * 16);
/// Behind the slot's commit word: what a packet of a settled connection needs is in the first lines.
const _: () = assert!(8 + core::mem::offset_of!(Connection, proof) == 64 * Connection::LINES_HOT);

impl Connection {
    /// Whether it was established, seemed over, and a SYN of its client's has begun it anew: if that was forged, it goes on.
    pub fn awaits_revival(&self) -> bool {
        self.state == State::SynSent && self.flags.has(Flags::REVIVED)
    }

    /// Cache lines of a slot of the slab up to `proof`.
    pub(crate) const LINES_HOT: usize = 2;

    /// A connection that begins now, in software, of no service yet. `ends`: client, VIP, backend, and whom the backend
    /// sees.
    pub fn new(now: Time, protocol: Protocol, state: State, ends: [Endpoint; 4]) -> Connection {
        let [client, vip, backend, source] = ends;
        Connection {
            client,
            vip,
            backend,
            source,
            protocol,
            state,
            kept: Kept::Nothing,
            pair: RulePair::default(),
            flags: Flags::default(),
            service: 0,
            carried: 0,
            backend_number: 0,
            proof: 0,
            created: now,
            changed: now,
            last_seen: now,
            offer_after: Time::ZERO,
            forwarded: [Volume::default(); 2],
            offloaded: [Volume::default(); 2],
        }
    }

    /// The key of one of its flows, as its packets arrive.
    pub fn key(&self, direction: Direction) -> FlowKey {
        match direction {
            Direction::FromClient => FlowKey { source: self.client, destination: self.vip, protocol: self.protocol },
            Direction::FromBackend => {
                FlowKey { source: self.backend, destination: self.source, protocol: self.protocol }
            }
        }
    }

    /// The directions whose packets pass here.
    pub fn directions(&self) -> &'static [Direction] {
        if self.flags.has(Flags::DIRECT) { &BOTH[..1] } else { &BOTH }
    }

    /// The rules that make it an offloaded one, bits as of [`RulePair::held`].
    pub fn rules_wanted(&self) -> u8 {
        match self.state {
            State::Pass => 0b10,
            _ if self.flags.has(Flags::DIRECT) => 0b01,
            _ => 0b11,
        }
    }

    /// Where packets of one of its flows go, once rewritten.
    pub fn egress(&self, direction: Direction) -> Egress {
        match direction {
            Direction::FromClient if self.flags.has(Flags::DIRECT) => Egress::Direct(self.backend_number),
            _ => Egress::Route,
        }
    }

    /// Whether `key` is that of one of its flows.
    #[inline]
    pub fn is_of(&self, direction: Direction, key: &FlowKey) -> bool {
        let (source, destination) = match direction {
            Direction::FromClient => (&self.client, &self.vip),
            Direction::FromBackend => (&self.backend, &self.source),
        };
        key.source == *source && key.destination == *destination && key.protocol == self.protocol
    }

    /// New source and destination of packets of one of its flows: all that [`Connection::rewrite`] changes.
    #[inline]
    pub fn ends(&self, direction: Direction) -> [&Endpoint; 2] {
        match direction {
            Direction::FromClient if self.flags.has(Flags::DIRECT) => [&self.client, &self.vip],
            Direction::FromClient => [&self.source, &self.backend],
            Direction::FromBackend => [&self.vip, &self.client],
        }
    }

    /// Of [`Connection::ends`], the one that stands in for another under any kind of NAT: the destination of what comes
    /// from the client, the source of what comes from the backend.
    #[inline]
    pub fn other_end(&self, direction: Direction) -> &Endpoint {
        match direction {
            Direction::FromClient => &self.backend,
            Direction::FromBackend => &self.vip,
        }
    }

    /// The treatment of packets of one of its flows.
    pub fn rewrite(&self, direction: Direction) -> Rewrite {
        let [source, destination] = self.ends(direction);
        Rewrite { source: *source, destination: *destination, ..Rewrite::default() }
    }

    /// Takes what the engine tells of one rule in force.
    pub fn sampled(&mut self, direction: Direction, counters: &Counters) {
        self.offloaded[direction as usize] = Volume { packets: counters.packets, bytes: counters.bytes };
        self.carried |= u16::from(counters.packets > 0);
        self.last_seen = self.last_seen.max(counters.last_seen.unwrap_or(Time::ZERO));
    }

    /// Takes the word of a caller that has looked that the engine holds these rules of it (bits as of [`RulePair::held`]), and
    /// that no answers are due. What other rules had carried when they were last sampled is all that will be known of
    /// them.
    pub fn holds(&mut self, rules: u8) {
        for (direction, offloaded) in self.offloaded.iter_mut().enumerate() {
            if rules & (1 << direction) == 0 {
                let Volume { packets, bytes } = core::mem::take(offloaded);
                self.forwarded[direction].add(packets, bytes);
            }
        }
        self.pair = RulePair::holding(rules);
    }

    /// Takes the last counters of a rule that is gone.
    pub fn settled(&mut self, direction: Direction, counters: Option<&Counters>) {
        self.offloaded[direction as usize] = Volume::default();
        if let Some(last) = counters {
            self.forwarded[direction as usize].add(last.packets, last.bytes);
            self.carried |= u16::from(last.packets > 0);
            self.last_seen = self.last_seen.max(last.last_seen.unwrap_or(Time::ZERO));
        }
    }
}
