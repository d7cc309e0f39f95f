//! From the backends' health to what workers use: effective weights, flows to end, drains that are over.

use super::reading::WorkerReading;
use crate::config::ServiceSettings;
use crate::health::{self, CheckTarget, Checker, ObservedTotals, Outliers};
use crate::status::HealthStatus;
use hairpin_core::balance::{EffectiveWeight, EffectiveWeights, uses_backups};
use hairpin_core::config::{BackendState, Service, ServiceState, Snapshot};
use hairpin_core::l7::splice::Fault;
use hairpin_core::worker::Which;
use hairpin_https::BackendTls;
use hairpin_linux::abi::{CHECK_STAND_IN_V4, CHECK_STAND_IN_V6};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::UNIX_EPOCH;

/// The targets of checks: all backends that may get connections. `tls`: by the number of the service or group. `by_kernel`:
/// packets to backends leave by the kernel's devices.
pub(crate) fn targets(
    snapshot: &Snapshot,
    settings: &[Option<ServiceSettings>],
    tls: &HashMap<u16, BackendTls>,
    by_kernel: bool,
) -> Vec<CheckTarget> {
    let mut targets = Vec::new();
    for ((number, service), settings) in (0..).zip(&snapshot.services).zip(settings) {
        let Some(settings) = settings else { continue };
        if service.state != ServiceState::Active {
            continue;
        }
        let taking = |state| !matches!(state, BackendState::Disabled | BackendState::Removed);
        let backends = service.backends.iter().filter(|backend| taking(backend.state));
        targets.extend(backends.map(|backend| {
            let is_mixed = by_kernel && service.is_mixed(backend);
            CheckTarget {
                tls: tls.get(&number).cloned(),
                // Another port may well be served by another program.
                http2: settings.backend_http2 && settings.health.port.is_none(),
                stand_in: is_mixed.then(|| stand_in(service)),
                ..settings.health.target(service, backend)
            }
        }));
    }
    // Without the kernel's ports no program puts the VIP in place of the backend's address.
    targets.iter_mut().for_each(|target| target.direct &= by_kernel);
    targets
}

/// Where the check of a backend of direct server return is sent whose VIP is of the other family.
fn stand_in(service: &Service) -> IpAddr {
    match service.endpoint.address.is_ipv4() {
        true => CHECK_STAND_IN_V4.into(),
        false => CHECK_STAND_IN_V6.into(),
    }
}

/// The totals of clients' connections at each backend so far.
pub(crate) fn observed(workers: &[WorkerReading]) -> Vec<(u16, ObservedTotals)> {
    let backends = workers.iter().map(|worker| worker.statistics.backends.len()).max().unwrap_or(0);
    let sum = |number: usize| {
        let of_workers = workers.iter().filter_map(|worker| worker.statistics.backends.get(number));
        of_workers.fold(ObservedTotals::default(), |sum, backend| ObservedTotals {
            established: sum.established + backend.established,
            failed: sum.failed + backend.failed + backend.faults.iter().sum::<u64>(),
        })
    };
    (0..backends).map(|number| (number as u16, sum(number))).collect()
}

/// The requests of a backend that failed, by how, as far as there were any.
pub(crate) fn requests_failed(number: u16, workers: &[WorkerReading]) -> BTreeMap<String, u64> {
    let backends = || workers.iter().filter_map(|worker| worker.statistics.backends.get(usize::from(number)));
    let of = |fault: Fault| (fault.name().to_string(), backends().map(|backend| backend.faults[fault as usize]).sum());
    Fault::ALL.into_iter().map(of).filter(|(_, count)| *count > 0).collect()
}

/// Tells the workers how the backends stand; they end the datagram flows of one that has gone down themselves. Whether
/// anything is different now, so that those asleep have to be woken.
pub(crate) fn tell(checker: &Checker, outliers: &Outliers, effective_weights: &EffectiveWeights) -> bool {
    let before = effective_weights.version();
    let ejected: BTreeSet<u16> = outliers.ejected().collect();
    for standing in checker.backends_health() {
        let is_ejected = ejected.contains(&standing.backend);
        let share = if standing.available && !is_ejected { standing.share_256 } else { 0 };
        effective_weights.put(standing.backend, EffectiveWeight { share, settled: standing.settled || is_ejected });
    }
    effective_weights.version() != before
}

/// The services whose backups are used, by number.
#[derive(Debug, Default)]
pub(crate) struct BackupsInUse(BTreeSet<u16>);

impl BackupsInUse {
    /// Takes note of how it is now; what has changed, for people.
    pub(crate) fn follow(&mut self, snapshot: &Snapshot, effective_weights: &EffectiveWeights) -> Vec<String> {
        let mut changes = Vec::new();
        for (number, service) in (0..).zip(&snapshot.services) {
            let name = &service.name;
            if !uses_backups(service, effective_weights) {
                if self.0.remove(&number) {
                    changes.push(format!("service {name}: its backups are used no longer"));
                }
            } else if self.0.insert(number) {
                changes.push(format!(
                    "warning: service {name}: its backups are used, since no other backend takes connections"
                ));
            }
        }
        changes
    }
}

/// Backends whose connections have been given their time: those that drain, or are removed, for longer than their limit.
/// `since`: when a backend began to drain, in seconds since 1970. `ended`: those that have been ended already.
pub(crate) fn drained(
    snapshot: &Snapshot,
    since: impl Fn(u16) -> Option<u64>,
    now_unix_s: u64,
    ended: &mut BTreeSet<u16>,
) -> Vec<(u16, Which)> {
    let mut over = Vec::new();
    for service in &snapshot.services {
        for backend in &service.backends {
            let drains = matches!(backend.state, BackendState::Draining | BackendState::Removed)
                || service.state == ServiceState::Removed;
            let limit = service.drain_limit.as_secs();
            let late = since(backend.number).is_some_and(|since| now_unix_s.saturating_sub(since) >= limit);
            if !drains {
                ended.remove(&backend.number);
            } else if limit > 0 && late && ended.insert(backend.number) {
                over.push((backend.number, Which::All));
            }
        }
    }
    over
}

/// Every checked backend's health, by number.
pub(crate) fn statuses(checker: &Checker, workers: &[WorkerReading]) -> HashMap<u16, HealthStatus> {
    let shares: HashMap<u16, f64> = checker
        .backends_health()
        .into_iter()
        .map(|s| (s.backend, if s.available { f64::from(s.share_256) / 256.0 } else { 0.0 }))
        .collect();
    let failed: HashMap<u16, u64> =
        observed(workers).into_iter().map(|(number, observed)| (number, observed.failed)).collect();
    let status = |state: health::HealthState| {
        let since = state.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let status = HealthStatus {
            state: state.health.name().to_string(),
            settling: !state.settled,
            reason: state.reason,
            since_unix_s: since.as_secs_f64(),
            checks_total: state.checks,
            failed_total: state.failures,
            last_duration_s: state.last_duration.unwrap_or_default().as_secs_f64(),
            weight_share: shares.get(&state.backend).copied().unwrap_or(1.0),
            passive_failed_total: failed.get(&state.backend).copied().unwrap_or(0),
            requests_failed: requests_failed(state.backend, workers),
        };
        (state.backend, status)
    };
    checker.states().into_iter().map(status).collect()
}

/// The health of a backend that is not checked.
pub(crate) fn unchecked(failed: u64, requests_failed: BTreeMap<String, u64>) -> HealthStatus {
    HealthStatus {
        state: "unchecked".to_string(),
        weight_share: 1.0,
        passive_failed_total: failed,
        requests_failed,
        ..HealthStatus::default()
    }
}
