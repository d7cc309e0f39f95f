//! Configurations in force, kept by their id: an exchange that began with one ends as it says, also in a process that runs
//! with another one when the file has changed.

use super::log;
use crate::config;
use crate::registry::Merged;
use anyhow::{Context, Result};
use hairpin_core::config::{Service, Snapshot};
use hairpin_core::l7::splice::limits::FORMERS_MAX;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A configuration that was in force.
#[derive(Debug, Serialize, Deserialize)]
struct FormerConfiguration {
    /// [`Snapshot::id`].
    id: u64,
    /// The file it came from, for messages.
    file: String,
    text: String,
    /// The numbers of its services, in its order.
    numbers: Vec<u16>,
}

impl FormerConfiguration {
    /// What exchanges go by: the services under their numbers, without backends.
    fn snapshot(&self) -> Result<Snapshot> {
        let config = config::parse(&self.file, &self.text)?;
        let count = self.numbers.iter().max().map_or(0, |&highest| usize::from(highest) + 1);
        let mut services = vec![Service::vacant(); count];
        for (&number, service) in self.numbers.iter().zip(&config.snapshot.services) {
            services[usize::from(number)] = Service { backends: Box::default(), ..service.clone() };
        }
        let mut snapshot = Snapshot::new(services.into(), config.snapshot.pool);
        snapshot.id = self.id;
        Ok(snapshot)
    }
}

/// The files with former configurations beside the control socket `socket`, the oldest first.
fn files(socket: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(stem)) = (socket.parent(), socket.file_stem().and_then(|stem| stem.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{stem}.configuration-");
    let ours = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
    let modified = |entry: &fs::DirEntry| entry.metadata().and_then(|facts| facts.modified());
    let mut found: Vec<(SystemTime, PathBuf)> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(ours)
        .map(|entry| (modified(&entry).unwrap_or(SystemTime::UNIX_EPOCH), entry.path()))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Keeps the configuration of `merged`, read from `file` as `text`, before it comes into force. Those that no exchange can
/// name any more are removed.
pub(super) fn keep(socket: &Path, merged: &Merged, file: &Path, text: &str) {
    if let Err(error) = write(socket, merged, file, text) {
        log(&format!("warning: {error:#}; after a restart, exchanges of now may end without their routes' edits"));
    }
    let files = files(socket);
    for path in files.iter().rev().skip(FORMERS_MAX + 1) {
        let _ = fs::remove_file(path);
    }
}

fn write(socket: &Path, merged: &Merged, file: &Path, text: &str) -> Result<()> {
    let path = socket.with_extension(format!("configuration-{:016x}", merged.snapshot.id));
    let about = || format!("cannot write {}", path.display());
    let file = file.display().to_string();
    let kept = FormerConfiguration { id: merged.snapshot.id, file, text: text.into(), numbers: merged.numbers.clone() };
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new).with_context(about)?;
    opened.write_all(&serde_json::to_vec(&kept)?).with_context(about)?;
    fs::rename(&new, &path).with_context(about)
}

/// The former configurations that are kept.
pub(super) fn load(socket: &Path) -> Vec<Arc<Snapshot>> {
    let read = |path: &PathBuf| -> Result<Snapshot> {
        let kept: FormerConfiguration = serde_json::from_slice(&fs::read(path)?)?;
        kept.snapshot()
    };
    let told = |path: &PathBuf| match read(path) {
        Ok(snapshot) => Some(Arc::new(snapshot)),
        Err(error) => {
            log(&format!("warning: the former configuration {} cannot be used: {error:#}", path.display()));
            None
        }
    };
    files(socket).iter().filter_map(told).collect()
}

/// Removes them.
pub(super) fn remove(socket: &Path) {
    for path in files(socket) {
        let _ = fs::remove_file(path);
    }
}
