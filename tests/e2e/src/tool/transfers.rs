//! Long transfers by curl and iperf3, one after the other in each of several lanes, so that at every moment as many are
//! under way as there are lanes. Each is checked when it is done.

use crate::process::Process;
use crate::tool::inside;
use crate::topology::Topology;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// Longest time one transfer may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The work of a lane.
#[derive(Clone, Debug)]
pub enum TransferLane {
    /// curl fetches a page and gets the bytes of the page.
    Curl {
        /// From where.
        target: String,
        /// Which page.
        page: &'static str,
        /// Bytes per second at most, as curl writes it (`700k`).
        rate: &'static str,
    },
    /// iperf3 with several streams.
    Iperf {
        /// To where.
        to: IpAddr,
        /// The port.
        port: u16,
        /// Streams at the same time.
        streams: usize,
        /// Mbit/s of each.
        mbit_s: u32,
        /// From the server to the client.
        reverse: bool,
        /// Seconds.
        seconds: u32,
    },
}

/// The result of a lane.
#[derive(Clone, Debug, Default)]
pub struct LaneResult {
    /// Transfers brought to their end.
    pub transfers: u64,
    /// Those that were not.
    pub broken: Vec<String>,
}

/// The lanes; they end when it is dropped.
#[derive(Debug)]
pub struct Transfers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<LaneResult>>>,
}

impl Transfers {
    /// Starts every lane from the client.
    pub fn start(topology: &Topology, lanes: Vec<TransferLane>) -> Transfers {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = lanes.into_iter().enumerate().map(|(number, lane)| {
            let stop = stop.clone();
            let file = topology.scratch.file(format!("lane-{number}"));
            let pages = topology.scratch.file("pages");
            // A process that a thread starts belongs to its namespace.
            inside::spawn(&topology.client, None, move || {
                let mut done = LaneResult::default();
                while !stop.load(Ordering::Relaxed) {
                    match lane.once(&file, &pages) {
                        Ok(()) => done.transfers += 1,
                        Err(error) => {
                            done.broken.push(format!("{error:#}"));
                            // Not again and again at once.
                            sleep(Duration::from_secs(1));
                        }
                    }
                }
                Ok(done)
            })
        });
        Transfers { threads: threads.collect(), stop }
    }

    /// Lets every transfer come to its end and says what each lane has done.
    pub fn stop(mut self) -> Result<Vec<LaneResult>> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).map(inside::join).collect()
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl TransferLane {
    fn once(&self, file: &Path, pages: &Path) -> Result<()> {
        match self {
            TransferLane::Curl { target, page, rate } => curl(target, page, rate, file, pages),
            TransferLane::Iperf { to, port, streams, mbit_s, reverse, seconds } => {
                let mut iperf = Command::new("iperf3");
                iperf.args(["--client", &to.to_string(), "--port", &port.to_string(), "--json"]);
                iperf.args(["--parallel", &streams.to_string(), "--bitrate", &format!("{mbit_s}M")]);
                iperf.args(["--time", &seconds.to_string(), "--connect-timeout", "15000"]);
                if *reverse {
                    iperf.arg("--reverse");
                }
                check_iperf(iperf, SocketAddr::new(*to, *port), *streams, file)
            }
        }
    }
}

fn curl(target: &str, page: &str, rate: &str, file: &Path, pages: &Path) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--globoff", "--connect-timeout", "15"]);
    curl.args(["--limit-rate", rate, "--max-time", &TIMEOUT.as_secs().to_string(), "--output"]);
    curl.arg(file).arg(format!("http://{target}/{page}"));
    let mut process = Process::start(curl, &log(file))?;
    let status = process.wait(TIMEOUT + Duration::from_secs(10))?;
    ensure!(status.success(), "`{}` failed ({status}): {}", process.line(), process.log());
    let (got, sent) = (std::fs::read(file)?, std::fs::read(pages.join(page))?);
    ensure!(got == sent, "`{}` brought other bytes ({} of {})", process.line(), got.len(), sent.len());
    Ok(())
}

fn log(file: &Path) -> PathBuf {
    file.with_extension("log")
}

fn check_iperf(command: Command, to: SocketAddr, streams: usize, file: &Path) -> Result<()> {
    // The server takes a moment to be ready for the next.
    sleep(Duration::from_millis(500));
    let mut process = Process::start(command, &log(file))?;
    let status = process.wait(TIMEOUT)?;
    let text = process.log();
    let report: Value = serde_json::from_str(&text).with_context(|| format!("`{}`: {text}", process.line()))?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3 to {to}: {error}");
    }
    ensure!(status.success(), "`{}` failed ({status})", process.line());
    let arrived = report["end"]["streams"].as_array().into_iter().flatten();
    let arrived: Vec<u64> = arrived.filter_map(|stream| stream["receiver"]["bytes"].as_u64()).collect();
    ensure!(arrived.len() == streams && arrived.iter().all(|bytes| *bytes > 0), "streams of iperf3 got {arrived:?}");
    Ok(())
}
