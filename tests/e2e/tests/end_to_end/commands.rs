//! The operator's commands against a Hairpin at work: what they show is what real clients see.

use crate::network::{Network, Networks, Which, service};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::namespace::Scratch;
use hairpin_e2e::peer::hairpin_program;
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::PYTHON;
use hairpin_e2e::tool::{http, inside, pcapng};
use hairpin_e2e::topology::{Family, client_address, pool_address, server_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let test = |name: &'static str, body: fn(&mut Network) -> Result<()>| {
        networks.test(&format!("commands: {name}"), Which::Gso, body)
    };
    vec![
        Trial::test("commands: the schema takes what Hairpin takes", || Ok(schema()?)),
        test("connections", connections),
        test("offload", offload),
        test("diff", diff),
        test("top needs a terminal", top),
        test("capture by nat, from the first packet on", capture_nat),
        test("capture by full nat, offloaded packets too", capture_full_nat),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(10);

fn tell(network: &Network, arguments: &[&str]) -> Result<String> {
    network.hairpin.tell(&network.topology, arguments)
}

fn open(network: &Network, name: &str, count: usize) -> Result<Vec<http::HttpConnection>> {
    let to: SocketAddr = service(name).listen().parse()?;
    inside::run(&network.topology.client, move || {
        let one = |_| {
            let mut connection = http::HttpConnection::open(to, TIMEOUT)?;
            connection.get("1k", false, TIMEOUT)?;
            Ok(connection)
        };
        (0..count).map(one).collect()
    })
}

/// Thirty connections are listed, filtered, counted and paged through.
fn connections(network: &mut Network) -> Result<()> {
    let open = open(network, "full-http4", 30)?;
    let end = open[7].own_end()?.to_string();
    let one = tell(network, &["connections", "--client", &end])?;
    let row = one
        .lines()
        .find(|line| line.contains(&end) && line.contains("full-http4"))
        .with_context(|| format!("{end} is not listed:\n{one}"))?;
    for word in ["full-http4", "established", "server"] {
        ensure!(row.contains(word), "no {word} in {row}");
    }
    let lines =
        tell(network, &["connections", "--service", "full-http4", "--state", "established", "--all", "-o", "json"])?;
    let views: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for connection in &open {
        let end = connection.own_end()?.to_string();
        let times = views.iter().filter(|view| view["client"] == *end).count();
        ensure!(times == 1, "{end} is listed {times} times");
    }
    let client = client_address(Family::V4).to_string();
    let filter = ["--service", "full-http4", "--state", "established", "--client", &client];
    let counted = tell(network, &[&["connections", "--count"], &filter[..]].concat())?;
    let counted: usize = counted
        .split_whitespace()
        .find_map(|word| word.parse().ok())
        .with_context(|| format!("no count: {counted}"))?;
    ensure!(counted >= 30, "{counted} connections are counted");
    let refused = tell(network, &["connections", "--client", "10.0.0.300"]).err().context("10.0.0.300 was taken")?;
    ensure!(format!("{refused:#}").contains("10.0.0.300"), "{refused:#}");
    Ok(())
}

fn offload(network: &mut Network) -> Result<()> {
    let open = open(network, "http6", 4)?;
    let end = open[0].own_end()?.to_string();
    // Software hands over within milliseconds; a busy machine takes a little longer.
    for _ in 0..100 {
        let all: Value = serde_json::from_str(&tell(network, &["offload", "-o", "json"])?)?;
        let why = tell(network, &["offload", "--client", &end])?;
        if all["offloaded"].as_u64() >= Some(4) && why.contains(&end) && why.contains("offloaded") {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    bail!("{}\n{}", tell(network, &["offload"])?, tell(network, &["offload", "--client", &end])?)
}

/// Nothing, something, trouble.
fn diff(network: &mut Network) -> Result<()> {
    let text = std::fs::read_to_string(network.hairpin.file())?;
    let status = |text: &str, name: &str| -> Result<(Option<i32>, String)> {
        let file = network.topology.scratch.write(name, text)?;
        let output = network.hairpin.command(&network.topology, &["diff", &file.to_string_lossy()])?.output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
    };
    let (code, said) = status(&text, "same.toml")?;
    ensure!(code == Some(0), "the same file is different: {said}");
    let (code, said) = status(&text.replacen("weight = 1\n", "weight = 9\n", 1), "other.toml")?;
    ensure!(code == Some(1) && said.contains('9'), "another weight, status {code:?}: {said}");
    let (code, said) = status(&text.replacen("weight = 1\n", "weight = -1\n", 1), "bad.toml")?;
    ensure!(code == Some(2) && said.contains("bad.toml:"), "a bad weight, status {code:?}: {said}");
    let before = network.hairpin.status()?;
    ensure!(before.reloads.succeeded_total == 0, "diff has changed something: {:?}", before.reloads);
    Ok(())
}

fn top(network: &mut Network) -> Result<()> {
    let refused = tell(network, &["top"]).err().context("it drew into a pipe")?;
    ensure!(format!("{refused:#}").contains("status --watch"), "{refused:#}");
    Ok(())
}

/// Starts `hairpin capture` and waits until it has begun its file.
fn capture(network: &Network, arguments: &[&str], name: &str) -> Result<(Process, PathBuf)> {
    let file = network.topology.scratch.file(name);
    let _ = std::fs::remove_file(&file);
    let mut capture = network.hairpin.command(&network.topology, &["capture"])?;
    capture.args(arguments).arg("-w").arg(&file);
    let mut process =
        network.topology.balancer.start(capture, &network.topology.scratch.file(format!("{name}.log")))?;
    process.wait_until(TIMEOUT, || file.metadata().is_ok_and(|metadata| metadata.len() > 0))?;
    // The file may be begun a moment before its sockets listen.
    sleep(Duration::from_millis(300));
    Ok((process, file))
}

fn end(mut process: Process, file: &Path) -> Result<Vec<pcapng::CapturedPacket>> {
    sleep(Duration::from_millis(500));
    process.signal(Signal::SIGINT);
    let status = process.wait(TIMEOUT)?;
    ensure!(status.success(), "capture ended with {status}: {}", process.log());
    pcapng::read(file).with_context(|| format!("{}: {}", file.display(), process.log()))
}

/// Bytes of IP packets between two ends, `None` standing for any port.
fn bytes(packets: &[pcapng::CapturedPacket], from: (IpAddr, Option<u16>), to: (IpAddr, Option<u16>)) -> u64 {
    let is = |end: SocketAddr, like: (IpAddr, Option<u16>)| {
        end.ip() == like.0 && like.1.is_none_or(|port| port == end.port())
    };
    let between = packets.iter().filter(|packet| is(packet.source, from) && is(packet.destination, to));
    between.map(|packet| u64::from(packet.ip_bytes)).sum()
}

fn fetch(network: &Network, name: &str) -> Result<()> {
    let topology = &network.topology;
    let mut curl = topology.client.command("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail",
        "--max-time",
        "60",
        "--limit-rate",
        "3M",
        "--output",
        "/dev/null",
    ]);
    command::output(curl.arg(format!("http://{}/10m", service(name).listen()))).map(drop)
}

/// Both sides, from the SYN to the last of ten million bytes.
fn capture_nat(network: &mut Network) -> Result<()> {
    let client = client_address(Family::V4);
    let (process, file) = capture(network, &["--client", &client.to_string()], "nat.pcapng")?;
    fetch(network, "http4")?;
    let packets = end(process, &file)?;
    let vip = vip(Family::V4);
    let servers: Vec<IpAddr> = (1..=4).map(|server| server_address(Family::V4, server)).collect();
    for (about, ends) in [("the VIP", vec![vip]), ("a server", servers)] {
        let syn = packets.iter().any(|packet| {
            packet.source.ip() == client && ends.contains(&packet.destination.ip()) && packet.flags & 0x12 == 0x02
        });
        ensure!(syn, "no SYN to {about} among {} packets", packets.len());
        let bulk: u64 = ends.iter().map(|end| bytes(&packets, (*end, Some(80)), (client, None))).sum();
        ensure!(bulk >= 10 << 20, "{bulk} bytes of 10 MiB from {about}, {} packets", packets.len());
    }
    Ok(())
}

/// The pool's port is learnt while the connection is there; from then on nothing is missing.
fn capture_full_nat(network: &mut Network) -> Result<()> {
    let client = client_address(Family::V4);
    let (process, file) = capture(network, &["--service", "full-http4"], "full-nat.pcapng")?;
    let before = network.hairpin.status()?;
    let before = before.service("full-http4").context("no such service")?.offloaded.packets;
    fetch(network, "full-http4")?;
    let packets = end(process, &file)?;
    let after = network.hairpin.status()?;
    let after = after.service("full-http4").context("no such service")?.offloaded.packets;
    ensure!(after > before, "nothing was offloaded");
    let front = bytes(&packets, (vip(Family::V4), Some(8080)), (client, None));
    let servers = (1..=4).map(|server| server_address(Family::V4, server));
    let back: u64 = servers.map(|server| bytes(&packets, (server, Some(80)), (pool_address(Family::V4), None))).sum();
    // Of some three and a half seconds the first and a little more may be missing.
    for (about, bulk) in [("client", front), ("backend", back)] {
        ensure!(bulk >= 4 << 20, "{bulk} bytes of 10 MiB at the {about}'s side, {} packets", packets.len());
    }
    let page = load::curl(&network.topology.client, &network.topology, &service("full-http4").listen(), "1k", "later")?;
    ensure!(page.header("x-server").is_some(), "no server answered after the capture");
    Ok(())
}

/// A configuration's text as JSON.
fn as_json(text: &str) -> Result<Value> {
    Ok(serde_json::to_value(toml::from_str::<toml::Table>(text)?)?)
}

/// Python's jsonschema takes every example by the schema that `hairpin config --schema` prints, and refuses mistakes.
fn schema() -> Result<()> {
    let directory = Scratch::create(&format!("hairpin-schema-{}", std::process::id()))?;
    let print = |word: &str| command::output(Command::new(hairpin_program()?).args(["config", word]));
    let schema = directory.file("schema.json");
    std::fs::write(&schema, print("--schema")?)?;
    let is_taken = |document: &Value| -> Result<(bool, String)> {
        let file = directory.file("document.json");
        std::fs::write(&file, document.to_string())?;
        let output = Command::new(PYTHON).args(["-m", "jsonschema", "-i"]).args([&file, &schema]).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for name in ["minimal", "full", "http", "dpdk"] {
        let text = std::fs::read_to_string(root.join(format!("{name}.toml")))?;
        let (taken, why) = is_taken(&as_json(&text)?)?;
        ensure!(taken, "examples/{name}.toml is refused: {why}");
    }
    let right = std::fs::read_to_string(root.join("http.toml"))?;
    // An unknown field, a number out of range, a word that is none of a choice's, a text where a number belongs, and a section
    // without a field that it must have.
    let mistakes: [fn(&mut Value); 5] = [
        |document| document["limits"] = json!({"max_connections": 1000}),
        |document| document["limits"] = json!({"connections_max": 1}),
        |document| document["offload"] = json!({"policy": "sometimes"}),
        |document| document["service"][0]["backend"] = json!([{"address": "10.0.0.1:80", "weight": "1"}]),
        |document| document["service"][0]["group"] = json!([{"backends": ["10.0.0.1:80"]}]),
    ];
    for (index, mistake) in mistakes.into_iter().enumerate() {
        let mut document = as_json(&right)?;
        mistake(&mut document);
        ensure!(!is_taken(&document)?.0, "mistake {index} is taken");
    }
    Ok(())
}
