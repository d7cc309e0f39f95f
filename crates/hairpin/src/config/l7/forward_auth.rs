//! Reads `[service.forward_auth]` and `[service.route.forward_auth]`: the server that is asked whether requests may go on.

use super::super::reader::TomlTable;
use super::super::reference::{self, ReferenceSection};
use super::Targets;
use super::conditions::header_name;
use hairpin_core::l7::config::{Action, ForwardAuth, Route};
use std::sync::Arc;

/// The field, in a service and in a route.
const FIELD: &str = "forward_auth";
/// Fields that say how a message comes, and are no answer's to give.
const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Who is asked of the requests of a service or route. `None`: they go on without.
pub(super) type Asked = Option<Arc<ForwardAuth>>;

/// That of the service.
pub(super) fn of_service(service: &TomlTable<'_>, targets: &Targets, is_terminated: bool) -> Asked {
    read(service, &reference::FORWARD_AUTH, targets, is_terminated).flatten()
}

/// That of a route that has the table.
pub(super) fn of_route(route: &TomlTable<'_>, targets: &Targets, is_terminated: bool) -> Option<Asked> {
    read(route, &reference::ROUTE_FORWARD_AUTH, targets, is_terminated)
}

fn read(
    of: &TomlTable<'_>,
    section: &'static ReferenceSection,
    targets: &Targets,
    is_terminated: bool,
) -> Option<Asked> {
    if !of.has(FIELD) {
        return None;
    }
    if !is_terminated {
        let what = format!("`{FIELD}` is given, but connections of the service are spliced, where no request can wait");
        of.error(&of.span_of(FIELD), what, "leave it out: it is for HTTPS services, and for those with `http2`");
        return None;
    }
    let table = of.table(FIELD, section);
    if !table.boolean("enabled") {
        return Some(None);
    }
    if !table.has("group") {
        if !table.is_in_parts() {
            let remedy = "name the group whose backends are asked: group = \"auth\"";
            table.error(&table.span, format!("there is no `group` in {}", section.header), remedy);
        }
        return None;
    }
    let path = table.text("path")?;
    let is_path =
        |path: &str| path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !is_path(&path.value) {
        let what = format!("`path` is {:?}", path.value);
        table.error(&path.span, what, "write what follows the host, such as \"/check\"");
        return None;
    }
    let mut copied: Vec<Box<[u8]>> = Vec::new();
    for name in table.texts("copy_headers") {
        let lower = name.value.to_ascii_lowercase();
        let wrong = match header_name(&lower) {
            Err(right) => right,
            Ok(()) if FRAMING.contains(&&*lower) => "fields that say how a request comes are not copied: leave it out",
            Ok(()) => {
                copied.push(lower.into_bytes().into());
                continue;
            }
        };
        table.error(&name.span, format!("`copy_headers` has \"{}\"", name.value), wrong);
    }
    let group = targets.one(&table)?;
    let (path, timeout) = (path.value.into_bytes().into(), table.duration("timeout"));
    Some(Some(Arc::new(ForwardAuth { group, path, timeout, copied: copied.into() })))
}

/// Gives each route that leads to backends who is asked of its requests, and takes from those what only the answer may give
/// them. `own`: what the routes have themselves; those behind them, and those that have nothing, have that of the service.
pub(super) fn apply(of_service: &Asked, own: &[Option<Asked>], routes: &mut [Route]) {
    for (at, route) in routes.iter_mut().enumerate() {
        let asked = own.get(at).and_then(Option::as_ref).unwrap_or(of_service);
        if let (Some(asked), Action::Forward { .. }) = (asked, &route.action) {
            let edits = &mut route.edits.request;
            edits.remove = edits.remove.iter().chain(&*asked.copied).cloned().collect();
            route.terms.asks = Some(Arc::clone(asked));
        }
    }
}
