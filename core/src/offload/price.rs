//! Prices: what is short is asked more for, until demand fits.

use crate::time::{Duration, Time};

/// How often a price changes.
const EPOCH: Duration = Duration::from_millis(100);

/// A price that rises while something is short and falls while it is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    /// The lowest price that is not 0.
    least: f32,
    now: f32,
    changed: Time,
    /// It was short since the last change.
    was_short: bool,
}

impl Price {
    /// Nothing is asked at first, then at least `least`.
    pub(super) fn new(least: f32) -> Price {
        Price { least, now: 0.0, changed: Time::ZERO, was_short: false }
    }

    /// What is asked now.
    pub(super) fn asked(&self) -> f32 {
        self.now
    }

    /// Notes whether it is short now, and goes with it once in a while.
    pub(super) fn follow(&mut self, now: Time, is_short: bool, is_plenty: bool) {
        self.was_short |= is_short;
        if now.since(self.changed) < EPOCH {
            return;
        }
        if self.was_short {
            self.now = (self.now * 1.25).clamp(self.least, f32::MAX / 4.0);
        } else if is_plenty {
            self.now *= 0.8;
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
    fn it_rises_while_short_holds_in_between_and_falls_to_nothing() {
        let mut price = Price::new(2.0);
        let mut now = Time::ZERO;
        let mut go = |price: &mut Price, short, plenty| {
            now = now + EPOCH;
            price.follow(now, short, plenty);
            price.asked()
        };
        assert_eq!(go(&mut price, false, true), 0.0);
        assert_eq!(go(&mut price, true, false), 2.0);
        assert_eq!(go(&mut price, true, false), 2.5);
        assert_eq!(go(&mut price, false, false), 2.5);
        assert_eq!(go(&mut price, false, true), 2.0);
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
