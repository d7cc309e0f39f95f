//! The state of one backend's health: a machine without clock, sockets or threads.
//!
//! It takes results of checks, totals of clients' connections and the time, and decides whether the backend is used
//! and with what weight. When checks are made is `schedule`'s business.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::probe::{CheckFailure, CheckOutcome};
use super::target::{Check, CheckTarget};

/// The full share of a backend, of 256.
const FULL_SHARE: u16 = 256;
/// The share a backend comes back with when it starts slowly: a sixteenth.
const FIRST_SHARE: u16 = FULL_SHARE / 16;
/// How often the pause before the next trial of a backend without an active check doubles.
const DOUBLINGS_MAX: u32 = 3;
/// How long failures that are fewer than `fall` say nothing about a backend whose health is not settled.
pub(super) const SETTLING_MAX: Duration = Duration::from_secs(10);
/// The longest reason kept, in characters.
const REASON_CHARS_MAX: usize = 200;

/// The state of a backend, as far as checks show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing has been found out, or it is on trial; treated as up.
    Unknown,
    /// It answers.
    Up,
    /// It does not, and gets no new connections.
    Down,
}

impl Health {
    /// The lower-case word for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Down => "down",
        }
    }
}

/// Totals of clients' handshakes with one backend, of an HTTP service's their requests; they only grow, or begin anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedTotals {
    /// Those that succeeded.
    pub established: u64,
    /// Those that failed: refused by RST, not answered, or ICMP unreachable; requests also by a connection that ended
    /// before the response, a response that did not come in time, or one with a status that counts as failed.
    pub failed: u64,
}

/// Whether and how much a backend is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendHealth {
    /// The backend's stable number.
    pub backend: u16,
    /// Whether it gets new connections.
    pub available: bool,
    /// How much of its weight counts, 1 to 256 of 256; below 256 only in slow start.
    pub share_256: u16,
    /// Whether the first checks have come to a verdict. Until then a backend that is not available is not known to be down.
    pub settled: bool,
}

/// The health of one backend, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthState {
    /// The backend's stable number.
    pub backend: u16,
    /// Its current state.
    pub health: Health,
    /// Why, in words.
    pub reason: String,
    /// Whether that is a verdict: see [`BackendHealth::settled`].
    pub settled: bool,
    /// Since when, by the wall clock.
    pub since: SystemTime,
    /// Since when, by the clock that never jumps.
    pub since_instant: Instant,
    /// Results in a row that speak against `health`: failures of `fall`, or successes of `rise`.
    pub against: u32,
    /// How long the last check took; `None` before the first.
    pub last_duration: Option<Duration>,
    /// Checks that came to a verdict.
    pub checks: u64,
    /// Those of them that failed.
    pub failures: u64,
}

/// The part that outlives a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The backend's stable number.
    pub backend: u16,
    /// The address of its checks; the state is not given to another address.
    pub address: std::net::SocketAddr,
    /// Its state at that time.
    pub health: Health,
    /// Why.
    pub reason: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// When it came back from being down, in milliseconds since 1970: slow start counts from then.
    #[serde(default)]
    pub returned_unix_ms: Option<u64>,
    /// How often in a row its clients' connections took it down.
    #[serde(default)]
    pub trips: u32,
}

/// One instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) instant: Instant,
    pub(super) wall: SystemTime,
}

impl Moment {
    pub(super) fn now() -> Self {
        Moment { instant: Instant::now(), wall: SystemTime::now() }
    }

    /// The moment that the wall clock showed `unix_ms`; now, if that is yet to come or before the host was started.
    fn at_unix_ms(self, unix_ms: u64) -> Self {
        let wall = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms)).unwrap_or(self.wall);
        let ago = self.wall.duration_since(wall).unwrap_or_default();
        match self.instant.checked_sub(ago) {
            Some(instant) => Moment { instant, wall: self.wall - ago },
            None => self,
        }
    }

    fn unix_ms(self) -> u64 {
        self.wall.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// First checks that have not come to a verdict.
#[derive(Clone, Copy, Debug)]
struct Settling {
    since: Instant,
    /// Failures in a row.
    failures: u32,
}

/// The machine.
#[derive(Debug)]
pub(super) struct HealthRecord {
    health: Health,
    /// Until the first checks have come to a verdict.
    settling: Option<Settling>,
    reason: String,
    since: Moment,
    against: u32,
    checks: u64,
    failures: u64,
    last_duration: Option<Duration>,
    /// When it last ceased to be down, if it ever did.
    returned: Option<Moment>,
    /// The totals of the last observation.
    observed: Option<ObservedTotals>,
    /// Clients' connections or requests that failed since the last that did not.
    failed_in_a_row: u64,
    /// Times that clients' connections took it down since one succeeded.
    trips: u32,
    /// When it is tried again, where no active check can bring it back.
    retry: Option<Instant>,
}

impl HealthRecord {
    pub(super) fn new(target: &CheckTarget, now: Moment) -> Self {
        let is_checked = target.check != Check::None;
        let reason = if is_checked { "not checked yet" } else { "no check is configured" };
        HealthRecord {
            health: Health::Unknown,
            settling: is_checked.then_some(Settling { since: now.instant, failures: 0 }),
            reason: reason.into(),
            since: now,
            against: 0,
            checks: 0,
            failures: 0,
            last_duration: None,
            returned: None,
            observed: None,
            failed_in_a_row: 0,
            trips: 0,
            retry: None,
        }
    }

    pub(super) fn health(&self) -> Health {
        self.health
    }

    /// Whether the first checks have not come to a verdict.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// A check that failed for what is known to be wrong on this side: the first checks begin anew.
    pub(super) fn excuse(&mut self, why: &str, now: Moment) {
        self.settling = Some(Settling { since: now.instant, failures: 0 });
        self.reason = bounded(why);
    }

    /// The cause of its failure was perhaps common to all backends of its service: its next checks are first checks
    /// again.
    pub(super) fn unsettle(&mut self, now: Moment) {
        self.settling = Some(Settling { since: now.instant, failures: 0 });
    }

    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// When the backend is to be tried again without a check.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry
    }

    /// Takes in the result of an active check that took `took`.
    pub(super) fn result(&mut self, target: &CheckTarget, outcome: CheckOutcome, took: Duration, now: Moment) {
        let (passed, reason) = match outcome {
            Ok(reason) => (true, reason),
            Err(CheckFailure::Backend(reason)) => (false, reason),
            Err(CheckFailure::Local(reason)) => {
                if self.health == Health::Unknown {
                    self.reason = bounded(&reason);
                }
                return;
            }
        };
        self.last_duration = Some(took);
        self.checks += 1;
        self.failures += u64::from(!passed);
        let is_verdict = self.settle(target, passed, now);
        let verdict = if passed { Health::Up } else { Health::Down };
        if verdict == self.health {
            self.against = 0;
            if !passed {
                // The latest reason helps more than the first.
                self.reason = bounded(&reason);
            }
            return;
        }
        self.against = self.against.saturating_add(1);
        let enough = match self.health {
            Health::Unknown => is_verdict,
            Health::Up => self.against >= target.fall,
            Health::Down => self.against >= target.rise,
        };
        if enough {
            self.change(verdict, &reason, now);
        } else if self.health == Health::Unknown {
            self.reason = bounded(&format!("{reason}; failure {} of {}", self.against, target.fall));
        }
    }

    /// Whether a result settles what the backend's health is, or that was settled before. One success does: nothing was
    /// lost if it is wrong. Failures do when there are as many as take a backend down that is up, or when the time is over.
    fn settle(&mut self, target: &CheckTarget, passed: bool, now: Moment) -> bool {
        let Some(settling) = &mut self.settling else { return true };
        settling.failures += u32::from(!passed);
        let is_over = now.instant.saturating_duration_since(settling.since) >= SETTLING_MAX;
        let is_settled = match self.health {
            // It comes back as always; meanwhile nothing speaks for its being down.
            Health::Down if passed => false,
            _ => passed || settling.failures >= target.fall || is_over,
        };
        if is_settled {
            self.settling = None;
        }
        is_settled
    }

    /// Takes in the totals of clients' connections. The first after the start, and those that went back, count only
    /// as what later ones are compared with.
    pub(super) fn observe(&mut self, target: &CheckTarget, observed: ObservedTotals, now: Moment) {
        let Some(passive) = target.passive else { return };
        let Some(before) = self.observed.replace(observed) else { return };
        let established = observed.established.checked_sub(before.established);
        let failed = observed.failed.checked_sub(before.failed);
        let (Some(established), Some(failed)) = (established, failed) else { return };
        if self.health == Health::Down {
            // Those that were begun earlier: they say nothing new.
            return;
        }
        if established > 0 {
            self.failed_in_a_row = 0;
            self.trips = 0;
            if self.health == Health::Unknown && target.check == Check::None {
                self.change(Health::Up, "passive: a client was served", now);
            }
            return;
        }
        self.failed_in_a_row = self.failed_in_a_row.saturating_add(failed);
        if self.failed_in_a_row < u64::from(passive.failures) {
            return;
        }
        let reason = format!("passive: {} failures in a row", self.failed_in_a_row);
        self.change(Health::Down, &reason, now);
        self.trips = self.trips.saturating_add(1);
        self.plan_retry(target, now.instant);
    }

    /// Puts a backend without an active check on trial if its time has come.
    pub(super) fn retry(&mut self, now: Moment) {
        if self.retry.is_some_and(|at| at <= now.instant) {
            self.change(Health::Unknown, "passive: on trial", now);
        }
    }

    /// Lives on under a target whose address and check are the same, but perhaps nothing else is.
    pub(super) fn retarget(&mut self, target: &CheckTarget, now: Moment) {
        if self.health == Health::Down && !target.can_return() {
            self.change(Health::Unknown, "no check is configured", now);
        }
    }

    /// The part that outlives a restart.
    pub(super) fn saved(&self, target: &CheckTarget) -> Saved {
        Saved {
            backend: target.backend,
            address: target.address,
            health: self.health,
            reason: self.reason.clone(),
            since_unix_ms: self.since.unix_ms(),
            returned_unix_ms: self.returned.map(Moment::unix_ms),
            trips: self.trips,
        }
    }

    /// Takes over what was believed before a restart, unless more is known by now.
    pub(super) fn restore(&mut self, target: &CheckTarget, saved: &Saved, now: Moment) {
        let known = self.health != Health::Unknown || self.checks > 0;
        if known || saved.address != target.address || (saved.health == Health::Down && !target.can_return()) {
            return;
        }
        self.health = saved.health;
        if self.health != Health::Unknown {
            self.settling = None;
        }
        self.reason = bounded(&saved.reason);
        self.since = now.at_unix_ms(saved.since_unix_ms);
        self.returned = saved.returned_unix_ms.map(|unix_ms| now.at_unix_ms(unix_ms));
        self.trips = saved.trips;
        if self.health == Health::Down {
            self.plan_retry(target, now.instant);
        }
    }

    pub(super) fn backend_health(&self, target: &CheckTarget, now: Instant) -> BackendHealth {
        let fails = self.settling.is_some_and(|settling| settling.failures > 0);
        let available = match self.health {
            Health::Up => true,
            Health::Unknown => !fails,
            Health::Down => false,
        };
        let share_256 = match self.returned {
            Some(returned) if available => share(now.saturating_duration_since(returned.instant), target.slow_start),
            _ => FULL_SHARE,
        };
        BackendHealth { backend: target.backend, available, share_256, settled: self.settling.is_none() }
    }

    pub(super) fn state(&self, backend: u16) -> HealthState {
        HealthState {
            backend,
            health: self.health,
            reason: self.reason.clone(),
            settled: self.settling.is_none(),
            since: self.since.wall,
            since_instant: self.since.instant,
            against: self.against,
            last_duration: self.last_duration,
            checks: self.checks,
            failures: self.failures,
        }
    }

    fn change(&mut self, to: Health, reason: &str, now: Moment) {
        if self.health == Health::Down {
            self.returned = Some(now);
        }
        self.settling = None;
        self.health = to;
        self.reason = bounded(reason);
        self.since = now;
        self.against = 0;
        self.failed_in_a_row = 0;
        self.retry = None;
    }

    fn plan_retry(&mut self, target: &CheckTarget, now: Instant) {
        if let (Check::None, Some(passive)) = (&target.check, target.passive) {
            let doublings = self.trips.saturating_sub(1).min(DOUBLINGS_MAX);
            self.retry = Some(now + passive.retry * (1 << doublings));
        }
    }
}

/// The share, of 256, of a backend that came back `elapsed` ago.
fn share(elapsed: Duration, slow_start: Duration) -> u16 {
    if elapsed >= slow_start {
        return FULL_SHARE;
    }
    let grown = u128::from(FULL_SHARE - FIRST_SHARE) * elapsed.as_nanos() / slow_start.as_nanos();
    // Less than the factor, because less than all of the time has passed.
    FIRST_SHARE + u16::try_from(grown).unwrap_or(FULL_SHARE - FIRST_SHARE)
}

/// A reason of one line and a length that status and log can bear; a saved one comes from a file.
fn bounded(reason: &str) -> String {
    reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_CHARS_MAX).collect()
}
