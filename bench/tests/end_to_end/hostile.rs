//! A flood of what nobody asked for: Hairpin lives, counts it, keeps its tables bounded, and serves on.

use anyhow::{Context, Result, ensure};
use hairpin_bench::load;
use hairpin_bench::peer::{Hairpin, HairpinOptions};
use hairpin_bench::servers::Servers;
use hairpin_bench::tool::flood;
use hairpin_bench::tool::frames::Link;
use hairpin_bench::topology::{Options, Topology};
use libtest_mimic::Trial;
use std::time::Duration;

pub(crate) fn trials() -> Vec<Trial> {
    vec![super::network::trial("hostile flood", hostile)]
}

/// Connections the tables of this trial hold.
const CONNECTIONS_MAX: u64 = 20_000;

fn hostile() -> Result<()> {
    let topology = Topology::create(Options::default())?;
    let _servers = Servers::start(&topology)?;
    let options = HairpinOptions {
        more_interfaces: vec!["flood0"],
        tables: format!("[limits]\nconnections_max = {CONNECTIONS_MAX}\n"),
        ..HairpinOptions::default()
    };
    let mut hairpin = Hairpin::start(&topology, &super::network::services(), &options)?;
    let link = Link { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let target = super::network::service("http4").listen();
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;

    for seed in 1..=3 {
        // Established before the flood: it takes some three seconds.
        let body = topology.scratch.file("established");
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", "--limit-rate", "3M", "--output"]);
        curl.arg(&body).arg(format!("http://{target}/10m"));
        let mut established = topology.client.start(curl, &topology.scratch.file("established.log"))?;
        std::thread::sleep(Duration::from_millis(300));
        let flood = flood::start(&topology.flooder, "eth0", link, &flood::usual_targets(), seed, &[0, 1]);
        std::thread::sleep(Duration::from_secs(2));
        // New connections of a flooded service compete with the flood; those of another service do not.
        let other = super::network::service("full-http4").listen();
        let page = load::curl(&topology.client, &topology, &other, "10m", "flooded")
            .with_context(|| format!("under the flood; status:\n{}", hairpin.status_table().unwrap_or_default()))?;
        let rate = flood.stop()?;
        ensure!(std::fs::read(page.body)? == sent, "10 MB under the flood arrived changed");
        let status = established.wait(Duration::from_secs(30))?;
        ensure!(status.success(), "the established transfer failed: {}", established.log());
        ensure!(std::fs::read(&body)? == sent, "the established transfer arrived changed");
        hairpin.process().check()?;
        let status = hairpin.status()?;
        let (connections, connections_max) = status.connections();
        ensure!(connections_max <= CONNECTIONS_MAX + 64, "tables hold {connections_max} connections");
        ensure!(connections <= connections_max, "{connections} connections of {connections_max}");
        let dropped: u64 = status.drops.values().map(|count| count.total).sum();
        ensure!(dropped > 1000, "{rate:.0} frames a second, and {dropped} drops counted: {:?}", status.drops);
        ensure!(status.drops.len() >= 3, "drops of so few kinds: {:?}", status.drops);
    }
    let after = load::curl(&topology.client, &topology, &target, "10m", "after").context("after the flood")?;
    ensure!(std::fs::read(after.body)? == sent, "10 MB after the flood arrived changed");
    hairpin.process().check()
}
