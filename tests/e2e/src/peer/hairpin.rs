//! Hairpin itself: its configuration, its process, its coming, going and coming back.

use super::control::{self, ConnectionView, OffloadView};
use super::status::Status;
use super::{PeerService, START_TIMEOUT, TransportProtocol};
use crate::command;
use crate::namespace::{CONFIGURATION, Namespace};
use crate::process::{Process, patience};
use crate::remnants::Remnants;
use crate::topology::{Family, Topology, pool_address};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// How long it may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of a configuration beside its services.
#[derive(Clone, Debug, Default)]
pub struct HairpinOptions {
    /// Interfaces beside those of client and servers.
    pub more_interfaces: Vec<&'static str>,
    /// Lines of TOML before the first table.
    pub top: String,
    /// Lines of TOML of `[pool]`, beside the addresses.
    pub pool: String,
    /// More tables.
    pub tables: String,
    /// Lines of TOML of every service.
    pub service: String,
    /// The cores it may use, as taskset's list; empty: all.
    pub cpus: &'static str,
    /// Works on DPDK's ports over the interfaces, by this device with arguments (`net_af_packet{},iface={}`: a number and
    /// the interface), instead of on the kernel's; empty: on these. What stands before a `|` is for the client's interface
    /// only.
    pub dpdk: &'static str,
    /// Lines of TOML of `[dpdk]` then.
    pub more_dpdk: &'static str,
    /// Variables of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Another program than [`program`].
    pub program: Option<PathBuf>,
}

/// A running Hairpin; stopped with everything it made when dropped.
#[derive(Debug)]
pub struct Hairpin {
    process: Process,
    directory: PathBuf,
    file: PathBuf,
    instance: String,
    program: PathBuf,
    cpus: &'static str,
    environment: Vec<(&'static str, String)>,
    /// Dropped when the process has ended.
    _remnants: Remnants,
}

/// The program under test: `HAIRPIN_BIN`, or `hairpin` beside this program (tests: two directories up), or the
/// workspace's release or debug build.
///
/// # Errors
/// There is none.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HAIRPIN_BIN") {
        let path = PathBuf::from(path);
        return if path.exists() { Ok(path) } else { bail!("HAIRPIN_BIN is {}, which is not there", path.display()) };
    }
    built("hairpin").context("no hairpin program: build it (`cargo build --release -p hairpin`) or set HAIRPIN_BIN")
}

/// The program that is linked statically with musl, which benchmarks measure beside [`program`]: `HAIRPIN_STATIC`; `None`
/// where it is not set.
///
/// # Errors
/// There is none at that place.
pub fn static_program() -> Result<Option<PathBuf>> {
    let Some(path) = std::env::var_os("HAIRPIN_STATIC").map(PathBuf::from) else { return Ok(None) };
    if path.exists() {
        return Ok(Some(path));
    }
    bail!("HAIRPIN_STATIC is {}, which is not there: make static", path.display())
}

/// The laboratory's program: `hairpin-lab` where [`program`] finds `hairpin`, but for `HAIRPIN_BIN`.
///
/// # Errors
/// There is none.
pub fn laboratory() -> Result<PathBuf> {
    built("hairpin-lab").context("no hairpin-lab program: build it (`cargo build --release -p hairpin-lab`)")
}

/// The program of this name beside this program (tests: two directories up), or of the workspace's release or debug build.
fn built(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let built = ["release", "debug"].map(|profile| workspace.join(profile).join(name));
    beside.chain(built).find(|path| path.is_file())
}

/// A copy of the program with other bytes, in the scratch directory.
///
/// Child processes write it. A file that this process has open for writing stays open in every child that another thread is
/// starting at that moment, until that child's exec, and a program that is open for writing cannot be started (ETXTBSY).
///
/// # Errors
/// If there is no program, or it cannot be written.
pub fn rebuilt_program(topology: &Topology, number: usize) -> Result<PathBuf> {
    // Bytes behind the end of what an ELF file's headers name: another file, the same program.
    const COPY: &str = "cp \"$1\" \"$2\" && printf '%s' \"$3\" >> \"$2\"";
    let path = topology.scratch.file(format!("hairpin-rebuilt-{number}"));
    let mut copy = Command::new("sh");
    copy.args(["-c", COPY, "sh"]).arg(program()?).arg(&path).arg(number.to_string());
    command::output(&mut copy)?;
    Ok(path)
}

impl Hairpin {
    /// Starts it in the balancer for these services and waits until its status answers.
    pub fn start(topology: &Topology, services: &[PeerService], options: &HairpinOptions) -> Result<Hairpin> {
        // The process that takes over in an upgrade is its child, not ours.
        Process::inherit_orphans()?;
        let directory = topology.scratch.file("hairpin");
        std::fs::create_dir_all(&directory)?;
        if !options.dpdk.is_empty() {
            topology.release_interfaces()?;
        }
        let instance = topology.instance();
        let remnants = Remnants::of(&instance);
        let text = configuration(topology, &instance, &directory, services, options)?;
        let file = topology.scratch.write(CONFIGURATION, &text)?;
        let cpus = options.cpus;
        let environment = options.environment.clone();
        let program = options.program.clone().map_or_else(program, Ok)?;
        let log = topology.scratch.file("hairpin.log");
        let process = spawn(&topology.balancer, &program, (cpus, &environment), &file, &log, &[])?;
        let mut hairpin =
            Hairpin { process, directory, file, instance, program, cpus, environment, _remnants: remnants };
        hairpin.await_status()?;
        Ok(hairpin)
    }

    /// Starts it again, after its process has ended, with the configuration as it is now and more arguments of `run`.
    pub fn start_again(&mut self, topology: &Topology, arguments: &[&str]) -> Result<()> {
        ensure!(self.process.status()?.is_some(), "process {} still runs", self.process.id());
        // A flush has removed it.
        std::fs::create_dir_all(&self.directory)?;
        let log = self.next_log();
        let how = (self.cpus, &self.environment[..]);
        self.process = spawn(&topology.balancer, &self.program, how, &self.file, &log, arguments)?;
        self.await_status()
    }

    /// A file beside the log so far, which is kept.
    fn next_log(&self) -> PathBuf {
        let used = |number: &u32| self.directory.join(format!("log-{number}")).exists();
        let number = (1..).find(|number| !used(number)).unwrap_or_default();
        self.directory.join(format!("log-{number}"))
    }

    fn await_status(&mut self) -> Result<()> {
        let (socket, id) = (self.socket(), self.process.id());
        // Another process's answer does not count: the one before may have left its socket.
        self.process
            .wait_until(patience(START_TIMEOUT), || control::status(&socket).is_ok_and(|status| status.pid == id))
    }

    /// Writes another configuration; the process does not read it yet.
    pub fn configure(&self, topology: &Topology, services: &[PeerService], options: &HairpinOptions) -> Result<()> {
        let text = configuration(topology, &self.instance, &self.directory, services, options)?;
        topology.scratch.write(CONFIGURATION, &text)?;
        Ok(())
    }

    /// Its configuration file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The output of all of its processes.
    pub fn logs(&self) -> String {
        let first = self.file.with_file_name("hairpin.log");
        let more = (1..).map(|number| self.directory.join(format!("log-{number}"))).take_while(|path| path.exists());
        std::iter::once(first).chain(more).map(|path| std::fs::read_to_string(path).unwrap_or_default()).collect()
    }

    /// Its instance's name.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.instance))
    }

    /// Its status.
    pub fn status(&self) -> Result<Status> {
        control::status(&self.socket())
    }

    /// Its status as people see it.
    pub fn status_table(&self) -> Result<String> {
        status_table(&self.socket())
    }

    /// Connections; see [`control::connections`].
    pub fn connections(&self, filter: &Value) -> Result<Vec<ConnectionView>> {
        control::connections(&self.socket(), filter)
    }

    /// The engine's contents.
    pub fn offload(&self) -> Result<OffloadView> {
        control::offload(&self.socket())
    }

    /// The command `hairpin ARGUMENTS --socket SOCKET`, in the balancer.
    pub fn command(&self, topology: &Topology, arguments: &[&str]) -> Result<Command> {
        let mut command = topology.balancer.command(&program()?.to_string_lossy());
        command.args(arguments).arg("--socket").arg(self.socket());
        Ok(command)
    }

    /// Runs it and returns what it printed.
    pub fn tell(&self, topology: &Topology, arguments: &[&str]) -> Result<String> {
        command::output(&mut self.command(topology, arguments)?)
    }

    /// Has a process of another program take over; returns when the old one has ended.
    pub fn upgrade(&mut self, topology: &Topology, program: &Path) -> Result<()> {
        self.upgrade_with(topology, program, &[])
    }

    /// As [`Hairpin::upgrade`], with more arguments.
    pub fn upgrade_with(&mut self, topology: &Topology, program: &Path, arguments: &[&str]) -> Result<()> {
        let status = self.hand_over(topology, program, arguments)?.wait(patience(END_TIMEOUT))?;
        ensure!(status.success(), "after the upgrade the old process ended with {status}");
        Ok(())
    }

    /// Has a process of another program take over, and gives the old one, which may still serve connections that it has.
    pub fn hand_over(&mut self, topology: &Topology, program: &Path, arguments: &[&str]) -> Result<Process> {
        let old = self.process.id();
        let program_text = program.to_string_lossy();
        self.tell(topology, &[&["upgrade", "--program", &*program_text], arguments].concat())?;
        let id = self.status()?.pid;
        ensure!(id != old, "after the upgrade the status is that of the old process");
        let running = std::fs::read_link(format!("/proc/{id}/exe"))?;
        ensure!(running == program, "after the upgrade {} serves, not {}", running.display(), program.display());
        let log = self.process.log_path().to_owned();
        let new = Process::adopt(id, self.process.line(), &log);
        Ok(std::mem::replace(&mut self.process, new))
    }

    /// Ends it by a signal and waits for that.
    pub fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        self.process.signal(signal);
        self.process.wait(patience(END_TIMEOUT))
    }

    /// Ends it by `hairpin stop`, with what it made if `flush`.
    pub fn stop(&mut self, flush: bool) -> Result<()> {
        let mut stop = Command::new(program()?);
        stop.arg("stop").arg("--socket").arg(self.socket());
        if flush {
            stop.arg("--flush");
        }
        command::output(&mut stop)?;
        self.process.wait(patience(END_TIMEOUT))?;
        Ok(())
    }
}

impl Drop for Hairpin {
    fn drop(&mut self) {
        // SIGTERM, which the process's own guard would send, leaves everything for a successor.
        if let Ok(None) = self.process.status() {
            self.process.signal(Signal::SIGINT);
            self.process.signal_group(Signal::SIGCONT);
            if let Err(error) = self.process.wait(patience(END_TIMEOUT)) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn spawn(
    balancer: &Namespace,
    program: &Path,
    (cpus, environment): (&str, &[(&'static str, String)]),
    file: &Path,
    log: &Path,
    arguments: &[&str],
) -> Result<Process> {
    let program = program.to_string_lossy();
    let mut command = if cpus.is_empty() { balancer.command(&program) } else { balancer.command_on(cpus, &program) };
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.arg("run").arg("-c").arg(file).args(arguments);
    balancer.start(command, log)
}

/// The status of the instance behind `socket`, as people see it.
pub fn status_table(socket: &Path) -> Result<String> {
    command::output(Command::new(program()?).args(["status", "--socket"]).arg(socket))
}

fn configuration(
    topology: &Topology,
    instance: &str,
    directory: &Path,
    services: &[PeerService],
    options: &HairpinOptions,
) -> Result<String> {
    let mut interfaces = topology.balancer_interfaces();
    interfaces.extend(options.more_interfaces.iter().map(|name| (*name).to_owned()));
    let mut text = String::new();
    writeln!(text, "instance = \"{instance}\"\n{}", options.top)?;
    match options.dpdk.is_empty() {
        true => writeln!(text, "interfaces = {interfaces:?}")?,
        false => writeln!(text, "plane = \"dpdk\"")?,
    }
    writeln!(text, "[control]\ndirectory = {directory:?}\n")?;
    let pool = [Family::V4, Family::V6].map(|family| pool_address(family).to_string());
    writeln!(text, "[pool]\naddresses = {pool:?}\n{}\n{}", options.pool, options.tables)?;
    if !options.dpdk.is_empty() {
        ports(&mut text, topology, (options.dpdk, options.more_dpdk))?;
    }
    for service in services {
        writeln!(text, "\n[[service]]\nname = {:?}", service.name)?;
        writeln!(text, "listen = \"{}/{}\"", service.listen(), service.transport.name())?;
        if matches!(service.transport, TransportProtocol::Tcp | TransportProtocol::Udp) && service.full_nat {
            writeln!(text, "mode = \"full-nat\"")?;
        }
        if !service.balance.is_empty() {
            writeln!(text, "balance = {:?}", service.balance)?;
        }
        writeln!(text, "{}", options.service)?;
        for (i, (server, address)) in service.servers.iter().zip(service.server_ends()).enumerate() {
            let weight = service.weights.get(i).unwrap_or(&1);
            writeln!(text, "[[service.backend]]\nname = \"server{server}\"\naddress = \"{address}\"")?;
            writeln!(text, "weight = {weight}")?;
        }
        writeln!(text, "{}", service.tables)?;
    }
    Ok(text)
}

/// The dpdk plane's ports, without hugepages.
fn ports(text: &mut String, topology: &Topology, (device, more): (&str, &str)) -> Result<()> {
    writeln!(text, "[dpdk]\npages = \"none\"\n{more}")?;
    let (first, others) = device.split_once('|').unwrap_or((device, device));
    for (number, (interface, addresses)) in topology.balancer_ports().into_iter().enumerate() {
        let device = if number == 0 { first } else { others };
        let device = device.replacen("{}", &number.to_string(), 1).replacen("{}", &interface, 1);
        writeln!(text, "[[dpdk.port]]\ndevice = \"{device}\"\naddresses = {addresses:?}")?;
    }
    Ok(())
}
