//! Hairpin beside nginx and HAProxy, request by request: what each answers where servers disagree, and what a backend
//! gets to see of it. `hairpin-bench differential` prints the table.
//!
//! The requests are `corpus.txt`. Each goes on a connection of its own through each of the three to one backend that
//! remembers. What is compared: the status of the first answer, and the requests that the backend understood, as their
//! request lines with the bytes of their bodies.

use crate::peer::{Hairpin, HairpinOptions, PeerService};
use crate::servers::listening;
use crate::tool::http::HttpConnection;
use crate::tool::inside;
use crate::tool::recorder::Recorder;
use crate::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

/// nginx and HAProxy as HTTP proxies of one core, for this comparison and for the benchmarks beside them.
pub const NGINX: &str = include_str!("nginx.conf");
/// As [`NGINX`].
pub const HAPROXY: &str = include_str!("haproxy.cfg");

const CORPUS: &str = include_str!("corpus.txt");
const JUSTIFIED: &str = include_str!("justified.txt");
const BACKEND_PORT: u16 = 8090;
/// The peers and their ports.
const PROXIES: [(&str, u16); 3] = [("Hairpin", 8000), ("nginx", 8001), ("HAProxy", 8002)];
/// How long an answer is waited for: none is one, too.
const PATIENCE: Duration = Duration::from_millis(1500);
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOutcome {
    /// The status of the first answer; `None`: none, the connection closed or nothing said.
    pub status: Option<u16>,
    /// The request as the backend understood it.
    pub seen: Vec<String>,
}

impl RequestOutcome {
    fn text(&self) -> String {
        let status = self.status.map_or("no answer".to_owned(), |status| status.to_string());
        let seen: Vec<String> = self.seen.iter().map(|seen| format!("`{seen}`")).collect();
        if seen.is_empty() { status } else { format!("{status}; {}", seen.join(", ")) }
    }
}

/// A request, and what came of it by way of each.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Its name in the corpus.
    pub name: String,
    /// Hairpin, nginx, HAProxy.
    pub outcomes: Vec<RequestOutcome>,
}

impl Comparison {
    /// Whether all did the same.
    pub fn is_same(&self) -> bool {
        self.outcomes.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// The corpus: names and bytes.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).map(|(name, text)| (name.to_owned(), bytes(text))).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let repeated = rest.strip_prefix('@').and_then(|rest| rest.split_once('@'));
        if let Some((count, after)) = repeated.and_then(|(count, after)| Some((count.parse::<usize>().ok()?, after))) {
            out.extend(std::iter::repeat_n(b'a', count));
            rest = after;
            continue;
        }
        let escape = (first == '\\').then(|| rest.as_bytes().get(1)).flatten();
        let (byte, length) = match escape {
            Some(b'r') => (b'\r', 2),
            Some(b'n') => (b'\n', 2),
            Some(b't') => (b'\t', 2),
            Some(b'x') => (rest.get(2..4).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(b'?'), 4),
            Some(other) => (*other, 2),
            None => (rest.as_bytes()[0], 1),
        };
        out.push(byte);
        rest = rest.get(length..).unwrap_or_default();
    }
    out
}

/// Sends the corpus through all three.
pub fn compare() -> Result<Vec<Comparison>> {
    let topology = Topology::create(TopologyOptions::default())?;
    let recorder = Recorder::start(&topology.servers[0], BACKEND_PORT, "backend")?;
    let service = PeerService { servers: vec![1], server_port: BACKEND_PORT, ..PeerService::http("all", PROXIES[0].1) };
    let _hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
    let server = end(server_address(Family::V4, 1), BACKEND_PORT);
    let mut proxies = Vec::new();
    for (program, port, file, text, arguments) in [
        ("nginx", PROXIES[1].1, "differential-nginx.conf", NGINX, &["-c"][..]),
        ("haproxy", PROXIES[2].1, "differential-haproxy.cfg", HAPROXY, &["-db", "-f"]),
    ] {
        let directory = topology.scratch.file(format!("differential-{program}"));
        std::fs::create_dir_all(&directory)?;
        let text = text.replace("LISTEN", &end(vip(Family::V4), port)).replace("SERVER", &server);
        let file = topology.scratch.write(file, &text.replace("DIRECTORY", &directory.display().to_string()))?;
        let mut command = topology.balancer.command(program);
        command.args(arguments).arg(file);
        let mut process = topology.balancer.start(command, &directory.join("log"))?;
        let name = topology.balancer.name().to_owned();
        process.wait_until(START_TIMEOUT, || listening(&name, &[port])).context(program)?;
        proxies.push(process);
    }
    let mut all = Vec::new();
    for (name, request) in corpus() {
        let outcomes = PROXIES.iter().map(|&(_, port)| once(&topology, &recorder, port, &request));
        all.push(Comparison { name, outcomes: outcomes.collect::<Result<_>>()? });
    }
    Ok(all)
}

fn once(topology: &Topology, recorder: &Recorder, port: u16, request: &[u8]) -> Result<RequestOutcome> {
    recorder.forget();
    let to = SocketAddr::new(vip(Family::V4), port);
    let mut connection = inside::run(&topology.client, move || HttpConnection::open(to, Duration::from_secs(5)))?;
    connection.send(request, Duration::from_secs(5))?;
    let status = connection.answer(false, PATIENCE).ok().map(|answer| answer.status);
    drop(connection);
    // Bytes that are still on their way to the backend get there.
    std::thread::sleep(Duration::from_millis(30));
    let seen = recorder.heard().into_iter().map(|heard| match heard.body_bytes {
        0 => heard.line().chars().take(60).collect(),
        bytes => format!("{} + {bytes} bytes", heard.line()),
    });
    Ok(RequestOutcome { status, seen: seen.collect() })
}

/// Why Hairpin does as it does with a request that others treat differently.
pub fn justification(name: &str) -> Option<&'static str> {
    let lines = JUSTIFIED.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "));
    lines.filter(|(names, _)| names.split(' ').any(|have| have == name)).map(|(_, why)| why).next()
}

/// The beginning of a request's row in the table: its name and Hairpin's outcome.
pub fn row(comparison: &Comparison) -> String {
    format!("| {} | {} |", comparison.name, comparison.outcomes[0].text())
}

/// The document: all that is not the same for all, with the reasons.
pub fn document(all: &[Comparison]) -> Result<String> {
    let mut text = String::from(HEAD);
    for comparison in all.iter().filter(|comparison| !comparison.is_same()) {
        let others: Vec<String> = comparison.outcomes[1..].iter().map(RequestOutcome::text).collect();
        let why = justification(&comparison.name).unwrap_or("NOT JUSTIFIED");
        writeln!(text, "{} {} | {why} |", row(comparison), others.join(" | "))?;
    }
    let same = all.iter().filter(|comparison| comparison.is_same()).count();
    writeln!(text, "\n{same} of {} requests have the same outcome by way of all three.", all.len())?;
    Ok(text)
}

/// The text before the rows.
const HEAD: &str = "\
# Where Hairpin, nginx and HAProxy differ

Written by `hairpin-bench differential`: the requests of `tests/e2e/src/differential/corpus.txt`, well-formed and hostile, sent
through each to one backend that remembers. A cell says the status of the answer and what the backend understood (request
line, bytes of the body). nginx and HAProxy as packaged in Debian 12, configured as in `tests/e2e/src/differential`.

| request | Hairpin | nginx | HAProxy | why Hairpin does so |
|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_read() {
        assert_eq!(bytes(r"a\r\n\x00\\\t@3@b"), b"a\r\n\x00\\\taaab");
        assert_eq!(bytes("u@a"), b"u@a");
        let all = corpus();
        assert!(all.len() > 80, "{}", all.len());
        let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        let justified =
            JUSTIFIED.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": "));
        for name in justified.flat_map(|(names, _)| names.split(' ')) {
            assert!(all.iter().any(|(have, _)| have == name), "{name} is not in the corpus");
        }
    }
}
