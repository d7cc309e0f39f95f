//! The dpdk plane: what is its own. What goes through it is tried with the other networks (`Which::Dpdk`).
//!
//! Ports are packet sockets (`net_af_packet`) on the balancer's interfaces, whose kernel has neither addresses there nor
//! forwarding. A program that was built without DPDK is said to be, and nothing of this is tried.

use super::direct::{self, prepare};
use super::encapsulated::start_opener;
use super::lane::skip;
use super::network::{dpdk_test as test, service, services};
use super::transfer::{bulk, echoes};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{self, Amount, IperfOptions};
use hairpin_e2e::peer::{self, Hairpin, HairpinOptions};
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{
    Cards, Family, SERVERS, Topology, TopologyOptions, balancer_address, client_address, end, vip,
};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Ports over packet sockets, with a queue for each of two workers.
pub(crate) const PORTS: &str = "net_af_packet{},iface={},qpairs=2";
/// Ports over packet sockets, with one queue.
const ONE_QUEUE: &str = "net_af_packet{},iface={}";
/// Frames taken from the interface before its kernel sees them.
const XDP: &str = "net_af_xdp{},iface={}";

/// Shared memory with another process for the clients' side, packet sockets for the servers'.
const MEMIF: &str = "net_memif{},role=server,socket=/run/hairpin-bench-memif|net_af_packet{},iface={}";

/// Longest time anything here may take, on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("dpdk: ARP is answered, ports and frames are counted", answers),
        test("dpdk: a connection goes on with the next process", restart),
        test("dpdk: a service that is added is answered for", reload),
        test("dpdk: workers without queues send through others", relay),
        test("dpdk: ports take frames past the kernel (af_xdp)", xdp),
        test("dpdk: clients come through a memif (testpmd)", memif),
        test("dpdk: direct server return, as it is", || direct("")),
        test("dpdk: direct server return, ipip", || direct("ipip")),
        test("dpdk: direct server return, gue", || direct("gue")),
        test("dpdk: what cannot be is refused in words", refusals),
    ]
}

/// Whether the program has DPDK; said once if it has not.
pub(crate) fn is_built_in() -> Result<bool> {
    static FOUND: OnceLock<std::result::Result<bool, String>> = OnceLock::new();
    let look = || {
        let text = "plane = \"dpdk\"\n[[dpdk.port]]\ndevice = \"net_null0\"\naddresses = \"10.0.0.1/24\"\n[[service]]\n\
                    listen = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.2:80\"]\n";
        let mut validate = Command::new(peer::hairpin_program()?);
        match command::output_with_input(validate.args(["validate", "-c", "/dev/stdin"]), text) {
            Ok(_) => Ok(true),
            Err(error) if format!("{error:#}").contains("built without") => Ok(false),
            Err(error) => Err(error),
        }
    };
    let found = FOUND.get_or_init(|| look().map_err(|error: anyhow::Error| format!("{error:#}")));
    let found = found.clone().map_err(anyhow::Error::msg)?;
    if !found {
        skip("the dpdk plane needs a hairpin with it (cargo build -p hairpin --features dpdk)");
    }
    Ok(found)
}

pub(crate) struct Net {
    pub(crate) hairpin: Hairpin,
    _servers: Servers,
    pub(crate) topology: Topology,
}

/// The network with Hairpin in it; `None` if the program has no DPDK.
pub(crate) fn net(options: HairpinOptions) -> Result<Option<Net>> {
    if !is_built_in()? {
        return Ok(None);
    }
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, routers: false })?;
    let servers = Servers::start(&topology)?;
    let hairpin = Hairpin::start(&topology, &services(), &options)?;
    Ok(Some(Net { hairpin, _servers: servers, topology }))
}

pub(crate) fn options(dpdk: &'static str) -> HairpinOptions {
    HairpinOptions { dpdk, ..HairpinOptions::default() }
}

/// All of the status: what others do not read of it, too.
pub(crate) fn status(hairpin: &Hairpin) -> Result<Value> {
    let answer = peer::control::ask(&hairpin.socket(), &json!({"request": "status"}))?;
    answer.get("status").cloned().context("no status")
}

/// No packet buffer is lost: packet sockets and memif hold none while nothing comes.
pub(crate) fn whole(hairpin: &Hairpin) -> Result<()> {
    holds(hairpin, 0)
}

/// No packet buffer is lost where the ports hold `at_rest` of them while nothing comes.
fn holds(hairpin: &Hairpin, at_rest: u64) -> Result<()> {
    let begun = Instant::now();
    while in_use(hairpin)? > at_rest {
        ensure!(begun.elapsed() < PATIENCE, "{} packet buffers stay in use, {at_rest} at rest", in_use(hairpin)?);
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn in_use(hairpin: &Hairpin) -> Result<u64> {
    status(hairpin)?["mbufs"]["in_use"].as_u64().context("no count of packet buffers")
}

pub(crate) fn works(net: &Net) -> Result<()> {
    for name in ["http4", "http6", "full-http4", "full-http6"] {
        load::curl(&net.topology.client, &net.topology, &service(name).listen(), "128k", "works")?;
    }
    Ok(())
}

/// UDP of both families, of both kinds of translation.
fn datagrams(net: &Net) -> Result<()> {
    ["echo4", "echo6", "full-echo4", "full-echo6"]
        .iter()
        .try_for_each(|name| echoes(&net.topology, name, 64, 1400, 101))
}

/// Servers have the VIP and answer the client over a link of their own; `kind` is what packets to them are wrapped in.
fn direct(kind: &str) -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, routers: false })?;
    prepare(&topology)?;
    let mut openers = Vec::new();
    let mut service = "mode = \"dsr\"".to_owned();
    if !kind.is_empty() {
        service = format!("{service}\nencapsulation = \"{kind}\"");
        openers = (1..=SERVERS).map(|server| start_opener(&topology, server)).collect::<Result<_>>()?;
    }
    let servers = Servers::start(&topology)?;
    let hairpin = Hairpin::start(&topology, &direct::services(""), &HairpinOptions { service, ..options(PORTS) })?;
    let mut net = Net { hairpin, _servers: servers, topology };
    let expected = std::fs::read(net.topology.scratch.file("pages/10m"))?;
    for family in [Family::V4, Family::V6] {
        let mut seen = BTreeSet::new();
        // Each of the workers has the servers take turns.
        for number in 0..12 {
            let target = end(vip(family), HTTP_PORT);
            let page = load::curl(&net.topology.client, &net.topology, &target, "10m", "page")?;
            ensure!(std::fs::read(&page.body)? == expected, "download {number} by {} is damaged", family.name());
            let client = page.header("x-client").unwrap_or_default();
            ensure!(client == client_address(family).to_string(), "the server sees {client}");
            seen.extend(page.header("x-server").map(str::to_owned));
        }
        ensure!(seen.len() == SERVERS, "by {}: {seen:?}", family.name());
        // Wrapped, the client's packets are too long, and it hears of that.
        let options = IperfOptions { amount: Amount::Megabytes(10), streams: 2, reverse: false, udp_mbit_s: None };
        let up = load::iperf(&net.topology, vip(family), IPERF_PORTS[0], &options)?;
        ensure!(up.bits_per_s > 0.0, "nothing arrived by {}", family.name());
    }
    let mut open = direct::open(&net.topology)?;
    net.hairpin.end(Signal::SIGKILL)?;
    net.hairpin.start_again(&net.topology, &[])?;
    direct::check(&mut open, "after a kill")?;
    net.hairpin.tell(&net.topology, &["reload"])?;
    direct::check(&mut open, "after a reload")?;
    whole(&net.hairpin)?;
    for opener in &mut openers {
        ensure!(opener.stop()?.success(), "{}", opener.log());
    }
    Ok(())
}

/// Echo of both families, of Hairpin's own addresses and of services'; for other addresses there is no answer.
fn answers() -> Result<()> {
    let Some(mut net) = net(options(PORTS))? else { return Ok(()) };
    let ping = |address: String| {
        let mut ping = net.topology.client.command("ping");
        command::output(ping.args(["-c", "2", "-i", "0.2", "-W", "5", &address]))
    };
    for family in [Family::V4, Family::V6] {
        ping(balancer_address(family).to_string())?;
        ping(vip(family).to_string())?;
    }
    ensure!(ping("10.0.0.77".to_string()).is_err(), "a host answers for 10.0.0.77");
    works(&net)?;
    let status = status(&net.hairpin)?;
    let ports = status["ports"].as_array().context("no ports in the status")?;
    ensure!(ports.len() == 5, "{} ports", ports.len());
    for port in ports {
        ensure!(port["driver"] == "net_af_packet" && port["up"] == true, "{port}");
        ensure!(port["queues"] == 2 && port["mtu"] == 1500, "{port}");
    }
    // Everybody who took part was asked for or has asked.
    let client = &ports[0];
    ensure!(client["received"].as_u64() > Some(100) && client["transmitted"].as_u64() > Some(100), "{client}");
    let event = |name: &str| status["events"][format!("device.{name}")]["total"].as_u64().unwrap_or(0);
    ensure!(event("echo-answered") >= 8, "{}", status["events"]);
    ensure!(event("resolution-asked") > 0 && event("resolution-answered") > 0, "{}", status["events"]);
    // Two workers, each with a connection's packets of the other now and then.
    ensure!(event("handed-over") > 0, "{}", status["events"]);
    let table = net.hairpin.status_table()?;
    ensure!(table.contains("steering: 2 workers hand over to each other"), "{table}");
    // Packet sockets know no rules.
    let offload = &status["offload"];
    ensure!(offload["policy"] == "never" && offload["rules_max"] == 0 && offload["engine"] == "none", "{offload}");
    ensure!(table.contains("engine none: no port takes rules") && table.contains("the driver has no rules"), "{table}");
    whole(&net.hairpin)?;
    // Its objects go with the process.
    let instance = net.hairpin.instance().to_owned();
    net.hairpin.stop(true)?;
    let left = hairpin_e2e::remnants::of(&instance);
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// A connection that is kept open, and a question on it.
pub(crate) fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    let end_of = |answer: &[u8]| answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| at + 4);
    while end_of(&answer).is_none_or(|end| answer.len() < end + 1024) {
        let length = stream.read(&mut part)?;
        ensure!(length > 0, "closed before the answer was complete");
        answer.extend_from_slice(&part[..length]);
    }
    Ok(())
}

fn restart() -> Result<()> {
    let Some(mut net) = net(options(PORTS))? else { return Ok(()) };
    let to: SocketAddr = service("http4").listen().parse()?;
    let mut stream = inside::run(&net.topology.client, move || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        ask(&mut stream)?;
        Ok(stream)
    })?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        net.hairpin.end(signal)?;
        net.hairpin.start_again(&net.topology, &[])?;
        let status = net.hairpin.status()?;
        ensure!(status.began == "restart" && status.adopted_connections >= 1, "{status:?}");
        ask(&mut stream).with_context(|| format!("after {signal}"))?;
    }
    whole(&net.hairpin)?;
    // No process can take ports over from a living one.
    let refused = net.hairpin.tell(&net.topology, &["upgrade"]);
    let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("cannot be passed on"), "an upgrade was answered {refused:?}");
    ask(&mut stream)?;
    works(&net)
}

fn reload() -> Result<()> {
    let Some(net) = net(options(PORTS))? else { return Ok(()) };
    let mut services = services();
    // An address that no service had.
    let text = "[[service]]\nname = \"added\"\nlisten = \"10.0.100.77:80/tcp\"\nbackends = [\"10.0.2.2:80\"]\n";
    let last = services.last_mut().context("services")?;
    last.tables = text.to_owned();
    net.hairpin.configure(&net.topology, &services, &options(PORTS))?;
    let target = "10.0.100.77:80";
    let page = || load::curl(&net.topology.client, &net.topology, target, "1k", "added");
    let before = inside::run(&net.topology.client, move || {
        Ok(TcpStream::connect_timeout(&target.parse()?, Duration::from_millis(500)).is_ok())
    })?;
    ensure!(!before, "an instance answers at {target} before the reload");
    net.hairpin.tell(&net.topology, &["reload"])?;
    page()?;
    works(&net)?;
    whole(&net.hairpin)
}

/// Two workers, and ports with one queue.
fn relay() -> Result<()> {
    let Some(net) = net(HairpinOptions { top: "workers = 2".to_owned(), ..options(ONE_QUEUE) })? else { return Ok(()) };
    for _ in 0..4 {
        works(&net)?;
    }
    let table = net.hairpin.status_table()?;
    ensure!(table.contains("2 workers hand over to each other, 1 of them with queues"), "{table}");
    let status = status(&net.hairpin)?;
    for worker in status["workers"].as_array().context("no workers")? {
        ensure!(worker["forwarded"].as_u64() > Some(0), "{}", status["workers"]);
    }
    whole(&net.hairpin)
}

fn xdp() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    match net(HairpinOptions { top: "workers = 1".to_owned(), ..options(XDP) }) {
        Ok(Some(net)) => {
            // The kernel has buffers to receive into, and gives those of a port's last burst back when it sends again.
            let at_rest = in_use(&net.hairpin)? + 64 * net.topology.servers.len() as u64 + 64;
            works(&net)?;
            datagrams(&net)?;
            for (name, family) in [("iperf4", Family::V4), ("iperf6", Family::V6)] {
                bulk(&net.topology, name, family)?;
            }
            let status = status(&net.hairpin)?;
            ensure!(status["ports"][0]["driver"] == "net_af_xdp", "{}", status["ports"]);
            holds(&net.hairpin, at_rest)
        }
        Ok(None) => Ok(()),
        Err(error) if format!("{error:#}").contains("Cannot find device") => {
            skip("this DPDK has no driver for af_xdp");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// testpmd forwards frames between the client's interface and a memif whose other end is Hairpin's.
fn memif() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    if Command::new("dpdk-testpmd").arg("--version").output().is_err() {
        skip("there is no dpdk-testpmd");
        return Ok(());
    }
    let Some(net) = net(HairpinOptions { top: "workers = 1".to_owned(), ..options(MEMIF) })? else { return Ok(()) };
    let mut testpmd = net.topology.balancer.command("dpdk-testpmd");
    testpmd.args(["-l", "0,1", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"]);
    testpmd.args(["--vdev", "net_af_packet0,iface=client0"]);
    testpmd.args(["--vdev", "net_memif0,role=client,socket=/run/hairpin-bench-memif"]);
    testpmd.args(["--", "--forward-mode=io", "--auto-start", "--total-num-mbufs=16384", "--stats-period=60"]);
    let mut testpmd = net.topology.balancer.start(testpmd, &net.topology.scratch.file("testpmd.log"))?;
    let up = || status(&net.hairpin).is_ok_and(|status| status["ports"][0]["up"] == true);
    testpmd.wait_until(PATIENCE, up).context("the memif does not come up")?;
    works(&net).with_context(|| testpmd.log())?;
    datagrams(&net).with_context(|| testpmd.log())?;
    let status = status(&net.hairpin)?;
    ensure!(status["ports"][0]["driver"] == "net_memif", "{}", status["ports"]);
    ensure!(status["ports"][0]["received"].as_u64() > Some(100), "{}", status["ports"]);
    // It polls: it has to end even without a request.
    testpmd.signal(Signal::SIGKILL);
    whole(&net.hairpin)
}

fn refusals() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    for (dpdk, tables, expected) in [
        ("net_af_packet{},iface=none-{}", "", "cannot open a port"),
        ("net_nonsense{},iface={}", "", "cannot open a port"),
        (PORTS, "[service.health]\ncheck = \"tcp\"\n", "the kernel does not own the ports of the dpdk plane"),
    ] {
        let topology = Topology::create(TopologyOptions { cards: Cards::Wire, routers: false })?;
        let mut services = services();
        services.truncate(1);
        services[0].tables = tables.to_owned();
        match Hairpin::start(&topology, &services, &options(dpdk)) {
            Ok(_) => bail!("{dpdk} with {tables:?} was taken"),
            Err(error) => ensure!(format!("{error:#}").contains(expected), "{dpdk}, {tables:?}: {error:#}"),
        }
    }
    Ok(())
}
