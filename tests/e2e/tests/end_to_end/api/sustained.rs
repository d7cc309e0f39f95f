//! The API for longer: thousands of changes by two writers under load, and large configurations. `make soak-api` runs them.

use super::{Answer, Fixture, service};
use crate::lane;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{WrkOptions, parse_wrk, wrk_command};
use hairpin_e2e::process::patience;
use hairpin_e2e::servers::HTTP_PORT;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const ONE: &str = "/v1/services/web/backends/one";
/// Writers at a time.
const WRITERS: usize = 2;
/// Time from one change of a writer to its next: both together make 50 a second.
const PACE: Duration = Duration::from_millis(20 * WRITERS as u64);
/// Backends of one service of the large configuration.
const PER_SERVICE: usize = 100;
/// How often a time is measured.
const ROUNDS: usize = 5;

/// A number that a target of the Makefile gives; without it the test is left out.
fn told(variable: &str) -> Result<Option<usize>> {
    let Ok(text) = std::env::var(variable) else {
        lane::skip(format!("{variable} is not set: make soak-api"));
        return Ok(None);
    };
    text.parse().map(Some).with_context(|| format!("{variable} is {text}"))
}

/// A client that keeps its connection as long as the API does.
struct Client {
    socket: PathBuf,
    stream: Option<BufReader<UnixStream>>,
}

impl Client {
    fn new(fixture: &Fixture) -> Client {
        Client { socket: fixture.hairpin.socket().with_extension("api.sock"), stream: None }
    }

    fn ask(&mut self, method: &str, path: &str, version: &str, body: &str) -> Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = UnixStream::connect(&self.socket)?;
                stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                BufReader::new(stream)
            }
        };
        let condition = if version.is_empty() { String::new() } else { format!("If-Match: \"{version}\"\r\n") };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{condition}Content-Length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all((head + body).as_bytes())?;
        let (mut status, mut version, mut length, mut ends) = (0, String::new(), 0, false);
        for number in 0.. {
            let mut line = String::new();
            ensure!(stream.read_line(&mut line)? > 0, "the API closed the connection within an answer");
            let line = line.trim();
            if number == 0 {
                status = line.split(' ').nth(1).context("no status line")?.parse()?;
            }
            match line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)) {
                Some((name, value)) if name == "etag" => value.trim_matches('"').clone_into(&mut version),
                Some((name, value)) if name == "content-length" => length = value.parse()?,
                Some((name, value)) if name == "connection" => ends = value == "close",
                _ if line.is_empty() => break,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        self.stream = (!ends).then_some(stream);
        Ok(Answer { status, version, body: serde_json::from_slice(&body)? })
    }

    /// The weight that counts changes, one more. Every fifth time a backend comes or goes in the same transaction.
    /// Whether it came into force: it does not if the other writer was faster.
    fn count_up(&mut self, writer: usize, number: usize) -> Result<bool> {
        let read = self.ask("GET", ONE, "", "")?;
        let weight = read.body["weight"].as_u64().unwrap_or(1) + 1;
        let body = json!({ "weight": weight });
        let written = if number % 5 == 4 {
            let path = format!("/services/web/backends/more{writer}");
            let more = json!({ "address": format!("10.0.{}.2:{HTTP_PORT}", 3 + writer) });
            let more = match number % 10 {
                4 => json!({ "method": "PUT", "path": path, "body": more }),
                _ => json!({ "method": "DELETE", "path": path }),
            };
            let changes = json!({ "changes": [{ "method": "PATCH", "path": ONE, "body": body }, more] });
            self.ask("POST", "/v1/transactions", &read.version, &changes.to_string())?
        } else {
            self.ask("PATCH", ONE, &read.version, &body.to_string())?
        };
        match written.status {
            200 => Ok(true),
            412 => Ok(false),
            _ => anyhow::bail!("change {number} of writer {writer}: {written:?}"),
        }
    }
}

/// Makes so many changes, and counts the refused ones.
fn make(fixture: &Fixture, writer: usize, changes: usize) -> Result<usize> {
    let (mut client, mut refused) = (Client::new(fixture), 0);
    let mut next = Instant::now();
    for number in 0..changes {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += PACE;
        while !client.count_up(writer, number)? {
            refused += 1;
        }
    }
    Ok(refused)
}

/// 50 changes a second, as long as the machine can, while wrk asks: it gets all its answers, and of two writers that read, count
/// one up and write, none undoes what the other one has done.
pub(super) fn many() -> Result<()> {
    let Some(changes) = told("HAIRPIN_API_CHANGES")? else { return Ok(()) };
    let fixture = Fixture::new()?;
    let topology = &fixture.topology;
    let options = WrkOptions { page: "1k", connections: 16, duration: Duration::from_secs(3600), close: false };
    let wrk = wrk_command(&topology.client, &service().listen(), 1, &options);
    let mut wrk = topology.client.start(wrk, &topology.scratch.file("wrk-api"))?;
    let began = Instant::now();
    let refused: Vec<usize> = std::thread::scope(|scope| {
        let fixture = &fixture;
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || make(fixture, writer, changes / WRITERS))).collect();
        let joined = writers.into_iter().map(|one| one.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?);
        joined.collect::<Result<_>>()
    })?;
    let took = began.elapsed();
    wrk.signal(Signal::SIGINT);
    wrk.wait(patience(Duration::from_secs(30)))?;
    let (said, made) = (wrk.log(), changes / WRITERS * WRITERS);
    let counted = parse_wrk(&said)?;
    let rate = made as f64 / took.as_secs_f64();
    println!("{made} changes in {took:.1?}, {rate:.1}/s; refused as old: {refused:?}; requests: {}", counted.requests);
    ensure!(counted.errors == 0 && counted.requests > 100, "{counted:?}\n{said}");
    let weight = fixture.backends()?[0]["weight"].as_u64();
    ensure!(weight == Some(1 + made as u64), "{made} changes came into force, and the weight is {weight:?}");
    let status = fixture.status()?;
    ensure!(status["writes_total"] == made as u64, "{made} changes: {status}");
    Ok(())
}

/// Median and longest.
fn summary(mut times: Vec<Duration>) -> String {
    times.sort();
    format!("median {:.0?}, longest {:.0?} of {}", times[times.len() / 2], times[times.len() - 1], times.len())
}

/// How long a reload and a change by the API take in a configuration of so many backends, of which one has another weight.
pub(super) fn large() -> Result<()> {
    let Some(backends) = told("HAIRPIN_API_BACKENDS")? else { return Ok(()) };
    let fixture = Fixture::with(|_| Ok(services(backends)))?;
    let total = fixture.hairpin.status()?.services.iter().map(|service| service.backends.len()).sum::<usize>();
    ensure!(total >= backends, "{total} backends");
    let (mut reloads, mut writes) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let text = std::fs::read_to_string(fixture.hairpin.file())?;
        let other = text.replacen(&format!("weight = {}\n", 7 + round), &format!("weight = {}\n", 8 + round), 1);
        ensure!(text != other, "the file has no weight {}", 7 + round);
        std::fs::write(fixture.hairpin.file(), other)?;
        let began = Instant::now();
        let said = fixture.tell(&["reload"])?;
        reloads.push(began.elapsed());
        ensure!(said.contains("weight"), "{said}");
    }
    let mut client = Client::new(&fixture);
    let mut version = client.ask("GET", "/v1/services/s0/backends", "", "")?.version;
    for round in 0..ROUNDS {
        let body: Value = json!({ "weight": 100 + round });
        let began = Instant::now();
        let answer = client.ask("PATCH", "/v1/services/s0/backends/10.0.1.2%3A10001", &version, &body.to_string())?;
        writes.push(began.elapsed());
        ensure!(answer.status == 200, "{answer:?}");
        version = answer.version;
    }
    println!("{total} backends: `hairpin reload` {}; PATCH of one backend {}", summary(reloads), summary(writes));
    Ok(())
}

/// Services with so many backends in all; the first backend has a weight.
fn services(backends: usize) -> String {
    let mut text = String::new();
    for first in (0..backends).step_by(PER_SERVICE) {
        let number = first / PER_SERVICE;
        let _ = write!(text, "[[service]]\nname = \"s{number}\"\nlisten = \"10.0.100.1:{}/tcp\"\n", 1000 + number);
        let ends = (first..backends.min(first + PER_SERVICE)).map(|port| format!("10.0.1.2:{}", 10_000 + port));
        for (at, end) in ends.enumerate() {
            let weight = if first + at == 0 { "weight = 7\n" } else { "" };
            let _ = write!(text, "[[service.backend]]\naddress = \"{end}\"\n{weight}");
        }
    }
    text
}
