//! Which packets belong to chosen connections.

use crate::control::ClientFilter;
use crate::control::{ConnectionView, Query};
use crate::status::ServiceStatus;
use anyhow::{Result, bail};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::wire::{self, Parsed};
use hairpin_linux::capture::HOSTS_MAX;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

/// Connections that are told apart at most.
pub(crate) const CONNECTIONS_MAX: usize = 100_000;
/// Lists of connections, a second apart, that one may be missing from before it is forgotten: its last packets may come
/// after it has ended.
const ROUNDS: u64 = 10;

/// Whether a packet is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureVerdict {
    /// It is.
    Yes,
    /// If its connection turns out to be chosen.
    Perhaps,
    /// It is not.
    No,
}

/// The addresses of the chosen connections.
#[derive(Debug)]
pub(super) struct Chosen {
    client: Option<ClientFilter>,
    /// Whether a service is named.
    of_service: bool,
    /// Whether something is asked for that packets do not show: backend, state, path.
    hidden: bool,
    /// Ends of the services that may be meant.
    vips: HashSet<(Endpoint, Protocol)>,
    /// Ends of the backends that may be meant.
    backends: HashSet<(Endpoint, Protocol)>,
    /// Whether some of these services hide the client from their backends.
    full_nat: bool,
    /// Flows of connections that fit, either way round, with the round in which they were listed last.
    flows: HashMap<FlowKey, u64>,
    round: u64,
    short: bool,
}

impl Chosen {
    /// Nothing is known yet but what `query` asks for and which services there are.
    ///
    /// # Errors
    /// It asks for a service or backend that there is not.
    pub(super) fn new(query: &Query, services: &[ServiceStatus]) -> Result<Chosen> {
        // A service is meant with its groups.
        let named = |service: &&ServiceStatus| {
            let names = [Some(&service.name), service.group_of.as_ref()];
            query.service.as_ref().is_none_or(|name| names.contains(&Some(name)))
        };
        let meant: Vec<_> = services.iter().filter(named).collect();
        if meant.is_empty() {
            let name = query.service.as_deref().unwrap_or_default();
            bail!("there is no service {name:?}; `hairpin status` lists them");
        }
        let mut chosen = Chosen {
            client: query.client.as_deref().and_then(ClientFilter::parse),
            of_service: query.service.is_some(),
            hidden: query.backend.is_some() || query.state.is_some() || query.offloaded.is_some(),
            vips: HashSet::new(),
            backends: HashSet::new(),
            full_nat: meant.iter().any(|service| !["nat", "dsr"].contains(&&*service.mode)),
            flows: HashMap::new(),
            round: 0,
            short: false,
        };
        for service in meant {
            let protocol = match (listen(&service.listen), &service.group_of) {
                (Some((vip, protocol)), _) => {
                    chosen.vips.insert((vip, protocol));
                    protocol
                }
                (None, Some(_)) => Protocol::Tcp,
                (None, None) => continue,
            };
            for backend in &service.backends {
                let named = query.backend.as_ref().is_none_or(|name| [&backend.name, &backend.address].contains(&name));
                if let (true, Some(end)) = (named, end(&backend.address)) {
                    chosen.backends.insert((end, protocol));
                }
            }
        }
        match &query.backend {
            Some(name) if chosen.backends.is_empty() => {
                bail!("there is no backend {name:?} in what is asked for; `hairpin status` lists them")
            }
            _ => Ok(chosen),
        }
    }

    /// Hosts, one of which is an end of every packet that may be wanted, for the kernel's filter; none if they are too
    /// many for it. With a client that backends see, that client is the one: ICMP errors from elsewhere about its packets
    /// are missed then, but not a packet of its own, and others' are not examined.
    pub(super) fn hosts(&self) -> Vec<IpAddr> {
        let backends = self.backends.iter().map(|(end, _)| IpAddr::from(end.address));
        let mut hosts: Vec<IpAddr> = match self.client {
            Some(client) if client.is_host() && !self.full_nat => vec![client.address],
            Some(client) if client.is_host() => backends.chain([client.address]).collect(),
            _ => backends.chain(self.vips.iter().map(|(end, _)| IpAddr::from(end.address))).collect(),
        };
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > HOSTS_MAX { Vec::new() } else { hosts }
    }

    /// Whether the instance has to be asked: not if everything is wanted.
    pub(super) fn asks(&self) -> bool {
        self.client.is_some() || self.of_service || self.hidden
    }

    /// Judges a packet by its flow.
    pub(super) fn judge(&self, flow: &FlowKey) -> CaptureVerdict {
        if self.flows.contains_key(&unordered(flow)) {
            return CaptureVerdict::Yes;
        }
        let ends = [flow.source, flow.destination];
        let is_in = |set: &HashSet<_>| ends.map(|end| set.contains(&(end, flow.protocol))).contains(&true);
        let client_fits = self.client.map(|client| ends.map(|end| client.fits(socket_address(end))).contains(&true));
        match (is_in(&self.vips), is_in(&self.backends), client_fits) {
            (false, false, _) => CaptureVerdict::No,
            // The client's end shows between client and VIP; behind it, it may be hidden.
            (true, _, Some(false)) => CaptureVerdict::No,
            (_, _, Some(true)) | (true, _, None) if !self.hidden => CaptureVerdict::Yes,
            (false, true, None) if !self.hidden && !self.of_service => CaptureVerdict::Yes,
            _ => CaptureVerdict::Perhaps,
        }
    }

    /// A list of connections begins.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
        let round = self.round;
        self.flows.retain(|_, listed| *listed + ROUNDS > round);
        self.short = false;
    }

    /// A connection that fits. Whether there is room for more.
    pub(super) fn learn(&mut self, connection: &ConnectionView) -> bool {
        let protocol = if connection.protocol == "udp" { Protocol::Udp } else { Protocol::Tcp };
        // Of HTTP and TLS services, some have no client, some no backend, at the moment.
        let client = end(&connection.client);
        let source = connection.source.as_deref().and_then(end).or(client);
        for ends in [client.zip(end(&connection.vip)), source.zip(end(&connection.backend_end))] {
            let Some((source, destination)) = ends else { continue };
            self.flows.insert(unordered(&FlowKey { source, destination, protocol }), self.round);
        }
        self.short = self.flows.len() >= 2 * CONNECTIONS_MAX;
        !self.short
    }

    /// Whether there are more connections that fit than can be told apart.
    pub(super) fn short(&self) -> bool {
        self.short
    }
}

/// The flow a frame belongs to, or an ICMP error is about; `None` for all that Hairpin does not balance.
pub(super) fn flow(frame: &[u8]) -> Option<FlowKey> {
    match wire::parse(frame).ok()? {
        Parsed::Transport(packet) => Some(packet.key),
        Parsed::IcmpError(error) => Some(error.quoted),
        Parsed::Fragment | Parsed::Other => None,
    }
}

/// One key for both directions.
fn unordered(flow: &FlowKey) -> FlowKey {
    if flow.source <= flow.destination { *flow } else { flow.reversed() }
}

fn socket_address(end: Endpoint) -> SocketAddr {
    SocketAddr::new(end.address.into(), end.port)
}

fn end(text: &str) -> Option<Endpoint> {
    let end: SocketAddr = text.parse().ok()?;
    Some(Endpoint::new(end.ip(), end.port()))
}

/// A service's end, as in `192.0.2.10:80/tcp`.
fn listen(text: &str) -> Option<(Endpoint, Protocol)> {
    let (address, protocol) = text.split_once('/')?;
    let protocol = match protocol {
        "tcp" | "http" | "https" | "tls" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    Some((end(address)?, protocol))
}
