//! `auto`: a connection goes to the engine when what that saves is expected to be more than it costs.
//!
//! The saving: the packets that the connection may still be expected to have, from the number it has had and the sizes of
//! others ([`ObservedSizes`]), times what a packet costs the worker. The cost: making and removing its rules. Both costs are
//! measured ([`Costs`]). If the connection may end with the next packets, waiting for them is better: the policy weighs
//! this, too. Two things may be short besides, and have a price while they are:
//! - the engine's time for requests: in packets, on top of the costs. It is short while as many are unanswered as a
//!   [`RequestWindow`] has, and another connection is wanted there;
//! - room: in packets per second ([`Rent`]), since a rule that stands there keeps another from its place.

use super::fastest_flow::is_short;
use super::price::{EPOCH, Price};
use super::rates::{ConnectionRates, ForwardedBy};
use super::sizes::ObservedSizes;
use super::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::time::{Duration, Time};
use alloc::boxed::Box;

/// Packets later than that count for nothing when it is decided about a connection: its rate will be another by then.
const HORIZON_S: f32 = 2.0;

/// Taken for the age of connections that are younger. What the packets of a handshake say of the rate decides whether rules
/// come in time, so it is short.
const AGE_LEAST: Duration = Duration::from_millis(1);

/// Costs measured on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The cost of a packet to the worker beyond that to the engine, in nanoseconds.
    pub packet_ns: u32,
    /// The cost of a pair of rules from its installation to its removal, in nanoseconds.
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

/// How many requests may be unanswered: as many as keep the engine busy and no more, or else what is asked for later waits
/// in its queue. As many as are answered about as soon as one alone is, as TCP Vegas has it of segments.
#[derive(Clone, Copy, Debug)]
struct RequestWindow {
    size: f32,
    /// How long rules take from being asked for to being in force where nothing else waits, in seconds; 0: unknown.
    alone: f32,
    /// How long they take: a mean of the latest.
    delay: f32,
    at: Time,
}

impl RequestWindow {
    /// Answered within so many seconds, or so many times what it takes alone, it may be more: engines that take requests in
    /// batches answer one alone soon and are slow all the same.
    const SOON_S: f32 = 0.002;
    const SOON: f32 = 6.0;
    /// Answered later than that, it must be fewer.
    const LATE_S: f32 = 0.008;
    const LATE: f32 = 12.0;
    /// By what the time that it takes alone is taken to grow with each answer.
    const FADING: f32 = 1.000_001;
    const LEAST: f32 = 16.0;
    const MOST: f32 = 65_536.0;

    /// In so long without another the mean has halved.
    const FORGOTTEN: Duration = Duration::from_millis(200);

    fn new() -> RequestWindow {
        RequestWindow { size: Self::LEAST, alone: 0.0, delay: 0.0, at: Time::ZERO }
    }

    fn add(&mut self, now: Time, delay: Duration) {
        let (taken, before) = (delay.as_secs_f32().max(1e-6), self.delay(now));
        // Engines change; what was true is slowly forgotten.
        self.alone = if self.alone == 0.0 { taken } else { taken.min(self.alone * Self::FADING) };
        if taken < Self::SOON_S.max(Self::SOON * self.alone) {
            self.size = (self.size + 2.0).min(Self::MOST);
        } else if taken > Self::LATE_S.max(Self::LATE * self.alone) {
            self.size = (self.size * (63.0 / 64.0)).max(Self::LEAST);
        }
        (self.delay, self.at) = (before + (taken - before) / 8.0, now);
    }

    /// The delay now: the measured one, decayed since.
    fn delay(&self, now: Time) -> f32 {
        let since = now.since(self.at).as_secs_f32() / Self::FORGOTTEN.as_secs_f32();
        self.delay / (1.0 + since * since)
    }

    /// How soon a change of what is asked for tells.
    fn epoch(&self, now: Time) -> Duration {
        Duration::try_from_secs_f32(2.0 * self.delay(now)).unwrap_or(EPOCH).clamp(Duration::from_millis(1), EPOCH)
    }
}

/// The price of room while it is scarce, in packets per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rent {
    /// The slowest fifth of what the engine forwards is slower than this. Who comes must be twice as fast.
    fifth: f32,
    /// So many of those have asked in vain; for each of them one of the slowest fifth goes. No connection waits here:
    /// one beyond the bound, which is how much may go at a time, asks again with its next packet, and each time counts
    /// as kept by [`Reason::Room`].
    in_vain: u32,
    /// When there was too little last.
    short: Option<Time>,
}

impl Rent {
    /// How much faster the one must be that takes another's place.
    const FASTER: f32 = 2.0;
    /// After so long with enough it costs nothing any more.
    const EASED: Duration = Duration::from_millis(500);
    /// How much closer the estimate of the fifth comes with each rate.
    const STEP: f32 = 0.2;
    /// Requests that may be refused before a rule is withdrawn: this part (1/40) of the rules of this worker, at least this
    /// number.
    const IN_VAIN_PART: u32 = 40;
    const IN_VAIN_LEAST: u32 = 16;
    /// In what time the counters of all rules are read once while there is too little.
    const SAMPLES_WITHIN: Duration = Duration::from_millis(250);

    fn asked(&self) -> f32 {
        if self.short.is_some() { Self::FASTER * self.fifth } else { 0.0 }
    }

    /// Notes how much room there is.
    fn follow(&mut self, now: Time, room: EngineRoom) {
        if is_short(room) {
            self.short = Some(now);
        } else if self.short.is_some_and(|at| now.since(at) > Self::EASED) {
            *self = Rent::default();
        }
    }

    /// A connection has come that would pay.
    fn wanted(&mut self, room: EngineRoom) {
        if !room.has_room() {
            self.in_vain = (self.in_vain + 1).min((room.own / Self::IN_VAIN_PART).max(Self::IN_VAIN_LEAST));
        }
    }

    /// The rate of one that is there; whether it goes.
    fn evicts(&mut self, rate: f32) -> bool {
        let goes = self.in_vain > 0 && rate < self.fifth;
        self.in_vain -= u32::from(goes);
        // A fifth of the rates is below it when a step down, four times as large, comes as often as four up.
        let step = if rate < self.fifth { -0.8 } else { 0.2 };
        self.fifth = if self.fifth == 0.0 { rate / 2.0 } else { self.fifth * (1.0 + Self::STEP * step) };
        goes
    }
}

/// The policy.
pub struct Auto {
    sizes: Box<ObservedSizes>,
    rates: ConnectionRates,
    costs: Costs,
    window: RequestWindow,
    /// In packets.
    requests: Price,
    /// When rules were last asked for. All packets of a burst come at one time, and at that no more than one connection
    /// goes: no packet is to wait for the rules of many others, and a connection that sends again may go then.
    asked: Option<Time>,
    room: Rent,
}

impl Auto {
    /// For so many connections of the worker.
    pub fn new(capacity: usize) -> Auto {
        Auto {
            sizes: Box::new(ObservedSizes::new()),
            rates: ConnectionRates::new(capacity, AGE_LEAST),
            costs: Costs::default(),
            window: RequestWindow::new(),
            requests: Price::hasty(1.0, 3.0),
            asked: None,
            room: Rent::default(),
        }
    }

    /// Notes how far a connection has got; its packets per second.
    fn observe(&mut self, now: Time, flow: &FlowStats, by: ForwardedBy) -> f32 {
        let (before, forwarded_by) = self.rates.seen(flow);
        if forwarded_by != ForwardedBy::Software {
            self.sizes.come(before);
        }
        self.sizes.grow(before, flow.packets);
        if by == ForwardedBy::Engine {
            self.sizes.leave(flow.packets);
        }
        let rate = self.rates.update(now, flow);
        self.rates.set_forwarded_by(flow, by);
        rate
    }
}

impl OffloadPolicy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        let rate = self.observe(now, flow, ForwardedBy::Software);
        let cost = self.costs.packets() + self.requests.asked();
        self.sizes.set_cost(cost);
        // Packets before the rules are in force save nothing, and late ones say nothing now.
        let (lost, most) = (rate * self.window.delay(now), rate * HORIZON_S);
        let saved = self.sizes.remaining(flow.packets).min(most) - lost;
        self.room.follow(now, room);
        let (fast, worthy) = (rate > self.room.asked(), saved > cost);
        // It may be better to wait whether it lasts.
        let ripe = saved - cost >= self.sizes.awaited(flow.packets, most) - lost;
        let wanted = fast && worthy && ripe;
        let unanswered = room.unanswered as f32;
        let (busy, idle) = (unanswered >= self.window.size, unanswered < self.window.size / 2.0);
        self.requests.follow_every(now, self.window.epoch(now), wanted && busy, idle);
        if wanted {
            self.room.wanted(room);
        }
        let its_turn = self.asked != Some(now);
        match (wanted, room.has_room() && !busy && its_turn) {
            (true, true) => {
                self.asked = Some(now);
                self.sizes.leave(flow.packets);
                self.rates.set_forwarded_by(flow, ForwardedBy::Engine);
                Verdict::Offload
            }
            (true, false) => Verdict::Keep(Reason::Room),
            (false, _) if !worthy => Verdict::Keep(Reason::Unprofitable),
            (false, _) if !fast => Verdict::Keep(Reason::Slow),
            (false, _) => Verdict::Keep(Reason::Small),
        }
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, _: EngineRoom) -> Verdict {
        let rate = self.observe(now, flow, ForwardedBy::Engine);
        if self.room.evicts(rate) { Verdict::Evict(Reason::Slow) } else { Verdict::Offload }
    }
    fn on_end(&mut self, now: Time, flow: &FlowStats) {
        self.observe(now, flow, ForwardedBy::Unknown);
        self.sizes.end(flow.packets);
    }
    fn on_installed(&mut self, now: Time, delay: Duration) {
        self.window.add(now, delay);
    }
    fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }
    fn samples_within(&self) -> Option<Duration> {
        self.room.short.map(|_| Rent::SAMPLES_WITHIN)
    }
}
