//! Reads TLS services: `[service.tls]` and their routes.

use super::super::HttpSections;
use super::super::reader::TomlTable;
use super::super::reference;
use super::conditions::{FIELDS, parsed};
use super::{ROUTES_MAX, Targets, bounded, number, read_proxy_protocol, route};
use hairpin_core::l7::config::{ProxyVersion, Tls, TlsRoute};
use hairpin_core::l7::route::host::HostPattern;

/// The fields of a route of an HTTP service besides its conditions.
const OF_HTTP: [&str; 8] =
    ["basic", "forward_auth", "mirror", "redirect", "reply", "replace_prefix", "request_headers", "response_headers"];
/// Bytes of a protocol's name at most (RFC 7301, 3.1).
const PROTOCOL_BYTES_MAX: usize = 255;

/// A TLS service, and what the file says about it.
pub(super) fn read(service: &TomlTable<'_>, targets: &Targets) -> (Tls, HttpSections) {
    let table = service.table("tls", &reference::TLS);
    let (routes, said_routes) = read_routes(service, targets);
    let tls = Tls { routes, proxy_protocol: read_proxy_protocol(&table), ..common(&table) };
    (
        tls,
        HttpSections {
            fields: table.said(),
            access: Vec::new(),
            limits: Vec::new(),
            routes: said_routes,
            cors: Vec::new(),
            pages: Default::default(),
            basic: Vec::new(),
        },
    )
}

/// A TCP service, of number `number`, whose backends get the client's address. Where a TLS service has settings, it has the
/// defaults.
pub(super) fn plain(service: &TomlTable<'_>, version: ProxyVersion, number: u16) -> Tls {
    let route = TlsRoute { names: Box::default(), protocols: Box::default(), groups: Box::new([(number, 1)]) };
    let defaults = common(&service.table("tls", &reference::TLS));
    Tls { is_plain: true, routes: Box::new([route]), proxy_protocol: Some(version), ..defaults }
}

/// What does not depend on what the connection is routed by.
fn common(table: &TomlTable<'_>) -> Tls {
    Tls {
        is_plain: false,
        routes: Box::default(),
        proxy_protocol: None,
        hello_bytes_max: number(table, "hello_bytes_max"),
        hello_timeout: table.duration("hello_timeout"),
        connect_timeout: table.duration("connect_timeout"),
        connect_tries: number(table, "connect_tries"),
        offload_bytes_min: table.integer("offload_bytes_min"),
        timestamps: table.boolean("timestamps"),
    }
}

/// The routes, in the end one to the service's own backends if it has any.
fn read_routes(service: &TomlTable<'_>, targets: &Targets) -> (Box<[TlsRoute]>, Vec<String>) {
    let tables = service.tables("route", &reference::ROUTE);
    bounded(service, "route", tables.len(), ROUTES_MAX);
    let mut all_taken = None;
    let mut routes: Vec<TlsRoute> = Vec::new();
    for table in &tables {
        let foreign: Vec<&str> = FIELDS.into_iter().chain(OF_HTTP).collect();
        route::only(table, &foreign, "tls", "nothing of a request can be seen: use `sni` and `alpn`");
        if let Some(line) = &all_taken {
            route::never_taken(table, line);
        }
        if !table.has("sni") && !table.has("alpn") {
            all_taken.get_or_insert(table.line(table.span.start));
        }
        let names = parsed(table, "sni", name).into();
        let protocols = parsed(table, "alpn", protocol).into();
        routes.extend(targets.of(table).map(|groups| TlsRoute { names, protocols, groups }));
    }
    let are_right = routes.len() == tables.len();
    routes.extend(targets.own().map(|groups| TlsRoute { names: Box::default(), protocols: Box::default(), groups }));
    let used: Vec<_> = routes.iter().flat_map(|route| &route.groups).map(|(group, _)| *group).collect();
    targets.warn_unused(service, are_right.then_some(&used));
    (routes.into(), tables.iter().map(route::written).collect())
}

/// A name or `*.suffix`, in lower case.
fn name(text: &str) -> Result<Box<[u8]>, &'static str> {
    if text.starts_with('[') || text.parse::<std::net::Ipv4Addr>().is_ok() {
        return Err("clients never ask for addresses in TLS: write a name");
    }
    HostPattern::parse(text)?;
    Ok(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase().into_bytes().into())
}

fn protocol(text: &str) -> Result<Box<[u8]>, String> {
    match (1..=PROTOCOL_BYTES_MAX).contains(&text.len()) {
        true => Ok(text.as_bytes().into()),
        false => Err(format!("write a protocol's name of 1 to {PROTOCOL_BYTES_MAX} bytes, such as \"h2\"")),
    }
}
