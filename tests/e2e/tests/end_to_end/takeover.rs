//! A balancer that takes over from another one, without knowing more of it than the shared keys (`unknown = "pick-up"`).

use super::network::test;
use super::tables::Idle;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, SERVERS, Topology, TopologyOptions, client_address, server_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long something may take that happens by itself.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("takeover: links that come up late keep connections", late_links),
        test("takeover: a download whose client only receives goes on", download),
        test("takeover: cookies are good at every node with the same keys", shared_keys),
    ]
}

fn services() -> [PeerService; 2] {
    let tables = "[service.health]\ncheck = \"tcp\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\n";
    [("http4", Family::V4), ("http6", Family::V6)].map(|(name, family)| PeerService {
        balance: "maglev",
        tables: tables.to_string(),
        ..PeerService::tcp(name, family, HTTP_PORT)
    })
}

fn options() -> HairpinOptions {
    HairpinOptions { service: "unknown = \"pick-up\"".to_string(), ..HairpinOptions::default() }
}

const OLD: &str = "000102030405060708090a0b0c0d0e0f";
const NEW: &str = "f0e0d0c0b0a090807060504030201000";

/// Writes the file of keys with this mode.
fn write_keys(topology: &Topology, keys: &[&str], mode: u32) -> Result<PathBuf> {
    let path = topology.scratch.write("keys", &format!("# of the test\n{}\n", keys.join("\n")))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    Ok(path)
}

/// A client's connection after the handshake.
fn greeted(topology: &Topology) -> Result<TcpStream> {
    inside::run(&topology.client, || {
        let stream = TcpStream::connect(SocketAddr::new(vip(Family::V4), HTTP_PORT))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    })
}

/// Asks with the cookie, if there is one, over a connection that then ends: which server has answered, and the cookie that
/// the response sets.
fn ask(mut stream: TcpStream, cookie: Option<&str>) -> Result<(String, Option<String>)> {
    let cookie = cookie.map_or(String::new(), |cookie| format!("Cookie: {cookie}\r\n"));
    stream.write_all(format!("GET /1k HTTP/1.1\r\nHost: h\r\n{cookie}Connection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.starts_with("HTTP/1.1 200 "), "it is answered {answer:?}");
    let field = |name: &str| {
        let line = answer.lines().find_map(|line| line.split_once(": ").filter(|(field, _)| *field == name));
        line.map(|(_, value)| value.split(';').next().unwrap_or(value).to_string())
    };
    Ok((field("X-Server").context("no X-Server")?, field("Set-Cookie")))
}

/// Asks over a new connection.
fn ask_anew(topology: &Topology, cookie: &str) -> Result<(String, Option<String>)> {
    ask(greeted(topology)?, Some(cookie))
}

/// A node continues another one's handshake and sticky cookie if it has the same keys, also after they were changed, a
/// crash and an upgrade. Keys that others can read are refused.
fn shared_keys() -> Result<()> {
    let mut topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let keys = write_keys(&topology, &[OLD], 0o600)?;
    let tables = "[service.http.sticky]\ncookie = \"node\"\n".to_string();
    let service = PeerService { tables, ..PeerService::http("web", HTTP_PORT) };
    let options = HairpinOptions { top: format!("keys_file = {keys:?}\n"), ..HairpinOptions::default() };
    let mut hairpin = Hairpin::start(&topology, &[service], &options)?;
    ask(greeted(&topology)?, None)?;
    let (server, cookie) = ask(greeted(&topology)?, None)?;
    let cookie = cookie.context("no cookie")?;
    let waits = greeted(&topology)?;

    let mut second = second_balancer(&topology)?;
    move_routes(&topology)?;
    hairpin.stop(true)?;
    std::mem::swap(&mut topology.balancer, &mut second);
    hairpin.start_again(&topology, &[])?;
    ensure!(ask(waits, Some(&cookie)).context("a handshake with the first node")? == (server.clone(), None));
    ensure!(ask_anew(&topology, &cookie)? == (server.clone(), None), "its cookie");
    ensure!(hairpin.tell(&topology, &["reload"])?.contains("nothing has changed"));

    let waits = greeted(&topology)?;
    write_keys(&topology, &[NEW, OLD], 0o600)?;
    let told = hairpin.tell(&topology, &["reload"])?;
    ensure!(told.contains("keys_file: ") && !told.contains(OLD) && !told.contains(NEW), "{told}");
    let (same, renewed) = ask(waits, Some(&cookie)).context("a handshake under the old key")?;
    let renewed = renewed.context("no cookie of the new key")?;
    ensure!(same == server && renewed != cookie, "{same} by {renewed}");
    ensure!(ask_anew(&topology, &renewed)? == (server.clone(), None), "the cookie of the new key");

    write_keys(&topology, &[NEW], 0o600)?;
    hairpin.tell(&topology, &["reload"])?;
    let others = [ask_anew(&topology, &cookie)?.0, ask_anew(&topology, &cookie)?.0];
    ensure!(others[0] != others[1], "a cookie whose key is gone leads to {others:?}");
    write_keys(&topology, &[OLD], 0o640)?;
    let refused = hairpin.command(&topology, &["reload"])?.output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && said.contains("its mode is 0640") && said.contains("chmod 600"), "{said}");
    ensure!(ask_anew(&topology, &renewed)? == (server.clone(), None), "after a reload that was refused");

    write_keys(&topology, &[NEW], 0o600)?;
    let waits = greeted(&topology)?;
    hairpin.end(Signal::SIGKILL)?;
    hairpin.start_again(&topology, &[])?;
    ensure!(ask(waits, Some(&renewed)).context("a handshake before a crash")? == (server.clone(), None));
    let waits = greeted(&topology)?;
    hairpin.upgrade(&topology, &hairpin_program()?)?;
    ensure!(ask(waits, Some(&renewed)).context("a handshake before an upgrade")? == (server, None));
    Ok(())
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
    let topology = Topology::create(TopologyOptions::default())?;
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

/// Another balancer beside the first one: the same interfaces in a namespace of its own, over networks 40 to 44, and the same
/// VIP. No route leads there yet.
fn second_balancer(topology: &Topology) -> Result<Namespace> {
    let second = Namespace::create(&format!("{}-second", topology.name))?;
    second.script(&format!(
        "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.ip_forward=1 \
         net.ipv6.conf.all.forwarding=1\nip link set dev lo up\nip address add {}/32 dev lo\n",
        vip(Family::V4)
    ))?;
    let servers =
        (1..=SERVERS).map(|i| (format!("server{i}"), &topology.servers[i - 1], server_address(Family::V4, i)));
    let client = ("client0".to_string(), &topology.client, client_address(Family::V4));
    for (i, (interface, peer, address)) in std::iter::once(client).chain(servers).enumerate() {
        let network = 40 + i;
        second.script(&format!(
            "ip link add {interface} type veth peer name eth1 netns {}\nip address add 10.0.{network}.1/24 dev {interface}\n\
             ip link set dev {interface} up\nip route add {address} via 10.0.{network}.2\n",
            peer.name()
        ))?;
        peer.script(&format!("ip address add 10.0.{network}.2/24 dev eth1\nip link set dev eth1 up\n"))?;
    }
    Ok(second)
}

/// The route of the client to the VIP, and the servers' to clients, lead to the second balancer now.
fn move_routes(topology: &Topology) -> Result<()> {
    topology.client.script(&format!("ip route replace {} via 10.0.40.1\n", vip(Family::V4)))?;
    for (i, server) in (41..).zip(&topology.servers) {
        server.script(&format!("ip route replace default via 10.0.{i}.1\n"))?;
    }
    Ok(())
}

/// A client reads a part of a page and then nothing, so that it says nothing either while its connection moves to another
/// balancer: that one hears the backend first.
fn download() -> Result<()> {
    let mut topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let page = std::fs::read(topology.scratch.file("pages/10m"))?;
    let [service, _] = services();
    let mut hairpin = Hairpin::start(&topology, &[service], &options())?;
    let (mut stream, mut got) = inside::run(&topology.client, || {
        let mut stream = TcpStream::connect(SocketAddr::new(vip(Family::V4), HTTP_PORT))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /10m HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")?;
        let mut part = vec![0; 100_000];
        stream.read_exact(&mut part)?;
        Ok((stream, part))
    })?;
    // Its window shuts meanwhile.
    sleep(Duration::from_secs(1));

    let mut second = second_balancer(&topology)?;
    let mut links = String::new();
    (1..=SERVERS).try_for_each(|i| writeln!(links, "ip link set dev server{i} down"))?;
    second.script(&links)?;
    move_routes(&topology)?;
    hairpin.stop(true)?;
    std::mem::swap(&mut topology.balancer, &mut second);
    hairpin.start_again(&topology, &[])?;
    let mut back = links.replace("down", "up");
    for i in 1..=SERVERS {
        // Those go with the link.
        writeln!(back, "ip route replace {} via 10.0.{}.2", server_address(Family::V4, i), 40 + i)?;
    }
    topology.balancer.script(&back)?;
    eventually("the backend's packet makes a connection", || Ok(!hairpin.connections(&json!({}))?.is_empty()))?;
    stream.read_to_end(&mut got).context("the download")?;
    let head = got.windows(4).position(|four| four == b"\r\n\r\n").context("no head")? + 4;
    ensure!(got[head..] == page[..], "{} bytes arrived of {}, or others", got.len() - head, page.len());
    Ok(())
}
