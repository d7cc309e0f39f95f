//! Clients whose downloads end before their time are told, by a RST that they believe.

use super::stage::{Stage, Stages, WEB, Which};
use crate::told::{self, Kind};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::hairpin_program;
use hairpin_e2e::process::Process;
use hairpin_e2e::tool::inside;
use libtest_mimic::Trial;
use std::net::TcpStream;
use std::sync::Arc;

const CLIENTS: usize = 6;
/// What a client's kernel takes before its program reads on, in `tcp_rmem`'s terms: much less than a download, which could
/// otherwise be complete there.
const SMALL_BUFFERS: &str = "4096 131072 262144";

pub(super) fn trials(stages: &Arc<Stages>) -> Vec<Trial> {
    vec![
        stages.trial("clients of disabled backends are told", Which::Gso, |stage| with_small_buffers(stage, disabled)),
        stages.trial("clients are told when another process takes over", Which::Gso, |stage| {
            with_small_buffers(stage, upgraded)
        }),
    ]
}

/// Downloads of 10 MB whose clients have read 1 KB, all of which the engine carries.
fn downloads(stage: &Stage) -> Result<Vec<TcpStream>> {
    stage.until("empty engine", |stage| Ok(stage.hairpin.offload()?.offloaded == 0))?;
    let to = stage.socket(WEB);
    let clients = inside::run(&stage.topology.client, move || {
        (0..CLIENTS).map(|_| told::open(to, Kind::Downloads)).collect::<Result<Vec<_>>>()
    })?;
    stage.until("all downloads in the engine", |stage| Ok(stage.hairpin.offload()?.offloaded >= CLIENTS as u64))?;
    Ok(clients)
}

/// Each ends with a reset, once it has read what its kernel had received.
fn are_reset(clients: Vec<TcpStream>) -> Result<()> {
    let mut all = clients.into_iter().enumerate();
    all.try_for_each(|(number, client)| told::is_reset(client).with_context(|| format!("client {number}")))
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
    let overridden = |word: &str| {
        let mut all = backends.iter();
        all.try_for_each(|backend| stage.hairpin.tell(&stage.topology, &["backend", word, "web", backend]).map(drop))
    };
    overridden("disable")?;
    // A client that reads on before its connection's turn would have the rest of its download within milliseconds.
    let told = stage
        .until("no download in the engine", |stage| Ok(stage.hairpin.offload()?.offloaded == 0))
        .and_then(|()| are_reset(clients));
    overridden("enable")?;
    told
}

fn upgraded(stage: &mut Stage) -> Result<()> {
    Process::inherit_orphans()?;
    let clients = downloads(stage)?;
    stage.hairpin.upgrade(&stage.topology, &hairpin_program()?)?;
    are_reset(clients)?;
    let answer = stage.fetch(WEB, "/1k", "Connection: close\r\n")?;
    ensure!(answer.body == stage.page("1k")?, "1 KB arrived changed");
    Ok(())
}
