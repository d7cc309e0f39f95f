//! Direct server return: servers have the VIP and answer the client over a link of their own, past the balancer.

use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{echo, http, inside};
use hairpin_e2e::topology::{Cards, Family, SERVERS, Topology, TopologyOptions, client_address, end, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::json;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("direct: answers do not pass (gso)", || answers_pass_by(Cards::Gso, "")),
        test("direct: answers do not pass (wire)", || answers_pass_by(Cards::Wire, "")),
        test("direct: answers do not pass (software)", || answers_pass_by(Cards::Gso, NEVER)),
        test("direct: 200 clients and uploads (gso)", || load_and_uploads("")),
        test("direct: uploads (software)", || load_and_uploads(NEVER)),
        test("direct: datagrams", datagrams),
        test("direct: connections outlive kills and reloads", outlives),
        test("direct: a server without the VIP is down", without_vip),
        test("direct: a narrow link to a server is reported", narrow),
    ]
}

pub(crate) const NEVER: &str = "[offload]\npolicy = \"never\"\n";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Of an echo that is bound to the VIP: what it sends has its address.
pub(crate) const ECHO: u16 = 9007;

/// A network whose servers have the VIP. (Dropped in this order.)
struct Scene {
    hairpin: Hairpin,
    _servers: Servers,
    topology: Topology,
}

/// A link from each server to the client, and the VIP on its loopback device, about which it keeps silent.
pub(crate) fn prepare(topology: &Topology) -> Result<()> {
    for (number, server) in (1..).zip(&topology.servers) {
        let (v4, v6) = (format!("10.0.5{number}"), format!("fd00:5{number}:"));
        topology.client.script(&format!(
            "ip link add back{number} type veth peer name back netns {}\n\
             ip address add {v4}.1/24 dev back{number}\nip address add {v6}:1/64 dev back{number}\n\
             ip link set back{number} up\n",
            server.name()
        ))?;
        server.script(&format!(
            "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2\n\
             ip address add {v4}.2/24 dev back\nip address add {v6}:2/64 dev back\nip link set back up\n\
             ip route replace {}/32 via {v4}.1\nip -6 route replace {}/128 via {v6}:1\n",
            client_address(Family::V4),
            client_address(Family::V6)
        ))?;
        set_vips(topology, number, "add")?;
    }
    Ok(())
}

/// Gives a server the VIPs, or takes them away.
pub(crate) fn set_vips(topology: &Topology, server: usize, verb: &str) -> Result<()> {
    let [v4, v6] = [Family::V4, Family::V6].map(vip);
    let script = format!("ip address {verb} {v4}/32 dev lo\nip address {verb} {v6}/128 dev lo\n");
    topology.servers[server - 1].script(&script)?;
    Ok(())
}

pub(crate) fn services(tables: &str) -> Vec<PeerService> {
    let tcp = |name, family, port| PeerService { tables: tables.to_owned(), ..PeerService::tcp(name, family, port) };
    vec![
        tcp("http4", Family::V4, HTTP_PORT),
        tcp("http6", Family::V6, HTTP_PORT),
        PeerService { servers: vec![1], ..PeerService::tcp("iperf4", Family::V4, IPERF_PORTS[0]) },
        PeerService { servers: vec![1], ..PeerService::tcp("iperf6", Family::V6, IPERF_PORTS[0]) },
        PeerService::udp("echo4", Family::V4, ECHO),
        PeerService::udp("echo6", Family::V6, ECHO),
    ]
}

fn options(tables: &str) -> HairpinOptions {
    HairpinOptions { service: "mode = \"dsr\"".to_owned(), tables: tables.to_owned(), ..HairpinOptions::default() }
}

impl Scene {
    fn start(cards: Cards, tables: &str, of_services: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        prepare(&topology)?;
        let servers = Servers::start(&topology)?;
        let hairpin = Hairpin::start(&topology, &services(of_services), &options(tables))?;
        Ok(Scene { hairpin, _servers: servers, topology })
    }

    /// Packets that the balancer has received from all servers so far.
    fn answers_passed(&self) -> Result<u64> {
        let of = |number: usize| self.topology.balancer.received_packets(&format!("server{number}"));
        (1..=SERVERS).map(of).sum()
    }

    /// Connections that are offloaded, each by one rule.
    fn offloaded(&self) -> Result<u64> {
        let view = self.hairpin.offload()?;
        ensure!(view.rules.iter().sum::<u64>() == view.offloaded, "not one rule for each connection: {view:?}");
        Ok(view.offloaded)
    }

    fn await_state(&self, server: usize, state: &str) -> Result<()> {
        let (start, name) = (Instant::now(), format!("server{server}"));
        for service in ["http4", "http6"] {
            loop {
                let status = self.hairpin.status()?;
                let health = status.backend(service, &name).context("no such backend")?.health.clone();
                if health.state == state {
                    break;
                }
                ensure!(start.elapsed() < TIMEOUT, "{name} of {service} is not {state}: {health:?}");
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

fn answers_pass_by(cards: Cards, tables: &str) -> Result<()> {
    let scene = Scene::start(cards, tables, "")?;
    let expected = std::fs::read(scene.topology.scratch.file("pages/10m"))?;
    for family in [Family::V4, Family::V6] {
        let before = scene.answers_passed()?;
        for number in 0..4 {
            let target = end(vip(family), HTTP_PORT);
            let page = load::curl(&scene.topology.client, &scene.topology, &target, "10m", "page")?;
            ensure!(std::fs::read(&page.body)? == expected, "download {number} by {} is damaged", family.name());
            let seen = page.header("x-client").unwrap_or_default().to_owned();
            ensure!(seen == client_address(family).to_string(), "the server sees {seen}");
        }
        // Neighbours are asked for, and nothing else.
        let passed = scene.answers_passed()? - before;
        ensure!(passed < 100, "of four downloads of 10 MB by {} {passed} packets passed", family.name());
    }
    let offloaded = scene.offloaded()?;
    ensure!((offloaded > 0) == tables.is_empty(), "{offloaded} connections are offloaded");
    let connections = scene.hairpin.connections(&json!({}))?;
    ensure!(!connections.is_empty(), "no connection is listed");
    Ok(())
}

fn load_and_uploads(tables: &str) -> Result<()> {
    let scene = Scene::start(Cards::Gso, tables, "")?;
    for family in [Family::V4, Family::V6] {
        let options = IperfOptions { amount: Amount::Megabytes(100), streams: 4, reverse: false, udp_mbit_s: None };
        let up = load::iperf(&scene.topology, vip(family), IPERF_PORTS[0], &options)?;
        ensure!(up.bits_per_s > 0.0, "nothing arrived by {}", family.name());
        if tables.is_empty() {
            let wrk = WrkOptions { page: "1k", connections: 200, duration: Duration::from_secs(2), close: false };
            let found = load::wrk(&scene.topology, &[end(vip(family), HTTP_PORT)], &wrk)?;
            ensure!(found.requests > 0 && found.errors == 0, "{found:?}");
        }
    }
    Ok(())
}

/// An echo on the VIPs of a server.
pub(crate) fn start_echoes(topology: &Topology, done: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<Result<u64>>> {
    let ends = [Family::V4, Family::V6].map(|family| SocketAddr::new(vip(family), ECHO));
    let start = |server, end: SocketAddr| {
        let done = Arc::clone(done);
        inside::spawn(server, None, move || {
            let socket = UdpSocket::bind(end)?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            let (mut bytes, mut answered) = ([0; 2048], 0);
            while !done.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut bytes) {
                    socket.send_to(&bytes[..length], from)?;
                    answered += 1;
                }
            }
            Ok(answered)
        })
    };
    topology.servers.iter().flat_map(|server| ends.map(|end| start(server, end))).collect()
}

fn datagrams() -> Result<()> {
    let scene = Scene::start(Cards::Gso, "", "")?;
    let done = Arc::new(AtomicBool::new(false));
    let echoes = start_echoes(&scene.topology, &done);
    sleep(Duration::from_millis(200));
    let mut all = Vec::new();
    for family in [Family::V4, Family::V6] {
        let to = SocketAddr::new(vip(family), ECHO);
        all.push(echo::ask(&scene.topology.client, &[to], 0, 40, 100, Duration::from_secs(1))?);
    }
    done.store(true, Ordering::Relaxed);
    let answered: Vec<u64> = echoes.into_iter().map(inside::join).collect::<Result<_>>()?;
    for asked in &all {
        ensure!(asked.answered > 80 && asked.lost == 0 && asked.wrong == 0, "{asked:?}");
    }
    ensure!(answered.iter().all(|&count| count > 0), "the servers have answered {answered:?}");
    ensure!(scene.offloaded()? > 0, "no flow of datagrams is offloaded");
    Ok(())
}

/// Idle connections, each with its server and the number that it has there.
pub(crate) type Open = Vec<(http::HttpConnection, String)>;

pub(crate) fn open(topology: &Topology) -> Result<Open> {
    let ends = [Family::V4, Family::V6].map(|family| SocketAddr::new(vip(family), HTTP_PORT));
    inside::run(&topology.client, move || {
        let one = |number: usize| {
            let mut connection = http::HttpConnection::open(ends[number % 2], TIMEOUT)?;
            // Enough packets for a rule.
            let mut server = String::new();
            for _ in 0..6 {
                server = connection.get("1k", false, TIMEOUT)?.server()?.to_owned();
            }
            Ok((connection, server))
        };
        (0..40).map(one).collect()
    })
}

pub(crate) fn check(open: &mut Open, when: &str) -> Result<()> {
    for (number, (connection, server)) in open.iter_mut().enumerate() {
        let answer = connection.get("1k", false, TIMEOUT).with_context(|| format!("connection {number} {when}"))?;
        ensure!(answer.server()? == server, "{when} {} answers, not {server}", answer.server()?);
    }
    Ok(())
}

fn outlives() -> Result<()> {
    let mut scene = Scene::start(Cards::Gso, "", "")?;
    let mut open = open(&scene.topology)?;
    let offloaded = scene.offloaded()?;
    ensure!(offloaded >= 40, "{offloaded} of 40 connections are offloaded");
    scene.hairpin.end(Signal::SIGKILL)?;
    check(&mut open, "without a process")?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    check(&mut open, "after a kill")?;
    ensure!(scene.offloaded()? >= 40, "not all are offloaded after a kill");
    let fewer: Vec<PeerService> = services("").into_iter().take(3).collect();
    scene.hairpin.configure(&scene.topology, &fewer, &options(""))?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    check(&mut open, "after a reload")?;
    // Without any such service the program for checks goes, and what is open stays.
    let one = PeerService::tcp("other", Family::V4, 8080);
    scene.hairpin.configure(&scene.topology, &[one], &HairpinOptions::default())?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    check(&mut open, "after their services have gone")
}

fn without_vip() -> Result<()> {
    let checks = "[service.health]\ncheck = \"http\"\npath = \"/health\"\ninterval = \"200ms\"\ntimeout = \"150ms\"\n\
                  fall = 2\nrise = 1\n";
    let scene = Scene::start(Cards::Gso, "", checks)?;
    (1..=SERVERS).try_for_each(|server| scene.await_state(server, "up"))?;
    set_vips(&scene.topology, 2, "del")?;
    scene.await_state(2, "down")?;
    (1..=SERVERS).filter(|&server| server != 2).try_for_each(|server| scene.await_state(server, "up"))?;
    for number in 0..12 {
        let target = end(vip(Family::V4), HTTP_PORT);
        let page = load::curl(&scene.topology.client, &scene.topology, &target, "1k", "page")?;
        ensure!(page.header("x-server") != Some("server2"), "request {number} went to server2");
    }
    set_vips(&scene.topology, 2, "add")?;
    scene.await_state(2, "up")
}

/// The balancer tells the client how long its packets may be, as it does for other services.
fn narrow() -> Result<()> {
    for tables in ["", NEVER] {
        let scene = Scene::start(Cards::Gso, tables, "")?;
        scene.topology.set_mtu(&scene.topology.balancer, "server1", 1400)?;
        for family in [Family::V4, Family::V6] {
            let options = IperfOptions { amount: Amount::Megabytes(20), streams: 1, reverse: false, udp_mbit_s: None };
            load::iperf(&scene.topology, vip(family), IPERF_PORTS[0], &options)?;
            let option = if family == Family::V4 { "-4" } else { "-6" };
            let learnt = scene.topology.client.script(&format!("ip {option} route get {}\n", vip(family)))?;
            ensure!(learnt.contains("mtu 1400"), "the client has learnt nothing: {learnt}");
        }
    }
    Ok(())
}
