//! The connections that each policy hands to the kernel: real ones, short and long.

use super::lane;
use anyhow::{Result, ensure};
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, vip};
use libtest_mimic::Trial;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("heavy-hitter", "policy = \"heavy-hitter\"\npackets = 200", heavy_hitter),
        test("first-n", "policy = \"first-n\"\nconnections = 3", first_n),
        test("fastest-flow", "policy = \"fastest-flow\"\npackets_per_s = 2000", fastest_flow),
        test("decision-tree", "policy = \"decision-tree\"", decision_tree),
        test("auto", "policy = \"auto\"", auto),
    ]
}

fn test(name: &str, lines: &'static str, body: fn(&mut Scene) -> Result<()>) -> Trial {
    lane::OWN.test(format!("policy: {name} offloads what it is to"), move || {
        let mut scene = Scene::start(lines)?;
        body(&mut scene).map_err(|error| error.context(scene.hairpin.logs()))
    })
}

struct Scene {
    hairpin: Hairpin,
    _servers: Servers,
    topology: Topology,
}

impl Scene {
    fn start(offload: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let iperf = PeerService { servers: vec![1], ..PeerService::tcp("iperf", Family::V4, IPERF_PORTS[0]) };
        let services = [PeerService::tcp("web", Family::V4, HTTP_PORT), iperf];
        // A connection that has ended is learnt from at once.
        let tables = format!("[offload]\n{offload}\n[timeouts]\ntcp_closed = \"100ms\"\n");
        let options = HairpinOptions { top: "workers = 1".into(), tables, ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services, &options)?;
        Ok(Scene { hairpin, _servers: servers, topology })
    }

    /// Rules installed so far; of the service, the share of its bytes that the kernel forwarded.
    fn seen(&self, service: &str) -> Result<(u64, f64)> {
        // Counters of rules are read once a second.
        std::thread::sleep(SECOND + SECOND / 2);
        let installed = self.hairpin.offload()?.installed_total;
        let status = self.hairpin.status()?;
        let service = status.service(service).expect("it is configured");
        let (software, offloaded) = (service.software.bytes, service.offloaded.bytes);
        Ok((installed, offloaded as f64 / (software + offloaded).max(1) as f64))
    }

    /// Short connections, one request each; how many.
    fn short(&self) -> Result<u64> {
        let options = WrkOptions { page: "1k", connections: 8, duration: 2 * SECOND, close: true };
        let wrk = load::wrk(&self.topology, &[end(vip(Family::V4), HTTP_PORT)], &options)?;
        ensure!(wrk.errors == 0 && wrk.requests > 50, "{wrk:?}");
        Ok(wrk.requests)
    }

    /// One connection with a lot to say (and another that iperf3 controls it by).
    fn long(&self) -> Result<()> {
        let options = IperfOptions { streams: 1, amount: Amount::For(2 * SECOND), udp_mbit_s: None, reverse: false };
        load::iperf(&self.topology, vip(Family::V4), IPERF_PORTS[0], &options).map(drop)
    }

    /// The short ones stay with the worker, but a few, and the long one goes.
    fn tells_apart(&self, few: f64) -> Result<()> {
        let count = self.short()?;
        let (installed, _) = self.seen("web")?;
        ensure!(installed as f64 / 2.0 <= few * count as f64, "{installed} rules for {count} short connections");
        self.long()?;
        let (after, share) = self.seen("iperf")?;
        ensure!(after > installed && share > 0.5, "of a long connection {share} of the bytes were offloaded");
        Ok(())
    }
}

fn heavy_hitter(scene: &mut Scene) -> Result<()> {
    scene.tells_apart(0.0)?;
    let text = scene.hairpin.status_table()?;
    ensure!(text.contains("times kept in software: small"), "{text}");
    Ok(())
}

fn fastest_flow(scene: &mut Scene) -> Result<()> {
    scene.tells_apart(0.05)
}

/// One request of a thousand bytes is short by the built-in model, an upload is long.
fn decision_tree(scene: &mut Scene) -> Result<()> {
    scene.tells_apart(0.0)?;
    let text = scene.hairpin.status_table()?;
    ensure!(text.contains("predicted-short") || text.contains("small"), "{text}");
    Ok(())
}

/// (Whether short ones pay for their rules is a matter of what packets cost: in a build for tests they may.)
fn auto(scene: &mut Scene) -> Result<()> {
    scene.short()?;
    scene.tells_apart(f64::INFINITY)
}

fn first_n(scene: &mut Scene) -> Result<()> {
    let options = WrkOptions { page: "1k", connections: 8, duration: 3 * SECOND, close: false };
    let command = load::wrk_command(&scene.topology.client, &end(vip(Family::V4), HTTP_PORT), 1, &options);
    let mut wrk = scene.topology.client.start(command, &scene.topology.scratch.file("wrk-first-n"))?;
    std::thread::sleep(2 * SECOND);
    let rules = scene.hairpin.status()?.offload.rules;
    wrk.wait(30 * SECOND)?;
    ensure!(rules == 6, "{rules} rules for three of eight connections");
    Ok(())
}
