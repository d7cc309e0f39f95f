//! Reads `[dpdk]`: the dpdk plane's ports, memory and routes.

use super::reader::{self, TomlTable};
use super::service::ServiceDraft;
use super::words::{SettingWord, spoken};
use super::{CheckKind, reference};
use hairpin_core::config::{Encapsulation, Forwarding, Pool, Service};
use hairpin_core::flow::Address;
use hairpin_diagnostics::{At, Sink};
use std::net::IpAddr;
use std::ops::Range;

/// Ports at most.
pub(crate) const PORTS_MAX: usize = 16;
/// Addresses of a port at most.
pub(crate) const ADDRESSES_MAX: usize = 16;
/// Routes at most.
pub(crate) const ROUTES_MAX: usize = 256;
/// Bytes of a device's name with its arguments at most.
pub(crate) const DEVICE_BYTES_MAX: usize = 255;
/// MiB of memory.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 64..=1 << 20;

/// The kind of pages that DPDK's memory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Hugepages if there are enough.
    Auto,
    /// Hugepages.
    Huge,
    /// Ordinary pages.
    None,
}

/// The behaviour of a worker while no packet comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleMode {
    /// It sleeps, briefly.
    Sleep,
    /// It looks again at once.
    Poll,
}

/// The policy for checks that need a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    /// They are refused.
    None,
    /// The kernel reaches the backends by another way.
    Kernel,
}

/// An address and the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixedAddress {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix: u8,
}

impl PrefixedAddress {
    /// Whether `address` is of this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(PrefixedAddress { address, ..*self }) == masked(*self)
    }
}

impl std::fmt::Display for PrefixedAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A route of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteSettings {
    /// The destination.
    pub network: PrefixedAddress,
    /// By whom.
    pub gateway: IpAddr,
    /// The port whose network the gateway is in, by its position.
    pub port: usize,
}

/// A port of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The device as DPDK names it.
    pub device: String,
    /// Its own addresses, one at least.
    pub addresses: Vec<PrefixedAddress>,
    /// The next hop for all other addresses; one for each family at most.
    pub gateways: Vec<IpAddr>,
    /// The largest IP packet, bytes.
    pub mtu: u16,
    /// Pairs of queues; `None`: one for each worker.
    pub queues: Option<u16>,
    /// Packets that may wait in a receive queue.
    pub rx_descriptors: u16,
    /// Packets that may wait in a transmit queue.
    pub tx_descriptors: u16,
    /// Whether it takes packets for all Ethernet addresses.
    pub promiscuous: bool,
}

impl PortSettings {
    /// Whether `address` is reached directly.
    pub fn reaches(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|network| network.contains(address))
    }
}

/// Settings of the dpdk plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// The kind of pages that memory is on.
    pub pages: Pages,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// Packet buffers; `None`: as the ports need.
    pub mbufs: Option<u32>,
    /// The behaviour of a worker while no packet comes in.
    pub idle: IdleMode,
    /// Whether connections get rules that mark their packets where nothing better can be had.
    pub marks: bool,
    /// Whether ports' rules bring packets to their worker, where they can be had.
    pub port_rules: bool,
    /// The policy for checks that need a socket.
    pub probes: Probes,
    /// The ports, in the order of the file; their position is their number.
    pub ports: Vec<PortSettings>,
    /// Routes beside those of the ports.
    pub routes: Vec<RouteSettings>,
}

impl DpdkSettings {
    /// Whether there is a way to `address`.
    pub fn reaches(&self, address: IpAddr) -> bool {
        let family = |gateway: &IpAddr| gateway.is_ipv4() == address.is_ipv4();
        self.ports.iter().any(|port| port.reaches(address) || port.gateways.iter().any(family))
            || self.routes.iter().any(|route| route.network.contains(address))
    }
}

/// The settings; `None` if one without default is wrong. All mistakes are reported.
pub(super) fn read<'a>(sink: &'a Sink<'a>, table: &TomlTable<'a>) -> Option<DpdkSettings> {
    let (pages, idle, probes) = (table.choice("pages"), table.choice("idle"), table.choice("health"));
    let memory_mib = read_memory(sink, table);
    if !table.has("port") {
        sink.error(&table.span, "the dpdk plane has no port", "add one: [[dpdk.port]] with `device` and `addresses`");
    }
    let tables = table.tables("port", &reference::DPDK_PORT);
    let ports: Vec<Option<PortSettings>> = tables.iter().map(|table| read_port(sink, table)).collect();
    if let Some(beyond) = tables.get(PORTS_MAX) {
        sink.error(&beyond.span, format!("{} ports", tables.len()), format!("have {PORTS_MAX} at most"));
    }
    let whole = !ports.is_empty() && ports.iter().all(Option::is_some);
    let ports: Vec<PortSettings> = ports.into_iter().flatten().collect();
    beside_each_other(sink, &tables, &ports);
    // Gateways are looked for among ports that are right.
    let routes = if whole { read_routes(sink, table, &ports) } else { Vec::new() };
    Some(DpdkSettings {
        pages: pages?,
        memory_mib: memory_mib?,
        mbufs: table.integer("mbufs").and_then(|mbufs| u32::try_from(mbufs).ok()),
        idle: idle?,
        marks: table.boolean("marks"),
        port_rules: table.boolean("port_rules"),
        probes: probes?,
        ports: if whole { ports } else { return None },
        routes,
    })
}

fn read_memory(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<u32> {
    let text = table.text("memory")?;
    let number = |unit: &str, mib: u64| {
        let number = text.value.strip_suffix(unit)?.trim_end().parse::<u64>().ok()?;
        number.checked_mul(mib)
    };
    match number("MiB", 1).or_else(|| number("GiB", 1024)) {
        Some(mib) if MEMORY_MIB.contains(&mib) => u32::try_from(mib).ok(),
        Some(_) => {
            sink.error(&text.span, format!("`memory` is \"{}\", out of range", text.value), "use 64 MiB to 1024 GiB");
            None
        }
        None => {
            let what = format!("`memory` is \"{}\"", text.value);
            sink.error(&text.span, what, "write a number and its unit, such as \"512 MiB\" or \"2 GiB\"");
            None
        }
    }
}

fn read_port(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<PortSettings> {
    let device = read_device(sink, table);
    let addresses = read_addresses(sink, table);
    let gateways = addresses.as_ref().map(|addresses| read_gateways(sink, table, addresses));
    let small = |name| table.integer(name).and_then(|number| u16::try_from(number).ok());
    Some(PortSettings {
        device: device?,
        addresses: addresses?,
        gateways: gateways?,
        mtu: small("mtu")?,
        queues: small("queues"),
        rx_descriptors: small("rx_descriptors")?,
        tx_descriptors: small("tx_descriptors")?,
        promiscuous: table.boolean("promiscuous"),
    })
}

/// Syntax only: whether there is such a device is seen at the start, on the machine that has it.
fn read_device(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<String> {
    if !table.has("device") {
        table.missing("device");
        return None;
    }
    let text = table.text("device")?;
    let what = format!("`device` is \"{}\"", text.value);
    let examples = "write a PCI address (\"0000:03:00.0\") or a virtual device (\"net_af_packet0,iface=eth1\")";
    let illegal = |c: char| c.is_whitespace() || c.is_control();
    if text.value.is_empty() || text.value.contains(illegal) {
        sink.error(&text.span, what, examples);
    } else if text.value.len() > DEVICE_BYTES_MAX {
        sink.error(&text.span, what, format!("it has more than {DEVICE_BYTES_MAX} bytes"));
    } else if !text.value.contains(['_', ':']) {
        // Users of the linux plane may write this.
        let remedy = format!("an interface of the kernel's is \"net_af_packet0,iface={}\"; {examples}", text.value);
        sink.error(&text.span, what, remedy);
    } else {
        return Some(text.value);
    }
    None
}

fn read_addresses(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<Vec<PrefixedAddress>> {
    if !table.has("addresses") {
        table.missing("addresses");
        return None;
    }
    let texts = table.one_or_more("addresses");
    let read: Vec<Option<PrefixedAddress>> = texts
        .iter()
        .map(|text| {
            let wrong = |wrong: &str| sink.error(&text.span, format!("port address \"{}\" {wrong}", text.value), "");
            network(&text.value).and_then(|own| host(own).map(|()| own)).map_err(|why| wrong(&why)).ok()
        })
        .collect();
    if texts.len() > ADDRESSES_MAX {
        let what = format!("{} addresses of one port", texts.len());
        sink.error(&table.span_of("addresses"), what, format!("name {ADDRESSES_MAX} at most"));
    }
    let all: Option<Vec<PrefixedAddress>> = read.into_iter().collect();
    all.filter(|all| !all.is_empty())
}

/// An address with the length of a prefix.
fn network(text: &str) -> Result<PrefixedAddress, String> {
    let remedy = "write \"10.0.0.1/24\" or \"fd00::1/64\"";
    let Some((address, prefix)) = text.split_once('/') else { return Err(format!("has no prefix; {remedy}")) };
    let Ok(address) = address.parse::<IpAddr>() else { return Err(format!("is not an address and prefix; {remedy}")) };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    match prefix.parse::<u8>() {
        Ok(prefix) if prefix <= bits => Ok(PrefixedAddress { address, prefix }),
        _ => Err(format!("has prefix {prefix}; use 0 to {bits}")),
    }
}

/// Whether it is a host's own address, not its network's.
fn host(own: PrefixedAddress) -> Result<(), String> {
    match own.address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            return Err("is link-local, which every port has by itself; leave it out".to_string());
        }
        address => reader::unicast(address)?,
    }
    if own.prefix == 0 {
        return Err("has prefix 0; use `gateway` for a way to everywhere".to_string());
    }
    if let IpAddr::V4(v4) = own.address
        && own.prefix < 31
    {
        let hosts = u32::MAX >> own.prefix;
        if v4.to_bits() & hosts == 0 || v4.to_bits() & hosts == hosts {
            return Err("is the network's own or its broadcast address; name the port's".to_string());
        }
    }
    Ok(())
}

fn read_gateways(sink: &Sink<'_>, table: &TomlTable<'_>, addresses: &[PrefixedAddress]) -> Vec<IpAddr> {
    let mut gateways: Vec<IpAddr> = Vec::new();
    for text in table.one_or_more("gateway") {
        let what = format!("gateway \"{}\"", text.value);
        let Ok(gateway) = text.value.parse::<IpAddr>() else {
            sink.error(&text.span, format!("{what} is not an address"), "write \"10.0.0.254\" or \"fd00::ff\"");
            continue;
        };
        let link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if addresses.iter().any(|network| network.address == gateway) {
            sink.error(&text.span, format!("{what} is the port's own address"), "name the router's");
        } else if !link_local && !addresses.iter().any(|network| network.contains(gateway)) {
            let remedy = "it must be a neighbour: give the port an address of its network";
            sink.error(&text.span, format!("{what} is in no network of the port's `addresses`"), remedy);
        } else if gateways.iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
            sink.error(&text.span, format!("{what} is the second of its family"), "have one for each family at most");
        } else {
            gateways.push(gateway);
        }
    }
    gateways
}

/// Checks the ports against each other.
fn beside_each_other(sink: &Sink<'_>, tables: &[TomlTable<'_>], ports: &[PortSettings]) {
    if tables.len() != ports.len() {
        return;
    }
    let name = |device: &str| device.split(',').next().unwrap_or_default().to_string();
    for (index, (table, port)) in tables.iter().zip(ports).enumerate() {
        let earlier = &ports[..index];
        if let Some(first) = earlier.iter().position(|other| name(&other.device) == name(&port.device)) {
            let what = format!("two ports are the device \"{}\"", name(&port.device));
            let line = sink.line(tables[first].span.start);
            let remedy = format!("the other one is on line {line}: name another (net_af_packet0, net_af_packet1, ...)");
            sink.error(&table.span_of("device"), what, remedy);
        }
        for own in &port.addresses {
            let theirs = earlier.iter().flat_map(|other| &other.addresses);
            if let Some(other) =
                theirs.into_iter().find(|other| other.contains(own.address) || own.contains(other.address))
            {
                let what = format!("the networks of {own} and {other}, on two ports, overlap");
                sink.error(&table.span_of("addresses"), what, "give each port networks of its own");
            }
        }
    }
    for ipv4 in [true, false] {
        let with = |port: &&PortSettings| port.gateways.iter().any(|gateway| gateway.is_ipv4() == ipv4);
        if ports.iter().filter(with).count() > 1
            && let Some((table, _)) = tables.iter().zip(ports).filter(|(_, port)| with(port)).nth(1)
        {
            let family = if ipv4 { "IPv4" } else { "IPv6" };
            let what = format!("two ports have a gateway for {family}");
            sink.error(&table.span_of("gateway"), what, "have one, and `routes` for what goes elsewhere");
        }
    }
}

fn read_routes(sink: &Sink<'_>, table: &TomlTable<'_>, ports: &[PortSettings]) -> Vec<RouteSettings> {
    let texts = table.texts("routes");
    if texts.len() > ROUTES_MAX {
        let what = format!("{} routes", texts.len());
        sink.error(&table.span_of("routes"), what, format!("have {ROUTES_MAX} at most"));
    }
    texts.iter().filter_map(|text| read_route(sink, text, ports)).collect()
}

fn read_route(sink: &Sink<'_>, text: &At<String>, ports: &[PortSettings]) -> Option<RouteSettings> {
    let wrong = |why: String, remedy: &str| {
        sink.error(&text.span, format!("route \"{}\" {why}", text.value), remedy);
        None
    };
    let example = "write \"10.9.0.0/16 via 10.0.1.254\"";
    let Some((to, gateway)) = text.value.split_once(" via ") else {
        return wrong("names no gateway".to_string(), example);
    };
    let to = match network(to.trim()) {
        Ok(to) => to,
        Err(why) => return wrong(why, ""),
    };
    let Ok(gateway) = gateway.trim().parse::<IpAddr>() else {
        return wrong("names a gateway that is not an address".to_string(), example);
    };
    if gateway.is_ipv4() != to.address.is_ipv4() {
        return wrong("has two families".to_string(), "name a gateway of the network's family");
    }
    let whole = PrefixedAddress { address: masked(to), ..to };
    if whole != to {
        return wrong("has bits behind its prefix".to_string(), &format!("write {whole}"));
    }
    let Some(port) = ports.iter().position(|port| port.reaches(gateway)) else {
        let remedy = "it must be a neighbour: name one in a network of a port's `addresses`";
        return wrong("names a gateway that no port reaches".to_string(), remedy);
    };
    Some(RouteSettings { network: to, gateway, port })
}

/// The network's own address.
fn masked(network: PrefixedAddress) -> IpAddr {
    let prefix = u32::from(network.prefix);
    match network.address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !u32::MAX.checked_shr(prefix).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::MAX.checked_shr(prefix).unwrap_or(0)).into()),
    }
}

/// Checks the plane against the services.
pub(super) fn check(sink: &Sink<'_>, settings: &DpdkSettings, drafts: &[ServiceDraft], pool: &At<Pool>) {
    for draft in drafts {
        if settings.probes == Probes::None && draft.settings.health.kind() != CheckKind::None {
            let what = format!(
                "service \"{}\" checks its backends, which needs the kernel, and the kernel does not own the ports of the \
                 dpdk plane",
                draft.service.name
            );
            let remedy = "use `passive` instead of `check`, or, if the kernel reaches the backends by another way, write \
                          health = \"kernel\" in [dpdk]";
            sink.error(&draft.passive, what, remedy);
        }
        if draft.service.kind.is_terminated() {
            let what = format!(
                "service \"{}\" is {}, whose connections end at the kernel's sockets, and the kernel does not own the ports \
                 of the dpdk plane",
                draft.service.name,
                spoken(&draft.service)
            );
            let remedy = match draft.settings.https {
                Some(_) => "write plane = \"linux\", or pass TLS through to the backends: protocol = \"tls\"",
                None => "write plane = \"linux\", or leave `http2` out",
            };
            sink.error(&draft.listen, what, remedy);
        }
        for backend in &draft.backends {
            let endpoint = backend.value.endpoint;
            reached(sink, settings, &format!("backend {endpoint}"), endpoint.address, &backend.span);
            if draft.service.forwarding == Forwarding::Direct {
                direct(sink, settings, &draft.service, endpoint.address, &backend.span);
            }
        }
        let end = draft.service.endpoint;
        if !draft.service.kind.is_group() {
            taken(
                sink,
                settings,
                &format!("service \"{}\" listens on {end}", draft.service.name),
                end.address,
                &draft.listen,
            );
        }
    }
    for address in &pool.value.addresses {
        taken(sink, settings, &format!("pool address {address}"), *address, &pool.span);
    }
}

fn reached(sink: &Sink<'_>, settings: &DpdkSettings, who: &str, address: Address, at: &Range<usize>) {
    let address = IpAddr::from(address);
    if settings.ports.iter().any(|port| port.addresses.iter().any(|own| own.address == address)) {
        sink.error(at, format!("{who} has a port's own address"), "name the server's");
    } else if !settings.reaches(address) {
        let what = format!("there is no way to {who}");
        let remedy = "give a [[dpdk.port]] an address of its network or a `gateway`, or add one of `routes` in [dpdk]";
        sink.error(at, what, remedy);
    }
}

/// Backends of direct server return get the client's packet: as it is, from a port, or wrapped, from a port's address.
fn direct(sink: &Sink<'_>, settings: &DpdkSettings, service: &Service, address: Address, at: &Range<usize>) {
    let (ip, name) = (IpAddr::from(address), &service.name);
    let is_of_family = |own: &PrefixedAddress| own.address.is_ipv4() == ip.is_ipv4();
    if service.outer.encapsulation == Encapsulation::None {
        if settings.reaches(ip) && !settings.ports.iter().any(|port| port.reaches(ip)) {
            let what =
                format!("backend {ip} is behind a router, which would send the packets of dsr service \"{name}\" back");
            let remedy = "give a [[dpdk.port]] an address of its network, or the service an `encapsulation`";
            sink.error(at, what, remedy);
        }
    } else if service.outer.source_for(&address).is_none()
        && !settings.ports.iter().flat_map(|port| &port.addresses).any(is_of_family)
    {
        let what =
            format!("no [[dpdk.port]] has an address of the family of backend {ip} for outer headers to come from");
        sink.error(at, what, "give one an address, or the service an `encapsulation_source`");
    }
}

/// An address that Hairpin answers for must not be a neighbour's gateway.
fn taken(sink: &Sink<'_>, settings: &DpdkSettings, who: &str, address: Address, at: &Range<usize>) {
    let address = IpAddr::from(address);
    let gateways = settings.ports.iter().flat_map(|port| &port.gateways);
    let mut all = gateways.chain(settings.routes.iter().map(|route| &route.gateway));
    if all.any(|gateway| *gateway == address) {
        sink.error(at, format!("{who}, which is a gateway's address"), "take another one");
    }
}

macro_rules! words {
    ($kind:ident { $($value:ident = $word:literal),+ }) => {
        impl SettingWord for $kind {
            const WORDS: &'static [($kind, &'static str)] = &[$(($kind::$value, $word)),+];
        }
    };
}

words!(Pages { Auto = "auto", Huge = "huge", None = "none" });
words!(IdleMode { Sleep = "sleep", Poll = "poll" });
words!(Probes { None = "none", Kernel = "kernel" });
