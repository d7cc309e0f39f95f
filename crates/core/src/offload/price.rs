//! Prices: the price of a scarce resource rises until demand fits.

use crate::time::{Duration, Time};

/// How often a price changes, where nothing is known of how soon that tells.
pub(super) const EPOCH: Duration = Duration::from_millis(100);
/// By what it rises at first.
const STEP: f32 = 1.25;

/// A price that rises while something is short and falls while it is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    /// The lowest price that is not 0.
    least: f32,
    now: f32,
    changed: Time,
    /// It was short since the last change.
    was_short: bool,
    /// By what it rises next, and at most.
    step: f32,
    /// By what it falls next.
    fall: f32,
    step_most: f32,
}

impl Price {
    /// Nothing is asked at first, then at least `least`. It rises and falls in steps of a quarter.
    pub(super) fn new(least: f32) -> Price {
        Price::hasty(least, STEP)
    }

    /// One that rises and falls by more each time, up to `step_most`, so that what is far off is not so for long: where
    /// what is short is there again as soon as too much is asked.
    pub(super) fn hasty(least: f32, step_most: f32) -> Price {
        Price { least, now: 0.0, changed: Time::ZERO, was_short: false, step: STEP, fall: STEP, step_most }
    }

    /// The current price.
    pub(super) fn asked(&self) -> f32 {
        self.now
    }

    /// Notes whether it is short now, and goes with it once in a while.
    pub(super) fn follow(&mut self, now: Time, is_short: bool, is_plenty: bool) {
        self.follow_every(now, EPOCH, is_short, is_plenty);
    }

    /// As [`Price::follow`], once in an `epoch`.
    pub(super) fn follow_every(&mut self, now: Time, epoch: Duration, is_short: bool, is_plenty: bool) {
        self.was_short |= is_short;
        if now.since(self.changed) < epoch {
            return;
        }
        if self.was_short {
            self.now = (self.now * self.step).clamp(self.least, f32::MAX / 4.0);
            self.step = (self.step * STEP).min(self.step_most);
        } else {
            self.step = STEP;
        }
        if self.was_short || !is_plenty {
            self.fall = STEP;
        } else {
            self.now /= self.fall;
            self.fall = (self.fall * STEP).min(self.step_most);
            if self.now < self.least {
                self.now = 0.0;
            }
        }
        (self.changed, self.was_short) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_rises_holds_and_falls_to_zero() {
        let mut price = Price::hasty(2.0, 3.0);
        let mut now = Time::ZERO;
        let mut go = |price: &mut Price, short, plenty| {
            now = now + EPOCH;
            price.follow(now, short, plenty);
            price.asked()
        };
        for (short, plenty, expected) in [
            (false, true, 0.0),
            (true, false, 2.0),
            (true, false, 2.0 * STEP * STEP),
            (false, false, 2.0 * STEP * STEP),
            // from the smallest step again
            (true, false, 2.0 * STEP * STEP * STEP),
            (false, true, 2.0 * STEP * STEP),
            (false, true, 2.0),
        ] {
            let asked = go(&mut price, short, plenty);
            assert!((asked - expected).abs() < 1e-4, "{asked} for {expected}");
        }
        (0..9).for_each(|_| _ = go(&mut price, false, true));
        assert_eq!(go(&mut price, false, true), 0.0);
        let late = Time::from_nanos(u64::MAX);
        (0..1000).for_each(|_| assert!(go(&mut price, true, false) > 0.0));
        assert!(price.asked().is_finite());
        price.follow(late, true, false);
        let high = price.asked();
        price.follow(late, true, false);
        assert_eq!(price.asked(), high, "once in a while");
    }
}
