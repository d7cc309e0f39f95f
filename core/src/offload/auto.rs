//! `auto`: a connection goes to the engine when what that saves is expected to be more than it costs.
//!
//! What it saves: the packets it may still be expected to have, given how many it has had and how many others had in all
//! ([`Sizes`]), times what a packet costs the worker. What it costs: making and removing its rules. Both costs are
//! measured ([`Costs`]). Two things may be short besides, and have a price that rises while they are:
//! - the engine's time for requests: in packets, on top of the costs;
//! - room: in packets per second, since a rule that stands there keeps another from its place. A connection's own rate has
//!   to be above that, and what the engine carries comes back when it is below half of it.

use super::fastest_flow::{SAMPLES_WITHIN, is_plenty, is_short};
use super::price::Price;
use super::rates::Rates;
use super::sizes::Sizes;
use super::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::time::{Duration, Time};
use alloc::boxed::Box;

/// What was measured of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// What a packet costs the worker beyond what it costs the engine, in nanoseconds.
    pub packet_ns: u32,
    /// What a pair of rules costs from its installation to its removal, in nanoseconds.
    pub pair_ns: u32,
}

impl Default for Costs {
    /// Until something was measured: about what the kernel engine has.
    fn default() -> Costs {
        Costs { packet_ns: 500, pair_ns: 5_000 }
    }
}

impl Costs {
    /// How many packets pay for a pair of rules.
    fn packets(self) -> f32 {
        self.pair_ns as f32 / self.packet_ns.max(1) as f32
    }
}

/// The policy.
pub struct Auto {
    sizes: Box<Sizes>,
    rates: Rates,
    costs: Costs,
    /// In packets.
    requests: Price,
    /// In packets per second.
    room: Price,
}

impl Auto {
    /// For so many connections of the worker.
    pub fn new(capacity: usize) -> Auto {
        Auto {
            sizes: Box::new(Sizes::new()),
            rates: Rates::new(capacity),
            costs: Costs::default(),
            requests: Price::new(1.0),
            room: Price::new(1.0),
        }
    }
}

impl OffloadPolicy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.rates.update(now, flow);
        let rent = self.room.asked();
        // Of what a connection saves in a second, the rent is gone.
        let share = if rent > 0.0 { 1.0 - rent / rate.max(1e-3) } else { 1.0 };
        let saved = self.sizes.remaining(flow.packets) * share;
        let wanted = saved > self.costs.packets() + self.requests.asked();
        self.requests.follow(now, wanted && room.waiting > room.waiting_max / 2, room.waiting < room.waiting_max / 4);
        self.room.follow(now, wanted && is_short(room), is_plenty(room));
        match (wanted, room.has_room()) {
            (false, _) if share <= 0.0 => Verdict::Keep(Reason::Slow),
            (false, _) => Verdict::Keep(Reason::Unprofitable),
            (true, false) => Verdict::Keep(Reason::Room),
            (true, true) => Verdict::Offload,
        }
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.rates.update(now, flow);
        self.room.follow(now, false, is_plenty(room));
        if rate < self.room.asked() / 2.0 { Verdict::Evict(Reason::Slow) } else { Verdict::Offload }
    }
    fn on_end(&mut self, _: Time, flow: &FlowStats) {
        self.sizes.add(flow.packets);
    }
    fn on_refused(&mut self, now: Time) {
        self.room.follow(now, true, false);
    }
    fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }
    fn samples_within(&self) -> Option<Duration> {
        (self.room.asked() > 0.0).then_some(SAMPLES_WITHIN)
    }
}
