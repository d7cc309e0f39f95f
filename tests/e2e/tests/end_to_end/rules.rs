//! The dpdk plane's flow engine under real traffic, with the device that only tests have (cargo feature `fake-flow`): it
//! takes rules, refuses, answers late, and has no packets. So rules are in force as far as workers were told, and packets
//! come to the workers all the same: nothing may be lost or go astray for that.

use super::dpdk::{Net, PATIENCE, PORTS, ask, is_built_in, net, options, status, whole, works};
use super::lane::skip;
use super::network::{dpdk_test as test, service, services};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::peer::{self, HairpinOptions};
use hairpin_e2e::tool::inside;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Instant;

/// The variable that tells the fake its faults.
const FAKE: &str = "HAIRPIN_FAKE_FLOW";
/// Connections end soon, and their rules with them.
const TIMEOUTS: &str = "[timeouts]\ntcp_established = \"5s\"\ntcp_half_closed = \"1s\"\ntcp_closed = \"500ms\"\nudp_new = \"1s\"\nudp_established = \"2s\"\n";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("dpdk: rules are installed, counted and removed in use", come_and_go),
        test("dpdk: rules of an ended process are replaced", restart),
        test("dpdk: a faulty rule device loses no packet", faults),
        test("dpdk: connections get marks where only marks work", marks),
        test("dpdk: steering rules follow a reload and are optional", steering),
        test("dpdk: steering rules are refused, all or some", steering_refused),
        test("dpdk: unsuitable rule devices are named and not used", unable),
    ]
}

/// The network with Hairpin in it and the fake behind its ports; `None` if the program has no fake.
fn faked(faults: &str) -> Result<Option<Net>> {
    faked_with(faults, HairpinOptions::default())
}

/// [`faked`], with more options.
fn faked_with(faults: &str, more: HairpinOptions) -> Result<Option<Net>> {
    if !is_built_in()? {
        return Ok(None);
    }
    // One that has a fake does not know this fault.
    let mut probe = Command::new(peer::hairpin_program()?);
    if command::output(probe.args(["probe", "net_null0"]).env(FAKE, "nonsense")).is_ok() {
        skip("this needs a hairpin with the fake device (cargo build -p hairpin --features fake-flow)");
        return Ok(None);
    }
    net(HairpinOptions {
        dpdk: options(PORTS).dpdk,
        tables: TIMEOUTS.to_owned(),
        environment: vec![(FAKE, faults.to_owned())],
        ..more
    })
}

fn number(value: &Value, what: &str) -> Result<u64> {
    value[what].as_u64().with_context(|| format!("no `{what}` in {value}"))
}

/// Waits until the status says so.
fn wait_until(net: &Net, what: &str, mut says: impl FnMut(&Value) -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let status = status(&net.hairpin)?;
        if says(&status)? {
            return Ok(());
        }
        ensure!(begun.elapsed() < 3 * PATIENCE, "{what} does not come true: {}", status["offload"]);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Asks on a connection until one is offloaded: what says nothing is not offered.
fn wait_for_rules(net: &Net, stream: &mut TcpStream) -> Result<()> {
    wait_until(net, "an offloaded connection", |_| {
        ask(stream)?;
        Ok(net.hairpin.offload()?.offloaded > 0)
    })
}

/// A connection that stays, and has asked once.
fn connect(net: &Net) -> Result<TcpStream> {
    let to: SocketAddr = service("http4").listen().parse()?;
    inside::run(&net.topology.client, move || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        ask(&mut stream)?;
        Ok(stream)
    })
}

fn come_and_go() -> Result<()> {
    // Hairpin queues would lead back to where packets came from: between two ports the switch is the way.
    let Some(mut net) = faked("ticks=5,delay=3,seed=1,hairpin_queues=2")? else { return Ok(()) };
    let mut stream = connect(&net)?;
    works(&net)?;
    wait_for_rules(&net, &mut stream)?;
    // Its packets come to the workers, which must forward them.
    let forwarded = |way: &str| -> Result<u64> {
        let status = status(&net.hairpin)?;
        let services = status["services"].as_array().context("services")?;
        let of = services.iter().find(|service| service["name"] == "http4").context("http4")?;
        number(&of[way], "packets")
    };
    let before = forwarded("software")?;
    for _ in 0..20 {
        ask(&mut stream)?;
    }
    ensure!(forwarded("software")? >= before + 40, "{before}, then {}", forwarded("software")?);
    wait_until(&net, "packets that rules have forwarded", |_| {
        ask(&mut stream)?;
        Ok(forwarded("offloaded")? > 2)
    })?;
    let view = net.hairpin.offload()?;
    ensure!(view.rules.iter().sum::<u64>() >= 2, "{view:?}");
    let one = net.hairpin.connections(&json!({}))?.into_iter().find(|one| one.offloaded);
    ensure!(one.is_some(), "no offloaded connection among {:?}", net.hairpin.connections(&json!({}))?);
    let now = status(&net.hairpin)?;
    let offload = &now["offload"];
    ensure!(offload["engine"] == "rte_flow" && offload["policy"] == "always", "{offload}");
    ensure!(number(&offload["engine_counts"], "put-in")? >= 2 && offload["engine_counts"]["failed"] == 0, "{offload}");
    // Bodies of responses are offloaded, too.
    let lacks: Vec<_> = offload["engine_lacks"].as_object().context("engine_lacks")?.keys().collect();
    ensure!(lacks == ["HTTP otherwise, TLS"], "{offload}");
    let table = net.hairpin.status_table()?;
    ensure!(
        table.contains("engine rte_flow: packets leave by represented port") && table.contains("templates"),
        "{table}"
    );
    ensure!(table.contains("net_af_packet0: rules: packets leave by"), "{table}");
    // The connection ends, and what the others left behind: so do their rules.
    drop(stream);
    wait_until(&net, "no rule", |status| Ok(number(&status["offload"], "rules")? == 0))?;
    let view = net.hairpin.offload()?;
    ensure!(view.rules == [0, 0], "{view:?}");
    works(&net)?;
    whole(&net.hairpin)?;
    net.hairpin.end(Signal::SIGTERM)?;
    ensure!(!net.hairpin.logs().contains("panicked"), "{}", net.hairpin.logs());
    Ok(())
}

fn restart() -> Result<()> {
    let Some(mut net) = faked("ticks=5,delay=2")? else { return Ok(()) };
    let mut stream = connect(&net)?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        wait_for_rules(&net, &mut stream)?;
        net.hairpin.end(signal)?;
        net.hairpin.start_again(&net.topology, &[])?;
        let status = net.hairpin.status()?;
        ensure!(status.began == "restart" && status.adopted_connections >= 1, "{status:?}");
        ask(&mut stream).with_context(|| format!("after {signal}"))?;
    }
    wait_for_rules(&net, &mut stream)?;
    works(&net)?;
    whole(&net.hairpin)
}

/// Rules for some connections; some are refused at once, some late, and some are not removed.
fn faults() -> Result<()> {
    for faults in [
        "healthy=200,capacity=24,delay=4,seed=3,refuse_create_every=5,refuse_destroy_every=3,lose_every=7,refuse_late,queue_size=8,ticks=5",
        "healthy=200,capacity=24,refuse_create_every=4,refuse_destroy_every=3,no_templates,ticks=5",
    ] {
        let Some(net) = faked(faults)? else { return Ok(()) };
        let streams: Result<Vec<TcpStream>> = (0..24).map(|_| connect(&net)).collect();
        let mut streams = streams?;
        for round in 0..5 {
            works(&net).with_context(|| faults.to_owned())?;
            for stream in &mut streams {
                ask(stream).with_context(|| format!("{faults}: round {round}"))?;
            }
        }
        let target = [service("http4").listen()];
        let duration = std::time::Duration::from_secs(1);
        let load = load::WrkOptions { page: "1k", connections: 16, duration, close: true };
        let wrk = load::wrk(&net.topology, &target, &load)?;
        ensure!(wrk.errors == 0 && wrk.requests > 0, "{faults}: {wrk:?}");
        let now = status(&net.hairpin)?;
        let (offload, counts) = (&now["offload"], &now["offload"]["engine_counts"]);
        ensure!(number(counts, "put-in")? > 0 && number(counts, "refused")? > 0, "{offload}");
        let reasons = &offload["not_offloaded"];
        let refused =
            ["engine-full", "engine-failed"].iter().filter_map(|reason| reasons[reason].as_u64()).sum::<u64>();
        ensure!(refused > 0 && counts["failed"] == 0, "{offload}");
        ensure!(!net.hairpin.logs().contains("panicked"), "{}", net.hairpin.logs());
        whole(&net.hairpin).with_context(|| faults.to_owned())?;
    }
    Ok(())
}

/// No way to send packets out (REPRESENTED_PORT, PORT_ID; there is no hairpin queue): MARK remains.
fn unable() -> Result<()> {
    let faults = format!("refuse_does={}", (1 << 14) | (1 << 15));
    let Some(net) = faked(&faults)? else { return Ok(()) };
    works(&net)?;
    let table = net.hairpin.status_table()?;
    ensure!(table.contains("engine none: the ports can mark packets, not turn them round"), "{table}");
    ensure!(table.contains("nothing is offloaded (send out: represented port: Operation not supported"), "{table}");
    let now = status(&net.hairpin)?;
    ensure!(now["offload"]["engine"] == "none" && now["offload"]["installed_total"] == 0, "{}", now["offload"]);
    whole(&net.hairpin)
}

/// Connections get marks, and their packets come without: the worker looks them up.
fn marks() -> Result<()> {
    let faults = format!("refuse_does={},delay=2", (1 << 14) | (1 << 15));
    let dpdk = HairpinOptions { more_dpdk: "marks = true", ..HairpinOptions::default() };
    let Some(net) = faked_with(&faults, dpdk)? else { return Ok(()) };
    let mut stream = connect(&net)?;
    works(&net)?;
    wait_until(&net, "a rule", |status| {
        ask(&mut stream)?;
        Ok(number(&status["offload"], "installed_total")? >= 2)
    })?;
    ask(&mut stream)?;
    let now = status(&net.hairpin)?;
    ensure!(now["offload"]["engine"] == "rte_flow-marks", "{}", now["offload"]);
    let view = net.hairpin.offload()?;
    ensure!(view.offloaded == 0, "marked is not offloaded: {view:?}");
    drop(stream);
    wait_until(&net, "no rule", |status| Ok(number(&status["offload"], "rules")? == 0))?;
    whole(&net.hairpin)
}

/// Two workers, so that there is something to tell apart.
fn two_workers() -> HairpinOptions {
    HairpinOptions { top: "workers = 2".to_owned(), ..HairpinOptions::default() }
}

/// Rules in the ports that bring packets to their worker, and how many there should be; `None` if it is not done that way.
fn steering_rules(net: &Net) -> Result<Option<(u64, u64)>> {
    let table = net.hairpin.status_table()?;
    let Some((_, after)) = table.split_once("told apart by bits of the client's port; ") else { return Ok(None) };
    let mut numbers = after.split(' ').step_by(2).take(2).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(there)), Some(Ok(wanted))) => Ok(Some((there, wanted))),
        _ => anyhow::bail!("no numbers in {after}"),
    }
}

/// Writes the configuration anew, with tables after the last service's and settings of the plane.
fn configure(net: &Net, more: &str, more_dpdk: &'static str) -> Result<()> {
    let mut services = services();
    services.last_mut().context("services")?.tables = more.to_owned();
    let options = HairpinOptions { dpdk: PORTS, tables: TIMEOUTS.to_owned(), more_dpdk, ..two_workers() };
    net.hairpin.configure(&net.topology, &services, &options)
}

/// A connection goes through all of it. (The device has no packets: workers hand over what does not come to its own.)
fn steering() -> Result<()> {
    let Some(mut net) = faked_with("", two_workers())? else { return Ok(()) };
    let mut stream = connect(&net)?;
    works(&net)?;
    let before = steering_rules(&net)?.context("no rules")?;
    ensure!(before.0 == before.1 && before.0 > 0, "{before:?}");
    // A service more: two rules on each port for clients, two for its backend. Then it goes again, and its rules.
    let added = "[[service]]\nname = \"added\"\nlisten = \"10.0.100.77:80/tcp\"\nbackends = [\"10.0.2.2:80\"]\n";
    configure(&net, added, "")?;
    net.hairpin.tell(&net.topology, &["reload"])?;
    let more = steering_rules(&net)?.context("no rules after the reload")?;
    ensure!(more.0 == more.1 && more.0 > before.0, "{before:?}, then {more:?}");
    load::curl(&net.topology.client, &net.topology, "10.0.100.77:80", "1k", "added")?;
    configure(&net, "", "")?;
    net.hairpin.tell(&net.topology, &["reload"])?;
    // Numbers of what is removed are kept for a minute, and so are its rules.
    let after = steering_rules(&net)?.context("no rules after another reload")?;
    ensure!(after.0 == after.1 && after.0 <= more.0, "{more:?}, then {after:?}");
    ask(&mut stream)?;
    // The next process tells workers apart in another way, and the one after that as the first: connections move.
    for (more_dpdk, signal) in [("port_rules = false", Signal::SIGTERM), ("", Signal::SIGKILL)] {
        configure(&net, "", more_dpdk)?;
        net.hairpin.end(signal)?;
        net.hairpin.start_again(&net.topology, &[])?;
        let status = net.hairpin.status()?;
        ensure!(status.began == "restart" && status.adopted_connections >= 1, "{status:?}");
        ensure!(steering_rules(&net)?.is_some() == more_dpdk.is_empty(), "{}", net.hairpin.status_table()?);
        ensure!(net.hairpin.logs().contains("dealt out anew"), "{}", net.hairpin.logs());
        ask(&mut stream).with_context(|| format!("after {signal}"))?;
    }
    works(&net)?;
    whole(&net.hairpin)
}

/// A device without queues to send to, one with too little room for them, and one that has too little once the engine's
/// own are in.
fn steering_refused() -> Result<()> {
    for (faults, why) in [("refuse_does=4096", "an action it does not have"), ("capacity=8", "the table is full")] {
        let Some(net) = faked_with(faults, two_workers())? else { return Ok(()) };
        works(&net)?;
        let table = net.hairpin.status_table()?;
        ensure!(table.contains("2 workers hand over to each other") && table.contains(why), "{faults}: {table}");
        whole(&net.hairpin)?;
    }
    let Some(net) = faked_with("", two_workers())? else { return Ok(()) };
    let (all, _) = steering_rules(&net)?.context("no rules")?;
    let ports = status(&net.hairpin)?["ports"].as_array().context("ports")?.len() as u64;
    drop(net);
    let Some(net) = faked_with(&format!("capacity={}", all / ports), two_workers())? else { return Ok(()) };
    works(&net)?;
    let (there, wanted) = steering_rules(&net)?.context("no rules")?;
    ensure!(there < wanted && wanted == all, "{there} of {wanted}, {all} before");
    let (table, logs) = (net.hairpin.status_table()?, net.hairpin.logs());
    ensure!(table.contains("the table is full"), "{table}");
    ensure!(logs.contains("workers hand the rest over"), "{logs}");
    let ports = status(&net.hairpin)?["ports"].as_array().context("ports")?.clone();
    let sum = |field: &str| ports.iter().filter_map(|port| port[field].as_u64()).sum::<u64>();
    let (counted, missing) = (sum("steering_rules"), sum("steering_rules_missing"));
    ensure!((counted, missing) == (there, wanted - there), "{there} of {wanted}: {ports:?}");
    whole(&net.hairpin)
}
