//! The cost of iterations: a [`CoreProfile`], scaled, with the last computed values remembered. At a tenth of the scale a
//! flow stands for ten: so many share a cache at full scale.

use super::cores::CoreProfile;
use super::run::BURST;
use hairpin_core::table::LookupMethod;
use hairpin_core::worker::Statistics;

/// Packets after which what they have cost is told.
const MEASURED_LEAST: u64 = 1000;

/// A core's costs for one method of finding connections, in nanoseconds of virtual time.
pub(super) struct MethodCosts {
    profile: CoreProfile,
    method: LookupMethod,
    /// How many times as long everything takes.
    factor: f64,
    /// Of an iteration with so many packets through the forwarder.
    forward: [f64; BURST + 1],
}

/// What an iteration of the balancer had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BurstCounts {
    /// Packets.
    pub(super) packets: usize,
    /// Those of them that the card had marked.
    pub(super) marked: usize,
    /// Flows that began in it.
    pub(super) new: u64,
    /// Flows that ended in it.
    pub(super) ended: u64,
    /// Flows in use.
    pub(super) flows: u32,
}

/// The costs computed for a number of flows in use.
#[derive(Clone)]
pub(super) struct Remembered {
    /// For this many, more or less.
    flows: u32,
    /// Of an iteration with so many packets of known flows.
    known: [f64; BURST + 1],
    /// Of a new flow, and of an iteration in which any begins.
    new: (f64, f64),
    /// The saving of a packet that the card has marked.
    marked: f64,
}

impl Default for Remembered {
    fn default() -> Remembered {
        Remembered { flows: u32::MAX, known: [0.0; BURST + 1], new: (0.0, 0.0), marked: 0.0 }
    }
}

impl MethodCosts {
    pub(super) fn new(profile: CoreProfile, method: LookupMethod, scale: f64) -> MethodCosts {
        let factor = 1.0 / scale;
        let forward = std::array::from_fn(|burst| burst as f64 * profile.forward_ns(burst) * factor);
        MethodCosts { profile, method, factor, forward }
    }

    /// How long a core that has nothing to do goes without polling, on average.
    pub(super) fn until_seen(&self) -> u64 {
        (self.profile.poll_ns() * self.factor / 2.0) as u64
    }

    /// An iteration of the forwarder.
    pub(super) fn forward(&self, burst: usize) -> f64 {
        self.forward[burst.min(BURST)]
    }

    /// An iteration of the balancer.
    pub(super) fn iteration(&self, burst: BurstCounts, remembered: &mut Remembered) -> f64 {
        let BurstCounts { packets, marked, new, ended, flows } = burst;
        self.refresh(flows, remembered);
        let (each, iteration) = remembered.new;
        let begun = if new == 0 { 0.0 } else { new as f64 * each + iteration };
        remembered.known[packets.min(BURST)] - marked as f64 * remembered.marked + begun + self.ends(ended)
    }

    /// Flows' ends.
    pub(super) fn ends(&self, ended: u64) -> f64 {
        if ended == 0 { 0.0 } else { ended as f64 * self.profile.end_ns() * self.factor }
    }

    /// Rules asked for.
    pub(super) fn rules(&self, asked: u64) -> f64 {
        asked as f64 * self.profile.rule_ns() * self.factor
    }

    /// The measurements given to the policies: a packet, as `hairpin run` measures it (all that they took, by their number;
    /// before there were enough, one of a known flow in a full burst), and a pair of rules from its installation to its
    /// removal.
    pub(super) fn told(&self, busy_ns: u64, statistics: &Statistics) -> hairpin_core::offload::Costs {
        let offload = &statistics.offload;
        let answered = offload.installed + offload.removed + offload.lost;
        let packet = if statistics.frames < MEASURED_LEAST {
            let flows = statistics.connections_now as u32;
            self.profile.known_ns(self.method, self.at_full_scale(flows), BURST) * self.factor
        } else {
            (busy_ns as f64 - self.rules(answered)).max(0.0) / statistics.frames as f64
        };
        hairpin_core::offload::Costs {
            packet_ns: packet.max(1.0) as u32,
            pair_ns: (self.profile.rule_ns() * 4.0 * self.factor) as u32,
        }
    }

    /// Flows in use, as there would be at full scale.
    fn at_full_scale(&self, flows: u32) -> f64 {
        f64::from(flows.max(1)) * self.factor
    }

    /// Works everything out anew when the number of flows has changed by more than a hundredth or so.
    fn refresh(&self, flows: u32, remembered: &mut Remembered) {
        if flows.abs_diff(remembered.flows) <= remembered.flows >> 7 {
            return;
        }
        let in_use = self.at_full_scale(flows);
        let known = |burst| burst as f64 * self.profile.known_ns(self.method, in_use, burst) * self.factor;
        let (each, iteration) = self.profile.new_ns(self.method, in_use);
        *remembered = Remembered {
            flows,
            known: std::array::from_fn(known),
            new: (each * self.factor, iteration * self.factor),
            marked: self.profile.marked_saves_ns(self.method, in_use) * self.factor,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_with_new_flows_pays_once() {
        let mut profile = CoreProfile::parse(include_str!("../../../../lab/profiles/cores/xeon-5217.toml")).unwrap();
        for point in profile.method.iter_mut().flat_map(|method| &mut method.new) {
            (point.ns, point.iteration_ns) = (300.0, 80.0);
        }
        let costs = MethodCosts::new(profile, LookupMethod::DEFAULT, 0.5);
        let mut remembered = Remembered::default();
        let mut iteration = |new| {
            costs.iteration(BurstCounts { packets: 32, new, flows: 1000, ..BurstCounts::default() }, &mut remembered)
        };
        let known = iteration(0);
        for (new, more) in [(1, 380.0), (2, 680.0), (32, 9680.0)] {
            assert!((iteration(new) - known - 2.0 * more).abs() < 1e-6, "{new}");
        }
    }
}
