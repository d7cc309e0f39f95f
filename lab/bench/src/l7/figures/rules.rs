//! The cost of rules, by the size of the batch: the counterpart of Laconic, table 2.
//!
//! The engine is the one that workers have: the same maps and BPF programs (`rules_put`, `rules_take`), and rules as the
//! splice asks for them, which move numbers and have guards. What is timed is what a worker does: submit each request of
//! a batch, flush, poll the answers; by the thread's own time, which does not know of others on the processor (nothing
//! in it waits). There is no traffic meanwhile. Requests are for flows in an arbitrary order.

pub(super) use super::results::RULES as PART;
use super::results::{FigureResults, ResultPlace};
use anyhow::{Result, ensure};
use hairpin_core::engine::{Completion, Completions, FlowEngine, Guard, Rule, RuleId, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::time::Time;
use hairpin_linux::programs::{LoadedPlane, ProgramOptions};
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Rules asked for at a time: those of the paper's table, and more.
pub(super) const BATCHES: [usize; 7] = [1, 2, 8, 16, 32, 64, 256];
/// Other rules that are in force meanwhile.
pub(super) const PRESENT: [(usize, &str); 2] = [(1_000, "1 k rules"), (100_000, "100 k rules")];
/// Rules that go in and out in one measurement.
const RULES: usize = 8_192;
/// Microseconds an installation takes, or a removal.
pub(super) const INSERT: &str = "insert_us";
pub(super) const DELETE: &str = "delete_us";

/// Measures all batches, in turn.
pub(super) fn measure(results: &mut FigureResults, repetitions: usize) -> Result<()> {
    let most = PRESENT.iter().map(|(present, _)| present).max().copied().unwrap_or_default() + RULES;
    let options = ProgramOptions {
        instance: format!("laconic-{}", std::process::id()),
        rules_v4_max: most.next_power_of_two() as u32,
        rules_v6_max: 1,
        ..ProgramOptions::default()
    };
    let plane = LoadedPlane::load(&options, Steering::by_hash([1, 2], 1))?;
    let measured = on(&plane, results, repetitions);
    // Pinned objects go in any case.
    plane.detach()?;
    measured
}

fn on(plane: &LoadedPlane, results: &mut FigureResults, repetitions: usize) -> Result<()> {
    let mut engine = plane.engine(0)?;
    let mut there = 0;
    let timed: Vec<Rule> = scattered(RULES).map(|number| rule(number as u32, 1)).collect();
    for (present, series) in PRESENT {
        let more: Vec<Rule> = (there..present).map(|number| rule(number as u32, 2)).collect();
        install(&mut engine, &more, 256)?;
        there = present;
        for repetition in 0..repetitions {
            let mut order = BATCHES;
            if repetition % 2 == 1 {
                order.reverse();
            }
            for batch in order {
                let insert = install(&mut engine, &timed, batch)?;
                let delete = remove(&mut engine, &timed, batch)?;
                let us = |took: Duration| took.as_secs_f64() * 1e6 / timed.len() as f64;
                let place = ResultPlace { part: PART, setting: "", series, x: batch as u64 };
                results.add(place, repetition, &[(INSERT, us(insert)), (DELETE, us(delete))]);
            }
        }
        println!("  rules: {series} in force: {}", summary(results, series));
    }
    Ok(())
}

/// One line of progress.
fn summary(results: &FigureResults, series: &str) -> String {
    let of = |batch: usize| {
        let place = ResultPlace { part: PART, setting: "", series, x: batch as u64 };
        let (insert, delete) = (results.median(place, INSERT), results.median(place, DELETE));
        format!("{batch}: {:.2}/{:.2} us", insert.unwrap_or(f64::NAN), delete.unwrap_or(f64::NAN))
    };
    BATCHES.map(of).join(", ")
}

/// The numbers below `count`, a power of two, in an order that is not theirs.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    debug_assert!(count.is_power_of_two());
    // An odd factor maps them one to one.
    (0..count).map(move |number| number.wrapping_mul(0x9e37_79b1) & (count - 1))
}

/// A rule as that of a response's body: from the backend to the pool, to be sent on from the VIP to the client.
fn rule(number: u32, kind: u8) -> Rule {
    let end = |octets: [u8; 4], port: u16| Endpoint::new(Address::from_ipv4(octets), port);
    let [_, high, middle, low] = number.to_be_bytes();
    Rule {
        id: RuleId(u64::from(number) | u64::from(kind) << 32),
        key: FlowKey {
            source: end([192, 0, 2, kind], 80),
            destination: end([10, high, middle, low], 1024 + (number % 60_000) as u16),
            protocol: Protocol::Tcp,
        },
        rewrite: Rewrite {
            source: end([198, 51, 100, 1], 80),
            destination: end([10, 200 | high, middle, low], 2048),
            sequence_delta: number | 1,
            acknowledgement_delta: number.wrapping_mul(7) | 1,
            ..Rewrite::default()
        },
        guard: Some(Guard {
            sequence: number,
            sequence_length: 1 << 20,
            acknowledgement: number,
            acknowledgement_length: 1 << 20,
        }),
        ..Rule::default()
    }
}

/// Installs rules, so many at a time, and says how long that took.
fn install(engine: &mut impl FlowEngine, rules: &[Rule], batch: usize) -> Result<Duration> {
    execute(engine, rules, batch, |rule| RuleOp::Install(*rule), |done| matches!(done, Completion::Installed(_)))
}

/// Removes them likewise.
fn remove(engine: &mut impl FlowEngine, rules: &[Rule], batch: usize) -> Result<Duration> {
    let op = |rule: &Rule| RuleOp::Remove { id: rule.id, key: rule.key };
    execute(engine, rules, batch, op, |done| matches!(done, Completion::Removed(_, Some(_))))
}

fn execute(
    engine: &mut impl FlowEngine,
    rules: &[Rule],
    batch: usize,
    op: impl Fn(&Rule) -> RuleOp,
    is_done: impl Fn(&Completion) -> bool,
) -> Result<Duration> {
    let mut completions = Completions::new();
    let mut done = 0;
    let start = own_time()?;
    for rules in rules.chunks(batch) {
        for rule in rules {
            ensure!(engine.submit(Time::ZERO, op(rule)).is_ok(), "the engine's queue is full");
        }
        engine.flush(Time::ZERO);
        loop {
            engine.poll(Time::ZERO, &mut completions);
            if completions.is_empty() {
                break;
            }
            done += completions.drain(..).filter(|completion| is_done(completion)).count();
        }
    }
    let took = own_time()? - start;
    ensure!(done == rules.len(), "only {done} of {} requests for rules were performed", rules.len());
    Ok(took)
}

/// The time this thread has had the processor.
fn own_time() -> Result<Duration> {
    Ok(Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_rule_is_for_a_flow_of_its_own() {
        let of = |kind| scattered(RULES).map(move |number| rule(number as u32, kind));
        let keys: HashSet<FlowKey> = of(1).chain(of(2)).map(|rule| rule.key).collect();
        let ids: HashSet<RuleId> = of(1).chain(of(2)).map(|rule| rule.id).collect();
        assert_eq!((keys.len(), ids.len()), (2 * RULES, 2 * RULES));
    }
}
