//! `auto`: a connection goes to the engine when what that saves is expected to be more than it costs.
//!
//! What it saves: the packets it may still be expected to have, given how many it has had and how many others had in all
//! ([`Sizes`]), times what a packet costs the worker. What it costs: making and removing its rules. Both costs are
//! measured ([`Costs`]). Two things may be short besides, and have a price that rises while they are:
//! - the engine's time for requests: in packets, on top of the costs. It is short while as many are unanswered as a
//!   [`Window`] has, and another connection is wanted there;
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

/// How many requests may be unanswered: as many as are answered soon, by how long the latest took. Whatever else waits in the
/// engine's queue, what is asked for later waits behind it.
#[derive(Clone, Copy, Debug)]
struct Window {
    size: f32,
    /// How long rules take from being asked for to being in force, in seconds: a mean of the latest.
    delay: f32,
    at: Time,
}

impl Window {
    /// Answered by then, it may be more.
    const SOON: Duration = Duration::from_millis(10);
    /// Answered later than that, it must be fewer.
    const LATE: Duration = Duration::from_millis(50);
    const LEAST: f32 = 64.0;
    const MOST: f32 = 65_536.0;

    /// In so long without another the mean has halved.
    const FORGOTTEN: Duration = Duration::from_millis(200);

    fn new() -> Window {
        Window { size: Self::LEAST, delay: 0.0, at: Time::ZERO }
    }

    fn add(&mut self, now: Time, delay: Duration) {
        if delay < Self::SOON {
            self.size = (self.size + 2.0).min(Self::MOST);
        } else if delay > Self::LATE {
            self.size = (self.size * (63.0 / 64.0)).max(Self::LEAST);
        }
        let before = self.delay(now);
        (self.delay, self.at) = (before + (delay.as_secs_f32() - before) / 8.0, now);
    }

    /// What it takes now.
    fn delay(&self, now: Time) -> f32 {
        let since = now.since(self.at).as_secs_f32() / Self::FORGOTTEN.as_secs_f32();
        self.delay / (1.0 + since * since)
    }
}

/// The policy.
pub struct Auto {
    sizes: Box<Sizes>,
    rates: Rates,
    costs: Costs,
    window: Window,
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
            window: Window::new(),
            requests: Price::hasty(1.0, 3.0),
            room: Price::new(1.0),
        }
    }

    /// Notes how far a connection has got; its packets per second.
    fn look(&mut self, now: Time, flow: &FlowStats) -> f32 {
        self.sizes.grow(self.rates.seen(flow), flow.packets);
        self.rates.update(now, flow)
    }
}

impl OffloadPolicy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.look(now, flow);
        let rent = self.room.asked();
        // Of what a connection saves in a second, the rent is gone.
        let share = if rent > 0.0 { 1.0 - rent / rate.max(1e-3) } else { 1.0 };
        // What comes before the rules are in force saves nothing.
        let saved = (self.sizes.remaining(flow.packets) - rate * self.window.delay(now)) * share;
        let wanted = saved > self.costs.packets() + self.requests.asked();
        let unanswered = room.unanswered as f32;
        let (busy, idle) = (unanswered >= self.window.size, unanswered < self.window.size / 2.0);
        self.requests.follow(now, wanted && busy, idle);
        self.room.follow(now, wanted && is_short(room), is_plenty(room));
        match (wanted, room.has_room() && !busy) {
            (false, _) if share <= 0.0 => Verdict::Keep(Reason::Slow),
            (false, _) => Verdict::Keep(Reason::Unprofitable),
            (true, false) => Verdict::Keep(Reason::Room),
            (true, true) => Verdict::Offload,
        }
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.look(now, flow);
        self.room.follow(now, false, is_plenty(room));
        if rate < self.room.asked() / 2.0 { Verdict::Evict(Reason::Slow) } else { Verdict::Offload }
    }
    fn on_end(&mut self, _: Time, flow: &FlowStats) {
        self.sizes.grow(self.rates.seen(flow), flow.packets);
        self.sizes.end(flow.packets);
    }
    fn on_installed(&mut self, now: Time, delay: Duration) {
        self.window.add(now, delay);
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
