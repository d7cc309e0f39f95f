//! How many packets of no known connection a service may hand to the workers: adapted to how many of them lead to
//! connections. A flood of them must not take the workers' time from established connections; a rush of real clients must
//! not be held back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Steps that are judged together; at ten a second, one second: longer than a handshake takes over most paths.
const STEPS: usize = 10;
/// Fewer packets than this in a judged time say nothing.
const PACKETS_MIN: u64 = 20;

/// Above this share of a core the busiest worker has no time to spare for what may be forged.
const LOAD_HIGH_PERCENT: u128 = 30;

/// How busy the busiest worker has been over the judged time. While there is time to spare, an answered datagram counts
/// as worth something (a name server's clients ask once and are gone); when there is not, only what no forger can do.
#[derive(Debug, Default)]
pub(crate) struct WorkerLoad {
    /// (when, time worked until then)
    history: VecDeque<(Instant, Duration)>,
}

impl WorkerLoad {
    /// Takes the time that the busiest worker has worked so far.
    pub(crate) fn note(&mut self, busy: Duration) {
        self.note_at(Instant::now(), busy);
    }

    fn note_at(&mut self, now: Instant, busy: Duration) {
        if self.history.len() == STEPS {
            self.history.pop_front();
        }
        self.history.push_back((now, busy));
    }

    /// Whether it has no time to spare.
    pub(crate) fn is_high(&self) -> bool {
        let (Some((from, before)), Some((to, after))) = (self.history.front(), self.history.back()) else {
            return false;
        };
        let worked = after.saturating_sub(*before).as_nanos();
        worked * 100 > (*to - *from).as_nanos() * LOAD_HIGH_PERCENT
    }
}

/// The rate of one service.
#[derive(Clone, Debug)]
pub(crate) struct ServiceRate {
    ceiling: u32,
    rate: u32,
    /// Whether the packets judged last were worth little.
    suspect: bool,
    /// Totals at earlier steps: (speculative frames, connections established).
    history: VecDeque<(u64, u64)>,
}

impl ServiceRate {
    /// Starts at the ceiling: innocent until shown otherwise.
    pub(crate) fn new(ceiling: u32) -> ServiceRate {
        ServiceRate { ceiling, rate: ceiling, suspect: false, history: VecDeque::with_capacity(STEPS) }
    }

    /// Sets the most it may be.
    pub(crate) fn set_ceiling(&mut self, ceiling: u32) {
        self.ceiling = ceiling;
        self.rate = self.rate.min(ceiling);
    }

    /// Whether most of what was admitted lately led to nothing.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect
    }

    /// Packets per second and CPU, as last decided.
    pub(crate) fn packets_per_s(&self) -> u32 {
        self.rate
    }

    /// Takes a service's totals so far: frames that made a connection or belonged to none, and connections that were
    /// established. Called ten times a second.
    ///
    /// The rate halves, down to `floor`, while fewer than half of those frames led to an established connection,
    /// doubles while more do, and climbs slowly while there are hardly any. If there are so many that they crowd the
    /// connection table (`crowded`), it falls to the floor at once.
    pub(crate) fn step(&mut self, speculative: u64, established: u64, crowded: bool, floor: u32) {
        let (speculative_before, established_before) = *self.history.front().unwrap_or(&(speculative, established));
        if self.history.len() == STEPS {
            self.history.pop_front();
        }
        self.history.push_back((speculative, established));
        let frames = speculative.saturating_sub(speculative_before);
        let worth = established.saturating_sub(established_before);
        self.suspect = frames >= PACKETS_MIN && worth < frames.div_ceil(2);
        let rate = if frames < PACKETS_MIN {
            self.rate.saturating_add(self.rate / 16 + 1)
        } else if self.suspect && crowded {
            0
        } else if self.suspect {
            self.rate / 2
        } else {
            self.rate.saturating_mul(2)
        };
        self.rate = rate.max(floor).min(self.ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate after `steps` steps with so many speculative frames and established connections in each.
    fn after(rate: &mut ServiceRate, steps: u64, frames: u64, worth: u64) -> u32 {
        after_with_floor(rate, steps, frames, worth, 100)
    }

    fn after_with_floor(rate: &mut ServiceRate, steps: u64, frames: u64, worth: u64, floor: u32) -> u32 {
        let (mut speculative, mut established) = *rate.history.back().unwrap_or(&(0, 0));
        for _ in 0..steps {
            speculative += frames;
            established += worth;
            rate.step(speculative, established, false, floor);
        }
        rate.packets_per_s()
    }

    #[test]
    fn the_load_is_that_of_the_last_second() {
        let start = Instant::now();
        let mut load = WorkerLoad::default();
        assert!(!load.is_high());
        for step in 0..40u64 {
            let busy = Duration::from_millis(if step < 20 { step * 80 } else { 1600 + (step - 20) * 10 });
            load.note_at(start + Duration::from_millis(step * 100), busy);
            assert_eq!(load.is_high(), (1..27).contains(&step), "{step}");
        }
    }

    #[test]
    fn flood_holds_rate_at_the_floor() {
        let mut rate = ServiceRate::new(100_000);
        assert_eq!(after(&mut rate, 12, 10_000, 0), 100);
        assert_eq!(after(&mut rate, 1000, 20, 0), 100);
    }

    #[test]
    fn real_clients_bring_it_to_the_ceiling() {
        let mut rate = ServiceRate::new(100_000);
        after(&mut rate, 30, 10_000, 0);
        assert_eq!(after(&mut rate, 40, 100, 90), 100_000);
    }

    #[test]
    fn full_table_limits_flood_not_rush() {
        let mut rate = ServiceRate::new(100_000);
        rate.step(0, 0, true, 100);
        rate.step(10_000, 0, true, 100);
        assert_eq!(rate.packets_per_s(), 100);
        let mut rate = ServiceRate::new(100_000);
        rate.step(0, 0, true, 100);
        rate.step(10_000, 8_000, true, 100);
        assert_eq!(rate.packets_per_s(), 100_000);
    }

    #[test]
    fn silence_forgives_slowly() {
        let mut rate = ServiceRate::new(100_000);
        after(&mut rate, 30, 10_000, 0);
        let soon = after(&mut rate, 15, 0, 0);
        assert!((100..1000).contains(&soon), "{soon}");
        assert_eq!(after(&mut rate, 600, 0, 0), 100_000);
    }

    #[test]
    fn the_first_round_trips_of_a_rush_do_not_end_it() {
        let mut rate = ServiceRate::new(100_000);
        // 300 ms until the first handshakes are complete
        after(&mut rate, 3, 1000, 0);
        assert!(rate.packets_per_s() >= 12_500);
        assert_eq!(after(&mut rate, 20, 1000, 1000), 100_000);
    }

    #[test]
    fn a_floor_above_the_ceiling_is_the_ceiling() {
        let mut rate = ServiceRate::new(5);
        assert_eq!(after(&mut rate, 3, 1000, 0), 5);
    }

    #[test]
    fn a_floor_that_sinks_or_rises_is_followed() {
        let mut rate = ServiceRate::new(100_000);
        assert_eq!(after_with_floor(&mut rate, 30, 1000, 0, 100), 100);
        assert_eq!(after_with_floor(&mut rate, 5, 1000, 0, 20), 20);
        assert_eq!(after_with_floor(&mut rate, 1, 1000, 0, 100), 100);
        assert!(rate.is_suspect());
        after_with_floor(&mut rate, 20, 1000, 1000, 100);
        assert!(!rate.is_suspect());
    }
}
