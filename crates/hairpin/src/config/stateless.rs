//! Settings that a file may not have when connections are not tracked (`connection_table` is `stateless` or `maglev`).

use super::service::ServiceDraft;
use super::words::spoken;
use super::{PolicyChoice, Settings};
use hairpin_core::config::{Algorithm, Forwarding};
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::table::LookupMethod;
use hairpin_diagnostics::Sink;
use std::collections::HashMap;
use std::ops::Range;

/// Refuses what needs connections to be tracked, and sets what follows from the method. `at`: where that is named.
pub(super) fn check(sink: &Sink<'_>, at: &Range<usize>, settings: &Settings, drafts: &mut [ServiceDraft]) {
    let table = settings.connection_table;
    if settings.policy != PolicyChoice::Never {
        let what = format!("connections are offloaded, but `connection_table = \"{}\"` tracks none", table.name());
        let remedy = "write policy = \"never\" in [offload], or choose a table that tracks connections";
        sink.error(at, what, remedy);
    }
    let mut ends: HashMap<(Endpoint, Protocol), String> = HashMap::new();
    for draft in drafts.iter_mut() {
        service(sink, table, draft);
        backends(sink, table, draft, &mut ends);
        draft.service.algorithm = match table {
            LookupMethod::Maglev => Algorithm::Maglev,
            _ => Algorithm::RoundRobin,
        };
    }
}

fn service(sink: &Sink<'_>, table: LookupMethod, draft: &ServiceDraft) {
    let name = &draft.service.name;
    let tracks_none = format!("`connection_table = \"{}\"` tracks no connections", table.name());
    if draft.service.kind.is_group() {
        return;
    }
    if draft.service.kind.is_layer7() {
        let what = format!("service \"{name}\" is {}, but {tracks_none}", spoken(&draft.service));
        sink.error(&draft.listen, what, "use a table that tracks connections");
    } else if draft.service.forwarding == Forwarding::FullNat {
        let what = format!("service \"{name}\" is full-nat, but {tracks_none}, and so no ports of the pool");
        sink.error(&draft.mode, what, "use mode = \"nat\", or a table that tracks connections");
    }
    if draft.service.forwarding == Forwarding::Direct && !draft.service.kind.is_layer7() {
        let what = format!("service \"{name}\" is dsr, but {tracks_none}");
        sink.error(&draft.mode, what, "use mode = \"nat\", or a table that tracks connections");
    }
    if draft.says_balance && (table, draft.service.algorithm) != (LookupMethod::Maglev, Algorithm::Maglev) {
        let what = format!("service \"{name}\" says how new connections are balanced, but {tracks_none}");
        sink.error(&draft.balance, what, "leave `balance` out: the table's name says how packets are spread");
    }
    if draft.says_unknown {
        let what = format!("service \"{name}\" says what becomes of unknown packets, but {tracks_none}");
        sink.error(&draft.unknown, what, "leave `unknown` out: every packet is sent on");
    }
    if draft.settings.access.is_some() {
        let what = format!("service \"{name}\" has access rules, but {tracks_none}, so that none can be seen to begin");
        sink.error(&draft.listen, what, "leave `access` out, or use a table that tracks connections");
    }
    if !draft.settings.limits.is_empty() {
        let what = format!("service \"{name}\" has limits of clients, but {tracks_none}, so that none can be counted");
        sink.error(&draft.listen, what, "leave `limit` out, or use a table that tracks connections");
    }
    if !draft.settings.named.is_empty() {
        let what = format!("service \"{name}\" has backends by name, but {tracks_none}");
        sink.error(&draft.listen, what, "name addresses, or use a table that tracks connections");
    }
    if draft.settings.outlier.is_some() {
        let what = format!("service \"{name}\" ejects outliers, but {tracks_none}");
        sink.error(&draft.listen, what, "leave `outlier` out, and use `check` of [service.health]");
    }
    if draft.settings.health.passive.is_some() {
        let what = format!("service \"{name}\" counts clients' connections that fail, but {tracks_none}");
        sink.error(&draft.passive, what, "leave `passive` out, and use `check`");
    }
}

/// An answer's source must say which service it is of.
fn backends(
    sink: &Sink<'_>,
    table: LookupMethod,
    draft: &ServiceDraft,
    ends: &mut HashMap<(Endpoint, Protocol), String>,
) {
    for backend in &draft.backends {
        let end = backend.value.endpoint;
        let name = draft.service.name.to_string();
        if let Some(other) = ends.insert((end, draft.service.protocol), name).filter(|o| **o != *draft.service.name) {
            let what = format!("backend {end} is in services \"{other}\" and \"{}\"", draft.service.name);
            let remedy = format!(
                "with `connection_table = \"{}\"` nothing tells which of them its answers belong to: give it a port for \
                 each",
                table.name()
            );
            sink.error(&backend.span, what, remedy);
        }
    }
}
