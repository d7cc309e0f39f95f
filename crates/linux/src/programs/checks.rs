//! Health checks of backends of direct server return: their program (`bpf/check.h`), and the device that checks leave by whose
//! backend is of another family than its VIP.

use super::LoadedPlane;
use super::attach::{Attachment, Hook, noted};
use super::configure::is_direct;
use crate::abi;
use crate::device::{self, Interface};
use crate::network::{self, device_route};
use crate::tap::Tap;
use anyhow::{Context, Result, bail};
use hairpin_core::config::{Service, Snapshot};
use hairpin_core::flow::Address;
use libbpf_rs::{MapCore, MapFlags};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// The device that checks leave by whose backend is of another family than its VIP.
#[derive(Debug, Default)]
pub(super) struct CheckDevice {
    /// 0: there is none.
    pub(super) ifindex: u32,
    /// What is routed there.
    stand_ins: Vec<IpAddr>,
}

impl LoadedPlane {
    /// Attaches the program that has health checks take the way of clients' packets, or detaches it if no service needs it.
    /// The device `name` is there while a backend is of another family than its service.
    pub fn configure_checks(&mut self, snapshot: &Snapshot, name: &str) -> Result<()> {
        let is_direct = snapshot.services.iter().any(is_direct);
        self.configure_device(snapshot, name)
            .with_context(|| format!("cannot set up {name}, the device of health checks"))?;
        self.control.block().direct.store(u32::from(is_direct), Ordering::Release);
        self.has_checks = is_direct;
        if !is_direct {
            return self.detach_checks();
        }
        let mut devices = self.interfaces()?;
        devices.extend(Some(self.check_device.ifindex).filter(|&ifindex| ifindex != 0));
        devices.into_iter().try_for_each(|ifindex| self.attach_check(ifindex))
    }

    fn configure_device(&mut self, snapshot: &Snapshot, name: &str) -> Result<()> {
        let mixed = || snapshot.services.iter().filter(|service| has_mixed(service));
        let is_wanted =
            |stand_in: &IpAddr| mixed().any(|service| service.endpoint.address.is_ipv4() == stand_in.is_ipv4());
        let stand_ins = [abi::CHECK_STAND_IN_V4.into(), abi::CHECK_STAND_IN_V6.into()];
        let stand_ins: Vec<IpAddr> = stand_ins.into_iter().filter(is_wanted).collect();
        if stand_ins.is_empty() {
            self.check_device = CheckDevice::default();
            self.control.block().check_device.store(0, Ordering::Release);
            return self.remove_check_device(name);
        }
        // All instances of a network namespace would have the same routes.
        let is_others = |device: &String| device != name && device.starts_with("hp-") && device.ends_with("-hc");
        if let Some(other) = device::names()?.into_iter().find(is_others) {
            bail!(
                "another instance has {other}: only one of a network namespace can have backends of another family than \
                 their VIP. Give this one's services backends of their family"
            );
        }
        Tap::create_unread(name, abi::CHECK_ADDRESS)?;
        self.check_device = CheckDevice { ifindex: Interface::by_name(name)?.index, stand_ins };
        self.control.block().check_device.store(self.check_device.ifindex, Ordering::Release);
        self.route_checks()
    }

    /// Removes the device and what is attached to it.
    fn remove_check_device(&mut self, name: &str) -> Result<()> {
        if let Ok(Interface { index, .. }) = Interface::by_name(name) {
            self.attachments.retain(|attachment| attachment.ifindex() != index);
            let noted = noted(&self.pins.links())?;
            noted.into_iter().filter(|noted| noted.ifindex() == index).try_for_each(Attachment::detach)?;
        }
        Ok(remove_device(name)?)
    }

    /// Routes what stands in for backends to the device of checks. The kernel takes a route away with its source address.
    pub(super) fn route_checks(&self) -> Result<()> {
        for &stand_in in &self.check_device.stand_ins {
            let source = self.source(stand_in.is_ipv4())?;
            let put = |source| device_route::put(stand_in, self.check_device.ifindex, source);
            // The kernel refuses an address that it does not use yet.
            let routed = put(source).or_else(|_| put(None));
            routed.with_context(|| format!("cannot route {stand_in} to the device of health checks"))?;
        }
        Ok(())
    }

    /// The source address of checks that leave by the device: of a named interface, where answers come in. `None`: no named
    /// interface has an address of the family, and the kernel takes another one of this host.
    fn source(&self, is_ipv4: bool) -> Result<Option<IpAddr>> {
        let (named, ours) = (self.interfaces()?, self.maps.named("addresses")?);
        let is_link_local = |address: IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        for held in network::addresses().context("cannot list the addresses of this host")? {
            let is_suitable = held.address.is_ipv4() == is_ipv4 && !is_link_local(held.address);
            if is_suitable
                && named.contains(&held.interface)
                && ours.lookup(&Address::from(held.address).0, MapFlags::ANY)?.is_none()
            {
                return Ok(Some(held.address));
            }
        }
        Ok(None)
    }

    /// Attaches the program for health checks to the interface `ifindex`, or takes over what is attached there.
    pub(super) fn attach_check(&mut self, ifindex: u32) -> Result<()> {
        let hook = Hook::egress(ifindex);
        let attachment = Attachment::make(self.attach, self.programs.check.as_fd(), hook, &self.pins.links())?;
        self.keep(attachment);
        Ok(())
    }

    /// Detaches the program for health checks from all interfaces, whichever process has attached it.
    fn detach_checks(&mut self) -> Result<()> {
        self.attachments.retain(|attachment| !attachment.hook().is_egress());
        let noted = noted(&self.pins.links())?;
        noted.into_iter().filter(|noted| noted.hook().is_egress()).try_for_each(Attachment::detach)
    }
}

/// Whether a backend of `service` is of another family than its VIP.
fn has_mixed(service: &Service) -> bool {
    is_direct(service) && service.backends.iter().any(|backend| service.is_mixed(backend))
}

/// Removes the device of health checks, and its routes with it; none of that name is fine.
pub fn remove_device(name: &str) -> io::Result<()> {
    Tap::take_away(name)
}
