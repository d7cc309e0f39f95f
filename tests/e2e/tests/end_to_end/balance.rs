//! Every connection reaches one server, and connections are spread as each algorithm promises.

use super::network::{Network, Networks, Which, service};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::PeerService;
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, SERVERS};
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const WEIGHTS: [u16; SERVERS] = [4, 3, 2, 1];

/// One service for each algorithm.
pub(crate) fn services() -> Vec<PeerService> {
    let http =
        |name, port| PeerService { server_port: HTTP_PORT, balance: name, ..PeerService::tcp(name, Family::V4, port) };
    vec![
        http("round-robin", 9001),
        PeerService { weights: WEIGHTS.to_vec(), ..http("weighted-round-robin", 9002) },
        http("least-connections", 9003),
        http("power-of-two", 9004),
        http("maglev", 9005),
        http("source-hash", 9006),
        PeerService { weights: WEIGHTS.to_vec(), balance: "maglev", ..http("weighted-maglev", 9007) },
    ]
}

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let test = |name: &'static str, body: fn(&mut Network) -> Result<()>| {
        networks.test(&format!("balance {name}"), Which::Gso, body)
    };
    vec![
        test("one server per connection", one_server),
        // Each of the workers takes turns by itself: with w workers every server is off by less than w.
        test("round robin", |n| spread(n, "round-robin", 200, [50.0; 4], 3.0)),
        test("weighted round robin", |n| spread(n, "weighted-round-robin", 200, [80.0, 60.0, 40.0, 20.0], 4.0)),
        test("least connections", |n| spread(n, "least-connections", 200, [50.0; 4], 3.0)),
        // The gap of two choices is about log log n (Mitzenmacher 2001); one random choice would be off by 12 or more.
        test("power of two", |n| spread(n, "power-of-two", 800, [200.0; 4], 6.0)),
        // Hashes: five standard deviations of a binomial distribution.
        test("maglev", |n| spread(n, "maglev", 400, [100.0; 4], 43.0)),
        test("weighted maglev", |n| spread(n, "weighted-maglev", 400, [160.0, 120.0, 80.0, 40.0], 49.0)),
        test("source hash", source_hash),
    ]
}

/// Fifty requests on one connection are answered by one server, on one connection of its own.
fn one_server(network: &mut Network) -> Result<()> {
    let topology = &network.topology;
    for name in ["http4", "http6", "full-http4", "full-http6", "maglev", "power-of-two"] {
        for _ in 0..8 {
            let mut curl = topology.client.command("curl");
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "20", "--output", "/dev/null"]);
            curl.args(["--dump-header", "-"]).arg(format!("http://{}/1k?[1-50]", service(name).listen()));
            let headers = command::output(&mut curl)?;
            let of = |header: &str| {
                let mut values: Vec<&str> = headers.lines().filter_map(|line| line.strip_prefix(header)).collect();
                ensure!(values.len() == 50, "{} answers with {header} of 50", values.len());
                values.dedup();
                ensure!(values.len() == 1, "one connection of {name} met {header} {values:?}");
                Ok(())
            };
            of("X-Server: ")?;
            of("X-Connection: ")?;
        }
    }
    Ok(())
}

/// Opens `connections` to a service and keeps them all; what each server got must be as expected, within `off`.
fn spread(
    network: &mut Network,
    name: &'static str,
    connections: usize,
    expected: [f64; SERVERS],
    off: f64,
) -> Result<()> {
    let to: SocketAddr = service(name).listen().parse()?;
    let got = inside::run(&network.topology.client, move || {
        let mut open = Vec::new();
        let mut got = [0; SERVERS];
        for i in 0..connections {
            let (stream, server) = ask(to).with_context(|| format!("connection {i} of {name}"))?;
            got[server - 1] += 1;
            open.push(stream);
        }
        Ok(got)
    })?;
    let within = got.iter().zip(expected).all(|(got, expected)| (f64::from(*got) - expected).abs() <= off);
    ensure!(within, "{connections} connections of {name} went to {got:?}, expected {expected:?} within {off}");
    Ok(())
}

/// Opens a connection, asks for a page and returns which server answered.
fn ask(to: SocketAddr) -> Result<(TcpStream, usize)> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    loop {
        let length = stream.read(&mut part)?;
        ensure!(length > 0, "closed before the answer was complete");
        answer.extend_from_slice(&part[..length]);
        if let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")
            && answer.len() >= head + 4 + 1024
        {
            let text = String::from_utf8_lossy(&answer[..head]).into_owned();
            let server = text.lines().find_map(|line| line.strip_prefix("X-Server: server")).context("no X-Server")?;
            return Ok((stream, server.parse()?));
        }
    }
}

/// One client, one server; many clients, all servers.
fn source_hash(network: &mut Network) -> Result<()> {
    let client = &network.topology.client;
    let target = service("source-hash").listen();
    let mut used = [0; SERVERS];
    for host in 100..164 {
        client.script(&format!("ip address replace 10.0.0.{host}/24 dev eth0\n"))?;
        let mut seen = Vec::new();
        for _ in 0..3 {
            let mut curl = client.command("curl");
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "10", "--output", "/dev/null"]);
            curl.args(["--interface", &format!("10.0.0.{host}"), "--dump-header", "-"]);
            let headers = command::output(curl.arg(format!("http://{target}/1k")))?;
            let server = headers.lines().find_map(|line| line.strip_prefix("X-Server: server"));
            seen.push(server.context("no X-Server")?.trim().parse::<usize>()?);
        }
        ensure!(seen.iter().all(|server| *server == seen[0]), "10.0.0.{host} met servers {seen:?}");
        used[seen[0] - 1] += 1;
    }
    // 64 clients, 16 expected each; fewer than 3 is beyond four standard deviations.
    ensure!(used.iter().all(|clients| *clients >= 3), "64 clients were spread {used:?}");
    Ok(())
}
