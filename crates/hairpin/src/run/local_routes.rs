//! Local routes to VIPs of terminated services. A VIP that another machine routes to this host, and that no interface
//! here has, gets one: the kernel delivers packets to sockets only if the address is its own.

use super::supervisor::Supervisor;
use super::{listeners, log};
use anyhow::{Context, Result};
use hairpin_core::config::Snapshot;
use hairpin_core::flow::Address;
use hairpin_core::l7::config::Network;
use hairpin_linux::network::{self, InterfaceAddress, local_route};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The addresses that need a route of this instance's; it has made those to `own`. A VIP on the network of one of this
/// host's interfaces needs none: it belongs to an interface, here or, as on a backup of VRRP, on another machine. The
/// kernel would answer ARP for it and take it from that machine.
pub(super) fn needed(snapshot: &Snapshot, own: &[IpAddr]) -> Result<Vec<IpAddr>> {
    let vips: BTreeSet<IpAddr> = listeners::endpoints(snapshot).iter().map(|end| end.address.into()).collect();
    let mut needed = Vec::new();
    if vips.is_empty() {
        return Ok(needed);
    }
    let held = network::addresses().context("cannot list addresses")?;
    for vip in vips {
        let is_local = || local_route::is_local(vip).with_context(|| format!("cannot look up the route to {vip}"));
        if own.contains(&vip) || (!is_near(vip, &held) && !is_local()?) {
            needed.push(vip);
        }
    }
    Ok(needed)
}

/// Whether an interface has an address on the same network.
fn is_near(vip: IpAddr, held: &[InterfaceAddress]) -> bool {
    held.iter().filter(|held| held.address.is_ipv4() == vip.is_ipv4()).any(|held| {
        let mapped = if vip.is_ipv4() { 96 } else { 0 };
        Network { address: held.address.into(), prefix: held.prefix + mapped }.contains(&Address::from(vip))
    })
}

/// Makes routes; those that are there already stay.
pub(super) fn add(routes: &[IpAddr]) -> Result<()> {
    routes.iter().try_for_each(|address| {
        local_route::add(*address).with_context(|| format!("cannot make the route `local {address} dev lo`"))
    })
}

/// Removes those of `own` that are not among `needed`; the routes that are left.
pub(super) fn remove_others(own: &[IpAddr], needed: &[IpAddr]) -> (Vec<IpAddr>, Result<()>) {
    let mut left = Vec::new();
    let mut result = Ok(());
    for address in own {
        if needed.contains(address) {
            left.push(*address);
        } else if let Err(error) = local_route::remove(*address) {
            left.push(*address);
            result = Err(error).with_context(|| format!("cannot remove the route `local {address} dev lo`"));
        }
    }
    (left, result)
}

/// Both, each once.
pub(super) fn union(some: &[IpAddr], others: &[IpAddr]) -> Vec<IpAddr> {
    some.iter().chain(others).copied().collect::<BTreeSet<IpAddr>>().into_iter().collect()
}

impl Supervisor {
    /// Opens the sockets and makes the local routes that the terminated services of `snapshot` need. What a failure
    /// leaves, [`Supervisor::close_unneeded`] removes.
    pub(super) fn open_terminated(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.listeners.open_missing(&listeners::endpoints(snapshot))?;
        let routes = needed(snapshot, &self.record.local_routes)?;
        let noted = union(&routes, &self.record.local_routes);
        if noted != self.record.local_routes {
            self.record.local_routes = noted;
            self.record.write(&self.socket)?;
        }
        add(&routes)
    }

    /// Closes sockets and removes local routes that no terminated service in force needs.
    pub(super) fn close_unneeded(&mut self) {
        self.listeners.close_others(&listeners::endpoints(&self.snapshot));
        if let Err(error) = self.remove_routes() {
            log(&format!("warning: routes to VIPs of removed services stay for now: {error:#}"));
        }
    }

    /// Removes local routes that were left to the connections of removed services, once those have ended.
    pub(super) fn tidy_routes(&mut self) {
        if self.routes_kept {
            self.close_unneeded();
        }
    }

    fn remove_routes(&mut self) -> Result<()> {
        let own = &self.record.local_routes;
        let mut kept = needed(&self.snapshot, own)?;
        let services = kept.len();
        if own.iter().any(|route| !kept.contains(route)) {
            kept = union(&kept, &self.routes_in_use());
        }
        self.routes_kept = kept.len() > services;
        let (left, removed) = remove_others(&self.record.local_routes, &kept);
        if left != self.record.local_routes {
            self.record.local_routes = left;
            self.record.write(&self.socket)?;
        }
        removed
    }

    /// The local routes by which packets still come to connections.
    fn routes_in_use(&self) -> Vec<IpAddr> {
        // What processes have that drain is not known here.
        let drains = self.generations.iter().next().is_some();
        let vips = if drains { None } else { self.inspector.terminated_vips() };
        let is_in_use = |route: &IpAddr| vips.as_ref().is_none_or(|vips| vips.contains(route));
        self.record.local_routes.iter().copied().filter(is_in_use).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_the_network_of_an_interface_are_near() {
        let held = |text: &str, prefix| InterfaceAddress { interface: 2, address: text.parse().unwrap(), prefix };
        let all = [held("10.0.1.1", 24), held("192.0.2.10", 32), held("fd00:1::1", 64)];
        for (vip, near) in [
            ("10.0.1.200", true),
            ("10.0.2.200", false),
            ("192.0.2.10", true),
            ("192.0.2.11", false),
            ("fd00:1::9", true),
            ("fd00:2::9", false),
        ] {
            assert_eq!(is_near(vip.parse().unwrap(), &all), near, "{vip}");
        }
        let default = [held("::", 0)];
        assert!(!is_near("10.0.1.1".parse().unwrap(), &default), "of the other family");
    }

    fn snapshot(vips: &[&str]) -> Snapshot {
        let service = |vip| format!("[[service]]\nlisten = \"{vip}:80/http\"\nbackends = [\"10.0.0.1:80\"]\n");
        let head = "interfaces = [\"a\"]\npool.addresses = [\"10.0.9.1\"]\n".to_string();
        let text = vips.iter().fold(head, |text, vip| text + &service(vip));
        crate::config::parse("t", &text).unwrap_or_else(|problems| panic!("{problems}")).snapshot
    }

    #[test]
    fn vips_of_terminated_services_need_routes_unless_local() {
        let [routed, left] = ["198.51.100.1", "198.51.100.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let mut snapshot = snapshot(&["198.51.100.3", "198.51.100.1"]);
        snapshot.services[0].endpoint.address = Address::from_ipv4([127, 0, 0, 9]);
        assert!(needed(&snapshot, &[left]).unwrap().is_empty());
        listeners::terminate(&mut snapshot);
        assert_eq!(needed(&snapshot, &[]).unwrap(), [routed]);
        // What this instance has made stays as long as it is needed.
        let own = ["127.0.0.9".parse().unwrap(), left];
        assert_eq!(needed(&snapshot, &own).unwrap(), [own[0], routed]);
        snapshot.services[1].state = hairpin_core::config::ServiceState::Removed;
        assert!(needed(&snapshot, &[routed, left]).unwrap().is_empty());
    }

    #[test]
    fn routes_are_united_once_and_in_order() {
        let [one, two] = ["198.51.100.1", "198.51.100.2"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(union(&[two], &[one, two]), [one, two]);
        let (left, removed) = remove_others(&[one, two], &[one, two]);
        assert_eq!((left, removed.is_ok()), (vec![one, two], true));
    }
}
