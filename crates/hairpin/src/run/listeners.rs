//! The sockets that listen for connections of terminated services: one for each core and endpoint. The kernel spreads
//! connections over the sockets of one endpoint (SO_REUSEPORT).

use super::log;
use anyhow::{Context, Result, bail};
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_linux::network;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Connections that wait for one socket to accept them, at most.
pub(crate) const BACKLOG: i32 = 4096;

/// The endpoints of the terminated services that a snapshot has.
pub(crate) fn endpoints(snapshot: &Snapshot) -> Vec<Endpoint> {
    let active = snapshot.services.iter().filter(|service| service.state == ServiceState::Active);
    active.filter(|service| service.kind.is_terminated()).map(|service| service.endpoint).collect()
}

/// Listening sockets, by endpoint and core.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    cores: usize,
    open: BTreeMap<(Endpoint, usize), TcpListener>,
}

impl Listeners {
    /// For `cores` cores, those that an earlier process has passed on. Sockets for other cores or endpoints than there
    /// are now stay until [`Listeners::close_others`]: connections wait in them, and the old process may go on.
    pub(crate) fn inherited(passed: Vec<(String, OwnedFd)>, cores: usize) -> Listeners {
        let mut open = BTreeMap::new();
        for (name, descriptor) in passed {
            match place(&name).filter(|(endpoint, _)| listens_on(descriptor.as_fd(), endpoint)) {
                Some(place) => drop(open.insert(place, TcpListener::from(descriptor))),
                None => log(&format!("warning: the old process passes on {name}, which is no listening socket")),
            }
        }
        Listeners { cores, open }
    }

    /// Opens the sockets that `wanted` lacks, one for each core: all of them or none.
    pub(crate) fn open_missing(&mut self, wanted: &[Endpoint]) -> Result<()> {
        let places = wanted.iter().flat_map(|endpoint| (0..self.cores).map(|core| (*endpoint, core)));
        let missing: BTreeSet<_> = places.filter(|place| !self.open.contains_key(place)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.refuse_others(&missing)?;
        warn_of_backlog();
        let mut opened = Vec::with_capacity(missing.len());
        for place in missing {
            let listener = open(&place.0).map_err(|error| anyhow::anyhow!("{}", said(&place.0, error)))?;
            opened.push((place, listener));
        }
        self.open.extend(opened);
        Ok(())
    }

    /// Closes the sockets of other endpoints than `wanted`, and of cores that are no more.
    pub(crate) fn close_others(&mut self, wanted: &[Endpoint]) {
        self.open.retain(|(endpoint, core), _| wanted.contains(endpoint) && *core < self.cores);
    }

    /// The socket of an endpoint for one core, counted from 0. It does not block.
    pub(crate) fn of(&self, endpoint: &Endpoint, core: usize) -> Option<&TcpListener> {
        self.open.get(&(*endpoint, core))
    }

    /// All of them, each with a name that another process finds its place by, such as `192.0.2.1:443/0`.
    pub(crate) fn descriptors(&self) -> Vec<(String, BorrowedFd<'_>)> {
        self.open.iter().map(|((endpoint, core), socket)| (format!("{endpoint}/{core}"), socket.as_fd())).collect()
    }

    /// With SO_REUSEPORT the kernel lets several processes of one user share a port, and each gets a part of the
    /// connections. So another process's socket is looked for.
    fn refuse_others(&self, missing: &BTreeSet<(Endpoint, usize)>) -> Result<()> {
        let inode = |socket: &TcpListener| rustix::fs::fstat(socket).map(|facts| facts.st_ino);
        let own: BTreeSet<u64> = self.open.values().filter_map(|socket| inode(socket).ok()).collect();
        let wanted: BTreeSet<(IpAddr, u16)> =
            missing.iter().map(|(endpoint, _)| (endpoint.address.into(), endpoint.port)).collect();
        let there = network::listeners(false).context("cannot list sockets")?;
        let other =
            there.iter().find(|one| wanted.contains(&(one.address, one.port)) && !own.contains(&u64::from(one.inode)));
        match other {
            Some(other) => bail!("{}", said(&Endpoint::new(other.address, other.port), Errno::ADDRINUSE)),
            None => Ok(()),
        }
    }
}

/// The place that a name means.
fn place(name: &str) -> Option<(Endpoint, usize)> {
    let (address, core) = name.rsplit_once('/')?;
    let address: SocketAddr = address.parse().ok()?;
    Some((Endpoint::new(address.ip(), address.port()), core.parse().ok()?))
}

fn listens_on(socket: BorrowedFd<'_>, endpoint: &Endpoint) -> bool {
    let address = rustix::net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let is_there = address.is_some_and(|address| Endpoint::new(address.ip(), address.port()) == *endpoint);
    is_there && sockopt::socket_acceptconn(socket).unwrap_or(false)
}

fn open(endpoint: &Endpoint) -> rustix::io::Result<TcpListener> {
    let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // The address may come later: VRRP moves it between hosts.
    if address.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_v6only(&socket, true)?;
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Why an endpoint has no socket, and what to do.
fn said(endpoint: &Endpoint, error: Errno) -> String {
    let remedy = match error {
        Errno::ADDRINUSE => format!(
            "another process listens there: `ss -ltnp 'sport = :{}'` names it; stop it, or give the service another \
             address or port",
            endpoint.port
        ),
        Errno::ACCESS => "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE".into(),
        Errno::MFILE | Errno::NFILE => "allow the process more open files (`ulimit -n`, `LimitNOFILE=`)".into(),
        Errno::AFNOSUPPORT => "this host has no IPv6; switch it on, or remove the service".into(),
        _ => "see the service's `listen`".into(),
    };
    format!("cannot listen on {endpoint}/tcp: {}: {remedy}", std::io::Error::from(error))
}

/// The kernel lowers a backlog to `somaxconn` without a word.
fn warn_of_backlog() {
    const SWITCH: &str = "/proc/sys/net/core/somaxconn";
    let most = std::fs::read_to_string(SWITCH).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(most) = most.filter(|most| *most < BACKLOG) {
        log(&format!(
            "warning: {most} connections of a core may wait to be accepted, not {BACKLOG}: run sysctl -w \
             net.core.somaxconn={BACKLOG}"
        ));
    }
}

/// Makes every HTTP service a terminated one.
#[cfg(test)]
pub(super) fn terminate(snapshot: &mut Snapshot) {
    use hairpin_core::l7::config::{Kind, Terminated};
    for service in &mut snapshot.services {
        if let Kind::Http(http) = &service.kind {
            let http = (**http).clone();
            service.kind = Kind::Terminated(Box::new(Terminated { http, tls: true, http2: true }));
        }
    }
}

#[cfg(test)]
mod tests;
