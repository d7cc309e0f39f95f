//! Writes services and backends to the programs' maps.

use super::LoadedPlane;
use super::set_up::add_roles;
use crate::abi::{self, Bytes};
use anyhow::{Context, Result};
use hairpin_core::config::{Backend, Encapsulation, Forwarding, Service, ServiceState, Snapshot, UnknownPacket};
use hairpin_core::flow::{Address, Protocol};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::Ordering;

impl LoadedPlane {
    /// Tells the programs what they balance: ends and addresses. Can be told anew at any time: what is new comes first,
    /// then what is no longer there goes, whichever process has put it in.
    pub fn configure(&self, snapshot: &Snapshot) -> Result<()> {
        // What is set up by the programs is followed by them, and by workers' rules else.
        self.control.block().follow.store(u32::from(self.set_up.is_some()), Ordering::Release);
        // Before a service is known that has rules.
        self.configure_access(snapshot)?;
        let mut ends = ends(snapshot);
        add_roles(&mut ends, snapshot, self.set_up_services(snapshot));
        let ends: HashMap<&[u8], &[u8]> = ends.iter().map(|(end, roles)| (end.bytes(), roles.bytes())).collect();
        replace(self.maps.named("ends")?, &ends).context("cannot change map ends")?;
        let addresses = addresses(snapshot);
        let there = 1u32;
        let addresses = addresses.iter().map(|address| (&address[..], there.bytes())).collect();
        replace(self.maps.named("addresses")?, &addresses).context("cannot change map addresses")
    }

    /// Tells the programs where the backends are of direct server return, and of services whose connections they set up.
    /// Before workers send anything there.
    pub fn configure_backends(&self, snapshot: &Snapshot) -> Result<()> {
        self.configure_targets(snapshot)?;
        for service in snapshot.services.iter().filter(|service| is_direct(service)) {
            for backend in &service.backends {
                self.set("directs", u32::from(backend.number), &direct(service, backend))?;
            }
        }
        // If that fails, health checks do, and say so.
        let _ = self.route_checks();
        Ok(())
    }
}

/// The entry of a backend of direct server return.
fn direct(service: &Service, backend: &Backend) -> abi::DirectEntry {
    let address = backend.endpoint.address;
    let (encapsulation, source) = match service.outer.encapsulation {
        Encapsulation::None => (0, None),
        Encapsulation::Ipip => (abi::ENCAPSULATION_IPIP, own_address(service, backend)),
        Encapsulation::Gue => (abi::ENCAPSULATION_GUE, own_address(service, backend)),
    };
    abi::DirectEntry {
        backend: address.0,
        vip: service.endpoint.address.0,
        source: source.map_or([0; 16], |source| source.0),
        port: service.outer.port.to_be_bytes(),
        encapsulation,
        overhead: service.outer.bytes(address.is_ipv4()),
        ipv6: u8::from(!address.is_ipv4()),
        mixed: u8::from(address.is_ipv4() != service.endpoint.address.is_ipv4()),
        zero: [0; 10],
    }
}

/// The source address of outer headers: as configured for the backend's family, else the one that the kernel takes for packets to
/// the backend. `None` if there is no route.
fn own_address(service: &Service, backend: &Backend) -> Option<Address> {
    if let Some(source) = service.outer.source_for(&backend.endpoint.address) {
        return Some(source);
    }
    let to = IpAddr::from(backend.endpoint.address);
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent: a datagram's socket has its address from the route when it is connected.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((to, service.outer.port.max(1))).ok()?;
    socket.local_addr().ok().map(|end| Address::from(end.ip()))
}

/// Whether its backends answer clients themselves.
pub(super) fn is_direct(service: &Service) -> bool {
    service.forwarding == Forwarding::Direct && service.state != ServiceState::Vacant
}

/// Has `map` hold `wanted`. Keys that stay are there at every instant.
fn replace(map: &MapHandle, wanted: &HashMap<&[u8], &[u8]>) -> Result<()> {
    let mut unwanted: Vec<Vec<u8>> = map.keys().filter(|key| !wanted.contains_key(&key[..])).collect();
    for (key, value) in wanted {
        let mut added = map.update(key, value, MapFlags::ANY);
        // No room for the old beside the new: then the old must go first.
        if matches!(&added, Err(error) if error.kind() == ErrorKind::TooBig) {
            remove(map, &mut unwanted)?;
            added = map.update(key, value, MapFlags::ANY);
        }
        added.context("cannot add an element")?;
    }
    remove(map, &mut unwanted)
}

fn remove(map: &MapHandle, keys: &mut Vec<Vec<u8>>) -> Result<()> {
    keys.drain(..).try_for_each(|key| map.delete(&key).context("cannot take an element away"))
}

/// The end of every service, and of every backend whose answers pass here, with its roles. A group has backends, but no end of
/// its own. A terminated service has an end while it is configured, and no backends, since the kernel's own sockets connect to
/// these; unless spliced services lead to them, too.
fn ends(snapshot: &Snapshot) -> HashMap<abi::EndKey, abi::EndRoles> {
    let mut ends: HashMap<abi::EndKey, abi::EndRoles> = HashMap::new();
    let vacant = |service: &Service| service.state == ServiceState::Vacant;
    for (number, service) in snapshot.services.iter().enumerate().filter(|(_, service)| !vacant(service)) {
        let number = number as u16;
        if service.kind.is_terminated() {
            if service.state == ServiceState::Active {
                let roles =
                    ends.entry(abi::EndKey::of(&service.endpoint, service.protocol)).or_insert_with(Bytes::zeroed);
                roles.roles |= abi::END_TERMINATED;
            }
            // Its own connections to backends are the kernel's; those of spliced services that lead there come from the pool.
            if service.forwarding != Forwarding::FullNat {
                continue;
            }
        } else if !service.kind.is_group() {
            let roles = ends.entry(abi::EndKey::of(&service.endpoint, service.protocol)).or_insert_with(Bytes::zeroed);
            roles.roles |= abi::END_SERVICE;
            // Workers see each SYN of a service whose connections are limited.
            if service.access.is_some() || service.limits_connections() {
                roles.roles |= abi::END_ACCESS;
            }
            if service.kind.is_spliced() && service.protocol == Protocol::Tcp {
                roles.roles |= abi::END_SPLICED;
                if service.kind.has_timestamps() {
                    roles.roles |= abi::END_TIMESTAMPS;
                }
                if service.kind.is_plain() {
                    roles.roles |= abi::END_PLAIN;
                }
                if service.unknown == UnknownPacket::Reset {
                    roles.roles |= abi::END_RESETS;
                }
            }
            roles.service = number;
        }
        // Answers of direct server return do not come from the backend's own end.
        let answers_pass = !is_direct(service);
        for backend in service.backends.iter().filter(|_| answers_pass) {
            let roles = ends.entry(abi::EndKey::of(&backend.endpoint, service.protocol)).or_insert_with(Bytes::zeroed);
            if roles.roles & abi::END_BACKEND == 0 {
                roles.roles |= abi::END_BACKEND;
                roles.backend_service = number;
            }
        }
    }
    ends
}

/// The addresses of VIPs whose packets go to workers, and of the pool.
fn addresses(snapshot: &Snapshot) -> Vec<[u8; 16]> {
    let is_vip = |service: &&Service| {
        service.state != ServiceState::Vacant && !service.kind.is_group() && !service.kind.is_terminated()
    };
    let there = snapshot.services.iter().filter(is_vip);
    let mut addresses: Vec<[u8; 16]> = there.map(|service| service.endpoint.address.0).collect();
    if snapshot.services.iter().any(|service| service.forwarding == Forwarding::FullNat) {
        addresses.extend(snapshot.pool.addresses.iter().map(|address| address.0));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::config::{BackendState, Pool};
    use hairpin_core::flow::Endpoint;
    use hairpin_core::l7::config::{Edits, Forwarded, Http, HttpLimits, Kind, Terminated};
    use std::time::Duration;

    fn service(kind: Kind, port: u16, backend: u16) -> Service {
        let end = |last, port| Endpoint::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)), port);
        let backend = Backend {
            number: backend,
            name: "".into(),
            endpoint: end(backend as u8 + 10, 80),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        };
        let (state, forwarding, backends) = (ServiceState::Active, Forwarding::FullNat, Box::from([backend]));
        Service { state, kind, endpoint: end(1, port), forwarding, backends, ..Service::vacant() }
    }

    #[test]
    fn a_group_has_backends_but_no_end() {
        let services = [service(Kind::Forward, 80, 0), service(Kind::Group, 0, 1)];
        let pool = Pool { addresses: Box::default(), port_first: 1024, port_last: 2048, time_wait: Duration::ZERO };
        let snapshot = Snapshot::new(services.into(), pool);
        let ends = ends(&snapshot);
        assert_eq!(ends.len(), 3);
        let roles = |end: &Endpoint| ends.get(&abi::EndKey::of(end, hairpin_core::flow::Protocol::Tcp));
        let [web, group] = &*snapshot.services else { unreachable!() };
        assert!(roles(&web.endpoint).is_some_and(|roles| roles.roles == abi::END_SERVICE));
        assert!(roles(&group.endpoint).is_none());
        let backend = roles(&group.backends[0].endpoint);
        assert!(backend.is_some_and(|roles| roles.roles == abi::END_BACKEND && roles.backend_service == 1));
        assert_eq!(addresses(&snapshot), [web.endpoint.address.0]);
    }

    fn terminated() -> Kind {
        let http = Http {
            answers: Default::default(),
            access: [].into(),
            routes: [].into(),
            edits: Edits::default(),
            forwarded: Forwarded::default(),
            sticky: None,
            request_id: None,
            tracing: None,
            server_timing: false,
            upgrade: false,
            connect: false,
            proxy_protocol: None,
            reuse: true,
            limits: HttpLimits::default(),
            offload_bytes_min: None,
            timestamps: true,
        };
        Kind::Terminated(Box::new(Terminated { http, tls: true, http2: true }))
    }

    #[test]
    fn terminated_service_has_an_end_but_no_backends_or_address() {
        let pool = Pool { addresses: Box::default(), port_first: 1024, port_last: 2048, time_wait: Duration::ZERO };
        let mut snapshot = Snapshot::new([service(terminated(), 443, 0)].into(), pool);
        snapshot.services[0].forwarding = Forwarding::Nat;
        let end = abi::EndKey::of(&snapshot.services[0].endpoint, Protocol::Tcp);
        let roles: Vec<_> = ends(&snapshot).into_iter().map(|(end, roles)| (end, roles.roles)).collect();
        assert_eq!(roles, [(end, abi::END_TERMINATED)]);
        assert!(addresses(&snapshot).is_empty());
        snapshot.services[0].forwarding = Forwarding::FullNat;
        let backend = abi::EndKey::of(&snapshot.services[0].backends[0].endpoint, Protocol::Tcp);
        let shared = ends(&snapshot);
        assert_eq!(shared.get(&end).map(|roles| roles.roles), Some(abi::END_TERMINATED));
        assert_eq!(shared.get(&backend).map(|roles| roles.roles), Some(abi::END_BACKEND));
        snapshot.services[0].forwarding = Forwarding::Nat;
        snapshot.services[0].state = ServiceState::Removed;
        assert!(ends(&snapshot).is_empty());
    }
}
