//! Whether services are ready: a backend of each is known to be up, and its first checks have come to a verdict.

use super::log;
use super::notify;
use super::plane::Plane;
use super::reading::{group_of, shown};
use crate::config::{Settings, led_to};
use hairpin_core::balance::EffectiveWeights;
use hairpin_core::config::{Backend, BackendState, Service, ServiceState, Snapshot};
use hairpin_linux::device;
use std::time::{Duration, Instant};

/// How long the service manager is told nothing while a service is not ready. A service whose backends are all down must
/// not make the start fail: another balancer may have others, and checks go on here.
const PATIENCE: Duration = Duration::from_secs(20);

/// The state last reported to the service manager.
#[derive(Debug)]
pub(super) struct NotifiedReadiness {
    started: Instant,
    /// The manager waits for this process.
    starting: bool,
    /// The first checks of what was configured at the start have not all come to a verdict.
    settling: bool,
    /// The services last reported as not ready.
    told: Option<String>,
}

impl NotifiedReadiness {
    /// `starting`: it is not known to the manager yet.
    pub(super) fn new(starting: bool) -> NotifiedReadiness {
        NotifiedReadiness { started: Instant::now(), starting, settling: true, told: None }
    }

    /// Whether the manager waits for this process.
    pub(super) fn is_starting(&self) -> bool {
        self.starting
    }

    /// Whether first checks without a verdict keep services from being ready. Later on, those of new backends do not.
    pub(super) fn is_settling(&self) -> bool {
        self.settling
    }

    /// Tells the manager what is new: `not_ready` are the services that are not ready. `settled`: all first checks have
    /// come to a verdict.
    pub(super) fn tell(&mut self, not_ready: &[(String, String)], settled: bool) {
        self.settling &= !settled;
        let text = describe(not_ready);
        let is_over = self.started.elapsed() >= PATIENCE;
        if self.starting && (not_ready.is_empty() || is_over) {
            self.starting = false;
            if let Some(text) = &text {
                log(&format!("warning: not ready after {} s, serves all the same: {text}", PATIENCE.as_secs()));
            }
            notify::ready();
        }
        if self.told.as_ref() != Some(text.as_ref().unwrap_or(&READY.to_string())) {
            let text = text.unwrap_or_else(|| READY.to_string());
            notify::status(&text);
            self.told = Some(text);
        }
    }
}

const READY: &str = "ready";

/// Services that are not ready, in a line.
fn describe(not_ready: &[(String, String)]) -> Option<String> {
    let all: Vec<String> = not_ready.iter().map(|(name, why)| format!("service {name}: {why}")).collect();
    (!all.is_empty()).then(|| format!("not ready: {}", all.join("; ")))
}

/// Whether the first checks of all backends that are used have come to a verdict.
pub(super) fn is_settled(snapshot: &Snapshot, effective_weights: &EffectiveWeights) -> bool {
    let active = snapshot.services.iter().filter(|service| service.state == ServiceState::Active);
    active.flat_map(|service| used(&service.backends)).all(|backend| effective_weights.of(backend.number).settled)
}

fn used<'a>(backends: impl IntoIterator<Item = &'a Backend>) -> impl Iterator<Item = &'a Backend> {
    backends.into_iter().filter(|backend| backend.state == BackendState::Enabled && backend.weight > 0)
}

/// For every service and group shown, in order: why it is not ready, if it is not.
pub(super) fn why_not(
    snapshot: &Snapshot,
    effective_weights: &EffectiveWeights,
    settling: bool,
) -> Vec<Option<String>> {
    let shown = shown(snapshot);
    let groups_of = |service: &Service| {
        let (name, address) = (service.name.clone(), service.endpoint.address);
        let of = move |group: &&Service| group_of(group) == Some(&*name) && group.endpoint.address == address;
        shown.iter().map(|(_, group)| *group).filter(of).collect::<Vec<_>>()
    };
    let why = |service: &Service| match service.state {
        ServiceState::Active => {
            let groups = if service.kind.is_group() { Vec::new() } else { groups_of(service) };
            let mut parts: Vec<&Service> = [service].into_iter().chain(groups).collect();
            // Routes that it shares lead to backends of another service.
            for number in led_to(service) {
                let part = snapshot.services.get(usize::from(number));
                parts.extend(part.filter(|part| !parts.iter().any(|have| std::ptr::eq(*have, *part))));
            }
            why_not_one(parts.into_iter(), effective_weights, settling)
        }
        ServiceState::Removed | ServiceState::Vacant => None,
    };
    shown.iter().map(|(_, service)| why(service)).collect()
}

/// Why one service is not ready, its groups' backends among its own.
fn why_not_one<'a>(
    parts: impl Iterator<Item = &'a Service>,
    effective_weights: &EffectiveWeights,
    settling: bool,
) -> Option<String> {
    let backends: Vec<_> = parts.flat_map(|service| &service.backends).collect();
    let effective_weights: Vec<_> =
        used(backends.iter().copied()).map(|backend| effective_weights.of(backend.number)).collect();
    let (all, unsettled) =
        (effective_weights.len(), effective_weights.iter().filter(|standing| !standing.settled).count());
    match all {
        // It answers by itself.
        0 if backends.is_empty() => None,
        0 => Some("no backend is enabled with a weight above 0".to_string()),
        _ if settling && unsettled > 0 => {
            Some(format!("the first checks of {unsettled} of {all} backends have come to no verdict yet"))
        }
        1 if effective_weights[0].share == 0 => Some("its backend is down".to_string()),
        _ if effective_weights.iter().all(|standing| standing.share == 0) => {
            Some(format!("all {all} backends are down"))
        }
        _ => None,
    }
}

/// The interfaces without a link, in words; `None`: all have one.
pub(super) fn links_down(settings: &Settings, plane: &dyn Plane) -> Option<String> {
    let without = |name: &&String| matches!(device::is_running(name), Ok(false));
    let ports = plane.ports().into_iter().filter(|port| !port.up).map(|port| port.device);
    let down: Vec<String> = settings.interfaces.iter().filter(without).cloned().chain(ports).collect();
    match &down[..] {
        [] => None,
        [one] => Some(format!("interface {one} has no link")),
        more => Some(format!("interfaces {} have no link", more.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::balance::EffectiveWeight;

    fn snapshot(file: &str) -> Snapshot {
        crate::config::parse("t.toml", file).unwrap().snapshot
    }

    const TWO: &str = r#"
        interfaces = ["eth0"]
        [[service]]
        name = "web"
        listen = "192.0.2.1:80/tcp"
        [[service.backend]]
        address = "10.0.0.1:80"
        [[service.backend]]
        address = "10.0.0.2:80"
        [[service.backend]]
        address = "10.0.0.3:80"
        state = "disabled"
        [[service]]
        name = "dns"
        listen = "192.0.2.1:53/udp"
        [[service.backend]]
        address = "10.0.0.1:53"
    "#;

    #[test]
    fn a_service_is_ready_when_first_checks_are_over_and_one_is_up() {
        let snapshot = snapshot(TWO);
        let [first, second] = [0, 1].map(|index| snapshot.services[0].backends[index].number);
        let effective_weights = EffectiveWeights::new();
        let why = |settling| why_not(&snapshot, &effective_weights, settling);
        assert_eq!(why(true), [None, None]);
        effective_weights.put(first, EffectiveWeight { share: 256, settled: false });
        let expected = "the first checks of 1 of 2 backends have come to no verdict yet";
        assert_eq!(why(true), [Some(expected.to_string()), None]);
        assert_eq!(why(false), [None, None], "a backend that a reload adds");
        effective_weights.set(first, 0);
        assert_eq!(why(true), [None, None], "the other one is up");
        effective_weights.set(second, 0);
        assert_eq!(why(false), [Some("all 2 backends are down".to_string()), None]);
        effective_weights.set(snapshot.services[1].backends[0].number, 0);
        assert_eq!(why(false)[1].as_deref(), Some("its backend is down"));
    }

    #[test]
    fn a_service_of_groups_goes_by_all_their_backends() {
        let snapshot = snapshot(
            r#"
            interfaces = ["eth0"]
            pool = { addresses = ["10.0.0.9"] }
            [[service]]
            name = "site"
            listen = "192.0.2.1:80/http"
            [[service.group]]
            name = "static"
            [[service.group.backend]]
            address = "10.0.0.1:80"
            [[service.route]]
            group = "static"
            "#,
        );
        let effective_weights = EffectiveWeights::new();
        assert_eq!(why_not(&snapshot, &effective_weights, true), [None, None]);
        snapshot
            .services
            .iter()
            .flat_map(|service| &service.backends)
            .for_each(|it| effective_weights.set(it.number, 0));
        let down = Some("its backend is down".to_string());
        assert_eq!(why_not(&snapshot, &effective_weights, true), [down.clone(), down]);
    }
}
