//! Rules put into a device and taken out again, to see that it goes and how long it takes (Laconic, figure 10): the
//! whole path that a worker's rules take, with flows between addresses that no host has.

use super::engine::{OffloadError, OffloadOptions, OffloadThread, Submission};
use super::hops::{Hops, RouteHop};
use super::translate::{DeviceTerms, EnginePort};
use crate::eal::Eal;
use hairpin_core::engine::{Completion, Completions, Fate, FlowEngine, Refusal, Rule, RuleId, RuleOp, Samples};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::time::Time;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// How long the device may be silent before it is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// The result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialResult {
    /// Rules asked for.
    pub asked: u32,
    /// Rules confirmed.
    pub installed: u32,
    /// The first refusal.
    pub refusal: Option<Refusal>,
    /// From the first request until the last answer.
    pub installing: Duration,
    /// Rules with counters.
    pub counted: u32,
    /// Rules confirmed to be gone.
    pub removed: u32,
    /// From the first request until the last answer.
    pub removing: Duration,
    /// The device stopped answering.
    pub silent: bool,
}

/// All packets leave by the one port, to an Ethernet address that no host has.
struct TrialHops([u8; 6]);

impl Hops for TrialHops {
    fn hop(&self, _: &Address) -> Option<RouteHop> {
        // Locally administered, and of no vendor's.
        Some(RouteHop { port: 0, source: self.0, destination: [2, 0, 0, 0, 0, 0xfe] })
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// Rule `number`, between addresses that no host has, of RFC 5737 and RFC 2544.
fn rule(number: u32) -> Rule {
    let end = |first: [u8; 2], rest: u32, port| {
        let [_, _, third, last] = rest.to_be_bytes();
        Endpoint::new(std::net::IpAddr::V4(Ipv4Addr::new(first[0], first[1], third, last)), port)
    };
    let client = end([198, 18], number >> 8, 1024 + (number & 0xff) as u16);
    let key = FlowKey { source: client, destination: end([192, 0], 0x0201, 80), protocol: Protocol::Tcp };
    let rewrite = Rewrite { source: client, destination: end([198, 51], 0x6401, 8080), ..Rewrite::default() };
    Rule { id: RuleId(u64::from(number)), key, rewrite, fate: Fate::Forward, ..Rule::default() }
}

/// Rules that there can be at most.
pub const TRIAL_MAX: u32 = 1 << 24;

/// Puts so many rules into a port, `batch` of them at a time, reads their counters, takes them out again.
///
/// # Errors
/// [`OffloadError`] if the engine does not start.
pub fn trial(
    eal: Option<Eal>,
    (port, mac): (&EnginePort, [u8; 6]),
    (terms, submission): (DeviceTerms, Submission),
    (rules, batch): (u32, u32),
) -> Result<TrialResult, OffloadError> {
    let (rules, batch) = (rules.min(TRIAL_MAX), batch.clamp(1, 1024));
    let clock = || Time::from_nanos(1);
    let options = OffloadOptions {
        ports: vec![port.clone()],
        rules_max: rules,
        totals: 0,
        workers: 1,
        terms,
        submission,
        clock,
        eal,
    };
    let (_offload, mut engines) = OffloadThread::start(options, Box::new(TrialHops(mac)))?;
    let mut trial = TrialResult { asked: rules, ..TrialResult::default() };
    let Some(engine) = engines.first_mut() else { return Ok(trial) };
    let mut held = Vec::new();
    let begun = Instant::now();
    let numbers: Vec<u32> = (0..rules).collect();
    for some in numbers.chunks(batch as usize) {
        let ops = some.iter().map(|number| RuleOp::Install(rule(*number)));
        trial.silent |= !execute(engine, ops, |completion| match completion {
            Completion::Installed(id) => held.push(id.0 as u32),
            Completion::Rejected(_, refusal) => trial.refusal = trial.refusal.or(Some(refusal)),
            Completion::Removed(..) => {}
        });
        if trial.silent {
            break;
        }
    }
    (trial.installing, trial.installed) = (begun.elapsed(), held.len() as u32);
    for some in held.chunks(batch as usize) {
        let asked: Vec<_> = some.iter().map(|number| (RuleId(u64::from(*number)), rule(*number).key)).collect();
        let mut samples = Samples::new();
        engine.sample(&asked, &mut samples);
        trial.counted += samples.iter().flatten().count() as u32;
    }
    let begun = Instant::now();
    for some in held.chunks(batch as usize).take_while(|_| !trial.silent) {
        let ops = some.iter().map(|number| {
            let Rule { id, key, .. } = rule(*number);
            RuleOp::Remove { id, key }
        });
        let removed = &mut trial.removed;
        if !execute(engine, ops, |completion| {
            *removed += u32::from(matches!(completion, Completion::Removed(_, Some(_))))
        }) {
            trial.silent = true;
            break;
        }
    }
    trial.removing = begun.elapsed();
    Ok(trial)
}

/// Asks, and waits for the answers; `false` if there are none for long.
fn execute(engine: &mut impl FlowEngine, ops: impl Iterator<Item = RuleOp>, mut told: impl FnMut(Completion)) -> bool {
    let mut due = 0;
    for op in ops {
        due += usize::from(engine.submit(Time::ZERO, op).is_ok());
    }
    engine.flush(Time::ZERO);
    let mut last = Instant::now();
    while due > 0 {
        let mut some = Completions::new();
        engine.poll(Time::ZERO, &mut some);
        if some.is_empty() {
            if last.elapsed() > SILENCE {
                return false;
            }
            std::thread::yield_now();
            continue;
        }
        (due, last) = (due.saturating_sub(some.len()), Instant::now());
        some.into_iter().for_each(&mut told);
    }
    true
}
