//! A monitor's program at an interface: at tc ingress in front of all others, since these may redirect packets; at tc egress behind
//! them, since these may change packets.
//!
//! A tcx link goes with the process, however that ends. A filter on a clsact qdisc stays if the process is killed, so it is noted by
//! a directory in a BPF file system, which has no other files: `<ifindex>-own` if the qdisc is ours, `<ifindex>-found` if it is not.

use super::attach::{AttachMode, Hook, detach_link, make_qdisc, remove_filter, set_filter, tcx_link};
use super::checked;
use anyhow::{Context, Result};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Priorities of a monitor's filters: before and after those of balancing.
const PRIORITY_INGRESS: u32 = 0x4840;
const PRIORITY_EGRESS: u32 = 0x4860;

/// A monitor's program at one place of an interface.
#[derive(Debug)]
pub(crate) enum MonitorHook {
    /// By a link.
    Tcx(OwnedFd),
    /// By the filter with this program, by number, noted at `note`.
    Clsact { hook: Hook, program: u32, note: PathBuf },
}

impl MonitorHook {
    /// Attaches `program` at the ingress or egress of an interface.
    pub(crate) fn attach(
        program: BorrowedFd<'_>,
        (ifindex, is_egress): (u32, bool),
        mode: AttachMode,
        notes: &Path,
    ) -> Result<MonitorHook> {
        let hook = hook(ifindex, is_egress);
        if mode != AttachMode::Clsact {
            let flags = if is_egress { 0 } else { libbpf_sys::BPF_F_BEFORE };
            match tcx_link(program, hook, flags) {
                // The error of a kernel that does not know the attach type.
                Err(error) if mode == AttachMode::Auto && error.raw_os_error() == Some(libc::EINVAL) => {}
                link => return Ok(MonitorHook::Tcx(link.context("cannot attach by tcx")?)),
            }
        }
        let note = note(notes, ifindex, make_qdisc(hook).context("cannot make a clsact qdisc")?)?;
        let program = set_filter(program, hook, priority(is_egress)).context("cannot attach by clsact")?;
        Ok(MonitorHook::Clsact { hook, program, note })
    }

    /// Detaches it, unless another program has taken its place.
    pub(crate) fn detach(self) -> Result<()> {
        match self {
            MonitorHook::Tcx(link) => detach_link(link.as_fd()),
            MonitorHook::Clsact { hook, program, note } => {
                let priority = priority(hook.is_egress());
                if set_program(hook, priority).is_some_and(|found| found != program) {
                    return Ok(());
                }
                remove(hook, &note).context("cannot remove a monitor's filter")
            }
        }
    }

    /// Removes every filter that is noted in `notes`.
    pub(crate) fn clean(notes: &Path) -> Result<()> {
        let entries = match fs::read_dir(notes) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.with_context(|| format!("cannot read {}", notes.display()))?,
        };
        for entry in entries {
            let note = entry.with_context(|| format!("cannot read {}", notes.display()))?.path();
            let ifindex = note.file_name().and_then(|name| name.to_str()?.split('-').next()?.parse().ok());
            let ifindex = ifindex.with_context(|| format!("{} is none of ours: remove it", note.display()))?;
            for is_egress in [false, true] {
                remove(hook(ifindex, is_egress), &note)
                    .with_context(|| format!("cannot remove a monitor's filter from device {ifindex}"))?;
            }
        }
        Ok(())
    }
}

fn hook(ifindex: u32, is_egress: bool) -> Hook {
    if is_egress { Hook::egress(ifindex) } else { Hook::ingress(ifindex) }
}

fn priority(is_egress: bool) -> u32 {
    if is_egress { PRIORITY_EGRESS } else { PRIORITY_INGRESS }
}

/// Notes a filter before it is there; where. One note serves both filters of an interface.
fn note(notes: &Path, ifindex: u32, own_qdisc: bool) -> Result<PathBuf> {
    let [own, found] = ["own", "found"].map(|kind| notes.join(format!("{ifindex}-{kind}")));
    let note = if own_qdisc || own.exists() { own } else { found };
    fs::create_dir_all(&note).with_context(|| format!("cannot make {}", note.display()))?;
    Ok(note)
}

/// Removes a filter, the qdisc if it was ours and no filter is left, and the note.
fn remove(hook: Hook, note: &Path) -> io::Result<()> {
    let is_own = note.to_str().is_some_and(|name| name.ends_with("-own"));
    remove_filter(hook, is_own, priority(hook.is_egress()))?;
    match fs::remove_dir(note) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The number of the program of our filter at `hook`, if there is one.
fn set_program(hook: Hook, priority: u32) -> Option<u32> {
    let (hook, mut options) = (hook.of_libbpf(), super::attach::filter(priority));
    // SAFETY: hook and options are complete and live through the call.
    checked(unsafe { libbpf_sys::bpf_tc_query(&hook, &mut options) }).ok()?;
    Some(options.prog_id)
}
