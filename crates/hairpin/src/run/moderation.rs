//! Interrupt moderation: a worker that has much to do lets frames gather before it wakes for them, as a network card does
//! before it interrupts (`ethtool -C`, rx-usecs).
//!
//! One wake costs an interrupt, sleeping and waking, and an interrupt of the other side for what is sent. It costs this
//! once for all frames that wait by then; segments that follow one another become one super-packet, and
//! acknowledgements that supersede one another one acknowledgement. A frame waits no longer than the gap for it.
//!
//! The number of frames that come shows whether this helps: where client and server are as busy as the balancer, they have
//! more time for requests; where a few connections wait for each answer before they ask again, less would come, and at
//! once is better. So both are tried, again and again, and what brought more is done.

use hairpin_core::time::{Duration, Time};

/// Frames in the time of a gap from which on it is tried at all.
const TRIED_FROM: u64 = 2;
/// How long either way is gone before it is judged.
const EPOCH: Duration = Duration::from_millis(5);
/// Every so many epochs the other way is tried.
const TRIED_EVERY: u32 = 16;
/// An epoch weighs this part of the rate.
const WEIGHT: u64 = 4;
/// Gathering may bring less by this part: it saves the worker time.
const SLACK: u64 = 32;
const NANOSECONDS: u64 = 1_000_000_000;

/// When a worker may wake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moderation {
    /// From one wake to the next, at least; zero: no moderation.
    gap: Duration,
    woke: Time,
    /// Frames since there was nothing to do for the last time.
    fresh: u32,
    /// When the epoch began, and frames in it.
    epoch: (Time, u64),
    epochs: u32,
    /// Whether frames gather in this one.
    gathers: bool,
    /// Frames a second at once, and gathered; 0: not known.
    rates: [u64; 2],
}

impl Moderation {
    pub(crate) fn new(gap: Duration) -> Moderation {
        let (epoch, rates) = ((Time::ZERO, 0), [0, 0]);
        Moderation { gap, woke: Time::ZERO, fresh: 0, epoch, epochs: 0, gathers: false, rates }
    }

    /// So many frames were there.
    pub(crate) fn received(&mut self, frames: usize) {
        self.fresh = self.fresh.saturating_add(frames as u32);
    }

    /// How long to sleep whatever comes; `None`: until something does. Called when there is nothing to do.
    pub(crate) fn rest(&mut self, now: Time) -> Option<Duration> {
        // A rest that brought nothing is followed by sleep.
        if self.fresh == 0 || self.gap == Duration::ZERO {
            return None;
        }
        let (began, frames) = &mut self.epoch;
        *frames += u64::from(std::mem::take(&mut self.fresh));
        let elapsed = now.since(*began);
        if elapsed >= EPOCH {
            let rate = *frames * NANOSECONDS / elapsed.as_nanos() as u64;
            self.epoch = (now, 0);
            self.judge(rate);
        }
        let rest = (self.woke + self.gap).since(now);
        (self.gathers && rest > Duration::ZERO).then_some(rest)
    }

    /// Takes note of an epoch's frames a second, and decides about the next.
    fn judge(&mut self, rate: u64) {
        let are_few = rate * (self.gap.as_nanos() as u64) < TRIED_FROM * NANOSECONDS;
        if are_few && !self.gathers {
            self.rates = [0, 0];
            return;
        }
        let known = &mut self.rates[usize::from(self.gathers)];
        *known = if *known == 0 { rate } else { *known - *known / WEIGHT + rate / WEIGHT };
        self.epochs = self.epochs.wrapping_add(1);
        let [at_once, gathered] = self.rates;
        let better = gathered == 0 || gathered >= at_once - at_once / SLACK;
        self.gathers = !are_few && better != self.epochs.is_multiple_of(TRIED_EVERY);
    }

    /// It has slept.
    pub(crate) fn woken(&mut self, now: Time) {
        self.woke = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_micros(50);
    const FRAME: Duration = Duration::from_micros(2);
    const LONG: Duration = Duration::from_millis(400);

    /// The work of a worker during [`LONG`].
    #[derive(Debug, Default, PartialEq)]
    struct Done {
        wakes: u64,
        frames: u64,
        rests: u64,
    }

    /// A worker whom each frame keeps for [`FRAME`]. `next`: when the next one comes, after one that came then and was
    /// handled by then.
    fn work(gap: Duration, next: impl Fn(Time, Time) -> Time) -> Done {
        let (mut moderation, mut now, mut done) = (Moderation::new(gap), Time::ZERO, Done::default());
        let mut coming = next(now, now);
        while now < Time::ZERO + LONG {
            if coming <= now {
                moderation.received(1);
                now = now + FRAME;
                done.frames += 1;
                coming = next(coming, now);
                continue;
            }
            now = match moderation.rest(now) {
                Some(rest) => {
                    done.rests += 1;
                    now + rest
                }
                None => coming,
            };
            moderation.woken(now);
            done.wakes += 1;
        }
        done
    }

    #[test]
    fn many_frames_are_handled_at_few_wakes() {
        let every = |came: Time, _| came + Duration::from_micros(4);
        let (without, with) = (work(Duration::ZERO, every), work(GAP, every));
        assert!(without.frames > 90_000 && without.wakes > 90_000, "{without:?}");
        // 8000 gaps; a sixteenth of the time all are handled at once.
        assert!(with.frames > 90_000 && with.wakes < 16_000, "{with:?}");
    }

    #[test]
    fn few_frames_wait_for_nothing() {
        for apart in [30, 100, 1000] {
            let every = |came: Time, _| came + Duration::from_micros(apart);
            assert_eq!(work(GAP, every), work(Duration::ZERO, every));
        }
    }

    /// One connection on a fast network: the next frame comes soon after the last was handled, and not before.
    #[test]
    fn alternating_threads_hardly_wait() {
        let after = |_, handled: Time| handled + Duration::from_micros(5);
        let (without, with) = (work(Duration::ZERO, after), work(GAP, after));
        assert!(with.rests > 0, "it is not tried: {with:?}");
        assert!(with.frames > without.frames * 9 / 10, "{with:?} instead of {without:?}");
    }

    #[test]
    fn nothing_waits_longer_than_the_gap() {
        let mut moderation = Moderation { gathers: true, ..Moderation::new(GAP) };
        moderation.received(1);
        assert_eq!(moderation.rest(Time::ZERO + FRAME), Some(GAP - FRAME));
        assert_eq!(moderation.rest(Time::ZERO + FRAME), None, "nothing came meanwhile");
        moderation.received(1);
        assert_eq!(moderation.rest(Time::ZERO + GAP), None, "the gap is over");
        let mut without = Moderation { gathers: true, ..Moderation::new(Duration::ZERO) };
        without.received(1);
        assert_eq!(without.rest(Time::ZERO), None);
    }
}
