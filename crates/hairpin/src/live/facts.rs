//! The kernel's facts about this machine, as far as a file depends on it.

use super::judge::Services;
use crate::config::{Config, Settings};
use crate::run::unknown_interface;
use anyhow::{Context, Result};
use hairpin_linux::device::{self, Family, Interface};
use hairpin_linux::network::{self, HostRoute, PortListener, RouteLookup};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

/// A configured interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConfiguredLink {
    /// There is none of this name, in words.
    Missing(String),
    NotEthernet,
    /// It is switched off.
    Down,
    /// It is up, and has no link.
    Unlinked,
    Good,
}

/// The route of the host's own packets to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalRoute {
    /// To this host itself.
    Local,
    Out {
        interface: String,
        gateway: Option<IpAddr>,
    },
    /// Nowhere: what the kernel says.
    None(String),
}

/// An address of an interface, with the bits that its network has in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostAddress {
    pub(super) interface: String,
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// A socket that listens on the port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) is_udp: bool,
    /// Unspecified: all addresses.
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// Whether an unspecified IPv6 address stands for IPv4 as well.
    pub(super) takes_ipv4: bool,
    /// The only interface it takes packets from.
    pub(super) interface: Option<String>,
    /// The owner, as text.
    pub(super) process: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HostFacts {
    /// The configured interfaces, in the order of the file.
    pub(super) links: Vec<(String, ConfiguredLink)>,
    pub(super) held: Vec<HostAddress>,
    /// The routes to VIPs and backends.
    pub(super) routes: BTreeMap<IpAddr, LocalRoute>,
    /// Interfaces, each with an IPv6 address for which it answers neighbour solicitations as a proxy.
    pub(super) proxies: Vec<(String, IpAddr)>,
    /// Configured interfaces that answer ARP only for their own addresses.
    pub(super) arp_own: BTreeSet<String>,
    pub(super) sockets: Vec<Socket>,
}

impl HostFacts {
    pub(super) fn gather(config: &Config) -> Result<HostFacts> {
        let interfaces = &config.settings.interfaces;
        let services = Services::of(&config.snapshot);
        let names = names().context("cannot list interfaces")?;
        let name = |index: u32| names.get(&index).cloned().unwrap_or_else(|| format!("interface {index}"));
        let held = network::addresses().context("cannot list addresses")?.into_iter();
        let held = held.map(|held| HostAddress {
            interface: name(held.interface),
            address: held.address,
            prefix: held.prefix,
        });
        let ask = RouteLookup::open().context("cannot ask for routes")?;
        let ends = services.vips.keys().chain(services.backends.keys());
        let routes = ends.map(|end| (*end, route_of(&ask, *end, &name)));
        let is_set =
            |name: &str, family, setting| device::larger_of(name, family, setting).is_ok_and(|value| value > 0);
        let proxies = network::proxies().context("cannot list proxy entries")?.into_iter();
        let proxies = proxies.map(|(index, address)| (name(index), address));
        Ok(HostFacts {
            links: links(&config.settings)?,
            held: held.collect(),
            routes: routes.collect(),
            proxies: proxies.filter(|(name, _)| is_set(name, Family::Ipv6, "proxy_ndp")).collect(),
            arp_own: interfaces.iter().filter(|name| is_set(name, Family::Ipv4, "arp_ignore")).cloned().collect(),
            sockets: sockets(&services, &name)?,
        })
    }

    /// The interface of this host that has the address.
    pub(super) fn owner(&self, address: IpAddr) -> Option<String> {
        let held = self.held.iter().find(|held| held.address == address);
        // `ip route add local` makes whole networks the host's.
        let is_local = || (self.routes.get(&address) == Some(&LocalRoute::Local)).then(|| "lo".to_string());
        held.map(|held| held.interface.clone()).or_else(is_local)
    }
}

fn names() -> std::io::Result<BTreeMap<u32, String>> {
    // One that goes away meanwhile is none.
    let found = device::names()?.into_iter().filter_map(|name| Some((Interface::by_name(&name).ok()?.index, name)));
    Ok(found.collect())
}

fn links(settings: &Settings) -> Result<Vec<(String, ConfiguredLink)>> {
    let link = |name: &String| {
        let link = match Interface::by_name(name) {
            Ok(interface) if !interface.ethernet => ConfiguredLink::NotEthernet,
            Ok(interface) if !interface.up => ConfiguredLink::Down,
            Ok(_) if device::is_running(name)? => ConfiguredLink::Good,
            Ok(_) => ConfiguredLink::Unlinked,
            Err(error) if error.kind() == ErrorKind::NotFound => ConfiguredLink::Missing(unknown_interface(name)),
            Err(error) => return Err(error.into()),
        };
        Ok((name.clone(), link))
    };
    settings.interfaces.iter().map(link).collect()
}

fn route_of(routes: &RouteLookup, to: IpAddr, name: &impl Fn(u32) -> String) -> LocalRoute {
    match routes.to(to) {
        Ok(HostRoute::Local) => LocalRoute::Local,
        Ok(HostRoute::Out { interface, gateway }) => LocalRoute::Out { interface: name(interface), gateway },
        Err(error) => LocalRoute::None(error.to_string()),
    }
}

/// The sockets that listen on ports of services.
fn sockets(services: &Services<'_>, name: &impl Fn(u32) -> String) -> Result<Vec<Socket>> {
    let mut found: Vec<(bool, PortListener)> = Vec::new();
    for is_udp in [false, true] {
        let ports: BTreeSet<u16> =
            services.ends.iter().filter(|end| end.is_udp == is_udp).map(|end| end.address.port()).collect();
        if !ports.is_empty() {
            let listeners = network::listeners(is_udp).context("cannot list sockets")?.into_iter();
            found.extend(listeners.filter(|one| ports.contains(&one.port)).map(|one| (is_udp, one)));
        }
    }
    let inodes: BTreeSet<u32> = found.iter().map(|(_, one)| one.inode).collect();
    let processes = if inodes.is_empty() { BTreeMap::new() } else { processes(Path::new("/proc"), &inodes) };
    let socket = |(is_udp, one): (bool, PortListener)| Socket {
        is_udp,
        address: one.address,
        port: one.port,
        takes_ipv4: one.takes_ipv4,
        interface: (one.interface != 0).then(|| name(one.interface)),
        process: processes.get(&one.inode).cloned().unwrap_or_else(|| "a process that /proc does not show".into()),
    };
    Ok(found.into_iter().map(socket).collect())
}

/// For each of these sockets a process that has it open.
fn processes(proc: &Path, inodes: &BTreeSet<u32>) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    for process in fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        for file in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let target = fs::read_link(file.path()).unwrap_or_default();
            let inode =
                target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let Some(inode) = inode.filter(|inode| inodes.contains(inode)) {
                let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.entry(inode).or_insert_with(|| format!("process {pid} ({})", program.trim()));
            }
        }
    }
    found
}
