//! Hairpin under a service manager: what it tells the manager (systemd's `Type=notify`) while one process hands over to
//! another, and where it cannot hand over.

use super::network::{services, test};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, control, hairpin_program};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// How long a message is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Every so often the manager checks whether it is over.
const STEP: Duration = Duration::from_millis(100);

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("manager: an upgrade passes the main process on", passes_on),
        test("manager: an upgrade that fails changes nothing", fails),
        test("manager: a start is over when services are ready, or late", waits),
        test("manager: PID 1 of a container refuses to upgrade", first_of_a_container),
    ]
}

/// A message, and what was so when it was read.
#[derive(Debug)]
struct Told {
    /// Its sender.
    process: u32,
    /// Its lines.
    states: Vec<String>,
    /// The sender's parent.
    parent: Option<u32>,
    /// Every other process of the program that lived.
    others: Vec<u32>,
}

impl Told {
    fn says(&self, state: &str) -> bool {
        self.states.iter().any(|line| line == state)
    }
}

/// A stand-in for the service manager. It reads one message after the other, as systemd does, and lets a sender that
/// waits (`BARRIER=1`) go on when it has read all before.
struct Manager {
    messages: Receiver<Told>,
    end: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Manager {
    fn listen(path: &Path) -> Result<Manager> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(STEP))?;
        sockopt::set_socket_passcred(&socket, true)?;
        let (sender, messages) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                match read(&socket) {
                    Ok(Some(told)) => drop(sender.send(told)),
                    Ok(None) => {}
                    Err(error) => panic!("the manager's socket: {error:#}"),
                }
            }
        });
        Ok(Manager { messages, end: Some(end), thread: Some(thread) })
    }

    /// All messages up to the first that says `state`, without signs of life, barriers and descriptions.
    fn until(&self, state: &str) -> Result<Vec<Told>> {
        let all = self.all_until(state)?;
        Ok(all.into_iter().filter(|told| !told.states.iter().all(|line| line.starts_with("STATUS="))).collect())
    }

    /// All messages up to that with `state`, also those that only describe.
    fn all_until(&self, state: &str) -> Result<Vec<Told>> {
        let mut all = Vec::new();
        loop {
            let told = self.messages.recv_timeout(PATIENCE);
            let told = told.with_context(|| format!("no notification says {state}; so far: {all:?}"))?;
            let last = told.says(state);
            if !told.says("WATCHDOG=1") && !told.says("BARRIER=1") {
                all.push(told);
            }
            if last {
                return Ok(all);
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn read(socket: &UnixDatagram) -> Result<Option<Told>> {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) => received.bytes,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut process = None;
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmCredentials(sender) => process = Some(sender.pid.as_raw_nonzero().get() as u32),
            // A barrier's sender waits until this is closed: what it sent before has been read.
            RecvAncillaryMessage::ScmRights(descriptors) => drop(descriptors),
            _ => {}
        }
    }
    let process = process.context("a message without its sender")?;
    let states = std::str::from_utf8(&text[..received])?.lines().map(str::to_owned).collect();
    Ok(Some(Told { process, states, parent: parent(process), others: alive_beside(process)? }))
}

fn parent(process: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Processes in the network namespace of `process` that run its program and have not ended.
fn alive_beside(process: u32) -> Result<Vec<u32>> {
    let of = |id: u32, what: &str| std::fs::read_link(format!("/proc/{id}/{what}")).ok();
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(id) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        // A process that has ended, and was not waited for yet, has no program any more.
        if id != process && of(id, "exe").is_some() && of(id, "ns/net") == of(process, "ns/net") {
            all.push(id);
        }
    }
    Ok(all)
}

/// The new process names itself while the old one still lives, and is a child of the process that takes orphans by
/// then; the old one does not say that the service stops.
fn passes_on() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let manager = Manager::listen(&topology.scratch.file("notify"))?;
    let mut hairpin = start(&topology)?;
    let mut old = hairpin.status()?.pid;
    let first = manager.until("READY=1")?;
    ensure!(first.iter().all(|told| told.process == old), "at the start it is told {first:?}");
    for number in 1..=3 {
        hairpin.upgrade(&topology, &hairpin_program()?).with_context(|| format!("upgrade {number}"))?;
        let new = hairpin.status()?.pid;
        let told = manager.until(&format!("MAINPID={new}"))?;
        let (last, before) = told.split_last().context("it is told nothing")?;
        ensure!(before.is_empty(), "before the new process it hears {before:?}");
        ensure!(last.process == new && last.says("READY=1"), "of the new process it hears {last:?}");
        ensure!(last.others.contains(&old), "process {old} had ended before {last:?}");
        // The end-to-end tests take orphans, as PID 1 does.
        ensure!(last.parent == Some(std::process::id()), "the new process was another one's child: {last:?}");
        works(&topology)?;
        old = new;
    }
    hairpin.stop(true)?;
    let told = manager.until("STOPPING=1")?;
    ensure!(told.iter().all(|told| told.process == old), "at the end it is told {told:?}");
    Ok(())
}

/// A program that cannot take over is ended, and the manager hears nothing of it.
fn fails() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let manager = Manager::listen(&topology.scratch.file("notify"))?;
    let mut hairpin = start(&topology)?;
    let pid = hairpin.status()?.pid;
    manager.until("READY=1")?;
    // It accepts the configuration, names itself beside that, and neither serves nor ends.
    let note = topology.scratch.file("pid");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = run ] || exit 0\necho $$ >{}\nprintf 'no\\n' >&0\nexec sleep 1000\n",
        note.display()
    );
    let program = topology.scratch.write("hangs", &script)?;
    command::output(std::process::Command::new("chmod").arg("+x").arg(&program))?;
    let refused = hairpin.tell(&topology, &["upgrade", "--program", &program.to_string_lossy()]);
    let refused = refused.err().context("a program that only sleeps took over")?.to_string();
    ensure!(refused.contains("this one goes on"), "the refusal is {refused}");
    let other = std::fs::read_to_string(&note)?;
    ensure!(!Path::new("/proc").join(other.trim()).join("exe").exists(), "process {other} was not ended");
    works(&topology)?;
    ensure!(hairpin.status()?.pid == pid, "another process answers");
    hairpin.stop(true)?;
    let told = manager.until("STOPPING=1")?;
    ensure!(told.len() == 1 && told.iter().all(|told| told.process == pid), "the manager is told {told:?}");
    Ok(())
}

/// No backend answers: the manager hears that it serves all the same, but not before the first checks are over.
fn waits() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let manager = Manager::listen(&topology.scratch.file("notify"))?;
    let notify = topology.scratch.file("notify").to_string_lossy().into_owned();
    let options = HairpinOptions { environment: vec![("NOTIFY_SOCKET", notify)], ..HairpinOptions::default() };
    let tables = "[service.health]\ncheck = \"tcp\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\n".to_string();
    let service = PeerService { tables, ..PeerService::tcp("web", Family::V4, HTTP_PORT) };
    let hairpin = Hairpin::start(&topology, &[service], &options)?;
    let ready = |name: &str| -> Result<(Option<i32>, String)> {
        let output = hairpin.command(&topology, &["status", "--ready", name])?.output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let told = manager.all_until("READY=1")?;
    let first = &told.first().context("it is told nothing")?.states[0];
    ensure!(first.starts_with("STATUS=not ready: service web: the first checks of "), "it is told first {told:?}");
    let down = "not ready: service web: all 4 backends are down";
    ensure!(told.iter().any(|told| told.says(&format!("STATUS={down}"))), "it is told {told:?}");
    ensure!(hairpin.logs().contains("serves all the same"), "nothing is logged of it");
    ensure!(ready("web")? == (Some(1), format!("{down}\n")), "it says {:?}", ready("web"));
    ensure!(ready("wep")?.0 == Some(2), "of a service that is not there it says {:?}", ready("wep"));
    let _servers = Servers::start(&topology)?;
    manager.all_until("STATUS=ready")?;
    ensure!(ready("web")? == (Some(0), "ready\n".to_string()), "it says {:?}", ready("web"));
    Ok(())
}

fn start(topology: &Topology) -> Result<Hairpin> {
    let notify = topology.scratch.file("notify").to_string_lossy().into_owned();
    let options = HairpinOptions { environment: vec![("NOTIFY_SOCKET", notify)], ..HairpinOptions::default() };
    Hairpin::start(topology, &services(), &options)
}

fn works(topology: &Topology) -> Result<()> {
    load::curl(&topology.client, topology, &super::network::service("http4").listen(), "10m", "works").map(drop)
}

/// With PID 1 of a PID namespace, all its processes end: the new one could not stay.
fn first_of_a_container() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let mut hairpin = Hairpin::start(&topology, &services(), &HairpinOptions::default())?;
    hairpin.end(Signal::SIGTERM)?;
    let mut command = topology.balancer.command("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).arg(hairpin_program()?);
    command.args(["run", "-c"]).arg(hairpin.file());
    let mut container = Process::start(command, &topology.scratch.file("container"))?;
    let socket = hairpin.socket();
    container.wait_until(PATIENCE, || control::status(&socket).is_ok_and(|status| status.pid == 1))?;
    let Err(refused) = hairpin.tell(&topology, &["upgrade"]) else { bail!("PID 1 handed over") };
    let refused = refused.to_string();
    ensure!(refused.contains("PID 1") && refused.contains("restart the container"), "the refusal is {refused}");
    works(&topology)?;
    ensure!(hairpin.status()?.pid == 1, "another process answers");
    hairpin.stop(true)?;
    container.wait(PATIENCE)?;
    Ok(())
}
