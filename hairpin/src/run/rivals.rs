//! Other instances on this machine that have the same packets: the kernel gives each packet to one of them only.

use super::namespace::Namespace;
use crate::config::Config;
use crate::control::Client;
use crate::status::Status;
use anyhow::{Result, bail};
use hairpin_core::flow::Protocol;
use hairpin_core::l7::config::Kind;
use std::path::Path;

/// Refuses to start beside an instance that serves one of the same ends on one of the same interfaces. It asks those whose
/// control sockets are in the same directory; one that does not answer is passed over.
pub(super) fn refuse(config: &Config) -> Result<()> {
    let own = config.settings.socket();
    let entries = std::fs::read_dir(&config.settings.control_directory).into_iter().flatten().flatten();
    let sockets = entries.map(|entry| entry.path());
    for socket in sockets.filter(|path| *path != own && path.extension().is_some_and(|extension| extension == "sock")) {
        let Some(status) = asked(&socket) else { continue };
        let [theirs, ours] = [Namespace::of(status.pid), Namespace::current()];
        if theirs.is_some() && theirs != ours {
            continue;
        }
        if let Some((device, end)) = common(config, &status) {
            bail!(
                "instance {} (process {}) already serves {end} on {device}, and only one instance can: stop that one with \
                 `hairpin stop -i {0}`, or take the service or the interface out of one of the two files",
                status.instance,
                status.pid
            );
        }
    }
    Ok(())
}

fn asked(socket: &Path) -> Option<Status> {
    Client::connect(socket).ok()??.status().ok()
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
