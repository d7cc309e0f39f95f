//! Outlier ejection: backends that do worse than the others of their service get no new connections for a while.
//!
//! A machine without clock and threads, after Envoy's outlier detection. It takes running totals of what clients' connections and
//! requests met, and decides: failures in a row, a ratio of failures in an interval, and a mean latency beyond a multiple of the
//! median of the others. Each ejection of a backend in turn lasts longer, up to a bound; an interval without one counts back.
//!
//! *Invariants.* A backend is ejected only while another one of its service takes connections, and at most a configured part of
//! them at a time, though one always may be. Where all that are not ejected have gone down, all are taken back.

use std::collections::HashMap;
use std::fmt::{Display, Formatter, Result};
use std::time::{Duration, Instant, SystemTime};

/// The settings of a service or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierSettings {
    /// Failures in a row that eject a backend, 0 to 1000; 0: none do.
    pub consecutive: u32,
    /// Failures among a hundred outcomes of an interval that eject it, 0 to 100; 0: none do.
    pub error_percent: u8,
    /// Multiple of the median latency of the others, 0 to 1000; 0: latency does not eject it.
    pub latency_factor: u32,
    /// Mean latency below which it is never ejected for that.
    pub latency_min: Duration,
    /// Outcomes that an interval must have for its ratio and its mean latency to count, 1 to 1,000,000.
    pub requests_min: u64,
    /// From one look at ratios and latencies to the next, 1 s to an hour.
    pub interval: Duration,
    /// How long the first ejection lasts, 1 s to a day.
    pub ejection_time: Duration,
    /// How long any lasts at most.
    pub ejection_time_max: Duration,
    /// Of a hundred backends, how many may be ejected at a time, 0 to 100. One always may.
    pub max_ejected_percent: u8,
}

impl Display for OutlierSettings {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [interval, first, most, latency] =
            [self.interval, self.ejection_time, self.ejection_time_max, self.latency_min]
                .map(humantime::format_duration);
        write!(
            f,
            "consecutive {}, error_percent {}, latency_factor {} from {latency}, requests_min {} in {interval}, for {first} to \
             {most}, max_ejected_percent {}",
            self.consecutive, self.error_percent, self.latency_factor, self.requests_min, self.max_ejected_percent
        )
    }
}

/// Running totals of what a backend's connections and requests met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeTotals {
    /// Connections taken up; of an HTTP service, responses below 500.
    pub good: u64,
    /// Connections not made, requests without a response, and responses from 500 on.
    pub bad: u64,
    /// Responses whose latency is summed up.
    pub responses: u64,
    /// Sum of their latencies, in microseconds.
    pub response_us: u64,
}

impl OutcomeTotals {
    /// What has come since `before`; nothing, if totals began anew.
    fn since(self, before: OutcomeTotals) -> OutcomeTotals {
        let part = |of: fn(OutcomeTotals) -> u64| of(self).saturating_sub(of(before));
        OutcomeTotals {
            good: part(|totals| totals.good),
            bad: part(|totals| totals.bad),
            responses: part(|totals| totals.responses),
            response_us: part(|totals| totals.response_us),
        }
    }

    fn mean_us(self) -> u64 {
        self.response_us / self.responses.max(1)
    }
}

/// A backend of a service as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its number.
    pub number: u16,
    /// Whether it would take connections: enabled, with a weight, and not down.
    pub takes: bool,
    /// Its totals.
    pub totals: OutcomeTotals,
}

/// What has changed of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EjectionChange {
    /// It is ejected for so long.
    Ejected {
        /// Its number.
        backend: u16,
        /// Why.
        reason: String,
        /// For how long.
        time: Duration,
    },
    /// It takes connections again; `early`: because no other one does.
    Returned {
        /// Its number.
        backend: u16,
        /// Before its time.
        early: bool,
    },
}

/// The ejections of a backend, for the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ejections {
    /// When the one that goes on ends.
    pub until: Option<SystemTime>,
    /// Why it was ejected last.
    pub reason: String,
    /// How often it was.
    pub total: u64,
    /// How often it would have been, but for the bounds.
    pub prevented: u64,
}

#[derive(Debug, Default)]
struct Record {
    /// Totals at the last look.
    seen: Option<OutcomeTotals>,
    /// Totals when the interval began.
    began: OutcomeTotals,
    in_a_row: u64,
    until: Option<Instant>,
    /// How long the next ejection lasts, in first ones.
    times: u32,
    /// It has already been counted that this run of failures does not eject it.
    is_prevented: bool,
    shown: Ejections,
}

#[derive(Debug)]
struct Group {
    interval_began: Instant,
    backends: HashMap<u16, Record>,
}

/// The ejections of all services.
#[derive(Debug, Default)]
pub struct Outliers {
    groups: HashMap<u16, Group>,
}

impl Outliers {
    /// A service, by number, ejects none, or is gone.
    pub fn forget(&mut self, service: u16) {
        self.groups.remove(&service);
    }

    /// Forgets services for which this does not hold.
    pub fn retain(&mut self, holds: impl Fn(u16) -> bool) {
        self.groups.retain(|service, _| holds(*service));
    }

    /// The backends that are ejected.
    pub fn ejected(&self) -> impl Iterator<Item = u16> {
        let all = self.groups.values().flat_map(|group| &group.backends);
        all.filter(|(_, record)| record.until.is_some()).map(|(number, _)| *number)
    }

    /// The ejections of a backend of a service that has some settings for them.
    pub fn of(&self, backend: u16) -> Option<&Ejections> {
        self.groups.values().find_map(|group| group.backends.get(&backend)).map(|record| &record.shown)
    }

    /// Takes in the totals of a service's backends. To be called a few times a second: failures count as being in a row if no
    /// success is seen in the same call or between.
    pub fn observe(
        &mut self,
        (now, wall): (Instant, SystemTime),
        service: u16,
        settings: &OutlierSettings,
        members: &[Member],
    ) -> Vec<EjectionChange> {
        let new = || Group { interval_began: now, backends: HashMap::new() };
        let group = self.groups.entry(service).or_insert_with(new);
        group.backends.retain(|number, _| members.iter().any(|member| member.number == *number));
        let mut changes = Vec::new();
        for member in members {
            group.backends.entry(member.number).or_default().follow(member, now, &mut changes);
        }
        let mut suspects = group.with_failures_in_a_row(settings, members);
        let is_over = now.saturating_duration_since(group.interval_began) >= settings.interval;
        if is_over {
            suspects.extend(group.worse_than_others(settings, members));
        }
        for (number, reason) in suspects {
            changes.extend(group.eject((now, wall), settings, members, number, reason));
        }
        if is_over {
            group.begin_interval(now, members, &changes);
        }
        changes.extend(group.release_all_if_none_is_left(members));
        changes
    }
}

impl Record {
    /// Takes in new totals, and ends an ejection whose time is over.
    fn follow(&mut self, member: &Member, now: Instant, changes: &mut Vec<EjectionChange>) {
        let before = self.seen.replace(member.totals);
        if before.is_none() {
            self.began = member.totals;
        }
        if self.until.is_some_and(|until| until <= now) {
            self.release();
            changes.push(EjectionChange::Returned { backend: member.number, early: false });
            return;
        }
        let new = member.totals.since(before.unwrap_or(member.totals));
        if new.good > 0 {
            (self.in_a_row, self.is_prevented) = (0, false);
        } else if self.until.is_none() {
            // What fails during an ejection was begun before.
            self.in_a_row = self.in_a_row.saturating_add(new.bad);
        }
    }

    fn release(&mut self) {
        (self.until, self.shown.until, self.in_a_row) = (None, None, 0);
        self.began = self.seen.unwrap_or_default();
    }
}

impl Group {
    fn with_failures_in_a_row(&self, settings: &OutlierSettings, members: &[Member]) -> Vec<(u16, String)> {
        let count = |member: &Member| {
            let in_a_row = self.backends.get(&member.number).filter(|record| record.until.is_none())?.in_a_row;
            let is_enough = settings.consecutive > 0 && in_a_row >= u64::from(settings.consecutive);
            is_enough.then(|| (member.number, format!("{in_a_row} failures in a row")))
        };
        members.iter().filter_map(count).collect()
    }

    /// Backends whose ratio of failures, or whose latency, of the interval that is over is too high.
    fn worse_than_others(&self, settings: &OutlierSettings, members: &[Member]) -> Vec<(u16, String)> {
        let of = |member: &Member| {
            let record = self.backends.get(&member.number).filter(|record| record.until.is_none())?;
            Some((member.number, member.totals.since(record.began)))
        };
        let measured: Vec<(u16, OutcomeTotals)> = members.iter().filter_map(of).collect();
        let mut found = Vec::new();
        for (number, totals) in &measured {
            let all = totals.good + totals.bad;
            let percent = u64::from(settings.error_percent);
            if percent > 0 && all >= settings.requests_min && totals.bad * 100 >= percent * all {
                found.push((*number, format!("{} of {all} failed in {}", totals.bad, span(settings.interval))));
                continue;
            }
            let counts = |totals: &OutcomeTotals| totals.responses >= settings.requests_min;
            let others = measured.iter().filter(|(other, totals)| other != number && counts(totals));
            let Some(median) = median(others.map(|(_, totals)| totals.mean_us()).collect()) else { continue };
            let mean = totals.mean_us();
            let is_slow = mean > median.saturating_mul(settings.latency_factor.into())
                && u128::from(mean) >= settings.latency_min.as_micros();
            if settings.latency_factor > 0 && counts(totals) && is_slow {
                let ms = |us: u64| us as f64 / 1e3;
                found.push((*number, format!("latency {:.1} ms, the others' median {:.1} ms", ms(mean), ms(median))));
            }
        }
        found
    }

    /// Ejects a backend, unless the bounds forbid it.
    fn eject(
        &mut self,
        (now, wall): (Instant, SystemTime),
        settings: &OutlierSettings,
        members: &[Member],
        number: u16,
        reason: String,
    ) -> Option<EjectionChange> {
        let is_ejected =
            |member: &&Member| self.backends.get(&member.number).is_some_and(|record| record.until.is_some());
        let ejected = members.iter().filter(is_ejected).count();
        let has_other = members.iter().any(|other| other.takes && other.number != number && !is_ejected(&other));
        let most = (members.len() * usize::from(settings.max_ejected_percent) / 100).max(1);
        let record = self.backends.get_mut(&number).filter(|record| record.until.is_none())?;
        if !has_other || ejected >= most {
            record.shown.prevented += u64::from(!std::mem::replace(&mut record.is_prevented, true));
            return None;
        }
        record.times = record.times.saturating_add(1);
        let time = settings.ejection_time.saturating_mul(record.times).min(settings.ejection_time_max);
        record.until = Some(now + time);
        record.shown.until = Some(wall + time);
        record.shown.total += 1;
        record.shown.reason.clone_from(&reason);
        record.is_prevented = false;
        Some(EjectionChange::Ejected { backend: number, reason, time })
    }

    fn begin_interval(&mut self, now: Instant, members: &[Member], changes: &[EjectionChange]) {
        self.interval_began = now;
        for member in members {
            let Some(record) = self.backends.get_mut(&member.number) else { continue };
            record.began = member.totals;
            let is_new = changes
                .iter()
                .any(|change| matches!(change, EjectionChange::Returned { backend, .. } if *backend == member.number));
            if record.until.is_none() && !is_new {
                record.times = record.times.saturating_sub(1);
            }
        }
    }

    /// Takes all ejected backends back, if no other one takes connections.
    fn release_all_if_none_is_left(&mut self, members: &[Member]) -> Vec<EjectionChange> {
        let is_ejected = |backends: &HashMap<u16, Record>, number: u16| {
            backends.get(&number).is_some_and(|record| record.until.is_some())
        };
        if members.iter().any(|member| member.takes && !is_ejected(&self.backends, member.number)) {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for member in members.iter().filter(|member| member.takes) {
            if let Some(record) = self.backends.get_mut(&member.number).filter(|record| record.until.is_some()) {
                record.release();
                changes.push(EjectionChange::Returned { backend: member.number, early: true });
            }
        }
        changes
    }
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    // Of two in the middle the lower one.
    all.get(all.len().saturating_sub(1) / 2).copied()
}

/// A time, in words.
fn span(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}
