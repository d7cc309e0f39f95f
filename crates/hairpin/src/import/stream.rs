//! `stream`: each server becomes a TCP or UDP service, or with `ssl_preread` a TLS one.

use super::Context;
use super::model::{Fields, Service, list, name_of, quoted};
use super::parse::Directive;
use super::reasons;
use super::server::{Levels, Listen, duration, listens};
use super::upstream::{self, Upstream};
use std::collections::BTreeMap;

/// Directives of a server that are carried over, or told of where they are looked at.
const SERVER: [&str; 9] = [
    "listen",
    "proxy_pass",
    "proxy_timeout",
    "proxy_connect_timeout",
    "proxy_bind",
    "proxy_protocol",
    "ssl_preread",
    "preread_timeout",
    "server_name",
];

/// Carries a `stream` block over.
pub(super) fn stream(context: &mut Context, directive: &Directive) {
    let block = directive.inside();
    let upstreams = upstream::collect(context, block, None);
    let maps: Vec<&Directive> = block.iter().filter(|one| one.name == "map").collect();
    for map in maps.iter().filter(|map| map.first() != "$ssl_preread_server_name") {
        reasons::note(&mut context.notes, map);
    }
    let known: Vec<&str> = SERVER.iter().copied().chain(["server", "upstream", "map"]).collect();
    reasons::others(&mut context.notes, block, &known);
    for server in block.iter().filter(|one| one.name == "server") {
        reasons::others(&mut context.notes, server.inside(), &SERVER);
        let levels = Levels(vec![block, server.inside()]);
        for listen in listens(context, server, None) {
            one(context, (server, &levels), &listen, &upstreams, &maps);
        }
    }
}

fn one(
    context: &mut Context,
    (server, levels): (&Directive, &Levels<'_>),
    listen: &Listen,
    upstreams: &BTreeMap<String, Upstream>,
    maps: &[&Directive],
) {
    let Some(pass) = levels.last("proxy_pass") else {
        context.notes.add(server, "it has no `proxy_pass`");
        return;
    };
    if listen.is_ssl {
        let why =
            "Hairpin ends TLS for HTTP alone: have the backends speak TLS, and pass it through (protocol tls or tcp)";
        context.notes.add(server, why);
        return;
    }
    let is_tls = levels.last("ssl_preread").is_some_and(|one| one.first() == "on");
    let protocol = match (is_tls, listen.is_udp) {
        (true, _) => "tls",
        (false, true) => "udp",
        (false, false) => "tcp",
    };
    let target = pass.first();
    let name = name_of(target.trim_start_matches('$').split(':').next().unwrap_or("stream"));
    let mut service = Service::new(name, listen.at, protocol);
    let map = maps.iter().find(|map| map.args.get(1).is_some_and(|variable| variable == target));
    let is_carried = match (target.starts_with('$'), map) {
        (true, Some(map)) if is_tls && map.first() == "$ssl_preread_server_name" => {
            by_name(context, &mut service, map, upstreams)
        }
        (true, _) => {
            context.notes.add(pass, "the backend must be named: Hairpin has no variables");
            false
        }
        (false, _) => {
            service.own = of(context, pass, target, upstreams, listen.at.is_ipv6());
            service.own.is_some()
        }
    };
    if !is_carried {
        context.notes.add(server, "no server of it can be a backend: it is left out");
        return;
    }
    settings(context, &mut service, levels);
    if context.output.listens(listen.at, listen.is_udp) {
        context.notes.add(server, format!("another service listens on {} already", listen.at));
        return;
    }
    context.output.add(service);
}

/// The backends that a name leads to.
fn of(
    context: &mut Context,
    at: &Directive,
    target: &str,
    upstreams: &BTreeMap<String, Upstream>,
    is_ipv6: bool,
) -> Option<Upstream> {
    let mut upstream = match upstreams.get(target) {
        Some(upstream) => upstream.clone(),
        None => upstream::single(context, at, target, None),
    };
    upstream.keepalive = None;
    upstream.of_family(&mut context.notes, at, is_ipv6)
}

/// `map $ssl_preread_server_name $upstream`: routes by the name that clients ask for. Whether one leads anywhere.
fn by_name(
    context: &mut Context,
    service: &mut Service,
    map: &Directive,
    upstreams: &BTreeMap<String, Upstream>,
) -> bool {
    let (mut exact, mut wild, mut default) = (Vec::new(), Vec::new(), None);
    for entry in map.inside() {
        let target = entry.first();
        if matches!(&*entry.name, "hostnames" | "volatile") {
            continue;
        }
        if entry.name.starts_with('~') || entry.name.ends_with(".*") {
            context.notes.add(entry, "names have `*.` in front, or none");
            continue;
        }
        let Some(upstream) = of(context, entry, target, upstreams, service.listen.is_ipv6()) else {
            context.notes.add(entry, "no server of it can be a backend");
            continue;
        };
        let group = service.group(target.split(':').next().unwrap_or(target), &upstream);
        let names = match entry.name.strip_prefix('.') {
            Some(name) => vec![name.to_string(), format!("*.{name}")],
            None => vec![entry.name.clone()],
        };
        match &*entry.name {
            "default" => default = Some(group),
            name if name.contains('*') || name.starts_with('.') => wild.push((names, group)),
            _ => exact.push((names, group)),
        }
    }
    wild.sort_by_key(|(names, _)| std::cmp::Reverse(names.iter().map(String::len).max()));
    for (names, group) in exact.into_iter().chain(wild) {
        service.routes.push(vec![("sni", list(&names)), ("group", quoted(&group))]);
    }
    if let Some(group) = default {
        service.routes.push(vec![("group", quoted(&group))]);
    }
    !service.routes.is_empty()
}

fn settings(context: &mut Context, service: &mut Service, levels: &Levels<'_>) {
    let is_tls = service.protocol == "tls";
    if let Some(time) = levels.last("proxy_timeout").and_then(|one| duration(one.first())) {
        let field = if service.protocol == "udp" { "udp_established" } else { "tcp_established" };
        service.set("timeouts", field, quoted(&time));
    }
    let proxied = levels.last("proxy_protocol").filter(|one| one.first() == "on");
    if let Some(directive) = levels.last("proxy_connect_timeout") {
        match duration(directive.first()).filter(|_| is_tls) {
            Some(time) => service.set("tls", "connect_timeout", quoted(&time)),
            None if proxied.is_some() => {
                context.notes.add(directive, "services of TCP have no such field: with `proxy_protocol` it is 3 s")
            }
            None => context
                .notes
                .add(directive, "the client's own SYN goes to the backend, and is sent again by the client"),
        }
    }
    if let Some(time) = levels.last("preread_timeout").filter(|_| is_tls).and_then(|one| duration(one.first())) {
        service.set("tls", "hello_timeout", quoted(&time));
    }
    if let Some(directive) = proxied {
        match service.protocol {
            "tls" => service.set("tls", "proxy_protocol", quoted("v1")),
            // Its connections to backends are Hairpin's own then, without a mode.
            "tcp" => return service.fields.push(("proxy_protocol", quoted("v1"))),
            _ => context.notes.add(directive, "services of UDP write no header"),
        }
    }
    if is_tls {
        return;
    }
    // Connections of nginx's own, unless it takes the client's address for them.
    let is_transparent = levels.last("proxy_bind").is_some_and(|one| one.args.iter().any(|arg| arg == "transparent"));
    let fields: Fields = vec![("mode", quoted(if is_transparent { "nat" } else { "full-nat" }))];
    service.fields.extend(fields);
}
