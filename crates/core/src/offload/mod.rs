//! Policies: which connections go to the engine. They see counters, never packets.
//!
//! | policy | offloads |
//! |---|---|
//! | [`Never`] | nothing |
//! | [`Always`] | every established connection, as long as there is room |
//! | [`FirstN`] | the same, up to a number of connections: the naive policy of KTH 2022 |
//! | [`HeavyHitter`] | what has sent so many packets or bytes, or lasted so long: the selective policy of KTH 2022 |
//! | [`FastestFlow`] | the connections with the highest packet rates, in place of slower ones |
//! | [`DecisionTree`] | what its first packets say is going to be long, by a tree that was trained |
//! | [`Auto`] | what is expected to save more than its rules cost, by what is measured |

mod any;
mod auto;
mod fastest_flow;
mod heavy_hitter;
mod pair;
mod price;
mod rates;
mod sizes;
pub mod tree;

#[cfg(test)]
mod tests;

pub use any::{AnyPolicy, Choice};
pub use auto::{Auto, Costs};
pub use fastest_flow::FastestFlow;
pub use heavy_hitter::{Combine, HeavyHitter};
pub(crate) use pair::BOTH;
pub use pair::{Answer, OffloadState, RulePair};
pub use tree::{BUILT_IN, DecisionTree, Tree};

use crate::flow::{Direction, Endpoint, Protocol};
use crate::time::{Duration, Time};

/// A policy's view of a connection.
#[derive(Clone, Copy, Debug)]
pub struct FlowStats {
    /// Which of its worker's connections it is: below their greatest number. Another one gets it when this has ended.
    pub position: u32,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Packets so far, both ways, in software and in the engine as far as is known, this one included.
    pub packets: u64,
    /// Bytes so far, both ways.
    pub bytes: u64,
    /// When it began.
    pub created: Time,
    /// Bytes of the packet at hand, from the IP header on (a super-packet: of all its packets); 0 when there is none.
    pub length: u32,
    /// Which way that goes.
    pub direction: Direction,
    /// The client's end.
    pub client: Endpoint,
    /// The service's.
    pub service: Endpoint,
}

/// How much room the engine has.
#[derive(Clone, Copy, Debug)]
pub struct EngineRoom {
    /// Rules of all workers that it holds or has been asked for, as far as this worker knows.
    pub rules: u32,
    /// How many of them are of this worker's connections.
    pub own: u32,
    /// Rules it holds at most, of all workers.
    pub rules_max: u32,
    /// Requests of this worker that the engine has not taken yet.
    pub waiting: u32,
    /// How many of those there may be.
    pub waiting_max: u32,
    /// Requests of this worker that the engine has not answered yet, those that wait included.
    pub unanswered: u32,
}

impl EngineRoom {
    /// Whether a pair of rules fits.
    fn has_room(&self) -> bool {
        self.rules.saturating_add(2) <= self.rules_max
    }
}

/// Why a connection stays with the worker, or comes back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Nothing is offloaded.
    Never,
    /// The engine is full or busy, or the policy's share of it.
    Room,
    /// It has not sent enough yet, or not lasted long enough.
    Small,
    /// Others are faster.
    Slow,
    /// Its expected traffic does not pay for its rules.
    Unprofitable,
    /// Its first packets say that it is short.
    Short,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Reason; 6] =
        [Reason::Never, Reason::Room, Reason::Small, Reason::Slow, Reason::Unprofitable, Reason::Short];

    /// Its name in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Never => "never",
            Reason::Room => "no-room",
            Reason::Small => "small",
            Reason::Slow => "slow",
            Reason::Unprofitable => "unprofitable",
            Reason::Short => "predicted-short",
        }
    }
}

/// The decision about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it where it is.
    Keep(Reason),
    /// Hand it to the engine, or leave it there.
    Offload,
    /// Take it back from the engine.
    Evict(Reason),
}

/// Decides for established connections, at each of their packets that software sees.
pub trait OffloadPolicy {
    /// Its name in configuration and status.
    fn name(&self) -> &'static str;
    /// The decision about a connection in software that has just had a packet: [`Verdict::Offload`] or [`Verdict::Keep`].
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict;
    /// The decision about a connection that the engine forwards and whose counters were just read: [`Verdict::Offload`] (it
    /// stays) or [`Verdict::Evict`].
    fn on_sample(&mut self, _: Time, _: &FlowStats, _: EngineRoom) -> Verdict {
        Verdict::Offload
    }
    /// A connection has ended, with these numbers in all.
    fn on_end(&mut self, _: Time, _: &FlowStats) {}
    /// The rules of a connection are in force, so long after they were asked for.
    fn on_installed(&mut self, _: Time, _: Duration) {}
    /// The engine has refused rules for want of room.
    fn on_refused(&mut self, _: Time) {}
    /// Costs measured on the machine.
    fn set_costs(&mut self, _: Costs) {}
    /// In what time the counters of all rules are to be read once; `None`: the policy needs none now.
    fn samples_within(&self) -> Option<Duration> {
        None
    }
    /// Whether anything may go to the engine at all.
    fn offloads(&self) -> bool {
        true
    }
}

/// Every established connection goes to the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl OffloadPolicy for Always {
    fn name(&self) -> &'static str {
        "always"
    }
    fn on_packet(&mut self, _: Time, _: &FlowStats, room: EngineRoom) -> Verdict {
        if room.has_room() { Verdict::Offload } else { Verdict::Keep(Reason::Room) }
    }
}

/// No connection goes to the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Never;

impl OffloadPolicy for Never {
    fn name(&self) -> &'static str {
        "never"
    }
    fn on_packet(&mut self, _: Time, _: &FlowStats, _: EngineRoom) -> Verdict {
        Verdict::Keep(Reason::Never)
    }
    fn offloads(&self) -> bool {
        false
    }
}

/// Connections go to the engine as they come, until it has a number of them; others only when some of those have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstN {
    /// Connections of each worker that may be there at a time.
    pub connections: u32,
}

impl OffloadPolicy for FirstN {
    fn name(&self) -> &'static str {
        "first-n"
    }
    fn on_packet(&mut self, _: Time, _: &FlowStats, room: EngineRoom) -> Verdict {
        let taken = room.own / 2 >= self.connections;
        if room.has_room() && !taken { Verdict::Offload } else { Verdict::Keep(Reason::Room) }
    }
}
