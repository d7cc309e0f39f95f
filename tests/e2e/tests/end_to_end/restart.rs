//! Ended and started again: offloaded connections go on without a process, and the next one takes up all of them.

use crate::network::{FULL_NAT_HTTP_PORT, service, services, test};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::control::ConnectionView;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, hairpin_program};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use hairpin_e2e::{command, remnants};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("restart: offloaded transfers continue and are adopted", || goes_on("drop")),
        test("restart: without a process the kernel gets new connections", || goes_on("pass")),
        test("restart: with other numbers of workers and connections", other_sizes),
        test("restart: upgrades to other numbers of workers", upgraded_sizes),
        test("restart: another layout is refused or discarded", other_layout),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(10);

/// A network with a Hairpin, connections that are idle and a transfer that is not.
struct Scene {
    idle: Vec<http::HttpConnection>,
    transfer: Process,
    hairpin: Hairpin,
    _servers: Servers,
    topology: Topology,
    options: HairpinOptions,
}

impl Scene {
    fn start(top: &str, tables: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let options = HairpinOptions { top: top.to_owned(), tables: tables.to_owned(), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services(), &options)?;
        let mut iperf = topology.client.command("iperf3");
        let to = vip(Family::V4).to_string();
        iperf.args(["--client", &to, "--port", &IPERF_PORTS[0].to_string(), "--json"]);
        let seconds = patience(Duration::from_secs(15)).as_secs().to_string();
        iperf.args(["--parallel", "4", "--bitrate", "20M", "--time", &seconds]);
        let transfer = topology.client.start(iperf, &topology.scratch.file("iperf3.json"))?;
        let idle = open(&topology, 40)?;
        let mut scene = Scene { idle, transfer, hairpin, _servers: servers, topology, options };
        scene.await_offloaded()?;
        Ok(scene)
    }

    /// Waits until everything is offloaded, and the offload state of it agrees with the engine.
    fn await_offloaded(&mut self) -> Result<()> {
        // iperf3 has four streams, which are told to stay within their rate, and one connection for control.
        let all = self.idle.len() as u64 + 5;
        for _ in 0..200 {
            let view = self.hairpin.offload()?;
            if view.offloaded >= all && view.unaccounted() == 0 {
                return Ok(());
            }
            sleep(Duration::from_millis(50));
        }
        bail!("not all of {all} connections are offloaded, or rules are left over: {:?}", self.hairpin.offload()?)
    }

    /// The connections that the scene holds open. Those of `new_ones_work` may still be closing.
    fn connections(&self) -> Result<BTreeMap<String, ConnectionView>> {
        let idle = self.idle.iter().map(http::HttpConnection::ends).collect::<Result<HashSet<_>>>()?;
        let all = self.hairpin.connections(&json!({}))?;
        let named = all.into_iter().map(|view| (format!("{} {}", view.client, view.vip), view));
        let to = format!(":{}", IPERF_PORTS[0]);
        let held: BTreeMap<_, _> = named.filter(|(name, _)| idle.contains(name) || name.ends_with(&to)).collect();
        ensure!(held.len() >= idle.len() + 5, "only {} connections are known: {held:?}", held.len());
        Ok(held)
    }

    /// All connections are there again, with the same backends, and their counters and clocks have gone on.
    fn check_adopted(&mut self, before: &BTreeMap<String, ConnectionView>) -> Result<()> {
        let status = self.hairpin.status()?;
        ensure!(status.began == "restart", "it began as {:?}", status.began);
        ensure!(status.adopted_connections >= before.len() as u64, "it adopted {}", status.adopted_connections);
        let after = self.connections()?;
        for (name, old) in before {
            let new = after.get(name).with_context(|| format!("{name} is not known any more"))?;
            ensure!(new.backend == old.backend && new.source == old.source, "it was {old:?}, now {new:?}");
            ensure!(new.state == old.state && new.age_s >= old.age_s, "it was {old:?}, now {new:?}");
            let not_less = (0..2).all(|i| new.packets[i] >= old.packets[i] && new.bytes[i] >= old.bytes[i]);
            ensure!(not_less, "counters went back: {old:?}, now {new:?}");
            let idle = self.idle.iter().any(|connection| connection.ends().is_ok_and(|ends| ends == *name));
            // The time limit of what is silent runs on.
            ensure!(!idle || new.idle_s >= old.idle_s, "it was {old:?}, now {new:?}");
        }
        self.await_offloaded()
    }

    /// Every idle connection is answered by the server that it had.
    fn check_idle(&mut self, before: &BTreeMap<String, ConnectionView>) -> Result<()> {
        for connection in &mut self.idle {
            // The client's end alone can be that of a connection to another service, too.
            let ends = connection.ends()?;
            let answer = connection.get("1k", false, TIMEOUT).with_context(|| format!("{ends}, after the restart"))?;
            let view = before.get(&ends).with_context(|| format!("{ends} was not known"))?;
            ensure!(answer.server()? == view.backend, "{ends}: {} answers, not {}", answer.server()?, view.backend);
        }
        Ok(())
    }

    fn check_transfer(&mut self) -> Result<()> {
        let status = self.transfer.wait(patience(Duration::from_secs(40)))?;
        let log = self.transfer.log();
        ensure!(status.success() && !log.contains("\"error\""), "iperf3 ended with {status}: {log}");
        Ok(())
    }

    /// Packets that a server gets in half a second.
    fn moving(&self) -> Result<u64> {
        let server = &self.topology.servers[0];
        let before = server.received_packets("eth0")?;
        sleep(Duration::from_millis(500));
        Ok(server.received_packets("eth0")? - before)
    }
}

/// Connections to both HTTP services of both families that have had an answer.
fn open(topology: &Topology, count: usize) -> Result<Vec<http::HttpConnection>> {
    let ends = [(Family::V4, HTTP_PORT), (Family::V4, FULL_NAT_HTTP_PORT)];
    let ends: Vec<_> = ends.into_iter().chain([(Family::V6, HTTP_PORT), (Family::V6, FULL_NAT_HTTP_PORT)]).collect();
    inside::run(&topology.client, move || {
        let one = |i: usize| {
            let (family, port) = ends[i % ends.len()];
            let mut connection = http::HttpConnection::open(SocketAddr::new(vip(family), port), TIMEOUT)?;
            connection.get("1k", false, TIMEOUT)?;
            Ok(connection)
        };
        (0..count).map(one).collect()
    })
}

/// SIGTERM, a while without a process, a new process.
fn goes_on(when_absent: &'static str) -> Result<()> {
    let linux = format!("[linux]\nwhen_absent = \"{when_absent}\"\nheartbeat_timeout = \"1s\"\n");
    let mut scene = Scene::start("", &linux)?;
    let before = scene.connections()?;
    let status = scene.hairpin.end(Signal::SIGTERM)?;
    ensure!(status.success(), "it ended with {status}: {}", scene.hairpin.logs());
    let moved = scene.moving()?;
    ensure!(moved > 100, "without a process a server got {moved} packets in half a second");
    // Beyond the heartbeat's timeout, too.
    sleep(Duration::from_millis(1500));
    let moved = scene.moving()?;
    ensure!(moved > 100, "two seconds after the end a server got {moved} packets in half a second");
    let to: SocketAddr = service("http4").listen().parse()?;
    let connect =
        inside::run(&scene.topology.client, move || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(2))))?;
    let kind = connect.err().context("a new connection was made without a process")?.kind();
    // Dropped, it waits in vain; left to the kernel, whose address it is and where no socket listens, it is refused.
    let expected =
        if when_absent == "drop" { std::io::ErrorKind::TimedOut } else { std::io::ErrorKind::ConnectionRefused };
    ensure!(kind == expected, "a new connection met {kind:?}, not {expected:?}");
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.check_adopted(&before)?;
    scene.check_idle(&before)?;
    scene.check_transfer()?;
    new_ones_work(&scene)
}

fn new_ones_work(scene: &Scene) -> Result<()> {
    open(&scene.topology, 8).map(drop).context("new connections")
}

/// Three workers after as many as there are cores, a smaller table; then one worker.
fn other_sizes() -> Result<()> {
    let mut scene = Scene::start("", "")?;
    for (workers, connections_max) in [(3, 200_000), (1, 64_000)] {
        // Taken before each restart: `check_idle` sends requests, which reset the idle times that `check_adopted` compares.
        let before = scene.connections()?;
        let options = HairpinOptions {
            top: format!("workers = {workers}"),
            tables: format!("[limits]\nconnections_max = {connections_max}\n"),
            ..scene.options.clone()
        };
        scene.hairpin.configure(&scene.topology, &services(), &options)?;
        scene.hairpin.end(Signal::SIGTERM)?;
        scene.hairpin.start_again(&scene.topology, &[]).with_context(|| format!("with {workers} workers"))?;
        let status = scene.hairpin.status()?;
        ensure!(status.workers.len() == workers, "{} workers, not {workers}", status.workers.len());
        let (_, room) = status.connections();
        ensure!(room <= connections_max + 64, "room for {room} connections, not {connections_max}");
        scene.check_adopted(&before).with_context(|| format!("with {workers} workers"))?;
        scene.check_idle(&before).with_context(|| format!("with {workers} workers"))?;
        new_ones_work(&scene)?;
    }
    scene.check_transfer()
}

/// An upgrade changes the number of workers under traffic: the connections go on, and the devices of surplus workers go.
fn upgraded_sizes() -> Result<()> {
    let mut scene = Scene::start("workers = 2", "")?;
    let before = scene.connections()?;
    let instance = scene.hairpin.instance().to_owned();
    for workers in [1, 3, 1] {
        let options = HairpinOptions { top: format!("workers = {workers}"), ..scene.options.clone() };
        scene.hairpin.configure(&scene.topology, &services(), &options)?;
        let program = hairpin_program()?;
        scene.hairpin.upgrade(&scene.topology, &program).with_context(|| format!("to {workers} workers"))?;
        let status = scene.hairpin.status()?;
        ensure!(status.workers.len() == workers, "{} workers, not {workers}", status.workers.len());
        let links = command::output(scene.topology.balancer.command("ip").args(["-brief", "link"]))?;
        let devices = links.lines().filter(|line| line.starts_with(&format!("hp-{instance}-"))).count();
        ensure!(devices == workers, "{devices} devices for {workers} workers: {links}");
        scene.check_idle(&before).with_context(|| format!("with {workers} workers"))?;
        new_ones_work(&scene)?;
    }
    scene.check_transfer()
}

/// A byte of the shared memory's header is another: it is not read, and both ways out work.
fn other_layout() -> Result<()> {
    let mut scene = Scene::start("", "")?;
    scene.transfer.signal(Signal::SIGTERM);
    scene.hairpin.end(Signal::SIGTERM)?;
    let files = remnants::memory(scene.hairpin.instance());
    let of = |end: &str| files.iter().find(|file| file.extension().is_some_and(|extension| extension == end));
    let (Some(file), Some(_), Some(_), 3) = (of("connections"), of("splices"), of("limits"), files.len()) else {
        bail!("the shared memory should be three files: {files:?}")
    };
    let memory = std::fs::OpenOptions::new().read(true).write(true).open(file)?;
    let mut header = [0; 16];
    memory.read_exact_at(&mut header, 0)?;
    // Behind the magic number stands the version of the layout.
    header[8] ^= 0x55;
    memory.write_all_at(&header, 0)?;
    let mut run = scene.topology.balancer.command("timeout");
    run.arg("20").arg(hairpin_program()?).args(["run", "-c"]).arg(scene.hairpin.file());
    let refused = command::output(&mut run).err().context("it was taken for its own")?;
    let refused = format!("{refused:#}");
    for part in ["--discard", "--flush"] {
        ensure!(refused.contains(part), "the refusal does not offer {part}: {refused}");
    }
    scene.hairpin.start_again(&scene.topology, &["--discard"])?;
    let status = scene.hairpin.status()?;
    ensure!(status.began == "fresh" && status.adopted_connections == 0, "it began as {:?}", status.began);
    let view = scene.hairpin.offload()?;
    ensure!(view.rules == [0, 0], "rules of before are left: {view:?}");
    new_ones_work(&scene)
}
