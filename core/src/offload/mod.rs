//! Policies: which connections go to the engine. They see numbers, never packets.

use crate::flow::Protocol;
use crate::time::Time;

/// What a policy gets to see of a connection.
#[derive(Clone, Copy, Debug)]
pub struct FlowStats {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Packets so far, both ways, this one included.
    pub packets: u64,
    /// Bytes so far, both ways.
    pub bytes: u64,
    /// When it began.
    pub created: Time,
}

/// How much room the engine has.
#[derive(Clone, Copy, Debug)]
pub struct EngineRoom {
    /// Rules this worker has in it.
    pub rules: u32,
    /// Rules it holds at most, of all workers.
    pub rules_max: u32,
}

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it where it is.
    Keep,
    /// Hand it to the engine.
    Offload,
}

/// Decides for established connections, at each of their packets that software sees.
pub trait OffloadPolicy {
    /// Its name in configuration and status.
    fn name(&self) -> &'static str;
    /// What to do with a connection that has just had a packet.
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict;
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
        if room.rules + 2 <= room.rules_max { Verdict::Offload } else { Verdict::Keep }
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
        Verdict::Keep
    }
    fn offloads(&self) -> bool {
        false
    }
}
