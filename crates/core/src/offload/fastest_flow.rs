//! `fastest-flow`: the engine forwards the connections with the highest packet rates.

use super::price::Price;
use super::rates::ConnectionRates;
use super::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::time::{Duration, Time};

/// Taken for the age of connections that are younger: a few packets at once make no fast one.
const AGE_LEAST: Duration = Duration::from_millis(10);

/// In what time all rules' counters are read once while room is short.
const SAMPLES_WITHIN: Duration = Duration::from_millis(500);

/// Whether room in the engine is short: below a fortieth.
pub(super) fn is_short(room: EngineRoom) -> bool {
    room.rules.saturating_add(2 + room.rules_max / 40) > room.rules_max
}

/// Whether there is plenty: more than a tenth.
pub(super) fn is_plenty(room: EngineRoom) -> bool {
    room.rules < room.rules_max - room.rules_max / 10
}

/// Offloads connections above a packet rate, and when there is no room for all of them, the fastest: the rate asked for
/// rises as long as the engine is full, and what has become slower than half of it comes back.
pub struct FastestFlow {
    least: f32,
    rates: ConnectionRates,
    /// The price of room above the least rate, in packets per second.
    price: Price,
}

impl FastestFlow {
    /// `packets_per_s`: the least rate; `capacity`: connections of the worker.
    pub fn new(packets_per_s: u32, capacity: usize) -> FastestFlow {
        let least = packets_per_s as f32;
        FastestFlow { least, rates: ConnectionRates::new(capacity, AGE_LEAST), price: Price::new(least.max(1.0)) }
    }

    fn asked(&self) -> f32 {
        self.least.max(self.price.asked())
    }
}

impl OffloadPolicy for FastestFlow {
    fn name(&self) -> &'static str {
        "fastest-flow"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.rates.update(now, flow);
        let wanted = rate >= self.asked();
        self.price.follow(now, wanted && is_short(room), is_plenty(room));
        match (wanted, room.has_room()) {
            (false, _) => Verdict::Keep(Reason::Slow),
            (true, false) => Verdict::Keep(Reason::Room),
            (true, true) => Verdict::Offload,
        }
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.rates.update(now, flow);
        self.price.follow(now, false, is_plenty(room));
        if rate < self.asked() / 2.0 && !is_plenty(room) { Verdict::Evict(Reason::Slow) } else { Verdict::Offload }
    }
    fn on_refused(&mut self, now: Time) {
        self.price.follow(now, true, false);
    }
    fn samples_within(&self) -> Option<Duration> {
        (self.price.asked() > 0.0).then_some(SAMPLES_WITHIN)
    }
}
