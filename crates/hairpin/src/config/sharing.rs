//! `routes_of`: a service that does with requests what another one does.
//!
//! It takes the other's access rules, routes, groups, own backends and `[service.http]`. Routes name groups by number, so
//! the backends of both are the same ones: checked once, counted once, and disabled in one place.

use super::reader::TomlTable;
use super::service::ServiceDraft;
use super::{access_log, l7, nearest, reference};
use hairpin_core::config::{Forwarding, Service};
use hairpin_core::l7::config::{Action, Http, Kind};
use hairpin_diagnostics::{At, Sink};
use std::ops::Range;

/// The field.
pub(super) const FIELD: &str = "routes_of";

/// What the service would say of requests and backends itself.
const SAID_THERE: [&str; 17] = [
    "route",
    "cors",
    "error_pages",
    "access",
    "group",
    "backends",
    "backend",
    "health",
    "outlier",
    "queue",
    "basic",
    "forward_auth",
    "balance",
    "hash_name",
    "all_down",
    "backend_tls",
    "backend_protocol",
];
/// The fields of `[service.http]` that are about clients' connections, not about requests.
const OWN_HTTP: [&str; 3] = ["http2", "offload_bytes_min", "timestamps"];

/// The name of the service that this one follows. Reports what it says beside that.
pub(super) fn read(table: &TomlTable<'_>) -> Option<At<String>> {
    let of = table.text(FIELD).filter(|_| table.has(FIELD))?;
    let also = |field: &str, place: &str, at: Range<usize>| {
        let what = format!("`{field}` is given{place} beside `{FIELD}`");
        table.error(&at, what, format!("it is what service \"{}\" says: leave it out here", of.value));
    };
    for field in SAID_THERE.into_iter().filter(|field| table.has(field)) {
        also(field, "", table.span_of(field));
    }
    // What is wrong in it is reported where it is read.
    let http = table.given("http").and_then(|http| http.get_ref().as_table());
    for (field, value) in http.into_iter().flat_map(|http| http.iter()) {
        let field = field.get_ref().as_ref();
        if !OWN_HTTP.contains(&field) && reference::HTTP.field(field).is_some() {
            also(field, " in [service.http]", value.span());
        }
    }
    Some(of)
}

/// Whether a service that follows another one says this field itself, of those that a change of is told.
pub(super) fn is_own(field: &str) -> bool {
    !["cors", "error_pages", "forward_auth"].contains(&field)
        && field.strip_prefix("http.").is_none_or(|field| OWN_HTTP.contains(&field))
}

/// Gives each service that follows another one what that does with requests.
pub(super) fn resolve(sink: &Sink<'_>, drafts: &mut [ServiceDraft]) {
    for at in 0..drafts.len() {
        let Some(of) = drafts[at].routes_of.clone() else { continue };
        let found = drafts.iter().position(|draft| !draft.service.kind.is_group() && *draft.service.name == *of.value);
        match found {
            None if sink.is_in_parts() => {}
            None => unknown(sink, drafts, &of),
            Some(other) => {
                if let Some(http) = checked(sink, drafts, (at, other), &of) {
                    follow(drafts, (at, other), http);
                    access_log::judge_routes(sink, &of.span, &drafts[at].settings);
                }
            }
        }
    }
}

fn unknown(sink: &Sink<'_>, drafts: &[ServiceDraft], of: &At<String>) {
    let routed = drafts.iter().filter(|draft| draft.service.kind.http().is_some() && draft.routes_of.is_none());
    let names: Vec<&str> = routed.map(|draft| &*draft.service.name).collect();
    let remedy = match nearest(&of.value, &names) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if names.is_empty() => "name an http or https service".to_string(),
        None => format!("there are \"{}\"", names.join("\", \"")),
    };
    sink.error(&of.span, format!("`{FIELD}` names \"{}\", and no service is called so", of.value), remedy);
}

/// What the service `at` is to do with requests; `None`: that cannot be, and is reported.
fn checked(sink: &Sink<'_>, drafts: &[ServiceDraft], (at, other): (usize, usize), of: &At<String>) -> Option<Http> {
    let (draft, owner) = (&drafts[at], &drafts[other]);
    let refuse = |what: String, remedy: &str| {
        sink.error(&of.span, format!("`{FIELD}` names service \"{}\", {what}", of.value), remedy);
        None
    };
    if at == other {
        return refuse("which is this one".to_string(), "name another one, or leave it out");
    }
    if let Some(next) = &owner.routes_of {
        let remedy = format!("name that one: {FIELD} = \"{}\"", next.value);
        return refuse(format!("which follows service \"{}\" itself", next.value), &remedy);
    }
    let Some(http) = owner.service.kind.http() else {
        return refuse("which has no requests".to_string(), "name an http or https service");
    };
    if draft.service.endpoint.address.is_ipv4() != owner.service.endpoint.address.is_ipv4() {
        return refuse(
            "whose VIP is of another address family".to_string(),
            "backends are of their VIP's family: write routes for each",
        );
    }
    let is_spliced = !draft.service.kind.is_terminated();
    let is_more = |part: &ServiceDraft| part.settings.backend_tls.is_some() || part.settings.backend_http2;
    if is_spliced && parts(drafts, other).any(is_more) {
        return refuse(
            "which speaks TLS or HTTP/2 with backends".to_string(),
            "connections that are spliced carry neither: give it backends of its own, or make it https",
        );
    }
    if is_spliced && parts(drafts, other).any(|part| part.settings.queue.is_some()) {
        return refuse(
            "which has a queue".to_string(),
            "requests of connections that are spliced cannot wait: leave `queue` out there, or make this one https",
        );
    }
    if is_spliced && owner.settings.said.cors.iter().any(Option::is_some) {
        return refuse(
            "which has CORS".to_string(),
            "responses of connections that are spliced get none of its fields: leave `cors` out there, or make this one https",
        );
    }
    if is_spliced && http.routes.iter().any(|route| route.terms.asks.is_some()) {
        return refuse(
            "which asks a server of each request (`forward_auth`)".to_string(),
            "requests of connections that are spliced cannot wait: leave it out there, or make this one https",
        );
    }
    if is_spliced && http.routes.iter().any(|route| route.terms.mirror.is_some()) {
        return refuse(
            "which has requests copied (`mirror`)".to_string(),
            "those of connections that are spliced are not: leave it out there, or make this one https",
        );
    }
    if is_spliced && !owner.settings.said.pages.is_empty() {
        return refuse(
            "which has error pages".to_string(),
            "responses of connections that are spliced have none: leave `error_pages` out there, or make this one https",
        );
    }
    if draft.settings.https.is_none() && !owner.settings.said.basic.is_empty() {
        return refuse(
            "which asks for passwords (`basic`)".to_string(),
            "they go over TLS only: make this one https, or have it redirect with `redirect_to_https`",
        );
    }
    if draft.settings.https.is_some() && l7::redirects_said(&owner.settings.said) {
        return refuse(
            "which redirects to https".to_string(),
            "clients would be redirected here again and again: write the routes here",
        );
    }
    if draft.settings.https.is_none() && http.sticky.as_ref().is_some_and(l7::is_secure) {
        let what = format!("the cookie of service \"{}\" is `secure`: over http, browsers do not take it", of.value);
        sink.warning(&of.span, what, "write secure = false there, or have http clients redirected");
    }
    Some(http.clone())
}

/// A service and its groups, which stand behind it.
fn parts(drafts: &[ServiceDraft], first: usize) -> impl Iterator<Item = &ServiceDraft> {
    let groups = drafts[first + 1..].iter().take_while(|draft| draft.service.kind.is_group());
    drafts[first..=first].iter().chain(groups)
}

fn follow(drafts: &mut [ServiceDraft], (at, other): (usize, usize), http: Http) {
    let route_count = drafts[other].settings.said.routes.len() as u16;
    drafts[at].settings.route_count = route_count;
    drafts[at].settings.said.cors = drafts[other].settings.said.cors.clone();
    drafts[at].settings.said.pages = drafts[other].settings.said.pages.clone();
    drafts[at].settings.said.basic = drafts[other].settings.said.basic.clone();
    let service = &mut drafts[at].service;
    let is_spliced = !service.kind.is_terminated();
    match &mut service.kind {
        Kind::Http(own) => {
            let (offload_bytes_min, timestamps) = (own.offload_bytes_min, own.timestamps);
            **own = Http { offload_bytes_min, timestamps, ..http };
        }
        Kind::Terminated(own) => own.http = http,
        Kind::Forward | Kind::Tls(_) | Kind::Group => {}
    }
    if is_spliced {
        // Connections of a splice to backends have addresses and ports of the pool, for which each backend needs its own.
        let behind = drafts[other + 1..].iter().take_while(|draft| draft.service.kind.is_group()).count();
        let from_pool = |draft: &mut ServiceDraft| draft.service.forwarding = Forwarding::FullNat;
        drafts[other..=other + behind].iter_mut().for_each(from_pool);
    }
}

/// The numbers of the services and groups whose backends requests of this service go to, beside its own.
pub(crate) fn led_to(service: &Service) -> impl Iterator<Item = u16> {
    let routes = service.kind.http().map_or(&[][..], |http| &http.routes);
    let groups = routes.iter().flat_map(|route| match &route.action {
        Action::Forward { groups, .. } => &groups[..],
        Action::Redirect { .. } | Action::Reply { .. } => &[],
    });
    let aside = routes.iter().flat_map(|route| {
        let asked = route.terms.asks.as_ref().map(|asks| asks.group);
        asked.into_iter().chain(route.terms.mirror.map(|mirror| mirror.group))
    });
    groups.map(|(group, _)| *group).chain(aside)
}
