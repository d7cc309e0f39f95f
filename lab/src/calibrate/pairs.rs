//! Two real cores beside two modelled ones: locks and tables that two threads share, measured, and simulated
//! ([`hairpin_sim::sharing`]) with what the very same work costs one thread and what a line takes from core to core.
//!
//! The model is told nothing of two threads but the lines: what they make of each other is its prediction. Each repetition
//! measures lines, one thread and two threads right after each other, as a virtual machine is another one minutes later.

use super::lines::lines;
use crate::clock::{now, of_thread};
use crate::testbed::cores::pin;
use crate::testbed::table::{LabTable, MaybeEal, TableChoice};
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::table::{BURST, Entries, Lookup, Table};
use hairpin_sim::sharing::{
    LineCosts, MethodCosts, PacketCosts, SharingMethod, SharingOptions, SharingProfile, simulate,
};
use hairpin_tables::global_lock::GlobalLock;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Barrier;
use std::time::Duration;

/// How far measured and simulated may be apart, as a part of what was measured.
pub const BOUND: f64 = super::check::BOUND;
/// A thread with less of its processor than this was kept from its work.
pub const RAN_ENOUGH: f64 = 0.95;
/// Operations between two looks at the clock.
const CHUNK: usize = 1024;
/// Entries of each thread's own.
const ENTRIES: usize = 1 << 15;
/// Virtual time of a prediction, in seconds.
const SIMULATED: f64 = 0.005;

/// What two threads do.
#[derive(Clone, Debug, PartialEq)]
pub enum PairCase {
    /// A spinlock around so many steps of work, and as many as said between.
    Lock {
        /// Steps while the lock is held.
        within: u32,
        /// Steps while it is not.
        between: u32,
    },
    /// Look-ups in a table.
    Table {
        /// Its name.
        table: &'static str,
        /// How the model calls what it does.
        method: SharingMethod,
        /// Keys of a call.
        keys: usize,
        /// Of each call's keys one is taken out and put in again.
        changes: bool,
    },
}

impl PairCase {
    /// All of them; of DPDK's tables, if it is built in.
    pub fn all() -> Vec<PairCase> {
        let lock = |within, between| PairCase::Lock { within, between };
        let table = |table, method, keys, changes| PairCase::Table { table, method, keys, changes };
        let mut cases = vec![lock(10, 500), lock(50, 200), lock(100, 100), lock(400, 50)];
        for changes in [false, true] {
            cases.push(table("cuckoo++", SharingMethod::PerCore, BURST, changes));
            cases.push(table("concurrent", SharingMethod::MultiWriter, BURST, changes));
            cases.push(table("global-lock", SharingMethod::GlobalLock, BURST, changes));
        }
        cases.push(table("global-lock", SharingMethod::GlobalLock, 1, false));
        if cfg!(feature = "dpdk") {
            cases.extend([
                table("rte-hash/multi-writer+rw-concurrency", SharingMethod::MultiWriterRwConcurrency, BURST, false),
                table("rte-hash/multi-writer+rw-concurrency", SharingMethod::MultiWriterRwConcurrency, 1, false),
                table("rte-hash/multi-writer+lock-free", SharingMethod::MultiWriterLockFree, BURST, false),
                table("rte-hash/multi-writer+lock-free", SharingMethod::MultiWriterLockFree, 1, false),
            ]);
        }
        cases
    }
}

impl std::fmt::Display for PairCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PairCase::Lock { within, between } => write!(f, "spinlock, {within} steps within, {between} between"),
            PairCase::Table { table, keys, changes, .. } => {
                write!(f, "{table}, {keys} key{} a call", if *keys == 1 { "" } else { "s" })?;
                f.write_str(if *changes { ", one of them changed" } else { "" })
            }
        }
    }
}

/// A case, measured once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairOutcome {
    /// Operations of one thread alone in a second: keys, or times that a lock was held.
    pub one: f64,
    /// Operations of two threads in a second, together.
    pub two: f64,
    /// What the model says two threads do.
    pub model: f64,
    /// The least share of the time that a thread had its processor.
    pub ran: f64,
}

/// A thread's part: does so many operations.
trait PairWork: Send {
    fn operations(&mut self, count: usize);
}

/// So many dependent steps that touch no memory.
#[inline]
fn steps(count: u32, mut value: u64) -> u64 {
    for _ in 0..count {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 1);
    }
    value
}

struct LockWork<'a> {
    lock: &'a GlobalLock<u64>,
    within: u32,
    between: u32,
    value: u64,
}

impl PairWork for LockWork<'_> {
    fn operations(&mut self, count: usize) {
        for _ in 0..count {
            let (within, value) = (self.within, self.value);
            self.lock.with(|shared| *shared = steps(within, *shared ^ value));
            self.value = steps(self.between, self.value);
        }
    }
}

/// The work of a lock's user without the lock.
struct BareWork {
    count: u32,
    value: u64,
}

impl PairWork for BareWork {
    fn operations(&mut self, count: usize) {
        for _ in 0..count {
            self.value = steps(self.count, self.value);
        }
    }
}

/// Keys of a thread's own; the value of each is its place.
struct OwnKeys(Vec<FlowKey>);

impl OwnKeys {
    fn new(thread: usize) -> OwnKeys {
        let key = |at: usize| FlowKey {
            source: Endpoint::new(IpAddr::from([10, thread as u8, (at >> 8) as u8, at as u8]), 1024 + (at >> 3) as u16),
            destination: Endpoint::new(IpAddr::from([192, 0, 2, 1]), 80),
            protocol: Protocol::Tcp,
        };
        OwnKeys((0..ENTRIES).map(key).collect())
    }
}

impl Entries<FlowKey> for OwnKeys {
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        self.0.get(value as usize) == Some(key)
    }
}

struct TableWork {
    table: LabTable,
    keys: OwnKeys,
    /// Keys in the order in which they are looked up.
    sequence: Vec<FlowKey>,
    at: usize,
    burst: usize,
    changes: bool,
    lost: usize,
}

impl TableWork {
    fn new(mut table: LabTable, thread: usize, burst: usize, changes: bool) -> Result<TableWork> {
        let keys = OwnKeys::new(thread);
        for (value, key) in (0..).zip(&keys.0) {
            table.insert(key, value).map_err(|full| anyhow!("{full}"))?;
        }
        let mut sequence = keys.0.clone();
        fastrand::Rng::with_seed(thread as u64).shuffle(&mut sequence);
        Ok(TableWork { table, keys, sequence, at: 0, burst, changes, lost: 0 })
    }

    fn change(&mut self, key: &FlowKey) {
        let Some(value) = self.table.find(key, &self.keys) else { return self.lost += 1 };
        self.lost += usize::from(!self.table.remove(key, value));
        self.lost += usize::from(self.table.insert(key, value).is_err());
    }
}

impl PairWork for TableWork {
    fn operations(&mut self, count: usize) {
        let mut found = [None; BURST];
        for _ in 0..count / self.burst {
            let from = self.at;
            self.at = (self.at + self.burst) % self.sequence.len();
            let keys = &self.sequence[from..from + self.burst];
            if let [key] = keys {
                found[0] = self.table.find(key, &self.keys);
            } else {
                self.table.find_burst(keys, &self.keys, &mut found);
            }
            self.lost += found[..self.burst].iter().filter(|value| value.is_none()).count();
            if self.changes {
                let key = self.sequence[from];
                self.change(&key);
            }
        }
    }
}

/// Lets the threads work at the same time for so long; operations a second of all, and the least share of a processor.
fn rate<'w>(works: &mut [Box<dyn PairWork + 'w>], cpus: [usize; 2], duration: Duration) -> Result<(f64, f64)> {
    let barrier = Barrier::new(works.len());
    let barrier = &barrier;
    let done = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (work, cpu) in works.iter_mut().zip(cpus) {
            threads.push(scope.spawn(move || on_processor(&mut **work, cpu, barrier, duration)));
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(f64, f64)>>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        threads.into_iter().map(join).collect::<Result<Vec<(f64, f64)>>>()
    })?;
    let all = done.iter().map(|(rate, _)| rate).sum();
    Ok((all, done.iter().map(|(_, ran)| *ran).fold(1.0, f64::min)))
}

/// One thread's operations a second by the clock, and its share of the processor.
fn on_processor(work: &mut dyn PairWork, cpu: usize, barrier: &Barrier, duration: Duration) -> Result<(f64, f64)> {
    let pinned = pin(cpu);
    work.operations(8 * CHUNK);
    barrier.wait();
    pinned?;
    let (began, had, mut count) = (now(), of_thread(), 0);
    // Once at least: a thread may lose its processor right here for longer than it measures.
    loop {
        work.operations(CHUNK);
        count += CHUNK;
        if now() - began >= duration.as_nanos() as u64 {
            break;
        }
    }
    let took = (now() - began) as f64;
    Ok((count as f64 * 1e9 / took, (of_thread() - had).as_nanos() as f64 / took))
}

/// Operations a second of one thread by its own time.
fn alone(work: Box<dyn PairWork + '_>, cpus: [usize; 2], duration: Duration) -> Result<f64> {
    let (rate, ran) = rate(&mut [work], cpus, duration)?;
    Ok(rate / ran.max(1e-6))
}

impl PairCase {
    /// Measures the case once, each of its parts for so long, and simulates it.
    ///
    /// # Errors
    /// Something could not be measured, or a table lost a key.
    pub fn measure(&self, eal: &MaybeEal, cpus: [usize; 2], duration: Duration) -> Result<PairOutcome> {
        let line = lines(cpus)?;
        match *self {
            PairCase::Lock { within, between } => {
                let lock = GlobalLock::new(0);
                let work = |value| Box::new(LockWork { lock: &lock, within, between, value }) as Box<dyn PairWork + '_>;
                let bare = |count| alone(Box::new(BareWork { count, value: 1 }), cpus, duration);
                let one = alone(work(1), cpus, duration)?;
                let (two, ran) = rate(&mut [work(1), work(2)], cpus, duration)?;
                // What the lock itself costs one thread is the rest.
                let (inside, outside) = (1e9 / bare(within)?, 1e9 / bare(between)?);
                let line = LineCosts { held_ns: (1e9 / one - inside - outside).max(0.0), ..line };
                let costs = Alone { lookup_ns: inside, change_ns: 0.0, between_ns: outside, keys: 1, changes: 0.0 };
                let model = predict(SharingMethod::GlobalLock, &line, &costs, one)?;
                Ok(PairOutcome { one, two, model, ran })
            }
            PairCase::Table { table, method, keys, changes } => {
                let choice = TableChoice::named(table)?;
                let make = |changes| -> Result<Vec<TableWork>> {
                    let tables = choice.tables(2, 2 * ENTRIES, [1, 2, 3, 4], eal)?;
                    let work = |(thread, table)| TableWork::new(table, thread, keys, changes);
                    tables.into_iter().enumerate().map(work).collect()
                };
                let mut works = make(changes)?;
                let plain = self.one_of(&mut make(false)?[0], cpus, duration)?;
                let one = self.one_of(&mut works[0], cpus, duration)?;
                let mut both: Vec<Box<dyn PairWork + '_>> =
                    works.iter_mut().map(|work| Box::new(Borrowed(work)) as Box<dyn PairWork + '_>).collect();
                let (two, ran) = rate(&mut both, cpus, duration)?;
                drop(both);
                let lost: usize = works.iter().map(|work| work.lost).sum();
                ensure!(lost == 0, "{self}: {lost} keys were lost");
                let atomics = match method {
                    SharingMethod::GlobalLock => 1.0,
                    SharingMethod::MultiWriterRwConcurrency => 2.0,
                    _ => 0.0,
                };
                let calls = keys as f64;
                let costs = Alone {
                    lookup_ns: (1e9 / plain - atomics * line.held_ns / calls).max(0.0),
                    change_ns: ((1e9 / one - 1e9 / plain) * calls).max(0.0),
                    between_ns: 0.0,
                    keys,
                    changes: if changes { 1.0 / calls } else { 0.0 },
                };
                Ok(PairOutcome { one, two, model: predict(method, &line, &costs, one)?, ran })
            }
        }
    }

    fn one_of(&self, work: &mut TableWork, cpus: [usize; 2], duration: Duration) -> Result<f64> {
        alone(Box::new(Borrowed(work)), cpus, duration).with_context(|| self.to_string())
    }
}

struct Borrowed<'a>(&'a mut TableWork);

impl PairWork for Borrowed<'_> {
    fn operations(&mut self, count: usize) {
        self.0.operations(count);
    }
}

/// What the work costs one thread, in nanoseconds.
struct Alone {
    lookup_ns: f64,
    change_ns: f64,
    between_ns: f64,
    keys: usize,
    /// The part of the keys that are changed.
    changes: f64,
}

/// Operations a second of two modelled cores.
fn predict(method: SharingMethod, line: &LineCosts, alone: &Alone, one: f64) -> Result<f64> {
    let source = "measured beside".to_owned();
    let profile = SharingProfile {
        name: "two threads".to_owned(),
        source: source.clone(),
        line: line.clone(),
        packets: PacketCosts {
            frame: 64,
            gbit_s: 1e5,
            queue: 1024,
            // Work between two locks lies between any two, not behind a burst of them.
            burst: if alone.between_ns > 0.0 { 1 } else { 32 },
            burst_ns: 0.0,
            packet_ns: alone.between_ns,
            before: 0.0,
            varies: 0.05,
            // Of clients' packets, which half of them are.
            new: (2.0 * alone.changes).min(1.0),
            flows: ENTRIES as u32,
            returns_look_up: true,
            source: source.clone(),
        },
        method: vec![MethodCosts {
            table: method,
            lookup_ns: alone.lookup_ns,
            other_ns: 0.0,
            change_ns: alone.change_ns,
            keys_per_lock: alone.keys as u32,
            moves: 0.0,
            source,
        }],
        card: None,
    };
    let (warm_up, seconds) = (SIMULATED / 10.0, SIMULATED);
    let options = SharingOptions { profile, method, cores: 2, offered_pps: Some(one * 4.0), warm_up, seconds, seed: 1 };
    Ok(simulate(&options).map_err(|wrong| anyhow!(wrong))?.received_pps)
}

#[cfg(test)]
mod tests {
    use super::super::lines::pair;
    use super::*;

    /// Every case of ours can be measured.
    #[test]
    fn cases_are_measured_and_simulated() {
        let Ok(cpus) = pair() else { return };
        for case in PairCase::all() {
            if matches!(&case, PairCase::Table { table, .. } if table.starts_with("rte-hash")) {
                continue;
            }
            let came = case.measure(&None, cpus, Duration::from_millis(5)).unwrap();
            assert!(came.one > 0.0 && came.two > 0.0 && came.model > 0.0, "{case}: {came:?}");
        }
    }

    /// What cores do not share is twice as much on two of them.
    #[test]
    fn tables_of_each_core_are_twice_one() {
        let line =
            LineCosts { held_ns: 5.0, transfer_ns: 60.0, clean_ns: 30.0, pause_ns: 0.0, source: "a test".to_owned() };
        let costs = Alone { lookup_ns: 100.0, change_ns: 0.0, between_ns: 0.0, keys: 32, changes: 0.0 };
        let one = 1e7;
        let two = predict(SharingMethod::PerCore, &line, &costs, one).unwrap();
        assert!((two / one - 2.0).abs() < 0.1, "{two}");
    }

    /// The model's lock is no better than one core after the other, whatever was measured.
    #[test]
    fn predicted_locks_exclude() {
        let line =
            LineCosts { held_ns: 5.0, transfer_ns: 60.0, clean_ns: 30.0, pause_ns: 0.0, source: "a test".to_owned() };
        let costs = Alone { lookup_ns: 100.0, change_ns: 0.0, between_ns: 1.0, keys: 1, changes: 0.0 };
        let two = predict(SharingMethod::GlobalLock, &line, &costs, 9e6).unwrap();
        assert!(two < 1e7, "{two}");
    }
}
