//! Attaching a program at a device's tc ingress or egress: by tcx where the kernel has it (Linux 6.6), else by a direct-action
//! filter on a clsact qdisc. What an instance has attached, the XDP program (`xdp.rs`) among it.

use super::{checked, filters, pins, raw};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// By tcx if the kernel has it, else by clsact.
    #[default]
    Auto,
    /// By tcx only.
    Tcx,
    /// By clsact only.
    Clsact,
}

/// Priority of our filter on a clsact qdisc, of one that is there only while its process is, and handle of both.
const PRIORITY: u32 = 0x4850;
const PRIORITY_PASSING: u32 = PRIORITY + 1;
const HANDLE: u32 = 1;

/// The place of a program in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Where packets come in, at tc.
    Ingress,
    /// Where packets leave, at tc.
    Egress,
    /// Where packets come in, before the kernel makes a socket buffer.
    Driver,
}

/// A place of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(super) ifindex: u32,
    place: Place,
}

impl Hook {
    /// Where packets come in.
    pub(super) fn ingress(ifindex: u32) -> Hook {
        Hook { ifindex, place: Place::Ingress }
    }

    /// Where packets leave.
    pub(super) fn egress(ifindex: u32) -> Hook {
        Hook { ifindex, place: Place::Egress }
    }

    pub(super) fn is_egress(self) -> bool {
        self.place == Place::Egress
    }

    /// The end of the names by which attachments are noted.
    fn suffix(self) -> &'static str {
        if self.is_egress() { "-egress" } else { "" }
    }

    pub(super) fn of_libbpf(self) -> libbpf_sys::bpf_tc_hook {
        libbpf_sys::bpf_tc_hook {
            sz: size_of::<libbpf_sys::bpf_tc_hook>() as _,
            ifindex: self.ifindex as i32,
            attach_point: if self.is_egress() { libbpf_sys::BPF_TC_EGRESS } else { libbpf_sys::BPF_TC_INGRESS },
            ..Default::default()
        }
    }
}

/// A program attached to a device.
#[derive(Debug)]
pub(super) enum Attachment {
    /// By a link, pinned at `path`.
    Tcx { hook: Hook, link: OwnedFd, path: PathBuf },
    /// By a filter. `marker` is a directory whose name says so: BPF file systems hold no other files.
    Clsact { hook: Hook, marker: PathBuf, own_qdisc: bool },
    /// In the device's driver, by a link, pinned at `path`.
    Xdp { ifindex: u32, link: OwnedFd, path: PathBuf },
}

impl Attachment {
    /// Attaches `program` and notes it in the directory `links`. If that directory says that one is attached to the
    /// device already, its program is replaced: no packet passes without one or the other.
    pub(super) fn make(mode: AttachMode, program: BorrowedFd<'_>, hook: Hook, links: &Path) -> Result<Attachment> {
        let (mut kept, mut others) = (None, Vec::new());
        for attachment in noted(links)?.into_iter().filter(|other| other.hook() == hook) {
            let suits = match mode {
                AttachMode::Auto => true,
                AttachMode::Tcx => attachment.is_tcx(),
                AttachMode::Clsact => !attachment.is_tcx(),
            };
            if kept.is_some() || !suits {
                others.push(attachment);
            } else {
                let replaced = attachment.replace(program, links);
                kept = replaced.with_context(|| format!("cannot replace the program of device {}", hook.ifindex))?;
            }
        }
        let attachment = match kept {
            Some(attachment) => attachment,
            None => Attachment::fresh(mode, program, hook, links)?,
        };
        // Attached in another way than is wanted now.
        others.into_iter().try_for_each(Attachment::detach)?;
        Ok(attachment)
    }

    fn fresh(mode: AttachMode, program: BorrowedFd<'_>, hook: Hook, links: &Path) -> Result<Attachment> {
        let ifindex = hook.ifindex;
        if mode != AttachMode::Clsact {
            match tcx(program, hook, links) {
                // The error of a kernel that does not know the attach type.
                Err(error) if mode == AttachMode::Auto && error.raw_os_error() == Some(libc::EINVAL) => {}
                result => {
                    return result.with_context(|| format!("cannot attach to device {ifindex} by tcx"));
                }
            }
        }
        clsact(program, hook, links, None).with_context(|| format!("cannot attach to device {ifindex} by clsact"))
    }

    /// Replaces the attached program. `None`: the device it was attached to is gone,
    /// and so is the attachment.
    pub(super) fn replace(self, program: BorrowedFd<'_>, links: &Path) -> Result<Option<Attachment>> {
        match &self {
            Attachment::Tcx { link, path, .. } | Attachment::Xdp { link, path, .. } => {
                // SAFETY: both descriptors are open, there are no options.
                let updated =
                    checked(unsafe { libbpf_sys::bpf_link_update(link.as_raw_fd(), raw(program), std::ptr::null()) });
                match updated {
                    Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {
                        fs::remove_file(path).with_context(|| format!("cannot unpin {}", path.display()))?;
                        Ok(None)
                    }
                    Err(error) => Err(error).context("cannot update a link"),
                    Ok(_) => Ok(Some(self)),
                }
            }
            Attachment::Clsact { hook, marker, own_qdisc } => {
                let attachment = clsact(program, *hook, links, Some((marker, *own_qdisc)));
                Ok(Some(attachment.context("cannot replace a filter")?))
            }
        }
    }

    pub(super) fn hook(&self) -> Hook {
        match self {
            Attachment::Tcx { hook, .. } | Attachment::Clsact { hook, .. } => *hook,
            Attachment::Xdp { ifindex, .. } => Hook { ifindex: *ifindex, place: Place::Driver },
        }
    }

    pub(super) fn ifindex(&self) -> u32 {
        self.hook().ifindex
    }

    pub(super) fn is_tcx(&self) -> bool {
        matches!(self, Attachment::Tcx { .. })
    }

    pub(super) fn is_xdp(&self) -> bool {
        matches!(self, Attachment::Xdp { .. })
    }

    pub(super) fn detach(self) -> Result<()> {
        match self {
            Attachment::Tcx { link, path, .. } | Attachment::Xdp { link, path, .. } => {
                detach_link(link.as_fd())?;
                fs::remove_file(&path).with_context(|| format!("cannot unpin {}", path.display()))
            }
            Attachment::Clsact { hook, marker, own_qdisc } => {
                let result = remove_filter(hook, own_qdisc, PRIORITY);
                fs::remove_dir(&marker).with_context(|| format!("cannot remove {}", marker.display()))?;
                result.with_context(|| format!("cannot remove the filter of device {}", hook.ifindex))
            }
        }
    }
}

/// A program at a device's tc ingress for as long as this process wants: nothing is pinned. A link goes with the process, however
/// that ends. A filter stays if the process is killed, until the next one takes its place.
#[derive(Debug)]
pub(crate) enum Passing {
    /// By a link.
    Tcx(OwnedFd),
    /// By a filter.
    Clsact { hook: Hook, own_qdisc: bool },
}

impl Passing {
    pub(crate) fn attach(program: BorrowedFd<'_>, ifindex: u32, mode: AttachMode) -> Result<Passing> {
        let hook = Hook::ingress(ifindex);
        if mode != AttachMode::Clsact {
            match tcx_link(program, hook, 0) {
                // The error of a kernel that does not know the attach type.
                Err(error) if mode == AttachMode::Auto && error.raw_os_error() == Some(libc::EINVAL) => {}
                link => return Ok(Passing::Tcx(link.context("cannot attach by tcx")?)),
            }
        }
        let own_qdisc = make_qdisc(hook).context("cannot make a clsact qdisc")?;
        set_filter(program, hook, PRIORITY_PASSING).context("cannot attach by clsact")?;
        Ok(Passing::Clsact { hook, own_qdisc })
    }

    pub(crate) fn detach(self) -> Result<()> {
        match self {
            Passing::Tcx(link) => detach_link(link.as_fd()),
            Passing::Clsact { hook, own_qdisc } => {
                remove_filter(hook, own_qdisc, PRIORITY_PASSING).context("cannot remove the filter")
            }
        }
    }
}

/// Attaches by a link. `flags`: 0, behind all programs that are there; `BPF_F_BEFORE`, in front of them.
pub(super) fn tcx_link(program: BorrowedFd<'_>, hook: Hook, flags: u32) -> io::Result<OwnedFd> {
    let kind = if hook.is_egress() { libbpf_sys::BPF_TCX_EGRESS } else { libbpf_sys::BPF_TCX_INGRESS };
    // SAFETY: integers and pointers that may be null.
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    (options.sz, options.flags) = (size_of::<libbpf_sys::bpf_link_create_opts>() as _, flags);
    // SAFETY: the descriptor is open, the options are complete and live through the call.
    let link = unsafe { libbpf_sys::bpf_link_create(raw(program), hook.ifindex as i32, kind, &options) };
    // SAFETY: libbpf has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(checked(link)?) })
}

fn tcx(program: BorrowedFd<'_>, hook: Hook, links: &Path) -> io::Result<Attachment> {
    let link = tcx_link(program, hook, 0)?;
    let path = links.join(format!("tcx-{}{}", hook.ifindex, hook.suffix()));
    super::pins::pin(link.as_raw_fd(), &path)?;
    Ok(Attachment::Tcx { hook, link, path })
}

pub(super) fn filter(priority: u32) -> libbpf_sys::bpf_tc_opts {
    libbpf_sys::bpf_tc_opts {
        sz: size_of::<libbpf_sys::bpf_tc_opts>() as _,
        handle: HANDLE,
        priority,
        ..Default::default()
    }
}

/// Attaches by a filter, in place of any that is there. `before`: the marker it was noted by, and whether the
/// qdisc was our own.
fn clsact(program: BorrowedFd<'_>, hook: Hook, links: &Path, before: Option<(&Path, bool)>) -> io::Result<Attachment> {
    if let Some((marker, own_qdisc)) = before
        && set_filter(program, hook, PRIORITY).is_ok()
    {
        return Ok(Attachment::Clsact { hook, marker: marker.to_path_buf(), own_qdisc });
    }
    // There is no qdisc, or not any more.
    let own_qdisc = make_qdisc(hook)? || {
        // Another attachment of ours may have made it.
        let other = links.join(format!("clsact-{}-own", hook.ifindex));
        before.is_some_and(|(_, own)| own) || hook.is_egress() && other.exists()
    };
    let marker =
        links.join(format!("clsact-{}-{}{}", hook.ifindex, if own_qdisc { "own" } else { "found" }, hook.suffix()));
    // Noted before the filter is there: one that no process knows of would stay for ever.
    match before {
        Some((noted, _)) if noted != marker => fs::rename(noted, &marker)?,
        Some(_) => {}
        None => fs::create_dir(&marker)?,
    }
    set_filter(program, hook, PRIORITY)?;
    Ok(Attachment::Clsact { hook, marker, own_qdisc })
}

/// Makes the clsact qdisc of the device. `false`: there is one.
pub(super) fn make_qdisc(hook: Hook) -> io::Result<bool> {
    let mut qdisc = hook.of_libbpf();
    // SAFETY: the hook is complete and lives through the call.
    match checked(unsafe { libbpf_sys::bpf_tc_hook_create(&mut qdisc) }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts our filter on the clsact qdisc of the device, in place of any that is there: no packet passes between. Returns the program's
/// number.
pub(super) fn set_filter(program: BorrowedFd<'_>, hook: Hook, priority: u32) -> io::Result<u32> {
    let hook = hook.of_libbpf();
    let mut options = filter(priority);
    options.prog_fd = raw(program);
    options.flags = libbpf_sys::BPF_TC_F_REPLACE;
    // SAFETY: hook and options are complete and live through the call.
    checked(unsafe { libbpf_sys::bpf_tc_attach(&hook, &mut options) }).map(|_| options.prog_id)
}

/// Removes our filter, and the qdisc if it is our own and no other filter is on it. A device that is gone, or has lost
/// either already, is fine.
pub(super) fn remove_filter(hook: Hook, own_qdisc: bool, priority: u32) -> io::Result<()> {
    let ifindex = hook.ifindex;
    let mut hook = hook.of_libbpf();
    let options = filter(priority);
    // SAFETY: hook and options are complete and live through the call.
    let detached = checked(unsafe { libbpf_sys::bpf_tc_detach(&hook, &options) });
    match detached.map_err(|error| (error.raw_os_error(), error)) {
        Ok(_) | Err((Some(libc::ENOENT | libc::ENODEV | libc::EINVAL), _)) => {}
        Err((_, error)) => return Err(error),
    }
    if !own_qdisc || has_filters(ifindex)? {
        return Ok(());
    }
    hook.attach_point = libbpf_sys::BPF_TC_INGRESS | libbpf_sys::BPF_TC_EGRESS;
    // SAFETY: the hook is complete and lives through the call.
    match checked(unsafe { libbpf_sys::bpf_tc_hook_destroy(&mut hook) }) {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)) => Err(error),
        _ => Ok(()),
    }
}

/// Whether any filter is left on the clsact qdisc of the device, ingress or egress.
fn has_filters(ifindex: u32) -> io::Result<bool> {
    for parent in [INGRESS, EGRESS] {
        if filters::any(ifindex, TC_H_CLSACT | parent)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `TC_H_CLSACT` of linux/pkt_sched.h, without its minor number; then `TC_H_MIN_INGRESS` and `TC_H_MIN_EGRESS`.
const TC_H_CLSACT: u32 = 0xffff_0000;
const INGRESS: u32 = 0xfff2;
const EGRESS: u32 = 0xfff3;

/// Detaches a link at once; it would go with its last reference, but some time later. A device that is gone is fine.
pub(super) fn detach_link(link: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the descriptor is open.
    match checked(unsafe { libbpf_sys::bpf_link_detach(raw(link)) }) {
        Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => Err(error).context("cannot detach a link"),
        _ => Ok(()),
    }
}

/// The attachments an instance has noted in its directory `links`, which may not be there.
pub(super) fn noted(links: &Path) -> Result<Vec<Attachment>> {
    let entries = match fs::read_dir(links) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", links.display()))?,
    };
    let mut attachments = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", links.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        let (noted, place) = match name.strip_suffix("-egress") {
            Some(noted) => (noted, Place::Egress),
            None => (&*name, Place::Ingress),
        };
        let parts: Vec<&str> = noted.split('-').collect();
        attachments.push(match parts[..] {
            ["clsact", ifindex, qdisc] => {
                let ifindex = ifindex.parse().with_context(|| format!("{} names no device", path.display()))?;
                Attachment::Clsact { hook: Hook { ifindex, place }, marker: path, own_qdisc: qdisc == "own" }
            }
            ["tcx", ifindex] => {
                let ifindex = ifindex.parse().with_context(|| format!("{} names no device", path.display()))?;
                Attachment::Tcx { hook: Hook { ifindex, place }, link: pins::open(&path)?, path }
            }
            ["xdp", ifindex] => {
                let ifindex = ifindex.parse().with_context(|| format!("{} names no device", path.display()))?;
                Attachment::Xdp { ifindex, link: pins::open(&path)?, path }
            }
            _ => bail!("{} is none of ours: remove it", path.display()),
        });
    }
    Ok(attachments)
}

/// Undoes the attachments an instance has noted in its directory `links`.
pub(super) fn undo(links: &Path) -> Result<()> {
    noted(links)?.into_iter().try_for_each(Attachment::detach)
}
