//! Reads what is about the instance as a whole.

use super::dpdk;
use super::offload;
use super::reader::{self, TomlTable};
use super::words::PlaneChoice;
use super::{
    Common, DpdkSettings, INTERFACES_MAX, LinuxSettings, LogSettings, POOL_ADDRESSES_MAX, SetUpChoice, Settings,
    WhenAbsent, reference,
};
use crate::names::ResolverSettings;
use hairpin_core::config::{Pool, Timeouts};
use hairpin_core::table::LookupMethod;
use hairpin_diagnostics::{At, Sink};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Names in `hosts` of `[metrics]` at most.
const METRICS_HOSTS_MAX: usize = 16;
/// Bytes of the name of a host at most.
const HOST_BYTES_MAX: usize = 253;

/// The settings; `None` if one without default is wrong. All mistakes are reported.
pub(super) fn read<'a>(
    sink: &'a Sink<'a>,
    top: &TomlTable<'a>,
    limits: &TomlTable<'a>,
    common: &Common,
) -> Option<Settings> {
    let offload = top.table("offload", &reference::OFFLOAD);
    let control = top.table("control", &reference::CONTROL);
    let metrics = top.table("metrics", &reference::METRICS);
    let log = top.table("log", &reference::LOG);
    let (format, level) = (log.choice("format"), log.choice("level"));
    let plane = top.choice("plane");

    let instance = top.name("instance");
    let is_dpdk = plane == Some(PlaneChoice::Dpdk);
    let interfaces = if is_dpdk { Vec::new() } else { read_interfaces(sink, top) };
    let connection_table: Option<LookupMethod> = top.choice("connection_table");
    let policy = offload.choice("policy");
    let choice = policy.and_then(|policy| offload::read(sink, &offload, policy));
    let set_up = offload::read_set_up(sink, &offload, (plane, policy, connection_table));
    let dpdk = is_dpdk.then(|| read_dpdk(sink, top));
    let memory_directory = absolute_path(sink, limits, "memory_directory");
    let control_directory = absolute_path(sink, &control, "directory");
    let (metrics, metrics_hosts) = (read_metrics(sink, &metrics), read_hosts(sink, &metrics));
    if plane == Some(PlaneChoice::Linux) && top.has("dpdk") {
        let remedy = "write plane = \"dpdk\", or leave it out";
        sink.warning(&top.span_of("dpdk"), "[dpdk] means nothing with `plane = \"linux\"`", remedy);
    }
    let linux = read_linux(sink, &top.table("linux", &reference::LINUX), set_up);
    if matches!(dpdk, Some(None)) {
        return None;
    }
    Some(Settings {
        instance: instance?.value,
        keys_file: None,
        api: None,
        acme: None,
        plane: plane?,
        interfaces,
        workers: top.integer("workers").and_then(|workers| u16::try_from(workers).ok()),
        connection_table: connection_table?,
        connections_max: number(limits, "connections_max"),
        http_connections_max: limits.integer("http_connections_max").and_then(|count| u32::try_from(count).ok()),
        limited_clients_max: number(limits, "limited_clients_max"),
        rules_max: number(limits, "rules_max"),
        memory_directory: memory_directory?,
        drain_limit: common.drain_limit,
        upgrade_drain_limit: limits.duration("upgrade_drain_limit"),
        policy: policy?,
        offload: choice?,
        set_up: set_up?,
        control_directory: control_directory?,
        log: LogSettings { format: format?, level: level? },
        access_log: None,
        tracing: None,
        monitors: Vec::new(),
        resolver: ResolverSettings::default(),
        metrics: metrics?,
        metrics_hosts: metrics_hosts?,
        timeouts: common.timeouts,
        linux: linux?,
        dpdk: dpdk.flatten(),
    })
}

/// Settings of the dpdk plane, and what a file for it must not say.
fn read_dpdk<'a>(sink: &'a Sink<'a>, top: &TomlTable<'a>) -> Option<DpdkSettings> {
    if !PlaneChoice::Dpdk.is_built_in() {
        let remedy = "build it with DPDK (Debian: libdpdk-dev; `cargo build --release -p hairpin --features dpdk`), or use \
                      plane = \"linux\"";
        sink.error(&top.span_of("plane"), "`plane` is \"dpdk\", which this Hairpin was built without", remedy);
    }
    if top.has("interfaces") {
        let remedy = "name ports, each in a [[dpdk.port]]";
        sink.error(&top.span_of("interfaces"), "`interfaces` are the linux plane's", remedy);
    }
    if top.has("linux") {
        sink.warning(&top.span_of("linux"), "[linux] means nothing with `plane = \"dpdk\"`", "leave it out");
    }
    dpdk::read(sink, &top.table("dpdk", &reference::DPDK))
}

/// The address that serves metrics: `Some(None)` if there is none, `None` if the text is wrong.
fn read_metrics(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<Option<SocketAddr>> {
    let text = table.text("listen")?;
    if text.value == "off" {
        return Some(None);
    }
    let remedy = "write \"127.0.0.1:9560\", \"[::1]:9560\" or \"off\"";
    let Ok(address) = text.value.parse::<SocketAddr>() else {
        sink.error(&text.span, format!("`listen` is \"{}\", not an address and port", text.value), remedy);
        return None;
    };
    if address.port() == 0 || address.ip().is_multicast() {
        let wrong = if address.port() == 0 { "port 0" } else { "a multicast address" };
        sink.error(&text.span, format!("`listen` is \"{}\", with {wrong}", text.value), remedy);
        return None;
    }
    if !address.ip().to_canonical().is_loopback() {
        let what = format!("`listen` is \"{}\", not a loopback address", text.value);
        let remedy = "every host that reaches it can read the names and addresses of all services and backends: use \
                      \"127.0.0.1:9560\", or see to it that only your monitoring reaches it";
        sink.warning(&text.span, what, remedy);
    }
    Some(Some(address))
}

/// Names by which browsers may ask for the page, in small letters; `None` if one is wrong.
fn read_hosts(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<Vec<String>> {
    let texts = table.texts("hosts");
    if texts.len() > METRICS_HOSTS_MAX {
        let what = format!("`hosts` has {} names", texts.len());
        sink.error(&table.span_of("hosts"), what, format!("have {METRICS_HOSTS_MAX} at most"));
        return None;
    }
    let is_name = |text: &str| {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        !text.is_empty() && text.len() <= HOST_BYTES_MAX && text.bytes().all(is_right)
    };
    let wrong: Vec<_> = texts.iter().filter(|text| !is_name(&text.value)).collect();
    for text in &wrong {
        let remedy = "write a name without scheme and port, such as \"edge.example.com\"";
        sink.error(&text.span, format!("`hosts` has \"{}\", which is no name of a host", text.value), remedy);
    }
    wrong.is_empty().then(|| texts.iter().map(|text| text.value.to_ascii_lowercase()).collect())
}

pub(super) fn number(table: &TomlTable<'_>, name: &str) -> u32 {
    table.integer(name).and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX)
}

pub(super) fn read_timeouts(table: &TomlTable<'_>) -> Timeouts {
    Timeouts {
        tcp_handshake: table.duration("tcp_handshake"),
        tcp_established: table.duration("tcp_established"),
        tcp_half_closed: table.duration("tcp_half_closed"),
        tcp_closed: table.duration("tcp_closed"),
        tcp_reset: table.duration("tcp_reset"),
        udp_new: table.duration("udp_new"),
        udp_established: table.duration("udp_established"),
    }
}

/// Syntax only: whether they exist is seen at the start, on the machine that runs them.
fn read_interfaces(sink: &Sink<'_>, top: &TomlTable<'_>) -> Vec<String> {
    if !top.has("interfaces") {
        // Without services there is nothing to balance.
        if top.has("service") || !top.has("monitor") {
            top.missing("interfaces");
        }
        return Vec::new();
    }
    let names = top.texts("interfaces");
    for (index, name) in names.iter().enumerate() {
        let text = &name.value;
        if interface_name(sink, name) && names[..index].iter().any(|earlier| earlier.value == *text) {
            sink.error(&name.span, format!("interface \"{text}\" is named twice"), "leave one out");
        }
    }
    let span = top.span_of("interfaces");
    let none = top.given("interfaces").is_some_and(reader::is_empty_list);
    if none {
        sink.error(&span, "`interfaces` names none", "name the interfaces that face clients and backends");
    } else if names.len() > INTERFACES_MAX {
        sink.error(&span, format!("{} interfaces", names.len()), format!("name {INTERFACES_MAX} at most"));
    }
    names.into_iter().map(|name| name.value).collect()
}

/// Whether an interface can have this name; if not, it is reported.
pub(super) fn interface_name(sink: &Sink<'_>, name: &At<String>) -> bool {
    let text = &name.value;
    let illegal = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.len() > 15 || text == "." || text == ".." || text.chars().any(illegal) {
        let what = format!("\"{text}\" cannot be the name of an interface");
        sink.error(&name.span, what, "names have 1 to 15 characters, none of them `/`, `:` or a space");
        return false;
    }
    if text == "lo" {
        let remedy = "name the interfaces that face clients and backends";
        sink.error(&name.span, "the loopback interface carries no packets of other hosts", remedy);
        return false;
    }
    true
}

fn read_linux(sink: &Sink<'_>, table: &TomlTable<'_>, set_up: Option<SetUpChoice>) -> Option<LinuxSettings> {
    let forwarding = table.choice("forwarding");
    let when_absent = table.choice("when_absent");
    if when_absent == Some(WhenAbsent::Serve) && set_up == Some(SetUpChoice::Worker) {
        let what = "`when_absent` is \"serve\", but workers set connections up, and end with the process";
        let remedy = "write set_up = \"engine\" in [offload], or when_absent = \"drop\"";
        sink.error(&table.span_of("when_absent"), what, remedy);
    }
    let attach = table.choice("attach");
    let pin_directory = absolute_path(sink, table, "pin_directory");
    let policer_floor = number(table, "policer_floor");
    let policer_ceiling = number(table, "policer_ceiling");
    if policer_floor > policer_ceiling {
        let given = if table.has("policer_ceiling") { "policer_ceiling" } else { "policer_floor" };
        let what = format!("`policer_ceiling` ({policer_ceiling}) is below `policer_floor` ({policer_floor})");
        sink.error(&table.span_of(given), what, "the rate moves between them: lower the one or raise the other");
    }
    Some(LinuxSettings {
        heartbeat_timeout: table.duration("heartbeat_timeout"),
        policer_floor,
        policer_ceiling,
        policer_backend: number(table, "policer_backend"),
        handover_bound: table.duration("handover_bound"),
        tap_queue: number(table, "tap_queue"),
        coalesce: table.duration("coalesce"),
        forwarding: forwarding?,
        when_absent: when_absent?,
        serve_for: table.duration("serve_for"),
        attach: attach?,
        pin_directory: pin_directory?,
    })
}

pub(super) fn absolute_path(sink: &Sink<'_>, table: &TomlTable<'_>, name: &str) -> Option<PathBuf> {
    let text = table.text(name)?;
    let path = PathBuf::from(&text.value);
    if path.is_absolute() && !text.value.contains('\0') {
        return Some(path);
    }
    let what = format!("`{name}` is \"{}\", not an absolute path", text.value);
    sink.error(&text.span, what, "start it with `/`");
    None
}

pub(super) fn read_pool(sink: &Sink<'_>, table: &TomlTable<'_>) -> At<Pool> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in table.texts("addresses") {
        let usable = match text.value.parse::<IpAddr>() {
            Ok(address) => reader::unicast(address).map(|()| address),
            Err(_) => {
                Err("is not an IP address; write \"10.0.2.1\" or \"fd00::1\", without port or prefix".to_string())
            }
        };
        match usable {
            Ok(address) if addresses.contains(&address) => {
                sink.error(&text.span, format!("pool address {address} is named twice"), "leave one out");
            }
            Ok(address) => addresses.push(address),
            Err(wrong) => sink.error(&text.span, format!("pool address \"{}\" {wrong}", text.value), ""),
        }
    }
    let span = table.span_of("addresses");
    if addresses.len() > POOL_ADDRESSES_MAX {
        sink.error(&span, format!("{} pool addresses", addresses.len()), format!("name {POOL_ADDRESSES_MAX} at most"));
    }
    let (port_first, port_last) = read_ports(sink, table).unwrap_or((1024, 65_535));
    let pool = Pool {
        addresses: addresses.into_iter().map(Into::into).collect(),
        port_first,
        port_last,
        time_wait: table.duration("time_wait"),
    };
    At { value: pool, span }
}

fn read_ports(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<(u16, u16)> {
    let text = table.text("ports")?;
    let ends = text
        .value
        .split_once('-')
        .and_then(|(first, last)| Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?)));
    let what = format!("`ports` is \"{}\"", text.value);
    match ends {
        Some((first, last)) if first > last => {
            sink.error(&text.span, what, format!("the first port comes first: \"{last}-{first}\""));
        }
        Some((first, _)) if first < 1024 => {
            sink.error(&text.span, what, "use ports from 1024 on: those below belong to services");
        }
        Some(ends) => return Some(ends),
        None => sink.error(&text.span, what, "write first and last port, such as \"16384-28671\""),
    }
    None
}
