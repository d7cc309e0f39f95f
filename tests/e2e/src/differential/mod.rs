//! Hairpin beside nginx and HAProxy, request by request: what each answers where servers disagree, and what a backend
//! gets to see of it. `hairpin-bench differential` prints the table, `--http2` that of requests by HTTP/2.
//!
//! The requests are `corpus.txt` and `corpus-http2.txt`. Each goes on a connection of its own through each of the three to one
//! backend that remembers. What is compared: the status of the first answer, and the requests that the backend understood, as
//! their request lines with the bytes of their bodies. A request by HTTP/2 can be refused in many ways: there only what the
//! backend understood is compared.

mod http2;

use crate::peer::{Hairpin, HairpinOptions, PeerService};
use crate::process::Process;
use crate::servers::listening;
use crate::servers::web::certificate;
use crate::tool::http::HttpConnection;
use crate::tool::http2::{Http2Client, Http2Part};
use crate::tool::inside;
use crate::tool::recorder::Recorder;
use crate::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// nginx and HAProxy as HTTP proxies of one core, for this comparison and for the benchmarks beside them.
pub const NGINX: &str = include_str!("nginx.conf");
/// As [`NGINX`].
pub const HAPROXY: &str = include_str!("haproxy.cfg");

const CORPUS: &str = include_str!("corpus.txt");
const JUSTIFIED: [&str; 2] = [include_str!("justified.txt"), include_str!("justified-http2.txt")];
const BACKEND_PORT: u16 = 8090;
/// The peers and their ports.
const PROXIES: [(&str, u16); 3] = [("Hairpin", 8000), ("nginx", 8001), ("HAProxy", 8002)];
/// How long an answer is waited for: none is one, too.
const PATIENCE: Duration = Duration::from_millis(1500);
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long bytes that are still on their way to the backend may take.
const SETTLING: Duration = Duration::from_millis(30);

/// The protocol of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Differential {
    /// HTTP/1.1 in clear text.
    Http1,
    /// HTTP/2 over TLS.
    Http2,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestOutcome {
    /// The first answer: a status or an error.
    pub answer: String,
    /// The request as the backend understood it.
    pub seen: Vec<String>,
}

impl RequestOutcome {
    fn text(&self) -> String {
        let seen: Vec<String> = self.seen.iter().map(|seen| format!("`{seen}`")).collect();
        if seen.is_empty() { self.answer.clone() } else { format!("{}; {}", self.answer, seen.join(", ")) }
    }
}

/// A request, and what came of it by way of each.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Its name in the corpus.
    pub name: String,
    /// Hairpin, nginx, HAProxy.
    pub outcomes: Vec<RequestOutcome>,
    /// What is wrong with what came to the backend by way of Hairpin. (Requests by HTTP/2.)
    pub fault: Option<String>,
    protocol: Differential,
}

impl Comparison {
    /// Whether all did the same.
    pub fn is_same(&self) -> bool {
        self.outcomes.windows(2).all(|pair| match self.protocol {
            Differential::Http1 => pair[0] == pair[1],
            Differential::Http2 => pair[0].seen == pair[1].seen,
        })
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

/// A network with all three, each a proxy of one backend.
struct Proxies {
    _others: Vec<Process>,
    _hairpin: Hairpin,
    recorder: Recorder,
    client: Option<Http2Client>,
    topology: Topology,
}

impl Proxies {
    fn start(protocol: Differential) -> Result<Proxies> {
        let topology = Topology::create(TopologyOptions::default())?;
        let recorder = Recorder::start(&topology.servers[0], BACKEND_PORT, "backend")?;
        let pem = match protocol {
            Differential::Http1 => None,
            Differential::Http2 => Some(certificate(&topology, "web.pem", &[http2::NAME])?),
        };
        let service = match &pem {
            None => PeerService::http("all", PROXIES[0].1),
            Some(pem) => PeerService::https("all", PROXIES[0].1, pem),
        };
        let service = PeerService { servers: vec![1], server_port: BACKEND_PORT, ..service };
        let hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
        let others = [
            ("nginx", PROXIES[1].1, "differential-nginx.conf", NGINX, &["-c"][..]),
            ("haproxy", PROXIES[2].1, "differential-haproxy.cfg", HAPROXY, &["-db", "-f"]),
        ];
        let others = others.into_iter().map(|(program, port, file, text, arguments)| {
            let directory = topology.scratch.file(format!("differential-{program}"));
            std::fs::create_dir_all(&directory)?;
            let text = listens(text, port, pem.as_deref())
                .replace("SERVER", &end(server_address(Family::V4, 1), BACKEND_PORT))
                .replace("DIRECTORY", &directory.display().to_string());
            let mut command = topology.balancer.command(program);
            command.args(arguments).arg(topology.scratch.write(file, &text)?);
            let mut process = topology.balancer.start(command, &directory.join("log"))?;
            let name = topology.balancer.name().to_owned();
            process.wait_until(START_TIMEOUT, || listening(&name, &[port])).context(program)?;
            Ok(process)
        });
        let others = others.collect::<Result<_>>()?;
        let client = pem.map(|pem| Http2Client::new(&pem, http2::NAME)).transpose()?;
        Ok(Proxies { _others: others, _hairpin: hairpin, recorder, client, topology })
    }

    /// Sends a request of HTTP/1.1 to one of them.
    fn once(&self, port: u16, request: &[u8]) -> Result<RequestOutcome> {
        self.recorder.forget();
        let to = SocketAddr::new(vip(Family::V4), port);
        let mut connection =
            inside::run(&self.topology.client, move || HttpConnection::open(to, Duration::from_secs(5)))?;
        connection.send(request, Duration::from_secs(5))?;
        let status = connection.answer(false, PATIENCE).ok().map(|answer| answer.status);
        drop(connection);
        std::thread::sleep(SETTLING);
        let seen = self.recorder.heard().into_iter().map(|heard| match heard.body_bytes {
            0 => heard.line().chars().take(60).collect(),
            bytes => format!("{} + {bytes} bytes", heard.line()),
        });
        let answer = status.map_or("no answer".to_owned(), |status| status.to_string());
        Ok(RequestOutcome { answer, seen: seen.collect() })
    }

    /// Sends a request of HTTP/2 to one of them.
    fn once_http2(&self, port: u16, request: &[Http2Part]) -> Result<(RequestOutcome, Option<String>)> {
        self.recorder.forget();
        let to = SocketAddr::new(vip(Family::V4), port);
        let (client, parts) = (self.client.clone().context("no client")?, request.to_vec());
        let answer = inside::run(&self.topology.client, move || client.ask(to, &parts, PATIENCE))?;
        std::thread::sleep(SETTLING);
        let heard = self.recorder.heard();
        let fault = http2::fault(request, &heard, &self.recorder.raw());
        Ok((RequestOutcome { answer: answer.to_string(), seen: heard.iter().map(http2::view).collect() }, fault))
    }
}

/// A proxy's configuration, listening on `port`, with TLS and HTTP/2 if it has a certificate.
fn listens(text: &str, port: u16, pem: Option<&Path>) -> String {
    let listen = end(vip(Family::V4), port);
    let Some(pem) = pem.map(Path::display) else { return text.replace("LISTEN", &listen) };
    text.replace("bind LISTEN", &format!("bind {listen} ssl crt {pem} alpn h2,http/1.1")).replace(
        "listen LISTEN",
        &format!("ssl_certificate {pem};\n    ssl_certificate_key {pem};\n    listen {listen} ssl http2"),
    )
}

/// Sends the corpus through all three.
///
/// # Errors
/// One of them does not run.
pub fn compare(protocol: Differential) -> Result<Vec<Comparison>> {
    let proxies = Proxies::start(protocol)?;
    let ports = PROXIES.iter().map(|(_, port)| *port);
    match protocol {
        Differential::Http1 => {
            let one = |(name, request): (String, Vec<u8>)| {
                let outcomes = ports.clone().map(|port| proxies.once(port, &request)).collect::<Result<_>>()?;
                Ok(Comparison { name, outcomes, fault: None, protocol })
            };
            corpus().into_iter().map(one).collect()
        }
        Differential::Http2 => {
            let one = |(name, request): (String, Vec<Http2Part>)| {
                let all = ports.clone().map(|port| proxies.once_http2(port, &request).with_context(|| name.clone()));
                let (outcomes, faults): (Vec<_>, Vec<_>) = all.collect::<Result<Vec<_>>>()?.into_iter().unzip();
                Ok(Comparison { name, outcomes, fault: faults.into_iter().next().flatten(), protocol })
            };
            http2::corpus().into_iter().map(one).collect()
        }
    }
}

/// Why Hairpin does as it does with a request that others treat differently.
pub fn justification(protocol: Differential, name: &str) -> Option<&'static str> {
    justified(protocol).find(|(names, _)| names.split(' ').any(|have| have == name)).map(|(_, why)| why)
}

/// Names of requests, and the reason.
fn justified(protocol: Differential) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = JUSTIFIED[protocol as usize].lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": "))
}

/// The beginning of a request's row in the table: its name and Hairpin's outcome.
pub fn row(comparison: &Comparison) -> String {
    format!("| {} | {} |", comparison.name, comparison.outcomes[0].text())
}

/// The document: all that is not the same for all, with the reasons.
///
/// # Errors
/// None but those of memory.
pub fn document(protocol: Differential, all: &[Comparison]) -> Result<String> {
    let mut text = String::from(HEADS[protocol as usize]);
    for comparison in all.iter().filter(|comparison| !comparison.is_same()) {
        let others: Vec<String> = comparison.outcomes[1..].iter().map(RequestOutcome::text).collect();
        let why = justification(protocol, &comparison.name).unwrap_or("NOT JUSTIFIED");
        writeln!(text, "{} {} | {why} |", row(comparison), others.join(" | "))?;
    }
    let same = all.iter().filter(|comparison| comparison.is_same()).count();
    writeln!(text, "\n{same} of {} requests have the same outcome by way of all three.", all.len())?;
    Ok(text)
}

/// The text before the rows.
const HEADS: [&str; 2] = [
    "\
# Where Hairpin, nginx and HAProxy differ

Written by `hairpin-bench differential`: the requests of `tests/e2e/src/differential/corpus.txt`, well-formed and hostile, sent
through each to one backend that remembers. A cell says the status of the answer and what the backend understood (request
line, bytes of the body). nginx and HAProxy as packaged in Debian 12, configured as in `tests/e2e/src/differential`.

| request | Hairpin | nginx | HAProxy | why Hairpin does so |
|---|---|---|---|---|
",
    "\
# Where Hairpin, nginx and HAProxy differ in HTTP/2

Written by `hairpin-bench differential --http2`: the requests of `tests/e2e/src/differential/corpus-http2.txt`, well-formed and
hostile, sent by HTTP/2 over TLS through each to one backend of HTTP/1.1 that remembers. A cell says the status or the error of
the answer and what the backend understood: the request line, a host other than `web.test`, the fields of the request that no
proxy writes itself, bytes of the body. Here are the requests of which the backend did not understand the same. nginx and HAProxy
as packaged in Debian 12, configured as in `tests/e2e/src/differential`.

| request | Hairpin | nginx | HAProxy | why Hairpin does so |
|---|---|---|---|---|
",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_consistent(protocol: Differential, mut names: Vec<String>) {
        let count = names.len();
        assert!(count > 80, "{count}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in justified(protocol).flat_map(|(names, _)| names.split(' ')) {
            assert!(names.iter().any(|have| have == name), "{name} is not in the corpus");
        }
    }

    #[test]
    fn the_corpora_are_read() {
        assert_eq!(bytes(r"a\r\n\x00\\\t@3@b"), b"a\r\n\x00\\\taaab");
        assert_eq!(bytes("u@a"), b"u@a");
        is_consistent(Differential::Http1, corpus().into_iter().map(|(name, _)| name).collect());
        is_consistent(Differential::Http2, http2::corpus().into_iter().map(|(name, _)| name).collect());
    }
}
