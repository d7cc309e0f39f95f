//! A monitor beside softflowd, by the processor time that both need for the same packets: `make bench-monitor`.
//!
//! Frames of 1,500-byte packets of many flows are sent into a veth pair at a steady rate; what comes in at the other end is counted
//! by Hairpin, or by softflowd, and dropped. Of Hairpin its process and the kernel's own time of its programs
//! (`kernel.bpf_stats_enabled`) count; of softflowd its process alone, since nothing tells what the kernel's copies for it cost.
//! Both export IPFIX to a port that nothing listens at. A measurement in which softflowd has lost packets is none.

use crate::suite::report::{self, Bar, ReportRow};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::namespace::{Namespace, Scratch, instance_of, unique_prefix};
use hairpin_e2e::peer::hairpin_program;
use hairpin_e2e::process::Process;
use hairpin_e2e::remnants::Remnants;
use hairpin_e2e::tool::frames::{self, LinkEnds};
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::packet_socket::PacketSocket;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The arguments of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct MonitorArgs {
    /// A quick run: fewer packets, once.
    #[arg(long)]
    quick: bool,
    /// Measurements of each.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// The directory for `monitor.json`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// Bytes of an IP packet.
const PACKET: usize = 1500;
/// Flows that the packets are of, in turn.
const FLOWS: [u16; 2] = [100, 10_000];
/// Packets a second: 2.4 Gbit/s.
const RATE: u32 = 200_000;
/// Frames that are sent at once.
const BURST: usize = 32;
/// How long both have to come to rest.
const PATIENCE: Duration = Duration::from_secs(10);
/// Hairpin's processor time at most, as a share of softflowd's.
const BAR: f64 = 0.25;

const DEVICES: &str = "\
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
ip link set watched up
ip address add 10.0.0.1/24 dev watched
";

/// Measures, prints a table and writes `monitor.json`. A missed bar is no failure.
///
/// # Errors
/// If there are no rights, a program is missing, or packets are lost.
pub fn run(arguments: &MonitorArgs) -> Result<()> {
    let (packets, repetitions) = if arguments.quick { (200_000, 1) } else { (2_000_000, arguments.repetitions.max(1)) };
    let _statistics = KernelStatistics::on()?;
    let mut rows = Vec::new();
    for flows in FLOWS {
        let network = WatchedNetwork::create(flows)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (mut programs, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..repetitions {
            let measured = network.hairpin(packets)?;
            ours.push(measured.sum());
            programs.push(measured.programs);
            idle.push(measured.process);
            theirs.push(network.softflowd(packets)?);
        }
        let in_ns = |seconds: Vec<f64>| RepeatedValues::from(seconds).divided_by(f64::from(packets) / 1e9);
        let parts = [("of which programs", programs), ("of which process", idle)];
        let parts: BTreeMap<String, f64> =
            parts.into_iter().map(|(name, seconds)| (name.to_owned(), in_ns(seconds).median())).collect();
        let case = format!("{PACKET}-byte packets of {flows} flows, {} k/s", RATE / 1000);
        let theirs = in_ns(theirs);
        let others = ("softflowd", &theirs);
        rows.push(ReportRow::alternating(case, "ns a packet", &in_ns(ours), others, parts, Bar::AtMost(BAR)));
        report::write(&arguments.directory, "monitor", &rows)?;
    }
    println!("\n{}", report::table(&rows));
    Ok(())
}

/// The kernel measures BPF programs while this exists.
struct KernelStatistics(String);

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl KernelStatistics {
    fn on() -> Result<KernelStatistics> {
        let before = std::fs::read_to_string(SWITCH).with_context(|| format!("cannot read {SWITCH}"))?;
        std::fs::write(SWITCH, "1").with_context(|| format!("cannot write {SWITCH}"))?;
        Ok(KernelStatistics(before))
    }
}

impl Drop for KernelStatistics {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, self.0.trim());
    }
}

/// Seconds of processor time.
struct Measured {
    programs: f64,
    process: f64,
}

impl Measured {
    fn sum(&self) -> f64 {
        self.programs + self.process
    }
}

/// Two namespaces, and the frames that go from the one to the other.
struct WatchedNetwork {
    sender: Namespace,
    watched: Namespace,
    scratch: Scratch,
    name: String,
    frames: Vec<Vec<u8>>,
}

impl WatchedNetwork {
    fn create(flows: u16) -> Result<WatchedNetwork> {
        let name = unique_prefix();
        let [sender, watched] = ["sender", "watched"].map(|role| Namespace::create(&format!("{name}-{role}")));
        let (sender, watched) = (sender?, watched?);
        watched.script(&format!("ip link add watched type veth peer name out netns {}\n{DEVICES}", sender.name()))?;
        sender.script("sysctl -qw net.ipv6.conf.all.disable_ipv6=1\nip link set out up\n")?;
        let link = LinkEnds { to: watched.mac("watched")?, from: sender.mac("out")? };
        let destination: SocketAddr = "198.19.0.9:9".parse()?;
        let payload = vec![7; PACKET - 28];
        let frame = |flow: u16| -> Result<Vec<u8>> {
            let source = SocketAddr::new(format!("198.18.{}.{}", flow >> 8, flow & 255).parse()?, 4000 + flow);
            Ok(frames::udp(link, source, destination, &payload))
        };
        let frames = (0..flows).map(frame).collect::<Result<_>>()?;
        Ok(WatchedNetwork { sender, watched, scratch: Scratch::create(&name)?, name, frames })
    }

    /// Sends `packets` at [`RATE`], from the first core.
    fn send(&self, packets: u32) -> Result<()> {
        let frames = self.frames.clone();
        let body = move || {
            let socket = PacketSocket::open("out")?;
            let begun = Instant::now();
            let mut sent: u32 = 0;
            let mut next = 0;
            while sent < packets {
                let burst: Vec<&[u8]> = (0..BURST).map(|at| frames[(next + at) % frames.len()].as_slice()).collect();
                let took = socket.send(&burst[..BURST.min((packets - sent) as usize)]);
                (sent, next) = (sent + took as u32, (next + took) % frames.len());
                let due = begun + Duration::from_secs_f64(f64::from(sent) / f64::from(RATE));
                sleep(due.saturating_duration_since(Instant::now()));
            }
            Ok(())
        };
        inside::join(inside::spawn(&self.sender, Some(0), body))
    }

    fn hairpin(&self, packets: u32) -> Result<Measured> {
        let instance = instance_of(&self.name);
        let _remnants = Remnants::of(&instance);
        let directory = self.scratch.file("run");
        std::fs::create_dir_all(&directory)?;
        let text = format!(
            "instance = \"{instance}\"\nworkers = 1\n[limits]\nconnections_max = 64\n[control]\ndirectory = {directory:?}\n[metrics]\n\
             listen = \"off\"\n[[monitor]]\nname = \"m\"\ninterfaces = [\"watched\"]\ncollector = \"udp:127.0.0.1:4739\"\n"
        );
        let file = self.scratch.write("hairpin.toml", &text)?;
        let program = hairpin_program()?;
        let mut run = self.watched.command(&program.to_string_lossy());
        run.arg("run").arg("-c").arg(&file);
        let mut process = self.watched.start(run, &self.scratch.file("hairpin.log"))?;
        process.wait_until(PATIENCE, || self.programs().is_ok_and(|(count, _)| count == 2))?;
        sleep(Duration::from_millis(500));
        let (before, (_, programs)) = (process.cpu_seconds()?, self.programs()?);
        self.send(packets)?;
        sleep(Duration::from_millis(500));
        let measured = Measured { process: process.cpu_seconds()? - before, programs: self.programs()?.1 - programs };
        let socket = directory.join(format!("{instance}.sock"));
        let mut stop = Command::new(&program);
        command::output(stop.args(["stop", "--flush", "--socket"]).arg(&socket))?;
        process.wait(PATIENCE)?;
        Ok(measured)
    }

    /// How many programs of monitors this machine has, and the seconds that they have run.
    fn programs(&self) -> Result<(usize, f64)> {
        let shown = command::output(Command::new("bpftool").args(["-j", "prog", "show"]))?;
        let shown: Vec<Value> = serde_json::from_str(&shown)?;
        let is_ours = |program: &&Value| program["name"].as_str().is_some_and(|name| name.starts_with("monitor_"));
        let times = shown.iter().filter(is_ours).map(|program| program["run_time_ns"].as_u64().unwrap_or(0));
        Ok((times.clone().count(), times.sum::<u64>() as f64 / 1e9))
    }

    fn softflowd(&self, packets: u32) -> Result<f64> {
        let control = self.scratch.file("softflowd.ctl");
        let mut run = self.watched.command("softflowd");
        run.args(["-i", "watched", "-n", "127.0.0.1:4739", "-v", "10", "-d", "-m", "65536", "-c"]).arg(&control);
        run.arg("-p").arg(self.scratch.file("softflowd.pid"));
        let mut process: Process = self.watched.start(run, &self.scratch.file("softflowd.log"))?;
        process.wait_until(PATIENCE, || control.exists())?;
        sleep(Duration::from_millis(500));
        let before = process.cpu_seconds()?;
        self.send(packets)?;
        sleep(Duration::from_millis(500));
        let seconds = process.cpu_seconds()? - before;
        let said = command::output(Command::new("softflowctl").arg("-c").arg(&control).arg("statistics"))?;
        let seen = said.lines().find_map(|line| line.strip_prefix("Packets processed:")?.trim().parse::<u32>().ok());
        // It reads whole blocks of its queue; the last one is not full.
        ensure!(
            seen.is_some_and(|seen| seen >= packets / 100 * 95),
            "softflowd has not seen {packets} packets:\n{said}"
        );
        process.stop()?;
        Ok(seconds)
    }
}
