//! Which numbers of a status the series of a family have: one for each service, backend, worker.

use super::{BACKEND_STATES, ENGINE, Emit, MetricView, SampleValue};
use crate::status::{BackendStatus, EjectionStatus, OffloadStatus, ServiceStatus, WorkerStatus};

pub(super) fn services<'a>(
    view: &MetricView<'a>,
    emit: &mut Emit<'_>,
    value: fn(&'a ServiceStatus) -> SampleValue<'a>,
) {
    for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
        emit(&[name], value(service));
    }
}

/// Every backend with the names of its service and its own.
pub(super) fn each_backend<'a>(view: &MetricView<'a>, mut each: impl FnMut(&str, &str, &'a BackendStatus)) {
    for (service, (service_name, names)) in view.status.services.iter().zip(&view.names.services) {
        for (backend, name) in service.backends.iter().zip(names) {
            each(service_name, name, backend);
        }
    }
}

pub(super) fn backends(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&BackendStatus) -> SampleValue<'_>) {
    each_backend(view, |service, name, backend| emit(&[service, name], value(backend)));
}

pub(super) fn is_checked(backend: &BackendStatus) -> bool {
    !matches!(&*backend.health.state, "" | "unchecked")
}

pub(super) fn checked(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&BackendStatus) -> SampleValue<'_>) {
    each_backend(view, |service, name, backend| {
        if is_checked(backend) {
            emit(&[service, name], value(backend));
        }
    });
}

pub(super) fn ejections(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&EjectionStatus) -> SampleValue<'_>) {
    each_backend(view, |service, name, backend| {
        if let Some(ejection) = &backend.ejection {
            emit(&[service, name], value(ejection));
        }
    });
}

pub(super) fn ejection_counts(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    each_backend(view, |service, name, backend| {
        if let Some(ejection) = &backend.ejection {
            emit(&[service, name, "done"], ejection.ejections_total.into());
            emit(&[service, name, "prevented"], ejection.prevented_total.into());
        }
    });
}

pub(super) fn paths(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&BackendStatus) -> [u64; 2]) {
    each_backend(view, |service, name, backend| {
        let [software, offloaded] = value(backend);
        emit(&[service, name, "software"], software.into());
        emit(&[service, name, "offloaded"], offloaded.into());
    });
}

pub(super) fn backend_states(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    each_backend(view, |service, name, backend| {
        for state in BACKEND_STATES {
            emit(&[service, name, state], (backend.state == state).into());
        }
    });
}

pub(super) fn health_checks(view: &MetricView<'_>, emit: &mut Emit<'_>) {
    each_backend(view, |service, name, backend| {
        if is_checked(backend) {
            let failed = backend.health.failed_total;
            emit(&[service, name, "success"], backend.health.checks_total.saturating_sub(failed).into());
            emit(&[service, name, "failure"], failed.into());
        }
    });
}

pub(super) fn workers(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&WorkerStatus) -> SampleValue<'_>) {
    for worker in &view.status.workers {
        emit(&[&worker.id.to_string()], value(worker));
    }
}

pub(super) fn offload(view: &MetricView<'_>, emit: &mut Emit<'_>, value: fn(&OffloadStatus) -> SampleValue<'_>) {
    emit(&[engine(view)], value(&view.status.offload));
}

/// The engine's name.
pub(super) fn engine<'a>(view: &'a MetricView<'_>) -> &'a str {
    if view.status.offload.engine.is_empty() { ENGINE } else { &view.status.offload.engine }
}

pub(super) fn reloaded(view: &MetricView<'_>, emit: &mut Emit<'_>, value: SampleValue<'_>) {
    if view.status.reloads.last_unix_s > 0 {
        emit(&[], value);
    }
}

pub(super) fn fullness(state: &str) -> u64 {
    match state {
        "full" => 2,
        "nearly-full" => 1,
        _ => 0,
    }
}
