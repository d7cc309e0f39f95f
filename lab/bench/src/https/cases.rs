//! The cases, and the bars they are held to.

use super::peers::{HttpsNetwork, NAME, Terminator};
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

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpsLoad {
    /// A handshake and a page of 1 KB for each connection; `resumed`: with the ticket of the one before.
    Handshakes { resumed: bool },
    /// A page over connections that stay.
    Page { page: &'static str, bytes: usize, http2: bool },
    /// Memory of idle connections.
    Memory,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpsCase {
    load: HttpsLoad,
    /// Ours against nginx, and against HAProxy.
    bars: (f64, f64),
}

impl HttpsCase {
    /// Its name.
    pub(super) fn name(&self) -> String {
        match self.load {
            HttpsLoad::Handshakes { resumed: false } => "full handshakes".to_owned(),
            HttpsLoad::Handshakes { resumed: true } => "resumed handshakes".to_owned(),
            HttpsLoad::Page { page, http2: false, .. } => format!("h1 {page} x {CONNECTIONS} kept"),
            HttpsLoad::Page { page, http2: true, .. } => format!("h2 {page} x {CONNECTIONS} x {STREAMS} streams"),
            HttpsLoad::Memory => format!("memory of {IDLE} idle connections"),
        }
    }
}

/// All cases.
pub(super) fn all() -> Vec<HttpsCase> {
    let page = |page, bytes, http2, nginx, haproxy| HttpsCase {
        load: HttpsLoad::Page { page, bytes, http2 },
        bars: (nginx, haproxy),
    };
    vec![
        HttpsCase { load: HttpsLoad::Handshakes { resumed: false }, bars: (2.2, 2.2) },
        HttpsCase { load: HttpsLoad::Handshakes { resumed: true }, bars: (2.0, 2.0) },
        page("1k", 1 << 10, false, 1.2, 1.35),
        page("16k", 16 << 10, false, 1.35, 1.35),
        page("1m", 1 << 20, false, 1.2, 1.1),
        page("16m", 16 << 20, false, 1.0, 1.3),
        page("1k", 1 << 10, true, 1.1, 1.0),
        page("16k", 16 << 10, true, 1.3, 1.25),
        page("1m", 1 << 20, true, 1.3, 1.5),
        HttpsCase { load: HttpsLoad::Memory, bars: (1.0, 1.0) },
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
    let mut samples: BTreeMap<Terminator, RepeatedValues> = BTreeMap::new();
    for repetition in 0..repetitions {
        let mut order = Terminator::ALL;
        if repetition % 2 == 1 {
            order.reverse();
        }
        for peer in order {
            let value = once(net, case, duration, peer).with_context(|| peer.name())?;
            samples.entry(peer).or_default().push(value);
        }
    }
    let unit = unit(case.load);
    let medians: BTreeMap<String, f64> =
        samples.iter().map(|(peer, samples)| (peer.name().to_owned(), samples.median())).collect();
    let ours = samples.remove(&Terminator::Hairpin).unwrap_or_default();
    let bar = |bar| if case.load == HttpsLoad::Memory { Bar::AtMost(bar) } else { Bar::AtLeast(bar) };
    let mut beside = medians;
    beside.remove(Terminator::Hairpin.name());
    let row = |peer: Terminator, value| ReportRow::new(case.name(), unit, &ours, &beside, peer.name(), bar(value));
    Ok(vec![row(Terminator::Nginx, case.bars.0), row(Terminator::Haproxy, case.bars.1)])
}

/// In work for each second that the balancer's core was busy.
fn unit(load: HttpsLoad) -> &'static str {
    match load {
        HttpsLoad::Handshakes { .. } => "/core-s",
        HttpsLoad::Page { bytes, .. } if bytes <= 1024 => "/core-s",
        HttpsLoad::Page { .. } => "bit/core-s",
        HttpsLoad::Memory => "B",
    }
}

/// One measurement of one peer.
fn once(net: &HttpsNetwork, case: &HttpsCase, duration: Duration, peer: Terminator) -> Result<f64> {
    let mut running = net.start(peer)?;
    if case.load == HttpsLoad::Memory {
        let bytes = memory(net, peer, running.process())?;
        println!("  {:8} {:>9}B for each connection", peer.name(), metric(bytes));
        return Ok(bytes);
    }
    let (before, began) = (Cores::now()?, Instant::now());
    let (count, each) = match case.load {
        HttpsLoad::Page { page, bytes, http2 } => (pages(net, peer, page, http2, duration)?, bytes),
        HttpsLoad::Handshakes { resumed } => {
            let cpu = HttpsNetwork::client_cpu().parse()?;
            let load = TlsLoad { to: peer.target(), name: NAME, page: "1k", connections: 8, resumed, duration, cpu };
            (tls::handshakes(&net.topology.client, &net.certificate, load)?, 0)
        }
        HttpsLoad::Memory => (0, 0),
    };
    let took = began.elapsed().as_secs_f64();
    let cores = Cores::now()?;
    running.process().check()?;
    // The balancer's core.
    let idle = cores.times_since(&before).get(1).map_or(0.0, |core| core.idle_s);
    let busy = (took - idle).max(0.01);
    let amount = if unit(case.load) == "bit/core-s" { count as f64 * each as f64 * 8.0 } else { count as f64 };
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

/// How many pages h2load gets.
fn pages(net: &HttpsNetwork, peer: Terminator, page: &str, http2: bool, duration: Duration) -> Result<u64> {
    let mut h2load = net.topology.client.command_on(HttpsNetwork::client_cpu(), "h2load");
    h2load.args(["-t1", &format!("-c{CONNECTIONS}"), "-D", &duration.as_secs().max(1).to_string()]);
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
    done.with_context(|| line.to_owned())
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
