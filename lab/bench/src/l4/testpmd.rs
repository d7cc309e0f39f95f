//! `dpdk-testpmd` over the same source: what stands beside.

use super::Pages;
use super::device::{CACHE, DATA_ROOM, MBUFS_SPARE, MeasuredWork};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long it may take to get ready: it reads the replay twice.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Headroom that testpmd's buffers have before the data.
const HEADROOM: u16 = 128;

/// A testpmd with its console.
struct Testpmd {
    child: Child,
    console: ChildStdin,
    lines: Receiver<String>,
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Testpmd {
    /// Waits for a line that contains `text`.
    fn wait_for(&self, text: &str, timeout: Duration) -> Result<String> {
        let end = Instant::now() + timeout;
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(line) => last = line,
                Err(RecvTimeoutError::Timeout) => bail!("testpmd never said {text:?}; its last words: {last}"),
                Err(RecvTimeoutError::Disconnected) => bail!("testpmd has ended; its last words: {last}"),
            }
        }
    }

    fn say(&mut self, command: &str) -> Result<()> {
        writeln!(self.console, "{command}").context("testpmd does not listen")
    }

    /// Time that its forwarding thread has been on the processor.
    fn running(&self) -> Result<Duration> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        for task in tasks {
            let path = task?.path();
            if std::fs::read_to_string(path.join("comm"))?.starts_with("rte-worker") {
                let text = std::fs::read_to_string(path.join("schedstat"))?;
                let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
                return Ok(Duration::from_nanos(nanoseconds.context("schedstat")?));
            }
        }
        bail!("testpmd has no forwarding thread")
    }
}

/// Forwards for some time in `mode`, on processor `core`, its console on `main`.
pub(super) fn measure(
    mode: &str,
    (pcap, packets): (&Path, usize),
    (main, core): (usize, usize),
    seconds: f64,
    pages: Pages,
) -> Result<MeasuredWork> {
    let mut command = Command::new("stdbuf");
    let memory = (((packets + MBUFS_SPARE) * 1024) >> 20) + 512;
    command.args(["-oL", "dpdk-testpmd", "--lcores"]).arg(format!("0@{main},1@{core}"));
    match pages {
        Pages::Huge => command.arg("--in-memory"),
        Pages::Ordinary => command.args(["--no-huge", "-m"]).arg(memory.to_string()),
    };
    command.args(["--no-pci", "--no-telemetry"]).arg(format!("--file-prefix=bench-{}", std::process::id()));
    command.arg(format!("--vdev=net_pcap0,rx_pcap={},infinite_rx=1", pcap.display())).arg("--");
    command.arg(format!("--forward-mode={mode}")).arg(format!("--total-num-mbufs={}", packets + MBUFS_SPARE));
    command.arg(format!("--mbuf-size={}", HEADROOM + DATA_ROOM)).arg(format!("--mbcache={CACHE}"));
    command.args(["--burst=64", "--no-lsc-interrupt", "--port-topology=loop", "--interactive"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("could not start dpdk-testpmd (scripts/install-deps)")?;
    let (console, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .take_while(|line| sender.send(line.clone()).is_ok())
            .count()
    });
    let mut testpmd = Testpmd { child, console, lines };
    testpmd.wait_for("Checking link statuses", START_TIMEOUT)?;
    testpmd.wait_for("Done", START_TIMEOUT)?;
    // Once round, so that no page is met for the first time.
    testpmd.say("start")?;
    testpmd.wait_for("packet forwarding packets/burst", START_TIMEOUT)?;
    std::thread::sleep(Duration::from_secs_f64(seconds / 2.0));
    testpmd.say("stop")?;
    testpmd.wait_for("Accumulated forward statistics", START_TIMEOUT)?;
    testpmd.wait_for("Done.", START_TIMEOUT)?;
    let before = testpmd.running()?;
    testpmd.say("start")?;
    testpmd.wait_for("packet forwarding packets/burst", START_TIMEOUT)?;
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    testpmd.say("stop")?;
    testpmd.wait_for("Accumulated forward statistics", START_TIMEOUT)?;
    let elapsed = begin.elapsed();
    let (received, sent) = (total(&testpmd, "RX-packets:")?, total(&testpmd, "TX-packets:")?);
    testpmd.wait_for("Done.", START_TIMEOUT)?;
    let running = testpmd.running()? - before;
    ensure!(sent > 0, "testpmd has sent nothing in mode {mode}");
    testpmd.say("quit")?;
    let _ = testpmd.wait_for("Bye", Duration::from_secs(20));
    let (running_s, elapsed_s) = (running.as_secs_f64(), elapsed.as_secs_f64());
    Ok(MeasuredWork { what: mode.to_owned(), received, sent, created: 0, running_s, elapsed_s })
}

/// The number behind `what` in the next line that has it.
fn total(testpmd: &Testpmd, what: &str) -> Result<u64> {
    let line = testpmd.wait_for(what, START_TIMEOUT)?;
    let number = line.split(what).nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("testpmd's {line:?}"))
}
