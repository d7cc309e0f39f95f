//! What the old process of an upgrade still serves of HTTPS services: shown, bounded, and ended with the instance.

use crate::https::{PATIENCE, Scene, eventually, url};
use crate::lane::alone;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::rebuilt_program;
use hairpin_e2e::peer::status::DrainingStatus;
use hairpin_e2e::process::Process;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        alone("https: old processes drain, and are shown and ended", generations_drain),
        alone("https: what drains ends by its limit", drain_limit),
    ]
}

/// A download that takes longer than the test (50 s), and sees its end soon: what waits in its socket, 6 MB at most, is read first.
fn endless(scene: &Scene, number: usize) -> Result<Process> {
    let version = if number.is_multiple_of(2) { "--http2" } else { "--http1.1" };
    let slow = [version, "--max-time", "600", "--limit-rate", "2M", "--output", "/dev/null"];
    let log = scene.topology.scratch.file(format!("endless-{number}.log"));
    let download = scene.topology.client.start(scene.curl_command(&slow, &url("100m")), &log)?;
    eventually("the download begins", PATIENCE, || {
        let line = ["connections", "--service", "web", "--state", "forwarding"];
        Ok(scene.hairpin.tell(&scene.topology, &line).is_ok_and(|listed| listed.contains("forwarding")))
    })?;
    Ok(download)
}

/// Waits until these processes drain, each with one connection.
fn drains(scene: &Scene, processes: &[u32]) -> Result<()> {
    let mut seen = Vec::new();
    eventually("the status has the processes that drain", PATIENCE, || {
        seen = scene.hairpin.status()?.draining;
        let fits = |(one, wanted): (&DrainingStatus, &u32)| one.pid == *wanted && one.connections == 1;
        Ok(seen.len() == processes.len() && seen.iter().zip(processes).all(fits))
    })
    .with_context(|| format!("{seen:?}, not {processes:?}"))
}

fn generations_drain() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let (mut downloads, mut olds) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        downloads.push(endless(&scene, number)?);
        let program = rebuilt_program(&scene.topology, number)?;
        olds.push(
            scene.hairpin.hand_over(&scene.topology, &program, &[]).with_context(|| format!("upgrade {number}"))?,
        );
        let draining: Vec<u32> = olds.iter().rev().take(2).rev().map(Process::id).collect();
        drains(&scene, &draining)?;
    }
    // The third generation has ended the first, and its download.
    olds[0].wait(PATIENCE)?;
    ensure!(!downloads[0].wait(PATIENCE)?.success(), "the first download goes on");
    let shown = scene.hairpin.status_table()?;
    let line = format!("process {} handed over ", olds[1].id());
    ensure!(shown.contains(&line) && shown.contains("draining-ended"), "{shown}");
    ensure!(scene.hairpin.logs().contains("at most 2 processes drain at a time"), "{}", scene.hairpin.logs());
    // The second ends when it has nothing left.
    downloads[1].signal(Signal::SIGTERM);
    ensure!(olds[1].wait(PATIENCE)?.success(), "{}", scene.hairpin.logs());
    drains(&scene, &[olds[2].id()])?;
    scene.hairpin.stop(true)?;
    ensure!(olds[2].status()?.is_some(), "process {} outlives `hairpin stop`", olds[2].id());
    Ok(())
}

fn drain_limit() -> Result<()> {
    let mut scene = Scene::start(&[], "limits.upgrade_drain_limit = \"1s\"")?;
    let mut download = endless(&scene, 1)?;
    let program = rebuilt_program(&scene.topology, 1)?;
    let mut old = scene.hairpin.hand_over(&scene.topology, &program, &[])?;
    ensure!(old.wait(PATIENCE)?.success(), "{}", scene.hairpin.logs());
    ensure!(!download.wait(PATIENCE)?.success(), "the download goes on");
    let logs = scene.hairpin.logs();
    ensure!(logs.contains("1 HTTPS connections took longer than 1s (`upgrade_drain_limit`)"), "{logs}");
    let said = scene.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], &url("1k"))?;
    ensure!(said == "200", "{said}");
    Ok(())
}
