//! Backends that take connections up and fail what is asked of them: passive checks see it, and take them away.

use super::http_network::PATIENCE;
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, Servers, listening, web};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("http: backends that fail requests go away, and return", fail_and_return),
        test("http: statuses count only if they are named", statuses),
    ]
}

/// nginx on server2, which answers everything with 500, or with 200.
const UNWELL_PORT: u16 = 8095;
/// A server on server3 that resets connections once they ask for something.
const RESETTING_PORT: u16 = 8096;
/// A server on server4 that takes connections and says nothing.
const MUTE_PORT: u16 = 8097;

struct Scene {
    hairpin: Hairpin,
    _servers: Servers,
    unwell: Process,
    _others: Vec<Process>,
    topology: Topology,
}

impl Scene {
    /// One service, `web`, of a server that is well and three that are not.
    fn start(health: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let unwell = nginx(&topology, 500)?;
        let mut others = Vec::new();
        for (server, port, how) in [(3, RESETTING_PORT, "reset"), (4, MUTE_PORT, "mute")] {
            let file = topology.scratch.write("failing.py", include_str!("failing.py"))?;
            let mut python = topology.servers[server - 1].command(web::PYTHON);
            python.arg(file).arg(port.to_string()).arg(how);
            let mut process =
                topology.servers[server - 1].start(python, &topology.scratch.file(format!("{how}.log")))?;
            process.wait_until(PATIENCE, || listening(topology.servers[server - 1].name(), &[port]))?;
            others.push(process);
        }
        let backend = |(name, server, port)| {
            format!(
                "[[service.backend]]\nname = \"{name}\"\naddress = \"{}\"\n",
                end(server_address(Family::V4, server), port)
            )
        };
        let backends = [("unwell", 2, UNWELL_PORT), ("resetting", 3, RESETTING_PORT), ("mute", 4, MUTE_PORT)];
        let tables = backends.map(backend).concat()
            + &format!("[service.http.limits]\nresponse_timeout = \"500ms\"\n[service.health]\n{health}");
        let service = PeerService { servers: vec![1], tables, ..PeerService::http("web", HTTP_PORT) };
        let hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
        Ok(Scene { hairpin, _servers: servers, unwell, _others: others, topology })
    }

    /// Statuses of so many requests, a connection each.
    fn ask(&self, count: usize) -> Result<BTreeMap<u16, usize>> {
        let to = SocketAddr::new(vip(Family::V4), HTTP_PORT);
        inside::run(&self.topology.client, move || {
            let mut statuses = BTreeMap::new();
            for i in 0..count {
                let mut connection = HttpConnection::open(to, PATIENCE)?;
                connection.send(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
                let answer = connection.answer(false, PATIENCE).with_context(|| format!("request {i}"))?;
                *statuses.entry(answer.status).or_default() += 1;
            }
            Ok(statuses)
        })
    }

    /// A backend's health.
    fn health(&self, backend: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.hairpin.tell(&self.topology, &["status", "-o", "json"])?)?;
        let all = status["services"][0]["backends"].as_array().context("no backends")?;
        let one = all.iter().find(|have| have["name"] == backend).with_context(|| format!("no {backend}: {status}"))?;
        Ok(one["health"].clone())
    }

    /// Asks until `holds`.
    fn ask_until(&self, about: &str, holds: impl Fn(&Scene) -> Result<bool>) -> Result<BTreeMap<u16, usize>> {
        let (start, mut statuses) = (Instant::now(), BTreeMap::new());
        while !holds(self)? {
            ensure!(start.elapsed() < 4 * PATIENCE, "not {about} after {statuses:?}");
            for (status, count) in self.ask(4)? {
                *statuses.entry(status).or_default() += count;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(statuses)
    }

    fn is(&self, backend: &str, state: &str) -> Result<bool> {
        Ok(self.health(backend)?["state"] == state)
    }
}

/// nginx that answers everything with this status.
fn nginx(topology: &Topology, status: u16) -> Result<Process> {
    let directory = topology.scratch.file(format!("unwell{status}"));
    std::fs::create_dir_all(&directory)?;
    let at = directory.display();
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {at}/pid;\nerror_log {at}/error.log;\nevents {{ }}\nhttp {{\n  access_log off;\n  \
         server {{ listen {UNWELL_PORT}; return {status} \"so it is\\n\"; }}\n}}\n"
    );
    std::fs::write(directory.join("nginx.conf"), text)?;
    let namespace = &topology.servers[1];
    let mut nginx = namespace.command("nginx");
    nginx
        .arg("-c")
        .arg(directory.join("nginx.conf"))
        .arg("-p")
        .arg(&directory)
        .arg("-e")
        .arg(directory.join("start.log"));
    let mut process = namespace.start(nginx, &topology.scratch.file(format!("unwell{status}.log")))?;
    process.wait_until(PATIENCE, || listening(namespace.name(), &[UNWELL_PORT]))?;
    Ok(process)
}

fn fail_and_return() -> Result<()> {
    let mut scene = Scene::start("passive = 3\npassive_retry = \"5s\"\npassive_status = \"500,502-504\"\n")?;
    // Each fails three in a row; none before the first request.
    let failing = [("unwell", "status"), ("resetting", "lost"), ("mute", "silent")];
    for (backend, _) in failing {
        ensure!(scene.health(backend)?["passive_failed_total"] == 0, "{backend}: {}", scene.health(backend)?);
    }
    let statuses = scene.ask_until("all three away", |scene| {
        Ok(failing
            .iter()
            .map(|(backend, _)| scene.is(backend, "down"))
            .collect::<Result<Vec<_>>>()?
            .iter()
            .all(|down| *down))
    })?;
    for (status, why) in [(200, "one is well"), (500, "nginx"), (502, "reset"), (504, "silent")] {
        ensure!(statuses.contains_key(&status), "no {status} ({why}): {statuses:?}");
    }
    let met = scene.ask(40)?;
    ensure!(met == BTreeMap::from([(200, 40)]), "all that fail are away, and clients meet {met:?}");
    for (backend, how) in failing {
        let health = scene.health(backend)?;
        let reason = health["reason"].as_str().unwrap_or_default();
        ensure!(reason.starts_with("passive: ") && reason.ends_with(" failures in a row"), "{backend}: {health}");
        let failed = health["requests_failed"].as_object().context("no requests_failed")?;
        ensure!(failed.len() == 1 && failed[how].as_u64() >= Some(3), "{backend} failed by {failed:?}, not {how}");
    }
    let well = scene.health("server1")?;
    ensure!(well["state"] == "up" && well["passive_failed_total"] == 0, "{well}");
    // It is well again, is tried after a while, and stays.
    scene.unwell.stop()?;
    scene.unwell = nginx(&scene.topology, 200)?;
    scene.ask_until("nginx back", |scene| scene.is("unwell", "up"))?;
    scene.hairpin.process().check()
}

/// A server that answers is there; whether what it says counts is the service's to say.
fn statuses() -> Result<()> {
    let mut scene = Scene::start("passive = 3\npassive_retry = \"1m\"\npassive_status = \"501-599\"\n")?;
    let away = |scene: &Scene| Ok(scene.is("resetting", "down")? && scene.is("mute", "down")?);
    scene.ask_until("those that do not answer away", away)?;
    let met = scene.ask(40)?;
    ensure!(met.get(&500) >= Some(&10) && met.get(&200) >= Some(&10) && met.len() == 2, "clients meet {met:?}");
    let health = scene.health("unwell")?;
    ensure!(health["state"] == "up" && health["passive_failed_total"] == 0, "500 was not named: {health}");
    scene.hairpin.process().check()
}
