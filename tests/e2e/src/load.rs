//! Real clients: curl, wrk, iperf3; and what they print, as numbers.

use crate::command;
use crate::namespace::Namespace;
use crate::topology::{Topology, end};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How much longer than planned a client may take.
const GRACE: Duration = Duration::from_secs(30);

/// The results of wrk, all of its processes together.
#[derive(Clone, Debug, Default)]
pub struct Wrk {
    /// Answers per second.
    pub requests_per_s: f64,
    /// Bits of answers per second, headers included.
    pub bits_per_s: f64,
    /// 99th percentile of the time to an answer, the worst of the processes, in milliseconds.
    pub p99_ms: f64,
    /// Mean time to an answer, the worst of the processes, in milliseconds.
    pub mean_ms: f64,
    /// Answers in all.
    pub requests: u64,
    /// Failed connections, reads, writes, timeouts, and answers other than 2xx and 3xx.
    pub errors: u64,
    /// The lines in which wrk counts errors.
    pub complaints: Vec<String>,
}

/// How to run wrk.
#[derive(Clone, Debug)]
pub struct WrkOptions {
    /// The page asked for.
    pub page: &'static str,
    /// Connections of all processes together.
    pub connections: usize,
    /// How long.
    pub duration: Duration,
    /// Whether each request gets a connection of its own.
    pub close: bool,
}

/// Runs one wrk (one thread) per target at the same time. A target is `address:port`.
pub fn wrk(topology: &Topology, targets: &[String], options: &WrkOptions) -> Result<Wrk> {
    let mut processes = Vec::new();
    for (i, target) in targets.iter().enumerate() {
        let command = wrk_command(&topology.client, target, targets.len(), options);
        processes.push(topology.client.start(command, &topology.scratch.file(format!("wrk-{i}")))?);
    }
    let mut sum = Wrk::default();
    for process in &mut processes {
        let status = process.wait(options.duration + GRACE)?;
        let text = process.log();
        if !status.success() {
            bail!("`{}` failed: {text}", process.line());
        }
        let one = parse_wrk(&text).with_context(|| format!("`{}` printed:\n{text}", process.line()))?;
        sum.requests_per_s += one.requests_per_s;
        sum.bits_per_s += one.bits_per_s;
        sum.p99_ms = sum.p99_ms.max(one.p99_ms);
        sum.mean_ms = sum.mean_ms.max(one.mean_ms);
        sum.requests += one.requests;
        sum.errors += one.errors;
        sum.complaints.extend(one.complaints);
    }
    Ok(sum)
}

/// The command of one of `processes` wrks.
pub fn wrk_command(client: &Namespace, target: &str, processes: usize, options: &WrkOptions) -> std::process::Command {
    let mut wrk = client.command("wrk");
    let connections = options.connections.div_ceil(processes);
    wrk.args(["-t1", &format!("-c{connections}"), &format!("-d{}s", options.duration.as_secs().max(1)), "--latency"]);
    // An answer that takes longer counts as an error. wrk's own 2 s can pass on a machine that is busy with other work.
    wrk.args(["--timeout", "10s"]);
    if options.close {
        wrk.args(["-H", "Connection: close"]);
    }
    wrk.arg(format!("http://{target}/{}", options.page));
    wrk
}

/// The output of one wrk, as numbers.
pub fn parse_wrk(text: &str) -> Result<Wrk> {
    let field = |label: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(label))?;
        line.trim_start()[label.len()..].split_whitespace().next().map(str::to_owned)
    };
    let mut wrk = Wrk {
        requests_per_s: field("Requests/sec:").context("no request rate")?.parse()?,
        bits_per_s: 8.0 * scaled(&field("Transfer/sec:").context("no transfer rate")?).context("transfer rate")?,
        p99_ms: field("99%").as_deref().and_then(milliseconds).context("no 99th percentile")?,
        // The first line that begins so; the distribution comes later.
        mean_ms: field("Latency").as_deref().and_then(milliseconds).context("no mean time")?,
        ..Wrk::default()
    };
    for line in text.lines().map(str::trim) {
        if let Some((count, _)) = line.split_once(" requests in ") {
            wrk.requests = count.parse()?;
        } else if let Some(counts) = line.strip_prefix("Socket errors:") {
            wrk.errors += counts.split([',', ' ']).filter_map(|word| word.parse::<u64>().ok()).sum::<u64>();
            wrk.complaints.push(line.to_owned());
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
            wrk.errors += count.trim().parse::<u64>()?;
            wrk.complaints.push(line.to_owned());
        }
    }
    Ok(wrk)
}

/// wrk's binary units of bytes.
fn scaled(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "B" => 1.0,
        "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * factor)
}

fn milliseconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1000.0,
        "m" => 60_000.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * factor)
}

/// How to run iperf3.
#[derive(Clone, Copy, Debug)]
pub struct IperfOptions {
    /// Streams at the same time.
    pub streams: usize,
    /// How much.
    pub amount: Amount,
    /// UDP at this many Mbit/s per stream; TCP if `None`.
    pub udp_mbit_s: Option<u32>,
    /// From the server to the client.
    pub reverse: bool,
}

/// The throughput of iperf3.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// Sends as much as it can in this time, whole seconds of it.
    For(Duration),
    /// So many MB, all streams together, however long it takes (but not for ever).
    Megabytes(u32),
}

/// The results of iperf3.
#[derive(Clone, Copy, Debug, Default)]
pub struct Iperf {
    /// Payload received, in bits per second.
    pub bits_per_s: f64,
    /// Share of UDP datagrams lost, 0 to 1.
    pub lost: f64,
    /// TCP segments sent again.
    pub retransmits: u64,
}

/// The iperf3 client's command, on core 0.
pub fn iperf_command(client: &Namespace, to: IpAddr, port: u16, options: &IperfOptions) -> std::process::Command {
    let mut iperf = client.command_on("0", "iperf3");
    iperf.args(["--client", &to.to_string(), "--port", &port.to_string(), "--json"]);
    match options.amount {
        Amount::For(duration) => iperf.args(["--time", &duration.as_secs().max(1).to_string()]),
        Amount::Megabytes(megabytes) => iperf.args(["--bytes", &(u64::from(megabytes) * 1_000_000).to_string()]),
    };
    iperf.args(["--parallel", &options.streams.to_string(), "--connect-timeout", "5000"]);
    if let Some(rate) = options.udp_mbit_s {
        iperf.args(["--udp", "--bitrate", &format!("{rate}M"), "--length", "1400"]);
    }
    if options.reverse {
        iperf.arg("--reverse");
    }
    iperf
}

/// Runs iperf3 from the client to `to:port`. A server takes one client at a time, and may be at the end of the one before
/// for some time on a machine that is busy: it is asked again.
pub fn iperf(topology: &Topology, to: IpAddr, port: u16, options: &IperfOptions) -> Result<Iperf> {
    let begun = Instant::now();
    loop {
        match iperf_once(topology, to, port, options) {
            Err(error) if format!("{error:#}").contains("server is busy") && begun.elapsed() < GRACE => {
                sleep(Duration::from_millis(200));
            }
            result => return result,
        }
    }
}

fn iperf_once(topology: &Topology, to: IpAddr, port: u16, options: &IperfOptions) -> Result<Iperf> {
    let command = iperf_command(&topology.client, to, port, options);
    let log = topology.scratch.file(format!("iperf3-client-{port}-{}", options.udp_mbit_s.is_some()));
    let mut process = topology.client.start(command, &log)?;
    let planned = if let Amount::For(duration) = options.amount { duration } else { GRACE };
    let status = process.wait(planned + GRACE)?;
    let text = process.log();
    if !status.success() {
        bail!("`{}` to {} failed: {text}", process.line(), end(to, port));
    }
    parse_iperf(&text, options.udp_mbit_s.is_some()).with_context(|| format!("`{}` printed:\n{text}", process.line()))
}

fn parse_iperf(text: &str, udp: bool) -> Result<Iperf> {
    let report: Value = serde_json::from_str(text)?;
    if let Some(error) = report["error"].as_str() {
        bail!("{error}");
    }
    let all = &report["end"];
    let received = if udp { &all["sum"] } else { &all["sum_received"] };
    let bits_per_s = received["bits_per_second"].as_f64().context("no rate")?;
    let lost = received["lost_percent"].as_f64().unwrap_or(0.0) / 100.0;
    // UDP's one sum is what was sent; what arrived is the share that was not lost.
    let bits_per_s = if udp { bits_per_s * (1.0 - lost) } else { bits_per_s };
    Ok(Iperf { bits_per_s, lost, retransmits: all["sum_sent"]["retransmits"].as_u64().unwrap_or(0) })
}

/// From iperf3's JSON: the bits per second that its intervals show from `from_s` seconds on.
pub fn goodput_after(text: &str, from_s: f64) -> Result<f64> {
    let report: Value = serde_json::from_str(text)?;
    if let Some(error) = report["error"].as_str() {
        bail!("{error}");
    }
    let intervals = report["intervals"].as_array().into_iter().flatten().map(|interval| &interval["sum"]);
    let later = intervals.filter(|sum| sum["start"].as_f64().is_some_and(|start| start >= from_s - 0.01));
    let field = |sum: &Value, name: &str| sum[name].as_f64().unwrap_or(0.0);
    let (bytes, seconds) =
        later.fold((0.0, 0.0), |(bytes, seconds), sum| (bytes + field(sum, "bytes"), seconds + field(sum, "seconds")));
    if seconds == 0.0 { bail!("no interval after {from_s} s") } else { Ok(8.0 * bytes / seconds) }
}

/// The response that curl received.
#[derive(Clone, Debug, Default)]
pub struct FetchedPage {
    /// The answer's headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The file of the body.
    pub body: PathBuf,
}

impl FetchedPage {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.as_str())
    }
}

/// Gets `http://target/page` into a file of the topology's scratch directory named `name`.
pub fn curl(from: &Namespace, topology: &Topology, target: &str, page: &str, name: &str) -> Result<FetchedPage> {
    let (body, headers) = (topology.scratch.file(name), topology.scratch.file(format!("{name}.headers")));
    let mut curl = from.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--globoff", "--max-time", "60", "--connect-timeout", "5"]);
    curl.arg("--output").arg(&body).arg("--dump-header").arg(&headers).arg(format!("http://{target}/{page}"));
    command::output(&mut curl)?;
    let text = std::fs::read_to_string(&headers)?;
    let headers = text.lines().filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Ok(FetchedPage { headers, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_output() {
        let text = "Running 1s test @ http://10.0.1.2/1k\n  1 threads and 10 connections\n  Thread Stats   Avg\n    \
                    Latency   300.00us  100.00us   5.00ms   90.00%\n  Latency Distribution\n     50%  250.00us\n     \
                    99%    1.25ms\n  35000 requests in 1.00s, 41.00MB read\n  Socket errors: connect 0, read 1, \
                    write 0, timeout 2\n  Non-2xx or 3xx responses: 4\nRequests/sec:  34999.50\nTransfer/sec:     \
                    41.00MB\n";
        let wrk = parse_wrk(text).unwrap();
        assert_eq!(wrk.requests_per_s, 34999.5);
        assert_eq!((wrk.p99_ms, wrk.mean_ms), (1.25, 0.3));
        assert_eq!(wrk.bits_per_s, 8.0 * 41.0 * 1048576.0);
        assert_eq!((wrk.requests, wrk.errors), (35000, 7));
        assert_eq!(wrk.complaints.len(), 2, "{:?}", wrk.complaints);
        assert!(parse_wrk("unable to connect to 10.0.1.2:http Connection refused").is_err());
    }

    #[test]
    fn iperf_output() {
        let text = r#"{"end": {"sum_sent": {"retransmits": 3}, "sum_received": {"bits_per_second": 2e10}}}"#;
        let iperf = parse_iperf(text, false).unwrap();
        assert_eq!((iperf.bits_per_s, iperf.retransmits), (2e10, 3));
        let text = r#"{"end": {"sum": {"bits_per_second": 1e9, "lost_percent": 10}}}"#;
        assert_eq!(parse_iperf(text, true).unwrap().bits_per_s, 0.9e9);
        assert!(parse_iperf(r#"{"error": "unable to connect", "end": {}}"#, false).is_err());
    }

    #[test]
    fn intervals_of_iperf() {
        let interval = |start: u32, bytes: u32| {
            format!(r#"{{"sum": {{"start": {start}.0001, "seconds": 1.0, "bytes": {bytes}}}}}"#)
        };
        let intervals = [interval(0, 1_000_000), interval(1, 1000), interval(2, 3000)].join(", ");
        assert_eq!(goodput_after(&format!(r#"{{"intervals": [{intervals}]}}"#), 1.0).unwrap(), 16_000.0);
        assert!(goodput_after(r#"{"intervals": []}"#, 1.0).is_err());
    }

    #[test]
    fn units() {
        assert_eq!(milliseconds("250.00us"), Some(0.25));
        assert_eq!(milliseconds("1.50s"), Some(1500.0));
        assert_eq!(milliseconds("nan"), None);
        assert_eq!(scaled("1.50KB"), Some(1536.0));
        assert_eq!(scaled("12"), None);
    }
}
