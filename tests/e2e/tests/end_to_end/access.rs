//! Access rules of TCP and UDP services, with clients at two addresses.

use crate::network::{ATTACH_XDP, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, Servers};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, client_address, vip};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("access: a refused client, set-up by workers (gso)", || refuses(Cards::Gso, "")),
        test("access: a refused client, set-up by workers (xdp)", || refuses(Cards::Xdp, "")),
        test("access: a refused client, set-up by programs (gso)", || refuses(Cards::Gso, ENGINE)),
        test("access: a refused client, set-up by programs (xdp)", || refuses(Cards::Xdp, ENGINE)),
        test("access: reloads of 100,000 networks under traffic", reloads),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client waits that gets no answer.
const SILENCE: Duration = Duration::from_millis(1500);
const ENGINE: &str = "[offload]\nset_up = \"engine\"\n";
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The client's second address, which rules refuse.
fn refused_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => "10.0.0.77".parse().expect("an address"),
        Family::V6 => "fd00::77".parse().expect("an address"),
    }
}

struct Scene {
    hairpin: Hairpin,
    options: HairpinOptions,
    _servers: Servers,
    topology: Topology,
}

fn services() -> Vec<PeerService> {
    let of = |family, [http, echo]: [&'static str; 2]| {
        [PeerService::tcp(http, family, HTTP_PORT), PeerService::udp(echo, family, ECHO_PORT)]
    };
    [of(Family::V4, ["http4", "echo4"]), of(Family::V6, ["http6", "echo6"])].concat()
}

/// The services with a rule that counts all clients, and one that refuses those of the file.
fn guarded(topology: &Topology) -> Vec<PeerService> {
    let file = topology.scratch.file("refused.txt");
    let rules = format!(
        "[[service.access]]\naction = \"count\"\n[[service.access]]\naction = \"deny\"\nclient_file = {file:?}\n"
    );
    services().into_iter().map(|service| PeerService { tables: rules.clone(), ..service }).collect()
}

impl Scene {
    fn start(cards: Cards, tables: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        for family in FAMILIES {
            let length = if family == Family::V4 { "24" } else { "64 nodad" };
            let interface =
                topology.client.interfaces()?.into_iter().find(|name| name != "lo").context("no interface")?;
            topology.client.script(&format!("ip addr add {}/{length} dev {interface}", refused_address(family)))?;
        }
        let servers = Servers::start(&topology)?;
        refuse(&topology, &FAMILIES.map(refused_address), 0)?;
        let attach = if cards == Cards::Xdp { ATTACH_XDP } else { "" };
        let options = HairpinOptions { tables: format!("{tables}{attach}"), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &guarded(&topology), &options)?;
        Ok(Scene { hairpin, options, _servers: servers, topology })
    }

    fn reload(&self, services: &[PeerService]) -> Result<Duration> {
        self.hairpin.configure(&self.topology, services, &self.options)?;
        let begun = Instant::now();
        self.hairpin.tell(&self.topology, &["reload"])?;
        Ok(begun.elapsed())
    }

    /// Packets that each rule of a service has judged.
    fn judged(&self, service: &str) -> Result<[u64; 2]> {
        let status = self.hairpin.status()?;
        let service = status.service(service).context("no such service in the status")?;
        let packets =
            |number: u16| service.access.iter().find(|rule| rule.rule == number).map(|rule| rule.packets_total);
        Ok([packets(1).context("no rule 1")?, packets(2).context("no rule 2")?])
    }
}

/// Writes the file of refused networks: these addresses, and so many networks of others.
fn refuse(topology: &Topology, addresses: &[IpAddr], others: u32) -> Result<()> {
    let mut text = "# refused\n".to_string();
    for address in addresses {
        writeln!(text, "{address}")?;
    }
    // In 64.0.0.0/2, every other /24.
    for number in 0..others {
        let [a, b, c, _] = (0x4000_0000 + number * 512).to_be_bytes();
        writeln!(text, "{a}.{b}.{c}.0/24 ; other")?;
    }
    topology.scratch.write("refused.txt", &text)?;
    Ok(())
}

/// Connects from an address and gets a page. `Ok(false)`: no answer came.
fn page(from: IpAddr, to: SocketAddr, patience: Duration) -> Result<bool> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    match socket.connect_timeout(&to.into(), patience) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock) => {
            Ok(false)
        }
        result => {
            result.context("connect")?;
            HttpConnection::over(socket.into())?.get("1k", true, TIMEOUT)?;
            Ok(true)
        }
    }
}

/// Whether a datagram from an address is answered.
fn echoed(from: IpAddr, to: SocketAddr, patience: Duration) -> Result<bool> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(to)?;
    socket.send(b"hello")?;
    Ok(socket.recv(&mut [0; 64]).is_ok())
}

fn of_client<T: Send + 'static>(
    client: &Namespace,
    from: IpAddr,
    (family, port): (Family, u16),
    ask: fn(IpAddr, SocketAddr, Duration) -> Result<T>,
    patience: Duration,
) -> Result<T> {
    inside::run(client, move || ask(from, SocketAddr::new(vip(family), port), patience))
}

fn refuses(cards: Cards, tables: &str) -> Result<()> {
    let scene = Scene::start(cards, tables)?;
    let client = &scene.topology.client;
    for (family, [http, echo]) in [(Family::V4, ["http4", "echo4"]), (Family::V6, ["http6", "echo6"])] {
        let [good, bad] = [client_address(family), refused_address(family)];
        ensure!(of_client(client, good, (family, HTTP_PORT), page, TIMEOUT)?, "{good} got no page");
        ensure!(of_client(client, good, (family, ECHO_PORT), echoed, TIMEOUT)?, "{good} got no answer");
        ensure!(!of_client(client, bad, (family, HTTP_PORT), page, SILENCE)?, "{bad} got a page");
        ensure!(!of_client(client, bad, (family, ECHO_PORT), echoed, SILENCE)?, "{bad} got an answer");
        sleep(Duration::from_millis(1500));
        for service in [http, echo] {
            let [counted, denied] = scene.judged(service)?;
            ensure!(denied > 0 && counted > denied, "{service}: {counted} counted, {denied} denied");
        }
    }
    let status = scene.hairpin.status()?;
    let dropped = |name: &str| status.drops.get(name).map_or(0, |count| count.total);
    ensure!(dropped("kernel.denied") >= 4 && dropped("worker.denied") == 0, "{:?}", status.drops);
    ensure!(scene.hairpin.status_table()?.contains("ACCESS"), "the table does not show access rules");
    outlives(&scene)
}

/// A connection outlives the rule that refuses its client from then on.
fn outlives(scene: &Scene) -> Result<()> {
    let client = &scene.topology.client;
    let (family, good) = (Family::V4, client_address(Family::V4));
    let to = SocketAddr::new(vip(family), HTTP_PORT);
    let mut held = inside::run(client, move || {
        let mut connection = HttpConnection::open(to, TIMEOUT)?;
        connection.get("1k", false, TIMEOUT)?;
        Ok(connection)
    })?;
    refuse(&scene.topology, &[good], 0)?;
    scene.reload(&guarded(&scene.topology))?;
    held.get("1k", false, TIMEOUT).context("on the connection that was there before")?;
    ensure!(!of_client(client, good, (family, HTTP_PORT), page, SILENCE)?, "{good} got a page after the reload");
    held.get("1k", true, TIMEOUT).context("on the connection that was there before, again")?;
    // Without rules all may.
    scene.reload(&services())?;
    for address in [good, refused_address(family)] {
        ensure!(of_client(client, address, (family, HTTP_PORT), page, TIMEOUT)?, "{address} got no page without rules");
    }
    Ok(())
}

/// While files of up to 100,000 networks replace each other, a refused client gets nothing, and another one everything.
fn reloads() -> Result<()> {
    // With the two addresses, and all clients of the rule that counts.
    const NETWORKS: u32 = 100_000 - 3;
    let mut scene = Scene::start(Cards::Gso, ENGINE)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let traffic = |from: IpAddr, patience: Duration, is_served: bool| {
        let is_over = Arc::clone(&is_over);
        inside::spawn(&scene.topology.client, None, move || {
            let mut rounds = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                let got_page = page(from, SocketAddr::new(vip(Family::V4), HTTP_PORT), patience)?;
                let got_answer = echoed(from, SocketAddr::new(vip(Family::V4), ECHO_PORT), patience)?;
                ensure!(
                    [got_page, got_answer] == [is_served; 2],
                    "{from}, round {rounds}: a page {got_page}, an answer {got_answer}"
                );
                rounds += 1;
            }
            Ok(rounds)
        })
    };
    let good: Vec<_> = (0..2).map(|_| traffic(client_address(Family::V4), TIMEOUT, true)).collect();
    let bad: Vec<_> = (0..8).map(|_| traffic(refused_address(Family::V4), Duration::from_millis(300), false)).collect();
    for (round, others) in [NETWORKS, 0, NETWORKS, 1000, NETWORKS].into_iter().enumerate() {
        refuse(&scene.topology, &FAMILIES.map(refused_address), others)?;
        let took = scene.reload(&guarded(&scene.topology))?;
        println!("reload {round}, {others} networks in each of 4 services: {took:?}");
        scene.hairpin.process().check()?;
        sleep(Duration::from_millis(500));
    }
    is_over.store(true, Ordering::Relaxed);
    for (clients, who) in [(good, "served"), (bad, "refused")] {
        let rounds: u64 = clients.into_iter().map(inside::join).sum::<Result<u64>>()?;
        ensure!(rounds > 10, "the {who} clients were there {rounds} times");
    }
    Ok(())
}
