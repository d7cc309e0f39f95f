//! Packet rates of connections, recent packets counting more than old ones.

use super::FlowStats;
use crate::time::{Duration, Time};
use alloc::boxed::Box;
use alloc::vec;

/// After so long without a packet a rate has halved.
pub(super) const HALF_LIFE: Duration = Duration::from_secs(1);
const HALF_LIFE_NS: u64 = HALF_LIFE.as_nanos() as u64;
const LN_2: f32 = core::f32::consts::LN_2;

/// The forwarder of a connection, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ForwardedBy {
    /// No carrier: it is new, or over.
    #[default]
    Unknown,
    Software,
    /// The engine, or it is about to.
    Engine,
}

/// The rate of one connection.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionRate {
    /// When it began, to tell it from one that had its position before.
    created: Time,
    at: Time,
    /// Its packets until then.
    packets: u64,
    /// Those, each halved for every half-life since it came.
    recent: f32,
    by: ForwardedBy,
}

/// The rates of a worker's connections, by position.
pub(super) struct ConnectionRates {
    rates: Box<[ConnectionRate]>,
    age_least: Duration,
}

impl ConnectionRates {
    /// For connections at positions below `capacity`: 32 bytes each. `age_least` is taken for the age of those that are
    /// younger.
    pub(super) fn new(capacity: usize, age_least: Duration) -> ConnectionRates {
        ConnectionRates { rates: vec![ConnectionRate::default(); capacity].into_boxed_slice(), age_least }
    }

    /// How many packets a connection had when it was last sampled (1 at first), and what forwarded it then.
    pub(super) fn seen(&self, flow: &FlowStats) -> (u64, ForwardedBy) {
        let rate = self.rates.get(flow.position as usize).filter(|rate| rate.created == flow.created);
        rate.map_or((1, ForwardedBy::Unknown), |rate| (rate.packets.max(1), rate.by))
    }

    /// Sets the current forwarder.
    pub(super) fn set_forwarded_by(&mut self, flow: &FlowStats, by: ForwardedBy) {
        if let Some(rate) = self.rates.get_mut(flow.position as usize) {
            rate.by = by;
        }
    }

    /// A connection's packets per second, its packets up to now included, one that has just come or those that the engine
    /// has counted. 0 for a position out of bounds.
    pub(super) fn update(&mut self, now: Time, flow: &FlowStats) -> f32 {
        let Some(rate) = self.rates.get_mut(flow.position as usize) else { return 0.0 };
        if rate.created != flow.created {
            // Its first packet says nothing of how fast others follow.
            *rate = ConnectionRate { created: flow.created, at: flow.created, packets: 1, ..ConnectionRate::default() };
        }
        let fresh = flow.packets.saturating_sub(rate.packets) as f32;
        let elapsed = now.since(rate.at).as_nanos() as u64;
        // Packets since the last sample are taken to have come evenly.
        let (old, new) = (rate.recent * left(elapsed), fresh * left_of_even(elapsed));
        *rate = ConnectionRate {
            at: rate.at.max(now),
            packets: flow.packets.max(rate.packets),
            recent: old + new,
            ..*rate
        };
        // Of a young one less has come than would decay as fast.
        let age = now.since(flow.created).max(self.age_least);
        rate.recent * LN_2 / HALF_LIFE.as_secs_f32() / (1.0 - left(age.as_nanos() as u64))
    }
}

/// The remainder of 1 after so many nanoseconds: 2^-t, t in half-lives, to half a percent.
fn left(elapsed_ns: u64) -> f32 {
    let whole = elapsed_ns / HALF_LIFE_NS;
    if whole >= 32 {
        return 0.0;
    }
    let part = (elapsed_ns % HALF_LIFE_NS) as f32 / HALF_LIFE_NS as f32;
    (1.0 - part * (LN_2 - part * (0.2402 - part * 0.0471))) / (1u64 << whole) as f32
}

/// The remainder, after so many nanoseconds, of 1 that has come evenly in that time.
fn left_of_even(elapsed_ns: u64) -> f32 {
    if elapsed_ns < HALF_LIFE_NS / 64 {
        return 1.0;
    }
    (1.0 - left(elapsed_ns)) / (elapsed_ns as f32 / HALF_LIFE_NS as f32 * LN_2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Direction, Endpoint, Protocol};

    fn flow(position: u32, created: Time, packets: u64) -> FlowStats {
        FlowStats {
            position,
            protocol: Protocol::Tcp,
            packets,
            bytes: 0,
            created,
            length: 0,
            direction: Direction::FromClient,
            client: Endpoint::default(),
            service: Endpoint::default(),
        }
    }

    #[test]
    fn steady_rate_is_independent_of_sampling() {
        for (every_us, packets) in [(100u64, 1u64), (1000, 10), (50_000, 500), (1_000_000, 10_000)] {
            let mut rates = ConnectionRates::new(1, Duration::from_millis(10));
            let mut rate = 0.0;
            for look in 0..=20_000_000 / every_us {
                rate = rates.update(Time::from_nanos(look * every_us * 1000), &flow(0, Time::ZERO, look * packets));
            }
            assert!((8_500.0..11_500.0).contains(&rate), "every {every_us} us: {rate}");
        }
    }

    #[test]
    fn silence_lowers_the_rate_new_flow_starts_at_zero() {
        let mut rates = ConnectionRates::new(1, Duration::from_millis(10));
        let began = Time::from_nanos(5);
        let now = began + 10 * HALF_LIFE;
        let first = rates.update(now, &flow(0, began, 10_000));
        assert!((500.0..2_000.0).contains(&first), "{first}");
        let second = rates.update(now + HALF_LIFE, &flow(0, began, 10_000));
        assert!((0.49..0.51).contains(&(second / first)), "{second}");
        assert_eq!(rates.update(now + 100 * HALF_LIFE, &flow(0, began, 10_000)), 0.0);
        let later = now + 101 * HALF_LIFE;
        let young = rates.update(later, &flow(0, later, 1));
        assert_eq!(young, 0.0, "one packet");
        assert_eq!(rates.update(now, &flow(1, now, 7)), 0.0, "no packet of it");
    }
}
