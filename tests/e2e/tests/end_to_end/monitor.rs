//! Monitors: their totals are those of a generator and of softflowd, at a real collector (nfcapd, read by nfdump); they change no
//! packet, and leave nothing behind.

use super::network::test;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program, rebuilt_program};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, Servers};
use hairpin_e2e::tool::frames::{self, ACK, LinkEnds, SYN};
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::packet_socket::PacketSocket;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("monitor: a collector's totals are the generator's", generated),
        test("monitor: softflowd counts the same beside a balancer", beside_softflowd),
        test("monitor: super-packets, round trips and top talkers", connections),
        test("monitor: what finds no room is counted", full),
        test("monitor: no service is needed, and reload changes it", reloaded),
        test("monitor: an upgrade and kill -9 leave no program behind", left_behind),
    ]
}

const PATIENCE: Duration = Duration::from_secs(15);

/// A collector in the balancer's namespace. Dropping it ends it.
struct Nfcapd {
    process: Process,
    directory: PathBuf,
    port: u16,
}

/// What passed between two ends: protocol, source, destination.
type Ends = (String, String, String);
/// Packets and bytes.
type Traffic = BTreeMap<Ends, (u64, u64)>;

impl Nfcapd {
    fn start(topology: &Topology, port: u16) -> Result<Nfcapd> {
        let directory = topology.scratch.file(format!("nfcapd-{port}"));
        std::fs::create_dir_all(&directory)?;
        let mut program = topology.balancer.command("nfcapd");
        program.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-B", "4000000", "-w"]).arg(&directory);
        let log = topology.scratch.file(format!("nfcapd-{port}.log"));
        let mut process = topology.balancer.start(program, &log)?;
        let is_open = || -> Result<bool> {
            let sockets = command::output(topology.balancer.command("ss").args(["-Hlun"]))?;
            Ok(sockets.contains(&format!(":{port} ")))
        };
        process.wait_until(patience(PATIENCE), || is_open().unwrap_or(false))?;
        Ok(Nfcapd { process, directory, port })
    }

    fn collector(&self) -> String {
        format!("udp:127.0.0.1:{}", self.port)
    }

    /// Ends it, and sums up what it has got.
    fn traffic(mut self) -> Result<Traffic> {
        // What is on its way: all exporters have ended.
        sleep(Duration::from_millis(300));
        self.process.stop()?;
        let text = command::output(Command::new("nfdump").arg("-R").arg(&self.directory).args(["-o", "csv"]))?;
        let mut lines = text.lines();
        let header: Vec<&str> = lines.next().context("nfdump printed nothing")?.split(',').collect();
        let column =
            |name: &str| header.iter().position(|known| *known == name).with_context(|| format!("no {name}: {text}"));
        let [sa, da, sp, dp, pr, ipkt, ibyt] = [
            column("sa")?,
            column("da")?,
            column("sp")?,
            column("dp")?,
            column("pr")?,
            column("ipkt")?,
            column("ibyt")?,
        ];
        let mut traffic = Traffic::new();
        for line in lines.take_while(|line| !line.starts_with("Summary")) {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if fields.len() < header.len() {
                continue;
            }
            let ends = (
                fields[pr].to_owned(),
                format!("{} {}", fields[sa], fields[sp]),
                format!("{} {}", fields[da], fields[dp]),
            );
            let sum = traffic.entry(ends).or_default();
            sum.0 += fields[ipkt].parse::<u64>()?;
            sum.1 += fields[ibyt].parse::<u64>()?;
        }
        Ok(traffic)
    }
}

/// softflowd on an interface of the balancer, reporting to this collector by IPFIX.
fn softflowd(topology: &Topology, interface: &str, collector: &Nfcapd) -> Result<Process> {
    let mut program = topology.balancer.command("softflowd");
    program.args([
        "-i",
        interface,
        "-n",
        &format!("127.0.0.1:{}", collector.port),
        "-v",
        "10",
        "-d",
        "-B",
        "67108864",
        "-T",
        "full",
    ]);
    let control = topology.scratch.file("softflowd.ctl");
    program.arg("-c").arg(&control).arg("-p").arg(topology.scratch.file("softflowd.pid"));
    let mut process = topology.balancer.start(program, &topology.scratch.file("softflowd.log"))?;
    process.wait_until(patience(PATIENCE), || control.exists())?;
    Ok(process)
}

/// Frames that push others out of softflowd's queue, which it reads in whole blocks only.
const PUSHING: u64 = 10_000;
/// Their port, at both ends.
const PUSHING_PORT: u16 = 9;

/// Has softflowd see all that has passed an interface, by more frames to it from its other end.
fn push_out(topology: &Topology, from: &Namespace, interface: &str) -> Result<()> {
    let link = LinkEnds { to: topology.balancer.mac(interface)?, from: from.mac("eth0")? };
    let ends = ["198.18.99.99", "198.19.0.9"].map(|host| host.parse().map(|host| SocketAddr::new(host, PUSHING_PORT)));
    let [source, destination] = ends;
    let frame = frames::udp(link, source?, destination?, &[0; 100]);
    send_from(from, &[frame], PUSHING as usize)?;
    let control = topology.scratch.file("softflowd.ctl");
    wait("softflowd does not see what has passed", || {
        let said = command::output(Command::new("softflowctl").arg("-c").arg(&control).arg("statistics"))?;
        let number =
            |name: &str| -> Option<u64> { said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()) };
        let [received, processed] = ["Packets received by libpcap:", "Packets processed:"].map(number);
        Ok(received.zip(processed).is_some_and(|(received, processed)| processed + PUSHING - 1000 > received))
    })?;
    // Its flows, too, which it would keep for minutes.
    command::output(Command::new("softflowctl").arg("-c").arg(&control).arg("expire-all"))?;
    sleep(Duration::from_secs(1));
    Ok(())
}

/// Without what is no TCP and no UDP, such as neighbour discovery, and what [`push_out`] has sent.
fn of_the_test(traffic: Traffic) -> Traffic {
    let pushing = format!(" {PUSHING_PORT}");
    let is_of_it =
        |ends: &Ends| ["TCP", "UDP"].contains(&&*ends.0) && !(ends.1.ends_with(&pushing) && ends.2.ends_with(&pushing));
    traffic.into_iter().filter(|(ends, _)| is_of_it(ends)).collect()
}

fn monitor(lines: &str) -> String {
    format!("[[monitor]]\nname = \"m\"\n{lines}\n")
}

fn options(tables: String) -> HairpinOptions {
    HairpinOptions { tables, ..HairpinOptions::default() }
}

/// The first monitor of the status.
fn status(hairpin: &Hairpin, topology: &Topology) -> Result<Value> {
    let text = hairpin.tell(topology, &["monitor", "-o", "json"])?;
    Ok(serde_json::from_str(&text)?)
}

/// The lines of a monitor's file.
fn lines(file: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// Waits until `ready`.
fn wait(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ready()? {
        ensure!(start.elapsed() < patience(PATIENCE), "{what}");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Frames of several flows from the flooder to nowhere, and what a collector is to get of them.
fn trace(topology: &Topology, flows: u16) -> Result<(Vec<Vec<u8>>, Traffic)> {
    let link = LinkEnds { to: topology.balancer.mac("flood0")?, from: topology.flooder.mac("eth0")? };
    let (mut all, mut expected) = (Vec::new(), Traffic::new());
    for flow in 0..flows {
        let is_v6 = flow % 3 == 2;
        let is_tcp = flow % 2 == 0;
        let host = |v4: &str, v6: &str, port: u16| -> Result<SocketAddr> {
            Ok(SocketAddr::new(if is_v6 { v6.parse()? } else { v4.parse()? }, port))
        };
        let source = host(&format!("198.18.0.{}", flow % 200 + 1), &format!("2001:2::{flow:x}"), 1000 + flow)?;
        let destination = host("198.19.0.9", "2001:2:0:1::9", if is_tcp { 443 } else { 53 })?;
        let headers = if is_v6 { 40 } else { 20 } + if is_tcp { 20 } else { 8 };
        let sum = expected.entry(key(is_tcp, source, destination)).or_default();
        let mut sequence = u32::from(flow) * 77;
        for number in 0..1 + flow % 5 {
            let payload = vec![1; usize::from(100 + 300 * (number % 4))];
            let flags = if number == 0 { SYN } else { ACK };
            all.push(match is_tcp {
                true => frames::tcp(link, source, destination, flags, (sequence, 1), &payload),
                false => frames::udp(link, source, destination, &payload),
            });
            sequence = sequence.wrapping_add(payload.len() as u32 + u32::from(number == 0));
            *sum = (sum.0 + 1, sum.1 + headers + payload.len() as u64);
        }
    }
    Ok((all, expected))
}

fn key(is_tcp: bool, source: SocketAddr, destination: SocketAddr) -> Ends {
    let end = |end: SocketAddr| format!("{} {}", end.ip(), end.port());
    (if is_tcp { "TCP" } else { "UDP" }.to_owned(), end(source), end(destination))
}

/// Sends frames from the flooder, `rounds` times.
fn send(topology: &Topology, frames: &[Vec<u8>], rounds: usize) -> Result<()> {
    send_from(&topology.flooder, frames, rounds)
}

fn send_from(from: &Namespace, frames: &[Vec<u8>], rounds: usize) -> Result<()> {
    let frames: Vec<Vec<u8>> = std::iter::repeat_n(frames, rounds).flatten().cloned().collect();
    inside::run(from, move || {
        let socket = PacketSocket::open("eth0")?;
        for burst in frames.chunks(32) {
            let burst: Vec<&[u8]> = burst.iter().map(Vec::as_slice).collect();
            let mut sent = 0;
            while sent < burst.len() {
                sent += socket.send(&burst[sent..]);
            }
            // A packet socket that reads beside has a queue.
            sleep(Duration::from_millis(1));
        }
        Ok(())
    })
}

/// That both are the same; the first difference.
fn compare(got: &Traffic, expected: &Traffic, whose: &str) -> Result<()> {
    for (ends, (packets, bytes)) in expected {
        let found = got.get(ends).copied().unwrap_or_default();
        ensure!(found == (*packets, *bytes), "{whose}: {ends:?} has {found:?}, not ({packets}, {bytes})");
    }
    match got.keys().find(|ends| !expected.contains_key(*ends)) {
        Some(more) => bail!("{whose}: {more:?} was not expected: {:?}", got[more]),
        None => Ok(()),
    }
}

fn generated() -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
    let (ours, theirs) = (Nfcapd::start(&topology, 4739)?, Nfcapd::start(&topology, 4740)?);
    let file = topology.scratch.file("flows.log");
    let tables = monitor(&format!(
        "interfaces = [\"flood0\"]\nactive_timeout = \"1s\"\ncollector = \"{}\"\nfile = \"{}\"",
        ours.collector(),
        file.display()
    ));
    let mut hairpin = Hairpin::start(&topology, &[], &options(tables))?;
    let mut other = softflowd(&topology, "flood0", &theirs)?;
    let (frames, expected) = trace(&topology, 300)?;
    // Longer than the active timeout: reports of a flow add up.
    let rounds = 4;
    for _ in 0..rounds {
        send(&topology, &frames, 1)?;
        sleep(Duration::from_millis(500));
    }
    let expected =
        expected.into_iter().map(|(ends, (packets, bytes))| (ends, (packets * rounds, bytes * rounds))).collect();
    push_out(&topology, &topology.flooder, "flood0")?;
    other.stop()?;
    hairpin.stop(true)?;
    compare(&of_the_test(ours.traffic()?), &expected, "Hairpin")?;
    compare(&of_the_test(theirs.traffic()?), &expected, "softflowd")?;
    let all = lines(&file)?;
    let sum = |name: &str| -> u64 {
        let is_counted = |line: &&Value| {
            let is_of_it = ["tcp", "udp"].contains(&line["protocol"].as_str().unwrap_or_default());
            is_of_it && line["far_port"] != PUSHING_PORT
        };
        let counted = all.iter().filter(is_counted);
        counted.map(|line| line[name].as_u64().unwrap_or_default()).sum()
    };
    let total = expected.values().fold((0, 0), |sum, flow: &(u64, u64)| (sum.0 + flow.0, sum.1 + flow.1));
    ensure!((sum("packets_in"), sum("bytes_in")) == total, "lines have {} packets", sum("packets_in"));
    ensure!(all.iter().any(|line| line["reason"] == "active") && all.iter().any(|line| line["reason"] == "stop"));
    Ok(())
}

fn beside_softflowd() -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
    let _servers = Servers::start(&topology)?;
    let (ours, theirs) = (Nfcapd::start(&topology, 4739)?, Nfcapd::start(&topology, 4740)?);
    let tables = monitor(&format!(
        "interfaces = [\"client0\"]\nprotocols = [\"tcp\", \"udp\"]\ncollector = \"{}\"",
        ours.collector()
    ));
    let services = [
        PeerService { server_port: HTTP_PORT, ..PeerService::http("web", 80) },
        PeerService { server_port: HTTP_PORT, ..PeerService::tcp("plain", Family::V4, 81) },
        PeerService { server_port: ECHO_PORT, ..PeerService::udp("echo", Family::V4, 7) },
    ];
    let mut hairpin = Hairpin::start(&topology, &services, &options(tables))?;
    let mut other = softflowd(&topology, "client0", &theirs)?;
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
    for port in [80, 81] {
        let page = load::curl(&topology.client, &topology, &end(vip(Family::V4), port), "10m", "monitor")?;
        ensure!(std::fs::read(&page.body)? == sent, "10 MB from port {port} arrived changed");
    }
    let to = SocketAddr::new(vip(Family::V4), 7);
    echo_once(&topology, to)?;
    // Last acknowledgements.
    sleep(Duration::from_millis(500));
    push_out(&topology, &topology.client, "client0")?;
    other.stop()?;
    hairpin.stop(true)?;
    let theirs = of_the_test(theirs.traffic()?);
    ensure!(theirs.len() >= 6, "softflowd has {theirs:?}");
    compare(&of_the_test(ours.traffic()?), &theirs, "Hairpin")
}

/// Sends a datagram from the client and waits for its echo.
fn echo_once(topology: &Topology, to: SocketAddr) -> Result<()> {
    inside::run(&topology.client, move || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(b"hello", to)?;
        let mut answer = [0; 64];
        let (length, _) = socket.recv_from(&mut answer)?;
        ensure!(&answer[..length] == b"hello", "{:?} came back", &answer[..length]);
        Ok(())
    })
}

fn connections() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let file = topology.scratch.file("flows.log");
    let tables = monitor(&format!("interfaces = [\"client0\"]\nports = [\"81\"]\nfile = \"{}\"", file.display()));
    let services = [PeerService { server_port: HTTP_PORT, ..PeerService::tcp("plain", Family::V4, 81) }];
    let hairpin = Hairpin::start(&topology, &services, &options(tables))?;
    let page = load::curl(&topology.client, &topology, &end(vip(Family::V4), 81), "10m", "monitor")?;
    let size = std::fs::metadata(&page.body)?.len();
    wait("the connection has no line", || Ok(!lines(&file)?.is_empty()))?;
    let all = lines(&file)?;
    let [line] = &all[..] else { bail!("one connection has {all:?}") };
    ensure!(line["reason"] == "end" && line["opened_by"] == "far" && line["near_port"] == 81, "{line}");
    ensure!(line["server_round_trip_us"].is_u64() && line["client_round_trip_us"].is_u64(), "{line}");
    let number = |name: &str| line[name].as_u64().unwrap_or_default();
    // The card joins segments of 1448 bytes with timestamps: each has 52 bytes of headers on the wire.
    let (packets, bytes) = (number("packets_out"), number("bytes_out"));
    ensure!(bytes > size + 52 * (size / 1448) && bytes < size + 60 * packets + 1000, "{line}");
    ensure!(packets >= size / 1448, "super-packets count as the wire has them: {line}");
    ensure!(line["flags_in"].as_str().is_some_and(|flags| flags.contains('S') && flags.contains('F')), "{line}");
    let status = status(&hairpin, &topology)?;
    let talker = &status["top"][0];
    ensure!(talker["address"] == "10.0.0.2" && talker["error_bytes"] == 0, "{status}");
    ensure!(talker["bytes"].as_u64() == Some(bytes + number("bytes_in")), "{status}");
    let table = hairpin.tell(&topology, &["monitor", "m"])?;
    ensure!(table.contains("monitor m on client0") && table.contains("10.0.0.2"), "{table}");
    ensure!(hairpin.tell(&topology, &["monitor", "other"]).is_err(), "there is no such monitor");
    Ok(())
}

fn full() -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
    let file = topology.scratch.file("flows.log");
    let tables = monitor(&format!(
        "interfaces = [\"flood0\"]\nflows_max = 16\nidle_timeout = \"1s\"\nnetworks = [\"198.18.0.0/15\"]\nfile = \"{}\"\n[metrics]\nlisten = \"127.0.0.1:9560\"",
        file.display()
    ));
    let hairpin = Hairpin::start(&topology, &[], &options(tables))?;
    let (frames, expected) = trace(&topology, 90)?;
    send(&topology, &frames, 3)?;
    let v4 = expected.iter().filter(|((_, source, _), _)| source.starts_with("198.18."));
    let sent = v4.fold((0, 0), |sum, (_, flow)| (sum.0 + 3 * flow.0, sum.1 + 3 * flow.1));
    // What is counted is reported once the flows are silent.
    wait("the flows with room have no lines", || Ok(lines(&file)?.len() == 16))?;
    let status = status(&hairpin, &topology)?;
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    let got = (
        number("packets_total") + number("no_room_packets_total"),
        number("bytes_total") + number("no_room_bytes_total"),
    );
    ensure!(number("no_room_packets_total") > 0 && got == sent, "{got:?} of {sent:?}: {status}");
    let metrics = command::output(topology.balancer.command("curl").args(["-s", "http://127.0.0.1:9560/metrics"]))?;
    let series = format!("hairpin_monitor_no_room_packets_total{{monitor=\"m\"}} {}", number("no_room_packets_total"));
    ensure!(metrics.contains(&series), "{metrics}");
    Ok(())
}

fn reloaded() -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards: Cards::Wire, ..TopologyOptions::default() })?;
    let file = topology.scratch.file("flows.log");
    let directory = topology.scratch.file("run");
    std::fs::create_dir_all(&directory)?;
    let instance = topology.instance();
    let write = |monitors: &str| {
        let text = format!("instance = \"{instance}\"\n[control]\ndirectory = {directory:?}\n{monitors}");
        topology.scratch.write("alone.toml", &text)
    };
    let entry =
        |ports: &str| monitor(&format!("interfaces = [\"flood0\"]\nports = {ports}\nfile = \"{}\"", file.display()));
    let path = write(&entry("[\"53\"]"))?;
    let program = hairpin_program()?;
    let mut run = topology.balancer.command(&program.to_string_lossy());
    run.arg("run").arg("-c").arg(&path);
    let mut process = topology.balancer.start(run, &topology.scratch.file("alone.log"))?;
    let socket = directory.join(format!("{instance}.sock"));
    let tell = |words: &[&str]| {
        command::output(topology.balancer.command(&program.to_string_lossy()).args(words).arg("--socket").arg(&socket))
    };
    process.wait_until(patience(PATIENCE), || tell(&["status"]).is_ok())?;
    let (frames, expected) = trace(&topology, 60)?;
    let flows = |port: &str| expected.keys().filter(|(_, _, to)| to.ends_with(port)).count();
    send(&topology, &frames, 1)?;
    // A monitor that changes reports all it has.
    write(&entry("[\"443\"]"))?;
    let said = tell(&["reload"])?;
    ensure!(said.contains("[[monitor]]"), "{said}");
    ensure!(lines(&file)?.len() == flows(" 53"), "{} lines", lines(&file)?.len());
    send(&topology, &frames, 1)?;
    write(&entry("[\"443\"]").replace("flood0", "nosuch0"))?;
    let refused = tell(&["reload"]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("nosuch0"), "a reload was not refused: {refused}");
    let before = programs(process.id())?;
    write("[[monitor]]\nname = \"other\"\ninterfaces = [\"server1\"]\n")?;
    tell(&["reload"])?;
    wait_gone(&before, "a monitor that is not wanted any more is there")?;
    ensure!(lines(&file)?.len() == flows(" 53") + flows(" 443"), "{} lines", lines(&file)?.len());
    let other = await_programs(process.id())?;
    tell(&["stop", "--flush"])?;
    process.wait(patience(PATIENCE))?;
    wait_gone(&other, "after a stop a monitor is there")?;
    Ok(())
}

/// The monitors' programs that a process holds, by number. (bpftool of Debian 12 does not show what is attached by tcx.)
fn programs(process: u32) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
        found.extend(id.filter(|id| name(*id).is_some_and(|name| name.starts_with("monitor_"))));
    }
    Ok(found)
}

/// Likewise, once it holds those of a monitor.
fn await_programs(process: u32) -> Result<BTreeSet<u32>> {
    wait("the process has no monitor", || Ok(programs(process)?.len() == 2))?;
    programs(process)
}

/// The name of a program; `None`: there is none of this number any more.
fn name(program: u32) -> Option<String> {
    let shown =
        command::output(Command::new("bpftool").args(["-j", "prog", "show", "id", &program.to_string()])).ok()?;
    serde_json::from_str::<Value>(&shown).ok()?["name"].as_str().map(str::to_owned)
}

/// Waits until none of these programs is there: neither held nor attached.
fn wait_gone(programs: &BTreeSet<u32>, what: &str) -> Result<()> {
    ensure!(programs.len() == 2, "a monitor has programs {programs:?}");
    wait(what, || Ok(programs.iter().all(|program| name(*program).is_none())))
}

fn left_behind() -> Result<()> {
    for attach in ["tc", "clsact"] {
        let topology = Topology::create(TopologyOptions::default())?;
        let with = format!("{}[linux]\nattach = \"{attach}\"\n", monitor("interfaces = [\"client0\", \"flood0\"]"));
        let without = format!("[linux]\nattach = \"{attach}\"\n");
        let services = [PeerService { server_port: HTTP_PORT, ..PeerService::tcp("plain", Family::V4, 81) }];
        let mut hairpin = Hairpin::start(&topology, &services, &options(with.clone()))?;
        let first = await_programs(hairpin.process().id())?;
        hairpin.upgrade(&topology, &rebuilt_program(&topology, 1)?)?;
        wait_gone(&first, "after an upgrade the old process's monitor is there")?;
        let second = await_programs(hairpin.process().id())?;
        hairpin.end(Signal::SIGKILL)?;
        if attach == "tc" {
            wait_gone(&second, "after kill -9 programs are left")?;
        }
        // The next process has no monitor.
        hairpin.configure(&topology, &services, &options(without))?;
        hairpin.start_again(&topology, &[])?;
        wait_gone(&second, "a restart without monitors leaves programs")?;
        let qdiscs = topology.balancer.script("tc qdisc show dev flood0")?;
        ensure!(!qdiscs.contains("clsact"), "{qdiscs}");
        // Another one is killed, and flushed.
        hairpin.configure(&topology, &services, &options(with))?;
        hairpin.tell(&topology, &["reload"])?;
        let third = await_programs(hairpin.process().id())?;
        hairpin.end(Signal::SIGKILL)?;
        hairpin.tell(&topology, &["stop", "--flush"])?;
        wait_gone(&third, "after a flush programs are left")?;
    }
    Ok(())
}
