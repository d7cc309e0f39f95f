//! Connections of direct server return that the BPF programs set up without a worker, to neighbours and wrapped.

use crate::direct::{ECHO, TIMEOUT, check, open, services, start_echoes};
use crate::encapsulated::{GUE, Tunnel, prepared};
use crate::network::{ATTACH_XDP, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, hairpin_program};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{echo, http, inside};
use hairpin_e2e::topology::{Cards, Family, Topology, end, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("setup: direct pages, uploads, datagrams (gso)", || carries(Cards::Gso, None)),
        test("setup: direct pages, uploads, datagrams (wire)", || carries(Cards::Wire, None)),
        test("setup: direct pages, uploads, datagrams (xdp)", || carries(Cards::Xdp, None)),
        test("setup: gue pages, uploads, datagrams (gso)", || carries(Cards::Gso, Some(GUE))),
        test("setup: mixed gue pages, uploads, datagrams (gso)", || carries(Cards::Gso, Some(GUE.mixed()))),
        test("setup: direct connections outlive kills", || outlives(None)),
        test("setup: gue connections outlive kills", || outlives(Some(GUE))),
        test("setup: direct connections begin with no process there", serves_alone),
    ]
}

/// A network whose servers have the VIP, and unwrap where that is needed. (Dropped in this order.)
struct Scene {
    hairpin: Hairpin,
    _openers: Vec<Process>,
    _servers: Servers,
    topology: Topology,
}

impl Scene {
    fn start(cards: Cards, tunnel: Option<Tunnel>, tables: &str) -> Result<Scene> {
        let (topology, openers, service) = prepared(cards, tunnel)?;
        let servers = Servers::start(&topology)?;
        let options = HairpinOptions {
            service,
            tables: format!("[offload]\nset_up = \"engine\"\n{tables}"),
            ..HairpinOptions::default()
        };
        let hairpin =
            Hairpin::start(&topology, &tunnel.map_or_else(|| services(""), |tunnel| tunnel.services("")), &options)?;
        Ok(Scene { hairpin, _openers: openers, _servers: servers, topology })
    }

    /// As of the last second.
    fn event(&self, name: &str) -> Result<u64> {
        Ok(self.hairpin.status()?.events.get(&format!("kernel.{name}")).map_or(0, |count| count.total))
    }

    /// Pages on connections of their own need no worker, and are counted.
    fn pages(&self, name: &str, family: Family) -> Result<()> {
        let before = self.event("to-worker")?;
        let wrk = WrkOptions { page: "1k", connections: 100, duration: Duration::from_secs(2), close: true };
        let done = load::wrk(&self.topology, &[end(vip(family), HTTP_PORT)], &wrk)?;
        ensure!(done.errors == 0 && done.requests > 100, "{name}: {done:?}");
        sleep(Duration::from_millis(1500));
        let (status, to_worker) = (self.hairpin.status()?, self.event("to-worker")? - before);
        let service = status.service(name).context("no such service in the status")?;
        ensure!(service.connections_total >= done.requests, "{} requests, {service:?}", done.requests);
        ensure!(to_worker * 5 < done.requests, "{to_worker} packets of {} connections went to workers", done.requests);
        Ok(())
    }

    fn upload(&self, family: Family) -> Result<()> {
        let options = IperfOptions { amount: Amount::Megabytes(50), streams: 2, reverse: false, udp_mbit_s: None };
        let up = load::iperf(&self.topology, vip(family), IPERF_PORTS[0], &options)?;
        ensure!(up.bits_per_s > 0.0, "nothing arrived by {}", family.name());
        Ok(())
    }

    fn datagrams(&self) -> Result<()> {
        let done = Arc::new(AtomicBool::new(false));
        let echoes = start_echoes(&self.topology, &done);
        sleep(Duration::from_millis(200));
        for family in [Family::V4, Family::V6] {
            let to = SocketAddr::new(vip(family), ECHO);
            let asked = echo::ask(&self.topology.client, &[to], 0, 40, 100, Duration::from_secs(2))?;
            ensure!(asked.answered > 80 && asked.wrong == 0, "by {}: {asked:?}", family.name());
        }
        done.store(true, Ordering::Relaxed);
        let answered: Vec<u64> = echoes.into_iter().map(inside::join).collect::<Result<_>>()?;
        ensure!(answered.iter().all(|&count| count > 0), "the servers have answered {answered:?}");
        Ok(())
    }
}

fn carries(cards: Cards, tunnel: Option<Tunnel>) -> Result<()> {
    let scene = Scene::start(cards, tunnel, if cards == Cards::Xdp { ATTACH_XDP } else { "" })?;
    for (name, family) in [("http4", Family::V4), ("http6", Family::V6)] {
        scene.pages(name, family)?;
        scene.upload(family)?;
        let target = end(vip(family), HTTP_PORT);
        let page = load::curl(&scene.topology.client, &scene.topology, &target, "10m", "page")?;
        let expected = std::fs::read(scene.topology.scratch.file("pages/10m"))?;
        ensure!(std::fs::read(&page.body)? == expected, "a download by {} is damaged", family.name());
    }
    scene.datagrams()?;
    ensure!(scene.event("set-up")? > 0, "the programs made no rule");
    ensure!(scene.event("not-encapsulated")? == 0, "some packets were not encapsulated");
    let view = scene.hairpin.offload()?;
    ensure!(view.rules.iter().sum::<u64>() == view.offloaded, "not one rule for each connection: {view:?}");
    Ok(())
}

fn outlives(tunnel: Option<Tunnel>) -> Result<()> {
    let mut scene = Scene::start(Cards::Gso, tunnel, "")?;
    let mut open = open(&scene.topology)?;
    scene.hairpin.end(Signal::SIGKILL)?;
    check(&mut open, "without a process")?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    check(&mut open, "after a kill")?;
    let offloaded = scene.hairpin.offload()?.offloaded;
    ensure!(offloaded >= 40, "{offloaded} of 40 connections are offloaded after a kill");
    scene.hairpin.upgrade(&scene.topology, &hairpin_program()?)?;
    check(&mut open, "after an upgrade")?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    check(&mut open, "after a reload")
}

/// With `when_absent = "serve"` clients are served without a process, for as long as it says; the next process has their
/// connections.
fn serves_alone() -> Result<()> {
    let serve = "[linux]\nwhen_absent = \"serve\"\nserve_for = \"10s\"\nheartbeat_timeout = \"500ms\"\n";
    let mut scene = Scene::start(Cards::Gso, None, serve)?;
    scene.pages("http6", Family::V6)?;
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    let died = Instant::now();
    sleep(Duration::from_secs(2));
    let start = |scene: &Scene, timeout: Duration| {
        inside::run(&scene.topology.client, move || {
            let mut connection = http::HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), timeout)?;
            connection.get("1k", false, timeout)?;
            Ok(connection)
        })
    };
    // Connections that end soon, and some that go on.
    for number in 0..20 {
        start(&scene, TIMEOUT).with_context(|| format!("connection {number} without a process"))?;
    }
    let mut held = open(&scene.topology).context("without a process")?;
    sleep(Duration::from_secs(12).saturating_sub(died.elapsed()));
    ensure!(start(&scene, Duration::from_millis(500)).is_err(), "connections begin when `serve_for` is over");
    scene.hairpin.start_again(&scene.topology, &[])?;
    check(&mut held, "after the restart")?;
    let there = scene.hairpin.status()?.connections().0;
    ensure!(there >= held.len() as u64, "{there} connections of {} are in the table", held.len());
    Ok(())
}
