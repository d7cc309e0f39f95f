//! What is known of a name, and when it is asked for again. No clock, no network: times are arguments.

use super::lookup::Outcome;
use super::{Found, ResolverSettings, Target};
use std::time::{Duration, Instant};

/// A pause doubles with each failure in a row, this often at most.
const DOUBLINGS_MAX: u32 = 6;

/// What is known of a name.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The last good answer; `None`: there is none yet.
    pub(super) found: Option<Vec<Found>>,
    /// When the answer was confirmed last; `None`: not by this process.
    pub(super) confirmed: Option<Instant>,
    /// When it is asked for next.
    pub(super) due: Instant,
    /// A look-up is under way.
    pub(super) is_asked: bool,
    /// Look-ups that have failed since the last one that did not.
    pub(super) failures: u32,
    /// Why the last one failed; empty if it did not.
    pub(super) error: String,
    /// Since when answers say that there is nothing.
    pub(super) none_since: Option<Instant>,
    /// Addresses of the last answer beyond `addresses_max`.
    pub(super) left_out: usize,
    /// Whether a look-up has ended, however it did.
    pub(super) is_tried: bool,
}

impl Entry {
    pub(super) fn new(found: Option<Vec<Found>>, now: Instant) -> Entry {
        Entry {
            found,
            confirmed: None,
            due: now,
            is_asked: false,
            failures: 0,
            error: String::new(),
            none_since: None,
            left_out: 0,
            is_tried: false,
        }
    }

    /// Takes the outcome of a look-up. Whether the answer is another one now.
    pub(super) fn note(&mut self, outcome: Outcome, settings: &ResolverSettings, now: Instant) -> bool {
        (self.is_asked, self.is_tried) = (false, true);
        match outcome {
            Outcome::Found { found, ttl, unknown } => {
                self.answered(now + ttl.clamp(settings.ttl_min, settings.ttl_max));
                (self.confirmed, self.none_since) = (Some(now), None);
                let before = self.found.as_deref().unwrap_or_default();
                let (kept, left_out) = merged(before, found, &unknown, settings.addresses_max);
                self.left_out = left_out;
                self.replace(kept)
            }
            Outcome::None { ttl } => {
                let since = *self.none_since.get_or_insert(now);
                let counts = since + settings.hold;
                let due = now + ttl.clamp(settings.ttl_min, settings.ttl_max);
                if now < counts && self.found.as_ref().is_some_and(|found| !found.is_empty()) {
                    self.answered(due.min(counts.max(now + settings.ttl_min)));
                    return false;
                }
                self.answered(due);
                (self.confirmed, self.left_out) = (Some(now), 0);
                self.replace(Vec::new())
            }
            Outcome::Failed(why) => {
                self.failures = self.failures.saturating_add(1);
                self.error = why;
                let doublings = (self.failures - 1).min(DOUBLINGS_MAX);
                self.due = now + (settings.ttl_min * 2u32.pow(doublings)).min(settings.ttl_max);
                false
            }
        }
    }

    fn answered(&mut self, due: Instant) {
        (self.failures, self.due) = (0, due);
        self.error.clear();
    }

    fn replace(&mut self, found: Vec<Found>) -> bool {
        let is_other = self.found.as_ref() != Some(&found);
        self.found = Some(found);
        is_other
    }

    /// Until it is asked for again.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }
}

/// What was there before and is there still, in its order, then what is new, sorted: servers rotate their answers, and what is chosen of
/// them must not follow that. Targets whose addresses could not be looked up (`unknown`) keep those they had. Behind it, how many
/// addresses there were beyond `max`.
fn merged(before: &[Found], new: Vec<Found>, unknown: &[Target], max: usize) -> (Vec<Found>, usize) {
    let mut new = new;
    for target in unknown {
        let of =
            |found: &&Found| found.srv.as_ref().is_some_and(|srv| (&srv.host, srv.port) == (&target.host, target.port));
        new.extend(before.iter().filter(of).map(|found| Found { srv: Some(target.clone()), ..found.clone() }));
    }
    let place = |found: &Found| (found.address, found.srv.as_ref().map(|srv| srv.port));
    let rank = |found: &Found| before.iter().position(|before| place(before) == place(found)).unwrap_or(before.len());
    new.sort_by_cached_key(|found| (rank(found), found.srv.clone(), found.address));
    new.dedup_by(|next, first| place(next) == place(first));
    let left_out = new.len().saturating_sub(max);
    new.truncate(max);
    (new, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ResolverSettings {
        ResolverSettings {
            ttl_min: Duration::from_secs(5),
            ttl_max: Duration::from_secs(300),
            timeout: Duration::from_secs(2),
            retries: 2,
            addresses_max: 3,
            hold: Duration::from_secs(30),
            keep: Duration::from_secs(60),
            ..ResolverSettings::default()
        }
    }

    fn addresses(last: &[u8]) -> Vec<Found> {
        last.iter().map(|last| Found { address: [10, 0, 0, *last].into(), srv: None }).collect()
    }

    fn found(last: &[u8], ttl_s: u64) -> Outcome {
        Outcome::Found { found: addresses(last), ttl: Duration::from_secs(ttl_s), unknown: Vec::new() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rotated_answers_are_the_same() {
        let now = Instant::now();
        let mut entry = Entry::new(None, now);
        assert!(entry.note(found(&[3, 1], 60), &settings(), now));
        assert_eq!(entry.found, Some(addresses(&[1, 3])));
        assert!(!entry.note(found(&[3, 1], 60), &settings(), now));
        assert!(!entry.note(found(&[1, 3, 3], 60), &settings(), now));
        // What stays keeps its place: `resolve = "one"` goes on with it.
        assert!(entry.note(found(&[0, 3], 60), &settings(), now));
        assert_eq!(entry.found, Some(addresses(&[3, 0])));
    }

    #[test]
    fn time_to_live_is_bounded() {
        let now = Instant::now();
        let mut entry = Entry::new(None, now);
        for (ttl_s, wait_s) in [(0, 5), (60, 60), (u64::from(u32::MAX), 300)] {
            entry.note(found(&[1], ttl_s), &settings(), now);
            assert_eq!(entry.wait(now), seconds(wait_s));
        }
    }

    #[test]
    fn too_many_addresses_are_left_out() {
        let now = Instant::now();
        let mut entry = Entry::new(Some(addresses(&[4])), now);
        assert!(entry.note(found(&[1, 2, 3, 4, 5], 60), &settings(), now));
        assert_eq!((entry.found, entry.left_out), (Some(addresses(&[4, 1, 2])), 2));
    }

    #[test]
    fn failure_keeps_the_answer_and_backs_off() {
        let mut now = Instant::now();
        let mut entry = Entry::new(Some(addresses(&[1])), now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert!(!entry.note(Outcome::Failed("no answer".into()), &settings(), now));
            waits.push(entry.wait(now).as_secs());
            now += entry.wait(now);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((entry.failures, entry.found.clone()), (8, Some(addresses(&[1]))));
        assert!(!entry.note(found(&[1], 60), &settings(), now));
        assert_eq!((entry.failures, &*entry.error), (0, ""));
    }

    #[test]
    fn name_that_is_gone_counts_after_a_while() {
        let mut now = Instant::now();
        let mut entry = Entry::new(Some(addresses(&[1])), now);
        let none = || Outcome::None { ttl: seconds(600) };
        assert!(!entry.note(none(), &settings(), now));
        assert_eq!(entry.wait(now), seconds(30));
        // A failure between two answers is no answer.
        now += seconds(10);
        assert!(!entry.note(Outcome::Failed("no answer".into()), &settings(), now));
        now += seconds(20);
        assert!(entry.note(none(), &settings(), now));
        assert_eq!((&entry.found, entry.wait(now)), (&Some(Vec::new()), seconds(300)));
        assert!(!entry.note(none(), &settings(), now));
        // An answer in between begins anew.
        assert!(entry.note(found(&[1], 60), &settings(), now));
        assert!(!entry.note(none(), &settings(), now));
        // A name that had nothing has nothing at once.
        assert!(Entry::new(None, now).note(none(), &settings(), now));
    }

    #[test]
    fn target_without_look_up_keeps_its_addresses() {
        let now = Instant::now();
        let target = |host: &str, weight| Target { priority: 1, weight, port: 80, host: host.into() };
        let at = |last, host: &str, weight| Found { address: [10, 0, 0, last].into(), srv: Some(target(host, weight)) };
        let mut entry = Entry::new(Some(vec![at(1, "a.", 1), at(2, "b.", 1)]), now);
        let outcome = Outcome::Found { found: vec![at(3, "a.", 1)], ttl: seconds(60), unknown: vec![target("b.", 7)] };
        assert!(entry.note(outcome, &settings(), now));
        assert_eq!(entry.found, Some(vec![at(2, "b.", 7), at(3, "a.", 1)]));
    }
}
