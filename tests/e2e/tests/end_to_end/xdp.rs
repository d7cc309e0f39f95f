//! Programs in XDP: they forward, outlive the process, follow the configuration at a start, and go.

use super::mtu::upload_by_http;
use super::network::{ATTACH_XDP, Network, Networks, Which, http_services, service, services, test};
use super::transfer::{bulk, echoes};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::{http::HttpConnection, inside};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    vec![
        networks.test("xdp: counters show that it forwards", Which::Xdp, forwards),
        networks.test("xdp: bodies of HTTP exchanges go by it", Which::Xdp, bodies),
        networks.test("xdp: clients of HTTP get cookies from it", Which::Xdp, cookies),
        test("xdp: killed, started again, upgraded, flushed", survives),
        test("xdp: a change of attach leaves no program", changes),
        test("xdp: an interface that cannot have it is named", refused),
    ]
}

/// What the kernel's programs have counted so far; the status is as of the last second.
fn counted(hairpin: &Hairpin, event: &str) -> Result<u64> {
    std::thread::sleep(Duration::from_millis(1500));
    Ok(hairpin.status()?.events.get(event).map_or(0, |count| count.total))
}

/// Packets sent from XDP so far.
fn sent(hairpin: &Hairpin) -> Result<u64> {
    counted(hairpin, "kernel.xdp-sent")
}

fn forwards(network: &mut Network) -> Result<()> {
    let status = network.hairpin.status()?;
    let detail = &status.offload.engine_detail;
    ensure!(detail.starts_with("programs in XDP"), "attached: {detail}");
    ensure!(network.hairpin.status_table()?.contains(detail), "the table does not say {detail}");
    for (name, family) in [("iperf4", Family::V4), ("iperf6", Family::V6)] {
        let before = sent(&network.hairpin)?;
        bulk(&network.topology, name, family)?;
        // Twice 200 MB in segments of 1,448 bytes at most, all of whose packets but a few have a rule.
        let least = 400_000_000 / 1448;
        let xdp = sent(&network.hairpin)? - before;
        ensure!(xdp > least * 9 / 10, "{xdp} packets of {name} were sent from XDP, of {least} at least");
    }
    Ok(())
}

/// Large bodies down and up: each byte as it was sent, and nearly all of their segments from XDP. Acknowledgements are half as many
/// at most.
fn bodies(network: &mut Network) -> Result<()> {
    let topology = &network.topology;
    for (family, web) in [(Family::V4, "web4"), (Family::V6, "web6")] {
        let whole = std::fs::read(topology.scratch.file("pages/100m"))?;
        let least = whole.len() as u64 / 1448 * 9 / 10;
        let before = sent(&network.hairpin)?;
        let page = load::curl(&topology.client, topology, &service(web).listen(), "100m", "xdp")?;
        ensure!(std::fs::read(page.body)? == whole, "100 MB through {web} arrived changed");
        let down = sent(&network.hairpin)? - before;
        ensure!(down > least, "{down} packets of a download through {web} were sent from XDP, not {least}");
        upload_by_http(topology, family, "100m")?;
        let up = sent(&network.hairpin)? - before - down;
        ensure!(up > least, "{up} packets of an upload were sent from XDP, not {least}");
    }
    Ok(())
}

/// Clients that connect and say nothing: no rule is theirs.
fn cookies(network: &mut Network) -> Result<()> {
    const CLIENTS: u64 = 100;
    for (family, web) in [(Family::V4, "web4"), (Family::V6, "web6")] {
        let (before, before_xdp) = (counted(&network.hairpin, "kernel.cookie-sent")?, sent(&network.hairpin)?);
        let to = SocketAddr::new(vip(family), service(web).port);
        let held = inside::run(&network.topology.client, move || {
            (0..CLIENTS).map(|_| Ok(TcpStream::connect_timeout(&to, TIMEOUT)?)).collect::<Result<Vec<_>>>()
        })?;
        let cookies = counted(&network.hairpin, "kernel.cookie-sent")? - before;
        let by_xdp = sent(&network.hairpin)? - before_xdp;
        ensure!(cookies >= CLIENTS, "{cookies} cookies for {CLIENTS} clients of {web}");
        ensure!(by_xdp >= cookies, "{by_xdp} packets sent from XDP, and {cookies} cookies");
        drop(held);
    }
    Ok(())
}

struct Xdp {
    topology: Topology,
    hairpin: Hairpin,
    _servers: Servers,
}

fn all_services() -> Vec<PeerService> {
    services().into_iter().chain(http_services()).collect()
}

fn options(attach: &str) -> HairpinOptions {
    HairpinOptions { tables: format!("[offload]\npolicy = \"always\"\n{attach}"), ..HairpinOptions::default() }
}

impl Xdp {
    fn start() -> Result<Xdp> {
        let topology = Topology::create(TopologyOptions { cards: Cards::Xdp, ..TopologyOptions::default() })?;
        let servers = Servers::start(&topology)?;
        let hairpin = Hairpin::start(&topology, &all_services(), &options(ATTACH_XDP))?;
        Ok(Xdp { topology, hairpin, _servers: servers })
    }

    /// Interfaces of the balancer that have an XDP program in the driver.
    fn programs(&self) -> Result<usize> {
        Ok(self.topology.balancer.script("ip link show\n")?.matches(" xdp ").count())
    }

    fn works(&self) -> Result<()> {
        for name in ["http4", "full-http6", "web4", "web6"] {
            load::curl(&self.topology.client, &self.topology, &service(name).listen(), "10m", "works")?;
        }
        echoes(&self.topology, "echo6", 16, 100, 17)
    }

    fn all_have_it(&self) -> Result<()> {
        let (have, interfaces) = (self.programs()?, self.topology.balancer_interfaces().len());
        ensure!(have == interfaces, "{have} of {interfaces} interfaces have an XDP program");
        Ok(())
    }
}

fn survives() -> Result<()> {
    let mut xdp = Xdp::start()?;
    xdp.works()?;
    xdp.all_have_it()?;
    let mut held = inside::run(&xdp.topology.client, || {
        let mut connection = HttpConnection::open(SocketAddr::new(vip(Family::V4), HTTP_PORT), TIMEOUT)?;
        connection.get("1k", false, TIMEOUT)?;
        connection.get("1k", false, TIMEOUT)?;
        Ok(connection)
    })?;
    let _ = xdp.hairpin.end(Signal::SIGKILL)?;
    xdp.all_have_it()?;
    held.get("100m", false, Duration::from_secs(60)).context("without a process")?;
    xdp.hairpin.start_again(&xdp.topology, &[])?;
    ensure!(xdp.hairpin.status()?.began == "restart", "it began as {:?}", xdp.hairpin.status()?.began);
    held.get("1k", false, TIMEOUT).context("after the restart")?;
    xdp.works()?;
    xdp.hairpin.tell(&xdp.topology, &["reload"])?;
    xdp.works()?;
    let program = hairpin_program()?;
    xdp.hairpin.upgrade(&xdp.topology, &program)?;
    held.get("10m", false, TIMEOUT).context("after the upgrade")?;
    xdp.works()?;
    xdp.all_have_it()?;
    xdp.hairpin.stop(true)?;
    ensure!(xdp.programs()? == 0, "XDP programs are left");
    Ok(())
}

fn changes() -> Result<()> {
    let mut xdp = Xdp::start()?;
    xdp.all_have_it()?;
    for (attach, has) in [("tc", false), ("xdp", true), ("auto", false), ("xdp", true), ("clsact", false)] {
        let _ = xdp.hairpin.end(Signal::SIGTERM)?;
        let table = format!("[linux]\nattach = \"{attach}\"\n");
        xdp.hairpin.configure(&xdp.topology, &all_services(), &options(&table))?;
        xdp.hairpin.start_again(&xdp.topology, &[])?;
        match has {
            true => xdp.all_have_it()?,
            false => ensure!(xdp.programs()? == 0, "{attach} left XDP programs"),
        }
        let detail = xdp.hairpin.status()?.offload.engine_detail;
        ensure!(detail.contains("in XDP, and") == has, "{attach}: {detail}");
        ensure!(detail.contains("; not in XDP: service") == (attach == "auto"), "{attach}: {detail}");
        xdp.works().with_context(|| attach.to_owned())?;
    }
    Ok(())
}

fn refused() -> Result<()> {
    let mut xdp = Xdp::start()?;
    xdp.hairpin.stop(true)?;
    xdp.topology.servers[1].script("ethtool -K eth0 gro off\n")?;
    let error = match xdp.hairpin.start_again(&xdp.topology, &[]) {
        Ok(()) if kernel_is_silent()? => return Ok(()),
        Ok(()) => anyhow::bail!("it started although server2 takes no redirected frames"),
        Err(error) => format!("{error:#}"),
    };
    ensure!(error.contains("interface server2") && error.contains("gro on"), "{error}");
    ensure!(xdp.programs()? == 0, "XDP programs are left");
    xdp.topology.servers[1].script("ethtool -K eth0 gro on\n")?;
    xdp.hairpin.start_again(&xdp.topology, &[])?;
    xdp.works()
}

/// Before Linux 6.3 the kernel does not tell which devices take redirected frames.
fn kernel_is_silent() -> Result<bool> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    Ok((numbers.next(), numbers.next()) < (Some(6), Some(3)))
}
