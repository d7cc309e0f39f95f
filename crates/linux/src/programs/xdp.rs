//! The XDP program on named interfaces: in their drivers, by a pinned link, in front of the program at tc ingress.

use super::attach::{self, Attachment};
use super::{LoadedPlane, checked, raw, refusal};
use crate::abi::{self, Bytes};
use crate::device::{self, Interface};
use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::{MapCore, MapFlags};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// `NETDEV_XDP_ACT_NDO_XMIT` of linux/netdev.h: the driver sends frames that other drivers' programs redirect to it.
const TAKES_REDIRECTED: u64 = 4;

/// The driver of virtual Ethernet pairs.
const VETH: &str = "veth";

/// What an interface can do with frames that the program sends by it.
struct Abilities {
    /// Takes frames that are redirected to it.
    redirect: bool,
    /// Sends what the program returns with `XDP_TX`.
    back: bool,
}

impl LoadedPlane {
    /// Attaches the XDP program to `interfaces`, each with its slot, which [`LoadedPlane::attach`] has attached the ingress
    /// program to; all of them or, if one cannot have it, none that did not have it before. A link that is there already,
    /// also an earlier process's, is taken over: from one packet to the next its program is replaced. Packets leave by XDP
    /// only through these interfaces.
    ///
    /// Errors name the interface and the kernel's reason: its driver does not run XDP, another program is there already,
    /// or what is sent by it would be lost.
    pub fn attach_xdp(&mut self, interfaces: &[(u32, Interface)]) -> Result<()> {
        let mut fresh = Vec::new();
        match self.try_attach_xdp(interfaces, &mut fresh) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.attachments.retain(|attachment| !(attachment.is_xdp() && fresh.contains(&attachment.ifindex())));
                let links = attach::noted(&self.pins.links())?.into_iter();
                let ours = links.filter(|link| link.is_xdp() && fresh.contains(&link.ifindex()));
                ours.map(Attachment::detach).fold(Ok(()), Result::and)?;
                Err(error)
            }
        }
    }

    fn try_attach_xdp(&mut self, interfaces: &[(u32, Interface)], fresh: &mut Vec<u32>) -> Result<()> {
        for (_, interface) in interfaces {
            let (attachment, is_fresh) = make(self.programs.xdp.as_fd(), interface, &self.pins.links())?;
            if is_fresh {
                fresh.push(interface.index);
            }
            self.keep(attachment);
        }
        // Some drivers can only be asked afterwards: they take redirected frames while they have a program.
        for (slot, interface) in interfaces {
            let can = abilities(interface)?;
            let entry = abi::InterfaceEntry {
                ifindex: interface.index,
                address: interface.mac,
                sends_back: u8::from(can.back),
                zero: 0,
            };
            self.set("interfaces", *slot, &entry)?;
            let devices = self.maps.named("devices")?;
            let index = interface.index.bytes();
            if can.redirect {
                devices.update(index, index, MapFlags::ANY).context("cannot add to map devices")?;
            } else {
                forget(devices, interface.index)?;
            }
        }
        Ok(())
    }

    /// Detaches the XDP program from every interface, also where an earlier process has attached it.
    pub fn detach_xdp(&mut self) -> Result<()> {
        self.attachments.retain(|attachment| !attachment.is_xdp());
        let links = attach::noted(&self.pins.links())?;
        links.into_iter().filter(Attachment::is_xdp).map(Attachment::detach).fold(Ok(()), Result::and)?;
        self.forget_devices(&[])
    }

    /// Lets XDP send by no devices but these.
    pub(super) fn forget_devices(&self, but: &[u32]) -> Result<()> {
        let devices = self.maps.named("devices")?;
        let known: Vec<u32> = devices.keys().filter_map(|key| u32::from_bytes(&key)).collect();
        known.into_iter().filter(|ifindex| !but.contains(ifindex)).try_for_each(|ifindex| forget(devices, ifindex))
    }

    /// Whether the XDP program is attached to any interface.
    pub fn is_xdp(&self) -> bool {
        self.attachments.iter().any(Attachment::is_xdp)
    }

    /// The XDP program, to run it in tests.
    pub fn xdp_program(&self) -> BorrowedFd<'_> {
        self.programs.xdp.as_fd()
    }
}

/// Takes a device out of map `devices`; one that is not there is fine.
fn forget(devices: &libbpf_rs::MapHandle, ifindex: u32) -> Result<()> {
    match devices.delete(ifindex.bytes()) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(error).context("cannot take from map devices")
        }
        _ => Ok(()),
    }
}

/// Whether an interface can have the XDP program for traffic whose frames may come without finished checksums: not one
/// that is the end of a virtual Ethernet pair.
pub fn has_whole_checksums(interface: &Interface) -> bool {
    device::driver(&interface.name).is_ok_and(|driver| driver != VETH)
}

/// Attaches `program`, or takes over the link that is there already. Whether it is a new one.
fn make(program: BorrowedFd<'_>, interface: &Interface, links: &Path) -> Result<(Attachment, bool)> {
    let there = attach::noted(links)?.into_iter().find(|link| link.is_xdp() && link.ifindex() == interface.index);
    if let Some(link) = there {
        let replaced = link.replace(program, links);
        let replaced = replaced.with_context(|| format!("cannot replace the XDP program of {}", interface.name))?;
        if let Some(attachment) = replaced {
            return Ok((attachment, false));
        }
    }
    match fresh(program, interface.index, links) {
        Ok(attachment) => Ok((attachment, true)),
        Err(error) => Err(refused(program, interface, &error)),
    }
}

fn fresh(program: BorrowedFd<'_>, ifindex: u32, links: &Path) -> io::Result<Attachment> {
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        flags: libbpf_sys::XDP_FLAGS_DRV_MODE,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, and the options live through the call.
    let link = unsafe { libbpf_sys::bpf_link_create(raw(program), ifindex as i32, libbpf_sys::BPF_XDP, &options) };
    // SAFETY: libbpf has just opened it, and nothing else owns it.
    let link = unsafe { OwnedFd::from_raw_fd(checked(link)?) };
    let path = links.join(format!("xdp-{ifindex}"));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => super::pins::pin(link.as_raw_fd(), &path)?,
    }
    Ok(Attachment::Xdp { ifindex, link, path })
}

/// Why the kernel does not let the program be attached. A link's error is a number; over netlink the kernel answers the
/// same request in words.
fn refused(program: BorrowedFd<'_>, interface: &Interface, error: &io::Error) -> anyhow::Error {
    let flags = libbpf_sys::XDP_FLAGS_DRV_MODE | libbpf_sys::XDP_FLAGS_UPDATE_IF_NOEXIST;
    let (again, heard) = refusal::listen(|| {
        // SAFETY: the descriptor is open, there are no options.
        unsafe { libbpf_sys::bpf_xdp_attach(interface.index as i32, raw(program), flags, std::ptr::null()) }
    });
    if again == 0 {
        // SAFETY: there are no options.
        unsafe { libbpf_sys::bpf_xdp_detach(interface.index as i32, flags, std::ptr::null()) };
    }
    let words = heard.rsplit("Kernel error message: ").next().unwrap_or_default().trim();
    let words = if words.is_empty() { String::new() } else { format!(": {words}") };
    let meaning = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "its driver does not run XDP programs natively",
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached to it",
        _ => "its driver refuses the program as it is set up",
    };
    anyhow!("XDP is not possible on interface {}: {meaning} ({error}{words})", interface.name)
}

/// What the interface can do. Before Linux 6.3 the kernel does not say; then it is believed to take redirected frames.
fn abilities(interface: &Interface) -> Result<Abilities> {
    let mut found =
        libbpf_sys::bpf_xdp_query_opts { sz: size_of::<libbpf_sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: the options live through the call.
    checked(unsafe { libbpf_sys::bpf_xdp_query(interface.index as i32, 0, &mut found) })
        .with_context(|| format!("cannot ask what interface {} does with XDP", interface.name))?;
    let is_veth = device::driver(&interface.name).is_ok_and(|driver| driver == VETH);
    let redirect = found.feature_flags == 0 || found.feature_flags & TAKES_REDIRECTED != 0;
    if is_veth && !redirect {
        bail!(
            "XDP is not possible on interface {}: the other end of the pair does not poll, so frames that are redirected to it \
             would be lost. Switch GRO on there (ethtool -K INTERFACE gro on) or attach an XDP program there",
            interface.name
        );
    }
    // veth wakes its other end for XDP_TX only if that has a program, too.
    Ok(Abilities { redirect, back: !is_veth })
}
