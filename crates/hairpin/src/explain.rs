//! What would become of a request, and why (`hairpin route`). The code that decides about requests decides here, too.

use crate::config::{Config, HttpSections, ServiceSettings, SettingWord, nearest};
use crate::control::{RouteAnswer, RouteBackend, RouteGroup, RouteQuery, RouteView, RuleView};
use hairpin_core::config::{BackendState, Service, ServiceState};
use hairpin_core::flow::Address;
use hairpin_core::l7::config::{Action, Group, Http, Kind, Route};
use hairpin_core::l7::decision::{self, Verdict};
use hairpin_core::l7::head::{self, ParseStatus, Request};
use hairpin_core::l7::reply;
use hairpin_core::l7::route::AccessVerdict;
use hairpin_core::l7::route::normal::{PathReading, PathScratch, normalise};
use hairpin_core::l7::splice::Refused;
use hairpin_core::limit::Limiting;
use hyper::Uri;
use std::net::IpAddr;

/// Clients are here unless told otherwise.
const CLIENT: &str = "127.0.0.1";
/// Bytes of a request's head at most: what no service takes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a redirection's target at most.
const LOCATION_BYTES_MAX: usize = 64 * 1024;

/// A request that is asked about.
struct Asked {
    /// Its head, as a client would write it.
    head: Vec<u8>,
    host: String,
    port: u16,
    is_https: bool,
    client: Address,
}

impl Asked {
    fn read(query: &RouteQuery) -> Result<Asked, String> {
        let wrong = |what: &str| format!("\"{}\" {what}; write http://HOST/PATH or https://HOST/PATH", query.url);
        let url: Uri = query.url.parse().map_err(|error| wrong(&format!("is no URL ({error})")))?;
        let is_https = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("has no scheme that is known here")),
        };
        let authority = url.authority().ok_or_else(|| wrong("has no host"))?;
        let client = query.client.as_deref().unwrap_or(CLIENT);
        let client: IpAddr = client.parse().map_err(|_| format!("\"{client}\" is no IP address of a client"))?;
        // The crate tells a port beyond 65535 as it tells none.
        let has_port =
            authority.as_str().rsplit([']', '@']).next().is_some_and(|end| end.contains(':') && !end.ends_with(':'));
        let port = match authority.port_u16() {
            Some(port) => port,
            None if has_port => return Err(wrong("has a port that is not in 0..=65535")),
            None if is_https => 443,
            None => 80,
        };
        let target = match &*query.method {
            "CONNECT" => format!("{}:{port}", authority.host()),
            // A query without a path has one behind a slash, as clients write it.
            _ => url.path_and_query().map_or_else(|| "/".to_string(), ToString::to_string),
        };
        if query.method.contains(['\r', '\n']) {
            return Err(format!("\"{}\" is no method", query.method.escape_debug()));
        }
        let names_host = |field: &String| field.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("host"));
        let mut head = format!("{} {target} HTTP/1.1\r\n", query.method);
        if !query.headers.iter().any(names_host) {
            head += &format!("Host: {}\r\n", authority.as_str().rsplit('@').next().unwrap_or_default());
        }
        for field in &query.headers {
            if !field.contains(':') || field.contains(['\r', '\n']) {
                return Err(format!("\"{}\" is no field; write \"Name: value\"", field.escape_debug()));
            }
            head += &format!("{field}\r\n");
        }
        head += "\r\n";
        if head.len() > HEAD_BYTES_MAX {
            return Err(format!("the request's head has {} bytes; {HEAD_BYTES_MAX} are allowed", head.len()));
        }
        Ok(Asked { head: head.into_bytes(), host: authority.host().into(), port, is_https, client: client.into() })
    }
}

/// What each service that the request may reach would do with it, in the file's order.
///
/// # Errors
/// What is wrong with the request, or that no service takes it.
pub(crate) fn explain(config: &Config, query: &RouteQuery) -> Result<RouteAnswer, String> {
    let asked = Asked::read(query)?;
    let services = config.snapshot.services.iter().zip(&config.services);
    let mut found: Vec<_> = services
        .filter(|(service, _)| service.state == ServiceState::Active && takes(service, query, &asked))
        .collect();
    // A host that is a VIP means that one.
    let vip = asked.host.trim_matches(['[', ']']).parse::<IpAddr>().ok().map(Address::from);
    if found.iter().any(|(service, _)| Some(service.endpoint.address) == vip) {
        found.retain(|(service, _)| Some(service.endpoint.address) == vip);
    }
    if found.is_empty() {
        return Err(none(config, query, &asked));
    }
    let judged = |(service, settings): (&Service, &ServiceSettings)| judged(config, service, &settings.said, &asked);
    Ok(RouteAnswer { services: found.into_iter().map(judged).collect() })
}

/// Whether a client that asks for this may reach the service.
fn takes(service: &Service, query: &RouteQuery, asked: &Asked) -> bool {
    let Some(_) = service.kind.http() else { return false };
    match &query.service {
        Some(name) => **name == *service.name,
        None => service.endpoint.port == asked.port && is_https(&service.kind) == asked.is_https,
    }
}

fn is_https(kind: &Kind) -> bool {
    matches!(kind, Kind::Terminated(terminated) if terminated.tls)
}

/// Why no service takes the request.
fn none(config: &Config, query: &RouteQuery, asked: &Asked) -> String {
    let services = || config.snapshot.services.iter().filter(|service| service.kind.http().is_some());
    let Some(name) = &query.service else {
        let kind = if asked.is_https { "https" } else { "http" };
        let ends: Vec<String> = services().map(|service| format!("{} ({})", service.name, service.endpoint)).collect();
        let ends = if ends.is_empty() { "there are none".to_string() } else { ends.join(", ") };
        return format!("no {kind} service listens on port {}; services of HTTP: {ends}", asked.port);
    };
    match nearest(name, &services().map(|service| &*service.name).collect::<Vec<_>>()) {
        Some(other) => format!("no http or https service is named \"{name}\"; did you mean \"{other}\"?"),
        None => format!("no http or https service is named \"{name}\""),
    }
}

/// What this service would do with the request.
fn judged(config: &Config, service: &Service, said: &HttpSections, asked: &Asked) -> RouteView {
    let mut view =
        RouteView { service: service.name.to_string(), listen: service.endpoint.to_string(), ..RouteView::default() };
    let Some(http) = service.kind.http() else { return view };
    let request = match head::request(&asked.head, &http.limits.head_bounds()) {
        Ok(ParseStatus::Complete(request)) => request,
        Ok(ParseStatus::Partial) => {
            refused(&mut view, 400, Refused::Malformed);
            return view;
        }
        Err(bad) => {
            let (status, why) = decision::of_bad_head(bad);
            refused(&mut view, status, why);
            return view;
        }
    };
    let mut scratch = PathScratch::new();
    let path = normalise(request.target.path, PathReading::WRITTEN, &mut scratch).ok();
    view.access = path.and_then(|path| access(http, &request, path, said, &asked.client));
    view.sticky = http.sticky.as_ref().map(|sticky| String::from_utf8_lossy(&sticky.cookie).into_owned());
    match decision::judge(http, &request, &asked.client, &mut Limiting::none()) {
        Verdict::Forward { route, groups } => {
            view.outcome = "forward".to_string();
            view.route = taken(http, route, said);
            if let Action::Forward { replace_prefix: Some(prefix), .. } = &route.action {
                view.replaced_prefix = Some(String::from_utf8_lossy(prefix).into_owned());
            }
            view.groups = groups.iter().filter_map(|share| group(config, groups, *share)).collect();
        }
        Verdict::Answer { status, why: Some(why), .. } | Verdict::Refuse { status, why } => {
            refused(&mut view, status, why);
            if why == Refused::Denied && path.is_none() {
                view.reason = "its path is too long, or can be read in more than one way".to_string();
            } else if why == Refused::Denied && !view.access.as_ref().is_some_and(|rule| rule.denies) {
                view.reason = "backends could read the path otherwise, and an access rule denies that".to_string();
            }
        }
        // No limit was asked.
        Verdict::Limited(_) => {}
        Verdict::Answer { status, location, .. } => {
            view.outcome = if location.is_some() { "redirect" } else { "reply" }.to_string();
            view.status = Some(status);
            view.location = location.and_then(|template| {
                let mut text = vec![0; LOCATION_BYTES_MAX];
                let length = reply::location(&mut text, template, &request, is_https(&service.kind)).ok()?;
                Some(String::from_utf8_lossy(&text[..length]).into_owned())
            });
            let is_answering =
                |route: &&Route| path.is_some_and(|path| route.conditions.hold(&request, path, &asked.client));
            view.route = http.routes.iter().find(is_answering).and_then(|route| taken(http, route, said));
        }
    }
    view
}

fn refused(view: &mut RouteView, status: u16, why: Refused) {
    view.outcome = "refuse".to_string();
    view.status = Some(status);
    view.reason = match why {
        Refused::Denied => "an access rule denies it",
        Refused::NoRoute => "no route takes it, and the service has no backends of its own",
        Refused::Tunnel => "it asks for a tunnel, which the service does not allow",
        Refused::TooLarge => "it is longer than the service allows",
        _ => "it is no request of HTTP, or could be read in two ways",
    }
    .to_string();
}

/// The access rule that decides, as far as the path is read as it is written.
fn access(http: &Http, request: &Request<'_>, path: &[u8], said: &HttpSections, client: &Address) -> Option<RuleView> {
    let at = http.access.iter().position(|rule| rule.conditions.hold(request, path, client))?;
    let denies = matches!(http.access[at].verdict, AccessVerdict::Deny { .. });
    Some(RuleView { number: at as u16 + 1, written: said.access.get(at).cloned().unwrap_or_default(), denies })
}

/// A route as it is counted in the file; `None`: the one behind them all, which takes what no other does.
fn taken(http: &Http, route: &Route, said: &HttpSections) -> Option<RuleView> {
    let at = http.routes.iter().position(|other| std::ptr::eq(other, route))?;
    let written = said.routes.get(at)?.clone();
    Some(RuleView { number: at as u16 + 1, written, denies: false })
}

/// A group that the route leads to, with its backends that may get the request.
fn group(config: &Config, groups: &[(Group, u16)], (number, share): (Group, u16)) -> Option<RouteGroup> {
    let group = config.snapshot.services.get(usize::from(number))?;
    let total: u32 = groups.iter().map(|(_, share)| u32::from(*share)).sum();
    let there = group.backends.iter().filter(|backend| backend.state != BackendState::Removed);
    let backends = there.map(|backend| RouteBackend {
        name: backend.name.to_string(),
        address: backend.endpoint.to_string(),
        weight: backend.weight,
        state: backend.state.word().to_string(),
        health: String::new(),
    });
    Some(RouteGroup {
        name: group.name.to_string(),
        share: f64::from(share) / f64::from(total.max(1)),
        balance: group.algorithm.word().to_string(),
        backends: backends.collect(),
    })
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
