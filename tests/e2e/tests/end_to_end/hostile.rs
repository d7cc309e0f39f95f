//! A flood of unsolicited frames: Hairpin lives, counts them, keeps its tables bounded, and serves on.

use super::network::{ATTACH_XDP, service};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load;
use hairpin_e2e::peer::status::Status;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::flood;
use hairpin_e2e::tool::frames::LinkEnds;
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        // The flood fills these tables: what is established goes on, and when the flood ends there is room again.
        super::lane::alone("hostile flood, small tables", || hostile(20_000, false)),
        // It cannot fill these: new connections of services it does not aim at are made under it.
        super::lane::alone("hostile flood, large tables", || hostile(500_000, true)),
        super::lane::alone("hostile flood of SYNs at an HTTP service", || syns(Cards::Gso)),
        super::lane::alone("hostile flood of SYNs at an HTTP service (xdp)", || syns(Cards::Xdp)),
        super::lane::alone("hostile flood of SYNs, set up in the engine", half_open_in_engine),
        super::lane::alone("hostile clients that open too many, set up in the engine", too_many_in_engine),
        super::lane::alone("hostile clients that use a port twice at one backend", ports_used_twice),
    ]
}

const SET_UP: &str = "[offload]\nset_up = \"engine\"\n";

/// Services that the BPF programs set connections up for: none shares a server with another.
fn of_engine() -> [PeerService; 2] {
    [("http4", Family::V4), ("http6", Family::V6)]
        .map(|(name, family)| PeerService { balance: "maglev", ..PeerService::tcp(name, family, HTTP_PORT) })
}

/// What is half-open stays with the programs and turns over there: the table has none of it, and what is established goes on.
fn half_open_in_engine() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let tables = format!("[limits]\nconnections_max = 20000\n{TIMEOUTS}{SET_UP}");
    let options = HairpinOptions { more_interfaces: vec!["flood0"], tables, ..HairpinOptions::default() };
    let services = of_engine();
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let result = half_open(&topology, &hairpin, &services).and_then(|()| hairpin.process().check());
    result.with_context(|| hairpin.status_table().unwrap_or_default())
}

fn half_open(topology: &Topology, hairpin: &Hairpin, services: &[PeerService]) -> Result<()> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let targets: Vec<SocketAddr> = services.iter().map(|of| SocketAddr::new(vip(of.family), of.port)).collect();
    let body = topology.scratch.file("established");
    let mut established = slow_download(topology, &services[0].listen(), &body)?;
    std::thread::sleep(Duration::from_millis(300));
    let flood = flood::syns(&topology.flooder, "eth0", link, &targets, 100_000, &[0, 1], 50_000);
    std::thread::sleep(Duration::from_secs(2));
    let (connections, room) = hairpin.status()?.connections();
    let rate = flood.stop()?;
    let ended = established.wait(Duration::from_secs(30))?;
    ensure!(ended.success(), "the established transfer failed: {}", established.log());
    same(topology, &body).context("established before the flood")?;
    std::thread::sleep(Duration::from_millis(1500));
    let Status { events, drops, .. } = hairpin.status()?;
    let begun = events.get("kernel.set-up-begun").map_or(0, |count| count.total);
    let policed = drops.get("kernel.policed-client").map_or(0, |count| count.total);
    // An emulated machine sends a thirtieth of what it is to.
    let least = (rate as u64).min(20_000);
    ensure!(begun + policed > least, "{rate:.0} SYNs a second, {begun} began and {policed} were dropped: {events:?}");
    ensure!(connections * 10 < room, "{connections} connections in a table of {room}, {begun} begun: {events:?}");
    println!(
        "{rate:.0} SYNs a second for two seconds: {begun} half-open in the engine, {policed} dropped by the policer, \
         {connections} of {room} places of the table taken"
    );
    for service in services {
        let page = load::curl(&topology.client, topology, &service.listen(), "10m", "after").context("after")?;
        same(topology, &page.body)?;
    }
    Ok(())
}

/// More clients complete their handshakes than the table has room for: those that had room are served, and the table holds no
/// more than it is to.
fn too_many_in_engine() -> Result<()> {
    const ROOM: usize = 1024;
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let options = HairpinOptions {
        top: "workers = 1".to_owned(),
        tables: format!("[limits]\nconnections_max = {ROOM}\n{SET_UP}"),
        ..HairpinOptions::default()
    };
    let services = of_engine();
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let to: SocketAddr = services[0].listen().parse()?;
    let held = inside::run(&topology.client, move || {
        let wait = Duration::from_secs(10);
        let early = (0..64).map(|_| http::HttpConnection::open(to, wait)).collect::<Result<Vec<_>>>()?;
        // Beyond the room none is answered: a few are enough to show it.
        let short = Duration::from_millis(20);
        let rest: Vec<_> = (0..ROOM + 200).filter_map(|_| http::HttpConnection::open(to, short).ok()).collect();
        Ok((early, rest))
    });
    let (mut early, rest) = held?;
    ensure!(rest.len() + early.len() < ROOM + 200, "all of {} clients are connected", rest.len() + early.len());
    let status = hairpin.status()?;
    let (connections, room) = status.connections();
    ensure!(connections <= room && room <= ROOM as u64 + 64, "{connections} connections in a table of {room}");
    ensure!(connections >= 900, "{connections} connections, and {} clients", rest.len());
    println!(
        "{} clients that complete their handshakes: {} were answered, {connections} of {room} places of the table taken",
        ROOM + 264,
        rest.len() + early.len()
    );
    for connection in &mut early {
        connection.get("1k", false, Duration::from_secs(10)).context("a client that was there early")?;
    }
    drop((early, rest));
    std::thread::sleep(Duration::from_secs(7));
    let page = load::curl(&topology.client, &topology, &services[0].listen(), "10m", "after").context("after")?;
    same(&topology, &page.body)?;
    hairpin.process().check()
}

/// Two services share one backend, and clients call both from one port: the second connections have no way, and take neither
/// room nor the first ones' packets.
fn ports_used_twice() -> Result<()> {
    const CLIENTS: u16 = 300;
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let options =
        HairpinOptions { tables: format!("[limits]\nconnections_max = 4096\n{SET_UP}"), ..HairpinOptions::default() };
    let one = |name, port| PeerService {
        server_port: HTTP_PORT,
        servers: vec![1],
        balance: "maglev",
        ..PeerService::tcp(name, Family::V4, port)
    };
    let services = [one("first", HTTP_PORT), one("second", 8081)];
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let [first, second] = services.map(|service| SocketAddr::new(vip(service.family), service.port));
    let held = inside::run(&topology.client, move || {
        let from = |port: u16, to: SocketAddr| -> Result<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())?;
            socket.set_nonblocking(true)?;
            match socket.connect(&to.into()) {
                Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error.into()),
                _ => Ok(socket),
            }
        };
        let ports = 20_000..20_000 + CLIENTS;
        let firsts = ports.clone().map(|port| from(port, first)).collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_secs(1));
        let seconds = ports.map(|port| from(port, second)).collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_secs(2));
        Ok((firsts, seconds))
    });
    let (firsts, seconds) = held?;
    let status = hairpin.status()?;
    let (connections, _) = status.connections();
    ensure!(connections == u64::from(CLIENTS), "{connections} connections of {CLIENTS} that have a way");
    let refused = status.drops.get("worker.tuple-conflict").map_or(0, |count| count.total);
    ensure!(refused >= u64::from(CLIENTS), "{refused} conflicts: {:?}", status.drops);
    println!("{CLIENTS} clients that use a port twice: {refused} SYNs dropped, {connections} connections in the table");
    drop(seconds);
    for mut socket in firsts {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.write_all(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n").context("a first connection")?;
        let mut status = [0; 12];
        socket.read_exact(&mut status).context("a first connection")?;
        ensure!(&status == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&status));
    }
    hairpin.process().check()
}

/// How long half-open connections live here.
const TIMEOUTS: &str = "[timeouts]\ntcp_handshake = \"2s\"\nudp_new = \"2s\"\nudp_established = \"2s\"\n";

fn hostile(connections_max: u64, new_connections: bool) -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let options = HairpinOptions {
        more_interfaces: vec!["flood0"],
        tables: format!("[limits]\nconnections_max = {connections_max}\n{TIMEOUTS}"),
        ..HairpinOptions::default()
    };
    let mut hairpin = Hairpin::start(&topology, &super::network::services(), &options)?;
    let result = floods(&topology, &hairpin, connections_max, new_connections)
        .and_then(|()| hairpin.process().check())
        .and_then(|()| afterwards(&topology, &hairpin));
    result.with_context(|| hairpin.status_table().unwrap_or_default())
}

/// Cookies answer for the kernel: no worker hears of the flood, nothing is kept of it, and clients are served beside it. With
/// cards for XDP they are sent from there.
fn syns(cards: Cards) -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
    let _servers = Servers::start(&topology)?;
    let tables = if cards == Cards::Xdp { ATTACH_XDP } else { "" }.to_owned();
    let options = HairpinOptions { more_interfaces: vec!["flood0"], tables, ..HairpinOptions::default() };
    let web = [PeerService::http("web", 80), PeerService { family: Family::V6, ..PeerService::http("web6", 80) }];
    let mut hairpin = Hairpin::start(&topology, &web, &options)?;
    let result = syns_at(&topology, &hairpin, &web, cards).and_then(|()| hairpin.process().check());
    result.with_context(|| hairpin.status_table().unwrap_or_default())
}

fn syns_at(topology: &Topology, hairpin: &Hairpin, web: &[PeerService], cards: Cards) -> Result<()> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let targets: Vec<SocketAddr> = web.iter().map(|web| SocketAddr::new(vip(web.family), web.port)).collect();
    let before = hairpin.status()?;
    let flood = flood::syns(&topology.flooder, "eth0", link, &targets, 100_000, &[0, 1], 50_000);
    std::thread::sleep(Duration::from_secs(1));
    for web in web {
        let page =
            load::curl(&topology.client, topology, &web.listen(), "10m", "flooded").context("under the flood")?;
        same(topology, &page.body)?;
    }
    let rate = flood.stop()?;
    let status = hairpin.status()?;
    let counted = |status: &Status, event: &str| status.events.get(event).map_or(0, |count| count.total);
    let answered = counted(&status, "kernel.cookie-sent") - counted(&before, "kernel.cookie-sent");
    let by_xdp = counted(&status, "kernel.xdp-sent") - counted(&before, "kernel.xdp-sent");
    ensure!((cards == Cards::Xdp) == (by_xdp >= answered), "{answered} cookies, {by_xdp} packets sent from XDP");
    ensure!(answered > 5000, "{rate:.0} SYNs a second, and {answered} cookies of the kernel: {:?}", status.events);
    let http = status.http.as_ref().context("no HTTP in status")?;
    ensure!(http.clients <= 2, "{} connections of {answered} SYNs", http.clients);
    ensure!(http.cookies_sent_total == 0, "workers sent {} cookies", http.cookies_sent_total);
    println!("{rate:.0} SYNs a second at an HTTP service: {answered} cookies by the kernel, none by a worker");
    Ok(())
}

fn same(topology: &Topology, body: &Path) -> Result<()> {
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
    ensure!(std::fs::read(body)? == sent, "10 MB arrived changed");
    Ok(())
}

/// Of 10 MB, in some three seconds.
fn slow_download(topology: &Topology, target: &str, body: &Path) -> Result<Process> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", "--limit-rate", "3M", "--output"]);
    curl.arg(body).arg(format!("http://{target}/10m"));
    topology.client.start(curl, &topology.scratch.file("established.log"))
}

fn floods(topology: &Topology, hairpin: &Hairpin, connections_max: u64, new_connections: bool) -> Result<()> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let target = service("http4").listen();
    for seed in 1..=2 {
        // Established before the flood: it takes some three seconds.
        let body = topology.scratch.file("established");
        let mut established = slow_download(topology, &target, &body)?;
        std::thread::sleep(Duration::from_millis(300));
        let flood = flood::start(
            (&topology.flooder, "eth0"),
            link,
            (flood::FloodKind::Mixed, &flood::usual_targets()),
            seed,
            &[0, 1],
            None,
        );
        std::thread::sleep(Duration::from_secs(2));
        if new_connections {
            let other = service("full-http4").listen();
            let page = load::curl(&topology.client, topology, &other, "10m", "new").context("new, under the flood")?;
            same(topology, &page.body)?;
        }
        let rate = flood.stop()?;
        let ended = established.wait(Duration::from_secs(30))?;
        ensure!(ended.success(), "the established transfer failed: {}", established.log());
        same(topology, &body).context("established before the flood")?;
        let status = hairpin.status()?;
        let (connections, room) = status.connections();
        ensure!(room <= connections_max + 64, "tables hold {room} connections");
        ensure!(connections <= room, "{connections} connections of {room}");
        let dropped: u64 = status.drops.values().map(|count| count.total).sum();
        ensure!(dropped > 1000, "{rate:.0} frames a second, and {dropped} drops counted: {:?}", status.drops);
        ensure!(status.drops.len() >= 3, "drops of so few kinds: {:?}", status.drops);
        println!(
            "{rate:.0} frames of all kinds a second: {dropped} dropped, {connections} of {room} places of the table taken"
        );
        // Until what the flood left has timed out; with small tables there is no room before.
        std::thread::sleep(Duration::from_secs(5));
    }
    Ok(())
}

fn afterwards(topology: &Topology, hairpin: &Hairpin) -> Result<()> {
    let page = load::curl(&topology.client, topology, &service("http4").listen(), "10m", "after").context("after")?;
    same(topology, &page.body)?;
    let (connections, _) = hairpin.status()?.connections();
    // SYNs with data, or whose server answered and got an ACK by chance, are established; of others nothing is left.
    ensure!(connections < 100, "{connections} connections are left of the floods");
    Ok(())
}
