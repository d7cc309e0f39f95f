//! The changes that a configuration makes to the running one, as sentences.
//!
//! A service is the same as another if address, port and transport protocol are, a group if its name and its service's
//! are, a backend of them if address and port are; everything else about them is a change. What a running process cannot
//! change is told apart.

use crate::access_log::AccessLogSettings;
use crate::api::RemoteSettings;
use crate::config::words::spoken;
use crate::config::{
    AcmeSettings, Config, DpdkSettings, HealthSettings, HttpSections, PortSettings, ServiceSettings, SettingWord,
    Settings,
};
use crate::config::{keys, queue};
use crate::control::Changes;
use crate::health::Check;
use crate::registry::Identity;
use crate::spans::TracingSettings;
use hairpin_core::config::{Backend, BackendState, Encapsulation, Outer, Service, Timeouts};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::{Kind, ProxyVersion};
use hairpin_core::offload::Choice;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The changes that `new` makes, in the order of the file, services that it lacks last. `later` is what takes a restart or an
/// upgrade.
pub fn changes(running: &Config, new: &Config) -> Changes {
    let mut changes = Changes::default();
    for setting in &SETTINGS {
        let [before, after] = [running, new].map(setting.text);
        if before == after {
            continue;
        }
        let sentence = format!("{}: {before} -> {after}{}", setting.name, setting.hint);
        if setting.live { changes.changes.push(sentence) } else { changes.later.push(sentence) }
    }
    services(&mut changes.changes, running, new);
    changes.warnings = new.warnings.iter().map(ToString::to_string).collect();
    changes
}

/// A field that is about the instance as a whole.
struct Setting {
    name: &'static str,
    /// Whether a running process can change it.
    live: bool,
    /// A remark; begins with a semicolon.
    hint: &'static str,
    text: fn(&Config) -> String,
}

const fn live(name: &'static str, text: fn(&Config) -> String) -> Setting {
    Setting { name, live: true, hint: "", text }
}

const fn later(name: &'static str, text: fn(&Config) -> String) -> Setting {
    Setting { name, live: false, hint: "", text }
}

/// It says where an instance is found, so an upgrade or restart would not find it.
const fn anew(name: &'static str, text: fn(&Config) -> String) -> Setting {
    Setting { name, live: false, hint: "; stop this instance with `hairpin stop --flush` and start it anew", text }
}

/// A policy's parameters; empty for policies without any.
fn numbers(config: &Config) -> String {
    match &config.settings.offload {
        Choice::Always | Choice::Never | Choice::Auto => "-".to_string(),
        Choice::FirstN(policy) => format!("{} connections", policy.connections),
        Choice::DecisionTree(tree) => {
            let mut hasher = DefaultHasher::new();
            tree.to_string().hash(&mut hasher);
            format!("model {:08x} of {} nodes", hasher.finish() as u32, tree.nodes().len())
        }
        Choice::FastestFlow { packets_per_s } => format!("{packets_per_s} packets/s"),
        Choice::HeavyHitter(policy) => {
            let packets = policy.packets.map(|packets| format!("{packets} packets"));
            let bytes = policy.bytes.map(|bytes| format!("{bytes} bytes"));
            let thresholds = [packets, bytes, policy.duration.map(duration)];
            format!("{} of {}", policy.combine.word(), list(&thresholds.into_iter().flatten().collect::<Vec<_>>()))
        }
    }
}

/// In the order of the file.
const SETTINGS: [Setting; 78] = [
    anew("instance", |c| c.settings.instance.clone()),
    later("interfaces", |c| list(&c.settings.interfaces)),
    anew("plane", |c| c.settings.plane.name().to_string()),
    later("workers", |c| c.settings.workers.map_or("auto".to_string(), |workers| workers.to_string())),
    later("connection_table", |c| c.settings.connection_table.name().to_string()),
    live("keys_file", shared_keys),
    live("[api] state", |c| c.settings.api.as_ref().map_or("none".to_string(), |api| api.state.display().to_string())),
    live("[api] listen", |c| remote_api(c, |r| Some(r.listen.to_string()))),
    live("[api] certificate", |c| remote_api(c, |r| Some(r.certificate.display().to_string()))),
    live("[api] client_roots", |c| remote_api(c, |r| r.client_roots.as_ref().map(|file| file.display().to_string()))),
    live("[api] tokens", |c| remote_api(c, |r| r.tokens.as_ref().map(|file| file.display().to_string()))),
    later("[limits] connections_max", |c| c.settings.connections_max.to_string()),
    later("[limits] http_connections_max", |c| {
        c.settings.http_connections_max.map_or("as many as fit".to_string(), |count| count.to_string())
    }),
    later("[limits] limited_clients_max", |c| c.settings.limited_clients_max.to_string()),
    anew("[limits] rules_max", |c| c.settings.rules_max.to_string()),
    anew("[limits] memory_directory", |c| c.settings.memory_directory.display().to_string()),
    live("[limits] when_full", |c| c.snapshot.when_full.word().to_string()),
    live("[limits] drain_limit", |c| limit(c.settings.drain_limit)),
    live("[limits] upgrade_drain_limit", |c| duration(c.settings.upgrade_drain_limit)),
    later("[offload] policy", |c| c.settings.policy.word().to_string()),
    later("[offload] set_up", |c| c.settings.set_up.word().to_string()),
    later("[offload], numbers of the policy", numbers),
    live("[pool] addresses", |c| list(&c.snapshot.pool.addresses)),
    live("[pool] ports", |c| format!("{}-{}", c.snapshot.pool.port_first, c.snapshot.pool.port_last)),
    live("[pool] time_wait", |c| duration(c.snapshot.pool.time_wait)),
    later("[linux] forwarding", |c| c.settings.linux.forwarding.word().to_string()),
    live("[linux] when_absent", |c| c.settings.linux.when_absent.word().to_string()),
    live("[linux] serve_for", |c| duration(c.settings.linux.serve_for)),
    live("[linux] heartbeat_timeout", |c| duration(c.settings.linux.heartbeat_timeout)),
    live("[linux] policer_floor", |c| c.settings.linux.policer_floor.to_string()),
    live("[linux] policer_ceiling", |c| c.settings.linux.policer_ceiling.to_string()),
    live("[linux] policer_backend", |c| c.settings.linux.policer_backend.to_string()),
    live("[linux] handover_bound", |c| duration(c.settings.linux.handover_bound)),
    later("[linux] tap_queue", |c| c.settings.linux.tap_queue.to_string()),
    later("[linux] coalesce", |c| duration(c.settings.linux.coalesce)),
    later("[linux] attach", |c| c.settings.linux.attach.word().to_string()),
    anew("[linux] pin_directory", |c| c.settings.linux.pin_directory.display().to_string()),
    later("[dpdk] pages", |c| dpdk(c, |d| d.pages.word().to_string())),
    later("[dpdk] memory", |c| dpdk(c, |d| format!("{} MiB", d.memory_mib))),
    later("[dpdk] mbufs", |c| dpdk(c, |d| d.mbufs.map_or("auto".to_string(), |mbufs| mbufs.to_string()))),
    later("[dpdk] idle", |c| dpdk(c, |d| d.idle.word().to_string())),
    later("[dpdk] marks", |c| dpdk(c, |d| d.marks.to_string())),
    later("[dpdk] port_rules", |c| dpdk(c, |d| d.port_rules.to_string())),
    live("[dpdk] health", |c| dpdk(c, |d| d.probes.word().to_string())),
    later("[dpdk] routes", |c| dpdk(c, routes)),
    later("[[dpdk.port]] device", |c| ports(c, |p| p.device.clone())),
    later("[[dpdk.port]] addresses", |c| ports(c, |p| list(&p.addresses))),
    later("[[dpdk.port]], other fields", |c| ports(c, other_fields)),
    anew("[control] directory", |c| c.settings.control_directory.display().to_string()),
    live("[log] format", |c| c.settings.log.format.word().to_string()),
    live("[log] level", |c| c.settings.log.level.word().to_string()),
    live("[access_log] to", |c| of_access_log(c, |log| log.to.to_string())),
    live("[access_log] format", |c| of_access_log(c, |log| log.form.to_string())),
    later("[access_log] buffer", |c| of_access_log(c, |log| log.buffer.to_string())),
    live("[tracing] endpoint", |c| of_tracing(c, |t| t.collector.endpoint.to_string())),
    live("[tracing] endpoint_roots", |c| of_tracing(c, |t| t.collector.roots.display().to_string())),
    live("[tracing] headers_file", |c| of_tracing(c, tracing_headers)),
    live("[tracing] timeout", |c| of_tracing(c, |t| duration(t.collector.timeout))),
    live("[tracing] service_name", |c| of_tracing(c, |t| t.service_name.clone())),
    live("[tracing] sample", |c| of_tracing(c, |t| t.sample.to_string())),
    live("[tracing] parents", |c| of_tracing(c, |t| t.parents.word().to_string())),
    live("[tracing] queue", |c| of_tracing(c, |t| t.queue.to_string())),
    live("[[monitor]]", |c| list(&c.settings.monitors)),
    later("[metrics] listen", |c| c.settings.metrics.map_or("off".to_string(), |listen| listen.to_string())),
    later("[metrics] hosts", |c| list(&c.settings.metrics_hosts)),
    live("[acme] directory", |c| acme(c, |a| a.authority.directory.clone())),
    live("[acme] directory_roots", |c| acme(c, |a| a.authority.roots.display().to_string())),
    live("[acme] contact", |c| acme(c, |a| list(&a.authority.contact))),
    live("[acme] challenge, state", |c| acme(c, |a| format!("{}, {}", a.challenge.name(), a.state.display()))),
    live("[acme] external_account", |c| {
        acme(c, |a| a.authority.external_account.as_ref().map_or("none", |(id, _)| id).to_string())
    }),
    live("[resolver]", resolver),
    live("[timeouts] tcp_handshake", |c| duration(c.settings.timeouts.tcp_handshake)),
    live("[timeouts] tcp_established", |c| duration(c.settings.timeouts.tcp_established)),
    live("[timeouts] tcp_half_closed", |c| duration(c.settings.timeouts.tcp_half_closed)),
    live("[timeouts] tcp_closed", |c| duration(c.settings.timeouts.tcp_closed)),
    live("[timeouts] tcp_reset", |c| duration(c.settings.timeouts.tcp_reset)),
    live("[timeouts] udp_new", |c| duration(c.settings.timeouts.udp_new)),
    live("[timeouts] udp_established", |c| duration(c.settings.timeouts.udp_established)),
];

/// The file and what its keys are called.
fn shared_keys(config: &Config) -> String {
    let said = |file: &PathBuf| format!("{} ({})", file.display(), keys::said(&config.snapshot.keys));
    config.settings.keys_file.as_ref().map_or("none".to_string(), said)
}

fn of_access_log(config: &Config, text: impl Fn(&AccessLogSettings) -> String) -> String {
    config.settings.access_log.as_ref().map_or("none".to_string(), text)
}

fn of_tracing(config: &Config, text: impl Fn(&TracingSettings) -> String) -> String {
    config.settings.tracing.as_ref().map_or("none".to_string(), text)
}

/// The file and the names of its headers. Their values are secrets.
fn tracing_headers(tracing: &TracingSettings) -> String {
    let names: Vec<&str> = tracing.collector.headers.keys().map(|name| name.as_str()).collect();
    let said = |file: &PathBuf| format!("{} ({})", file.display(), names.join(", "));
    tracing.collector.headers_file.as_ref().map_or("none".to_string(), said)
}

fn remote_api(config: &Config, text: impl Fn(&RemoteSettings) -> Option<String>) -> String {
    let remote = config.settings.api.as_ref().and_then(|api| api.remote.as_ref());
    remote.and_then(text).unwrap_or_else(|| "none".to_string())
}

fn acme(config: &Config, text: impl Fn(&AcmeSettings) -> String) -> String {
    config.settings.acme.as_ref().map_or("none".to_string(), text)
}

fn resolver(config: &Config) -> String {
    let resolver = &config.settings.resolver;
    let servers = match &resolver.servers[..] {
        [] => "those of /etc/resolv.conf".to_string(),
        servers => list(servers),
    };
    format!(
        "servers {servers}, ttl_min {}, ttl_max {}, timeout {}, retries {}, addresses_max {}, hold {}, keep {}, state {}",
        duration(resolver.ttl_min),
        duration(resolver.ttl_max),
        duration(resolver.timeout),
        resolver.retries,
        resolver.addresses_max,
        duration(resolver.hold),
        duration(resolver.keep),
        resolver.state.display()
    )
}

fn dpdk(config: &Config, text: impl Fn(&DpdkSettings) -> String) -> String {
    config.settings.dpdk.as_ref().map(text).unwrap_or_default()
}

fn ports(config: &Config, text: impl Fn(&PortSettings) -> String) -> String {
    dpdk(config, |dpdk| dpdk.ports.iter().map(&text).collect::<Vec<_>>().join(", "))
}

fn routes(dpdk: &DpdkSettings) -> String {
    let routes = dpdk.routes.iter().map(|route| format!("{} via {}", route.network, route.gateway));
    list(&routes.collect::<Vec<_>>())
}

fn other_fields(port: &PortSettings) -> String {
    let queues = port.queues.map_or("auto".to_string(), |queues| queues.to_string());
    format!(
        "gateway {}, mtu {}, queues {queues}, {} and {} descriptors, promiscuous {}",
        list(&port.gateways),
        port.mtu,
        port.rx_descriptors,
        port.tx_descriptors,
        port.promiscuous
    )
}

/// A service with what the workers need not know of it, and what holds where it does not say otherwise.
#[derive(Clone, Copy)]
struct DiffSide<'a> {
    service: &'a Service,
    settings: &'a ServiceSettings,
    common: &'a Settings,
}

fn sides(config: &Config) -> impl Iterator<Item = DiffSide<'_>> {
    let services = config.snapshot.services.iter().zip(&config.services);
    services.map(|(service, settings)| DiffSide { service, settings, common: &config.settings })
}

fn services(out: &mut Vec<String>, running: &Config, new: &Config) {
    let mut before: HashMap<Identity<'_>, DiffSide<'_>> =
        sides(running).map(|side| (Identity::of(side.service), side)).collect();
    for side in sides(new) {
        match before.remove(&Identity::of(side.service)) {
            Some(before) => service(out, before, side),
            None => out.push(added(side)),
        }
    }
    for side in sides(running).filter(|side| before.contains_key(&Identity::of(side.service))) {
        let service = side.service;
        let end = if service.kind.is_spliced() { ENDED.to_string() } else { go_on(service.drain_limit) };
        out.push(format!("{} removed; {end}", called(service)));
    }
}

const ENDED: &str = "its connections are ended";

/// Its kind and its name.
fn called(service: &Service) -> String {
    format!("{} {}", if service.kind.is_group() { "group" } else { "service" }, service.name)
}

fn added(side: DiffSide<'_>) -> String {
    let service = side.service;
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut about = Vec::new();
    if !service.kind.is_group() {
        about.push(format!("{}/{}", service.endpoint, spoken(service)));
    }
    if !(service.kind.is_group() || service.kind.is_layer7()) {
        about.push(service.forwarding.word().to_string());
        if service.outer.encapsulation != Encapsulation::None {
            about.push(outer(&service.outer));
        }
    }
    about.push(service.algorithm.word().to_string());
    about.push(count(service.backends.len(), "backend"));
    if !side.settings.said.routes.is_empty() {
        about.push(count(side.settings.said.routes.len(), "route"));
    }
    format!("{} added: {}", called(service), about.join(", "))
}

/// The changes of a service or group.
fn service(out: &mut Vec<String>, before: DiffSide<'_>, after: DiffSide<'_>) {
    let who = called(after.service);
    let mut say = |name: &str, [before, after]: [String; 2], hint: &str| {
        if before != after {
            out.push(format!("{who}: {name}: {before} -> {after}{hint}"));
        }
    };
    let both = [before.service, after.service];
    say("name", both.map(|service| service.name.to_string()), "");
    say("protocol", both.map(|service| spoken(service).to_string()), "; connections that exist are ended");
    let header = both.map(|service| proxy(&service.kind));
    let ends = header.iter().any(|header| header == "off");
    say("proxy_protocol", header, if ends { "; connections that exist are ended" } else { "" });
    // A group has both from its service. What another protocol makes of them goes with `protocol`.
    if !after.service.kind.is_group() && before.service.kind.is_like(&after.service.kind) {
        if !after.service.kind.is_terminated() {
            say(
                "mode",
                both.map(|service| service.forwarding.word().to_string()),
                "; connections that exist keep theirs",
            );
            say("encapsulation", both.map(|service| outer(&service.outer)), "");
        }
        say("unknown", both.map(|service| service.unknown.word().to_string()), "");
    }
    say("balance", both.map(|service| service.algorithm.word().to_string()), "");
    say("hash_name", both.map(hash_name), "");
    say("all_down", both.map(|service| service.all_down.word().to_string()), "");
    if !after.service.kind.is_group() {
        times(&mut say, before, after);
    }
    for ((name, before), (_, after)) in health(&before.settings.health).into_iter().zip(health(&after.settings.health))
    {
        // A field that only one of the checks has goes with `health.check`.
        if let (Some(before), Some(after)) = (before, after) {
            say(&format!("health.{name}"), [before, after], "");
        }
    }
    let ejects = |side: DiffSide<'_>| side.settings.outlier.map_or("off".to_string(), |outlier| outlier.to_string());
    say("outlier", [before, after].map(ejects), "");
    say("queue", [before, after].map(|side| queue::said(side.settings.queue)), "");
    let log = |side: DiffSide<'_>| side.settings.access_log.as_ref().map_or("off".to_string(), ToString::to_string);
    let logs = [log(before), log(after)];
    if logs[0] != logs[1] {
        out.push(format!("{who}: access_log: {} -> {}", logs[0], logs[1]));
    }
    said(out, &who, &before.settings.said, &after.settings.said);
    let names = [before, after].map(|side| list(&side.settings.named));
    if names[0] != names[1] {
        out.push(format!("{who}: names of backends: {} -> {}", names[0], names[1]));
    }
    backends(out, before.service, after.service);
}

/// The header that a TCP service's connections to backends begin with.
fn proxy(kind: &Kind) -> String {
    match kind {
        Kind::Tls(tls) if tls.is_plain => tls.proxy_protocol.map_or("off", |version| match version {
            ProxyVersion::V1 => "v1",
            ProxyVersion::V2 => "v2",
        }),
        _ => "off",
    }
    .to_string()
}

/// The field or cookie that chooses backends.
fn hash_name(service: &Service) -> String {
    match &*service.hash_name {
        [] => "none".to_string(),
        name => String::from_utf8_lossy(name).into_owned(),
    }
}

/// The outer headers of direct server return.
fn outer(outer: &Outer) -> String {
    let mut said = outer.encapsulation.word().to_string();
    if outer.encapsulation == Encapsulation::Gue {
        said += &format!(" to port {}", outer.port);
    }
    if let Some(source) = outer.source {
        said += &format!(" from {}", IpAddr::from(source));
    }
    said
}

type Say<'a> = dyn FnMut(&str, [String; 2], &str) + 'a;

/// The timeouts. A group has them from its service, where it is said.
fn times(say: &mut Say<'_>, before: DiffSide<'_>, after: DiffSide<'_>) {
    let both = [before.service, after.service];
    let follows = |side: DiffSide<'_>| side.service.drain_limit == side.common.drain_limit;
    if !(follows(before) && follows(after)) {
        say("drain_limit", both.map(|service| limit(service.drain_limit)), "");
    }
    for (name, of) in TIMEOUTS {
        // Values that follow from [timeouts] are reported there.
        let follows = |side: DiffSide<'_>| of(&side.service.timeouts) == of(&side.common.timeouts);
        if !(follows(before) && follows(after)) {
            say(&format!("timeouts.{name}"), both.map(|service| duration(of(&service.timeouts))), "");
        }
    }
}

/// The changes of a service at layer 7. A field that only one of the protocols has goes with `protocol`.
fn said(out: &mut Vec<String>, who: &str, before: &HttpSections, after: &HttpSections) {
    for (name, now) in &after.fields {
        let was = before.fields.iter().find(|(known, _)| known == name);
        if let Some((_, was)) = was.filter(|(_, was)| was != now) {
            out.push(format!("{who}: {name}: {was} -> {now}"));
        }
    }
    list_changes(out, &format!("{who}: access rule"), &before.access, &after.access);
    list_changes(out, &format!("{who}: limit"), &before.limits, &after.limits);
    list_changes(out, &format!("{who}: route"), &before.routes, &after.routes);
}

/// The changes in a list whose order matters: between what both begin and end with, entry by entry.
fn list_changes(out: &mut Vec<String>, who: &str, before: &[String], after: &[String]) {
    let same = |(a, b): &(&String, &String)| a == b;
    let first = before.iter().zip(after).take_while(same).count();
    let (old, new) = (&before[first..], &after[first..]);
    let last = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let (old, new) = (&old[..old.len() - last], &new[..new.len() - last]);
    for at in 0..old.len().max(new.len()) {
        let number = first + at + 1;
        out.push(match (old.get(at), new.get(at)) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(old), Some(new)) => format!("{who} {number}: {old} -> {new}"),
            (None, Some(new)) => format!("{who} {number} added: {new}"),
            (Some(old), None) => format!("{who} {number} removed: {old}"),
            (None, None) => continue,
        });
    }
}

type TimeoutOf = fn(&Timeouts) -> Duration;

const TIMEOUTS: [(&str, TimeoutOf); 7] = [
    ("tcp_handshake", |timeouts| timeouts.tcp_handshake),
    ("tcp_established", |timeouts| timeouts.tcp_established),
    ("tcp_half_closed", |timeouts| timeouts.tcp_half_closed),
    ("tcp_closed", |timeouts| timeouts.tcp_closed),
    ("tcp_reset", |timeouts| timeouts.tcp_reset),
    ("udp_new", |timeouts| timeouts.udp_new),
    ("udp_established", |timeouts| timeouts.udp_established),
];

/// Every field of a health check, `None` where the check has no such field.
fn health(settings: &HealthSettings) -> Vec<(&'static str, Option<String>)> {
    let http = match &settings.check {
        Check::Http(http) | Check::Https(http) => Some(http),
        _ => None,
    };
    let udp = match &settings.check {
        Check::Udp { send, expect } => Some((send, expect)),
        _ => None,
    };
    let grpc = match &settings.check {
        Check::Grpc { service } => Some(service),
        _ => None,
    };
    let any = |checked: String| (settings.check != Check::None).then_some(checked);
    let or = |text: Option<&String>, default: &str| text.map_or(default.to_string(), |text| format!("{text:?}"));
    let passive = settings.passive;
    vec![
        ("check", Some(settings.kind().word().to_string())),
        ("interval", any(duration(settings.interval))),
        ("timeout", any(duration(settings.timeout))),
        ("rise", any(settings.rise.to_string())),
        ("fall", any(settings.fall.to_string())),
        ("port", any(settings.port.map_or("each backend's own".to_string(), |port| port.to_string()))),
        ("method", http.map(|http| http.method.clone())),
        ("path", http.map(|http| http.path.clone())),
        ("host", http.map(|http| or(http.host.as_ref(), "the backend's address and port"))),
        ("status", http.map(|http| http.status.to_string())),
        ("body", http.map(|http| or(http.body.as_ref(), "anything"))),
        ("grpc_service", grpc.map(|service| or(Some(service).filter(|it| !it.is_empty()), "the server as a whole"))),
        ("send", udp.map(|(send, _)| bytes(send))),
        ("expect", udp.map(|(_, expect)| expect.as_ref().map_or("any answer".to_string(), |expect| bytes(expect)))),
        ("passive", Some(passive.map_or(0, |passive| passive.failures).to_string())),
        ("passive_retry", passive.map(|passive| duration(passive.retry))),
        (
            "passive_status",
            passive.map(|_| settings.passive_status.as_ref().map_or("none".to_string(), ToString::to_string)),
        ),
        ("slow_start", Some(duration(settings.slow_start))),
    ]
}

/// The changes of a service's backends.
fn backends(out: &mut Vec<String>, before: &Service, after: &Service) {
    let mut known: HashMap<Endpoint, &Backend> =
        before.backends.iter().map(|backend| (backend.endpoint, backend)).collect();
    let service = called(after);
    for backend in &after.backends {
        let Some(before) = known.remove(&backend.endpoint) else {
            let address = backend.endpoint.to_string();
            let at = if *backend.name == *address { String::new() } else { format!(" ({address})") };
            let weight = if backend.weight == 1 { String::new() } else { format!(", weight {}", backend.weight) };
            let state = match backend.state {
                BackendState::Enabled => String::new(),
                state => format!(", {}", state.word()),
            };
            let backup = if backend.is_backup { ", backup" } else { "" };
            out.push(format!("{service}: backend {}{at} added{weight}{state}{backup}", backend.name));
            continue;
        };
        let who = format!("{service}: backend {}", backend.name);
        if before.name != backend.name {
            out.push(format!("{who}: name: {} -> {}", before.name, backend.name));
        }
        if before.weight != backend.weight {
            out.push(format!("{who}: weight: {} -> {}", before.weight, backend.weight));
        }
        if before.connections_max != backend.connections_max {
            out.push(format!("{who}: connections_max: {} -> {}", before.connections_max, backend.connections_max));
        }
        if before.is_backup != backend.is_backup {
            out.push(format!("{who}: backup: {} -> {}", before.is_backup, backend.is_backup));
        }
        if before.state != backend.state {
            let hint = match backend.state {
                BackendState::Draining => format!("; {}", go_on(after.drain_limit)),
                BackendState::Disabled => "; its connections are ended".to_string(),
                BackendState::Enabled | BackendState::Removed => String::new(),
            };
            out.push(format!("{who}: state: {} -> {}{hint}", before.state.word(), backend.state.word()));
        }
    }
    for backend in before.backends.iter().filter(|backend| known.contains_key(&backend.endpoint)) {
        out.push(format!("{service}: backend {} removed; {}", backend.name, go_on(after.drain_limit)));
    }
}

fn go_on(drain_limit: Duration) -> String {
    match drain_limit.is_zero() {
        true => "its connections go on until they end".to_string(),
        false => format!("its connections go on for up to {}", duration(drain_limit)),
    }
}

fn limit(drain_limit: Duration) -> String {
    if drain_limit.is_zero() { "until they end".to_string() } else { duration(drain_limit) }
}

fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

fn list<T: ToString>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
}

/// Text in quotes where it is text, else hexadecimal digits.
fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
