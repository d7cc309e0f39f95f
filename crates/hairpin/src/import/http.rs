//! `http`: its servers become services, one for each address and port, with the routes of all servers that listen there.

use super::Context;
use super::location;
use super::model::{Fields, Service, list, name_of, quoted};
use super::parse::Directive;
use super::reasons;
use super::server::{Levels, Listen, bytes, duration, listens};
use super::upstream::{self, Upstream};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// Directives of `http` that are carried over, or told of where they are looked at. Those of servers may stand here too.
const HTTP: [&str; 3] = ["server", "upstream", "map"];
/// Likewise of `server`, and of the levels around it.
const SERVER: [&str; 31] = [
    "listen",
    "server_name",
    "location",
    "return",
    "rewrite",
    "if",
    "allow",
    "deny",
    "ssl",
    "http2",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_client_certificate",
    "ssl_verify_client",
    "proxy_set_header",
    "add_header",
    "proxy_hide_header",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "client_header_timeout",
    "client_body_timeout",
    "keepalive_timeout",
    "send_timeout",
    "proxy_connect_timeout",
    "proxy_read_timeout",
    "proxy_send_timeout",
    "client_max_body_size",
    "keepalive_requests",
];

/// A `server` and where it stands.
pub(super) struct Server<'a> {
    pub(super) directive: &'a Directive,
    pub(super) levels: Levels<'a>,
    listens: Vec<Listen>,
    /// Names that hosts are compared with, exactly or with `*.` in front; empty: any.
    pub(super) names: Vec<String>,
}

impl Server<'_> {
    /// Its first name; empty if it has none.
    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// Carries an `http` block over.
pub(super) fn http(context: &mut Context, directive: &Directive) {
    loose(context, directive.inside());
}

/// Carries over what stands in an `http` block, as files of conf.d have it: without the block around it.
pub(super) fn loose(context: &mut Context, block: &[Directive]) {
    let of_server: Vec<&str> = SERVER.iter().chain(&location::CLOSING).copied().collect();
    let known: Vec<&str> = HTTP.iter().chain(&of_server).copied().collect();
    reasons::others(&mut context.notes, block, &known);
    for map in block.iter().filter(|one| one.name == "map") {
        match map.first() {
            "$http_upgrade" => {
                context.notes.add(map, "requests for an upgrade are passed on without it: `upgrade` of [service.http]")
            }
            _ => reasons::note(&mut context.notes, map),
        }
    }
    let upstreams = upstream::collect(context, block, Some(80));
    let servers: Vec<Server<'_>> = block
        .iter()
        .filter(|one| one.name == "server")
        .map(|directive| {
            reasons::others(&mut context.notes, directive.inside(), &of_server);
            Server {
                directive,
                levels: Levels(vec![block, directive.inside()]),
                listens: listens(context, directive, Some(80)),
                names: names(context, directive),
            }
        })
        .collect();
    let mut ends: Vec<SocketAddr> = Vec::new();
    for listen in servers.iter().flat_map(|server| &server.listens) {
        if !ends.contains(&listen.at) {
            ends.push(listen.at);
        }
    }
    for end in ends {
        service(context, &servers, end, &upstreams);
    }
}

/// The names of a server that a route can ask for.
fn names(context: &mut Context, server: &Directive) -> Vec<String> {
    let mut names = Vec::new();
    for directive in server.inside().iter().filter(|inside| inside.name == "server_name") {
        for name in &directive.args {
            match name.as_str() {
                "_" | "" => {}
                regex if regex.starts_with('~') => {
                    context.notes.add(directive, format!("{regex}: hosts are names, or `*.` and a name"));
                }
                "$hostname" => context.notes.add(directive, "write the host's name"),
                both if both.starts_with('.') => names.extend([both[1..].to_string(), format!("*{both}")]),
                end if end.ends_with(".*") => {
                    context.notes.add(directive, format!("{end}: names have `*.` in front only: list them"));
                }
                name => names.push(name.to_ascii_lowercase()),
            }
        }
    }
    names
}

fn service(context: &mut Context, servers: &[Server<'_>], end: SocketAddr, upstreams: &BTreeMap<String, Upstream>) {
    let here: Vec<(&Server<'_>, &Listen)> = servers
        .iter()
        .filter_map(|server| Some((server, server.listens.iter().find(|listen| listen.at == end)?)))
        .collect();
    let is_ssl = here.iter().any(|(_, listen)| listen.is_ssl);
    let default = here.iter().position(|(_, listen)| listen.is_default).unwrap_or(0);
    let name = here.iter().map(|(server, _)| server.name()).find(|name| !name.is_empty()).unwrap_or("web");
    let name = format!("{}-{}", name_of(name.trim_start_matches("*.")), end.port());
    let mut service = Service::new(name, end, if is_ssl { "https" } else { "http" });
    for (server, listen) in &here {
        if is_ssl && !listen.is_ssl {
            let why = format!("another server on {end} speaks TLS: clients of this one must speak it too");
            context.notes.add(server.directive, why);
        }
        if listen.is_proxied {
            let why = "name the proxies in `accept_proxy` of [service.https]; services with protocol http take no such header";
            context.notes.add(server.directive, why);
        }
        settings(context, &mut service, server, is_ssl);
    }
    // Exact names come before wildcards, longer wildcards before shorter ones, and the default server last.
    let mut order: Vec<(bool, usize, Vec<String>, usize)> = Vec::new();
    for (number, (server, _)) in here.iter().enumerate() {
        let (wild, exact): (Vec<String>, Vec<String>) =
            server.names.iter().cloned().partition(|name| name.starts_with("*."));
        if !exact.is_empty() {
            order.push((false, 0, exact, number));
        }
        for name in wild {
            order.push((true, usize::MAX - name.len(), vec![name], number));
        }
    }
    order.sort_by_key(|(is_wild, rank, _, number)| (*is_wild, *rank, *number));
    let mut parts: Vec<(Vec<String>, usize)> = order.into_iter().map(|(_, _, hosts, number)| (hosts, number)).collect();
    // What fits no name goes to the default server, whose names matter only where wildcards of others would take them.
    let has_wild = parts.iter().any(|(hosts, number)| *number != default && hosts[0].starts_with("*."));
    parts.retain(|(_, number)| *number != default || has_wild);
    let mut named = Vec::new();
    for (hosts, number) in &parts {
        named.extend(hosts.iter().cloned());
        location::routes(context, &mut service, here[*number].0, hosts, upstreams);
    }
    let has_closed = service.access.len();
    location::routes(context, &mut service, here[default].0, &[], upstreams);
    // Rules of the default server ask for no host: others come first, and let theirs pass.
    if service.access.len() > has_closed && !named.is_empty() {
        let pass: Fields = vec![("action", quoted("allow")), ("host", list(&named))];
        service.access.insert(has_closed, pass);
    }
    for (server, _) in here
        .iter()
        .enumerate()
        .filter(|(number, (server, _))| *number != default && server.names.is_empty())
        .map(|(_, one)| one)
    {
        context
            .notes
            .add(server.directive, format!("it has no name and is not the default of {end}: no request reaches it"));
    }
    if context.output.listens(end, false) {
        context.notes.add(here[default].0.directive, format!("another service listens on {end} already"));
        return;
    }
    context.output.add(service);
}

/// What holds for all requests of a service: TLS and limits. The first server that says something decides.
fn settings(context: &mut Context, service: &mut Service, server: &Server<'_>, is_ssl: bool) {
    let times = [
        ("client_header_timeout", "head_timeout"),
        ("client_body_timeout", "body_timeout"),
        ("keepalive_timeout", "idle_timeout"),
        ("send_timeout", "send_timeout"),
        ("proxy_connect_timeout", "connect_timeout"),
        ("proxy_read_timeout", "response_timeout"),
    ];
    for (theirs, ours) in times {
        let Some(directive) = server.levels.last(theirs) else { continue };
        match duration(directive.first()) {
            Some(time) => service.set("http.limits", ours, quoted(&time)),
            None => context.notes.add(directive, format!("`{ours}` of [service.http.limits] is a time above 0")),
        }
    }
    if let Some(directive) = server.levels.last("proxy_send_timeout") {
        context.notes.add(directive, "`send_timeout` of [service.http.limits] holds for clients and backends");
    }
    if let Some(size) = server.levels.last("client_max_body_size").and_then(|directive| bytes(directive.first())) {
        service.set("http.limits", "body_bytes_max", size.to_string());
    }
    if let Some(requests) =
        server.levels.last("keepalive_requests").and_then(|directive| directive.first().parse::<u32>().ok())
    {
        service.set("http.limits", "requests_max", requests.to_string());
    }
    if is_ssl {
        tls(context, service, server);
    }
}

fn tls(context: &mut Context, service: &mut Service, server: &Server<'_>) {
    let certificates = server.levels.all("ssl_certificate");
    let keys = server.levels.all("ssl_certificate_key");
    for (certificate, key) in certificates.iter().zip(&keys) {
        if certificate.first().contains('$') || key.first().contains("engine:") {
            context.notes.add(certificate, "certificates are files: name them, or their directory, in `certificates`");
            continue;
        }
        let [chain, key_file] = [certificate, key].map(|directive| context.directory.join(directive.first()));
        let is_beside = key_file == chain || key_file == chain.with_extension("key");
        let names = [&chain, &key_file].map(|path| path.file_name().and_then(|name| name.to_str()));
        let is_certbot = names == [Some("fullchain.pem"), Some("privkey.pem")] && chain.parent() == key_file.parent();
        let path = if is_certbot { chain.parent().unwrap_or(Path::new("/")).to_path_buf() } else { chain.clone() };
        if !is_beside && !is_certbot {
            let beside = chain.with_extension("key");
            context.notes.add(
                key,
                format!("the key is read from {}: link it there, or append it to the chain", beside.display()),
            );
        }
        let path = path.display().to_string();
        let fields = service.tables.entry("https").or_default();
        match fields.iter_mut().find(|(name, _)| *name == "certificates") {
            Some((_, known)) if !known.contains(&quoted(&path)) => {
                let inner = known.trim_start_matches('[').trim_end_matches(']').to_string();
                *known = format!("[{inner}, {}]", quoted(&path));
            }
            Some(_) => {}
            None => fields.push(("certificates", format!("[{}]", quoted(&path)))),
        }
    }
    if certificates.is_empty() && !service.tables.contains_key("https") {
        context.notes.add(server.directive, "it has no certificate: `certificates` is to be filled in");
        service.set("https", "certificates", "[\"/etc/hairpin/tls\"]".to_string());
    }
    if let Some(directive) = server.levels.last("ssl_protocols") {
        if directive.args.iter().all(|version| version == "TLSv1.3") {
            service.set("https", "versions_min", quoted("1.3"));
        } else if directive.args.iter().any(|version| !matches!(version.as_str(), "TLSv1.2" | "TLSv1.3")) {
            context.notes.add(directive, "Hairpin speaks TLS 1.2 and 1.3");
        }
    }
    let verify = server.levels.last("ssl_verify_client").filter(|directive| directive.first() != "off");
    match (verify, server.levels.last("ssl_client_certificate")) {
        (Some(verify), Some(roots)) => {
            let choice = if verify.first() == "on" { "required" } else { "optional" };
            if verify.first() == "optional_no_ca" {
                context.notes.add(verify, "a certificate that is shown must be valid");
            }
            service.set("https", "client_certificates", quoted(choice));
            service.set("https", "client_roots", quoted(&context.directory.join(roots.first()).display().to_string()));
        }
        (Some(verify), None) => context.notes.add(verify, "it names no CAs: `client_roots` of [service.https]"),
        (None, Some(roots)) => context.notes.add(roots, "clients are not asked for certificates"),
        (None, None) => {}
    }
    if service.tables.get("https").is_some_and(|fields| !fields.iter().any(|(name, _)| *name == "certificates")) {
        service.set("https", "certificates", "[\"/etc/hairpin/tls\"]".to_string());
    }
    if server.directive.inside().iter().any(|one| one.name == "http2" && one.first() == "off") {
        service.set("https", "http2", "false".to_string());
    }
}
