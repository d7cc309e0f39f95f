//! Heads of requests that go to backends.

use super::super::config::{Action, Http, Route};
use super::super::head::{Form, Request, Version};
use super::super::route::normal::{PathReading, PathScratch, behind, normalise};
use super::forwarded::Teller;
use super::marks::Marks;
use super::plan::EditPlan;
use super::{Facts, Meaning, NoRoom, Out, forwards_left, hops, query};

/// Writes the head of `request` that goes to a backend, for the `route` that [`decide`](super::super::route::decide)
/// has found, and says how long it is. `facts.sticky`, `close_client` and `chosen_in_us` do not matter.
///
/// # Errors
/// It does not fit in `out`. (Or the request's path is one that `decide` refuses, and a prefix of it was to be
/// replaced.)
pub fn request_head(
    out: &mut [u8],
    request: &Request<'_>,
    http: &Http,
    route: &Route,
    facts: &Facts<'_>,
) -> Result<usize, NoRoom> {
    let mut out = Out::new(out);
    let plan = EditPlan::new(&http.edits.request, &route.edits.request);
    let meaning = Meaning { facts, request: Some(request) };
    out.put(request.method_bytes);
    out.put(b" ");
    target(&mut out, request, route)?;
    out.put(if request.version == Version::Http10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    match (plan.host(), request.host) {
        (Some(host), _) => meaning.field(&mut out, b"Host", &host.value),
        (None, Some(host)) => out.field(b"Host", host),
        (None, None) => {}
    }
    let teller = Teller::new(&http.forwarded, facts);
    let marks = Marks::new(http, request, facts);
    let upgrades = request.upgrade && http.upgrade;
    let is_ours = |name: &[u8]| teller.drops(name) || marks.as_ref().is_some_and(|marks| marks.drops(name));
    for (name, value) in request.fields.iter() {
        if goes_on(request, name, upgrades) && !is_ours(name) && (plan.is_empty() || !plan.drops(name)) {
            out.field(name, value);
        }
    }
    if let Ok(Some(forwards)) = forwards_left(request) {
        out.put(b"Max-Forwards: ");
        out.number(forwards.saturating_sub(1));
        out.put(b"\r\n");
    }
    teller.write(&mut out, request, facts, &plan);
    marks.iter().for_each(|marks| marks.write(&mut out, &plan));
    plan.write(&mut out, &meaning);
    if upgrades {
        out.put(b"Connection: upgrade\r\n");
    } else if request.version == Version::Http10 && request.keep_alive {
        out.put(b"Connection: keep-alive\r\n");
    }
    out.put(b"\r\n");
    out.end()
}

/// The target: what the client asked for, in origin form; with the route's prefix replaced if it says so.
fn target(out: &mut Out<'_>, request: &Request<'_>, route: &Route) -> Result<(), NoRoom> {
    let target = &request.target;
    if target.form == Form::Authority {
        out.put(target.whole);
        return Ok(());
    }
    match &route.action {
        Action::Forward { replace_prefix: Some(prefix), .. } if target.path.starts_with(b"/") => {
            replaced(out, target.path, prefix, route)?;
        }
        _ => out.put(target.path),
    }
    query(out, request);
    Ok(())
}

/// The path with the route's prefix replaced. A slash at the end of both is one: `/api/` replaced by `/v2` makes
/// `/api/x` into `/v2/x`. What comes behind it keeps its empty segments, but a path never begins with two slashes: some
/// would take what follows them for a host.
#[inline(never)]
fn replaced(out: &mut Out<'_>, path: &[u8], prefix: &[u8], route: &Route) -> Result<(), NoRoom> {
    let mut scratch = PathScratch::new();
    let normal = normalise(path, PathReading::WRITTEN, &mut scratch).map_err(|_| NoRoom)?;
    let Some(bytes) = route.conditions.prefix_bytes(normal) else {
        out.put(path);
        return Ok(());
    };
    let bytes = bytes - usize::from(normal[..bytes].ends_with(b"/"));
    let rest = behind(normalise(path, PathReading::WHOLE, &mut scratch).map_err(|_| NoRoom)?, bytes);
    if rest.is_empty() {
        out.put(prefix);
        return Ok(());
    }
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    out.put(prefix);
    let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
    match slashes {
        0 if prefix.is_empty() => {
            out.put(b"/");
            out.put(rest);
        }
        2.. if prefix.is_empty() => out.put(&rest[slashes - 1..]),
        _ => out.put(rest),
    }
    Ok(())
}

/// Whether the field `name` of the client is for the backend as it is, edits aside.
fn goes_on(request: &Request<'_>, name: &[u8], upgrades: bool) -> bool {
    let is = |own: &[u8]| name.eq_ignore_ascii_case(own);
    match name.len() {
        4 if is(b"host") => false,
        7 if is(b"upgrade") => upgrades,
        12 if is(hops::NAME) && hops::counts(request) => false,
        17 if is(b"transfer-encoding") => true,
        _ => !request.fields.is_hop_by_hop(name),
    }
}
