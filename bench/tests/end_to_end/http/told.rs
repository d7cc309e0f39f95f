//! Clients whose downloads end before their time are told, by a RST that they believe.

use super::stage::{PATIENCE, Stage, Stages, WEB, Which};
use anyhow::{Context, Result, ensure};
use hairpin_bench::peer::hairpin_program;
use hairpin_bench::process::Process;
use libtest_mimic::Trial;
use std::sync::Arc;

const CLIENTS: usize = 6;
/// What a client's kernel takes before curl reads it, in `tcp_rmem`'s terms: much less than a download, which could
/// otherwise be complete there, and about as much as curl reads in a second.
const SMALL_BUFFERS: &str = "4096 131072 262144";
/// curl's exit status for a connection that was reset.
const RESET: i32 = 56;

pub(super) fn trials(stages: &Arc<Stages>) -> Vec<Trial> {
    vec![
        stages.trial("clients of disabled backends are told", Which::Gso, |stage| with_small_buffers(stage, disabled)),
        stages.trial("clients are told when another process takes over", Which::Gso, |stage| {
            with_small_buffers(stage, upgraded)
        }),
    ]
}

/// Downloads of 10 MB that take a while, all of which the engine carries.
fn downloads(stage: &Stage) -> Result<Vec<Process>> {
    stage.until("empty engine", |stage| Ok(stage.hairpin.offload()?.offloaded == 0))?;
    let start = |number: usize| {
        let mut curl = stage.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "120", "--limit-rate", "200k", "--output", "/dev/null"]);
        curl.arg(stage.url(WEB, "/10m"));
        Process::start(curl, &stage.topology.scratch.file(format!("told-{number}.log")))
    };
    let clients: Vec<Process> = (0..CLIENTS).map(start).collect::<Result<_>>()?;
    stage.until("all downloads in the engine", |stage| Ok(stage.hairpin.offload()?.offloaded >= CLIENTS as u64))?;
    Ok(clients)
}

/// Each ends with a reset, once it has read what its kernel had received.
fn are_reset(clients: Vec<Process>, may_finish: bool) -> Result<()> {
    for (number, mut client) in clients.into_iter().enumerate() {
        let status = client.wait(6 * PATIENCE).with_context(|| format!("client {number} was not told"))?;
        let log = client.log();
        let finished = may_finish && status.success();
        ensure!(finished || status.code() == Some(RESET), "client {number} ended with {status}: {log}");
    }
    Ok(())
}

/// Runs `body` while clients have small receive buffers.
fn with_small_buffers(stage: &mut Stage, body: fn(&mut Stage) -> Result<()>) -> Result<()> {
    let usual = stage.topology.client.script("sysctl -n net.ipv4.tcp_rmem\n")?;
    let set = |stage: &Stage, sizes: &str| {
        stage.topology.client.script(&format!("sysctl -qw net.ipv4.tcp_rmem='{}'\n", sizes.trim())).map(drop)
    };
    set(stage, SMALL_BUFFERS)?;
    let told = body(stage);
    set(stage, &usual)?;
    told
}

fn disabled(stage: &mut Stage) -> Result<()> {
    let clients = downloads(stage)?;
    let backends: Vec<String> = (1..=stage.topology.servers.len()).map(|number| format!("server{number}")).collect();
    let by_hand = |word: &str| {
        let mut all = backends.iter();
        all.try_for_each(|backend| stage.hairpin.tell(&stage.topology, &["backend", word, "web", backend]).map(drop))
    };
    by_hand("disable")?;
    let told = are_reset(clients, false);
    by_hand("enable")?;
    told
}

fn upgraded(stage: &mut Stage) -> Result<()> {
    Process::inherit_orphans()?;
    let clients = downloads(stage)?;
    stage.hairpin.upgrade(&stage.topology, &hairpin_program()?)?;
    // A download that the engine carries to its end needs no telling.
    are_reset(clients, true)?;
    let answer = stage.fetch(WEB, "/1k", "Connection: close\r\n")?;
    ensure!(answer.body == stage.page("1k")?, "1 KB arrived changed");
    Ok(())
}
