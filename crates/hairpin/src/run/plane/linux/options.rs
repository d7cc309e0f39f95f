//! The options of the BPF programs, from the configuration.

use crate::config::{Attach, SetUpChoice, Settings, WhenAbsent};
use crate::run::worker_pool::SPLICES_MAX;
use hairpin_linux::programs::{Absent, AttachMode, ProgramOptions, SetUpRoom};
use std::time::Duration;

/// A policer's rate that holds nothing back.
pub(super) const UNLIMITED: u32 = u32::MAX;

/// The fewest half-open connections that the programs have room for.
const PENDING_MIN: u32 = 4096;
/// The most.
const PENDING_MAX: u32 = 262_144;

/// The rules that a family has room for that no service is of, where `rules_max` is not less.
const SPARSE_MIN: u32 = 262_144;

pub(super) fn options(settings: &Settings) -> ProgramOptions {
    let linux = &settings.linux;
    // Packets of connections cannot be told from others if connections are not tracked.
    let is_policed = settings.connection_table.tracks_connections();
    ProgramOptions {
        instance: settings.instance.clone(),
        pin_directory: linux.pin_directory.clone(),
        rules_v4_max: settings.rules_max,
        rules_v6_max: settings.rules_max,
        attach: match linux.attach {
            Attach::Clsact => AttachMode::Clsact,
            Attach::Tc | Attach::Xdp | Attach::Auto => AttachMode::Auto,
        },
        when_absent: match linux.when_absent {
            WhenAbsent::Pass => Absent::Pass,
            WhenAbsent::Drop | WhenAbsent::Serve if is_policed => Absent::Drop,
            WhenAbsent::Drop | WhenAbsent::Serve => Absent::DropAll,
        },
        serve_for: if linux.when_absent == WhenAbsent::Serve { linux.serve_for } else { Duration::ZERO },
        heartbeat_timeout: linux.heartbeat_timeout,
        policer_backend_pps: if is_policed { linux.policer_backend } else { UNLIMITED },
        handover_bound: linux.handover_bound,
        ..ProgramOptions::default()
    }
}

/// The rules of IPv4 if no service is of it: 7 MB, which they take at once.
pub(super) const RULES_V4_UNUSED_MAX: u32 = 65_536;

/// The rules of IPv6 if no service is of it: buckets take their memory at once, and are not used until a reload brings such a
/// service. Its rules stay within this until the maps are made anew.
pub(super) fn sparse_room(rules_max: u32) -> u32 {
    rules_max.min(SPARSE_MIN.max(rules_max / 8))
}

/// Rules that translate sequence numbers: two for each client's connection of an HTTP or TLS service, of which there are `http`
/// at most if that is configured.
pub(super) fn sequences_max(http: Option<u32>, connections_max: u32, workers: u16) -> u32 {
    let connections = http.unwrap_or(SPLICES_MAX.saturating_mul(workers.into())).min(connections_max);
    connections.saturating_mul(2)
}

/// Room for connections that the programs set up, if they are to: half-open ones, an eighth of all connections, within
/// bounds.
pub(super) fn set_up_room(settings: &Settings, workers: u16) -> Option<SetUpRoom> {
    let pending = (settings.connections_max / 8).clamp(PENDING_MIN, PENDING_MAX);
    (settings.set_up == SetUpChoice::Engine).then_some(SetUpRoom { pending, workers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_without_services_has_an_eighth_of_much_room() {
        let room = [64, 262_144, 1_000_000, 16_777_216].map(sparse_room);
        assert_eq!(room, [64, 262_144, 262_144, 2_097_152]);
    }

    #[test]
    fn sequences_have_room_for_two_rules_each_connection() {
        assert_eq!(sequences_max(None, 1_000_000, 2), 4 * SPLICES_MAX);
        assert_eq!(sequences_max(None, 1000, 2), 2000);
        assert_eq!(sequences_max(Some(100_000), 1_000_000, 2), 200_000);
        assert_eq!(sequences_max(Some(u32::MAX), u32::MAX, 1), u32::MAX);
    }
}
