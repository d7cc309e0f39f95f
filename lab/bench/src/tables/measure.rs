//! One method's round: threads, each pinned to a processor, that do the same kind of work at the same time.
//!
//! A thread reads its clock after every chunk of keys and stops when its window is over; so every method is measured
//! for the same time, and threads overlap but for the last chunk. A single thread's rate is per second of its own time, so
//! that what else the machine does counts as little as can be; that of several is per second on the wall, since waiting
//! for each other has to count. All answers are counted: a method that loses a key
//! is an error, not a figure.

use super::case::TablesCase;
use super::keys::{BenchKey, CHUNK, KeyShare, Sequence, value};
use super::subject::{Hands, LookupSum, TableSharing, TableSubject};
use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Operations and the time they took, of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    operations: usize,
    time: Duration,
    /// The part of `time` in which the thread ran.
    running: Duration,
}

/// A rate, of all threads together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadsRate {
    /// Operations per second.
    pub per_second: f64,
    /// The smallest share of the time that a thread was running and not waiting for a processor.
    pub running: f64,
}

impl ThreadsRate {
    /// Counts one of so many threads.
    fn add(&mut self, spent: &Spent, threads: usize) {
        let (time, running) = (spent.time.as_secs_f64(), spent.running.as_secs_f64());
        let first = self.per_second == 0.0;
        self.per_second += spent.operations as f64 / if threads == 1 { running } else { time };
        self.running = if first { running / time } else { self.running.min(running / time) };
    }
}

/// A clock of wall time and the thread's own time.
struct Clock {
    wall: Instant,
    thread: Duration,
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Clock {
    fn start() -> Clock {
        Clock { thread: thread_time(), wall: Instant::now() }
    }

    fn stop(self, operations: usize) -> Spent {
        let time = self.wall.elapsed();
        Spent { operations, time, running: thread_time().saturating_sub(self.thread) }
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        self.operations += other.operations;
        self.time += other.time;
        self.running += other.running;
    }
}

/// How long is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasureWindow {
    /// At most, before the first case of a round, to look each key up once: to bring back into the caches what the methods
    /// in between have driven out.
    pub settle: Duration,
    /// Rates of each case.
    pub timed: Duration,
}

/// The processors that this process may use.
pub(super) fn processors() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0)).context("could not ask which processors may be used")?;
    Ok((0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).collect())
}

/// Keeps the calling thread on one processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("could not run on processor {processor}"))
}

/// Does `work` on so many threads at the same time, each on a processor of its own (`work` is told whether it could be
/// put there); what each made of it.
pub(super) fn on_threads<R: Send>(
    processors: &[usize],
    threads: usize,
    work: impl Fn(usize, Result<()>) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    ensure!(threads <= processors.len(), "{threads} threads need as many processors; there are {}", processors.len());
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |thread| scope.spawn(move || work(thread, pin(processors[thread])));
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
    })
}

/// The work of a thread on its share.
struct ThreadWork<'a> {
    hands: Box<dyn Hands + 'a>,
    share: &'a KeyShare<'a>,
    window: MeasureWindow,
    /// The number of the repetition, so that each takes other keys.
    repetition: usize,
    /// The verdict on the table by its answers.
    trust: Trust,
}

/// The treatment of wrong answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// They are errors.
    Checked,
    /// There are no wrong ones: the method knows no keys, or is expected to corrupt its table.
    Unchecked,
}

impl Trust {
    fn of(sharing: TableSharing) -> Trust {
        match sharing {
            TableSharing::Fixed | TableSharing::Unprotected => Trust::Unchecked,
            _ => Trust::Checked,
        }
    }

    /// # Errors
    /// When the answers are wrong and that matters.
    fn check(self, right: bool, wrong: impl FnOnce() -> String) -> Result<()> {
        if right || self == Trust::Unchecked { Ok(()) } else { Err(anyhow!(wrong())) }
    }
}

/// A part of a round, which all threads do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundStep {
    Settle,
    Lookup(TablesCase),
    Change { absent: bool },
    BesideWriter,
}

/// A table had no room for some keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeysRefused {
    inserted: usize,
    keys: usize,
}

impl fmt::Display for KeysRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "only {} of {} keys found room", self.inserted, self.keys)
    }
}

impl std::error::Error for KeysRefused {}

impl ThreadWork<'_> {
    fn run(&mut self, step: RoundStep, last: bool) -> Result<Vec<(TablesCase, Spent)>> {
        let share = self.share;
        Ok(match step {
            RoundStep::Settle => {
                self.settle()?;
                Vec::new()
            }
            RoundStep::Lookup(case) => {
                let sequence = match case {
                    TablesCase::Misses => &share.misses,
                    TablesCase::MostlyHits => &share.mostly_hits,
                    _ => &share.hits,
                };
                vec![(case, self.lookup(sequence, case == TablesCase::HitsSingle)?)]
            }
            RoundStep::Change { absent } => {
                let (deletes, inserts) = self.change(absent)?;
                if absent {
                    vec![(TablesCase::InsertsAbsent, inserts)]
                } else {
                    vec![(TablesCase::Deletes, deletes), (TablesCase::Inserts, inserts)]
                }
            }
            RoundStep::BesideWriter if last => vec![(TablesCase::WriterBesideReaders, self.write()?)],
            RoundStep::BesideWriter => vec![(TablesCase::ReadersBesideWriter, self.lookup(&share.hits, false)?)],
        })
    }

    /// Looks for a while, and whether values are right.
    fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        // The first so many keys of the sequence are the whole part.
        let once = self.share.part.len().next_multiple_of(CHUNK);
        for chunk in self.share.hits.keys[..once].chunks(CHUNK) {
            let found = self.hands.find_bursts(chunk);
            let sum = chunk.iter().map(|key| u64::from(value(key))).sum();
            let right = LookupSum { count: chunk.len(), sum };
            self.trust
                .check(found == right, || format!("found {found:?}, not {right:?}: wrong values, or lost keys"))?;
            if start.elapsed() >= self.window.settle {
                break;
            }
        }
        Ok(())
    }

    /// Goes through `sequence`; every chunk has to answer as it should.
    fn lookup(&mut self, sequence: &Sequence, single: bool) -> Result<Spent> {
        let (mut operations, mut found) = (0, LookupSum::default());
        let skip = self.repetition * 97 % (sequence.keys.len() / CHUNK);
        let mut chunks = sequence.keys.chunks(CHUNK).cycle().skip(skip);
        let clock = Clock::start();
        while clock.wall.elapsed() < self.window.timed {
            let chunk = chunks.next().unwrap_or_default();
            found += if single { self.hands.find_each(chunk) } else { self.hands.find_bursts(chunk) };
            operations += chunk.len();
        }
        let spent = clock.stop(operations);
        std::hint::black_box(found.sum);
        let right = operations / CHUNK * sequence.hits_per_chunk;
        let hits = found.count;
        let wrong = || format!("{hits} of {operations} lookups hit, not {right}: keys were lost, or made up");
        self.trust.check(hits == right, wrong)?;
        Ok(spent)
    }

    /// Takes entries out and puts others into their places, and back; deletions and insertions.
    fn change(&mut self, absent: bool) -> Result<(Spent, Spent)> {
        let (mut deletes, mut inserts) = (Spent::default(), Spent::default());
        let start = Instant::now();
        for cycle in self.repetition * 7.. {
            let (leaving, spare) = (self.share.leaving(cycle), &*self.share.spare);
            deletes += self.remove(leaving)?;
            inserts += self.insert(spare, absent)?;
            deletes += self.remove(spare)?;
            inserts += self.insert(leaving, absent)?;
            if start.elapsed() >= 2 * self.window.timed {
                break;
            }
        }
        self.gone()?;
        Ok((deletes, inserts))
    }

    /// The spare keys have all been deleted again.
    fn gone(&mut self) -> Result<()> {
        let left = self.hands.find_bursts(&self.share.spare).count;
        self.trust.check(left == 0, || format!("{left} keys are still found after they were deleted"))
    }

    fn remove(&mut self, keys: &[BenchKey]) -> Result<Spent> {
        let clock = Clock::start();
        let removed = self.hands.remove(keys);
        let spent = clock.stop(keys.len());
        let wrong = || format!("{removed} of {} keys that were there could be deleted", keys.len());
        self.trust.check(removed == keys.len(), wrong)?;
        Ok(spent)
    }

    fn insert(&mut self, keys: &[BenchKey], absent: bool) -> Result<Spent> {
        let clock = Clock::start();
        let inserted = if absent { self.hands.insert_absent(keys) } else { self.hands.insert(keys) };
        let spent = clock.stop(keys.len());
        if inserted < keys.len() && self.trust == Trust::Checked {
            bail!(KeysRefused { inserted, keys: keys.len() });
        }
        Ok(spent)
    }

    /// The changes of [`Self::change`], timed until the window is over; then the cycle is brought to its end.
    fn write(&mut self) -> Result<Spent> {
        let mut operations = 0;
        let mut spent = None;
        let mut clock = Some(Clock::start());
        for cycle in self.repetition * 7.. {
            let (leaving, spare) = (self.share.leaving(cycle), &*self.share.spare);
            for (keys, insert) in [(leaving, false), (spare, true), (spare, false), (leaving, true)] {
                for keys in keys.chunks(CHUNK) {
                    let changed = if insert { self.hands.insert(keys) } else { self.hands.remove(keys) };
                    let wrong = || format!("{changed} of {} changes beside readers were made", keys.len());
                    self.trust.check(changed == keys.len(), wrong)?;
                    operations += keys.len();
                    if let Some(over) = clock.take_if(|clock| clock.wall.elapsed() >= self.window.timed) {
                        spent = Some(over.stop(operations));
                    }
                }
            }
            if spent.is_some() {
                break;
            }
        }
        self.gone()?;
        spent.context("no time has passed")
    }
}

/// The operations that a method supports with that many threads.
fn steps(subject: &dyn TableSubject, threads: usize) -> Vec<RoundStep> {
    let sharing = subject.sharing();
    if sharing == TableSharing::Copies {
        return vec![RoundStep::Settle, RoundStep::Lookup(TablesCase::Hits)];
    }
    let mut steps =
        vec![RoundStep::Settle, RoundStep::Lookup(TablesCase::HitsSingle), RoundStep::Lookup(TablesCase::Hits)];
    if sharing != TableSharing::Fixed {
        steps.extend([RoundStep::Lookup(TablesCase::Misses), RoundStep::Lookup(TablesCase::MostlyHits)]);
    }
    if sharing.writers(threads) {
        steps.push(RoundStep::Change { absent: false });
        steps.extend(subject.takes_absent().then_some(RoundStep::Change { absent: true }));
    }
    if threads > 1 && sharing.beside_writer() {
        steps.push(RoundStep::BesideWriter);
    }
    steps
}

/// One round of a filled method: all it can be asked for by as many threads as there are shares.
///
/// # Errors
/// When entries were lost or values wrong, or when threads could not be had.
pub(super) fn round(
    subject: &dyn TableSubject,
    shares: &[KeyShare<'_>],
    window: MeasureWindow,
    repetition: usize,
    processors: &[usize],
) -> Result<BTreeMap<TablesCase, ThreadsRate>> {
    let threads = shares.len();
    let (steps, barrier) = (steps(subject, threads), Barrier::new(threads));
    let each = on_threads(processors, threads, |thread, pinned| {
        let trust = Trust::of(subject.sharing());
        let share = &shares[thread];
        let hands = pinned.and_then(|()| subject.hands(threads, thread));
        let mut worker = hands.map(|hands| ThreadWork { hands, share, window, repetition, trust });
        let mut results = Vec::new();
        for &step in &steps {
            // Whatever goes wrong, a thread comes to every barrier: the others wait there.
            let mut together = || {
                barrier.wait();
            };
            let Ok(able) = &mut worker else {
                together();
                continue;
            };
            able.hands.rest(&mut together);
            let done = catch_unwind(AssertUnwindSafe(|| able.run(step, thread + 1 == threads)));
            match done.unwrap_or_else(|_| bail!("a thread panicked")) {
                Ok(spent) => results.extend(spent),
                Err(error) => worker = Err(error.context(format!("{step:?}"))),
            }
        }
        worker.map(|_| results)
    })?;
    let mut rates: BTreeMap<TablesCase, ThreadsRate> = BTreeMap::new();
    for (case, spent) in each.into_iter().flatten() {
        rates.entry(case).or_default().add(&spent, threads);
    }
    Ok(rates)
}

/// Puts entries in; what that took.
fn put(hands: &mut dyn Hands, part: &[BenchKey]) -> Result<Spent> {
    let clock = Clock::start();
    let inserted = hands.insert(part);
    let spent = clock.stop(part.len());
    ensure!(inserted == part.len(), "refused an entry when {inserted} of {} were in", part.len());
    Ok(spent)
}

/// Fills a method's empty tables; the rate at which one thread did that.
///
/// # Errors
/// When it refuses an entry, or threads could not be had.
pub(super) fn fill(
    subject: &dyn TableSubject,
    shares: &[Vec<KeyShare<'_>>],
    processors: &[usize],
) -> Result<Option<ThreadsRate>> {
    let one = |shares: &[KeyShare<'_>], thread: usize| {
        let mut hands = subject.hands(shares.len(), thread)?;
        put(&mut *hands, shares[thread].part)
    };
    let mut rate = None;
    match subject.sharing() {
        TableSharing::Fixed => {}
        TableSharing::Copies => {
            for shares in shares {
                on_threads(processors, shares.len(), |thread, pinned| {
                    pinned?;
                    let mut hands = subject.hands(shares.len(), thread)?;
                    shares.iter().try_for_each(|share| put(&mut *hands, share.part).map(drop))
                })?;
            }
        }
        TableSharing::Private => {
            for shares in shares {
                let spent = on_threads(processors, shares.len(), |thread, pinned| {
                    pinned?;
                    one(shares, thread)
                })?;
                if let [spent] = &spent[..] {
                    rate.get_or_insert_with(ThreadsRate::default).add(spent, 1);
                }
            }
        }
        _ => {
            let Some(shares) = shares.first() else { return Ok(None) };
            let mut all = Spent::default();
            for spent in on_threads(processors, 1, |_, pinned| {
                pinned?;
                (0..shares.len()).map(|thread| one(shares, thread)).collect::<Result<Vec<_>>>()
            })?
            .concat()
            {
                all += spent;
            }
            rate.get_or_insert_with(ThreadsRate::default).add(&all, 1);
        }
    }
    Ok(rate)
}
