//! Every mechanism against a plain list of entries and their deadlines.

use super::buckets::{BucketStamps, Indexed};
use super::{Ageing, Deadlines, JUDGED_MAX, SlabSweep, Stamps, Wheel};
use crate::table::cuckoo::CuckooPlusPlus;
use crate::table::{Hash, Hasher, Position, Table};
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;
use core::cell::Cell;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Nanoseconds; also the period of the walk.
const GRANULARITY: u64 = 10;
const POSITIONS: u32 = 100;
const OUT: usize = 8;

#[derive(Clone, Debug)]
enum Op {
    /// An entry begins, and is over after so many nanoseconds, less 50.
    Start(Position, u64),
    /// A packet: the entry there is over later by so much; the mechanism is not told.
    Packet(Position, u64),
    /// The entry there changes its state: it is over after so many nanoseconds, which is told if it is earlier.
    Change(Position, u64),
    End(Position),
    /// Time passes; this many calls.
    Due(u64, usize),
    /// Time passes; calls until there is nothing left to do.
    Drain(u64),
    /// Waits until `next` says so, and drains.
    Next,
}

fn span() -> impl Strategy<Value = u64> {
    // Beyond the wheel's round (64 ticks) and beyond the reach of stamps (2^14 ticks).
    let reach = GRANULARITY << 14;
    prop_oneof![
        4 => 0..200u64,
        2 => 0..64 * 2 * GRANULARITY,
        1 => 0..3 * reach,
        1 => reach - 20..reach + 20,
        1 => 2 * reach - 20..2 * reach + 20,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let position = || prop_oneof![1 => 0..8u32, 1 => 0..POSITIONS];
    prop_oneof![
        8 => (position(), span()).prop_map(|(position, after)| Op::Start(position, after)),
        4 => (position(), span()).prop_map(|(position, more)| Op::Packet(position, more)),
        2 => (position(), span()).prop_map(|(position, after)| Op::Change(position, after)),
        2 => position().prop_map(Op::End),
        3 => (span(), 0usize..3).prop_map(|(pause, calls)| Op::Due(pause, calls)),
        2 => span().prop_map(Op::Drain),
        2 => Just(Op::Next),
    ]
}

#[derive(Clone, Copy)]
struct Entry {
    deadline: u64,
    /// When the mechanism was last told of it.
    told: u64,
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<Position, Entry>,
    asked: Cell<usize>,
}

impl Deadlines for Model {
    fn deadline(&self, position: Position) -> Option<Time> {
        self.asked.set(self.asked.get() + 1);
        self.entries.get(&position).map(|entry| Time::from_nanos(entry.deadline))
    }
}

struct Pair<A> {
    ageing: A,
    now: u64,
    model: Model,
}

impl<A: Ageing> Pair<A> {
    fn new(ageing: A, now: u64) -> Pair<A> {
        Pair { ageing, now, model: Model::default() }
    }

    fn start(&mut self, position: Position, deadline: u64) {
        self.ageing.started(position, Time::from_nanos(deadline));
        self.model.entries.insert(position, Entry { deadline, told: self.now });
    }

    fn due(&mut self) -> bool {
        let mut out = ArrayVec::<Position, OUT>::new();
        self.model.asked.set(0);
        let more = self.ageing.due(Time::from_nanos(self.now), &self.model, &mut out);
        assert!(self.model.asked.get() <= JUDGED_MAX, "one call asks few entries");
        for position in out {
            let entry = self.model.entries.remove(&position).expect("an entry that is there");
            assert!(entry.deadline <= self.now, "{position} comes early: {} at {}", entry.deadline, self.now);
            // Some are not over after all, in their owner's eyes.
            if position % 8 == 0 && self.now.is_multiple_of(3) {
                self.start(position, self.now + 1 + u64::from(position));
            }
        }
        more
    }

    fn drain(&mut self) {
        let mut calls = 0;
        while self.due() {
            calls += 1;
            assert!(calls <= 4 * POSITIONS, "it does not come to an end");
        }
        let late_max = self.ageing.late_max().as_nanos() as u64;
        for (position, entry) in &self.model.entries {
            let from = entry.deadline.max(entry.told); // what was past when it was told counts from then
            assert!(
                from.saturating_add(late_max) > self.now,
                "{position}, over at {from}, did not come at {}",
                self.now
            );
        }
    }

    fn next(&mut self) {
        let next = self.ageing.next(Time::from_nanos(self.now));
        assert!(next.is_some() || self.model.entries.is_empty(), "it forgets entries");
        let late_max = self.ageing.late_max().as_nanos() as u64;
        let earliest = self.model.entries.values().map(|entry| entry.deadline.max(entry.told)).min();
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(next.as_nanos() < earliest.max(self.now) + late_max, "woken too late");
            self.now = self.now.max(next.as_nanos());
        }
        self.drain();
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Start(position, after) => self.start(position, (self.now + after).saturating_sub(50)),
            Op::Packet(position, more) => {
                self.model.entries.entry(position).and_modify(|entry| entry.deadline += more);
            }
            Op::Change(position, after) => match self.model.entries.get(&position) {
                Some(entry) if self.now + after < entry.deadline => self.start(position, self.now + after),
                Some(_) => self.apply(Op::Packet(position, after)),
                None => {}
            },
            Op::End(position) => {
                self.model.entries.remove(&position);
                self.ageing.ended(position);
            }
            Op::Due(pause, calls) => {
                self.now += pause;
                for _ in 0..calls {
                    self.due();
                }
            }
            Op::Drain(pause) => {
                self.now += pause;
                self.drain();
            }
            Op::Next => self.next(),
        }
    }

    /// A caller that only follows `next` gets everything in the end.
    fn finish(&mut self) {
        for step in 0u64.. {
            if self.model.entries.is_empty() {
                return;
            }
            self.next();
            // The walk is early all the time, and the wheel once per round.
            self.now += if step > 1000 { 1 << 12 } else { 0 };
            assert!(step < 20_000, "{} entries never end", self.model.entries.len());
        }
    }
}

/// Entries whose keys follow from their positions.
struct Keyed<'a, D>(&'a D);

impl<D: Deadlines> Deadlines for Keyed<'_, D> {
    fn deadline(&self, position: Position) -> Option<Time> {
        self.0.deadline(position)
    }
}

impl<D: Deadlines> Indexed<Hash> for Keyed<'_, D> {
    fn key(&self, position: Position) -> Hash {
        // Scattered, and the same in every run.
        Hash((u64::from(position) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// Bucket stamps with a table of their own, which is nearly full when all entries are there.
struct Buckets {
    table: CuckooPlusPlus,
    stamps: BucketStamps,
}

impl Ageing for Buckets {
    fn name(&self) -> &'static str {
        "bucket-stamps"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn late_max(&self) -> Duration {
        // One more than without displacement, which is as often as it happens here in a row.
        Duration::from_nanos(3 * GRANULARITY)
    }

    fn started(&mut self, position: Position, deadline: Time) {
        let (key, stamp) = (Keyed(&Model::default()).key(position), self.stamps.stamp(deadline));
        if !self.table.restamp(&key, 2 * position, stamp) {
            self.table.insert_stamped(&key, 2 * position, stamp).expect("room for all");
        }
    }

    fn ended(&mut self, position: Position) {
        self.table.remove(&Keyed(&Model::default()).key(position), 2 * position);
    }

    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool {
        let mut over = ArrayVec::<Position, 8>::new();
        let more = self.stamps.due(now, &mut self.table, &Keyed(entries), &mut over);
        over.iter().for_each(|&position| self.ended(position));
        // The room of the tests is smaller than a bucket.
        assert!(over.len() <= out.remaining_capacity());
        out.extend(over);
        more
    }

    fn next(&self, now: Time) -> Option<Time> {
        // Sweeps are made whether there is anything or not.
        Some(now + Duration::from_nanos(GRANULARITY))
    }
}

fn buckets() -> Buckets {
    let table = CuckooPlusPlus::new(POSITIONS as usize, Hasher::new([1, 2, 3, 4]));
    Buckets { table, stamps: BucketStamps::new(Duration::from_nanos(GRANULARITY)) }
}

fn wheel() -> Wheel {
    Wheel::new(POSITIONS as usize, Duration::from_nanos(GRANULARITY), 64)
}

fn stamps() -> Stamps {
    Stamps::new(POSITIONS as usize, Duration::from_nanos(GRANULARITY))
}

fn sweep() -> SlabSweep {
    SlabSweep::new(Duration::from_nanos(GRANULARITY))
}

fn all_agree<A: Ageing>(ageing: A, start: u64, ops: &[Op]) {
    let mut pair = Pair::new(ageing, start);
    for op in ops {
        pair.apply(op.clone());
    }
    pair.finish();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 700,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agree_with_a_list(start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
                         ops in prop::collection::vec(op(), 1..150)) {
        all_agree(wheel(), start, &ops);
        all_agree(stamps(), start, &ops);
        all_agree(sweep(), start, &ops);
        all_agree(buckets(), start, &ops);
    }
}

/// What was once a block's earliest stamp must not be taken for one to come when it has grown old.
#[test]
fn agree_about_an_entry_after_one_that_left_long_ago() {
    let ops = [Op::Start(1, 0), Op::End(1), Op::Due(16, 1), Op::Start(0, 0), Op::Drain(163_824)];
    all_agree(wheel(), 0, &ops);
    all_agree(stamps(), 0, &ops);
    all_agree(sweep(), 0, &ops);
    all_agree(buckets(), 0, &ops);
}

/// All entries at once, more than a call hands out, after silence of every length around where stamps begin anew.
fn after_silence<A: Ageing>(make: impl Fn() -> A) {
    for silence in [1, 1 << 13, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 1 << 15, (1 << 15) + 1, 1 << 16, 1 << 40] {
        let mut pair = Pair::new(make(), 12_345);
        for position in 0..POSITIONS {
            pair.start(position, pair.now + u64::from(position));
        }
        // One of them goes on for ever.
        pair.model.entries.get_mut(&1).expect("started").deadline = u64::MAX;
        pair.now += silence * GRANULARITY + 2 * u64::from(POSITIONS);
        pair.drain();
        // The owner has begun some of them anew.
        pair.model.entries.retain(|position, _| position % 8 != 0);
        assert_eq!(pair.model.entries.keys().copied().collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn silence_is_made_good() {
    after_silence(wheel);
    after_silence(stamps);
    after_silence(sweep);
    after_silence(buckets);
}

fn extremes<A: Ageing>(mut ageing: A) {
    let mut entries = Model::default();
    for (position, deadline) in [(0, u64::MAX), (1, 0)] {
        ageing.started(position, Time::from_nanos(deadline));
        entries.entries.insert(position, Entry { deadline, told: 0 });
    }
    let mut out = ArrayVec::<Position, 2>::new();
    for now in [1, u64::MAX - 1, u64::MAX, u64::MAX] {
        let mut calls = 0;
        while ageing.due(Time::from_nanos(now), &entries, &mut out) && calls < 10 {
            calls += 1;
        }
        entries.entries.retain(|position, _| !out.contains(position));
    }
    assert!(out.contains(&1));
    ageing.ended(0);
    ageing.ended(77_777);
    let _ = ageing.next(Time::from_nanos(u64::MAX));
}

#[test]
fn extreme_times_are_survived() {
    extremes(Wheel::new(2, Duration::ZERO, 1));
    extremes(Stamps::new(2, Duration::ZERO));
    extremes(SlabSweep::new(Duration::ZERO));
    extremes(Stamps::new(2, Duration::MAX));
    extremes(SlabSweep::new(Duration::from_nanos(100)));
}

/// Entries beyond the reach of a stamp are asked about once per reach, and no sweep is made in between.
#[test]
fn far_deadlines_cost_little() {
    let mut pair = Pair::new(stamps(), 0);
    let far = (GRANULARITY << 14) * 10;
    for position in 0..10 {
        pair.start(position * 8, far);
    }
    let (mut wakes, mut asked) = (0, 0);
    while pair.now + 1000 * GRANULARITY < far {
        let next = pair.ageing.next(Time::from_nanos(pair.now)).expect("entries");
        assert!(next.as_nanos() > pair.now);
        pair.now = next.as_nanos();
        while pair.due() {}
        asked += pair.model.asked.get();
        wakes += 1;
    }
    assert!(wakes <= 11 && asked <= 110, "{wakes} wakes, {asked} questions");
}

/// A packet's entry is asked about once per timeout, not once per tick.
#[test]
fn what_goes_on_is_asked_seldom() {
    let mut pair = Pair::new(stamps(), 0);
    (0..POSITIONS).for_each(|position| pair.start(position, 100 * GRANULARITY));
    let mut asked = 0;
    for tick in 1..1000 {
        pair.now = tick * GRANULARITY;
        let seen = pair.now;
        pair.model.entries.values_mut().for_each(|entry| entry.deadline = seen + 100 * GRANULARITY);
        loop {
            let more = pair.due();
            asked += pair.model.asked.get();
            if !more {
                break;
            }
        }
    }
    assert!(asked <= 10 * POSITIONS as usize, "{asked} questions");
}

/// The latest call before a tick's sweep is done leaves the rest to the next ones; no entry is passed over for ever,
/// with room for one at a time.
#[test]
fn nobody_starves() {
    fn starve<A: Ageing>(ageing: A) {
        let mut pair = Pair::new(ageing, 0);
        (0..POSITIONS).for_each(|position| pair.start(position, GRANULARITY));
        // Entries at the front come anew all the time, over at once.
        let mut calls = 0;
        while pair.model.entries.keys().any(|&position| position >= 10) {
            pair.now += 7;
            let mut out = ArrayVec::<Position, 1>::new();
            pair.ageing.due(Time::from_nanos(pair.now), &pair.model, &mut out);
            for position in out {
                pair.model.entries.remove(&position);
                if position < 10 {
                    pair.start(position, pair.now);
                }
            }
            calls += 1;
            assert!(calls < 20 * POSITIONS, "{} starve", pair.model.entries.len() - 10);
        }
    }
    starve(wheel());
    starve(stamps());
    starve(sweep());
}
