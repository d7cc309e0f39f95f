//! Reads `[[service]]` tables.

use super::l7::{self, Targets, backend_tls};
use super::reader::{TomlTable, is_empty_list, socket_address};
use super::reference::ReferenceSection;
use super::words::{SettingWord, Spoken};
use super::{
    BACKENDS_MAX, Common, NamedBackends, Resolve, SERVICES_MAX, ServiceSettings, access, access_log, balance,
    encapsulation, group, health, limit, names, outlier, queue, reference, sharing,
};
use hairpin_core::access::NETWORKS_TOTAL_MAX;
use hairpin_core::config::{
    Algorithm, Backend, BackendState, Forwarding, Outer, Service, ServiceState, Timeouts, UnknownPacket,
};
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::Kind;
use hairpin_diagnostics::{At, Sink};
use std::net::SocketAddr;
use std::ops::Range;

/// A service as read, with where it stands.
pub(super) struct ServiceDraft {
    /// Its settings; `backends` are filled in by [`numbered`].
    pub(super) service: Service,
    pub(super) backends: Vec<At<Backend>>,
    /// The part that workers do not need.
    pub(super) settings: ServiceSettings,
    /// The position of `name`, or of the table.
    pub(super) name: Range<usize>,
    /// The position of `listen`.
    pub(super) listen: Range<usize>,
    /// The position of `mode`, or of the table.
    pub(super) mode: Range<usize>,
    /// The position of `balance`, or of the table.
    pub(super) balance: Range<usize>,
    /// The position of `unknown`, or of the table.
    pub(super) unknown: Range<usize>,
    /// The position of `acme` of [service.https], or of the table.
    pub(super) acme: Range<usize>,
    /// The position of `passive` of the health checks, or of the table.
    pub(super) passive: Range<usize>,
    /// Whether the file gives `balance`.
    pub(super) says_balance: bool,
    /// Whether the file gives `unknown`.
    pub(super) says_unknown: bool,
    /// The service whose routes and backends it has.
    pub(super) routes_of: Option<At<String>>,
}

/// The services whose end is right, each with its groups behind it; all mistakes are reported.
pub(super) fn read<'a>(sink: &'a Sink<'a>, top: &TomlTable<'a>, common: &Common) -> Vec<ServiceDraft> {
    let tables = top.tables("service", &reference::SERVICE);
    if !top.has("service") && !top.has("monitor") {
        sink.error(&(0..0), "there is no service", "add one: [[service]] with `listen` and `backends`");
    }
    let mut drafts: Vec<ServiceDraft> = Vec::new();
    for table in &tables {
        let number = u16::try_from(drafts.len()).unwrap_or(u16::MAX);
        drafts.extend(read_one(sink, table, common, number));
    }
    sharing::resolve(sink, &mut drafts);
    l7::share_pages(sink, &mut drafts);
    if let Some(beyond) = tables.get(SERVICES_MAX) {
        sink.error(&beyond.span, format!("{} services", tables.len()), format!("have {SERVICES_MAX} at most"));
    } else if let Some(beyond) = drafts.get(SERVICES_MAX) {
        let what = format!("{} services and groups", drafts.len());
        sink.error(&beyond.name, what, format!("have {SERVICES_MAX} at most"));
    }
    let networks = drafts.iter().filter_map(|draft| draft.settings.access.as_ref()).map(|list| list.prefixes().len());
    let networks: usize = networks.sum();
    if networks > NETWORKS_TOTAL_MAX {
        let what = format!("{networks} networks in the access rules of all services");
        sink.error(&(0..0), what, format!("have {NETWORKS_TOTAL_MAX} at most"));
    }
    let backends: usize = drafts.iter().map(|draft| draft.backends.len()).sum();
    if backends > BACKENDS_MAX {
        sink.error(&(0..0), format!("{backends} backends in all services"), format!("have {BACKENDS_MAX} at most"));
    }
    drafts
}

/// The services, their backends numbered through, and what the workers need not know of each.
pub(super) fn numbered(drafts: Vec<ServiceDraft>) -> (Box<[Service]>, Vec<ServiceSettings>) {
    let mut numbers = 0..;
    let mut service = |draft: ServiceDraft| {
        let backends = draft.backends.into_iter().map(|backend| backend.value);
        let numbered = backends.zip(&mut numbers).map(|(backend, number)| Backend { number, ..backend });
        (Service { backends: numbered.collect(), ..draft.service }, draft.settings)
    };
    let (services, settings): (Vec<_>, Vec<_>) = drafts.into_iter().map(&mut service).unzip();
    (services.into(), settings)
}

/// The service and its groups; nothing if it is not known where it listens.
fn read_one<'a>(sink: &'a Sink<'a>, table: &TomlTable<'a>, common: &Common, number: u16) -> Vec<ServiceDraft> {
    let listen = read_listen(table);
    let spoken = listen.spoken;
    let has_routes = spoken.is_some_and(Spoken::has_routes);
    let name = table.name("name").map(|name| name.value).unwrap_or_else(|| listen.text());
    let proxy = l7::of_tcp(table, spoken);
    let spliced = spoken.filter(|spoken| spoken.has_routes() || proxy.is_some());
    let forwarding = read_mode(table, spliced);
    let unknown = read_unknown(table, spliced, &name);
    let (algorithm, hash_name) = balance::read(table, spoken, None);
    let all_down = table.choice("all_down").unwrap_or_default();
    let drain_limit = table.duration_given("drain_limit").unwrap_or(common.drain_limit);
    let timeouts = override_timeouts(&table.table("timeouts", &reference::TIMEOUTS), &common.timeouts);
    let protocol = spoken.map(Spoken::transport);
    let health_table = table.table("health", &reference::HEALTH);
    let health = health::read(sink, &health_table, spoken);
    let access_log = access_log::read_service(sink, table, spoken, common.has_access_log);
    let is_ipv6 = listen.address.is_some_and(|address| address.is_ipv6());
    let backends = read_backends(sink, table, &reference::BACKEND, is_ipv6);
    let needs_none = has_routes && (table.has("route") || table.has(sharing::FIELD) || l7::redirects(table));
    if backends.is_none() && !needs_none {
        let remedy = "add backends = [\"10.0.2.11:8080\"] or a [[service.backend]]";
        sink.error(&table.span, "the service has no backend", remedy);
    }
    let Backends { listed, named } = backends.unwrap_or_default();
    warn_of_weights(table, algorithm, &named);
    let mut draft = ServiceDraft {
        service: Service {
            state: ServiceState::Active,
            name: name.as_str().into(),
            endpoint: listen.address.map(|address| Endpoint::new(address.ip(), address.port())).unwrap_or_default(),
            protocol: protocol.unwrap_or_default(),
            kind: Kind::Forward,
            forwarding,
            outer: Outer::default(),
            algorithm,
            hash_name,
            unknown,
            access: None,
            limits: Box::default(),
            timeouts,
            drain_limit,
            all_down,
            faulty: health.faulty(),
            is_recorded: false,
            backends: Box::new([]),
        },
        settings: ServiceSettings {
            health,
            outlier: outlier::read(table, &reference::OUTLIER, spoken, None),
            queue: queue::read(table, &reference::QUEUE, None),
            access_log,
            access: None,
            limits: Box::default(),
            route_count: 0,
            said: Default::default(),
            https: None,
            backend_tls: None,
            backend_http2: false,
            listed: listed.len(),
            named,
        },
        name: table.span_of("name"),
        mode: match proxy {
            _ if has_routes => listen.span.clone(),
            Some(_) => table.span_of("proxy_protocol"),
            None => table.span_of("mode"),
        },
        listen: listen.span,
        balance: table.span_of("balance"),
        unknown: table.span_of("unknown"),
        acme: l7::span_of_acme(table),
        passive: health_table.span_of("passive"),
        says_balance: table.has("balance"),
        says_unknown: table.has("unknown") && !has_routes,
        routes_of: None,
        backends: listed,
    };
    draft.service.outer = encapsulation::read(table, &draft);
    let with_groups = spoken.map_or_else(Vec::new, |spoken| {
        let to_backends = read_to_backends(table, &health_table, spoken, &mut draft);
        if let Some(version) = proxy {
            draft.service.kind = l7::plain(table, version, number);
        }
        routed(sink, table, spoken, (draft, number), to_backends)
    });
    if listen.address.is_some() { with_groups } else { Vec::new() }
}

/// Adds what an HTTP or TLS service has beside others; its groups come behind it.
fn routed<'a>(
    sink: &'a Sink<'a>,
    table: &TomlTable<'a>,
    spoken: Spoken,
    (mut draft, number): (ServiceDraft, u16),
    to_backends: [(String, String); 2],
) -> Vec<ServiceDraft> {
    l7::foreign(table, spoken, &draft.service.name);
    let (limits, said_limits) = limit::read(table, spoken, &draft.service.name);
    draft.settings.limits = limits;
    if !spoken.has_routes() {
        draft.settings.said.limits = said_limits;
        (draft.settings.access, draft.settings.said.access) = access::read(table, spoken);
        return vec![draft];
    }
    draft.routes_of = sharing::read(table).filter(|_| spoken != Spoken::Tls);
    let (groups, names) = group::read(sink, table, &draft, spoken);
    let has_own = !draft.backends.is_empty() || !draft.settings.named.is_empty();
    let targets = Targets { service: draft.service.name.to_string(), number, has_own, groups: names };
    (draft.service.kind, draft.settings.said, draft.settings.https) = l7::read(table, spoken, &targets);
    draft.settings.said.limits = said_limits;
    draft.settings.route_count = draft.settings.said.routes.len() as u16;
    // Of a service that follows another one the routes are not known yet.
    if draft.routes_of.is_none() {
        access_log::judge_routes(sink, &table.span_of("access_log"), &draft.settings);
    }
    if spoken.is_http() {
        draft.settings.said.fields.extend(to_backends);
    } else {
        (draft.settings.access, draft.settings.said.access) = access::read(table, spoken);
    }
    if spoken != Spoken::Tls {
        let fields = &mut draft.settings.said.fields;
        fields.retain(|(field, _)| draft.routes_of.is_none() || sharing::is_own(field));
        let of = draft.routes_of.as_ref().map_or("none", |of| &of.value);
        fields.push((sharing::FIELD.to_string(), of.to_string()));
    }
    let mut all = vec![draft];
    all.extend(groups);
    all
}

/// Reads how the backends are spoken with, and judges their check by it: what the file says of it, for a comparison.
fn read_to_backends(
    table: &TomlTable<'_>,
    health_table: &TomlTable<'_>,
    spoken: Spoken,
    draft: &mut ServiceDraft,
) -> [(String, String); 2] {
    backend_tls::refuse(table, spoken, &draft.service.name);
    let http2 = spoken.is_http() && backend_tls::read_protocol(table).unwrap_or_default();
    let (options, said) = match spoken.is_http() {
        true => backend_tls::read(table, &reference::BACKEND_TLS, http2),
        false => (None, String::new()),
    };
    let settings = &mut draft.settings;
    let at = health_table.span_of("check");
    backend_tls::judge_check(health_table, &at, &settings.health, (spoken, options.is_some(), http2));
    (settings.backend_tls, settings.backend_http2) = (options, http2);
    [("backend_tls".to_string(), said), backend_tls::said_protocol(http2)]
}

/// `spliced`: what the service speaks, if its connections are not forwarded.
fn read_mode(table: &TomlTable<'_>, spliced: Option<Spoken>) -> Forwarding {
    let mode: Option<Forwarding> = table.choice("mode");
    let Some(spoken) = spliced else { return mode.unwrap_or_default() };
    let is_terminated = l7::is_terminated(table, spoken);
    let (means, remedy) = match is_terminated {
        // It has no packets to translate.
        true => (Forwarding::Nat, "its connections to backends are this host's own: leave `mode` out"),
        false => (Forwarding::FullNat, "its connections to backends are Hairpin's own, from [pool]: leave `mode` out"),
    };
    if let Some(mode) = mode.filter(|_| table.has("mode"))
        && (is_terminated || mode != means)
    {
        let what = format!("`mode` is \"{}\", but the service {}", mode.word(), is(spoken, l7::terminates(table)));
        table.error(&table.span_of("mode"), what, remedy);
    }
    means
}

/// What makes a service one that has no `mode`, or no `unknown`, of its own.
fn is(spoken: Spoken, field: Option<&str>) -> String {
    match spoken {
        Spoken::Http if let Some(field) = field => format!("has `{field}`"),
        Spoken::Tcp => "has `proxy_protocol`".to_string(),
        spoken => format!("is {}", spoken.word()),
    }
}

fn read_unknown(table: &TomlTable<'_>, spliced: Option<Spoken>, name: &str) -> UnknownPacket {
    let chosen: Option<UnknownPacket> = table.choice("unknown");
    let unknown = chosen.unwrap_or_default();
    let Some(spoken) = spliced else { return unknown };
    match unknown {
        // Packets of it reach a worker only while a reload is under way. Their sender repeats them.
        _ if l7::is_terminated(table, spoken) => {
            if chosen.is_some() && table.has("unknown") {
                let what = format!(
                    "`unknown` is \"{}\", but the service {}",
                    unknown.word(),
                    is(spoken, l7::terminates(table))
                );
                let remedy = "the kernel answers what belongs to none of its connections: leave `unknown` out";
                table.error(&table.span_of("unknown"), what, remedy);
            }
            UnknownPacket::Drop
        }
        // The default that the reference has is that of the other services.
        _ if !table.has("unknown") => UnknownPacket::Reset,
        UnknownPacket::PickUp => {
            let field = l7::terminates(table);
            let what = format!("`unknown = \"pick-up\"` means drop in service \"{name}\", which {}", is(spoken, field));
            table.warning(&table.span_of("unknown"), what, "use \"reset\" or \"drop\"");
            UnknownPacket::Drop
        }
        unknown => unknown,
    }
}

/// The valid part of `listen` and `protocol`.
struct Listen {
    address: Option<SocketAddr>,
    spoken: Option<Spoken>,
    span: Range<usize>,
}

impl Listen {
    fn text(&self) -> String {
        match (self.address, self.spoken) {
            (Some(address), Some(spoken)) => format!("{address}/{}", spoken.word()),
            _ => String::new(),
        }
    }
}

fn read_listen(table: &TomlTable<'_>) -> Listen {
    let span = table.span_of("listen");
    let protocol: Option<Spoken> = if table.has("protocol") { table.choice("protocol") } else { None };
    if !table.has("listen") {
        table.missing("listen");
        return Listen { address: None, spoken: protocol, span };
    }
    let Some(text) = table.text("listen") else { return Listen { address: None, spoken: protocol, span } };
    let refuse = |wrong: &str| table.error(&text.span, format!("`listen` \"{}\" {wrong}", text.value), "");
    let (address, suffix) = match text.value.rsplit_once('/') {
        Some((address, suffix)) => (address, Some(suffix)),
        None => (&*text.value, None),
    };
    let said = suffix.and_then(Spoken::from_word);
    match suffix {
        Some(suffix) if said.is_none() => {
            refuse(&format!("has the unknown protocol \"{suffix}\"; use tcp, udp, http, https or tls"));
            return Listen { address: None, spoken: protocol, span };
        }
        None if !table.has("protocol") => {
            refuse(&format!("names no protocol; write \"{}/tcp\", or with udp, http, https or tls", text.value));
            return Listen { address: None, spoken: None, span };
        }
        _ => {}
    }
    // Those over TCP may stand beside it.
    if let (Some(said), Some(protocol)) = (said, protocol)
        && said != protocol
        && (said != Spoken::Tcp || protocol == Spoken::Udp)
    {
        let what = format!("`protocol` is \"{}\", but `listen` says {}", protocol.word(), said.word());
        table.error(&table.span_of("protocol"), what, "say it once: leave `protocol` out");
    }
    let address = socket_address(address).inspect_err(|wrong| refuse(wrong)).ok();
    Listen { address, spoken: protocol.or(said), span }
}

/// The backends of a service or group.
#[derive(Default)]
pub(super) struct Backends {
    /// Those that the file gives an address.
    pub(super) listed: Vec<At<Backend>>,
    /// The names of others.
    pub(super) named: Vec<NamedBackends>,
}

/// `None` if the service or group names no backend at all. `is_ipv6`: the family that its backends have.
pub(super) fn read_backends<'a>(
    sink: &'a Sink<'a>,
    table: &TomlTable<'a>,
    section: &'static ReferenceSection,
    is_ipv6: bool,
) -> Option<Backends> {
    let tables = table.tables("backend", section);
    let texts = table.texts("backends");
    let wrong_already =
        table.has("backends") && texts.is_empty() && !table.given("backends").is_some_and(is_empty_list);
    if texts.is_empty() && tables.is_empty() && !wrong_already {
        return None;
    }
    let mut backends = Backends::default();
    for text in &texts {
        if let Some(named) = names::named(text, is_ipv6) {
            backends.named.push(named.value);
        } else if let Some(endpoint) = read_endpoint(sink, text) {
            let name = text.value.clone().into();
            let backend = Backend {
                number: 0,
                name,
                endpoint,
                weight: 1,
                state: BackendState::Enabled,
                is_backup: false,
                connections_max: 0,
            };
            backends.listed.push(At { value: backend, span: text.span.clone() });
        }
    }
    for table in &tables {
        let is_named = table.has("srv")
            || table.has("address") && table.text("address").is_some_and(|text| names::named(&text, is_ipv6).is_some());
        if is_named {
            backends.named.extend(names::read_backend(table, is_ipv6).map(|named| named.value));
        } else {
            backends.listed.extend(read_backend(sink, table));
        }
    }
    Some(backends)
}

/// Warns of SRV records whose weights are ignored.
pub(super) fn warn_of_weights(table: &TomlTable<'_>, algorithm: Algorithm, named: &[NamedBackends]) {
    if algorithm == Algorithm::RoundRobin && named.iter().any(|named| named.question.is_srv) {
        let what = "`srv` gives weights, which round-robin ignores";
        table.warning(&table.span_of("balance"), what, "use balance = \"weighted-round-robin\"");
    }
}

fn read_backend(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<At<Backend>> {
    if !table.has("address") {
        table.missing("address");
    }
    if table.choice("resolve") == Some(Resolve::One) {
        let remedy = "it is for backends with a name: leave it out";
        table.error(&table.span_of("resolve"), "`resolve` is \"one\" for an address", remedy);
    }
    let address = table.text("address");
    let endpoint = address.as_ref().and_then(|text| read_endpoint(sink, text));
    let name = table.name("name");
    let weight = table.integer("weight").and_then(|weight| u16::try_from(weight).ok());
    let state = table.choice("state");
    let address = address?;
    let backend = Backend {
        number: 0,
        name: name.map_or_else(|| address.value.clone(), |name| name.value).into(),
        endpoint: endpoint?,
        weight: weight.unwrap_or(1),
        state: state.unwrap_or_default(),
        is_backup: table.boolean("backup"),
        connections_max: connections_max(table),
    };
    Some(At { value: backend, span: address.span })
}

/// The limit of a backend.
pub(super) fn connections_max(table: &TomlTable<'_>) -> u32 {
    table.integer("connections_max").and_then(|most| u32::try_from(most).ok()).unwrap_or_default()
}

fn read_endpoint(sink: &Sink<'_>, text: &At<String>) -> Option<Endpoint> {
    match socket_address(&text.value) {
        Ok(address) => Some(Endpoint::new(address.ip(), address.port())),
        Err(wrong) => {
            sink.error(&text.span, format!("backend \"{}\" {wrong}", text.value), "");
            None
        }
    }
}

fn override_timeouts(table: &TomlTable<'_>, default: &Timeouts) -> Timeouts {
    let take = |name, default| table.duration_given(name).unwrap_or(default);
    Timeouts {
        tcp_handshake: take("tcp_handshake", default.tcp_handshake),
        tcp_established: take("tcp_established", default.tcp_established),
        tcp_half_closed: take("tcp_half_closed", default.tcp_half_closed),
        tcp_closed: take("tcp_closed", default.tcp_closed),
        tcp_reset: take("tcp_reset", default.tcp_reset),
        udp_new: take("udp_new", default.udp_new),
        udp_established: take("udp_established", default.udp_established),
    }
}
