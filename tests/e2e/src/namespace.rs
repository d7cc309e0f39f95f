//! Network namespaces by name.

use crate::process::Process;
use crate::tool::inside;
use crate::{cleanup, command, remnants};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Every namespace of ours is named `hb<process id>x<number>-<role>`.
const PREFIX: &str = "hb";

/// Hairpin's configuration in a scratch directory.
pub const CONFIGURATION: &str = "hairpin.toml";

/// A name no other run uses, that says which process it belongs to.
pub fn unique_prefix() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A name for a Hairpin of the run that has this prefix: it may have nine characters, which are the process id in hexadecimal
/// and the prefix's number.
pub fn instance_of(prefix: &str) -> String {
    let number = prefix.rsplit('x').next().unwrap_or_default();
    format!("b{:x}{number}", std::process::id())
}

/// A network namespace, removed when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace `name`, with its loopback device up.
    pub fn create(name: &str) -> Result<Namespace> {
        command::output(Command::new("ip").args(["netns", "add", name]))?;
        cleanup::add_namespace(name);
        let namespace = Namespace { name: name.to_owned() };
        command::output(namespace.command("ip").args(["link", "set", "lo", "up"]))?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run in it. Only the network changes: `ip netns exec` would also mount another /sys, which
    /// hides the BPF file system.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program);
        command
    }

    /// [`Namespace::command`] on the processors `cpus` only (as taskset's list: `0`, `0-1`).
    pub fn command_on(&self, cpus: &str, program: &str) -> Command {
        let mut command = self.command("taskset");
        command.args(["-c", cpus, program]);
        command
    }

    /// Runs lines of shell in it, ending at the first that fails; returns what they printed.
    pub fn script(&self, lines: &str) -> Result<String> {
        command::output_with_input(self.command("sh").arg("-e"), lines)
            .with_context(|| format!("in namespace {}", self.name))
    }

    /// Starts a program in it; its output goes to `log`.
    pub fn start(&self, command: Command, log: &Path) -> Result<Process> {
        Process::start(command, log)
    }

    /// Packets received so far on one of its interfaces.
    pub fn received_packets(&self, interface: &str) -> Result<u64> {
        // A thread in the namespace reads a file; starting a program would disturb what is being measured.
        let table = inside::run(self, || Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
        let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        packets.with_context(|| format!("no interface {interface} in {}", self.name))
    }

    /// Drops whatever arrives on an interface, before the network stack sees it, by the smallest BPF program there is.
    /// Its packets are still counted.
    pub fn drop_arrivals(&self, interface: &str) -> Result<()> {
        let drop = "tc filter add dev IF ingress bpf direct-action bytecode '1,6 0 0 2'";
        self.script(&format!("tc qdisc add dev IF clsact\n{drop}\n").replace("IF", interface))?;
        Ok(())
    }

    /// Ends [`Namespace::drop_arrivals`].
    pub fn admit_arrivals(&self, interface: &str) -> Result<()> {
        self.script(&format!("tc qdisc del dev {interface} clsact\n"))?;
        Ok(())
    }

    /// The Ethernet address of one of its interfaces.
    pub fn mac(&self, interface: &str) -> Result<[u8; 6]> {
        let json = command::output(self.command("ip").args(["-j", "link", "show", "dev", interface]))?;
        let links: serde_json::Value = serde_json::from_str(&json)?;
        let text = links[0]["address"].as_str().with_context(|| format!("no address of {interface} in {json}"))?;
        let mut mac = [0; 6];
        for (byte, part) in mac.iter_mut().zip(text.split(':')) {
            *byte = u8::from_str_radix(part, 16).with_context(|| format!("not an Ethernet address: {text}"))?;
        }
        Ok(mac)
    }

    /// Names of the network interfaces in it.
    pub fn interfaces(&self) -> Result<Vec<String>> {
        let json = command::output(self.command("ip").args(["-j", "link", "show"]))?;
        let links: Vec<serde_json::Value> = serde_json::from_str(&json)?;
        Ok(links.iter().filter_map(|link| link["ifname"].as_str().map(str::to_owned)).collect())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = command::output(Command::new("ip").args(["netns", "del", &self.name])) {
            eprintln!("{error:#}");
        }
        cleanup::remove_namespace(&self.name);
    }
}

/// A directory of this run for configurations, logs and pages, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the directory `prefix` below the system's directory for temporary files.
    pub fn create(prefix: &str) -> Result<Scratch> {
        let path = std::env::temp_dir().join(prefix);
        std::fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        cleanup::add_directory(&path);
        Ok(Scratch { path })
    }

    /// A path in it.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into it and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        cleanup::remove_directory(&self.path);
    }
}

/// The process a namespace or directory of ours belongs to, by its name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('x')?.0.parse().ok()
}

/// Removes what killed runs have left: namespaces, processes in them, remnants of their Hairpins and scratch directories
/// whose owner is gone (all of them if `all`). Returns the names of the namespaces removed.
pub fn clean(all: bool) -> Result<Vec<String>> {
    let left_over = |name: &str| {
        owner(name).is_some_and(|id| all || (id != std::process::id() && !Path::new(&format!("/proc/{id}")).exists()))
    };
    let mut removed = Vec::new();
    for name in names_in(Path::new("/run/netns")).into_iter().filter(|name| left_over(name)) {
        let processes = command::output(Command::new("ip").args(["netns", "pids", &name]))?;
        for id in processes.split_whitespace().filter_map(|id| id.parse().ok()) {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
        }
        command::output(Command::new("ip").args(["netns", "del", &name]))?;
        removed.push(name);
    }
    let scratch = std::env::temp_dir();
    for name in names_in(&scratch).into_iter().filter(|name| left_over(name)) {
        let directory = scratch.join(name);
        let configuration = std::fs::read_to_string(directory.join(CONFIGURATION)).unwrap_or_default();
        remnants::instance_in(&configuration).into_iter().for_each(remnants::remove);
        std::fs::remove_dir_all(directory)?;
    }
    Ok(removed)
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner(&format!("{}-client", unique_prefix())), Some(std::process::id()));
        assert_eq!(owner("hb12x0-server1"), Some(12));
        assert_eq!(owner("hb"), None);
        assert_eq!(owner("default"), None);
        assert_eq!(owner("hbx3"), None);
    }

    #[test]
    fn prefixes_differ() {
        assert_ne!(unique_prefix(), unique_prefix());
    }
}
