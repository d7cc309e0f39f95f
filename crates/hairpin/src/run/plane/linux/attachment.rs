//! Whether the programs are attached in XDP, too: `[linux] attach`, decided at a start.

use super::InstancePrograms;
use crate::config::{Attach, Settings};
use crate::run::log;
use anyhow::{Context, Result};
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::flow::Protocol;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::has_whole_checksums;

/// Where the configuration wants the XDP program.
#[derive(Debug)]
pub(super) enum XdpWish {
    /// Nowhere. The reason, where `auto` has decided so; else empty.
    None(String),
    /// Wherever the drivers can.
    IfPossible,
    /// On every interface; without it there is no start.
    Everywhere,
}

impl XdpWish {
    pub(super) fn of(settings: &Settings, interfaces: &[Interface], snapshot: &Snapshot) -> XdpWish {
        match settings.linux.attach {
            Attach::Tc | Attach::Clsact => XdpWish::None(String::new()),
            Attach::Xdp => XdpWish::Everywhere,
            Attach::Auto if !settings.monitors.is_empty() => {
                XdpWish::None("monitors do not see packets that are forwarded there".to_string())
            }
            Attach::Auto => match objection(interfaces, snapshot) {
                Some(why) => XdpWish::None(why),
                None => XdpWish::IfPossible,
            },
        }
    }

    /// Attaches the XDP program to interfaces that have the one at tc ingress already, or detaches it from all. Returns what
    /// there is to say of it.
    pub(super) fn fulfil(&self, programs: &mut InstancePrograms, interfaces: &[Interface]) -> Result<String> {
        let why = match self {
            XdpWish::None(why) => why.clone(),
            XdpWish::Everywhere => {
                programs.attach_xdp(interfaces)?;
                return Ok(String::new());
            }
            XdpWish::IfPossible => match programs.attach_xdp(interfaces) {
                Ok(()) => return Ok(String::new()),
                Err(error) => format!("{error:#}"),
            },
        };
        programs.detach_xdp()?;
        if !why.is_empty() {
            log(&format!("attached at tc ingress, not in XDP: {why}"));
        }
        Ok(why)
    }
}

impl InstancePrograms {
    /// Puts the XDP program on all interfaces, each of which has the ingress program.
    fn attach_xdp(&mut self, interfaces: &[Interface]) -> Result<()> {
        let interfaces: Vec<(u32, Interface)> = (0..).zip(interfaces.iter().cloned()).collect();
        self.programs.attach_xdp(&interfaces)
    }

    /// Takes the XDP program away from all interfaces.
    fn detach_xdp(&mut self) -> Result<()> {
        self.programs.detach_xdp().context("cannot detach the XDP program")
    }

    /// Where the programs are attached, in words.
    pub(super) fn attachment(&self) -> String {
        let tc = if self.programs.is_tcx() == Some(true) { "tcx" } else { "clsact" };
        let xdp = if self.programs.is_xdp() { "in XDP, and " } else { "" };
        format!("programs {xdp}at tc ingress by {tc}")
    }
}

/// Why `auto` does not try XDP: large packets gain little from it, and frames from the other end of a veth may come without
/// checksums.
fn objection(interfaces: &[Interface], snapshot: &Snapshot) -> Option<String> {
    let services = || snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
    if let Some(service) = services().find(|service| service.protocol != Protocol::Udp) {
        return Some(format!("service \"{}\" is not of UDP", service.name));
    }
    let veth = interfaces.iter().find(|interface| !has_whole_checksums(interface))?;
    Some(format!("interface {} is the end of a veth pair, or has no driver that can be told", veth.name))
}
