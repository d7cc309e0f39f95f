//! Reads `[[service.group]]`: backends that routes lead to.
//!
//! A group is a service of its own in the snapshot, to which no client connects: its end is its service's address, with
//! a port that no service has.

use super::l7::{OWN, backend_tls};
use super::reader::TomlTable;
use super::service::{Backends, ServiceDraft, read_backends, warn_of_weights};
use super::words::Spoken;
use super::{HttpSections, ServiceSettings, balance, health, outlier, queue, reference};
use hairpin_core::config::Service;
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::Kind;
use hairpin_diagnostics::{At, Sink};
use hairpin_https::BackendTlsOptions;

/// The groups of a service, and their names.
pub(super) fn read<'a>(
    sink: &'a Sink<'a>,
    table: &TomlTable<'a>,
    service: &ServiceDraft,
    spoken: Spoken,
) -> (Vec<ServiceDraft>, Vec<At<String>>) {
    let tables = table.tables("group", &reference::GROUP);
    tables.iter().filter_map(|table| read_one(sink, table, service, spoken)).unzip()
}

/// `None` if it has no name.
fn read_one<'a>(
    sink: &'a Sink<'a>,
    table: &TomlTable<'a>,
    of: &ServiceDraft,
    spoken: Spoken,
) -> Option<(ServiceDraft, At<String>)> {
    if !table.has("name") {
        table.missing("name");
    }
    let name = table.name("name").filter(|name| {
        if name.value == OWN {
            table.error(
                &name.span,
                format!("`name` is \"{OWN}\""),
                "that means the service's own backends: choose another",
            );
        }
        name.value != OWN
    });
    let (algorithm, hash_name) = balance::read(table, Some(spoken), Some(&of.service));
    let all_down = table.choice("all_down").unwrap_or(of.service.all_down);
    let is_ipv6 = !of.service.endpoint.address.is_ipv4();
    let backends = read_backends(sink, table, &reference::GROUP_BACKEND, is_ipv6);
    if backends.is_none() {
        let remedy = "add backends = [\"10.0.2.11:8080\"] or a [[service.group.backend]]";
        sink.error(&table.span, "the group has no backend", remedy);
    }
    let Backends { listed, named } = backends.unwrap_or_default();
    warn_of_weights(table, algorithm, &named);
    let health_table = table.table("health", &reference::GROUP_HEALTH);
    let health = match table.has("health") {
        true => health::read(sink, &health_table, Some(spoken)),
        false => of.settings.health.clone(),
    };
    backend_tls::refuse(table, spoken, &of.service.name);
    let http2 = match backend_tls::read_protocol(table) {
        Some(http2) => http2 && spoken.is_http(),
        None => of.settings.backend_http2,
    };
    let (tls, tls_said) = match table.has("backend_tls") && spoken.is_http() {
        true => backend_tls::read(table, &reference::GROUP_BACKEND_TLS, http2),
        false => {
            let of_service = of.settings.backend_tls.clone();
            (of_service.map(|options| BackendTlsOptions { http2, ..options }), "the service's".to_string())
        }
    };
    // What a group has from its service is judged there.
    let said_here = ["health", "backend_tls", "backend_protocol"].into_iter().find(|part| table.has(part));
    if let Some(part) = said_here {
        let at = if part == "health" { health_table.span_of("check") } else { table.span_of(part) };
        backend_tls::judge_check(table, &at, &health, (spoken, tls.is_some(), http2));
    }
    let name = name?;
    let of_http = [("backend_tls".to_string(), tls_said), backend_tls::said_protocol(http2)];
    let fields = of_http.into_iter().filter(|_| spoken.is_http()).collect();
    let draft = ServiceDraft {
        service: Service {
            name: format!("{}/{}", of.service.name, name.value).into(),
            endpoint: Endpoint { address: of.service.endpoint.address, port: 0 },
            kind: Kind::Group,
            algorithm,
            hash_name,
            all_down,
            faulty: health.faulty(),
            is_recorded: false,
            ..of.service.clone()
        },
        settings: ServiceSettings {
            access_log: None,
            access: None,
            limits: Box::default(),
            route_count: 0,
            health,
            outlier: outlier::read(table, &reference::GROUP_OUTLIER, Some(spoken), of.settings.outlier),
            queue: queue::read(table, &reference::GROUP_QUEUE, of.settings.queue),
            said: HttpSections { fields, ..Default::default() },
            https: None,
            backend_tls: tls,
            backend_http2: http2,
            listed: listed.len(),
            named,
        },
        backends: listed,
        name: name.span.clone(),
        listen: table.span.clone(),
        mode: of.mode.clone(),
        balance: table.span_of("balance"),
        unknown: of.unknown.clone(),
        acme: of.acme.clone(),
        passive: if table.has("health") { health_table.span_of("passive") } else { of.passive.clone() },
        says_balance: false,
        says_unknown: false,
        routes_of: None,
    };
    Some((draft, name))
}
