//! Connections that the BPF programs set up without a worker.

use crate::network::{ATTACH_XDP, test};
use crate::transfer::{bulk, echoes};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("setup: pages, streams and datagrams (gso)", || carries(Cards::Gso)),
        test("setup: pages, streams and datagrams (wire)", || carries(Cards::Wire)),
        test("setup: pages, streams and datagrams (xdp)", || carries(Cards::Xdp)),
        test("setup: kills and an upgrade break no connection", survives),
        test("setup: ends are followed with no process there", || ends_alone(2)),
        test("setup: ends are followed by fewer workers", || ends_alone(1)),
        test("setup: connections begin with no process there", serves_alone),
        test("setup: drained, disabled and killed servers", follows),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(10);
const ENGINE: &str = "[offload]\nset_up = \"engine\"\n";

struct Scene {
    hairpin: Hairpin,
    servers: Servers,
    topology: Topology,
}

fn services() -> Vec<PeerService> {
    let mut services = Vec::new();
    for (family, [http, echo, iperf, iperf_udp]) in [
        (Family::V4, ["http4", "echo4", "iperf4", "iperf-udp4"]),
        (Family::V6, ["http6", "echo6", "iperf6", "iperf-udp6"]),
    ] {
        let balance = if family == Family::V4 { "maglev" } else { "weighted-round-robin" };
        services.push(PeerService { balance, ..PeerService::tcp(http, family, HTTP_PORT) });
        services.push(PeerService { balance: "source-hash", ..PeerService::udp(echo, family, ECHO_PORT) });
        services.push(PeerService { servers: vec![1], ..PeerService::tcp(iperf, family, IPERF_PORTS[0]) });
        services.push(PeerService { servers: vec![1], ..PeerService::udp(iperf_udp, family, IPERF_PORTS[0]) });
    }
    services
}

fn options(cards: Cards) -> HairpinOptions {
    let attach = if cards == Cards::Xdp { ATTACH_XDP } else { "" };
    HairpinOptions { tables: format!("{ENGINE}{attach}"), ..HairpinOptions::default() }
}

impl Scene {
    fn start(cards: Cards) -> Result<Scene> {
        Scene::with(cards, &options(cards))
    }

    fn with(cards: Cards, options: &HairpinOptions) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        let servers = Servers::start(&topology)?;
        let hairpin = Hairpin::start(&topology, &services(), options)?;
        Ok(Scene { hairpin, servers, topology })
    }

    /// As of the last second.
    fn event(&self, name: &str) -> Result<u64> {
        Ok(self.hairpin.status()?.events.get(&format!("kernel.{name}")).map_or(0, |count| count.total))
    }

    /// Pages on connections of their own; how many were asked for.
    fn pages(&self, name: &str, connections: usize, seconds: u64) -> Result<u64> {
        let service = services().into_iter().find(|service| service.name == name).context("no such service")?;
        let options = WrkOptions { page: "1k", connections, duration: Duration::from_secs(seconds), close: true };
        let done = load::wrk(&self.topology, &[service.listen()], &options)?;
        ensure!(done.errors == 0 && done.requests > 0, "{name}: {done:?}");
        Ok(done.requests)
    }

    /// Waits until no page's connection is open.
    fn all_closed(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            let status = self.hairpin.status()?;
            let open = |name| status.service(name).map_or(0, |service| service.connections);
            if open("http4") + open("http6") == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(500));
        }
        anyhow::bail!("connections are left: {}", self.hairpin.status_table()?)
    }
}

fn carries(cards: Cards) -> Result<()> {
    let scene = Scene::start(cards)?;
    for name in ["http4", "http6"] {
        let before = [scene.event("to-worker")?, scene.event("followed")?];
        let requests = scene.pages(name, 200, 3)?;
        sleep(Duration::from_millis(1500));
        let status = scene.hairpin.status()?;
        let [to_worker, followed] = [scene.event("to-worker")? - before[0], scene.event("followed")? - before[1]];
        // Both FINs, and both SYNs of a client whose port has come round.
        ensure!(
            followed >= 2 * requests,
            "{followed} SYNs and FINs of {requests} connections went by rules: {status:?}"
        );
        ensure!(to_worker * 5 < requests, "{to_worker} packets of {requests} connections went to workers: {status:?}");
        let service = status.service(name).context("no such service in the status")?;
        ensure!(service.connections_total >= requests, "{requests} requests, {service:?}");
    }
    for (name, family) in [("iperf4", Family::V4), ("iperf6", Family::V6)] {
        bulk(&scene.topology, name, family)?;
    }
    for name in ["echo4", "echo6"] {
        echoes(&scene.topology, name, 16, 100, 17)?;
    }
    ensure!(scene.event("set-up")? > 0, "no connection was set up by the programs");
    scene.all_closed()
}

fn survives() -> Result<()> {
    let mut scene = Scene::start(Cards::Gso)?;
    let open = |scene: &Scene| {
        inside::run(&scene.topology.client, || {
            let mut connection = http::HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), TIMEOUT)?;
            connection.get("1k", false, TIMEOUT)?;
            Ok(connection)
        })
    };
    let mut held = Vec::new();
    for round in 0..3 {
        // The last ones are not in the worker's table yet when it is killed.
        for _ in 0..20 {
            held.push(open(&scene)?);
        }
        let _ = scene.hairpin.end(Signal::SIGKILL)?;
        for connection in &mut held {
            connection.get("1k", false, TIMEOUT).context("without a process")?;
        }
        scene.hairpin.start_again(&scene.topology, &[])?;
        for connection in &mut held {
            connection.get("1k", false, TIMEOUT).with_context(|| format!("after restart {round}"))?;
        }
        let there = scene.hairpin.status()?.connections().0;
        ensure!(there >= held.len() as u64, "{there} connections of {} are in the table", held.len());
    }
    for _ in 0..20 {
        held.push(open(&scene)?);
    }
    let program = hairpin_program()?;
    scene.hairpin.upgrade(&scene.topology, &program)?;
    for connection in &mut held {
        connection.get("1k", false, TIMEOUT).context("after an upgrade")?;
    }
    let requests = scene.pages("http6", 16, 1)?;
    sleep(Duration::from_millis(1500));
    ensure!(
        2 * scene.event("set-up")? > requests,
        "the programs set few of {requests} connections up after an upgrade: {}",
        scene.hairpin.status_table()?
    );
    drop(held);
    scene.all_closed()
}

/// Connections whose ends repeat lost FINs while no process is there are over for the next one, which has so many workers.
fn ends_alone(workers: usize) -> Result<()> {
    let with = |workers| HairpinOptions { top: format!("workers = {workers}"), ..options(Cards::Gso) };
    let mut scene = Scene::with(Cards::Gso, &with(2))?;
    let held = inside::run(&scene.topology.client, || {
        let open = |_| {
            let mut connection = http::HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), TIMEOUT)?;
            connection.get("1k", false, TIMEOUT)?;
            Ok(connection)
        };
        (0..20).map(open).collect::<Result<Vec<_>>>()
    })?;
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    // The clients' first FINs are lost.
    let lose = "table inet lose { chain out { type filter hook output priority 0; tcp flags & fin == fin drop; }; }";
    scene.topology.client.script(&format!("nft -f - <<'END'\n{lose}\nEND\n"))?;
    drop(held);
    sleep(Duration::from_millis(100));
    let lost = scene.topology.client.script("ss --no-header --tcp state fin-wait-1 | wc --lines")?;
    ensure!(lost.trim() == "20", "{} clients wait for an answer to their FINs", lost.trim());
    scene.topology.client.script("nft delete table inet lose")?;
    sleep(Duration::from_secs(2));
    let left = scene.topology.client.script("ss --no-header --tcp state fin-wait-1 state fin-wait-2 | wc --lines")?;
    ensure!(left.trim() == "0", "{} connections did not end without a process", left.trim());
    scene.hairpin.configure(&scene.topology, &services(), &with(workers))?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.all_closed()
}

/// With `when_absent = "serve"` clients are served without a process, for as long as it says; the next process has their
/// connections.
fn serves_alone() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let servers = Servers::start(&topology)?;
    let serve = "[linux]\nwhen_absent = \"serve\"\nserve_for = \"10s\"\nheartbeat_timeout = \"500ms\"\n";
    let options = HairpinOptions { tables: format!("{ENGINE}{serve}"), ..HairpinOptions::default() };
    let hairpin = Hairpin::start(&topology, &services(), &options)?;
    let mut scene = Scene { hairpin, servers, topology };
    scene.pages("http6", 16, 1)?;
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    let died = Instant::now();
    sleep(Duration::from_secs(2));
    let open = |scene: &Scene, timeout: Duration| {
        inside::run(&scene.topology.client, move || {
            let mut connection = http::HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), timeout)?;
            connection.get("1k", false, timeout)?;
            Ok(connection)
        })
    };
    let mut held = (0..50).map(|_| open(&scene, TIMEOUT)).collect::<Result<Vec<_>>>().context("without a process")?;
    sleep(Duration::from_secs(12).saturating_sub(died.elapsed()));
    ensure!(open(&scene, Duration::from_millis(500)).is_err(), "connections begin when `serve_for` is over");
    scene.hairpin.start_again(&scene.topology, &[])?;
    let there = scene.hairpin.status()?.connections().0;
    ensure!(there >= held.len() as u64, "{there} connections of {} are in the table", held.len());
    for connection in &mut held {
        connection.get("1k", false, TIMEOUT).context("after the restart")?;
    }
    drop(held);
    scene.servers.check()?;
    scene.all_closed()
}

fn follows() -> Result<()> {
    let mut scene = Scene::start(Cards::Gso)?;
    let total = |scene: &Scene, server: usize| -> Result<u64> {
        sleep(Duration::from_millis(1500));
        let status = scene.hairpin.status()?;
        Ok(status.backend("http4", &format!("server{server}")).context("no such backend")?.connections_total)
    };
    scene.pages("http4", 16, 1)?;
    scene.hairpin.tell(&scene.topology, &["backend", "drain", "http4", "server1"])?;
    let before = total(&scene, 1)?;
    scene.pages("http4", 16, 1)?;
    ensure!(total(&scene, 1)? == before, "a draining server got connections");
    scene.hairpin.tell(&scene.topology, &["backend", "enable", "http4", "server1"])?;
    scene.pages("http4", 16, 1)?;
    ensure!(total(&scene, 1)? > before, "a server that is enabled again gets none");
    scene.hairpin.tell(&scene.topology, &["backend", "disable", "http4", "server2"])?;
    scene.pages("http4", 16, 1)?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    scene.pages("http4", 16, 1)?;
    scene.servers.check()?;
    scene.all_closed()
}
