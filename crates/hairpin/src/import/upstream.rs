//! `upstream`: servers, how one is chosen, and when one counts as failed.

use super::model::{Fields, fields, list, quoted};
use super::parse::Directive;
use super::reasons;
use super::{Context, Notes};
use crate::config::host_and_port;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

/// Servers of one service or group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Upstream {
    balance: &'static str,
    /// The field or cookie that `balance` goes by.
    hash_name: Option<String>,
    servers: Vec<Server>,
    /// Failures in a row, and how long a server is left alone then.
    passive: Option<(u32, Option<String>)>,
    /// Idle connections.
    pub(super) keepalive: Option<u32>,
    /// How TLS is spoken with them; `None`: it is not.
    pub(super) tls: Option<Fields>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Server {
    /// `address:port` or `name:port`.
    end: String,
    /// Its address, unless it has a name.
    address: Option<IpAddr>,
    weight: u16,
    is_down: bool,
    is_backup: bool,
    connections_max: Option<u32>,
}

impl Upstream {
    /// This upstream with the servers of one address family alone; `None`: it has none of that family.
    pub(super) fn of_family(&self, notes: &mut Notes, at: &Directive, is_ipv6: bool) -> Option<Upstream> {
        let fits = |server: &&Server| server.address.is_none_or(|address| address.is_ipv6() == is_ipv6);
        let servers: Vec<Server> = self.servers.iter().filter(fits).cloned().collect();
        if servers.len() < self.servers.len() {
            let why =
                "servers of another address family than the VIP are left out: packets are not translated between them";
            notes.add(at, why);
        }
        (!servers.is_empty()).then(|| Upstream { servers, ..self.clone() })
    }

    /// Writes it; `table`: the service or group that it belongs to.
    pub(super) fn write(&self, out: &mut String, table: &str) {
        let _ = writeln!(out, "balance = {}", quoted(self.balance));
        if let Some(name) = &self.hash_name {
            let _ = writeln!(out, "hash_name = {}", quoted(name));
        }
        let is_plain = self.servers.iter().all(|server| {
            server.weight == 1 && !server.is_down && !server.is_backup && server.connections_max.is_none()
        });
        if is_plain {
            let ends: Vec<&str> = self.servers.iter().map(|server| &*server.end).collect();
            let one = if ends.len() == 1 { format!("[{}]", quoted(ends[0])) } else { list(&ends) };
            let _ = writeln!(out, "backends = {one}");
        }
        if let Some((failures, retry)) = &self.passive {
            let _ = writeln!(out, "\n[{table}.health]\npassive = {failures}");
            if let Some(retry) = retry {
                let _ = writeln!(out, "passive_retry = {}", quoted(retry));
            }
        }
        if let Some(tls) = &self.tls {
            let _ = writeln!(out, "\n[{table}.backend_tls]");
            fields(out, tls);
        }
        for server in self.servers.iter().filter(|_| !is_plain) {
            let _ = writeln!(out, "\n[[{table}.backend]]\naddress = {}", quoted(&server.end));
            if server.weight != 1 {
                let _ = writeln!(out, "weight = {}", server.weight);
            }
            if server.is_down {
                let _ = writeln!(out, "state = \"disabled\"");
            }
            if server.is_backup {
                let _ = writeln!(out, "backup = true");
            }
            if let Some(most) = server.connections_max {
                let _ = writeln!(out, "connections_max = {most}");
            }
        }
    }
}

/// The upstreams of a block.
pub(super) fn collect(context: &mut Context, block: &[Directive], port: Option<u16>) -> BTreeMap<String, Upstream> {
    let all = block.iter().filter(|directive| directive.name == "upstream");
    all.map(|directive| (directive.first().to_string(), read(context, directive, port))).collect()
}

/// An upstream. `port`: of servers that name none.
fn read(context: &mut Context, directive: &Directive, port: Option<u16>) -> Upstream {
    let mut upstream = Upstream { balance: "weighted-round-robin", ..Upstream::default() };
    // Those of `stream` have no port of their own.
    let has_requests = port.is_some();
    let mut known = HashSet::new();
    for inside in directive.inside() {
        match &*inside.name {
            "server" => {
                if let Some(server) = server(context, &mut upstream, inside, port) {
                    if known.insert(server.end.clone()) {
                        upstream.servers.push(server);
                    } else {
                        context.notes.add(inside, "it is there twice: give it a larger weight instead");
                    }
                }
            }
            "least_conn" => upstream.balance = "least-connections",
            "ip_hash" => upstream.balance = "source-hash",
            "random" | "hash" | "least_time" => {
                (upstream.balance, upstream.hash_name) = method(context, inside, has_requests);
            }
            "keepalive" => upstream.keepalive = inside.first().parse().ok(),
            _ => reasons::others(&mut context.notes, std::slice::from_ref(inside), &[]),
        }
    }
    upstream
}

/// `balance` and `hash_name`.
fn method(context: &mut Context, directive: &Directive, has_requests: bool) -> (&'static str, Option<String>) {
    let args: Vec<&str> = directive.args.iter().map(String::as_str).collect();
    let client = ["$remote_addr", "$binary_remote_addr"];
    let (balance, why) = match (&*directive.name, &args[..]) {
        ("random", ["two", ..]) => ("power-of-two", None),
        ("random", _) => ("power-of-two", Some("the less loaded of two drawn at random is taken instead")),
        ("hash", [key, ..]) if client.contains(key) => ("source-hash", None),
        ("hash", [key, ..]) if client.iter().any(|client| *key == format!("{client}$remote_port")) => ("maglev", None),
        ("hash", ["$uri" | "$document_uri", ..]) if has_requests => ("path-hash", None),
        ("hash", ["$request_uri", ..]) if has_requests => ("path-hash", Some("the path is hashed without its query")),
        ("hash", [key, ..]) if has_requests && let Some((balance, name)) = part(key) => return (balance, Some(name)),
        ("hash", _) => (
            "weighted-round-robin",
            Some(
                "Hairpin hashes the client's address (source-hash), addresses and ports (maglev), or one field, cookie or the path \
                 of a request: round robin is taken instead",
            ),
        ),
        _ if has_requests => ("least-latency", None),
        _ => (
            "least-connections",
            Some("Hairpin goes by response times of requests only: the fewest connections are taken instead"),
        ),
    };
    if let Some(why) = why {
        context.notes.add(directive, why);
    }
    (balance, None)
}

/// The field or cookie that a variable stands for.
fn part(variable: &str) -> Option<(&'static str, String)> {
    let is_name =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if variable == "$host" {
        return Some(("header-hash", "Host".to_string()));
    }
    if let Some(name) = variable.strip_prefix("$http_").filter(is_name) {
        return Some(("header-hash", name.replace('_', "-")));
    }
    variable.strip_prefix("$cookie_").filter(is_name).map(|name| ("cookie-hash", name.to_string()))
}

fn server(context: &mut Context, upstream: &mut Upstream, directive: &Directive, port: Option<u16>) -> Option<Server> {
    let (end, address) = end(context, directive, directive.first(), port)?;
    let mut server = Server { end, address, weight: 1, is_down: false, is_backup: false, connections_max: None };
    let mut passive: (Option<u32>, Option<String>) = (None, None);
    for arg in &directive.args[1..] {
        match arg.split_once('=').unwrap_or((arg, "")) {
            ("weight", weight) => server.weight = weight.parse().unwrap_or(1),
            ("max_fails", fails) => passive.0 = fails.parse().ok(),
            ("fail_timeout", time) => passive.1 = super::server::duration(time),
            ("down", _) => server.is_down = true,
            // Names are looked up again anyway.
            ("resolve", _) => {}
            ("backup", _) => server.is_backup = true,
            ("max_conns", most) => {
                server.connections_max = most.parse().ok().filter(|most| (1..=1_000_000).contains(most))
            }
            (other, _) => {
                let why = match other {
                    "service" => "write it as `srv` of [[service.backend]]".to_string(),
                    "slow_start" => "write `slow_start` of [service.health], which is for all backends".to_string(),
                    other => format!("Hairpin has no `{other}`"),
                };
                context.notes.add(directive, why);
            }
        }
    }
    if let Some(fails) = passive.0.filter(|fails| *fails > 0) {
        match &upstream.passive {
            None => upstream.passive = Some((fails.min(1000), passive.1)),
            Some((known, _)) if *known != fails => {
                context
                    .notes
                    .add(directive, format!("`passive` is for all backends: it is {known}, as for the first one"));
            }
            Some(_) => {}
        }
    }
    Some(server)
}

/// `address:port` or `name:port` of a server, and its address unless it has a name; `None`: Hairpin cannot reach it, which is noted.
fn end(context: &mut Context, at: &Directive, text: &str, port: Option<u16>) -> Option<(String, Option<IpAddr>)> {
    if text.starts_with("unix:") {
        context.notes.add(at, "Hairpin reaches backends over the network: have it listen on an address");
        return None;
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let with_port = match (bare.parse::<IpAddr>(), port) {
        (Ok(address), Some(port)) => SocketAddr::new(address, port).to_string(),
        _ if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => text.to_string(),
        (_, Some(port)) => format!("{text}:{port}"),
        (_, None) => {
            context.notes.add(at, "it names no port");
            return None;
        }
    };
    let with_port = match with_port.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => with_port,
    };
    if let Ok(address) = with_port.parse::<SocketAddr>() {
        if !address.ip().is_loopback() {
            let is_usable = !address.ip().is_unspecified() && !address.ip().is_multicast() && address.port() != 0;
            if !is_usable {
                context.notes.add(at, "it is not the address of a host");
            }
            return is_usable.then(|| (address.to_string(), Some(address.ip())));
        }
        let Some(local) = context.options.local else {
            let why = "it is on nginx's own host: name the address that this host has for Hairpin by --local";
            context.notes.add(at, why);
            return None;
        };
        return Some((SocketAddr::new(local, address.port()).to_string(), Some(local)));
    }
    match host_and_port(&with_port) {
        Some((name, port)) => Some((format!("{name}:{port}"), None)),
        None => {
            context.notes.add(at, "it is neither an address nor a name");
            None
        }
    }
}

/// The server that `proxy_pass` names itself.
pub(super) fn single(context: &mut Context, at: &Directive, text: &str, port: Option<u16>) -> Upstream {
    let server = end(context, at, text, port).map(|(end, address)| Server {
        end,
        address,
        weight: 1,
        is_down: false,
        is_backup: false,
        connections_max: None,
    });
    Upstream { balance: "weighted-round-robin", servers: server.into_iter().collect(), ..Upstream::default() }
}
