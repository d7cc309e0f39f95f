//! The directory of pinned objects: one directory directory per instance in a BPF file system.

use super::{CONTROL, MonitorHook, attach, checked, raw};
use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::MapHandle;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The usual mount points of BPF file systems.
pub const PIN_DIRECTORY_DEFAULT: &str = "/sys/fs/bpf/hairpin";
/// The mount point used if there is none at the configured place: `ip netns exec`, for one, hides the usual one.
pub const PIN_DIRECTORY_OWN: &str = "/run/hairpin/bpf";

/// An instance's directory.
#[derive(Debug)]
pub(super) struct Pins(PathBuf);

impl Pins {
    /// Makes the directory of `instance`, empty.
    pub(super) fn create(directory: &Path, instance: &str) -> Result<Pins> {
        check(instance)?;
        // Wherever it may have been: a program attached twice would forward packets twice.
        while let Some(before) = Pins::find(directory, instance)? {
            before.remove()?;
        }
        let pins = Pins(bpf_directory(directory)?.join(instance));
        for part in ["maps", "programs", "links"] {
            let path = pins.0.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(pins)
    }

    /// The directory of `instance`, wherever it may have been made; `None` if there is none.
    pub(super) fn find(directory: &Path, instance: &str) -> Result<Option<Pins>> {
        check(instance)?;
        let places = [directory, Path::new(PIN_DIRECTORY_OWN)].into_iter().filter(|place| is_bpf(place));
        Ok(places.map(|place| Pins(place.join(instance))).find(|pins| pins.0.exists()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn links(&self) -> PathBuf {
        self.0.join("links")
    }

    /// Where filters of monitors are noted.
    pub(super) fn monitors(&self) -> PathBuf {
        self.0.join("monitors")
    }

    pub(super) fn pin_map(&self, map: BorrowedFd<'_>, name: &str) -> Result<()> {
        let path = self.0.join("maps").join(name);
        pin(raw(map), &path).with_context(|| format!("cannot pin {}", path.display()))
    }

    /// Pins a program, in place of any that is there: at every instant there is the one or the other.
    pub(super) fn pin_program(&self, program: BorrowedFd<'_>, name: &str) -> Result<()> {
        let path = self.0.join("programs").join(name);
        let new = self.0.join("programs").join(format!("{name}-new"));
        let pinned = || -> io::Result<()> {
            // Remains of a process that died right here.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => pin(raw(program), &new)?,
            }
            fs::rename(&new, &path)
        };
        pinned().with_context(|| format!("cannot pin {}", path.display()))
    }

    /// The pinned map of this name; `None` if there is none.
    pub(super) fn map(&self, name: &str) -> Result<Option<MapHandle>> {
        let path = self.0.join("maps").join(name);
        if !path.exists() {
            return Ok(None);
        }
        let map = MapHandle::from_pinned_path(&path);
        map.map(Some).with_context(|| format!("cannot open {}", path.display()))
    }

    /// The pinned program of this name.
    pub(super) fn program(&self, name: &str) -> Result<OwnedFd> {
        open(&self.0.join("programs").join(name))
    }

    /// Detaches and unpins what is there, and unmounts the file system if it was mounted for this and is no longer
    /// needed.
    pub(super) fn clear(&self) -> Result<()> {
        self.remove()?;
        let own = Path::new(PIN_DIRECTORY_OWN);
        // Instances are directories; the kernel puts files of its own beside them.
        let unused = || fs::read_dir(own).is_ok_and(|mut all| !all.any(|entry| entry.is_ok_and(|e| e.path().is_dir())));
        if self.0.parent() == Some(own) && is_bpf(own) && unused() {
            let place = CString::new(own.as_os_str().as_bytes())?;
            // Lazily: a process being started may hold a copy of a descriptor we had there.
            let flags = libc::UMOUNT_NOFOLLOW | libc::MNT_DETACH;
            // SAFETY: the path is a C string that lives through the call.
            let unmounted = unsafe { libc::umount2(place.as_ptr(), flags) } == 0;
            // Another process may be about to use it.
            if unmounted {
                let _ = fs::remove_dir(own);
            }
        }
        Ok(())
    }

    /// Detaches and unpins what is there. Nothing there is fine.
    fn remove(&self) -> Result<()> {
        if !self.0.exists() {
            return Ok(());
        }
        attach::undo(&self.links())?;
        MonitorHook::clean(&self.monitors())?;
        // First: by it one knows that what is pinned is complete.
        let control = self.0.join("maps").join(CONTROL);
        match fs::remove_file(&control) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot unpin {}", control.display()));
            }
            _ => {}
        }
        fs::remove_dir_all(&self.0).with_context(|| format!("cannot remove {}", self.0.display()))
    }
}

/// An instance's name is a directory's.
fn check(instance: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    ensure!(
        !instance.is_empty() && instance.chars().all(plain),
        "instance name {instance:?}: letters, digits, - and _"
    );
    Ok(())
}

/// The network namespace of this thread, by inode number: what is attached is attached there.
pub(super) fn network() -> Result<u32> {
    let file = "/proc/thread-self/ns/net";
    let found = fs::metadata(file).with_context(|| format!("cannot examine {file}"))?;
    u32::try_from(found.ino()).with_context(|| format!("{file} has an impossible inode number"))
}

/// Removes what a dead instance has left, wherever [`super::LoadedPlane::load`] may have pinned it. Only from the network
/// namespace it ran in. Nothing there is fine.
pub fn flush(pin_directory: &Path, instance: &str) -> Result<()> {
    for directory in [pin_directory, Path::new(PIN_DIRECTORY_OWN)] {
        if is_bpf(directory) {
            Pins(directory.join(instance)).clear()?;
        }
    }
    Ok(())
}

/// Whether the object pinned at `path` is still there when this process and its children have ended. It is not where the file
/// system is mounted in a mount namespace of the process's own, as under `ip netns exec`: with the last process the
/// namespace goes, and with it pins, links and programs, from one packet to the next. `true` if that cannot be found out.
pub fn is_lasting(path: &Path) -> bool {
    let Ok(relative) = path.strip_prefix("/") else { return true };
    let namespace = |process: u32| fs::metadata(format!("/proc/{process}/ns/mnt")).map(|found| found.ino()).ok();
    let own = std::process::id();
    // PID 1's, or that of the eldest ancestor that may be looked at.
    let eldest =
        std::iter::successors(Some(own), |&process| parent(process)).filter(|&p| namespace(p).is_some()).last();
    let Some(eldest) = eldest.filter(|&eldest| namespace(eldest) != namespace(own)) else { return true };
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
    // The same file system may be mounted in several namespaces: a service of systemd sees the host's.
    match (device(path), device(&Path::new(&format!("/proc/{eldest}/root")).join(relative))) {
        (Ok(own), Ok(other)) => own == other,
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        _ => true,
    }
}

/// The process's parent; none of PID 1's.
fn parent(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent != 0).then_some(parent)
}

pub(super) fn pin(fd: i32, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that lives through the call.
    checked(unsafe { libbpf_sys::bpf_obj_pin(fd, path.as_ptr()) }).map(|_| ())
}

/// The object pinned at `path`.
pub(super) fn open(path: &Path) -> Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path is a C string that lives through the call.
    let fd = checked(unsafe { libbpf_sys::bpf_obj_get(name.as_ptr()) });
    let fd = fd.with_context(|| format!("cannot open {}", path.display()))?;
    // SAFETY: libbpf has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether `path`, or the nearest directory above it that exists, is in a BPF file system.
fn is_bpf(path: &Path) -> bool {
    const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
    let Some(there) = path.ancestors().find(|ancestor| ancestor.exists()) else { return false };
    let Ok(there) = CString::new(there.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain integers.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and `found` may be written; both live through the call.
    let result = unsafe { libc::statfs(there.as_ptr(), &mut found) };
    result == 0 && found.f_type as u64 == BPF_FS_MAGIC
}

/// `wanted` if it is in a BPF file system, else [`PIN_DIRECTORY_OWN`], mounting one there if need be.
fn bpf_directory(wanted: &Path) -> Result<PathBuf> {
    if is_bpf(wanted) {
        return Ok(wanted.to_path_buf());
    }
    let own = Path::new(PIN_DIRECTORY_OWN);
    if is_bpf(own) {
        return Ok(own.to_path_buf());
    }
    fs::create_dir_all(own).with_context(|| format!("cannot make {}", own.display()))?;
    let place = CString::new(own.as_os_str().as_bytes())?;
    // SAFETY: all are C strings that live through the call; this file system takes no further data.
    let result = unsafe { libc::mount(c"bpf".as_ptr(), place.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
    if result != 0 {
        let error = io::Error::last_os_error();
        bail!(
            "there is no BPF file system at {} and none can be mounted at {}: {error}. Mount one: mount -t bpf bpf \
             /sys/fs/bpf",
            wanted.display(),
            own.display()
        );
    }
    Ok(own.to_path_buf())
}
