//! Limits of clients: exact over all workers and runtimes, and not begun anew by reloads, upgrades and crashes.

use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol, rebuilt_program};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, Servers};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, client_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("limits: requests over two workers, through a reload", || exact(WEB)),
        test("limits: requests over two runtimes, through a reload", || exact(ENDED)),
        test("limits: clients are remembered by the next process", remembered),
        test("limits: a dry run, and requests that get no answer", others),
        test("limits: connections at a time, through a crash (tcp)", || held(FEW)),
        test("limits: connections at a time, through a crash (http)", || held(FEW_HTTP)),
        test("limits: connections at a time, with runtimes", || held(FEW_ENDED)),
        test("limits: connections that begin, and flows of udp", begins),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(10);
/// A spliced service, and one whose connections end at the host's sockets.
const WEB: (&str, u16) = ("web", 80);
const ENDED: (&str, u16) = ("ended", 81);
/// One whose limit takes an hour to come back.
const SLOW: (&str, u16) = ("slow", 82);
const DRY: (&str, u16) = ("dry", 83);
const SILENT: (&str, u16) = ("silent", 84);
/// Services on which a client may have 5 connections at a time.
const FEW: (&str, u16) = ("few", 85);
const FEW_HTTP: (&str, u16) = ("few-http", 86);
const FEW_ENDED: (&str, u16) = ("few-ended", 87);
/// One on which a client may begin 3 connections in an hour, and one on which it may have 2 flows.
const SLOWLY: (&str, u16) = ("slowly", 88);
const FLOWS: (&str, u16) = ("flows", ECHO_PORT);
const RATE: u32 = 200;
const BURST: u32 = 100;
/// What [`SLOW`] admits.
const SLOW_MOST: usize = 30;

fn service((name, port): (&'static str, u16), limit: &str) -> PeerService {
    let tables = format!("[[service.limit]]\n{limit}\n");
    PeerService { server_port: HTTP_PORT, tables, ..PeerService::http(name, port) }
}

fn service_by_tcp((name, port): (&'static str, u16), limit: &str) -> PeerService {
    PeerService { transport: TransportProtocol::Tcp, ..service((name, port), limit) }
}

/// All services; `dry`: what the limit of [`DRY`] admits in an hour.
fn services(dry: u32) -> Vec<PeerService> {
    let fast = format!("requests = {RATE}\nburst = {BURST}\n");
    vec![
        service(WEB, &fast),
        service(ENDED, &format!("{fast}[service.http]\nhttp2 = true\n")),
        service(SLOW, &format!("requests = {SLOW_MOST}\nwithin = \"1h\"\nipv4_prefix = 32\n")),
        service(DRY, &format!("requests = {dry}\nwithin = \"1h\"\ndry_run = true\n")),
        service_by_tcp(FEW, "concurrent = 5"),
        service(FEW_HTTP, "concurrent = 5"),
        service(FEW_ENDED, "concurrent = 5\n[service.http]\nhttp2 = true\n"),
        service_by_tcp(SLOWLY, "connections = 3\nwithin = \"1h\""),
        PeerService {
            tables: "[[service.limit]]\nconcurrent = 2\n".into(),
            ..PeerService::udp(FLOWS.0, Family::V4, FLOWS.1)
        },
        service(SILENT, "requests = 2\nwithin = \"1h\"\naction = \"drop\"\n"),
    ]
}

struct Scene {
    hairpin: Hairpin,
    options: HairpinOptions,
    _servers: Servers,
    topology: Topology,
}

impl Scene {
    fn start() -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let interface = topology.client.interfaces()?.into_iter().find(|name| name != "lo").context("no interface")?;
        topology.client.script(&format!("ip addr add {}/24 dev {interface}", other_address()))?;
        let servers = Servers::start(&topology)?;
        let options = HairpinOptions { top: "workers = 2".into(), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services(10), &options)?;
        Ok(Scene { hairpin, options, _servers: servers, topology })
    }

    fn reload(&self, services: &[PeerService]) -> Result<()> {
        self.hairpin.configure(&self.topology, services, &self.options)?;
        self.hairpin.tell(&self.topology, &["reload"])?;
        Ok(())
    }

    /// Statuses of so many requests, on as many connections as `connections` says.
    fn statuses(&self, port: u16, from: IpAddr, (connections, each): (usize, usize)) -> Result<Vec<u16>> {
        inside::run(&self.topology.client, move || {
            let mut statuses = Vec::new();
            for _ in 0..connections {
                let mut connection = open(from, port)?;
                for _ in 0..each {
                    statuses.push(asked(&mut connection)?);
                }
            }
            Ok(statuses)
        })
    }

    /// What the limit of a service has admitted, refused, and would have refused.
    fn decided(&self, service: &str) -> Result<[u64; 3]> {
        // Counters are published a few times a second.
        sleep(Duration::from_millis(1500));
        let status = self.hairpin.status()?;
        let limits = &status.service(service).context("no such service in the status")?.limits;
        let limit = limits.first().context("no limit in the status")?;
        Ok([limit.admitted_total, limit.refused_total, limit.would_refuse_total])
    }
}

/// The client's second address.
fn other_address() -> IpAddr {
    IpAddr::from([10, 0, 0, 77])
}

fn open(from: IpAddr, port: u16) -> Result<HttpConnection> {
    let to = SocketAddr::new(vip(Family::V4), port);
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), TIMEOUT).context("connect")?;
    HttpConnection::over(socket.into())
}

/// The status of a request; one that is refused says when to come again.
fn asked(connection: &mut HttpConnection) -> Result<u16> {
    let answer = connection.get("1k", false, TIMEOUT)?;
    if answer.status == 429 {
        let wait: u64 = answer.header("Retry-After").context("no Retry-After")?.parse()?;
        ensure!((1..=3600).contains(&wait), "Retry-After: {wait}");
    }
    Ok(answer.status)
}

/// Asks without pause on 8 connections until `until`: how many requests were admitted, and how many refused.
fn load(client: &Namespace, port: u16, until: Instant) -> Result<[u64; 2]> {
    let clients: Vec<_> = (0..8)
        .map(|_| {
            inside::spawn(client, None, move || {
                let mut counts = [0; 2];
                let mut connection = open(client_address(Family::V4), port)?;
                while Instant::now() < until {
                    match asked(&mut connection)? {
                        200 => counts[0] += 1,
                        429 => counts[1] += 1,
                        status => anyhow::bail!("status {status}"),
                    }
                }
                Ok(counts)
            })
        })
        .collect();
    let mut sum = [0; 2];
    for client in clients {
        let counts: [u64; 2] = inside::join(client)?;
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    Ok(sum)
}

/// A client that always asks has what the limit admits, within 5 %, though the configuration changes meanwhile.
fn exact((name, port): (&str, u16)) -> Result<()> {
    const LASTS: Duration = Duration::from_secs(6);
    let scene = Scene::start()?;
    let begun = Instant::now();
    let counted = std::thread::scope(|scope| {
        let client = &scene.topology.client;
        let load = scope.spawn(move || load(client, port, begun + LASTS));
        sleep(LASTS / 2);
        // A limit stays the same, and another one changes.
        scene.reload(&services(20))?;
        load.join().expect("the clients' thread has ended in order")
    })?;
    let [admitted, refused] = counted;
    let expected = f64::from(BURST) + f64::from(RATE) * begun.elapsed().as_secs_f64();
    let ratio = admitted as f64 / expected;
    ensure!((0.95..=1.05).contains(&ratio), "{admitted} admitted of {expected:.0}, {refused} refused");
    ensure!(refused > 100, "{admitted} admitted, but only {refused} refused: the client has not asked enough");
    let decided = scene.decided(name)?;
    ensure!(decided == [admitted, refused, 0], "the client counts {admitted} and {refused}, the status {decided:?}");
    // Another client has a limit of its own.
    let statuses = scene.statuses(port, other_address(), (4, 10))?;
    ensure!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let workers = scene.hairpin.status()?.workers.len();
    ensure!(workers == 2, "{workers} workers");
    ensure!(scene.hairpin.status_table()?.contains("LIMITED"), "the table does not show limits");
    Ok(())
}

/// Who has used up a limit has no more of it after a reload, an upgrade and a crash.
fn remembered() -> Result<()> {
    let mut scene = Scene::start()?;
    let (client, port) = (client_address(Family::V4), SLOW.1);
    let statuses = scene.statuses(port, client, (5, 8))?;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    ensure!(admitted == SLOW_MOST && statuses[..SLOW_MOST].iter().all(|status| *status == 200), "{statuses:?}");
    let still = |scene: &Scene, after: &str| {
        let statuses = scene.statuses(port, client, (4, 2))?;
        ensure!(statuses.iter().all(|status| *status == 429), "after {after}: {statuses:?}");
        Ok(())
    };
    scene.reload(&services(20))?;
    still(&scene, "a reload")?;
    let program = rebuilt_program(&scene.topology, 1)?;
    scene.hairpin.upgrade(&scene.topology, &program)?;
    still(&scene, "an upgrade")?;
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    still(&scene, "a crash")?;
    let statuses = scene.statuses(port, other_address(), (1, 3))?;
    ensure!(statuses == [200; 3], "{statuses:?}");
    Ok(())
}

fn others() -> Result<()> {
    let scene = Scene::start()?;
    let client = client_address(Family::V4);
    let statuses = scene.statuses(DRY.1, client, (3, 5))?;
    ensure!(statuses == [200; 15], "{statuses:?}");
    let decided = scene.decided(DRY.0)?;
    ensure!(decided == [10, 0, 5], "{decided:?}");
    let error = scene.statuses(SILENT.1, client, (1, 3)).err().context("the third request was answered")?;
    ensure!(format!("{error:#}").to_lowercase().contains("reset"), "{error:#}");
    let decided = scene.decided(SILENT.0)?;
    ensure!(decided == [2, 1, 0], "{decided:?}");
    Ok(())
}

/// What a client may have at a time on the services for that.
const FEW_MOST: usize = 5;

impl Scene {
    /// Connects, and gets a page. `None`: the connection is refused.
    fn page(&self, port: u16) -> Result<Option<HttpConnection>> {
        inside::run(&self.topology.client, move || {
            let got = open(client_address(Family::V4), port).and_then(|mut connection| {
                let answer = connection.get("1k", false, TIMEOUT)?;
                ensure!(answer.status == 200, "status {}", answer.status);
                Ok(connection)
            });
            match got {
                Ok(connection) => Ok(Some(connection)),
                Err(error) if is_refusal(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

/// Whether a connection was answered with RST, at its beginning or at its first data.
fn is_refusal(error: &anyhow::Error) -> bool {
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
    matches!(kind, Some(ConnectionRefused | ConnectionReset | BrokenPipe))
}

/// A client has as many connections as it may. They are counted by the next process as well, whichever way the one before has ended.
fn held((name, port): (&str, u16)) -> Result<()> {
    let mut scene = Scene::start()?;
    let mut connections = Vec::new();
    for number in 0..FEW_MOST {
        connections.push(scene.page(port)?.with_context(|| format!("connection {number} is refused"))?);
    }
    let full = |scene: &Scene, when: &str| {
        ensure!(scene.page(port)?.is_none(), "{when}: a connection beyond the limit");
        Ok(())
    };
    full(&scene, "at first")?;
    scene.reload(&services(20))?;
    full(&scene, "after a reload")?;
    let decided = scene.decided(name)?;
    ensure!(decided == [FEW_MOST as u64, 2, 0], "{decided:?}");
    let ends_here = name == FEW_ENDED.0;
    if !ends_here {
        let program = rebuilt_program(&scene.topology, 1)?;
        scene.hairpin.upgrade(&scene.topology, &program)?;
        full(&scene, "after an upgrade")?;
    }
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    if ends_here {
        // The kernel has reset them with their process.
        connections.clear();
        for number in 0..FEW_MOST {
            connections
                .push(scene.page(port)?.with_context(|| format!("after a crash, connection {number} is refused"))?);
        }
    }
    full(&scene, "after a crash")?;
    for connection in &mut connections {
        ensure!(connection.get("1k", false, TIMEOUT)?.status == 200, "a connection that is counted is of no use");
    }
    // Each that ends makes room for another one.
    drop(connections.split_off(3));
    sleep(Duration::from_millis(1000));
    for _ in 0..2 {
        connections.push(scene.page(port)?.context("refused, though two have ended")?);
    }
    full(&scene, "after others have ended")
}

fn begins() -> Result<()> {
    let mut scene = Scene::start()?;
    for number in 0..3 {
        ensure!(scene.page(SLOWLY.1)?.is_some(), "connection {number} is refused");
    }
    ensure!(scene.page(SLOWLY.1)?.is_none(), "a fourth connection");
    let echoed = |from: IpAddr| -> Result<bool> {
        inside::run(&scene.topology.client, move || {
            let socket = UdpSocket::bind((from, 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            socket.connect((vip(Family::V4), FLOWS.1))?;
            socket.send(b"hello")?;
            Ok(socket.recv(&mut [0; 64]).is_ok())
        })
    };
    let own = client_address(Family::V4);
    ensure!([echoed(own)?, echoed(own)?, echoed(own)?] == [true, true, false], "flows of one client");
    ensure!(echoed(other_address())?, "a flow of another client");
    let decided = scene.decided(FLOWS.0)?;
    ensure!(decided == [3, 1, 0], "{decided:?}");
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    ensure!(scene.page(SLOWLY.1)?.is_none(), "a fourth connection after a crash");
    Ok(())
}
