//! `hairpin-lab` as people run it: the program with its options, in processes of their own, what they print and what they
//! leave. How fast anything is does not matter here, but a search for a rate without loss fails where there is none, beside other
//! processes that poll.

use super::dpdk::PATIENCE;
use super::lane::{alone as test, skip};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::namespace::{Namespace, Scratch, unique_prefix};
use hairpin_e2e::peer::laboratory;
use hairpin_e2e::process::Process;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("dpdk lab: generate, forward, sink, as processes (af_packet)", three_processes),
        test("dpdk lab: generate through a balancer process (memif)", there_and_back),
        test("dpdk lab: run resumes after a kill, and names file errors", run),
        test("dpdk lab: rate finds a rate", rate),
        test("dpdk lab: calibrate writes a profile, train a model", calibrate_and_train),
    ]
}

/// Whether the program has DPDK. Says so if it has not.
fn is_built_in() -> Result<bool> {
    let version = command::output(Command::new(laboratory()?).arg("--version"))?;
    let found = version.contains("features: dpdk");
    if !found {
        skip("ports need a hairpin-lab with DPDK (cargo build -p hairpin-lab --features dpdk)");
    }
    Ok(found)
}

/// Frames a second: few, so that three processes that poll can share two processors.
const RATE: &str = "5kpps";
const FLOWS: u64 = 50;

/// A namespace for processes of the lab, and their files.
struct Bench {
    namespace: Namespace,
    scratch: Scratch,
}

impl Bench {
    fn new() -> Result<Bench> {
        let name = unique_prefix();
        let namespace = Namespace::create(&format!("{name}-lab"))?;
        namespace.script("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1\n")?;
        Ok(Bench { namespace, scratch: Scratch::create(&name)? })
    }

    fn command(&self, words: &str) -> Result<Command> {
        let mut command = self.namespace.command(&laboratory()?.to_string_lossy());
        command.args(words.split_whitespace());
        Ok(command)
    }

    fn start(&self, name: &str, words: &str) -> Result<Process> {
        self.namespace.start(self.command(words)?, &self.scratch.file(format!("{name}.log")))
    }

    /// Waits until the kernel's table `table` says `what` as often as processes have to be ready.
    fn wait_for(&self, (table, what, times): (&str, &str, usize), processes: &mut [&mut Process]) -> Result<()> {
        let begun = Instant::now();
        while self.namespace.script(&format!("cat /proc/net/{table}\n"))?.matches(what).count() < times {
            processes.iter_mut().try_for_each(|process| process.check())?;
            ensure!(begun.elapsed() < PATIENCE, "{what:?} is not {times} times in {table}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// The JSON that a process printed by `-o json`, once it has ended well.
fn printed(process: &mut Process) -> Result<Value> {
    let status = process.wait(6 * PATIENCE)?;
    ensure!(status.success(), "{status}: {}", process.log());
    json(&process.log())
}

/// The line of JSON among what DPDK has to say.
fn json(text: &str) -> Result<Value> {
    let line = text.lines().find(|line| line.starts_with('{')).with_context(|| format!("no JSON in {text}"))?;
    Ok(serde_json::from_str(line)?)
}

fn number(value: &Value, what: &str) -> Result<u64> {
    value[what].as_u64().with_context(|| format!("no `{what}` in {value}"))
}

/// Counts by reason, added up.
fn sum(reasons: &Value) -> Result<u64> {
    let reasons = reasons.as_array().context("no reasons")?;
    reasons.iter().map(|reason| reason[1].as_u64().context("no count")).sum()
}

/// The invariants of every measurement: every packet accounted for, none twice, none changed, times that go forward.
fn is_sound(measured: &Value) -> Result<()> {
    let of = |what| number(measured, what);
    ensure!(of("sent")? == of("received")? + sum(&measured["lost_by_reason"])?, "{measured}");
    ensure!(of("received")? > 0, "nothing came: {measured}");
    ensure!(of("duplicates")? == 0 && of("corrupted")? == 0 && of("reordered")? == 0, "{measured}");
    let latency = &measured["latency"];
    ensure!(number(latency, "count")? == of("received")?, "{latency}");
    ensure!(number(latency, "min")? > 0 && number(latency, "max")? >= number(latency, "min")?, "{latency}");
    ensure!((1..=FLOWS).contains(&of("flows_seen")?) && measured["consistent"] == true, "{measured}");
    Ok(())
}

/// A bridge of the kernel's that learns nothing forwards the generator's frames to the device, and the device's to the sink.
fn three_processes() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    let bench = Bench::new()?;
    // A bridge that snoops on multicast joins 224.0.0.106 (RFC 4286) and floods its report to the device and the sink.
    bench.namespace.script(
        "for name in gen dut sink; do\n\
           ip link add $name type veth peer name $name-far\n\
           for end in $name $name-far; do\n\
             ethtool -K $end tx off tso off gso off gro off sg off > /dev/null\n\
             ip link set $end up\n\
           done\n\
         done\n\
         ip link add bridge type bridge mcast_snooping 0\n\
         for end in gen-far dut-far sink-far; do\n\
           ip link set $end master bridge\n\
           ip link set $end type bridge_slave learning off\n\
         done\n\
         ip link set gen-far type bridge_slave flood off\n\
         bridge fdb add 02:00:00:00:00:02 dev dut-far master static\n\
         ip link set bridge up\n",
    )?;
    let port = |name: &str| format!("--port net_af_packet0,iface={name} -q -o json");
    let mut device = bench.start("forward", &format!("forward {}", port("dut")))?;
    let mut sink = bench.start("sink", &format!("sink {} --seed 7 --idle 1s", port("sink")))?;
    // A line for each socket, which ends with its inode; the last but one word is its user, root.
    bench.wait_for(("packet", " 0003 ", 2), &mut [&mut device, &mut sink])?;
    let source = format!("--seed 7 --no-sink --rate {RATE} --flows {FLOWS} --duration 1s");
    let mut generator = bench.start("generate", &format!("generate {} {source}", port("gen")))?;
    let sent = printed(&mut generator)?;
    let collected = printed(&mut sink)?;
    device.signal(Signal::SIGTERM);
    let handled = printed(&mut device)?;
    let received = &collected["measurement"];
    is_sound(received)?;
    ensure!(number(&handled, "received")? == number(&handled, "sent")? + sum(&handled["dropped"])?, "{handled}");
    // Each has seen no more than the one before has sent; the last packets, if lost, the sink cannot miss.
    ensure!(number(&sent, "sent")? >= number(received, "sent")?, "{sent}\n{received}");
    ensure!(number(&sent, "sent")? >= number(&handled, "received")?, "{sent}\n{handled}");
    ensure!(number(&handled, "sent")? >= number(received, "received")?, "{handled}\n{received}");
    Ok(())
}

/// As docs/guide/lab.md shows it.
fn there_and_back() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    let bench = Bench::new()?;
    let port = |role: &str| format!("--port net_memif0,role={role},socket=hairpin-bench-lab -q -o json");
    let mut device = bench.start("forward", &format!("forward {} --device balancer", port("server")))?;
    bench.wait_for(("unix", "@hairpin-bench-lab", 1), &mut [&mut device])?;
    let source = format!("--balanced --rate {RATE} --flows {FLOWS} --duration 1s");
    let mut generator = bench.start("generate", &format!("generate {} {source}", port("client")))?;
    let measured = printed(&mut generator)?;
    device.signal(Signal::SIGTERM);
    let handled = printed(&mut device)?;
    is_sound(&measured)?;
    let backends = measured["backend_packets"].as_array().context("backends")?;
    ensure!((1..=4).contains(&backends.len()) && sum(&measured["backend_packets"])? > 0, "{measured}");
    ensure!(number(&measured, "sent")? >= number(&handled, "received")?, "{measured}\n{handled}");
    ensure!(number(&handled, "sent")? >= number(&measured, "received")?, "{handled}\n{measured}");
    Ok(())
}

/// The repository's own scenario, shortened.
fn run() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    let bench = Bench::new()?;
    let wrong = bench
        .scratch
        .write("wrong.toml", "name = \"wrong\"\ncores = [1]\nflowz = [100]\n\n[[device]]\nkind = \"forwarderr\"\n")?;
    let refused = command::output(&mut bench.command(&format!("run {}", wrong.display()))?);
    let refused = refused.err().map(|error| format!("{error:#}")).context("a wrong file was taken")?;
    for expected in
        ["wrong.toml:3:1: error: unknown field `flowz`", "wrong.toml:6:8: error:", "did you mean \"forwarder\""]
    {
        ensure!(refused.contains(expected), "no {expected:?} in {refused}");
    }
    let out = bench.scratch.file("results");
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/scenarios/smoke.toml");
    let words = format!("run {scenario} --duration 100ms --repetitions 1 -q -o json --out {}", out.display());
    let mut first = bench.start("run", &words)?;
    let ended = || std::fs::read_to_string(out.join("results.jsonl")).unwrap_or_default().matches("{\"Ended\"").count();
    first.wait_until(6 * PATIENCE, || ended() > 0)?;
    first.signal(Signal::SIGKILL);
    first.wait(PATIENCE)?;
    let before = ended() as u64;
    let done = |words: &str| json(&command::output(&mut bench.command(words)?)?);
    let second = done(&words)?;
    ensure!(number(&second, "kept")? == before && number(&second, "new")? > 0, "{before} before: {second}");
    ensure!(number(&second, "failed")? == 0, "{second}");
    let page = second["page"].as_str().context("no page")?;
    ensure!(std::fs::read_to_string(page)?.contains("<svg") && number(&second, "figures")? > 0, "{page}: {second}");
    // Nothing is left to do.
    let third = done(&words)?;
    let all = before + number(&second, "new")?;
    ensure!(number(&third, "kept")? == all && number(&third, "new")? == 0, "{all} before: {third}");
    ensure!(third["cells"].as_array().map(Vec::len) == second["cells"].as_array().map(Vec::len), "{third}");
    // Of other results none are taken for these.
    let other = done(&format!("{words} --fresh"))?;
    ensure!(number(&other, "kept")? == 0 && number(&other, "new")? == all, "{all} before: {other}");
    Ok(())
}

fn rate() -> Result<()> {
    if !is_built_in()? {
        return Ok(());
    }
    let bench = Bench::new()?;
    let search = "--duration 100ms --repetitions 2 --trials 1 --loss 0,0.5 --highest 20000 -q -o json";
    let words = format!("rate --device forwarder --flows {FLOWS} {search}");
    let found = json(&command::output(&mut bench.command(&words)?)?)?;
    ensure!(found["trial"]["device"] == "forwarder" && found["trial"]["flows"] == FLOWS, "{found}");
    let goals = found["found"].as_array().context("nothing found")?;
    ensure!(goals.len() == 2 && goals[0]["goal"] == 0.0 && goals[1]["goal"] == 0.5, "{found}");
    for goal in goals {
        ensure!(goal["outcomes"].as_array().map(Vec::len) == Some(2), "{goal}");
        // One that loses packets on a busy machine may find nothing without loss; half of them it must forward.
        let mean = goal["rate"]["mean"].as_f64().unwrap_or_default();
        ensure!(mean <= 20_001.0 && (mean > 0.0 || goal["goal"] == 0.0), "{goal}");
    }
    let refused = command::output(&mut bench.command("rate --device balancer --table nonsense")?);
    let refused = refused.err().map(|error| format!("{error:#}")).context("a wrong table was taken")?;
    ensure!(refused.contains("nonsense"), "{refused}");
    Ok(())
}

fn calibrate_and_train() -> Result<()> {
    let bench = Bench::new()?;
    let profile = bench.scratch.file("this.toml");
    let words =
        format!("calibrate --memory --quick --flows 64 --repetitions 1 --duration 10ms -q -o {}", profile.display());
    command::output(&mut bench.command(&words)?)?;
    let text = std::fs::read_to_string(&profile)?;
    ensure!(text.contains("name = \"this\"") && text.contains("cuckoo++"), "{text}");
    let sizes = bench.scratch.write("sizes.csv", "100,0.5\n10000,0.9\n1000000,1.0\n")?;
    let model = bench.scratch.file("edge.tree");
    let words = format!("train --sizes {} --flows 200 --more 10 -m {} -o json", sizes.display(), model.display());
    let judged = command::output(&mut bench.command(&words)?)?;
    ensure!(judged.contains('{'), "{judged}");
    ensure!(std::fs::metadata(&model)?.len() > 0, "the model is empty");
    let wrong = bench.scratch.write("wrong.csv", "100,0.5\nmany,0.9\n")?;
    let refused = command::output(&mut bench.command(&format!("train --sizes {} --more 10", wrong.display()))?);
    let refused = refused.err().map(|error| format!("{error:#}")).context("wrong sizes were taken")?;
    ensure!(refused.contains("wrong.csv") && refused.contains("line 2"), "{refused}");
    Ok(())
}
