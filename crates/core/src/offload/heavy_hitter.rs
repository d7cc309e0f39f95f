//! `heavy-hitter`: what has proved to be large goes to the engine (KTH 2022, "selective offloading", which counts bytes;
//! packets and duration are what it leaves open).

use super::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::time::{Duration, Time};

/// How several thresholds go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// One that is reached is enough.
    #[default]
    Any,
    /// All must be reached.
    All,
}

/// Offloads connections that have reached thresholds, both directions taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeavyHitter {
    /// Packets.
    pub packets: Option<u64>,
    /// Bytes of frames.
    pub bytes: Option<u64>,
    /// Time since its first packet.
    pub duration: Option<Duration>,
    /// How those that are set go together. If none is, everything is a heavy hitter.
    pub combine: Combine,
}

impl HeavyHitter {
    fn is_reached(&self, now: Time, flow: &FlowStats) -> bool {
        let mut reached = [
            self.packets.map(|least| flow.packets >= least),
            self.bytes.map(|least| flow.bytes >= least),
            self.duration.map(|least| now.since(flow.created) >= least),
        ]
        .into_iter()
        .flatten()
        .peekable();
        match self.combine {
            _ if reached.peek().is_none() => true,
            Combine::Any => reached.any(|is| is),
            Combine::All => reached.all(|is| is),
        }
    }
}

impl OffloadPolicy for HeavyHitter {
    fn name(&self) -> &'static str {
        "heavy-hitter"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        match (self.is_reached(now, flow), room.has_room()) {
            (false, _) => Verdict::Keep(Reason::Small),
            (true, false) => Verdict::Keep(Reason::Room),
            (true, true) => Verdict::Offload,
        }
    }
}
