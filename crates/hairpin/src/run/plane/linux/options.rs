//! The options of the BPF programs, from the configuration.

use crate::config::{Attach, SetUpChoice, Settings, WhenAbsent};
use hairpin_linux::programs::{Absent, AttachMode, ProgramOptions, SetUpRoom};
use std::time::Duration;

/// A policer's rate that holds nothing back.
pub(super) const UNLIMITED: u32 = u32::MAX;

/// The fewest half-open connections that the programs have room for.
const PENDING_MIN: u32 = 4096;
/// The most.
const PENDING_MAX: u32 = 262_144;

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

/// Room for connections that the programs set up, if they are to: half-open ones, an eighth of all connections, within
/// bounds.
pub(super) fn set_up_room(settings: &Settings, workers: u16) -> Option<SetUpRoom> {
    let pending = (settings.connections_max / 8).clamp(PENDING_MIN, PENDING_MAX);
    (settings.set_up == SetUpChoice::Engine).then_some(SetUpRoom { pending, workers })
}
