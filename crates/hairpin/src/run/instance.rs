//! One process per instance, and what it has made in the kernel: the lock file, and a record from which a later
//! process can remove everything even after a crash.

use super::namespace::Namespace;
use crate::config::PlaneChoice;
use anyhow::{Context, Result, bail};
use hairpin_linux::device::{self, Family};
use hairpin_linux::network::local_route;
use hairpin_linux::shared::Content;
use hairpin_linux::tap::Tap;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock of an instance. While it is held, no other process serves the instance.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Takes the lock beside the control socket `socket`; `None`, with the process that has it if it said so, when
    /// another process is alive.
    pub(crate) fn take(socket: &Path) -> Result<std::result::Result<Lock, Option<u32>>> {
        let path = socket.with_extension("lock");
        let about = || format!("cannot use the lock file {}", path.display());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).with_context(about)?;
        }
        loop {
            let mut options = OpenOptions::new();
            let mut file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .with_context(about)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    return Ok(Err(text.trim().parse().ok()));
                }
                Err(error) => return Err(error).with_context(about),
            }
            // The one before may have removed the file between our opening and locking it.
            let ours = file.metadata().with_context(about)?;
            match std::fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error).with_context(about),
            }
            let mut lock = Lock { file, path: path.clone() };
            lock.sign().with_context(about)?;
            return Ok(Ok(lock));
        }
    }

    /// The lock that another process holds and has passed on: each process that has its descriptor holds it.
    pub(crate) fn received(file: OwnedFd, socket: &Path) -> Result<Lock> {
        let mut lock = Lock { file: file.into(), path: socket.with_extension("lock") };
        lock.sign().with_context(|| format!("cannot use the lock file {}", lock.path.display()))?;
        Ok(lock)
    }

    /// Notes which process holds it.
    pub(crate) fn sign(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }

    /// Releases the lock and removes its file, and the directory if nothing else is in it.
    pub(crate) fn remove(self) {
        // Removed while it is held, so that no process can lock a file that is about to go.
        let _ = std::fs::remove_file(&self.path);
        if let Some(directory) = self.path.parent() {
            let _ = std::fs::remove_dir(directory);
        }
        drop(self.file);
    }
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A forwarding switch that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ForwardingSwitch {
    /// The interface.
    pub(crate) interface: String,
    /// Whether it is IPv6's.
    pub(crate) ipv6: bool,
}

impl ForwardingSwitch {
    pub(crate) fn family(&self) -> Family {
        if self.ipv6 { Family::Ipv6 } else { Family::Ipv4 }
    }
}

/// The objects that an instance has made, or is about to make, outside of its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    /// The instance.
    pub(crate) instance: String,
    /// How packets reach its workers, by the configuration's word.
    #[serde(default = "linux")]
    pub(crate) plane: String,
    /// The directory in which its pins have one of their own.
    pub(crate) pin_directory: PathBuf,
    /// Its worker devices.
    pub(crate) taps: Vec<String>,
    /// Forwarding switches it has switched on.
    pub(crate) forwarding: Vec<ForwardingSwitch>,
    /// The addresses that it has made local routes to; unknown of earlier versions.
    #[serde(default)]
    pub(crate) local_routes: Vec<IpAddr>,
    /// The shared memory in which its connections of layer 4 lie.
    #[serde(default)]
    pub(crate) table: PathBuf,
    /// The shared memory in which its connections of HTTP and TLS services lie; unknown of earlier versions.
    #[serde(default)]
    pub(crate) splices: PathBuf,
    /// The network namespace that its devices are in; unknown of earlier versions.
    #[serde(default)]
    pub(crate) namespace: Option<Namespace>,
}

/// The plane of processes that did not say.
fn linux() -> String {
    PlaneChoice::Linux.name().to_string()
}

impl InstanceRecord {
    fn path(socket: &Path) -> PathBuf {
        socket.with_extension("objects")
    }

    /// The path of the file with the numbers of services and backends.
    pub(crate) fn numbers(socket: &Path) -> PathBuf {
        socket.with_extension("numbers")
    }

    /// The shared memory in which the clients of limits lie: beside the connections.
    fn limits(&self) -> PathBuf {
        self.table.with_extension(Content::Limits.extension())
    }

    /// Writes it beside the control socket, before the objects are made.
    pub(crate) fn write(&self, socket: &Path) -> Result<()> {
        let path = InstanceRecord::path(socket);
        let about = || format!("cannot write {}", path.display());
        let text = serde_json::to_string_pretty(self)?;
        let new = path.with_extension("objects.new");
        std::fs::write(&new, text).with_context(about)?;
        std::fs::rename(&new, &path).with_context(about)
    }

    /// That of an earlier process, if there is one.
    pub(crate) fn read(socket: &Path) -> Result<Option<InstanceRecord>> {
        let path = InstanceRecord::path(socket);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).with_context(|| {
                format!("{} makes no sense; remove it if you know that nothing is left", path.display())
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => bail!("cannot read {}: {error}", path.display()),
        }
    }

    /// Removes everything in the record, the socket and the record itself; goes on after failures and reports them.
    /// From another network namespace, where it would find none of the devices, it removes nothing.
    pub(crate) fn flush(&self, socket: &Path) -> Result<()> {
        if let Some(place) = self.namespace.and_then(Namespace::elsewhere) {
            bail!("instance {} has its devices in {place}, not here; nothing is removed", self.instance);
        }
        let mut failures = Vec::new();
        let mut note = |what: String, result: std::result::Result<(), String>| {
            if let Err(error) = result {
                failures.push(format!("{what}: {error}"));
            }
        };
        if self.plane == linux() {
            let pins = format!("cannot remove the pins in {}", self.pin_directory.display());
            note(pins, super::plane::linux::flush(self).map_err(|error| format!("{error:#}")));
        }
        for tap in &self.taps {
            note(format!("cannot remove the device {tap}"), Tap::remove(tap).map_err(|error| error.to_string()));
        }
        for switch in &self.forwarding {
            let restored = match device::set_forwarding(&switch.interface, switch.family(), false) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            };
            note(format!("cannot restore forwarding on {}", switch.interface), restored);
        }
        for address in &self.local_routes {
            let removed = local_route::remove(*address).map_err(|error| error.to_string());
            note(format!("cannot remove the route `local {address} dev lo`"), removed);
        }
        if !failures.is_empty() {
            bail!("{}", failures.join("; "));
        }
        let files = [
            socket.to_path_buf(),
            crate::api::socket(socket),
            self.table.clone(),
            self.splices.clone(),
            self.limits(),
            InstanceRecord::numbers(socket),
            InstanceRecord::path(socket),
        ];
        for path in files.iter().filter(|path| !path.as_os_str().is_empty()) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => bail!("cannot remove {}: {error}", path.display()),
                _ => {}
            }
        }
        super::former::remove(socket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("hairpin-instance-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        directory.join("i.sock")
    }

    #[test]
    fn lock_is_exclusive_and_names_its_owner() {
        let socket = socket("lock");
        let lock = Lock::take(&socket).unwrap().unwrap();
        assert_eq!(Lock::take(&socket).unwrap().unwrap_err(), Some(std::process::id()));
        lock.remove();
        assert!(!socket.parent().unwrap().exists());
        let again = Lock::take(&socket).unwrap().unwrap();
        drop(again);
        // A lock that was released without being removed can be taken again.
        Lock::take(&socket).unwrap().unwrap().remove();
    }

    #[test]
    fn a_record_is_read_back_and_gone_after_a_flush() {
        let socket = socket("record");
        assert_eq!(InstanceRecord::read(&socket).unwrap(), None);
        let record = InstanceRecord {
            instance: "i".into(),
            plane: linux(),
            pin_directory: socket.with_file_name("pins"),
            taps: vec![],
            forwarding: vec![],
            local_routes: vec![],
            table: PathBuf::new(),
            splices: PathBuf::new(),
            namespace: Namespace::current(),
        };
        record.write(&socket).unwrap();
        assert_eq!(InstanceRecord::read(&socket).unwrap().as_ref(), Some(&record));
        record.flush(&socket).unwrap();
        assert_eq!(InstanceRecord::read(&socket).unwrap(), None);
        let mut earlier = serde_json::to_value(&record).unwrap();
        earlier.as_object_mut().unwrap().remove("local_routes").unwrap();
        std::fs::write(InstanceRecord::path(&socket), earlier.to_string()).unwrap();
        assert_eq!(InstanceRecord::read(&socket).unwrap(), Some(record), "an earlier version's");
        std::fs::write(InstanceRecord::path(&socket), "nonsense").unwrap();
        let error = InstanceRecord::read(&socket).unwrap_err();
        assert!(error.to_string().contains("makes no sense"), "{error}");
        std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    }
}
