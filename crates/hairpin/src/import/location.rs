//! Routes and access rules of a server: its locations, in the order in which the first that fits is the one that nginx takes.
//!
//! nginx asks for an exact path, then for the longest prefix, then for expressions in their order unless that prefix forbids it (`^~`),
//! and takes the prefix if none fits. So routes are: exact paths, prefixes with `^~`, expressions, other prefixes, the longest first.

use super::Context;
use super::edits::edits;
use super::http::Server;
use super::model::{Fields, Service, list, quoted};
use super::parse::Directive;
use super::reasons;
use super::server::{Levels, duration};
use super::upstream::{self, Upstream};
use super::variables::{TextPlace, translated};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Directives of `location` that are carried over, or told of where they are looked at.
const LOCATION: [&str; 19] = [
    "proxy_pass",
    "return",
    "rewrite",
    "if",
    "location",
    "allow",
    "deny",
    "proxy_set_header",
    "add_header",
    "proxy_hide_header",
    "proxy_read_timeout",
    "proxy_connect_timeout",
    "proxy_send_timeout",
    "client_max_body_size",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "internal",
];
/// Directives that close what they stand in to some: what is behind them stays closed to all.
pub(super) const CLOSING: [&str; 7] =
    ["auth_basic", "auth_request", "auth_jwt", "limit_except", "satisfy", "secure_link", "valid_referers"];
fn known() -> Vec<&'static str> {
    LOCATION.iter().chain(&CLOSING).copied().collect()
}

/// How a location is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Exact,
    /// A prefix that expressions do not come before.
    Priority,
    Regex,
    Prefix,
}

struct Location<'a> {
    kind: Kind,
    /// The path, or the expression.
    text: String,
    directive: &'a Directive,
    /// The blocks around it, and its own.
    levels: Levels<'a>,
}

impl Location<'_> {
    fn condition(&self) -> (&'static str, String) {
        let name = match self.kind {
            Kind::Exact => "path",
            Kind::Regex => "path_regex",
            Kind::Priority | Kind::Prefix => "path_prefix",
        };
        (name, quoted(&self.text))
    }

    /// Whether it takes every path.
    fn takes_all(&self) -> bool {
        self.text == "/" && matches!(self.kind, Kind::Priority | Kind::Prefix)
    }
}

/// Adds the routes and access rules of a server for requests with these hosts; none: for all.
pub(super) fn routes(
    context: &mut Context,
    service: &mut Service,
    server: &Server<'_>,
    hosts: &[String],
    upstreams: &BTreeMap<String, Upstream>,
) {
    let host: Fields = if hosts.is_empty() { Vec::new() } else { vec![("host", list(hosts))] };
    for directive in server.directive.inside().iter().filter(|one| one.name == "if") {
        host_redirect(context, service, server, directive);
    }
    let said = server.directive.inside().iter().find_map(|one| answer(context, server, one));
    if let Some(answer) = said {
        service.routes.push(host.into_iter().chain([answer]).collect());
        return;
    }
    for directive in server.directive.inside().iter().filter(|one| one.name == "rewrite") {
        reasons::note(&mut context.notes, directive);
    }
    let closed = closing(&server.levels.0);
    let locations = locations(context, server);
    let outer = server.levels.0.len();
    let has_own = locations
        .iter()
        .any(|location| location.levels.0[outer..].iter().any(|block| block.iter().any(|one| is_rule(&one))));
    for location in locations.iter().filter(|_| has_own) {
        access(context, service, &host, Some(location), &location.levels);
    }
    access(context, service, &host, None, &server.levels);
    for location in &locations {
        let levels = &location.levels;
        let mut route = host.clone();
        if !location.takes_all() {
            route.push(location.condition());
        }
        route.extend(match closing(&levels.0) {
            Some(directive) => {
                context
                    .notes
                    .add(directive, "the import writes no `basic` or `forward_auth`: what it guards answers 403 to everyone until you do");
                vec![reply(403, None)]
            }
            None => actions(context, service, server, location, upstreams),
        });
        service.routes.push(route);
    }
    // Else requests would go on to the routes of the next server.
    if !locations.iter().any(Location::takes_all) {
        let status = if closed.is_some() { 403 } else { 404 };
        service.routes.push(host.into_iter().chain([reply(status, None)]).collect());
    }
}

/// The innermost directive that closes what it stands in.
fn closing<'a>(levels: &[&'a [Directive]]) -> Option<&'a Directive> {
    let closes = |one: &&'a Directive| CLOSING.contains(&&*one.name) && one.first() != "off" && one.first() != "all";
    CLOSING.iter().find_map(|name| Levels(levels.to_vec()).last(name).filter(closes))
}

/// The locations of a server in the order of routes.
fn locations<'a>(context: &mut Context, server: &Server<'a>) -> Vec<Location<'a>> {
    let mut all = Vec::new();
    collect(context, server.directive.inside(), &server.levels, &mut all);
    if !all.iter().any(|one| one.kind == Kind::Regex) {
        all.iter_mut().filter(|one| one.kind == Kind::Priority).for_each(|one| one.kind = Kind::Prefix);
    }
    // A longer prefix below one with `^~` would never be reached.
    let above: Vec<String> = all.iter().filter(|one| one.kind == Kind::Priority).map(|one| one.text.clone()).collect();
    for one in all.iter_mut().filter(|one| one.kind == Kind::Prefix) {
        if above.iter().any(|above| one.text.starts_with(above.as_str())) {
            context
                .notes
                .add(one.directive, "it lies below a prefix with `^~`: here it comes before the expressions, too");
            one.kind = Kind::Priority;
        }
    }
    // Stable: expressions stay in their order.
    all.sort_by_key(|one| (one.kind, Reverse(if one.kind == Kind::Regex { 0 } else { one.text.len() })));
    all
}

/// The locations of a block, and those within them, whose paths are whole ones, too.
fn collect<'a>(context: &mut Context, block: &'a [Directive], levels: &Levels<'a>, all: &mut Vec<Location<'a>>) {
    for directive in block.iter().filter(|one| one.name == "location") {
        reasons::others(&mut context.notes, directive.inside(), &known());
        let args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
        let (kind, text) = match args[..] {
            ["=", path] => (Kind::Exact, path.to_string()),
            ["^~", path] => (Kind::Priority, path.to_string()),
            ["~", regex] => (Kind::Regex, regex.to_string()),
            ["~*", regex] => (Kind::Regex, format!("(?i){regex}")),
            [path] if path.starts_with('/') => (Kind::Prefix, path.to_string()),
            // `try_files` leads there; nothing of clients does.
            [name] if name.starts_with('@') => continue,
            _ => {
                context.notes.add(directive, "it is not a path, a prefix or an expression");
                continue;
            }
        };
        if kind == Kind::Regex && regex_syntax::Parser::new().parse(&text).is_err() {
            context.notes.add(
                directive,
                "the expression has look-around or back references, or is no expression: it is left out",
            );
            continue;
        }
        let levels = levels.with(directive.inside());
        let within = directive.inside().iter().filter(|inside| inside.name == "location");
        for inside in within.filter(|inside| text != "/" && inside.first().starts_with('~') && inside.args.len() > 1) {
            context.notes.add(inside, "here the expression is not only asked for below the location around it");
        }
        collect(context, directive.inside(), &levels, all);
        all.push(Location { kind, text, directive, levels });
    }
}

/// Whether it is a rule about clients.
fn is_rule(directive: &&Directive) -> bool {
    matches!(&*directive.name, "allow" | "deny")
}

/// `allow` and `deny` of the innermost level that has any. If one location has rules of its own, each gets rules that decide for it, since
/// here all rules are asked before routes.
fn access(
    context: &mut Context,
    service: &mut Service,
    host: &Fields,
    location: Option<&Location<'_>>,
    levels: &Levels<'_>,
) {
    let innermost = levels.0.iter().rev().find(|block| block.iter().any(|one| is_rule(&one)));
    let rules = innermost.into_iter().flat_map(|block| block.iter()).filter(is_rule);
    let conditions: Fields = host.iter().cloned().chain(location.map(Location::condition)).collect();
    let mut decides = false;
    for directive in rules {
        let mut rule: Fields = vec![("action", quoted(&directive.name))];
        rule.extend(conditions.clone());
        match directive.first() {
            "all" => decides = true,
            "unix:" => continue,
            client => match crate::config::network(client) {
                Ok(_) => rule.push(("client", quoted(client))),
                Err(_) => {
                    context.notes.add(directive, "it is no address or network");
                    continue;
                }
            },
        }
        service.access.push(rule);
        if decides {
            return;
        }
    }
    if location.is_some() {
        service.access.push([("action", quoted("allow"))].into_iter().chain(conditions).collect());
    }
}

/// What becomes of requests of a location.
fn actions(
    context: &mut Context,
    service: &mut Service,
    server: &Server<'_>,
    location: &Location<'_>,
    upstreams: &BTreeMap<String, Upstream>,
) -> Fields {
    let fallback = fallback(context, server, location);
    let levels = &location.levels.with(fallback);
    let inside = if fallback.is_empty() { location.directive.inside() } else { fallback };
    inside.iter().filter(|one| one.name == "if").for_each(|one| reasons::note(&mut context.notes, one));
    if inside.iter().any(|one| one.name == "internal") {
        context.notes.add(location.directive, "requests of clients do not reach it: it answers 404");
        return vec![reply(404, None)];
    }
    if let Some(answer) = inside.iter().find_map(|one| answer(context, server, one)) {
        return vec![answer];
    }
    let Some(pass) = inside.iter().find(|one| one.name == "proxy_pass") else {
        context.notes.add(
            location.directive,
            "it serves files, or speaks another protocol than HTTP with a backend: it answers 501",
        );
        return vec![reply(501, None)];
    };
    let Some((group, mut fields)) = passed(context, service, (location, pass), levels, upstreams) else {
        context.notes.add(location.directive, "it answers 501");
        return vec![reply(501, None)];
    };
    fields.insert(0, ("group", quoted(&group)));
    // `replace_prefix` needs a prefix that is asked for, also where that takes every path.
    if let Some(prefix) = inside.iter().find_map(|one| replaced(context, location, one)) {
        fields.retain(|(name, _)| *name != "replace_prefix");
        fields.push(("replace_prefix", quoted(&prefix)));
    }
    if location.takes_all() && fields.iter().any(|(name, _)| *name == "replace_prefix") {
        fields.insert(0, ("path_prefix", quoted("/")));
    }
    if let Some(time) = inside.iter().find(|one| one.name == "proxy_read_timeout").and_then(|one| duration(one.first()))
    {
        fields.push(("response_timeout", quoted(&time)));
    }
    for name in ["client_max_body_size", "proxy_connect_timeout", "proxy_send_timeout"] {
        let here = inside.iter().find(|one| one.name == name);
        here.into_iter()
            .for_each(|one| context.notes.add(one, "Hairpin has it for a service as a whole: [service.http.limits]"));
    }
    fields.extend(edits(context, service, server, levels));
    fields
}

/// What `try_files` leads to when it finds no file: `@name`, a location that nothing else leads to. Empty: it leads to none.
fn fallback<'a>(context: &mut Context, server: &Server<'a>, location: &Location<'a>) -> &'a [Directive] {
    let inside = location.directive.inside();
    if inside.iter().any(|one| matches!(&*one.name, "proxy_pass" | "return")) {
        return &[];
    }
    let tried = location.levels.last("try_files");
    let Some(name) = tried.and_then(|one| one.args.last()).filter(|name| name.starts_with('@')) else { return &[] };
    let named = server.directive.inside().iter().find(|one| one.name == "location" && one.first() == name);
    if let (Some(named), Some(tried)) = (named, tried) {
        reasons::others(&mut context.notes, named.inside(), &known());
        context.notes.add(tried, format!("no files are served: all goes to {name}"));
    }
    named.map_or(&[], Directive::inside)
}

/// The group that `proxy_pass` leads to, with what it does to the path; `None`: it cannot be carried over, which is noted.
fn passed(
    context: &mut Context,
    service: &mut Service,
    (location, pass): (&Location<'_>, &Directive),
    levels: &Levels<'_>,
    upstreams: &BTreeMap<String, Upstream>,
) -> Option<(String, Fields)> {
    let url = pass.first();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, uri) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if url.contains('$') || !matches!(scheme, "http" | "https") {
        context.notes.add(pass, "the backend must be named: Hairpin has no variables");
        return None;
    }
    let port = if scheme == "https" { 443 } else { 80 };
    let mut upstream = match upstreams.get(authority) {
        Some(upstream) => upstream.clone(),
        None => upstream::single(context, pass, authority, Some(port)),
    };
    if scheme == "https" {
        upstream.tls = Some(backend_tls(context, authority, levels, upstreams.contains_key(authority)));
    }
    if let Some(idle) = upstream.keepalive {
        service.set("http.limits", "idle_per_backend_max", idle.min(65_535).to_string());
        upstream.keepalive = None;
    }
    let Some(upstream) = upstream.of_family(&mut context.notes, pass, service.listen.is_ipv6()) else {
        context.notes.add(pass, "no server of it can be a backend");
        return None;
    };
    let name = authority.split(':').next().filter(|name| !name.is_empty()).unwrap_or("backends");
    let group = service.group(name, &upstream);
    let mut fields = Fields::new();
    match location.kind {
        _ if uri.is_empty() => {}
        Kind::Regex => context.notes.add(pass, "the path goes on as it is"),
        // `/` in `/` changes nothing.
        _ if uri == location.text => {}
        _ => fields.push(("replace_prefix", quoted(uri))),
    }
    Some((group, fields))
}

/// How TLS is spoken with backends.
fn backend_tls(context: &mut Context, authority: &str, levels: &Levels<'_>, is_upstream: bool) -> Fields {
    let named = levels.last("proxy_ssl_name").map(|one| one.first().to_string()).filter(|name| !name.contains('$'));
    let host = authority.split(':').next().unwrap_or_default().to_string();
    let is_name = host.parse::<std::net::IpAddr>().is_err() && !is_upstream;
    let mut fields = Fields::new();
    if let Some(name) = named.or(is_name.then_some(host)) {
        fields.push(("name", quoted(&name)));
    }
    let verifies = levels.last("proxy_ssl_verify").is_some_and(|one| one.first() == "on");
    match levels.last("proxy_ssl_trusted_certificate").filter(|_| verifies) {
        Some(roots) => fields.push(("roots", quoted(&context.directory.join(roots.first()).display().to_string()))),
        None if verifies => {}
        // As nginx does, unless it is told otherwise. The file warns of it.
        None => fields.push(("verify", "false".to_string())),
    }
    fields
}

/// `return`, or a `rewrite` that redirects everything, as a field of a route.
fn answer(context: &mut Context, server: &Server<'_>, directive: &Directive) -> Option<(&'static str, String)> {
    let args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    let (status, text) = match (&*directive.name, &args[..]) {
        ("return", [url]) if url.parse::<u16>().is_err() => (302, Some(*url)),
        ("return", [status, rest @ ..]) => (status.parse().ok()?, rest.first().copied()),
        ("rewrite", ["^" | "^/" | "^(.*)$" | "^/(.*)$" | ".*" | "^.*$" | "^(.*)" | "(.*)", url, flag]) => {
            let status = match *flag {
                "permanent" => 301,
                "redirect" => 302,
                _ => return None,
            };
            // A path that is taken up again begins with a slash only if the expression does not have it.
            let whole = url.trim_end_matches('?').replace("/$1", "$request_uri").replace("$1", "$request_uri");
            return Some(redirect(context, server, directive, status, &whole));
        }
        _ => return None,
    };
    if matches!(status, 301 | 302 | 303 | 307 | 308) {
        let Some(url) = text else {
            context.notes.add(directive, "it says where to nowhere: 404");
            return Some(reply(404, None));
        };
        return Some(redirect(context, server, directive, status, url));
    }
    if !(200..=599).contains(&status) {
        context.notes.add(directive, "Hairpin closes no connection without a response: it answers 400");
        return Some(reply(400, None));
    }
    let text = text.filter(|text| {
        let is_plain = !text.contains('$');
        if !is_plain {
            context.notes.add(directive, "a reply has no variables: its text is left out");
        }
        is_plain
    });
    Some(reply(status, text))
}

fn redirect(
    context: &mut Context,
    server: &Server<'_>,
    directive: &Directive,
    status: u16,
    url: &str,
) -> (&'static str, String) {
    match translated(url, TextPlace::Redirect, server.name()) {
        Ok(location) => ("redirect", format!("{{ status = {status}, location = {} }}", quoted(&location))),
        Err(variable) => {
            context.notes.add(directive, format!("a redirect has no {variable}: it answers 501"));
            reply(501, None)
        }
    }
}

fn reply(status: u16, body: Option<&str>) -> (&'static str, String) {
    let body = body.map_or(String::new(), |body| format!(", body = {}", quoted(body)));
    ("reply", format!("{{ status = {status}{body} }}"))
}

/// `rewrite ^/old/(.*)$ /new/$1` in the location of that prefix: what replaces it.
fn replaced(context: &mut Context, location: &Location<'_>, directive: &Directive) -> Option<String> {
    if directive.name != "rewrite" {
        return None;
    }
    let args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    let simple = match &args[..] {
        [pattern, new, "break" | "last"] if matches!(location.kind, Kind::Priority | Kind::Prefix) => {
            let old = pattern
                .strip_prefix('^')
                .and_then(|old| old.strip_suffix("(.*)$").or_else(|| old.strip_suffix("(.*)")));
            let new = new.strip_suffix("$1").filter(|new| !new.contains('$') && new.starts_with('/'));
            // `/old` in the location and `^/old/(.*)` in the expression differ by a path without a slash.
            old.filter(|old| *old == location.text).and(new)
        }
        _ => None,
    };
    if simple.is_none() {
        let why = "Hairpin replaces the prefix that a route asks for (`replace_prefix`): the path goes on as it is";
        context.notes.add(directive, why);
    }
    simple.map(str::to_string)
}

/// `if ($host = name) { return 301 ...; }`, as certbot writes it, and the same for a scheme.
fn host_redirect(context: &mut Context, service: &mut Service, server: &Server<'_>, directive: &Directive) {
    let condition = directive.args.join(" ");
    let condition = condition.trim_start_matches('(').trim_end_matches(')').trim();
    let words: Vec<&str> = condition.split_whitespace().collect();
    let said = match directive.inside() {
        [one] => answer(context, server, one),
        _ => None,
    };
    let is_https = service.protocol == "https";
    match (&words[..], said) {
        (["$host", "=", name], Some(answer)) => {
            service.routes.push(vec![("host", quoted(name.trim_matches('"'))), answer])
        }
        // It asks for what is so, or never is.
        (["$scheme", "=" | "!=", scheme], Some(answer)) => {
            let is_so = (scheme.trim_matches(['"', '\'']) == "https") == is_https;
            if is_so == (words[1] == "=") {
                let hosts = if server.names.is_empty() { Fields::new() } else { vec![("host", list(&server.names))] };
                service.routes.push(hosts.into_iter().chain([answer]).collect());
            }
        }
        _ => reasons::note(&mut context.notes, directive),
    }
}
