//! The cases, and the bars they are held to.

use super::peers::{Behind, HttpsNetwork, NAME, Site, Terminator};
use crate::l7::processor::Cores;
use crate::suite::report::{Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::tool::tls::{self, TlsLoad};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// Streams at a time on each connection over HTTP/2.
const STREAMS: usize = 8;
/// Connections whose memory is measured.
const IDLE: usize = 2000;
/// Certificates of a service that has many.
const MANY: usize = 10_000;
/// The time that a start with many certificates may take, in seconds.
const START_MAX_S: f64 = 2.0;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpsLoad {
    /// A handshake and a page of 1 KB for each connection; `resumed`: with the ticket of the one before.
    Handshakes { resumed: bool },
    /// A page over connections that stay.
    Page { page: &'static str, bytes: u64, http2: bool },
    /// Memory of idle connections.
    Memory,
    /// The 99th percentile of the times of pages of 1 KB, at half the rate that nginx reaches.
    Latency,
    /// The time until the port listens.
    Start,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpsCase {
    load: HttpsLoad,
    site: Site,
    /// Ours against nginx, and against HAProxy.
    bars: (f64, f64),
}

impl HttpsCase {
    /// Its name.
    pub(super) fn name(&self) -> String {
        let load = match self.load {
            HttpsLoad::Handshakes { resumed: false } => "full handshakes".to_owned(),
            HttpsLoad::Handshakes { resumed: true } => "resumed handshakes".to_owned(),
            HttpsLoad::Page { page, http2: false, .. } => format!("h1 {page} x {CONNECTIONS} kept"),
            HttpsLoad::Page { page, http2: true, .. } => format!("h2 {page} x {CONNECTIONS} x {STREAMS} streams"),
            HttpsLoad::Memory => format!("memory of {IDLE} idle connections"),
            HttpsLoad::Latency => format!("p99 of h1 1k x {CONNECTIONS} at half of nginx's peak"),
            HttpsLoad::Start => "start".to_owned(),
        };
        let certificates = if self.site.certificates > 0 { format!(", {MANY} certificates") } else { String::new() };
        load + self.site.behind.name() + &certificates
    }

    /// Whether less is better.
    fn is_cost(&self) -> bool {
        matches!(self.load, HttpsLoad::Memory | HttpsLoad::Latency | HttpsLoad::Start)
    }
}

/// All cases.
pub(super) fn all() -> Vec<HttpsCase> {
    let plain = Site { behind: Behind::ClearText, certificates: 0 };
    let many = Site { certificates: MANY, ..plain };
    let case = |load, site, nginx, haproxy| HttpsCase { load, site, bars: (nginx, haproxy) };
    let page = |page, bytes, http2, nginx, haproxy| case(HttpsLoad::Page { page, bytes, http2 }, plain, nginx, haproxy);
    let behind =
        |page, bytes, http2, behind| case(HttpsLoad::Page { page, bytes, http2 }, Site { behind, ..plain }, 1.0, 1.0);
    vec![
        case(HttpsLoad::Handshakes { resumed: false }, plain, 2.2, 2.2),
        case(HttpsLoad::Handshakes { resumed: true }, plain, 2.0, 2.0),
        page("1k", 1 << 10, false, 1.2, 1.35),
        page("16k", 16 << 10, false, 1.35, 1.35),
        page("1m", 1 << 20, false, 1.2, 1.1),
        page("16m", 16 << 20, false, 1.0, 1.3),
        page("1k", 1 << 10, true, 1.1, 1.0),
        page("16k", 16 << 10, true, 1.3, 1.25),
        page("1m", 1 << 20, true, 1.3, 1.5),
        behind("1k", 1 << 10, false, Behind::Tls),
        behind("1m", 1 << 20, false, Behind::Tls),
        behind("1k", 1 << 10, true, Behind::Http2),
        behind("1m", 1 << 20, true, Behind::Http2),
        case(HttpsLoad::Memory, plain, 1.0, 1.0),
        case(HttpsLoad::Latency, plain, 1.0, 1.0),
        case(HttpsLoad::Start, many, 1.0, 1.0),
        case(HttpsLoad::Handshakes { resumed: false }, many, 2.2, 2.2),
    ]
}

/// Measures a case: each peer in turn, several times.
pub(super) fn measure(
    net: &HttpsNetwork,
    case: &HttpsCase,
    duration: Duration,
    repetitions: usize,
) -> Result<Vec<ReportRow>> {
    println!("\n{}", case.name());
    let rate = if case.load == HttpsLoad::Latency { peak(net, duration)? / 2.0 } else { 0.0 };
    let mut samples: BTreeMap<Terminator, RepeatedValues> = BTreeMap::new();
    for repetition in 0..repetitions {
        let mut order = Terminator::ALL;
        if repetition % 2 == 1 {
            order.reverse();
        }
        for peer in order.into_iter().filter(|peer| peer.can(case.site.behind)) {
            let value = once(net, case, (duration, rate), peer).with_context(|| peer.name())?;
            samples.entry(peer).or_default().push(value);
        }
    }
    let unit = unit(case.load);
    let medians: BTreeMap<String, f64> =
        samples.iter().map(|(peer, samples)| (peer.name().to_owned(), samples.median())).collect();
    let ours = samples.remove(&Terminator::Hairpin).unwrap_or_default();
    let bar = |bar| if case.is_cost() { Bar::AtMost(bar) } else { Bar::AtLeast(bar) };
    let mut beside = medians;
    beside.remove(Terminator::Hairpin.name());
    let row =
        |(peer, value): (Terminator, f64)| ReportRow::new(case.name(), unit, &ours, &beside, peer.name(), bar(value));
    let peers = [(Terminator::Nginx, case.bars.0), (Terminator::Haproxy, case.bars.1)];
    let mut rows: Vec<ReportRow> = peers.into_iter().filter(|(peer, _)| peer.can(case.site.behind)).map(row).collect();
    if case.load == HttpsLoad::Start {
        rows.push(ReportRow::against_value(case.name(), unit, &ours, "2 s", START_MAX_S, bar(1.0)));
    }
    Ok(rows)
}

/// The requests a second that nginx answers in clear text behind, at most.
fn peak(net: &HttpsNetwork, duration: Duration) -> Result<f64> {
    let site = Site { behind: Behind::ClearText, certificates: 0 };
    let _running = net.start(Terminator::Nginx, site)?;
    let rate = pages(net, Terminator::Nginx, ("1k", 1 << 10), false, duration)? / duration.as_secs_f64();
    println!("  nginx answers {}/s at most", metric(rate));
    Ok(rate)
}

/// In work for each second that the balancer's core was busy.
fn unit(load: HttpsLoad) -> &'static str {
    match load {
        HttpsLoad::Handshakes { .. } => "/core-s",
        HttpsLoad::Page { bytes, .. } if is_large(bytes) => "bit/core-s",
        HttpsLoad::Page { .. } => "/core-s",
        HttpsLoad::Memory => "B",
        HttpsLoad::Latency => "us",
        HttpsLoad::Start => "s",
    }
}

/// One measurement of one peer; `rate`: requests a second, where the load does not find its own.
fn once(net: &HttpsNetwork, case: &HttpsCase, (duration, rate): (Duration, f64), peer: Terminator) -> Result<f64> {
    let (mut running, started) = net.timed_start(peer, case.site)?;
    if case.load == HttpsLoad::Start {
        println!("  {:8} {:>6.2} s", peer.name(), started.as_secs_f64());
        return Ok(started.as_secs_f64());
    }
    if case.load == HttpsLoad::Latency {
        let p99_us = latency(net, peer, rate, duration)?;
        println!("  {:8} {p99_us:>6.0} us at {}/s", peer.name(), metric(rate));
        return Ok(p99_us);
    }
    if case.load == HttpsLoad::Memory {
        let bytes = memory(net, peer, running.process())?;
        println!("  {:8} {:>9}B for each connection", peer.name(), metric(bytes));
        return Ok(bytes);
    }
    let (before, began) = (Cores::now()?, Instant::now());
    let (count, each) = match case.load {
        HttpsLoad::Page { page, bytes, http2 } => (pages(net, peer, (page, bytes), http2, duration)?, bytes),
        HttpsLoad::Handshakes { resumed } => {
            let cpu = HttpsNetwork::client_cpu().parse()?;
            let load = TlsLoad { to: peer.target(), name: NAME, page: "1k", connections: 8, resumed, duration, cpu };
            (tls::handshakes(&net.topology.client, &net.certificate, load)? as f64, 0)
        }
        HttpsLoad::Memory | HttpsLoad::Latency | HttpsLoad::Start => (0.0, 0),
    };
    let took = began.elapsed().as_secs_f64();
    let cores = Cores::now()?;
    running.process().check()?;
    // The balancer's core.
    let idle = cores.times_since(&before).get(1).map_or(0.0, |core| core.idle_s);
    let busy = (took - idle).max(0.01);
    let amount = if unit(case.load) == "bit/core-s" { count * each as f64 * 8.0 } else { count };
    let (value, rate) = (amount / busy, amount / duration.as_secs_f64());
    let rate_unit = unit(case.load).replace("core-s", "s");
    println!(
        "  {:8} {:>9}{} ({}{rate_unit}); {}",
        peer.name(),
        metric(value),
        unit(case.load),
        metric(rate),
        cores.since(&before)
    );
    Ok(value)
}

/// The 99th percentile of the times of pages, in microseconds, at so many requests a second.
fn latency(net: &HttpsNetwork, peer: Terminator, rate: f64, duration: Duration) -> Result<f64> {
    let log = net.topology.scratch.file("h2load.log");
    // h2load wants a file that is not there yet.
    let _ = std::fs::remove_file(&log);
    let each = (rate / CONNECTIONS as f64).round().max(1.0);
    let more = [format!("--rps={each}"), format!("--log-file={}", log.display())];
    load(net, peer, ("1k", false), duration, &more)?;
    // Lines of start, status and microseconds.
    let text = std::fs::read_to_string(&log)?;
    let times = text.lines().filter_map(|line| line.split('\t').nth(2)?.parse::<u64>().ok());
    let mut times: Vec<u64> = times.collect();
    ensure!(times.len() >= 1000, "{} of h2load's times are too few for a percentile", times.len());
    times.sort_unstable();
    Ok(times[times.len() * 99 / 100] as f64)
}

/// How many pages h2load gets, parts of large ones that are still on their way included.
fn pages(net: &HttpsNetwork, peer: Terminator, page: (&str, u64), http2: bool, duration: Duration) -> Result<f64> {
    let (name, bytes) = page;
    let (whole, data) = load(net, peer, (name, http2), duration, &[])?;
    Ok(if is_large(bytes) { data as f64 / bytes as f64 } else { whole as f64 })
}

/// Whether a page of so many bytes is measured by its bytes.
fn is_large(bytes: u64) -> bool {
    bytes > 1024
}

/// Runs h2load with `more` arguments: how many pages it gets as a whole, and bytes of bodies.
fn load(
    net: &HttpsNetwork,
    peer: Terminator,
    (page, http2): (&str, bool),
    duration: Duration,
    more: &[String],
) -> Result<(u64, u64)> {
    let mut h2load = net.topology.client.command_on(HttpsNetwork::client_cpu(), "h2load");
    h2load.args(["-t1", &format!("-c{CONNECTIONS}"), "-D", &duration.as_secs().max(1).to_string()]).args(more);
    h2load.args(["--warm-up-time=0", "--ciphers=ECDHE-ECDSA-AES128-GCM-SHA256"]);
    h2load.args(["--tls13-ciphers=TLS_AES_128_GCM_SHA256"].into_iter().filter(|_| has_tls13_ciphers()));
    // Windows as browsers have them.
    h2load.args(if http2 { vec![format!("-m{STREAMS}"), "-w24".into(), "-W24".into()] } else { vec!["--h1".into()] });
    h2load.args(["--connect-to", &peer.target().to_string()]);
    h2load.arg(format!("https://{NAME}:{}/{page}", peer.target().port()));
    let said = command::output(&mut h2load)?;
    let line = said.lines().find(|line| line.starts_with("requests: ")).with_context(|| said.clone())?;
    let number = |what: &str| {
        let before = line.split(what).next()?.trim_end();
        before.rsplit([' ', ',']).next()?.parse::<u64>().ok()
    };
    let (done, failed) = (number(" succeeded"), number(" failed"));
    ensure!(failed == Some(0), "{line}");
    // "traffic: 1.20MB (1258291) total, 28.91KB (29600) headers (space savings 80.00%), 1.14MB (1197056) data"
    let traffic = said.lines().find(|line| line.starts_with("traffic: ")).with_context(|| said.clone())?;
    let data = traffic.rsplit_once(") data").and_then(|(before, _)| before.rsplit_once('(')?.1.parse().ok());
    Ok((done.with_context(|| line.to_owned())?, data.with_context(|| traffic.to_owned())?))
}

/// Newer versions of h2load have an option of their own for the ciphers of TLS 1.3.
fn has_tls13_ciphers() -> bool {
    let help = std::process::Command::new("h2load").arg("--help").output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--tls13-ciphers"))
}

/// Bytes of memory that an idle connection takes.
fn memory(net: &HttpsNetwork, peer: Terminator, process: &hairpin_e2e::process::Process) -> Result<f64> {
    // What the first ones bring into being is not theirs alone.
    let first = tls::hold(&net.topology.client, &net.certificate, (peer.target(), NAME), 50)?;
    let before = resident(process)?;
    let held = tls::hold(&net.topology.client, &net.certificate, (peer.target(), NAME), IDLE)?;
    let after = resident(process)?;
    drop((first, held));
    Ok((after - before) / IDLE as f64)
}

/// The resident memory of a process and its children.
fn resident(process: &hairpin_e2e::process::Process) -> Result<f64> {
    std::thread::sleep(Duration::from_millis(500));
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.id())).unwrap_or_default();
    let own = process.resident_bytes()? as f64;
    let of = |child: &str| -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok()? * 1024.0)
    };
    Ok(own + children.split_whitespace().filter_map(of).sum::<f64>())
}
