//! Reads routes and access rules of HTTP services.

use super::super::reader::TomlTable;
use super::super::reference;
use super::super::words::{AccessAction, SettingWord, Spoken};
use super::basic::{self, Basic, RouteUsers};
use super::conditions::{self, FIELDS};
use super::{ROUTES_MAX, Targets, bounded, cors, edits, forward_auth, is_terminated, number, pages};
use crate::health::StatusRanges;
use hairpin_core::l7::config::{Action, Edits, Mirror, Route, RouteTerms};
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{Access, AccessVerdict, Conditions};
use hairpin_core::l7::{edit, reply, route};
use hairpin_diagnostics::LineName;
use hairpin_https::{Cors, ErrorPages, ServicePages};

/// The actions of a route; it has exactly one.
const TARGETS: [&str; 4] = ["group", "groups", "redirect", "reply"];
/// Bytes of a reply's body at most.
pub(crate) const BODY_BYTES_MAX: usize = 4096;

/// What routes have beside what the core knows of them: CORS, users and error pages.
pub(super) type Beside = (Vec<Option<Cors>>, RouteUsers, ServicePages);

/// The routes of a service, in the end one with the action `rest` for what the others do not take; how they are written; and
/// what each has beside. `of_service`: the service's users.
pub(super) fn read(
    service: &TomlTable<'_>,
    spoken: Spoken,
    targets: &Targets,
    (rest, of_service): (Option<Action>, &Basic),
) -> (Box<[Route]>, Vec<String>, Beside) {
    let tables = service.tables("route", &reference::ROUTE);
    bounded(service, "route", tables.len(), ROUTES_MAX);
    let certificates = edits::Certificates::of(service, spoken);
    let is_terminated = is_terminated(service, spoken);
    let default = cors::read(service, &reference::CORS, is_terminated);
    let mut cors = Vec::new();
    let pages_own = pages::read(service, &Default::default(), is_terminated);
    let mut pages = Vec::new();
    let mut all_taken = None;
    let of_all = forward_auth::of_service(service, targets, is_terminated);
    let mut asked = Vec::with_capacity(tables.len());
    let mut own = Vec::with_capacity(tables.len());
    let mut routes: Vec<Route> = Vec::new();
    for table in &tables {
        only(table, &["sni", "alpn"], spoken.word(), "say `host` for the name asked for");
        if let Some(line) = &all_taken {
            never_taken(table, line);
        }
        let conditions = conditions::read(table);
        if conditions == Conditions::default() && !FIELDS.iter().any(|field| table.has(field)) {
            all_taken.get_or_insert(table.line(table.span.start));
        }
        let edits = Edits {
            request: edits::requests(table, &reference::EDITS, certificates),
            response: edits::responses(table, &reference::RESPONSE_EDITS, certificates),
        };
        let mut terms = terms(table, is_terminated);
        if table.has("mirror") {
            let Some(mirror) = mirror(table, targets) else { continue };
            terms.mirror = Some(mirror);
        }
        own.push(basic::of_route(table, spoken, &targets.service));
        let of_own = forward_auth::of_route(table, targets, is_terminated);
        if terms.mirror.is_some() && of_own.as_ref().unwrap_or(&of_all).is_some() {
            let what = "`mirror` is given, but a server is asked of the route's requests (`forward_auth`)";
            let remedy = "those are not copied: leave `mirror` out, or write forward_auth.enabled = false";
            table.error(&table.span_of("mirror"), what, remedy);
        }
        asked.push(of_own);
        let of_route = cors::of_route(table, &conditions, default.as_ref(), is_terminated);
        pages.push(pages::read(table, &pages_own, is_terminated));
        if let Some(action) = action(table, targets) {
            cors.push(of_route.filter(|_| matches!(action, Action::Forward { .. })));
            routes.push(Route { conditions, action, edits, terms });
        }
    }
    let are_right = routes.len() == tables.len();
    let rest = rest.map(|action| Route {
        conditions: Conditions::default(),
        action,
        edits: Edits::default(),
        terms: RouteTerms::default(),
    });
    cors.extend(rest.iter().map(|_| default.clone()));
    routes.extend(rest);
    forward_auth::apply(&of_all, &asked, &mut routes);
    let groups = routes.iter().flat_map(|route| match &route.action {
        Action::Forward { groups, .. } => &groups[..],
        Action::Redirect { .. } | Action::Reply { .. } => &[],
    });
    let mirrored = routes.iter().filter_map(|route| route.terms.mirror.map(|mirror| mirror.group));
    // A service's may be asked of no route.
    let asked = of_all.iter().chain(asked.iter().flatten().flatten()).map(|asked| asked.group);
    let used: Vec<_> = groups.map(|(group, _)| *group).chain(mirrored).chain(asked).collect();
    targets.warn_unused(service, are_right.then_some(&used));
    let users = basic::apply(of_service, &own, &mut routes);
    let said = |((table, own), of_route): ((&TomlTable<'_>, &Option<Basic>), &ErrorPages)| {
        let basic = own.as_ref().map(|own| format!(": basic {}", own.said)).unwrap_or_default();
        let pages = pages::said(table, of_route).map(|said| format!(": error_pages {said}")).unwrap_or_default();
        format!("{}{basic}{pages}", written(table))
    };
    let said = tables.iter().zip(&own).zip(&pages).map(said).collect();
    let pages = ServicePages { own: pages_own, routes: pages.into() };
    (routes.into(), said, (cors, users, pages))
}

/// What holds for a route's requests. `is_terminated`: whether the service's connections end here.
fn terms(table: &TomlTable<'_>, is_terminated: bool) -> RouteTerms {
    for field in ["body_timeout", "mirror", "priority", "retry_status"].into_iter().filter(|field| table.has(field)) {
        if !is_terminated {
            let what =
                format!("`{field}` is given, but connections of the service are spliced, which keeps no request");
            table.error(
                &table.span_of(field),
                what,
                "leave it out: it is for HTTPS services, and for those with `http2`",
            );
        }
    }
    let text = table.text("retry_status");
    let statuses = text.as_ref().and_then(|text| match text.value.parse::<StatusRanges>() {
        Ok(statuses) if (100..500).any(|status| statuses.contains(status)) => {
            let what = format!("`retry_status` is \"{statuses}\"");
            table.error(
                &text.span,
                what,
                "statuses below 500 are answers to the request: write numbers from 500 to 599",
            );
            None
        }
        Ok(statuses) => Some((500..600).filter(|status| statuses.contains(*status)).collect()),
        Err(wrong) => {
            table.error(&text.span, format!("`retry_status`: {wrong}"), "");
            None
        }
    });
    if is_terminated && table.has("retries") && !table.has("retry_status") {
        let what = "`retries` means nothing without `retry_status`";
        table.warning(&table.span_of("retries"), what, "say for which statuses, such as retry_status = \"502-504\"");
    }
    RouteTerms {
        response_timeout: table.duration_given("response_timeout"),
        body_timeout: table.duration_given("body_timeout"),
        retries: if statuses.is_some() { number(table, "retries") } else { 0 },
        retry_status: statuses.unwrap_or_default(),
        priority: number(table, "priority"),
        mirror: None,
        asks: None,
    }
}

/// Where copies of a route's requests go. `None`: something is wrong and has been reported.
fn mirror(table: &TomlTable<'_>, targets: &Targets) -> Option<Mirror> {
    let mirror = table.table("mirror", &reference::MIRROR);
    if !mirror.has("group") {
        mirror.missing("group");
        return None;
    }
    let group = targets.one(&mirror)?;
    Some(Mirror { group, percent: number(&mirror, "percent"), concurrent: number(&mirror, "concurrent") })
}

/// How a route or rule is written.
pub(super) fn written(table: &TomlTable<'_>) -> String {
    let written = table.written();
    if written.is_empty() { "all to the service's own backends".to_string() } else { written }
}

/// Warns of a route behind one that takes everything.
pub(super) fn never_taken(table: &TomlTable<'_>, line: &LineName) {
    table.warning(&table.span, "the route is never taken", format!("the one on line {line} takes all: put it last"));
}

/// Reports fields that only the other kind of service has.
pub(in crate::config) fn only(table: &TomlTable<'_>, fields: &[&str], spoken: &str, remedy: &str) {
    for field in fields.iter().filter(|field| table.has(field)) {
        let what = format!("`{field}` is given, but the service is {spoken}");
        table.error(&table.span_of(field), what, remedy);
    }
}

/// The access rules of a service, and how they are written.
pub(super) fn read_access(service: &TomlTable<'_>, spoken: Spoken) -> (Box<[Access]>, Vec<String>) {
    let tables = service.tables("access", &reference::ACCESS);
    bounded(service, "access", tables.len(), ROUTES_MAX);
    let rule = |table: &TomlTable<'_>| {
        if !table.has("action") {
            table.missing("action");
        }
        only(table, &["client_file"], spoken.word(), "that is for tcp, udp and tls services: use `client`");
        let status = number(table, "status");
        let conditions = conditions::read(table);
        let strict = table.boolean("strict");
        if strict && conditions.paths.is_empty() {
            let what = "`strict` means nothing where no path is asked for";
            table.warning(&table.span_of("strict"), what, "leave it out, or add `path`, `path_prefix` or `path_regex`");
        }
        let verdict = match table.choice("action")? {
            AccessAction::Allow if table.has("status") => {
                let what = "`status` means nothing where requests pass";
                table.warning(&table.span_of("status"), what, "leave it out");
                AccessVerdict::Allow
            }
            AccessAction::Allow => AccessVerdict::Allow,
            AccessAction::Deny => AccessVerdict::Deny { status },
            AccessAction::Count => {
                let what = format!("`action` is \"count\", but the service is {}", spoken.word());
                let remedy = "that is for tcp, udp and tls services: the access log shows what a rule would deny";
                table.error(&table.span_of("action"), what, remedy);
                return None;
            }
        };
        Some(Access { conditions, verdict, strict })
    };
    let access = tables.iter().filter_map(rule).collect();
    (access, tables.iter().map(TomlTable::written).collect())
}

/// The action of a route; `None` if it is wrong.
fn action(table: &TomlTable<'_>, targets: &Targets) -> Option<Action> {
    let given: Vec<&str> = TARGETS.into_iter().filter(|target| table.has(target)).collect();
    if let [first, second, ..] = given[..] {
        let what = format!("the route has `{first}` and `{second}`");
        table.error(&table.span_of(second), what, "it can lead to one of them: leave the other out");
        return None;
    }
    let replace_prefix = replace_prefix(table);
    let redirect = table.table("redirect", &reference::REDIRECT);
    let reply = table.table("reply", &reference::REPLY);
    match given.first() {
        Some(&"redirect") => {
            answers_itself(table);
            read_redirect(&redirect)
        }
        Some(&"reply") => {
            answers_itself(table);
            read_reply(&reply)
        }
        _ => Some(Action::Forward { groups: targets.of(table)?, replace_prefix }),
    }
}

/// Reports what means nothing where no request goes on.
fn answers_itself(table: &TomlTable<'_>) {
    const OF_BACKENDS: [&str; 11] = [
        "mirror",
        "basic",
        "forward_auth",
        "replace_prefix",
        "request_headers",
        "response_headers",
        "response_timeout",
        "body_timeout",
        "retry_status",
        "retries",
        "cors",
    ];
    for field in OF_BACKENDS.iter().filter(|field| table.has(field)) {
        let what = format!("`{field}` means nothing where Hairpin answers by itself");
        table.error(&table.span_of(field), what, "leave it out");
    }
}

fn replace_prefix(table: &TomlTable<'_>) -> Option<Box<[u8]>> {
    let text = table.text("replace_prefix")?;
    let replaces = (table.has("path_prefix") || table.has("path")) && !table.has("path_regex");
    if !replaces {
        let what = "`replace_prefix` replaces the `path_prefix` or `path` of its route, and there is none";
        table.error(&text.span, what, "add one, without `path_regex`");
    }
    match PathPattern::prefix(&text.value) {
        Ok(route::path::PathPattern::Prefix(prefix)) => Some(prefix),
        Ok(_) => None,
        Err(right) => {
            table.error(&text.span, format!("`replace_prefix` is \"{}\"", text.value), right);
            None
        }
    }
}

fn read_redirect(table: &TomlTable<'_>) -> Option<Action> {
    let status: u16 = number(table, "status");
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        let what = format!("`status` is {status}, which is no redirect");
        table.error(&table.span_of("status"), what, "use 301, 302, 303, 307 or 308");
    }
    if !table.has("location") {
        table.missing("location");
    }
    let text = table.text("location")?;
    let location = edit::location(&text.value);
    let wrong = |right: &&str| table.error(&text.span, format!("`location` is \"{}\"", text.value), *right);
    Some(Action::Redirect { status, location: location.inspect_err(wrong).ok()? })
}

fn has_body(status: u16) -> bool {
    !matches!(status, 204 | 205 | 304)
}

fn read_reply(table: &TomlTable<'_>) -> Option<Action> {
    if !table.has("status") {
        table.missing("status");
        return None;
    }
    let status: u16 = number(table, "status");
    if !table.has("body") {
        let body = if has_body(status) { reply::text(status) } else { "" };
        return Some(Action::Reply { status, body: body.as_bytes().into() });
    }
    let body = table.text("body")?;
    if body.value.len() > BODY_BYTES_MAX {
        let what = format!("`body` has {} bytes", body.value.len());
        table.error(&body.span, what, format!("have {BODY_BYTES_MAX} at most"));
    }
    if !has_body(status) && !body.value.is_empty() {
        table.error(&body.span, format!("a response with status {status} has no body"), "leave `body` out");
    }
    Some(Action::Reply { status, body: body.value.into_bytes().into() })
}
