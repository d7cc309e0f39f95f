//! The options of the BPF programs, from the configuration.

use crate::config::{Attach, Settings, WhenAbsent};
use hairpin_linux::programs::{Absent, AttachMode, ProgramOptions};

/// A policer's rate that holds nothing back.
pub(super) const UNLIMITED: u32 = u32::MAX;

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
            WhenAbsent::Drop if is_policed => Absent::Drop,
            WhenAbsent::Drop => Absent::DropAll,
        },
        heartbeat_timeout: linux.heartbeat_timeout,
        policer_backend_pps: if is_policed { linux.policer_backend } else { UNLIMITED },
        handover_bound: linux.handover_bound,
        ..ProgramOptions::default()
    }
}
