//! More than one node (docs/guide/high-availability.md): the example files as they are, with the real keepalived and the real BIRD.
//! Tests whose daemon is not installed say so and try nothing.

mod bird;
mod keepalived;
mod network;
mod traffic;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time anything here may take, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn tests() -> Vec<Trial> {
    [keepalived::tests(), bird::tests()].into_iter().flatten().collect()
}

/// Whether this program is there; said if it is not.
fn is_installed(program: &str, package: &str) -> bool {
    let installed = Command::new(program).arg("--version").output().is_ok();
    if !installed {
        println!("skipped: there is no {program} (apt-get install {package})");
    }
    installed
}

fn wait_until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !condition()? {
        ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(100));
    }
    Ok(())
}
