//! Other instances on this machine that have the same packets: the kernel gives each packet to one of them only.

use super::namespace::Namespace;
use crate::config::Config;
use crate::control::ControlClient;
use crate::status::Status;
use anyhow::{Result, bail};
use hairpin_core::flow::Protocol;
use hairpin_core::l7::config::Kind;
use std::path::Path;

/// An instance that has the same packets.
pub(crate) struct Rival {
    /// Its name.
    pub(crate) instance: String,
    /// Its process.
    pub(crate) pid: u32,
    /// An interface that both have.
    pub(crate) device: String,
    /// An end on it that both serve.
    pub(crate) end: String,
}

impl Rival {
    /// The remedy.
    pub(crate) fn remedy(&self) -> String {
        format!(
            "stop that one with `hairpin stop -i {}`, or take the service or the interface out of one of the two files",
            self.instance
        )
    }
}

/// Refuses to start beside a rival.
pub(super) fn refuse(config: &Config) -> Result<()> {
    let Some(rival) = rival(config) else { return Ok(()) };
    let Rival { instance, pid, device, end } = &rival;
    bail!(
        "instance {instance} (process {pid}) already serves {end} on {device}, and only one instance can: {}",
        rival.remedy()
    )
}

/// An instance that serves one of the same ends on one of the same interfaces. Those are asked whose control sockets are in
/// the same directory; one that does not answer is skipped.
pub(crate) fn rival(config: &Config) -> Option<Rival> {
    let own = config.settings.socket();
    let entries = std::fs::read_dir(&config.settings.control_directory).into_iter().flatten().flatten();
    let sockets = entries.map(|entry| entry.path());
    let mut others =
        sockets.filter(|path| *path != own && path.extension().is_some_and(|extension| extension == "sock"));
    others.find_map(|socket| {
        let status = asked(&socket)?;
        let [theirs, ours] = [Namespace::of(status.pid), Namespace::current()];
        if theirs.is_some() && theirs != ours {
            return None;
        }
        let (device, end) = common(config, &status)?;
        Some(Rival { instance: status.instance, pid: status.pid, device, end })
    })
}

fn asked(socket: &Path) -> Option<Status> {
    ControlClient::connect(socket).ok()??.status().ok()
}

/// An interface and an end that both have.
fn common(config: &Config, status: &Status) -> Option<(String, String)> {
    let device = config.settings.devices().into_iter().find(|device| status.interfaces.contains(device))?;
    let services = config.snapshot.services.iter().filter(|service| !matches!(service.kind, Kind::Group));
    let ours: Vec<(String, bool)> =
        services.map(|service| (service.endpoint.to_string(), service.protocol == Protocol::Udp)).collect();
    let active = status.services.iter().filter(|service| service.state != "removed" && service.group_of.is_none());
    let end = active.map(|service| &service.listen).find(|listen| {
        let (end, protocol) = listen.rsplit_once('/').unwrap_or((listen, ""));
        ours.iter().any(|(own, is_udp)| own == end && *is_udp == (protocol == "udp"))
    })?;
    Some((device, end.clone()))
}
