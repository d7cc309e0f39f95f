//! Coming and going: nothing is left behind, and what is established outside survives it.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::remnants;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, server_address};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::slice;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("lifecycle: ctrl-c leaves nothing", || leaves_nothing(|hairpin| end(hairpin, Signal::SIGINT))),
        test("lifecycle: stop --flush leaves nothing", || leaves_nothing(|hairpin| hairpin.stop(true))),
        test("lifecycle: killed, the next one starts", killed),
        test("lifecycle: killed, stop --flush clears up", || ended_and_flushed(Signal::SIGKILL)),
        test("lifecycle: sigterm leaves everything, stop --flush clears up", || ended_and_flushed(Signal::SIGTERM)),
        test("lifecycle: an established connection of others goes on", others_go_on),
        test("lifecycle: offloaded connections outlive a plain stop", offloaded_go_on),
        test("lifecycle: a second instance is refused", second),
        test("lifecycle: a reload's new family is forwarded", new_family),
    ]
}

fn end(hairpin: &mut Hairpin, signal: Signal) -> Result<()> {
    let status = hairpin.end(signal)?;
    ensure!(status.success(), "hairpin ended with {status}:\n{}", hairpin.process().log());
    Ok(())
}

fn start(topology: &Topology) -> Result<Hairpin> {
    Hairpin::start(topology, &super::network::services(), &HairpinOptions::default())
}

fn works(topology: &Topology) -> Result<()> {
    for name in ["http4", "full-http6"] {
        load::curl(&topology.client, topology, &super::network::service(name).listen(), "10m", "works")?;
    }
    Ok(())
}

/// BPF programs pinned below a directory of this instance's name, with their maps: (programs, maps) by number.
fn bpf_objects(instance: &str) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
    let programs = bpftool("prog")?;
    let ours = programs.iter().filter(|program| {
        let paths = program["pinned"].as_array().into_iter().flatten().filter_map(Value::as_str);
        paths.into_iter().any(|path| path.split('/').any(|part| part == instance))
    });
    let (mut ids, mut maps) = (BTreeSet::new(), BTreeSet::new());
    for program in ours {
        ids.extend(program["id"].as_u64());
        maps.extend(program["map_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
    }
    Ok((ids, maps))
}

fn bpftool(kind: &str) -> Result<Vec<Value>> {
    let text = command::output(Command::new("bpftool").args(["--bpffs", "--json", kind, "show"]))?;
    serde_json::from_str(&text).with_context(|| format!("bpftool {kind} show printed {text}"))
}

fn ids(kind: &str) -> Result<BTreeSet<u64>> {
    Ok(bpftool(kind)?.iter().filter_map(|object| object["id"].as_u64()).collect())
}

fn leaves_nothing(stop: impl FnOnce(&mut Hairpin) -> Result<()>) -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let before = topology.balancer.interfaces()?;
    let settings = topology.balancer.script("sysctl -a --pattern '^net\\.' 2>/dev/null | grep -v random | sort\n")?;
    let mut hairpin = start(&topology)?;
    works(&topology)?;
    ensure!(topology.balancer.interfaces()?.len() > before.len(), "hairpin made no device");
    let (programs, maps) = bpf_objects(hairpin.instance())?;
    ensure!(!programs.is_empty() && !maps.is_empty(), "hairpin pinned nothing: {programs:?} {maps:?}");
    let socket = hairpin.socket();
    let instance = hairpin.instance().to_owned();
    stop(&mut hairpin)?;
    nothing_left(&topology, &before, &instance, &programs, &maps)?;
    ensure!(!socket.exists(), "{} is still there", socket.display());
    let after = topology.balancer.script("sysctl -a --pattern '^net\\.' 2>/dev/null | grep -v random | sort\n")?;
    let changed: Vec<&str> = settings.lines().filter(|line| !after.lines().any(|after| after == *line)).collect();
    ensure!(changed.is_empty(), "settings were not restored: {changed:?}");
    Ok(())
}

fn nothing_left(
    topology: &Topology,
    interfaces: &[String],
    instance: &str,
    programs: &BTreeSet<u64>,
    maps: &BTreeSet<u64>,
) -> Result<()> {
    let after = topology.balancer.interfaces()?;
    ensure!(after == interfaces, "interfaces before {interfaces:?}, after {after:?}");
    for directory in ["/sys/fs/bpf", "/sys/fs/bpf/hairpin", "/run/hairpin/bpf", "/run/hairpin/bpf/hairpin"] {
        let path = Path::new(directory).join(instance);
        ensure!(!path.exists(), "{} is still there", path.display());
    }
    let memory = remnants::memory(instance);
    ensure!(memory.is_empty(), "{memory:?} is still there");
    let qdiscs = topology.balancer.script("tc qdisc show\n")?;
    ensure!(!qdiscs.contains("clsact"), "a clsact qdisc is left: {qdiscs}");
    // The kernel frees programs and maps a moment after their last user is gone.
    let mut left = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..50 {
        left =
            (ids("prog")?.intersection(programs).copied().collect(), ids("map")?.intersection(maps).copied().collect());
        if left.0.is_empty() && left.1.is_empty() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    anyhow::bail!("BPF programs {:?} and maps {:?} are left", left.0, left.1)
}

/// A killed Hairpin leaves its objects; the next one of the same name takes them up, works, and leaves nothing.
fn killed() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let before = topology.balancer.interfaces()?;
    let mut first = start(&topology)?;
    works(&topology)?;
    let (mut programs, mut maps) = bpf_objects(first.instance())?;
    let _ = first.end(Signal::SIGKILL)?;
    let mut next = start(&topology)?;
    works(&topology)?;
    let instance = next.instance().to_owned();
    let (more_programs, more_maps) = bpf_objects(&instance)?;
    programs.extend(more_programs);
    maps.extend(more_maps);
    end(&mut next, Signal::SIGINT)?;
    nothing_left(&topology, &before, &instance, &programs, &maps)
}

/// The remains of a Hairpin that was killed, or ended by SIGTERM, are removed by `hairpin stop --flush`, too.
fn ended_and_flushed(signal: Signal) -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let before = topology.balancer.interfaces()?;
    let mut hairpin = start(&topology)?;
    works(&topology)?;
    let instance = hairpin.instance().to_owned();
    let (programs, maps) = bpf_objects(&instance)?;
    let _ = hairpin.end(signal)?;
    let (left, _) = bpf_objects(&instance)?;
    ensure!(left == programs, "of the programs {programs:?} {left:?} are left");
    flush(&topology)?;
    nothing_left(&topology, &before, &instance, &programs, &maps)
}

/// Removes what an ended instance has left, in its namespace.
fn flush(topology: &Topology) -> Result<()> {
    let mut stop = topology.balancer.command(&hairpin_e2e::peer::hairpin_program()?.to_string_lossy());
    stop.args(["stop", "--flush", "--config"]).arg(topology.scratch.file("hairpin.toml"));
    command::output(&mut stop)?;
    Ok(())
}

/// After `hairpin stop` what is offloaded goes on, a while at least.
fn offloaded_go_on() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let before = topology.balancer.interfaces()?;
    let mut hairpin = start(&topology)?;
    let to: SocketAddr = super::network::service("http4").listen().parse()?;
    let mut stream =
        inside::run(&topology.client, move || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5))?))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    for _ in 0..10 {
        request(&mut stream).context("while Hairpin runs")?;
    }
    let (programs, maps) = bpf_objects(hairpin.instance())?;
    let instance = hairpin.instance().to_owned();
    hairpin.stop(false)?;
    for _ in 0..10 {
        request(&mut stream).context("after Hairpin has stopped")?;
    }
    flush(&topology)?;
    nothing_left(&topology, &before, &instance, &programs, &maps)
}

/// A connection from the client straight to a backend's address and port, made before Hairpin came, goes on while it
/// comes and after it has gone.
fn others_go_on() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let to = SocketAddr::new(server_address(Family::V4, 1), HTTP_PORT);
    let mut stream =
        inside::run(&topology.client, move || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5))?))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    request(&mut stream).context("before")?;
    let mut hairpin = start(&topology)?;
    for _ in 0..20 {
        request(&mut stream).context("while Hairpin runs")?;
    }
    end(&mut hairpin, Signal::SIGINT)?;
    request(&mut stream).context("after")
}

fn request(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"GET /128k HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut part = vec![0; 65_536];
    loop {
        let length = stream.read(&mut part)?;
        ensure!(length > 0, "the connection was closed");
        answer.extend_from_slice(&part[..length]);
        if let Some(head) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")
            && answer.len() >= head + 4 + (128 << 10)
        {
            return Ok(());
        }
    }
}

fn second() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let hairpin = start(&topology)?;
    let mut other = topology.balancer.command("timeout");
    other
        .arg("20")
        .arg(hairpin_e2e::peer::hairpin_program()?)
        .arg("run")
        .arg("-c")
        .arg(topology.scratch.file("hairpin.toml"));
    let refused = command::output(&mut other).err().context("a second instance of the same name started")?;
    ensure!(hairpin.status().is_ok(), "the first one does not answer any more");
    ensure!(refused.to_string().contains(hairpin.instance()), "the refusal does not name the instance: {refused:#}");
    works(&topology)
}

/// A reload that is the first to use a family is refused while the interfaces do not forward that, or switches it on.
fn new_family() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    topology.balancer.script("sysctl -qw net.ipv6.conf.all.forwarding=0\n")?;
    let [v4, v6] = ["http4", "http6"].map(super::network::service);
    let works = |service: &PeerService| load::curl(&topology.client, &topology, &service.listen(), "1k", "works");
    let mut hairpin = Hairpin::start(&topology, slice::from_ref(&v4), &HairpinOptions::default())?;
    hairpin.configure(&topology, &[v4.clone(), v6.clone()], &HairpinOptions::default())?;
    let refused = hairpin.tell(&topology, &["reload"]).err().context("a reload whose packets are not forwarded")?;
    ensure!(format!("{refused:#}").contains("sysctl -w net.ipv6.conf."), "no remedy: {refused:#}");
    // Backends of another family than their VIP need it as well.
    let tunnel = "mode = \"dsr\"\nencapsulation = \"ipip\"".to_owned();
    let direct = HairpinOptions { service: tunnel, ..HairpinOptions::default() };
    let mixed = PeerService { is_mixed: true, ..PeerService::tcp("mixed4", Family::V4, 8080) };
    hairpin.configure(&topology, &[v4.clone(), mixed], &direct)?;
    let refused = hairpin.tell(&topology, &["reload"]).err().context("a reload with backends of another family")?;
    ensure!(format!("{refused:#}").contains("sysctl -w net.ipv6.conf."), "no remedy: {refused:#}");
    works(&v4).context("after refused reloads")?;
    end(&mut hairpin, Signal::SIGINT)?;

    let enable =
        HairpinOptions { tables: "[linux]\nforwarding = \"enable\"\n".to_owned(), ..HairpinOptions::default() };
    let mut hairpin = Hairpin::start(&topology, slice::from_ref(&v4), &enable)?;
    hairpin.configure(&topology, &[v4.clone(), v6.clone()], &enable)?;
    hairpin.tell(&topology, &["reload"])?;
    works(&v6).context("after the reload")?;
    // A switch that is turned off later does not prevent changes that need none.
    let interfaces = topology.balancer_interfaces();
    topology.balancer.script(&format!("sysctl -qw net.ipv6.conf.{}.forwarding=0\n", interfaces[0]))?;
    hairpin.tell(&topology, &["backend", "drain", "http4", "server1"])?;
    hairpin.stop(true)?;
    for interface in interfaces {
        let state = topology.balancer.script(&format!("sysctl -n net.ipv6.conf.{interface}.forwarding\n"))?;
        ensure!(state.trim() == "0", "forwarding of IPv6 stays on on {interface}");
    }
    Ok(())
}
