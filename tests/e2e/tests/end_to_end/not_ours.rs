//! Traffic that is not Hairpin's goes on working: the balancer's own connections, its own services, others' connections to a
//! backend's very address and port, pings.

use super::network::{Network, Networks, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::process::patience;
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT};
use hairpin_e2e::tool::{echo, inside};
use hairpin_e2e::topology::{Family, balancer_address, client_address, end, server_address, vip};
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let mut tests = Vec::new();
    for which in [Which::Gso, Which::Wire] {
        let mut test = |name: &str, body: fn(&mut Network) -> Result<()>| {
            tests.push(networks.test(&format!("not ours: {name}"), which, body));
        };
        test("the balancer's own connections to a backend", own_connections);
        test("a service of the balancer itself", own_service);
        test("others' connections to a backend", others_connections);
        test("a client reuses its vip port for a backend", same_port);
        test("others' datagrams to a backend", others_datagrams);
        test("ping", ping);
    }
    tests
}

fn compare(network: &Network, from: &Namespace, family: Family, client: std::net::IpAddr) -> Result<()> {
    let topology = &network.topology;
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
    for server in 1..=2 {
        let target = end(server_address(family, server), HTTP_PORT);
        let page = load::curl(from, topology, &target, "10m", "not-ours")?;
        ensure!(std::fs::read(&page.body)? == sent, "10 MB from {target} arrived changed");
        let seen = page.header("x-client").context("no X-Client")?;
        ensure!(seen == client.to_string(), "{target} saw {seen}, not {client}");
        ensure!(page.header("x-server") == Some(&format!("server{server}")), "{target} is another server");
    }
    Ok(())
}

fn own_connections(network: &mut Network) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        // From its address towards server 1, whose link ends at host 1 of network 1.
        for server in 1..=2 {
            let target = end(server_address(family, server), HTTP_PORT);
            let page = load::curl(&network.topology.balancer, &network.topology, &target, "10m", "own")?;
            let sent = std::fs::read(network.topology.scratch.file("pages/10m"))?;
            ensure!(std::fs::read(&page.body)? == sent, "10 MB from {target} arrived changed");
        }
    }
    Ok(())
}

fn others_connections(network: &mut Network) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        for _ in 0..5 {
            compare(network, &network.topology.client, family, client_address(family))?;
        }
    }
    Ok(())
}

fn others_datagrams(network: &mut Network) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let to = SocketAddr::new(server_address(family, 3), ECHO_PORT);
        // Not from a port that the service has seen: under NAT the two are one flow to the backend.
        let result = echo::ask(&network.topology.client, &[to], 21_000, 16, 512, patience(Duration::from_millis(500)))?;
        ensure!(result.answered > 100 && result.lost == 0 && result.wrong == 0, "{to}: {result:?}");
    }
    Ok(())
}

fn same_port(network: &mut Network) -> Result<()> {
    let ask = |from: SocketAddr, to: SocketAddr| -> Result<String> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), Duration::from_secs(5)).with_context(|| format!("{from} to {to}"))?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /1k HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut answer = [0; 512];
        let length = stream.read(&mut answer)?;
        let text = String::from_utf8_lossy(&answer[..length]).to_lowercase();
        let server = text.lines().find_map(|line| line.strip_prefix("x-server: ").map(str::to_owned));
        server.with_context(|| format!("{to} answered {text}"))
    };
    for family in [Family::V4, Family::V6] {
        inside::run(&network.topology.client, move || {
            for port in 20_000..20_008 {
                let from = SocketAddr::new(client_address(family), port);
                let name = ask(from, SocketAddr::new(vip(family), HTTP_PORT))?;
                let number = name.trim_start_matches("server").parse()?;
                let direct = ask(from, SocketAddr::new(server_address(family, number), HTTP_PORT))?;
                ensure!(name == direct, "{name} calls itself {direct}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Like ssh: a conversation with a socket of the balancer, on its own address and on the VIP's (no service's port).
fn own_service(network: &mut Network) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        for address in [balancer_address(family), vip(family)] {
            let at = SocketAddr::new(address, 2222);
            let listener = inside::run(&network.topology.balancer, move || Ok(TcpListener::bind(at)?))?;
            let server = std::thread::spawn(move || -> Result<()> {
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                let mut line = [0; 5];
                for _ in 0..100 {
                    stream.read_exact(&mut line)?;
                    stream.write_all(&line)?;
                }
                Ok(())
            });
            inside::run(&network.topology.client, move || {
                let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(5))
                    .with_context(|| format!("no connection to the balancer's own {at}"))?;
                stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                for i in 0..100 {
                    let said = format!("{i:5}");
                    stream.write_all(said.as_bytes())?;
                    let mut heard = [0; 5];
                    stream.read_exact(&mut heard).with_context(|| format!("line {i} to {at}"))?;
                    ensure!(heard == said.as_bytes(), "{at} answered {heard:?} to {said}");
                }
                Ok(())
            })?;
            inside::join(server)?;
        }
    }
    Ok(())
}

fn ping(network: &mut Network) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        for to in [vip(family), balancer_address(family), server_address(family, 1)] {
            let mut ping = network.topology.client.command("ping");
            command::output(ping.args(["-q", "-c", "5", "-i", "0.1", "-W", "2", &to.to_string()]))?;
        }
    }
    Ok(())
}
