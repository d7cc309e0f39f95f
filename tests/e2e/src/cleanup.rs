//! The objects to remove when this process is told to end: its children, its namespaces, its scratch directories, what its
//! Hairpins leave elsewhere.
//!
//! Guards remove these things in the ordinary course (also when a panic unwinds). A signal gives no guard a chance, so
//! everything is noted here too and a thread of its own removes it.

use crate::remnants;
use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[derive(Default)]
struct Things {
    processes: BTreeSet<u32>,
    namespaces: BTreeSet<String>,
    directories: BTreeSet<PathBuf>,
    instances: BTreeSet<String>,
}

static THINGS: Mutex<Things> = Mutex::new(Things {
    processes: BTreeSet::new(),
    namespaces: BTreeSet::new(),
    directories: BTreeSet::new(),
    instances: BTreeSet::new(),
});

fn things() -> MutexGuard<'static, Things> {
    THINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn add_process(id: u32) {
    things().processes.insert(id);
}

pub(crate) fn remove_process(id: u32) {
    things().processes.remove(&id);
}

pub(crate) fn add_namespace(name: &str) {
    things().namespaces.insert(name.to_owned());
}

pub(crate) fn remove_namespace(name: &str) {
    things().namespaces.remove(name);
}

pub(crate) fn add_directory(path: &Path) {
    things().directories.insert(path.to_owned());
}

pub(crate) fn remove_directory(path: &Path) {
    things().directories.remove(path);
}

pub(crate) fn add_instance(name: &str) {
    things().instances.insert(name.to_owned());
}

pub(crate) fn remove_instance(name: &str) {
    things().instances.remove(name);
}

static ENDING: AtomicBool = AtomicBool::new(false);

/// Stands still for ever once a signal is ending this process: its children are collected elsewhere then, and what
/// their disappearance looks like from here is not worth telling.
pub(crate) fn stand_still_if_ending() {
    while ENDING.load(Ordering::Relaxed) {
        std::thread::park();
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP remove everything that was made, then end the process (status 130).
///
/// # Errors
/// When the signals cannot be caught.
pub fn on_signal() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            ENDING.store(true, Ordering::Relaxed);
            remove_all();
            std::process::exit(130);
        }
    });
    Ok(())
}

fn remove_all() {
    // The lock is kept to the end: nothing may be started any more.
    let things = things();
    let alive = |id: u32| Path::new(&format!("/proc/{id}/exe")).read_link().is_ok();
    for &id in &things.processes {
        let _ = kill(Pid::from_raw(id as i32), Signal::SIGTERM);
        // One that stands still would not hear it.
        let _ = kill(Pid::from_raw(id as i32), Signal::SIGCONT);
    }
    let start = Instant::now();
    while things.processes.iter().any(|&id| alive(id)) && start.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(20));
    }
    for &id in &things.processes {
        let _ = kill(Pid::from_raw(id as i32), Signal::SIGKILL);
        // In a container no other process may collect the dead.
        let _ = waitpid(Pid::from_raw(id as i32), None);
    }
    for name in &things.namespaces {
        let _ = Command::new("ip").args(["netns", "del", name]).status();
    }
    things.instances.iter().for_each(|instance| remnants::remove(instance));
    for directory in &things.directories {
        let _ = std::fs::remove_dir_all(directory);
    }
}
