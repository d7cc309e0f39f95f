//! Clients of an https service while Hairpin is reloaded, upgraded and killed: HTTP/1.1 and HTTP/2, kept connections and new
//! ones, downloads, uploads, WebSockets, by Node.js, which compares every byte.
//!
//! Nothing may be lost by a reload or an upgrade. A kill may break what was under way. After it no connection may be refused,
//! and a new one is served within a second of the next process's start.

use super::clients::sockets;
use super::{NAME, PORT, Scene, url};
use crate::lane::alone;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::rebuilt_program;
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::listening;
use hairpin_e2e::servers::web::{self, WEBSOCKET_PORT};
use hairpin_e2e::topology::{Family, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        alone("https: reloads and upgrades lose nothing", || {
            let rounds = count("HAIRPIN_UPGRADES", 2)?;
            Traffic::play(|traffic| traffic.live(rounds))
        }),
        // The name begins so that `make crashes` runs it.
        alone("crash: kills of https services, none refused", || {
            let kills = count("HAIRPIN_CRASHES", 2)?;
            Traffic::play(|traffic| traffic.die(kills))
        }),
    ]
}

/// What the environment says how often, or the usual number.
fn count(variable: &str, usual: usize) -> Result<usize> {
    Ok(std::env::var(variable).ok().map_or(Ok(usual), |text| text.parse())?)
}

const BACKEND_PORT: u16 = 8091;
const SCRIPT: &str = include_str!("traffic.js");
const PATIENCE: Duration = Duration::from_secs(40);
/// A new connection is served so soon after a process has begun to serve.
const SERVED_WITHIN: Duration = Duration::from_secs(1);
/// So far a client may hear of a death before or after it was seen here.
const SLACK_MS: u64 = 100;
/// Kinds of operations that the script has.
const KINDS: usize = 9;

/// What the clients print in the end.
#[derive(Debug, Deserialize)]
struct Tally {
    /// How often each kind of operation went well.
    done: BTreeMap<String, u64>,
    bytes: u64,
    /// Requests that were sent again since they had not been processed.
    again: u64,
    failures: Vec<Failure>,
}

/// An operation that failed. Times are in milliseconds since 1970.
#[derive(Debug, Deserialize)]
struct Failure {
    kind: String,
    began: u64,
    ended: u64,
    why: String,
}

/// An https service, its clients and backends.
struct Traffic {
    clients: Process,
    _backends: Vec<Process>,
    scene: Scene,
    /// From when until when each process died.
    kills: Vec<(u64, u64)>,
    reloads: u16,
}

fn now() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

impl Traffic {
    /// Starts everything, acts, and judges what came of it.
    fn play(act: impl FnOnce(&mut Traffic) -> Result<()>) -> Result<()> {
        let mut traffic = Traffic::start()?;
        let acted = act(&mut traffic).and_then(|()| traffic.judge());
        acted.with_context(|| format!("hairpin printed last:\n{}", tail(&traffic.scene.hairpin.logs())))
    }

    fn start() -> Result<Traffic> {
        let mut scene = Scene::start(&[], "workers = 2")?;
        let topology = &scene.topology;
        let script = topology.scratch.write("traffic.js", SCRIPT)?;
        let mut backends = vec![web::websocket(topology)?];
        for server in 1..=3 {
            let namespace = &topology.servers[server - 1];
            let mut node = namespace.command("node");
            node.arg(&script).args(["serve", &BACKEND_PORT.to_string()]);
            let mut process = namespace.start(node, &topology.scratch.file(format!("traffic-{server}.log")))?;
            process.wait_until(PATIENCE, || listening(namespace.name(), &[BACKEND_PORT])).context("a backend")?;
            backends.push(process);
        }
        let service = &mut scene.services[0];
        (service.servers, service.server_port) = (vec![1, 2, 3], BACKEND_PORT);
        service.balance = "weighted-round-robin";
        service.tables.push_str(&sockets(WEBSOCKET_PORT));
        scene.reload()?;
        let mut node = scene.topology.client.command("node");
        node.arg(script).args(["ask", NAME, &vip(Family::V4).to_string(), &PORT.to_string()]);
        node.arg(&scene.certificate).arg(scene.topology.scratch.file(""));
        let clients = scene.topology.client.start(node, &scene.topology.scratch.file("traffic.log"))?;
        sleep(Duration::from_secs(2));
        Ok(Traffic { clients, _backends: backends, scene, kills: Vec::new(), reloads: 0 })
    }

    /// So many reloads and upgrades.
    fn live(&mut self, rounds: usize) -> Result<()> {
        for number in 1..=rounds {
            self.reload()?;
            sleep(Duration::from_millis(500));
            let program = rebuilt_program(&self.scene.topology, number)?;
            let Scene { hairpin, topology, .. } = &mut self.scene;
            hairpin.upgrade(topology, &program).with_context(|| format!("upgrade {number}"))?;
            sleep(Duration::from_millis(500));
        }
        self.reload()
    }

    /// So many kills at random instants.
    fn die(&mut self, kills: usize) -> Result<()> {
        for number in 1..=kills {
            sleep(Duration::from_millis(fastrand::u64(500..1500)));
            let from = now()?;
            let Scene { hairpin, topology, .. } = &mut self.scene;
            hairpin.end(Signal::SIGKILL)?;
            self.kills.push((from, now()?));
            hairpin.start_again(topology, &[]).with_context(|| format!("kill {number}"))?;
            let began = Instant::now();
            let said = self.scene.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], &url("bytes/1"))?;
            ensure!(said == "200", "after kill {number}: {said}");
            ensure!(began.elapsed() < patience(SERVED_WITHIN), "served {:?} after start {number}", began.elapsed());
        }
        sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Other weights; one backend more or fewer.
    fn reload(&mut self) -> Result<()> {
        self.reloads += 1;
        let service = &mut self.scene.services[0];
        service.servers = if self.reloads.is_multiple_of(2) { vec![1, 2] } else { vec![1, 2, 3] };
        service.weights = service.servers.iter().map(|&server| 1 + (self.reloads + server as u16) % 3).collect();
        self.scene.reload()
    }

    fn judge(&mut self) -> Result<()> {
        self.scene.topology.scratch.write("stop", "")?;
        self.clients.wait(PATIENCE)?;
        let log = self.clients.log();
        let printed = log.lines().rfind(|line| line.starts_with('{')).with_context(|| format!("no result: {log}"))?;
        let tally: Tally = serde_json::from_str(printed)?;
        let Tally { done, bytes, again, failures } = &tally;
        println!("{done:?}; {bytes} bytes, {again} sent again, {} failed; {} kills", failures.len(), self.kills.len());
        ensure!(done.len() == KINDS, "not all was done: {done:?}, {failures:#?}");
        if let Some(wrong) = failures.iter().find(|failure| failure.why.contains("WRONG")) {
            bail!("a byte was wrong: {wrong:?}");
        }
        if let Some(refused) = failures.iter().find(|failure| failure.why.contains("ECONNREFUSED")) {
            bail!("a connection was refused: {refused:?}; {:?}", self.kills);
        }
        let explains = |failure: &Failure, &(from, to): &(u64, u64)| {
            failure.began <= to + SLACK_MS && failure.ended + SLACK_MS >= from
        };
        let lost = failures.iter().filter(|failure| !self.kills.iter().any(|kill| explains(failure, kill)));
        let lost: Vec<String> =
            lost.map(|Failure { kind, began, ended, why }| format!("{kind}, {began} to {ended}: {why}")).collect();
        ensure!(lost.is_empty(), "{} operations failed, not for a kill: {lost:#?}; {:?}", lost.len(), self.kills);
        self.scene.hairpin.process().check()
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
