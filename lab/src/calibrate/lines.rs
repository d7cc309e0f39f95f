//! What a cache line takes from core to core, for the model of cores that share a table ([`hairpin_sim::sharing`]).
//!
//! One core changes many lines, or brings them into its caches and only reads them; then another one follows a chain through
//! them, so that each access waits for the one before: changing each line, or reading it. What a line takes that the core has
//! itself is measured by following the chain once more. A round is over in a tenth of a millisecond, and the median of many
//! counts, so a thread that was interrupted now and then does little harm.

use crate::clock;
use crate::statistics::Summary;
use crate::testbed::cores::{allowed, pin};
use anyhow::{Context, Result, ensure};
use hairpin_sim::sharing::LineCosts;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Lines of a chain: more than a first cache holds, less than a second.
const LINES: usize = 2048;
/// Lines of a chain that stays in the first cache.
const NEAR: usize = 64;
/// Rounds of each kind.
const ROUNDS: usize = 200;
/// Bytes that drive everything else out of a core's own caches.
const DRIVES_OUT: usize = 16 << 20;
/// Of a line's number the low bits are the next line's place; the others count.
const PLACE: u64 = 0xffff;
const COUNTED: u64 = 1 << 16;
/// Looks in vain before a thread lets another one have its processor.
const PATIENCE: u32 = 10_000;

/// Two lines, as neighbours are fetched in pairs.
#[repr(align(128))]
struct Apart(AtomicU64);

/// Lines, each with the place of the next one.
struct Chain(Vec<Apart>);

impl Chain {
    fn new(lines: usize, seed: u64) -> Chain {
        let mut order: Vec<usize> = (0..lines).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut next = vec![0; lines];
        order.iter().zip(order.iter().cycle().skip(1)).for_each(|(&from, &to)| next[from] = to as u64);
        Chain(next.into_iter().map(|place| Apart(AtomicU64::new(place))).collect())
    }

    /// Follows it once, and changes every line; nanoseconds for each.
    fn change(&self) -> f64 {
        self.follow(|line| line.fetch_add(COUNTED, Ordering::AcqRel))
    }

    /// Follows it once, and reads every line; nanoseconds for each.
    fn read(&self) -> f64 {
        self.follow(|line| line.load(Ordering::Acquire))
    }

    fn follow(&self, access: impl Fn(&AtomicU64) -> u64) -> f64 {
        let began = clock::now();
        let mut at = 0;
        for _ in 0..self.0.len() {
            at = (access(&self.0[at as usize].0) & PLACE) as u32 as u64;
        }
        black_box(at);
        (clock::now() - began) as f64 / self.0.len() as f64
    }
}

/// Lets two threads take turns.
struct Turns(AtomicUsize);

impl Turns {
    fn wait_for(&self, turn: usize) {
        let mut looks = 0;
        while self.0.load(Ordering::Acquire) != turn {
            spin_loop();
            looks += 1;
            if looks % PATIENCE == 0 {
                std::thread::yield_now();
            }
        }
    }

    fn over(&self, turn: usize) {
        self.0.store(turn + 1, Ordering::Release);
    }
}

/// Two processors that this process may use.
///
/// # Errors
/// There is one only.
pub fn pair() -> Result<[usize; 2]> {
    let cpus = allowed()?;
    ensure!(cpus.len() >= 2, "a line goes from one processor to another, and this process may use one only");
    Ok([cpus[0], cpus[1]])
}

/// Measures lines between two processors.
///
/// # Errors
/// A thread cannot stay on its processor.
pub fn lines(cpus: [usize; 2]) -> Result<LineCosts> {
    // On threads of its own, so that the caller stays where it may run.
    std::thread::scope(|scope| {
        scope.spawn(|| between(cpus)).join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
    })
}

fn between([near, far]: [usize; 2]) -> Result<LineCosts> {
    let (shared, own) = (Chain::new(LINES, 1), Chain::new(NEAR, 2));
    let turns = Turns(AtomicUsize::new(0));
    let mut times: [Vec<f64>; 3] = Default::default();
    std::thread::scope(|scope| -> Result<()> {
        // The other one: it changes all lines in even rounds, reads them from far memory in odd ones.
        let other = scope.spawn(|| {
            let pinned = pin(far);
            let drive = vec![1_u8; DRIVES_OUT];
            for round in 0..2 * ROUNDS {
                turns.wait_for(2 * round);
                if round % 2 == 0 {
                    shared.change();
                } else {
                    shared.change();
                    black_box(drive.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
                    shared.read();
                }
                turns.over(2 * round);
            }
            pinned
        });
        let pinned = pin(near);
        for round in 0..2 * ROUNDS {
            turns.wait_for(2 * round + 1);
            if round % 2 == 0 {
                times[0].push(shared.change());
            } else {
                times[1].push(shared.read());
            }
            own.change();
            times[2].push(own.change());
            turns.over(2 * round + 1);
        }
        pinned?;
        other.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })?;
    let middle = |times: &[f64]| Summary::of(times).map(|summary| summary.median).context("nothing was measured");
    Ok(LineCosts {
        held_ns: middle(&times[2])?,
        transfer_ns: middle(&times[0])?,
        clean_ns: middle(&times[1])?,
        // It is in what the other core does meanwhile, and small beside a transfer on the machines this was tried on.
        pause_ns: 0.0,
        source: format!("median of {ROUNDS} chains through {LINES} lines, between processors {near} and {far}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_come_by_every_line() {
        let chain = Chain::new(100, 3);
        chain.change();
        assert!(chain.0.iter().all(|line| line.0.load(Ordering::Relaxed) / COUNTED == 1));
        chain.read();
        assert!(chain.0.iter().all(|line| line.0.load(Ordering::Relaxed) / COUNTED == 1));
    }

    #[test]
    fn lines_cost_something() {
        let Ok(pair) = pair() else { return };
        let costs = lines(pair).unwrap();
        assert!(costs.held_ns > 0.0 && costs.clean_ns > 0.0 && costs.transfer_ns > 0.0, "{costs:?}");
    }
}
