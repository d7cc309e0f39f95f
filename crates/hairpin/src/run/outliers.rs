//! Outlier ejection: what workers and runtimes have counted, put before `health::Outliers`, and what it says.

use super::reading::WorkerReading;
use super::supervisor::Supervisor;
use super::tell;
use crate::events::EventKind;
use crate::health::{EjectionChange, Ejections, Member, OutcomeTotals};
use crate::status::EjectionStatus;
use hairpin_core::config::{BackendState, Service, ServiceState};
use hairpin_core::l7::splice::Fault;
use hairpin_core::worker::BackendStatistics;
use std::collections::HashSet;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

impl Supervisor {
    /// Ejects backends that do worse than others, and takes them back.
    pub(super) fn eject(&mut self, workers: &[WorkerReading]) {
        let now = (Instant::now(), SystemTime::now());
        let health = self.health.backends_health();
        let up: HashSet<u16> = health.iter().filter(|health| health.available).map(|health| health.backend).collect();
        for ((number, service), settings) in (0..).zip(&self.snapshot.services).zip(&self.merged.settings) {
            let settings = settings.as_ref().and_then(|settings| settings.outlier);
            let Some(settings) = settings.filter(|_| service.state == ServiceState::Active) else {
                self.outliers.forget(number);
                continue;
            };
            let members = members(service, &up, workers);
            for change in self.outliers.observe(now, number, &settings, &members) {
                tell(EventKind::Health, &told(service, &change));
            }
        }
        let services = self.snapshot.services.len();
        self.outliers.retain(|service| usize::from(service) < services);
    }
}

/// Backends that may be chosen, but for their health.
fn members(service: &Service, up: &HashSet<u16>, workers: &[WorkerReading]) -> Vec<Member> {
    let all = service.backends.iter().filter(|backend| backend.state == BackendState::Enabled && backend.weight > 0);
    let member = |number: u16| {
        let statistics = workers.iter().filter_map(|worker| worker.statistics.backends.get(usize::from(number)));
        Member { number, takes: up.contains(&number), totals: totals(statistics) }
    };
    all.map(|backend| member(backend.number)).collect()
}

fn totals<'a>(statistics: impl Iterator<Item = &'a BackendStatistics>) -> OutcomeTotals {
    let mut sum = OutcomeTotals::default();
    for one in statistics {
        let status = one.faults[Fault::Status as usize];
        let unanswered = one.faults.iter().sum::<u64>() - status;
        sum.good += (one.established + status).saturating_sub(one.server_errors);
        sum.bad += one.failed + unanswered + one.server_errors;
        sum.responses += one.established + status;
        sum.response_us += one.response_us;
    }
    sum
}

/// A change, for people.
fn told(service: &Service, change: &EjectionChange) -> String {
    let name = |number: u16| {
        let backend = service.backends.iter().find(|backend| backend.number == number);
        backend.map_or("?", |backend| &*backend.name)
    };
    let of = &service.name;
    match change {
        EjectionChange::Ejected { backend, reason, time } => {
            let time = humantime::format_duration(*time);
            format!("warning: service {of}: backend {} is ejected for {time}: {reason}", name(*backend))
        }
        EjectionChange::Returned { backend, early: false } => {
            format!("service {of}: backend {} returns from its ejection", name(*backend))
        }
        EjectionChange::Returned { backend, early: true } => {
            let name = name(*backend);
            format!(
                "warning: service {of}: backend {name} returns from its ejection early: no other one takes connections"
            )
        }
    }
}

/// The ejections of a backend, for the status.
pub(super) fn status(ejections: &Ejections) -> EjectionStatus {
    let until = ejections.until.and_then(|until| until.duration_since(UNIX_EPOCH).ok());
    EjectionStatus {
        ejected: ejections.until.is_some(),
        until_unix_s: until.unwrap_or_default().as_secs_f64(),
        reason: ejections.reason.clone(),
        ejections_total: ejections.total,
        prevented_total: ejections.prevented,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_from_500_on_are_failures_once() {
        // Three responses of which one was 500, and two with a status of `passive_status`.
        let one = BackendStatistics {
            established: 3,
            failed: 1,
            faults: [10, 20, 2],
            server_errors: 3,
            response_us: 50,
            ..BackendStatistics::default()
        };
        let expected = OutcomeTotals { good: 2, bad: 34, responses: 5, response_us: 50 };
        assert_eq!(totals([&one].into_iter()), expected);
        let twice = OutcomeTotals { good: 4, bad: 68, responses: 10, response_us: 100 };
        assert_eq!(totals([&one, &one].into_iter()), twice);
    }
}
