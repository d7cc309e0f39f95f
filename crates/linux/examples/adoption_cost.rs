//! The cost of a restart: loading the programs, adopting them as they are, adopting and replacing them; and listing,
//! passing on and removing rules. In a namespace of its own: `ip netns exec`, or `unshare --net --mount`. Needs root.
//!
//! Arguments: how many IPv4 rules (1,000,000).

use anyhow::{Context, Result, bail};
use hairpin_core::engine::{Completions, FlowEngine, Rule, RuleId, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_linux::cpu;
use hairpin_linux::programs::{AdoptedPrograms, LoadedPlane, ProgramOptions};
use std::time::Instant;

const STEERING: Steering = Steering::by_hash([1, 2], 1);

fn main() -> Result<()> {
    let rules: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse()).context("not a number")?;
    let options = ProgramOptions {
        instance: format!("adoption-{}", std::process::id()),
        rules_v4_max: rules,
        rules_v6_max: 1,
        ..ProgramOptions::default()
    };
    let other = ProgramOptions { keep_ttl: true, ..options.clone() };
    let plane = timed("load", || LoadedPlane::load(&options, STEERING))?;
    install(&plane, rules)?;
    for _ in 0..5 {
        timed("adopt, same programs", || adopt(&options))?;
    }
    for _ in 0..2 {
        timed("adopt, other programs", || adopt(&other))?;
        timed("adopt, other programs", || adopt(&options))?;
    }
    let found = timed("list rules", || plane.rules())?;
    let given: Vec<_> = found.iter().map(|rule| (rule.key, 1)).collect();
    timed("pass rules on", || plane.assign_rules(&given))?;
    let keys: Vec<_> = found.iter().map(|rule| rule.key).collect();
    let removed = timed("remove rules", || plane.remove_rules(&keys))?;
    println!("{} of {rules} rules listed, {removed} removed", found.len());
    timed("all totals", || plane.totals(32_768))?;
    timed("totals of 1000 backends", || plane.totals(2000))?;
    timed("events", || plane.events())?;
    timed("forget known", || {
        plane.control().forget_known();
        Ok(())
    })?;
    plane.detach()
}

fn timed<T>(what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = act()?;
    println!("{what}: {:.2} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(result)
}

fn adopt(options: &ProgramOptions) -> Result<LoadedPlane> {
    match LoadedPlane::adopt(options, STEERING)? {
        AdoptedPrograms::Plane(plane) => Ok(*plane),
        other => bail!("{other:?}"),
    }
}

fn install(plane: &LoadedPlane, rules: u32) -> Result<()> {
    let mut engine = plane.engine(0)?;
    let mut answers = Completions::new();
    for number in 0..rules {
        let end = |n: u32, port| Endpoint { address: Address::from_ipv4(n.to_be_bytes()), port };
        let key = FlowKey {
            source: end(0x0a00_0000 | number >> 8, 1024 + (number & 0xff) as u16),
            destination: end(0xc000_020a, 80),
            protocol: Protocol::Tcp,
        };
        let rule = Rule { id: RuleId(u64::from(number)), key, ..Rule::default() };
        while engine.submit(cpu::now(), RuleOp::Install(rule)).is_err() {
            engine.flush(cpu::now());
            loop {
                answers.clear();
                engine.poll(cpu::now(), &mut answers);
                if answers.is_empty() {
                    break;
                }
            }
        }
    }
    engine.flush(cpu::now());
    Ok(())
}
