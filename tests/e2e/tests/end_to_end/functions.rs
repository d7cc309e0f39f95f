//! The example of a function other than balancing (docs/internals/functions.md): it is built, and two clients go through it.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::process::patience;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, client_address, end, server_address};
use libtest_mimic::Trial;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("functions: a client is cut off at its quota", cut_off)]
}

/// What docs/internals/functions.md says of the example.
const LINES_MAX: usize = 150;
/// Bytes of payload that a client may send and receive: more than the page of the one, less than that of the other.
const QUOTA: usize = 48 << 20;
/// The largest payload of a packet, in bytes: where the last one does not fit, so much of the quota is left.
const PACKET: usize = 65_536;
/// How long it may take to start the example, and to end it.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a client that is cut off waits for bytes.
const SILENT_S: &str = "3";

/// Builds the example as cargo does, beside the program of these tests.
fn built() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let target = own.ancestors().nth(3).context("no target directory above this program")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--package", "hairpin-linux", "--example", "quota", "--target-dir"]).arg(target);
    command::output(cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")))?;
    Ok(target.join("debug/examples/quota"))
}

/// The example, which ends with its standard input.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(topology: &Topology, program: &Path, arguments: &[&str]) -> Result<Running> {
        let log = topology.scratch.file("quota.log");
        let output = File::create(&log)?;
        let mut command = topology.balancer.command(&program.to_string_lossy());
        command.args(arguments).stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
        let mut running = Running { child: command.spawn()?, log };
        let begun = Instant::now();
        while !running.printed()?.contains("ready") {
            ensure!(running.child.try_wait()?.is_none(), "the example has ended: {}", running.printed()?);
            ensure!(begun.elapsed() < patience(READY_WITHIN), "the example is not ready: {}", running.printed()?);
            sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    fn printed(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// What it has printed when it has ended.
    fn end(&mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the example has ended with {status}: {}", self.printed()?);
                return self.printed();
            }
            ensure!(begun.elapsed() < patience(READY_WITHIN), "the example does not end: {}", self.printed()?);
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of a client's line: bytes, and those of them that the engine has carried.
fn numbers(report: &str, client: &str) -> Result<[usize; 2]> {
    let prefix = format!("{client}: ");
    let line =
        report.lines().find_map(|line| line.strip_prefix(&prefix)).with_context(|| format!("{client}: {report}"))?;
    let all: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Ok([*all.first().context("no bytes")?, *all.get(1).context("no bytes of the engine")?])
}

/// One client within its quota and one beyond it, at the same server; then the first one again.
fn cut_off() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/linux/examples/quota.rs");
    let lines = std::fs::read_to_string(source)?.lines().count();
    ensure!(lines <= LINES_MAX, "the example has {lines} lines; docs/internals/functions.md promises {LINES_MAX}");
    let program = built()?;
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let server = end(server_address(Family::V4, 1), HTTP_PORT);
    let mut running = Running::start(&topology, &program, &["client0,flood0,server1", &server, &QUOTA.to_string()])?;
    let within = |name: &str| -> Result<()> {
        let page = load::curl(&topology.client, &topology, &server, "10m", name)?;
        let same = std::fs::read(&page.body)? == std::fs::read(topology.scratch.file("pages/10m"))?;
        ensure!(same, "the client within its quota got other bytes");
        Ok(())
    };
    within("within")?;
    let got = beyond(&topology, &topology.flooder, &server)?;
    within("again")?;
    // The server's FIN ends the lease, and with it what the engine has carried is known.
    let begun = Instant::now();
    while open(&topology.client)? > 0 {
        ensure!(begun.elapsed() < patience(READY_WITHIN), "the server has not closed");
        sleep(Duration::from_millis(20));
    }
    let report = running.end()?;
    let address = client_address(Family::V4).to_string();
    let [used, by_engine] = numbers(&report, &address)?;
    // Two pages of 10 MiB, with their heads, and of what the engine has carried the headers of packets.
    ensure!((20 << 20..22 << 20).contains(&used) && by_engine > 1 << 20, "{report}");
    let [used, by_engine] = numbers(&report, "10.0.9.2")?;
    ensure!(used <= QUOTA && used + PACKET > QUOTA && by_engine > QUOTA / 2, "{report}");
    ensure!(got <= used && got > QUOTA / 2, "{got} bytes arrived: {report}");
    let cut = |line: &&str| line.ends_with("cut off: true");
    ensure!(report.lines().filter(cut).count() == 1 && report.contains("10.0.9.2"), "{report}");
    // Nothing of it is left: the client that was cut off gets all of its page from the kernel's routing.
    ensure!(!topology.balancer.interfaces()?.iter().any(|name| name == "quota0"), "its device is still there");
    let page = load::curl(&topology.flooder, &topology, &server, "10m", "after")?;
    ensure!(std::fs::read(&page.body)?.len() == 10 << 20, "the page is not whole without the example");
    Ok(())
}

/// How many connections of a client are open, or wait for the FIN of their server.
fn open(client: &Namespace) -> Result<usize> {
    let states = ["established", "fin-wait-1", "fin-wait-2"].map(|state| ["state", state]);
    let open = command::output(client.command("ss").arg("-Htn").args(states.concat()))?;
    Ok(open.lines().count())
}

/// How many bytes of a page that is larger than its quota a client gets: those that the page begins with.
fn beyond(topology: &Topology, client: &Namespace, server: &str) -> Result<usize> {
    let body = topology.scratch.file("beyond");
    let mut curl = client.command("curl");
    curl.args(["--silent", "--speed-limit", "1", "--speed-time", SILENT_S, "--output"]).arg(&body);
    let status = curl.arg(format!("http://{server}/100m")).status()?;
    ensure!(status.code() == Some(28), "curl was to run out of time: {status}");
    let (got, whole) = (std::fs::read(&body)?, std::fs::read(topology.scratch.file("pages/100m"))?);
    ensure!(whole.starts_with(&got), "the client beyond its quota got other bytes");
    Ok(got.len())
}
