//! The checks between the parts of a file.

use super::service::ServiceDraft;
use super::words::spoken;
use hairpin_core::config::{Algorithm, BackendState, Forwarding, Pool, Service, UnknownPacket};
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::l7::config::Action;
use hairpin_diagnostics::At;
use hairpin_diagnostics::Sink;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Checks every service by itself and beside the others. `is_tracked`: whether connections are.
pub(super) fn services(sink: &Sink<'_>, drafts: &[ServiceDraft], pool: &At<Pool>, is_tracked: bool) {
    let mut ends: HashMap<(Endpoint, Protocol), &ServiceDraft> = HashMap::new();
    let mut names: HashMap<&str, &ServiceDraft> = HashMap::new();
    for draft in drafts {
        let service = &draft.service;
        if service.kind.is_group() {
            // A group does not listen.
        } else if let Some(first) = ends.get(&(service.endpoint, service.protocol)) {
            let what = format!("two services listen on {}", service.endpoint);
            let line = sink.line(first.listen.start);
            sink.error(&draft.listen, what, format!("the other one is on line {line}: merge them or change one"));
        } else {
            ends.insert((service.endpoint, service.protocol), draft);
        }
        if let Some(first) = names.get(&*service.name) {
            let remedy = format!("the other one is on line {}: rename one", sink.line(first.name.start));
            let [what, name] = called(service);
            sink.error(&draft.name, format!("two {what}s are named \"{name}\""), remedy);
        } else {
            names.insert(&service.name, draft);
        }
    }
    for draft in drafts {
        backends(sink, draft, &ends);
        full_nat(sink, draft, pool);
        direct(sink, draft);
        meaning(sink, draft, is_tracked);
    }
}

/// Refuses a TCP service at the address of a listener of Hairpin's own (`own`: its name and address), whose clients it would get.
pub(super) fn own_listeners(sink: &Sink<'_>, drafts: &[ServiceDraft], own: [(&str, Option<SocketAddr>); 2]) {
    let is_tcp = |service: &Service| !service.kind.is_group() && service.protocol == Protocol::Tcp;
    for draft in drafts.iter().filter(|draft| is_tcp(&draft.service)) {
        let Endpoint { address, port } = draft.service.endpoint;
        let address = IpAddr::from(address);
        let is_same = |own: SocketAddr| (own.ip().to_canonical(), own.port()) == (address, port);
        if let Some((name, _)) = own.iter().find(|(_, own)| own.is_some_and(is_same)) {
            let what = format!(
                "service \"{}\" listens on {}, the address of {name}",
                draft.service.name, draft.service.endpoint
            );
            let remedy = "the service would get its clients: give one of the two another address or port";
            sink.error(&draft.listen, what, remedy);
        }
    }
}

fn backends(sink: &Sink<'_>, draft: &ServiceDraft, ends: &HashMap<(Endpoint, Protocol), &ServiceDraft>) {
    let service = &draft.service;
    let mut seen: HashMap<Endpoint, usize> = HashMap::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    for backend in &draft.backends {
        let endpoint = backend.value.endpoint;
        let start = backend.span.start;
        if endpoint.address.is_ipv4() != service.endpoint.address.is_ipv4() && !service.is_mixed(&backend.value) {
            let [ours, theirs] = [service.endpoint, endpoint].map(family);
            let [of, name] = called(service);
            let what = format!("backend {endpoint} is {theirs}, its {of} \"{name}\" {ours}");
            let remedy = match service.forwarding {
                Forwarding::Direct => "use a backend of the same, or an `encapsulation`",
                _ => "use a backend of the same",
            };
            sink.error(&backend.span, what, format!("packets are not translated between families: {remedy}"));
        }
        if let Some(other) = ends.get(&(endpoint, service.protocol)) {
            let what = format!("backend {endpoint} is what service \"{}\" listens on", other.service.name);
            sink.error(&backend.span, what, "packets would go round in circles: name the server's own address");
        }
        if let Some(first) = seen.insert(endpoint, start) {
            let [of, name] = called(service);
            let what = format!("backend {endpoint} is in {of} \"{name}\" twice");
            sink.error(
                &backend.span,
                what,
                format!("the other one is on line {}: use `weight` for a larger share", sink.line(first)),
            );
        } else if let Some(first) = names.insert(&backend.value.name, start) {
            let [of, name] = called(service);
            let what = format!("two backends of {of} \"{name}\" are named \"{}\"", backend.value.name);
            sink.error(&backend.span, what, format!("the other one is on line {}: rename one", sink.line(first)));
        }
    }
}

fn full_nat(sink: &Sink<'_>, draft: &ServiceDraft, pool: &At<Pool>) {
    let service = &draft.service;
    // Of a group and of a terminated service, those need the pool that lead there.
    let has_no_need = service.kind.is_group() || service.kind.is_terminated() || answers_all(service);
    if service.forwarding != Forwarding::FullNat || has_no_need {
        return;
    }
    let is_ipv4 = service.endpoint.address.is_ipv4();
    if !pool.value.addresses.iter().any(|address| address.is_ipv4() == is_ipv4) {
        let family = family(service.endpoint);
        let what = match service.kind.is_spliced() {
            true => format!(
                "service \"{}\" is {}: it reaches backends from [pool], which has no {family} address",
                service.name,
                spoken(service)
            ),
            false => format!("service \"{}\" is full-nat, and [pool] has no {family} address", service.name),
        };
        let example = if is_ipv4 { "10.0.2.1" } else { "fd00:2::1" };
        sink.error(&draft.mode, what, format!("give it one: [pool] addresses = [\"{example}\"]"));
    }
    if service.unknown == UnknownPacket::PickUp {
        let what = format!("`unknown = \"pick-up\"` means drop in service \"{}\", which is full-nat", service.name);
        sink.warning(&draft.unknown, what, "the other balancer's source ports are unknown");
    }
}

/// Direct server return: backends get packets as clients sent them, and Hairpin sees no answers.
fn direct(sink: &Sink<'_>, draft: &ServiceDraft) {
    let service = &draft.service;
    if service.forwarding != Forwarding::Direct {
        return;
    }
    for backend in draft.backends.iter().filter(|backend| backend.value.endpoint.port != service.endpoint.port) {
        let what = format!(
            "backend {} has another port than service \"{}\", which is dsr: packets reach it with the service's",
            backend.value.endpoint, service.name
        );
        sink.error(&backend.span, what, format!("have it listen on port {}", service.endpoint.port));
    }
    if draft.settings.outlier.is_some() {
        let what = format!(
            "service \"{}\" ejects outliers, but it is dsr, and what backends answer does not pass here",
            service.name
        );
        sink.error(&draft.listen, what, "leave `outlier` out, and use `check` of [service.health]");
    }
    if draft.settings.health.passive.is_some() {
        let what = format!(
            "service \"{}\" counts clients' connections that fail, but it is dsr, and what backends answer does not pass \
             here",
            service.name
        );
        sink.error(&draft.passive, what, "leave `passive` out, and use `check`");
    }
}

/// Whether all of its requests are answered without a backend: it needs no addresses of its own.
fn answers_all(service: &Service) -> bool {
    let Some(http) = service.kind.http() else { return false };
    !http.routes.is_empty() && !http.routes.iter().any(|route| matches!(route.action, Action::Forward { .. }))
}

/// Warns of settings that are legal but hardly meant.
fn meaning(sink: &Sink<'_>, draft: &ServiceDraft, is_tracked: bool) {
    let service = &draft.service;
    let takes_some = |backend: &At<_>| takes_connections(&backend.value);
    if !draft.backends.is_empty() && !draft.backends.iter().any(takes_some) {
        let [of, name] = called(service);
        let what = format!("no backend of {of} \"{name}\" takes new connections");
        sink.warning(&draft.listen, what, "enable one with a weight above 0");
    }
    let all_are_backups = draft.backends.iter().all(|backend| backend.value.is_backup)
        && draft.settings.named.iter().all(|named| named.is_backup);
    if !draft.backends.is_empty() && all_are_backups {
        let [of, name] = called(service);
        let what = format!("all backends of {of} \"{name}\" are backups, so that they are always used");
        sink.warning(&draft.listen, what, "leave `backup` out, or add other backends");
    }
    let is_limited = draft.backends.iter().any(|backend| backend.value.connections_max > 0)
        || draft.settings.named.iter().any(|named| named.connections_max > 0);
    if draft.settings.queue.is_some() && service.kind.http().is_some() && !draft.backends.is_empty() && !is_limited {
        let what = format!("no request of service \"{}\" waits, since none of its backends has a limit", service.name);
        sink.warning(&draft.listen, what, "give backends `connections_max`, or leave `queue` out");
    }
    let first_weight = draft.backends.first().map(|backend| backend.value.weight);
    let weights_differ = draft.backends.iter().any(|backend| Some(backend.value.weight) != first_weight);
    if service.algorithm == Algorithm::RoundRobin && weights_differ {
        let (ignores, remedy) = match is_tracked {
            true => ("round-robin", "use balance = \"weighted-round-robin\""),
            false => ("`connection_table = \"stateless\"`", "use connection_table = \"maglev\""),
        };
        let [of, name] = called(service);
        let what = format!("{of} \"{name}\" has weights, which {ignores} ignores");
        sink.warning(&draft.balance, what, remedy);
    }
    let picks_up = service.unknown == UnknownPacket::PickUp && service.forwarding != Forwarding::FullNat && is_tracked;
    if picks_up && service.protocol == Protocol::Tcp && service.algorithm != Algorithm::Maglev {
        let what = format!(
            "`unknown = \"pick-up\"` of service \"{}\" takes up connections with the backend that Maglev names, which is \
             not the one that they have",
            service.name
        );
        sink.warning(&draft.unknown, what, "use balance = \"maglev\", here and in the other instance");
    }
    if service.protocol == Protocol::Udp && service.unknown != UnknownPacket::Drop {
        let what = format!("`unknown` means nothing to service \"{}\", which is UDP", service.name);
        sink.warning(&draft.unknown, what, "leave it out");
    }
}

fn takes_connections(backend: &hairpin_core::config::Backend) -> bool {
    backend.state == BackendState::Enabled && backend.weight > 0
}

/// Checks the pool beside the services.
pub(super) fn pool(sink: &Sink<'_>, drafts: &[ServiceDraft], pool: &At<Pool>) {
    let ports = pool.value.port_first..=pool.value.port_last;
    for address in &pool.value.addresses {
        for draft in drafts {
            let service = &draft.service;
            if service.endpoint.address == *address && ports.contains(&service.endpoint.port) {
                let what =
                    format!("service \"{}\" listens on {}, which is in the pool", service.name, service.endpoint);
                sink.error(&draft.listen, what, "take another pool address or range of `ports`");
            }
            if let Some(backend) = draft.backends.iter().find(|backend| backend.value.endpoint.address == *address) {
                let what = format!("backend {} has a pool address", backend.value.endpoint);
                sink.error(&backend.span, what, "pool addresses are Hairpin's own: take another one");
            }
        }
    }
}

/// Its kind and its name.
fn called(service: &Service) -> [&str; 2] {
    [if service.kind.is_group() { "group" } else { "service" }, &service.name]
}

fn family(end: Endpoint) -> &'static str {
    if end.address.is_ipv4() { "IPv4" } else { "IPv6" }
}
