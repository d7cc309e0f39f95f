//! The dpdk plane as the client of another process's memory (memif): what happens when that process is not there yet, ends,
//! and comes back. It is testpmd, which forwards frames between the client's interface and the memif.

use super::dpdk::{Net, PATIENCE, is_built_in, net, options, status, whole, works};
use super::lane::skip;
use super::network::dpdk_test as test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::HairpinOptions;
use hairpin_e2e::process::Process;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

/// The client's side of shared memory towards the clients (an abstract socket), packet sockets towards the servers.
const CLIENT: &str = "net_memif{},role=client,socket=hairpin-bench-server|net_af_packet{},iface={},qpairs=2";
/// The client's side of shared memory towards the clients, packet sockets with one queue towards each server.
const MIXED: &str = "net_memif{},role=client,socket=hairpin-bench-server|net_af_packet{},iface={}";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("dpdk: a memif client reconnects to its server (testpmd)", again),
        test("dpdk: all ports get the same number of queues (memif)", mixed),
    ]
}

/// The network with Hairpin in it, two workers; `None` without DPDK or testpmd.
fn with(ports: &'static str) -> Result<Option<Net>> {
    if !is_built_in()? {
        return Ok(None);
    }
    if Command::new("dpdk-testpmd").arg("--version").output().is_err() {
        skip("there is no dpdk-testpmd");
        return Ok(None);
    }
    net(HairpinOptions { top: "workers = 2".to_owned(), ..options(ports) })
}

fn again() -> Result<()> {
    let Some(net) = with(CLIENT)? else { return Ok(()) };
    let received = || status(&net.hairpin)?["ports"][0]["received"].as_u64().context("no count");
    let mut before = 0;
    for round in 0..3 {
        link(&net, false).with_context(|| format!("before server {round}"))?;
        others(&net).with_context(|| format!("before server {round}"))?;
        let mut server = serving(&net).with_context(|| format!("server {round}"))?;
        works(&net).with_context(|| {
            let status = status(&net.hairpin).map_or_else(|error| format!("{error:#}"), |status| status.to_string());
            format!("server {round}: {}\n{}\n{status}", server.log(), net.hairpin.logs())
        })?;
        logged(&net, "is up", round + 1)?;
        let now = received()?;
        ensure!(now > before + 100, "{before} frames, then {now}");
        before = now;
        // It polls, and says nothing when it goes.
        server.signal(Signal::SIGKILL);
        server.wait(PATIENCE)?;
        logged(&net, "is down", round + 1)?;
    }
    link(&net, false)?;
    others(&net)?;
    ensure!(received()? >= before, "{} frames instead of {before}", received()?);
    let logs = net.hairpin.logs();
    ensure!(logs.contains("its server is asked every second"), "{logs}");
    whole(&net.hairpin)
}

/// Packets in a queue that no worker has would be lost.
fn mixed() -> Result<()> {
    let Some(net) = with(MIXED)? else { return Ok(()) };
    let server = server(&net, 1)?;
    link(&net, true).with_context(|| server.log())?;
    start_forwarding(&net)?;
    for _ in 0..4 {
        works(&net)?;
    }
    let ports = status(&net.hairpin)?["ports"].clone();
    ensure!(ports.as_array().context("ports")?.iter().all(|port| port["queues"] == 1), "{ports}");
    server.signal(Signal::SIGKILL);
    whole(&net.hairpin)
}

/// testpmd with its link up. It may die of a client that has gone before it was greeted (docs/guide/dpdk.md), and is started
/// again then.
fn serving(net: &Net) -> Result<Process> {
    let mut first = server(net, 2)?;
    let Err(error) = link(net, true) else {
        start_forwarding(net)?;
        return Ok(first);
    };
    if first.status()?.is_none() {
        return Err(error.context(first.log()));
    }
    let second = server(net, 2)?;
    link(net, true).with_context(|| second.log())?;
    start_forwarding(net)?;
    Ok(second)
}

/// testpmd, with as many queues as its client. It forwards nothing until it is told to ([`start_forwarding`]).
fn server(net: &Net, queues: u16) -> Result<Process> {
    // It reads commands from a FIFO, which stays open as long as it runs: opened for both, it waits for no other end.
    let fifo = net.topology.scratch.file("testpmd.commands");
    if !fifo.exists() {
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
    }
    let mut testpmd = net.topology.balancer.command("sh");
    testpmd.args(["-c", "exec dpdk-testpmd \"$@\" <>\"$0\""]).arg(fifo);
    testpmd.args(["-l", "0,1", "--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"]);
    testpmd.args(["--vdev", &format!("net_af_packet0,iface=client0,qpairs={queues}")]);
    testpmd.args(["--vdev", "net_memif0,role=server,socket=hairpin-bench-server"]);
    testpmd.args(["--", "--forward-mode=io", "-i", "--total-num-mbufs=16384"]);
    testpmd.args([format!("--rxq={queues}"), format!("--txq={queues}")]);
    net.topology.balancer.start(testpmd, &net.topology.scratch.file("testpmd.log"))
}

/// Lets testpmd forward frames, once a client is there. While one is let in it must not poll: DPDK 22.11's driver takes a
/// ring's address before it asks whether there is a connection, and the memory may come in between. (The link was up, and
/// testpmd dead by SIGSEGV at the address of its second queue's ring in memory mapped at 0.)
fn start_forwarding(net: &Net) -> Result<()> {
    let commands = net.topology.scratch.file("testpmd.commands");
    // As above: a process that opens it only for writing waits for a reader.
    Ok(File::options().read(true).write(true).open(commands)?.write_all(b"start\n")?)
}

/// Waits until the log says so often of a link: the supervisor polls ten times a second.
fn logged(net: &Net, what: &str, times: usize) -> Result<()> {
    let begun = Instant::now();
    while net.hairpin.logs().lines().filter(|line| line.ends_with(what)).count() != times {
        ensure!(begun.elapsed() < PATIENCE, "{what} {times} times? {}", net.hairpin.logs());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until the status says so of the clients' link.
fn link(net: &Net, up: bool) -> Result<()> {
    let begun = Instant::now();
    while status(&net.hairpin)?["ports"][0]["up"] != up {
        ensure!(begun.elapsed() < 3 * PATIENCE, "the link does not become {}", if up { "up" } else { "down" });
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

/// The other ports go on, whatever would be sent to a port without a peer: both workers answer.
fn others(net: &Net) -> Result<()> {
    for (server, namespace) in net.topology.servers.iter().enumerate() {
        for address in [format!("10.0.{}.1", server + 1), format!("fd00:{}::1", server + 1)] {
            command::output(namespace.command("ping").args(["-c", "3", "-i", "0.2", "-W", "5", &address]))
                .with_context(|| format!("server {} asks {address}", server + 1))?;
        }
    }
    Ok(())
}
