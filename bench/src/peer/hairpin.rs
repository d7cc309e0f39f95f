//! Hairpin itself: its configuration, its process, its status.

use super::status::Status;
use super::{START_TIMEOUT, Service};
use crate::command;
use crate::process::Process;
use crate::topology::{Family, Topology, pool_address};
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// What a configuration may say beside its services.
#[derive(Clone, Debug, Default)]
pub struct HairpinOptions {
    /// Interfaces beside those of client and servers.
    pub more_interfaces: Vec<&'static str>,
    /// Lines of TOML before the first table.
    pub top: String,
    /// More tables.
    pub tables: String,
    /// Lines of TOML of every service.
    pub service: String,
}

/// A running Hairpin; stopped with everything it made when dropped.
#[derive(Debug)]
pub struct Hairpin {
    process: Process,
    directory: PathBuf,
    instance: String,
}

/// The program under test: `HAIRPIN_BIN`, or `hairpin` beside this program (tests: two directories up), or the
/// workspace's release or debug build.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("HAIRPIN_BIN") {
        let path = PathBuf::from(path);
        return if path.exists() { Ok(path) } else { bail!("HAIRPIN_BIN is {}, which is not there", path.display()) };
    }
    let own = std::env::current_exe()?;
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join("hairpin"));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let built = ["release", "debug"].map(|profile| workspace.join(profile).join("hairpin"));
    beside
        .chain(built)
        .find(|path| path.is_file())
        .context("no hairpin program: build it (`cargo build --release -p hairpin`) or set HAIRPIN_BIN")
}

impl Hairpin {
    /// Starts it in the balancer for these services and waits until its status answers.
    pub fn start(topology: &Topology, services: &[Service], options: &HairpinOptions) -> Result<Hairpin> {
        let directory = topology.scratch.file("hairpin");
        std::fs::create_dir_all(&directory)?;
        let instance = topology.instance();
        let text = configuration(topology, &instance, &directory, services, options)?;
        let file = topology.scratch.write("hairpin.toml", &text)?;
        let mut command = topology.balancer.command(&program()?.to_string_lossy());
        command.arg("run").arg("-c").arg(file);
        let process = topology.balancer.start(command, &topology.scratch.file("hairpin.log"))?;
        let mut hairpin = Hairpin { process, directory, instance };
        let socket = hairpin.socket();
        hairpin.process.wait_until(START_TIMEOUT, || socket.exists() && status(&socket).is_ok())?;
        Ok(hairpin)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
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
        status(&self.socket())
    }

    /// Its status as people see it.
    pub fn status_table(&self) -> Result<String> {
        status_table(&self.socket())
    }

    /// Ends it by a signal and waits for that.
    pub fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        self.process.signal(signal);
        self.process.wait(Duration::from_secs(10))
    }

    /// Ends it by `hairpin stop`, with what it made if `flush`.
    pub fn stop(&mut self, flush: bool) -> Result<()> {
        let mut stop = Command::new(program()?);
        stop.arg("stop").arg("--socket").arg(self.socket());
        if flush {
            stop.arg("--flush");
        }
        command::output(&mut stop)?;
        self.process.wait(Duration::from_secs(10))?;
        Ok(())
    }
}

/// The status of the instance behind `socket`, as people see it.
pub fn status_table(socket: &Path) -> Result<String> {
    command::output(Command::new(program()?).args(["status", "--socket"]).arg(socket))
}

fn status(socket: &Path) -> Result<Status> {
    let text = command::output(Command::new(program()?).args(["status", "-o", "json", "--socket"]).arg(socket))?;
    serde_json::from_str(&text).with_context(|| format!("status has an unknown form: {text}"))
}

fn configuration(
    topology: &Topology,
    instance: &str,
    directory: &Path,
    services: &[Service],
    options: &HairpinOptions,
) -> Result<String> {
    let mut interfaces = topology.balancer_interfaces();
    interfaces.extend(options.more_interfaces.iter().map(|name| (*name).to_owned()));
    let mut text = String::new();
    writeln!(text, "instance = \"{instance}\"\ninterfaces = {interfaces:?}\n{}", options.top)?;
    writeln!(text, "[control]\ndirectory = {directory:?}\n")?;
    let pool = [Family::V4, Family::V6].map(|family| pool_address(family).to_string());
    writeln!(text, "[pool]\naddresses = {pool:?}\n{}", options.tables)?;
    for service in services {
        writeln!(text, "\n[[service]]\nname = {:?}", service.name)?;
        writeln!(text, "listen = \"{}/{}\"", service.listen(), service.transport.name())?;
        writeln!(text, "mode = \"{}\"", if service.full_nat { "full-nat" } else { "nat" })?;
        writeln!(text, "balance = {:?}\n{}", service.balance, options.service)?;
        for (i, (server, address)) in service.servers.iter().zip(service.server_ends()).enumerate() {
            let weight = service.weights.get(i).unwrap_or(&1);
            writeln!(text, "[[service.backend]]\nname = \"server{server}\"\naddress = \"{address}\"")?;
            writeln!(text, "weight = {weight}")?;
        }
    }
    Ok(text)
}
