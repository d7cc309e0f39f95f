//! When a certificate is renewed, and when something is tried again. All times are seconds since 1970, by the machine's clock.

use std::time::Duration;

/// From the first failure until the next try, at least.
pub const BACK_OFF_MIN: Duration = Duration::from_secs(60);
/// From a failure until the next try, at most, but for what the CA asks for.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(12 * 3600);
/// The longest time that the CA may ask to wait for.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// From one certificate to the next, at least, if the CA wants it renewed: it may err.
const REPLACED_AFTER_S: i64 = 3600;

/// How long to wait after the last of so many failures in a row. `asked`: what the CA has asked for. `draw`: at random from 0
/// to 1, so that not all names, and not all machines, come at the same time.
pub(crate) fn back_off(failures: u32, asked: Option<Duration>, draw: f64) -> Duration {
    let doubled = BACK_OFF_MIN.saturating_mul(1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    let wait = doubled.mul_f64(1.0 + 0.25 * draw.clamp(0.0, 1.0)).min(BACK_OFF_MAX);
    wait.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX))
}

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from_s: i64,
    pub(crate) until_s: i64,
}

impl Validity {
    /// A third of its lifetime.
    fn third_s(self) -> i64 {
        self.until_s.saturating_sub(self.from_s).max(0) / 3
    }
}

/// When a certificate is renewed that was obtained at `obtained_s` (0: not known).
///
/// Within the `window` that the CA suggests (RFC 9773, 4.2), else when a third of its lifetime is left or somewhat earlier;
/// where in between says `draw`, from 0 to 1, the same at each call. However wrong the clock is, a new certificate is not
/// renewed at once.
pub(crate) fn renewal(validity: Validity, obtained_s: i64, window: Option<(i64, i64)>, draw: f64) -> i64 {
    let third = validity.third_s();
    match window {
        Some((start, end)) if end > start => {
            let drawn = start.saturating_add((end.saturating_sub(start) as f64 * draw) as i64);
            // One that expires before the window ends is not waited for.
            drawn.min(validity.until_s - third / 2).max(obtained_s + third.min(REPLACED_AFTER_S))
        }
        _ => (validity.until_s - third - (third as f64 / 10.0 * draw) as i64).max(obtained_s + third),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;
    const NINETY: Validity = Validity { from_s: 1_000_000, until_s: 1_000_000 + 90 * DAY };

    #[test]
    fn back_off_doubles_to_its_bound() {
        let minutes = |failures| back_off(failures, None, 0.0).as_secs() / 60;
        assert_eq!([1, 2, 3, 10, 11, 40, u32::MAX].map(minutes), [1, 2, 4, 512, 720, 720, 720]);
        assert_eq!(back_off(1, None, 1.0), Duration::from_secs(75));
        assert_eq!(back_off(40, None, 1.0), BACK_OFF_MAX);
    }

    #[test]
    fn what_the_ca_asks_for_is_waited_for_within_bounds() {
        assert_eq!(back_off(1, Some(Duration::from_secs(7200)), 0.0), Duration::from_secs(7200));
        assert_eq!(back_off(1, Some(Duration::from_secs(1)), 0.0), BACK_OFF_MIN);
        assert_eq!(back_off(1, Some(Duration::MAX), 0.0), RETRY_AFTER_MAX);
    }

    #[test]
    fn renewal_is_when_a_third_of_the_lifetime_is_left() {
        let from = NINETY.from_s;
        assert_eq!(renewal(NINETY, from, None, 0.0), from + 60 * DAY);
        assert_eq!(renewal(NINETY, from, None, 1.0), from + 57 * DAY);
        // One of 30 seconds.
        assert_eq!(renewal(Validity { from_s: 100, until_s: 130 }, 100, None, 0.0), 120);
    }

    #[test]
    fn renewal_follows_the_window_of_the_ca() {
        let (from, at) = (NINETY.from_s, |day: i64| NINETY.from_s + day * DAY);
        let window = Some((at(70), at(72)));
        assert_eq!([0.0, 0.5].map(|draw| renewal(NINETY, from, window, draw)), [at(70), at(71)]);
        // The CA says at once: the certificate is revoked soon.
        assert_eq!(renewal(NINETY, from, Some((at(-2), at(-1))), 0.5), from + 3600);
        // The CA says never, or nothing that makes sense.
        assert_eq!(renewal(NINETY, from, Some((at(400), at(500))), 0.5), at(75));
        assert_eq!(renewal(NINETY, from, Some((at(72), at(70))), 0.0), at(60));
    }

    #[test]
    fn renewal_does_not_repeat_under_a_wrong_clock() {
        // The machine's clock is a year ahead when the certificate is obtained.
        let obtained = NINETY.from_s + 365 * DAY;
        assert_eq!(renewal(NINETY, obtained, None, 0.5), obtained + 30 * DAY);
    }
}
