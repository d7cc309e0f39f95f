//! A mechanism of ageing beside a plain list of entries and their deadlines. The laboratory includes this file, too
//! (`lab/tables`).

use super::{Ageing, Deadlines, JUDGED_MAX, Position, Time};
use arrayvec::ArrayVec;
use core::cell::Cell;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Nanoseconds; also the period of the walk.
pub(super) const GRANULARITY: u64 = 10;
pub(super) const POSITIONS: u32 = 100;
pub(super) const OUT: usize = 8;

#[derive(Clone, Debug)]
pub(super) enum Op {
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

pub(super) fn span() -> impl Strategy<Value = u64> {
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

pub(super) fn op() -> impl Strategy<Value = Op> {
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
pub(super) struct Entry {
    pub(super) deadline: u64,
    /// When the mechanism last heard of it.
    pub(super) told: u64,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) entries: BTreeMap<Position, Entry>,
    pub(super) asked: Cell<usize>,
}

impl Deadlines for Model {
    fn deadline(&self, position: Position) -> Option<Time> {
        self.asked.set(self.asked.get() + 1);
        self.entries.get(&position).map(|entry| Time::from_nanos(entry.deadline))
    }
}

pub(super) struct Pair<A> {
    pub(super) ageing: A,
    pub(super) now: u64,
    pub(super) model: Model,
}

impl<A: Ageing> Pair<A> {
    pub(super) fn new(ageing: A, now: u64) -> Pair<A> {
        Pair { ageing, now, model: Model::default() }
    }

    pub(super) fn start(&mut self, position: Position, deadline: u64) {
        self.ageing.started(position, Time::from_nanos(deadline));
        self.model.entries.insert(position, Entry { deadline, told: self.now });
    }

    pub(super) fn due(&mut self) -> bool {
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

    pub(super) fn drain(&mut self) {
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

    pub(super) fn next(&mut self) {
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

    pub(super) fn apply(&mut self, op: Op) {
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
    pub(super) fn finish(&mut self) {
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

pub(super) fn all_agree<A: Ageing>(ageing: A, start: u64, ops: &[Op]) {
    let mut pair = Pair::new(ageing, start);
    for op in ops {
        pair.apply(op.clone());
    }
    pair.finish();
}

/// All entries at once, more than a call hands out, after silence of every length around where stamps begin anew.
pub(super) fn after_silence<A: Ageing>(make: impl Fn() -> A) {
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

pub(super) fn extremes<A: Ageing>(mut ageing: A) {
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

/// The latest call before a tick's sweep is done leaves the rest to the next ones; no entry is passed over for ever,
/// with room for one at a time.
pub(super) fn starve<A: Ageing>(ageing: A) {
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
