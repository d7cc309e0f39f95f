//! The testbed's parts as processes of their own, over memif, packet sockets and XDP sockets: this program, started again,
//! is the device under test or the sink.
#![allow(missing_docs)]

use hairpin_dpdk::{Eal, EalOptions};
use hairpin_lab::testbed::cores::allowed;
use hairpin_lab::testbed::ports::{GenerateOptions, PortSetup, ReturnPath, SinkSettings, forward, generate, sink};
use hairpin_lab::testbed::rings::device_cores;
use hairpin_lab::testbed::{Device, Measurement, PacketSource, SendRate, Trial, TrialProgress};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PART: &str = "HAIRPIN_LAB_PART";
const SOCKET: &str = "HAIRPIN_LAB_SOCKET";
const OVER: &str = "HAIRPIN_LAB_OVER";
const PACKETS_PER_SECOND: f64 = 20_000.0;

fn main() {
    let Ok(part) = std::env::var(PART) else { return parent() };
    let socket = std::env::var(SOCKET).unwrap();
    let eal = Eal::start(EalOptions { memory_mib: 256, ..EalOptions::default() }).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    // It ends with its parent.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    });
    let port = settings(&socket, true);
    let said = match part.as_str() {
        "sink" => {
            let settings = SinkSettings {
                port,
                seed: 1,
                generators: 1,
                flows: 1000,
                balanced: false,
                duration: Duration::from_secs(60),
                idle: Duration::from_secs(2),
            };
            let collected = sink(&eal, &settings, &stop, &mut ready).unwrap();
            serde_json::to_string(&collected.measurement).unwrap()
        }
        device => {
            let trial = Trial { device: device.parse().unwrap(), table_entries: 4096, ..Trial::default() };
            let cores = device_cores(&trial, 1, &eal).unwrap();
            serde_json::to_string(&forward(&eal, &port, cores, &stop, &mut ready).unwrap()).unwrap()
        }
    };
    println!("{said}");
}

/// Says when the port is open: a port cannot tell whether a peer is at the other end of a wire.
fn ready(progress: TrialProgress) {
    if matches!(progress, TrialProgress::Started { .. }) {
        println!("ready");
    }
}

/// A port on a processor of its end of the list: the device's and the sink's, or the generator's.
fn settings(socket: &str, is_other: bool) -> PortSetup {
    let cpus = allowed().unwrap();
    let cpu = if is_other { cpus[cpus.len() - 1] } else { cpus[0] };
    let role = if is_other { "server" } else { "client" };
    let device = match std::env::var(OVER) {
        Ok(driver) => format!("{driver}{},iface={}", u8::from(is_other), if is_other { "far" } else { "near" }),
        Err(_) => format!("net_memif0,role={role},socket-abstract=yes,socket={socket},rsize=10"),
    };
    PortSetup { device, descriptors: 1024, cpus: vec![cpu], longest: 1514 }
}

fn child(part: &str, socket: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PART, part).env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn parent() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return println!("ports: test");
    }
    let (part, is_alone) = match std::env::var("HAIRPIN_LAB_ONLY") {
        Ok(part) => (part, true),
        Err(_) => (String::new(), false),
    };
    if is_alone {
        return one(&part);
    }
    // DPDK starts once in a process: every case has one of its own.
    for part in ["wire", "forwarder", "balancer", "sink"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let status = command.env("HAIRPIN_LAB_ONLY", part).status().unwrap();
        assert!(status.success(), "{part}");
        println!("ports: {part} ok");
    }
    for (over, part) in [("net_af_packet", "balancer"), ("net_af_xdp", "forwarder")] {
        // In a network of its own, whose both ends of a wire are here.
        let mut command = Command::new("unshare");
        command.arg("--net").arg(std::env::current_exe().unwrap()).env("HAIRPIN_LAB_ONLY", part).env(OVER, over);
        let Ok(status) = command.status() else { return println!("ports: skipped: there is no unshare") };
        assert!(status.success(), "{part} over {over}");
        println!("ports: {part} over {over} ok");
    }
}

/// A pair of interfaces that are each other's link, with no other sender's packets on it.
fn wire() {
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(Command::new(words[0]).args(&words[1..]).output().unwrap().status.success(), "{line}");
    };
    run("ip link add near type veth peer name far");
    for end in ["near", "far"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").unwrap();
        run(&format!("ethtool -K {end} tx off"));
        run(&format!("ip link set {end} up"));
    }
}

fn one(part: &str) {
    let socket = format!("hairpin-lab-{}", std::process::id());
    if std::env::var_os(OVER).is_some() {
        wire();
    }
    let mut other = child(part, &socket);
    let eal = Eal::start(EalOptions { memory_mib: 256, ..EalOptions::default() }).unwrap();
    let mut output = BufReader::new(other.stdout.take().unwrap());
    let mut said = String::new();
    if std::env::var_os(OVER).is_some() {
        output.read_line(&mut said).unwrap();
    }
    let alone = part == "sink";
    let trial = Trial {
        device: if part == "balancer" { Device::Balancer } else { Device::Wire },
        rate: SendRate::Packets(PACKETS_PER_SECOND),
        duration: Duration::from_secs(1),
        source: PacketSource::default(),
        ..Trial::default()
    };
    let options = GenerateOptions {
        trial,
        port: settings(&socket, false),
        back: if alone { ReturnPath::Elsewhere } else { ReturnPath::Same },
        destination: [2, 0, 0, 0, 0, 2],
        linger: Duration::from_secs(2),
    };
    let measured = generate(&eal, &options, &AtomicBool::new(false), &mut |_| ()).unwrap();
    if !alone {
        drop(other.stdin.take());
    }
    output.read_to_string(&mut said).unwrap();
    let status = other.wait().unwrap();
    assert!(status.success(), "the {part} ended with {status}");
    assert_eq!(measured.sent, measured.received + measured.lost());
    let due = measured.sent + measured.behind;
    assert!(due.abs_diff(PACKETS_PER_SECOND as u64) < 200, "{} sent, {} behind", measured.sent, measured.behind);
    let said = said.lines().last().unwrap();
    if alone { judged_elsewhere(&measured, said) } else { came_back(part, &measured, said) }
}

/// The sink of another process finds the packets that were sent.
fn judged_elsewhere(measured: &Measurement, said: &str) {
    let its: Measurement = serde_json::from_str(said).unwrap();
    assert_eq!(measured.received, 0);
    assert!(its.received > 0 && its.received <= measured.sent, "{} of {}", its.received, measured.sent);
    assert_eq!(its.sent, its.received + its.lost());
    assert_eq!((its.duplicates, its.reordered, its.corrupted), (0, 0, 0));
    assert_eq!(its.latency.count, its.received);
}

/// The packets that came back are those that the device counts as sent, or were lost after that.
fn came_back(part: &str, measured: &Measurement, said: &str) {
    let its: serde_json::Value = serde_json::from_str(said).unwrap();
    let number = |name: &str| its[name].as_u64().unwrap();
    assert!(measured.received > 0 && measured.received <= number("sent"), "{measured:?} {said}");
    assert!(number("received") <= measured.sent);
    assert_eq!((measured.duplicates, measured.reordered, measured.corrupted), (0, 0, 0));
    // Each has one packet a round; on a machine with much else to do there may not be a whole one.
    assert!(measured.flows_seen == 1000 || measured.flows_seen == measured.received, "{measured:?}");
    assert!(measured.consistent);
    assert_eq!(measured.backend_packets.len(), if part == "balancer" { 4 } else { 0 });
}
