//! Reads `[[service]]` tables.

use super::problem::Sink;
use super::reader::{At, Table, is_empty_list, socket_address};
use super::words::Word;
use super::{BACKENDS_MAX, Common, SERVICES_MAX, ServiceSettings, health, reference};
use hairpin_core::config::{Backend, BackendState, Service, ServiceState, Timeouts};
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::l7::config::Kind;
use std::net::SocketAddr;

/// A service as read, with where it stands.
pub(super) struct Draft {
    /// Its settings; `backends` are filled in by [`numbered`].
    pub(super) service: Service,
    pub(super) backends: Vec<At<Backend>>,
    /// What the workers need not know.
    pub(super) settings: ServiceSettings,
    /// Where `name` stands, or the table.
    pub(super) name: std::ops::Range<usize>,
    /// Where `listen` stands.
    pub(super) listen: std::ops::Range<usize>,
    /// Where `mode` stands, or the table.
    pub(super) mode: std::ops::Range<usize>,
    /// Where `balance` stands, or the table.
    pub(super) balance: std::ops::Range<usize>,
    /// Where `unknown` stands, or the table.
    pub(super) unknown: std::ops::Range<usize>,
    /// Where `passive` of the health checks stands, or the table.
    pub(super) passive: std::ops::Range<usize>,
    /// Whether the file gives `balance`.
    pub(super) says_balance: bool,
    /// Whether the file gives `unknown`.
    pub(super) says_unknown: bool,
}

/// The services whose end is right; all mistakes are reported.
pub(super) fn read<'a>(sink: &'a Sink<'a>, top: &Table<'a>, common: &Common) -> Vec<Draft> {
    let tables = top.tables("service", &reference::SERVICE);
    if !top.has("service") {
        sink.error(&(0..0), "there is no service", "add one: [[service]] with `listen` and `backends`");
    }
    if let Some(beyond) = tables.get(SERVICES_MAX) {
        sink.error(&beyond.span, format!("{} services", tables.len()), format!("have {SERVICES_MAX} at most"));
    }
    let drafts: Vec<Draft> = tables.iter().filter_map(|table| read_one(sink, table, common)).collect();
    let backends: usize = drafts.iter().map(|draft| draft.backends.len()).sum();
    if backends > BACKENDS_MAX {
        sink.error(&(0..0), format!("{backends} backends in all services"), format!("have {BACKENDS_MAX} at most"));
    }
    drafts
}

/// The services, their backends numbered through, and what the workers need not know of each.
pub(super) fn numbered(drafts: Vec<Draft>) -> (Box<[Service]>, Vec<ServiceSettings>) {
    let mut numbers = 0..;
    let mut service = |draft: Draft| {
        let backends = draft.backends.into_iter().map(|backend| backend.value);
        let numbered = backends.zip(&mut numbers).map(|(backend, number)| Backend { number, ..backend });
        (Service { backends: numbered.collect(), ..draft.service }, draft.settings)
    };
    let (services, settings): (Vec<_>, Vec<_>) = drafts.into_iter().map(&mut service).unzip();
    (services.into(), settings)
}

fn read_one<'a>(sink: &'a Sink<'a>, table: &Table<'a>, common: &Common) -> Option<Draft> {
    let listen = read_listen(sink, table);
    let name = table.name("name");
    let forwarding = table.choice("mode").unwrap_or_default();
    let algorithm = table.choice("balance").unwrap_or_default();
    let unknown = table.choice("unknown").unwrap_or_default();
    let all_down = table.choice("all_down").unwrap_or_default();
    let drain_limit = table.duration_given("drain_limit").unwrap_or(common.drain_limit);
    let timeouts = override_timeouts(&table.table("timeouts", &reference::TIMEOUTS), &common.timeouts);
    let protocol = listen.as_ref().map(|listen| listen.value.1);
    let health_table = table.table("health", &reference::HEALTH);
    let health = health::read(sink, &health_table, protocol);
    let backends = read_backends(sink, table);
    if backends.is_none() {
        let remedy = "add backends = [\"10.0.2.11:8080\"] or a [[service.backend]]";
        sink.error(&table.span, "the service has no backend", remedy);
    }

    let listen = listen?;
    let (address, protocol) = listen.value;
    let name_text = name.map_or_else(|| listen_text(address, protocol), |name| name.value);
    Some(Draft {
        service: Service {
            state: ServiceState::Active,
            name: name_text.into(),
            endpoint: Endpoint::new(address.ip(), address.port()),
            protocol,
            kind: Kind::Forward,
            forwarding,
            algorithm,
            unknown,
            timeouts,
            drain_limit,
            all_down,
            backends: Box::new([]),
        },
        backends: backends.unwrap_or_default(),
        settings: ServiceSettings { health },
        name: table.span_of("name"),
        listen: listen.span,
        mode: table.span_of("mode"),
        balance: table.span_of("balance"),
        unknown: table.span_of("unknown"),
        passive: health_table.span_of("passive"),
        says_balance: table.has("balance"),
        says_unknown: table.has("unknown"),
    })
}

fn listen_text(address: SocketAddr, protocol: Protocol) -> String {
    format!("{address}/{}", protocol.word())
}

fn read_listen(sink: &Sink<'_>, table: &Table<'_>) -> Option<At<(SocketAddr, Protocol)>> {
    if !table.has("listen") {
        table.missing("listen");
        return None;
    }
    let text = table.text("listen")?;
    let refuse = |wrong: &str| {
        sink.error(&text.span, format!("`listen` \"{}\" {wrong}", text.value), "");
        None
    };
    let Some((address, protocol)) = text.value.rsplit_once('/') else {
        return refuse(&format!("names no protocol; write \"{}/tcp\" or \"{0}/udp\"", text.value));
    };
    let Some(protocol) = Protocol::from_word(protocol) else {
        return refuse(&format!("has the unknown protocol \"{protocol}\"; use tcp or udp"));
    };
    match socket_address(address) {
        Ok(address) => Some(At { value: (address, protocol), span: text.span }),
        Err(wrong) => refuse(&wrong),
    }
}

/// `None` if the service names no backend at all.
fn read_backends<'a>(sink: &'a Sink<'a>, table: &Table<'a>) -> Option<Vec<At<Backend>>> {
    let tables = table.tables("backend", &reference::BACKEND);
    let texts = table.texts("backends");
    let wrong_already =
        table.has("backends") && texts.is_empty() && !table.given("backends").is_some_and(is_empty_list);
    if texts.is_empty() && tables.is_empty() && !wrong_already {
        return None;
    }
    let plain = texts.iter().filter_map(|text| {
        let endpoint = read_endpoint(sink, text)?;
        let backend =
            Backend { number: 0, name: text.value.clone().into(), endpoint, weight: 1, state: BackendState::Enabled };
        Some(At { value: backend, span: text.span.clone() })
    });
    let mut backends: Vec<At<Backend>> = plain.collect();
    backends.extend(tables.iter().filter_map(|table| read_backend(sink, table)));
    Some(backends)
}

fn read_backend(sink: &Sink<'_>, table: &Table<'_>) -> Option<At<Backend>> {
    if !table.has("address") {
        table.missing("address");
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
    };
    Some(At { value: backend, span: address.span })
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

fn override_timeouts(table: &Table<'_>, default: &Timeouts) -> Timeouts {
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
