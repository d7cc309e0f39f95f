//! When each target is checked, and what is in flight: a machine without clock or sockets around the records.
//!
//! A target with an active check is in exactly one place: due at an instant, waiting for a free slot, or running.
//! From its second check on a target is due at multiples of its interval, shifted by a phase that follows from its
//! number, so that thousands of targets spread over the interval and keep their distance after any delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::probe::{CheckFailure, CheckOutcome};
use super::record::{BackendHealth, Health, HealthRecord, HealthState, Moment, ObservedTotals, Saved};
#[cfg(doc)]
use super::target::DURATION_MAX;
use super::target::{Check, CheckTarget};

/// The most checks in flight. One more waits, and is counted as late.
pub const IN_FLIGHT_MAX: usize = 256;
/// The first checks of new targets are spread over this long, or over their interval if that is shorter.
const FIRST_SPREAD: Duration = Duration::from_secs(1);

/// How far apart first checks are that fail, unless the interval is shorter.
const SETTLING_PACE: Duration = Duration::from_secs(1);
/// How long links that are down excuse first checks that fail.
const LINKS_PATIENCE: Duration = Duration::from_secs(30);

/// A change of what is believed of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The backend's stable number.
    pub backend: u16,
    /// Its service.
    pub service: String,
    /// Its name.
    pub name: String,
    /// The state at the previous report of changes.
    pub from: Health,
    /// The state now.
    pub to: Health,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Change { service, name, from, to, reason, .. } = self;
        write!(f, "service {service}: backend {name} is {} (was {}): {reason}", to.name(), from.name())
    }
}

/// Totals over all targets since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckTotals {
    /// Checks that were started.
    pub started: u64,
    /// Checks that had to wait because [`IN_FLIGHT_MAX`] were in flight (`health.late`).
    pub late: u64,
    /// Checks that took longer than their interval, so that at least one was left out.
    pub overran: u64,
    /// Checks that could not be made for want of something on this host; they change no state.
    pub local_errors: u64,
    /// Checks in flight now.
    pub in_flight: usize,
    /// The most checks that were ever in flight at once.
    pub in_flight_peak: usize,
}

/// A check to start.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) target: Arc<CheckTarget>,
    pub(super) ticket: u64,
}

/// The checks that are due, and the time of the next call.
#[derive(Debug, Default)]
pub(super) struct DueChecks {
    pub(super) jobs: Vec<Job>,
    pub(super) changes: Vec<Change>,
    pub(super) next: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedulePlace {
    /// No active check, and no trial planned.
    Idle,
    /// To be checked, or tried, at this instant; so it says in `due`.
    Due(Instant),
    /// In `waiting`.
    Waiting,
    /// In flight under this ticket.
    Running(u64),
}

#[derive(Debug)]
struct TargetEntry {
    target: Arc<CheckTarget>,
    record: HealthRecord,
    place: SchedulePlace,
    /// The state last reported to the owner.
    told: Health,
}

/// All targets.
#[derive(Debug)]
pub(super) struct Schedule {
    entries: BTreeMap<u16, TargetEntry>,
    due: BTreeSet<(Instant, u16)>,
    waiting: VecDeque<u16>,
    /// Backends whose health may differ from what the owner was told.
    untold: BTreeSet<u16>,
    totals: CheckTotals,
    /// The origin of the phases.
    epoch: Instant,
    links: CheckLinks,
}

/// The interfaces by which backends are reached.
#[derive(Debug)]
enum CheckLinks {
    /// All of them have been up since then.
    Up(Instant),
    /// Not all of them are: which, and what that means.
    Down(String),
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Schedule {
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: VecDeque::new(),
            untold: BTreeSet::new(),
            totals: CheckTotals::default(),
            epoch: now,
            links: CheckLinks::Up(now),
        }
    }

    /// Learns which interfaces are down, in words; `None`: none is.
    pub(super) fn set_links(&mut self, down: Option<String>, now: Instant) {
        match (down, &self.links) {
            (Some(which), _) => self.links = CheckLinks::Down(which),
            (None, CheckLinks::Down(_)) => self.links = CheckLinks::Up(now),
            (None, CheckLinks::Up(_)) => {}
        }
    }

    /// Why a check that began then and failed says nothing about its backend, if so.
    fn excuse(&self, begun: Instant) -> Option<String> {
        match &self.links {
            _ if begun.saturating_duration_since(self.epoch) >= LINKS_PATIENCE => None,
            CheckLinks::Up(since) if *since == self.epoch => None,
            CheckLinks::Up(since) => (begun < *since).then(|| "checked before the links were up".to_string()),
            CheckLinks::Down(which) => Some(format!("not checked: {which}")),
        }
    }

    /// Replaces the targets. One with the same number, address and check keeps its state and its phase.
    ///
    /// # Errors
    /// A target breaks a bound, or two share a number; then nothing has changed.
    pub(super) fn update(&mut self, targets: Vec<CheckTarget>, now: Moment) -> Result<()> {
        let mut numbers = BTreeSet::new();
        for target in &targets {
            target.validate()?;
            ensure!(
                numbers.insert(target.backend),
                "two health checks for the backend number {}, the second for {} of service {}; numbers must differ",
                target.backend,
                target.name,
                target.service
            );
        }
        let mut former = std::mem::take(&mut self.entries);
        for target in targets {
            let kept = former
                .remove(&target.backend)
                .filter(|entry| entry.target.address == target.address && entry.target.check == target.check);
            let entry = match kept {
                Some(entry) => self.renewed(entry, target, now),
                None => self.fresh(target, now),
            };
            self.entries.insert(entry.target.backend, entry);
        }
        self.due = self.entries.iter().filter_map(|(&backend, entry)| entry.place.due_at(backend)).collect();
        let entries = &self.entries;
        let place = |backend: &u16| entries.get(backend).map(|entry| entry.place);
        self.waiting.retain(|backend| place(backend) == Some(SchedulePlace::Waiting));
        self.untold.retain(|backend| entries.contains_key(backend));
        Ok(())
    }

    fn fresh(&self, target: CheckTarget, now: Moment) -> TargetEntry {
        let place = match target.check {
            Check::None => SchedulePlace::Idle,
            _ => SchedulePlace::Due(now.instant + part(FIRST_SPREAD.min(target.interval), target.backend)),
        };
        let record = HealthRecord::new(&target, now);
        TargetEntry { target: Arc::new(target), record, place, told: Health::Unknown }
    }

    fn renewed(&mut self, mut entry: TargetEntry, target: CheckTarget, now: Moment) -> TargetEntry {
        if entry.target.interval != target.interval && matches!(entry.place, SchedulePlace::Due(_)) {
            entry.place = SchedulePlace::Due(self.next_due(&target, now.instant));
        }
        entry.record.retarget(&target, now);
        entry.target = Arc::new(target);
        if entry.target.check == Check::None {
            entry.place = entry.record.retry_at().map_or(SchedulePlace::Idle, SchedulePlace::Due);
        }
        self.untold.insert(entry.target.backend);
        entry
    }

    /// Moves on to `now`: what is to be started and told, and when to come again if nothing happens before.
    pub(super) fn iterate(&mut self, now: Moment) -> DueChecks {
        // Before anything moves on, so that no state is skipped in silence: only iterations begin checks and trials.
        let mut changes = self.tell();
        let waited = self.waiting.len();
        while let Some(&(at, backend)) = self.due.first()
            && at <= now.instant
        {
            self.due.pop_first();
            self.fall_due(backend, now);
        }
        let newly_due = self.waiting.len() - waited;
        let mut jobs = Vec::new();
        while self.totals.in_flight < IN_FLIGHT_MAX
            && let Some(backend) = self.waiting.pop_front()
        {
            jobs.extend(self.begin(backend));
        }
        // First come, first served: what is left came last.
        self.totals.late += newly_due.min(self.waiting.len()) as u64;
        changes.extend(self.tell());
        DueChecks { jobs, changes, next: self.due.first().map(|&(at, _)| at) }
    }

    fn fall_due(&mut self, backend: u16, now: Moment) {
        let Some(entry) = self.entries.get_mut(&backend) else { return };
        if entry.target.check == Check::None {
            entry.place = SchedulePlace::Idle;
            entry.record.retry(now);
            self.untold.insert(backend);
        } else {
            entry.place = SchedulePlace::Waiting;
            self.waiting.push_back(backend);
        }
    }

    fn begin(&mut self, backend: u16) -> Option<Job> {
        let entry = self.entries.get_mut(&backend)?;
        self.totals.started += 1;
        self.totals.in_flight += 1;
        self.totals.in_flight_peak = self.totals.in_flight_peak.max(self.totals.in_flight);
        entry.place = SchedulePlace::Running(self.totals.started);
        Some(Job { target: Arc::clone(&entry.target), ticket: self.totals.started })
    }

    fn tell(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for backend in std::mem::take(&mut self.untold) {
            let Some(entry) = self.entries.get_mut(&backend) else { continue };
            let to = entry.record.health();
            let from = std::mem::replace(&mut entry.told, to);
            if from != to {
                changes.push(Change {
                    backend,
                    service: entry.target.service.clone(),
                    name: entry.target.name.clone(),
                    from,
                    to,
                    reason: entry.record.reason().into(),
                });
            }
        }
        changes
    }

    /// Takes in the result of a check that took `took`; one whose target is gone or another by now is ignored.
    pub(super) fn result(&mut self, job: &Job, outcome: CheckOutcome, took: Duration, now: Moment) {
        self.totals.local_errors += u64::from(matches!(outcome, Err(CheckFailure::Local(_))));
        let backend = job.target.backend;
        let excuse = self.excuse(now.instant.checked_sub(took).unwrap_or(now.instant));
        let Some(entry) = self.entries.get_mut(&backend) else { return };
        if entry.place != SchedulePlace::Running(job.ticket) {
            return;
        }
        self.totals.overran += u64::from(took > entry.target.interval);
        self.untold.insert(backend);
        if let (Err(CheckFailure::Backend(_)), true, Some(why)) = (&outcome, entry.record.is_settling(), excuse) {
            return entry.record.excuse(&why, now);
        }
        let before = entry.record.health();
        entry.record.result(&entry.target, outcome, took, now);
        if before != Health::Up && entry.record.health() == Health::Up {
            let service = entry.target.service.clone();
            self.unsettle_others(backend, &service, now);
        }
    }

    /// The first backend of a service is up: what kept all from answering may have kept the others too, and their ways may be
    /// back only now. So that they are down is not settled any more.
    fn unsettle_others(&mut self, backend: u16, service: &str, now: Moment) {
        let mut others: Vec<(u16, &mut TargetEntry)> = self
            .entries
            .iter_mut()
            .filter(|(number, entry)| **number != backend && entry.target.service == service)
            .map(|(number, entry)| (*number, entry))
            .collect();
        if others.iter().any(|(_, entry)| entry.record.health() == Health::Up) {
            return;
        }
        let down = |entry: &TargetEntry| entry.record.health() == Health::Down && entry.target.check != Check::None;
        for (number, entry) in others.iter_mut().filter(|(_, entry)| down(entry)) {
            entry.record.unsettle(now);
            if let SchedulePlace::Due(at) = entry.place {
                let soon = now.instant + part(SETTLING_PACE.min(entry.target.interval), *number);
                self.due.remove(&(at, *number));
                entry.place = SchedulePlace::Due(soon.min(at));
                self.due.insert((soon.min(at), *number));
            }
        }
    }

    /// Frees the slot of a check that has ended, with a result or without, and plans the target's next.
    pub(super) fn end(&mut self, job: &Job, now: Instant) {
        self.totals.in_flight -= 1;
        let backend = job.target.backend;
        let Some(entry) = self.entries.get(&backend) else { return };
        if entry.place != SchedulePlace::Running(job.ticket) {
            return;
        }
        let next = match self.next_due(&entry.target, now) {
            next if entry.record.is_settling() => next.min(now + SETTLING_PACE.min(entry.target.interval)),
            next => next,
        };
        self.due.insert((next, backend));
        if let Some(entry) = self.entries.get_mut(&backend) {
            entry.place = SchedulePlace::Due(next);
        }
    }

    /// Takes in what became of clients' connections.
    pub(super) fn observe(&mut self, backend: u16, observed: ObservedTotals, now: Moment) {
        let Some(entry) = self.entries.get_mut(&backend) else { return };
        let before = entry.record.health();
        entry.record.observe(&entry.target, observed, now);
        if entry.record.health() != before {
            self.untold.insert(backend);
            self.plan_trial(backend);
        }
    }

    /// Gives targets the states they had before a restart; those that are told are as good as told already.
    pub(super) fn restore(&mut self, saved: &[Saved], now: Moment) {
        for saved in saved {
            let Some(entry) = self.entries.get_mut(&saved.backend) else { continue };
            entry.record.restore(&entry.target, saved, now);
            entry.told = entry.record.health();
            self.plan_trial(saved.backend);
        }
    }

    /// Notes when a backend without an active check is to be tried again; a trial once planned is not moved.
    fn plan_trial(&mut self, backend: u16) {
        let Some(entry) = self.entries.get_mut(&backend) else { return };
        if entry.target.check != Check::None {
            return;
        }
        entry.place = entry.record.retry_at().map_or(SchedulePlace::Idle, SchedulePlace::Due);
        self.due.extend(entry.place.due_at(backend));
    }

    /// The next instant after `now` in the target's phase.
    fn next_due(&self, target: &CheckTarget, now: Instant) -> Instant {
        let first = self.epoch + part(target.interval, target.backend);
        let Some(since) = now.checked_duration_since(first) else { return first };
        let into = nanos(since.as_nanos() % target.interval.as_nanos());
        now + (target.interval - into)
    }

    pub(super) fn backends_health(&self, now: Instant) -> Vec<BackendHealth> {
        self.entries.values().map(|entry| entry.record.backend_health(&entry.target, now)).collect()
    }

    pub(super) fn states(&self) -> Vec<HealthState> {
        self.entries.iter().map(|(&backend, entry)| entry.record.state(backend)).collect()
    }

    pub(super) fn saved(&self) -> Vec<Saved> {
        self.entries.values().map(|entry| entry.record.saved(&entry.target)).collect()
    }

    pub(super) fn totals(&self) -> CheckTotals {
        self.totals
    }
}

impl SchedulePlace {
    fn due_at(self, backend: u16) -> Option<(Instant, u16)> {
        match self {
            SchedulePlace::Due(at) => Some((at, backend)),
            _ => None,
        }
    }
}

/// A part of `whole` that follows from the backend's number alone; any range of numbers spreads evenly over it
/// (multiples of the golden ratio).
fn part(whole: Duration, backend: u16) -> Duration {
    let fraction = u128::from(u32::from(backend).wrapping_mul(0x9e37_79b9));
    nanos((whole.as_nanos() * fraction) >> 32)
}

/// A duration of less than [`DURATION_MAX`], whose nanoseconds fit 64 bits with ease.
fn nanos(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
