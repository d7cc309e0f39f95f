//! Downloads while a process ends: they outlive it, if another one takes over. Those that end before their time are told, by a
//! RST that they believe.

use super::http_network::{HttpNetwork, HttpNetworks, WEB, Which};
use crate::told::{self, Kind};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::hairpin_program;
use hairpin_e2e::process::Process;
use hairpin_e2e::tool::inside;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const CLIENTS: usize = 6;
/// The bytes that a client's kernel takes before its program reads on, in `tcp_rmem`'s terms: much less than a download,
/// which could otherwise be complete there.
const SMALL_BUFFERS: &str = "4096 131072 262144";

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let restarts = [Which::Wire, Which::Software, Which::Dpdk]
        .map(|which| networks.test("downloads outlive a restart", which, |net| with_small_buffers(net, restarted)));
    let others = vec![
        networks.test("clients of disabled backends are told", Which::Gso, |net| with_small_buffers(net, disabled)),
        networks.test("downloads outlive an upgrade", Which::Gso, |net| with_small_buffers(net, upgraded)),
        networks
            .test("another layout refuses an upgrade, or resets", Which::Gso, |net| with_small_buffers(net, relaid)),
        networks.test("a flush tells clients", Which::Gso, |net| with_small_buffers(net, flushed)),
    ];
    restarts.into_iter().chain(others).collect()
}

/// Downloads of 10 MB whose clients have read 1 KB, all of which the engine forwards.
fn downloads(net: &HttpNetwork) -> Result<Vec<TcpStream>> {
    net.until("empty engine", |net| Ok(net.hairpin.offload()?.offloaded == 0))?;
    let to = net.socket(WEB);
    let clients = inside::run(&net.topology.client, move || {
        (0..CLIENTS).map(|_| told::open(to, Kind::Downloads)).collect::<Result<Vec<_>>>()
    })?;
    net.until("all downloads in the engine", |net| Ok(net.hairpin.offload()?.offloaded >= CLIENTS as u64))?;
    Ok(clients)
}

/// Each ends with a reset, once it has read what its kernel had received.
fn are_reset(clients: Vec<TcpStream>) -> Result<()> {
    let mut all = clients.into_iter().enumerate();
    all.try_for_each(|(number, client)| told::is_reset(client).with_context(|| format!("client {number}")))
}

/// Runs `body` while clients have small receive buffers.
fn with_small_buffers(net: &mut HttpNetwork, body: fn(&mut HttpNetwork) -> Result<()>) -> Result<()> {
    let usual = net.topology.client.script("sysctl -n net.ipv4.tcp_rmem\n")?;
    let set = |net: &HttpNetwork, sizes: &str| {
        net.topology.client.script(&format!("sysctl -qw net.ipv4.tcp_rmem='{}'\n", sizes.trim())).map(drop)
    };
    set(net, SMALL_BUFFERS)?;
    let told = body(net);
    set(net, &usual)?;
    told
}

fn disabled(net: &mut HttpNetwork) -> Result<()> {
    let clients = downloads(net)?;
    let backends: Vec<String> = (1..=net.topology.servers.len()).map(|number| format!("server{number}")).collect();
    let overridden = |word: &str| {
        let mut all = backends.iter();
        all.try_for_each(|backend| net.hairpin.tell(&net.topology, &["backend", word, "web", backend]).map(drop))
    };
    overridden("disable")?;
    // A client that reads on before its connection's turn would have the rest of its download within milliseconds.
    let told = net
        .until("no download in the engine", |net| Ok(net.hairpin.offload()?.offloaded == 0))
        .and_then(|()| are_reset(clients));
    overridden("enable")?;
    told
}

fn upgraded(net: &mut HttpNetwork) -> Result<()> {
    Process::inherit_orphans()?;
    let clients = downloads(net)?;
    net.hairpin.upgrade(&net.topology, &hairpin_program()?)?;
    let status = net.hairpin.status()?;
    ensure!(status.adopted_http.clients >= CLIENTS as u64, "{:?}", status.adopted_http);
    clients.into_iter().try_for_each(|client| told::is_complete(client, &net.page("10m")?))?;
    let answer = net.fetch(WEB, "/1k", "Connection: close\r\n")?;
    ensure!(answer.body == net.page("1k")?, "1 KB arrived changed");
    Ok(())
}

/// Half-read responses wait for the next process.
fn restarted(net: &mut HttpNetwork) -> Result<()> {
    let to = net.socket(WEB);
    let clients = inside::run(&net.topology.client, move || {
        (0..CLIENTS).map(|_| told::open(to, Kind::Downloads)).collect::<Result<Vec<_>>>()
    })?;
    net.hairpin.end(Signal::SIGTERM)?;
    net.hairpin.start_again(&net.topology, &[])?;
    let adopted = net.hairpin.status()?.adopted_http;
    ensure!(adopted.clients >= CLIENTS as u64 && adopted.interrupted == 0, "{adopted:?}");
    clients.into_iter().try_for_each(|client| told::is_complete(client, &net.page("10m")?))
}

/// A program that stores connections in another way is refused before anything is touched, and TCP's can be kept without
/// them. The file's header is made to say that another program has written it.
fn relaid(net: &mut HttpNetwork) -> Result<()> {
    Process::inherit_orphans()?;
    let clients = downloads(net)?;
    let file = Path::new("/dev/shm").join(format!("hairpin-{}.splices", net.hairpin.instance()));
    std::fs::OpenOptions::new().write(true).open(&file)?.write_all_at(b"another!", 8)?;
    let refused = net.hairpin.tell(&net.topology, &["upgrade"]).err().context("it was not refused")?;
    let refused = format!("{refused:#}");
    for part in ["HTTP", "another version", "--reset-http"] {
        ensure!(refused.contains(part), "the refusal does not contain {part:?}: {refused}");
    }
    let serves = net.hairpin.status()?.pid;
    ensure!(serves == net.hairpin.process().id(), "process {serves} serves");
    let [first, rest @ ..] = &mut clients.into_iter().map(Some).collect::<Vec<_>>()[..] else { bail!("no clients") };
    told::is_complete(first.take().context("it has gone")?, &net.page("10m")?).context("after the refusal")?;
    net.hairpin.upgrade_with(&net.topology, &hairpin_program()?, &["--reset-http"])?;
    are_reset(rest.iter_mut().filter_map(Option::take).collect())?;
    let answer = net.fetch(WEB, "/1k", "Connection: close\r\n")?;
    ensure!(answer.body == net.page("1k")?, "1 KB arrived changed");
    Ok(())
}

/// `hairpin stop --flush` leaves nothing for another process, so it tells all clients.
fn flushed(net: &mut HttpNetwork) -> Result<()> {
    let clients = downloads(net)?;
    net.hairpin.stop(true)?;
    are_reset(clients)?;
    net.hairpin.start_again(&net.topology, &[])
}
