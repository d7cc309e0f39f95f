//! A balancer that takes over from another one, of which it knows nothing (`unknown = "pick-up"`).

use super::network::trial;
use super::tables::Idle;
use anyhow::{Context, Result, bail, ensure};
use hairpin_bench::peer::{Hairpin, HairpinOptions, Service};
use hairpin_bench::servers::{HTTP_PORT, Servers};
use hairpin_bench::topology::{Family, Options, Topology};
use libtest_mimic::Trial;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long something may take that happens by itself.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("takeover: links that come up late mislead nobody", late_links)]
}

fn services() -> [Service; 2] {
    let tables = "[service.health]\ncheck = \"tcp\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\n";
    [("http4", Family::V4), ("http6", Family::V6)].map(|(name, family)| Service {
        balance: "maglev",
        tables: tables.to_string(),
        ..Service::tcp(name, family, HTTP_PORT)
    })
}

fn options() -> HairpinOptions {
    HairpinOptions { service: "unknown = \"pick-up\"".to_string(), ..HairpinOptions::default() }
}

/// Waits until something is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        if start.elapsed() > PATIENCE {
            bail!("{what}: not after {PATIENCE:?}");
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A node starts while half of its links are down, and they come up with the first packets. Every connection is found where
/// it is.
fn late_links() -> Result<()> {
    let topology = Topology::create(Options::default())?;
    let _servers = Servers::start(&topology)?;
    let mut hairpin = Hairpin::start(&topology, &services(), &options())?;
    let mut idle = Idle::open(&topology, &[HTTP_PORT], 64)?;
    hairpin.stop(true)?;
    let links = |to: &str| {
        let lines = ["server2", "server3"].map(|name| format!("ip link set dev {name} {to}\n"));
        topology.balancer.script(&lines.concat()).map(drop)
    };
    topology.balancer.script("sysctl -qw net.ipv6.conf.all.keep_addr_on_down=1\n")?;
    links("down")?;
    hairpin.start_again(&topology, &[])?;
    let health = |server: &str| -> Result<(String, String)> {
        let status = hairpin.status()?;
        let health = &status.backend("http4", server).context("no such backend")?.health;
        Ok((health.state.clone(), health.reason.clone()))
    };
    eventually("the first checks of server2 and server3", || {
        Ok(health("server2")?.1 != "not checked yet" && health("server3")?.1 != "not checked yet")
    })?;
    eventually("server1 is up", || Ok(health("server1")?.0 == "up"))?;
    let ready =
        || -> Result<bool> { Ok(hairpin.command(&topology, &["status", "--ready"])?.output()?.status.success()) };
    ensure!(!ready()?, "it is ready with {:?}", health("server2")?);
    links("up")?;
    idle.check("after the links are up")?;
    eventually("it is ready", ready)
}
