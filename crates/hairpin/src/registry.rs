//! Stable identifiers: the number of each service and each backend, from configuration to configuration, restart to
//! restart and upgrade to upgrade.
//!
//! Connections, counters and rules refer to services and backends by number. So a number stays with its service (address,
//! port and protocol) and its backend (service, address and port) as long as the configuration has them or connections
//! need them; what has been removed is remembered with all that it takes to serve those. Numbers never given
//! before are given first, then those that are free again, whose counters must start anew.
//!
//! It also stores runtime overrides: one holds until it is reset, or the configuration changes what it says about
//! that backend.
//!
//! Not here: what a number means to workers and kernel, and when connections of removed services and backends are ended.

mod entry;
mod merge;
mod overrides;

pub(crate) use entry::Identity;
pub use merge::{KEPT_S, Merged};

use crate::config::{BACKENDS_MAX, Config, SERVICES_MAX};
use anyhow::{Context, Result, bail, ensure};
use entry::{BackendEntry, ServiceEntry};
use hairpin_core::config::BackendState;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The form of the file; another one is refused.
const VERSION: u32 = 1;
/// Bytes of a file at most: all numbers given, with long names, take about half of it.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Every service and backend that has a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registry {
    version: u32,
    /// Numbers below this have been given before.
    services_used: u32,
    backends_used: u32,
    services: BTreeMap<u16, ServiceEntry>,
    backends: BTreeMap<u16, BackendEntry>,
}

impl Default for Registry {
    /// No service and no backend has a number.
    fn default() -> Registry {
        let (services, backends) = (BTreeMap::new(), BTreeMap::new());
        Registry { version: VERSION, services_used: 0, backends_used: 0, services, backends }
    }
}

impl Registry {
    /// The registry that was saved at `path`; an empty one if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is not what [`Registry::save`] of this version writes.
    pub fn load(path: &Path) -> Result<Registry> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Registry::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
        };
        read(file).with_context(|| {
            format!(
                "cannot use {}, which says to what service and backend connections belong; run the version of Hairpin \
                 that has written it, or give those connections up: hairpin run --discard",
                path.display()
            )
        })
    }

    /// Writes it to `path`, for root only: a reader of `path` finds this or what was there before, whole.
    ///
    /// # Errors
    /// It cannot be written; what was there before still is.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        self.write(path, &new).map_err(|error| {
            let _ = fs::remove_file(&new);
            error.context(format!("cannot write {}", path.display()))
        })
    }

    fn write(&self, path: &Path, new: &Path) -> Result<()> {
        match fs::remove_file(new) {
            // Left by a process that died here.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(new, path)?;
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Gives everything in `config` its number, keeps what was removed and may still have connections, and frees the
    /// numbers of the rest. `connections_now` says how many connections the backend with a number has; it may be a
    /// moment old, so a number stays for [`KEPT_S`] seconds after the removal at least. `now_unix_s`: seconds since
    /// 1970.
    ///
    /// # Errors
    /// There are not enough numbers, or what is new has an address of what was removed and may still have connections;
    /// nothing has changed then.
    pub fn merge(&mut self, config: &Config, connections_now: &dyn Fn(u16) -> u64, now_unix_s: u64) -> Result<Merged> {
        let mut next = self.clone();
        let merged = merge::Merge::new(&mut next, config, connections_now, now_unix_s).run()?;
        *self = next;
        Ok(merged)
    }

    /// Whether a merge would free a number now: something was removed and has no connections any more.
    pub fn frees_now(&self, connections_now: &dyn Fn(u16) -> u64, now_unix_s: u64) -> bool {
        self.backends.iter().any(|(number, entry)| {
            entry.state.0 == BackendState::Removed && merge::is_over(*number, entry, connections_now, now_unix_s)
        })
    }

    /// Since when the backend with this number has taken no new connections because it drains or was removed, in
    /// seconds since 1970.
    pub fn draining_since(&self, backend: u16) -> Option<u64> {
        let entry = self.backends.get(&backend)?;
        let drains = matches!(entry.state.0, BackendState::Draining | BackendState::Removed);
        entry.since_unix_s.filter(|_| drains)
    }

    /// Checks that the data read could have been written by this program.
    fn validate(&self) -> Result<()> {
        let used = [(self.services_used, SERVICES_MAX), (self.backends_used, BACKENDS_MAX)];
        ensure!(used.iter().all(|(used, max)| *used as usize <= *max), "it counts more numbers than there are");
        let given = [(self.services.last_key_value().map(|(number, _)| *number), self.services_used)];
        let given = given.into_iter().chain([(self.backends.last_key_value().map(|(n, _)| *n), self.backends_used)]);
        for (highest, used) in given {
            ensure!(highest.is_none_or(|highest| u32::from(highest) < used), "it has numbers beyond those it counts");
        }
        let mut identities = HashSet::new();
        for (number, entry) in &self.services {
            ensure!(identities.insert(entry.identity()), "service {number} ({}) is in it twice", entry.name);
        }
        let mut ends = HashSet::new();
        for (number, entry) in &self.backends {
            let Some(service) = self.services.get(&entry.service) else {
                bail!("backend {number} ({}) belongs to service {}, which it lacks", entry.name, entry.service);
            };
            // Of either family: packets to one of the other are wrapped, or were before a reload.
            let end = (entry.service, entry.address);
            ensure!(ends.insert(end), "backend {number} ({}) is in service {} twice", entry.name, service.name);
        }
        Ok(())
    }
}

fn read(file: File) -> Result<Registry> {
    #[derive(Deserialize)]
    struct StoredForm {
        version: u32,
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "it has more than {FILE_BYTES_MAX} bytes");
    let form: StoredForm = serde_json::from_slice(&text)?;
    ensure!(form.version == VERSION, "it has form {}, this version of Hairpin knows form {VERSION}", form.version);
    let registry: Registry = serde_json::from_slice(&text)?;
    registry.validate()?;
    Ok(registry)
}
