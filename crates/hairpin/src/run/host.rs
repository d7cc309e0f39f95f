//! The requirements on the machine: rights, interfaces, forwarding. Every failure says what to do about it.

use super::instance::ForwardingSwitch;
use crate::config::{ForwardingChoice, Settings, nearest};
use anyhow::{Context, Result, bail};
use hairpin_core::config::{Pool, Service, ServiceState, Snapshot};
use hairpin_linux::device::{self, Family, Interface};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io::ErrorKind;
use std::time::{SystemTime, UNIX_EPOCH};

/// Checks that the process may do what it is about to do.
pub(crate) fn require_rights() -> Result<()> {
    let have = rustix::thread::capabilities(None).context("cannot read this process's capabilities")?.effective;
    let needed = [("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN), ("CAP_BPF", CapabilitySet::BPF)];
    let missing: Vec<&str> = needed.iter().filter(|(_, bit)| !have.contains(*bit)).map(|(name, _)| *name).collect();
    if !missing.is_empty() {
        bail!("this process lacks {}; run hairpin as root", missing.join(" and "));
    }
    Ok(())
}

/// The nice value of the process's threads. Workers do what softirq does for the kernel's own forwarding, so a process
/// that a packet wakes must not interrupt them at once; but far ahead of all others they would be woken for every
/// single packet and never see a batch. Measured with `make bench BENCH=connections` on two cores shared with clients
/// and servers, new connections per second at nice 0: 30 k, -2: 34 k, -4: 36 k, -6: 34 k, -8: 30 k, -20: 22 k.
const NICE: i32 = -4;

/// Puts this thread, and those it starts from now on, a little ahead of ordinary ones.
pub(crate) fn take_precedence() -> Result<()> {
    rustix::process::setpriority_process(None, NICE).with_context(|| format!("cannot take nice value {NICE}"))
}

/// Gives up every right but those `needed` from start to end, for this thread and those it starts from now on.
///
/// The user stays root: pins, socket and `/proc/sys` belong to root, and reaching them as their owner needs no right.
pub(crate) fn drop_rights(needed: CapabilitySet) -> Result<()> {
    rustix::thread::set_no_new_privs(true).context("cannot forswear new privileges")?;
    let have = rustix::thread::capabilities(None).context("cannot read this process's capabilities")?;
    let kept = have.permitted.intersection(needed);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).context("cannot give up capabilities")
}

/// `N` words that no other process knows.
pub(crate) fn secret<const N: usize>() -> Result<[u64; N]> {
    let mut words = [0u64; N];
    for word in &mut words {
        let mut bytes = [0u8; 8];
        let drawn = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        // The kernel gives so few bytes at once or fails.
        if drawn.context("cannot draw secrets")? != bytes.len() {
            bail!("cannot draw secrets: the kernel gave too few bytes");
        }
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

/// Looks the configured interfaces up, in their order; all failures are reported together.
pub(crate) fn interfaces(settings: &Settings) -> Result<Vec<Interface>> {
    let mut found = Vec::new();
    let mut wrong = Vec::new();
    for name in &settings.interfaces {
        match Interface::by_name(name) {
            Ok(interface) if !interface.ethernet => {
                wrong.push(format!("interface {name} is not Ethernet; Hairpin works on Ethernet only"));
            }
            Ok(interface) => found.push(interface),
            Err(error) if error.kind() == ErrorKind::NotFound => wrong.push(unknown_interface(name)),
            Err(error) => wrong.push(format!("cannot look up interface {name}: {error}")),
        }
    }
    if wrong.is_empty() { Ok(found) } else { bail!("{}", wrong.join("\n")) }
}

/// That there is no interface of this name, and which one may have been meant.
pub(crate) fn unknown_interface(name: &str) -> String {
    let names = device::names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(String::as_str).filter(|name| *name != "lo").collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!("did you mean {near}?"),
        None if names.is_empty() => "this network namespace has none".to_string(),
        None => format!("there are {}", names.join(", ")),
    };
    format!("there is no interface {name}; {hint}")
}

/// Whether packets to services or backends of this family are forwarded.
fn forwards(snapshot: &Snapshot, ipv6: bool) -> bool {
    let services = snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
    // Of direct server return, backends may be of another family than their VIP.
    let is_of = |service: &Service| {
        let mut backends = service.backends.iter();
        service.endpoint.address.is_ipv4() != ipv6
            || backends.any(|backend| service.is_mixed(backend) && backend.endpoint.address.is_ipv4() != ipv6)
    };
    services.into_iter().any(is_of)
}

/// The forwarding switches that are off and should be on for `snapshot`. If it replaces `before`, those of families that only
/// the new one uses: a switch that was turned off meanwhile must not prevent other changes.
pub(crate) fn forwarding_off(
    settings: &Settings,
    snapshot: &Snapshot,
    before: Option<&Snapshot>,
) -> Result<Vec<ForwardingSwitch>> {
    let is_needed = |ipv6: bool| forwards(snapshot, ipv6) && !before.is_some_and(|before| forwards(before, ipv6));
    let mut off = Vec::new();
    for interface in &settings.interfaces {
        for ipv6 in [false, true].into_iter().filter(|&ipv6| is_needed(ipv6)) {
            let family = if ipv6 { Family::Ipv6 } else { Family::Ipv4 };
            match device::forwarding(interface, family) {
                Ok(true) => {}
                Ok(false) => off.push(ForwardingSwitch { interface: interface.clone(), ipv6 }),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let family = if ipv6 { "IPv6" } else { "IPv4" };
                    bail!("{interface} has no {family}, which a service uses; enable it there");
                }
                Err(error) => bail!("cannot see whether {interface} forwards: {error}"),
            }
        }
    }
    if settings.linux.forwarding == ForwardingChoice::Check && !off.is_empty() {
        let switches: Vec<String> = off
            .iter()
            .map(|off| format!("net.{}.conf.{}.forwarding=1", if off.ipv6 { "ipv6" } else { "ipv4" }, off.interface))
            .collect();
        let later = if before.is_some() { ", and restart or upgrade it" } else { "" };
        bail!(
            "IP forwarding is off where it is needed; run: sysctl -w {}\nor let Hairpin do it: [linux] forwarding = \
             \"enable\"{later}",
            switches.join(" ")
        );
    }
    Ok(off)
}

/// A warning if the kernel may give ports of the pool to the host's own connections.
pub(crate) fn port_range_warning(pool: &Pool) -> Option<String> {
    if pool.addresses.is_empty() {
        return None;
    }
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    overlap_warning(pool, &text)
}

fn overlap_warning(pool: &Pool, range: &str) -> Option<String> {
    let mut ends = range.split_ascii_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    (pool.port_first <= last && first <= pool.port_last).then(|| {
        format!(
            "[pool] ports {}-{} overlap net.ipv4.ip_local_port_range ({first}-{last}): the kernel may give the same \
             ports to the host's own connections; change one of the two",
            pool.port_first, pool.port_last
        )
    })
}

/// Seconds since 1970.
pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_port_ranges_are_warned_of() {
        let pool = |port_first, port_last| Pool {
            addresses: Box::new([]),
            port_first,
            port_last,
            time_wait: std::time::Duration::ZERO,
        };
        for (first, last, overlaps) in [
            (16384, 28671, false),
            (16384, 32768, true),
            (32768, 60999, true),
            (40000, 40000, true),
            (60999, 65535, true),
            (61000, 65535, false),
            (1024, 65535, true),
        ] {
            assert_eq!(overlap_warning(&pool(first, last), "32768\t60999\n").is_some(), overlaps, "{first}-{last}");
        }
        assert_eq!(overlap_warning(&pool(1024, 65535), "nonsense"), None);
        assert_eq!(port_range_warning(&pool(1024, 65535)), None, "a pool without addresses is not used");
    }

    #[test]
    fn an_unknown_interface_is_answered_with_the_names_there_are() {
        let text = unknown_interface("surely-not-there");
        assert!(text.starts_with("there is no interface surely-not-there; "), "{text}");
    }
}
