//! The wheel against a plain list of deadlines.

use super::{PASSED_MAX, Wheel};
use arrayvec::ArrayVec;
use hairpin_core::table::Position;
use hairpin_core::time::{Duration, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

const GRANULARITY: u64 = 10;
const SLOTS: usize = 64;
const POSITIONS: u32 = 24;
/// Due at most so much after the deadline.
const LATE_MAX: u64 = 2 * GRANULARITY;

#[derive(Clone, Debug)]
enum Op {
    /// Position, and nanoseconds from now, less 50.
    Schedule(Position, u64),
    Cancel(Position),
    /// Time passes; this many calls.
    Expire(u64, usize),
    /// Time passes; calls until there is nothing left to do.
    Drain(u64),
    /// Waits until `next` says so, and drains.
    Next,
}

fn span() -> impl Strategy<Value = u64> {
    let round = GRANULARITY * SLOTS as u64;
    prop_oneof![
        4 => 0..200u64,
        2 => 0..2 * round,
        1 => 0..20 * round,
        1 => Just(round),
        1 => any::<u32>().prop_map(u64::from),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..POSITIONS, span()).prop_map(|(position, after)| Op::Schedule(position, after)),
        2 => (0..POSITIONS).prop_map(Op::Cancel),
        2 => (span(), 0usize..3).prop_map(|(pause, calls)| Op::Expire(pause, calls)),
        1 => span().prop_map(Op::Drain),
        2 => Just(Op::Next),
    ]
}

struct Pair {
    wheel: Wheel,
    now: u64,
    /// Deadline, or when it was scheduled if that was later.
    model: BTreeMap<Position, u64>,
}

impl Pair {
    fn expire(&mut self) -> bool {
        let mut out = ArrayVec::<Position, 3>::new();
        let more = self.wheel.expire(Time::from_nanos(self.now), &mut out);
        assert!(!more || out.is_full() || self.model.len() + out.len() > PASSED_MAX);
        for position in out {
            let due = self.model.remove(&position).expect("something that was scheduled");
            assert!(due <= self.now, "{position} due at {due} came at {}", self.now);
        }
        more
    }

    fn drain(&mut self) {
        let mut calls = 0;
        while self.expire() {
            calls += 1;
            assert!(calls <= POSITIONS, "it does not come to an end");
        }
        for (position, due) in &self.model {
            assert!(due + LATE_MAX > self.now, "{position} due at {due} did not come at {}", self.now);
        }
    }

    fn next(&mut self) {
        let next = self.wheel.next(Time::from_nanos(self.now));
        let earliest = self.model.values().min();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(&earliest)) = (next, earliest) {
            assert!(next.as_nanos() < earliest.max(self.now) + LATE_MAX, "woken too late");
            self.now = self.now.max(next.as_nanos());
            self.drain();
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Schedule(position, after) => {
                let at = (self.now + after).saturating_sub(50);
                self.wheel.schedule(position, Time::from_nanos(at));
                self.model.insert(position, at.max(self.now));
            }
            Op::Cancel(position) => {
                self.wheel.cancel(position);
                self.model.remove(&position);
            }
            Op::Expire(pause, calls) => {
                self.now += pause;
                for _ in 0..calls {
                    self.expire();
                }
            }
            Op::Drain(pause) => {
                self.now += pause;
                self.drain();
            }
            Op::Next => self.next(),
        }
        assert_eq!((self.wheel.len(), self.wheel.is_empty()), (self.model.len(), self.model.is_empty()));
        for position in 0..POSITIONS {
            assert_eq!(self.wheel.is_scheduled(position), self.model.contains_key(&position));
        }
        self.check_lists();
    }

    /// Both directions of every list agree, each entry is in the list of its slot, and the bitmap says which are empty.
    fn check_lists(&self) {
        let mut seen = 0;
        for (slot, ends) in self.wheel.slots.iter().enumerate() {
            let (mut at, mut before) = (ends.first, 0);
            while at != 0 {
                let link = &self.wheel.links[at as usize - 1];
                assert_eq!(link.previous, before);
                assert_eq!((link.due - 1) as usize % SLOTS, slot);
                (before, at) = (at, link.next);
                seen += 1;
            }
            assert_eq!(ends.last, before);
            assert_eq!(self.wheel.occupied[slot / 64] >> (slot % 64) & 1 == 1, ends.first != 0);
        }
        assert_eq!(seen, self.model.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agrees_with_a_list(start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
                          ops in prop::collection::vec(op(), 1..120)) {
        let wheel = Wheel::new(POSITIONS as usize, Duration::from_nanos(GRANULARITY), SLOTS);
        let mut pair = Pair { wheel, now: start, model: BTreeMap::new() };
        for op in ops {
            pair.apply(op);
        }
        // A caller that only follows `next` gets everything in the end.
        let mut steps = 0u64;
        while !pair.model.is_empty() {
            pair.next();
            steps += 1;
            // Once per round for each parked entry at most, with deadlines up to 2^32 away.
            prop_assert!(steps < u64::from(POSITIONS) * ((1 << 33) / (GRANULARITY * SLOTS as u64)));
            if steps > 10_000 {
                pair.now += 1 << 20;
            }
        }
    }
}

fn wheel(positions: usize) -> Wheel {
    Wheel::new(positions, Duration::from_nanos(GRANULARITY), SLOTS)
}

#[test]
fn a_call_passes_over_few_parked_entries() {
    let count = 10 * PASSED_MAX as u32;
    let mut wheel = wheel(count as usize + 1);
    let round = GRANULARITY * SLOTS as u64;
    for position in 0..count {
        wheel.schedule(position, Time::from_nanos(5 * round));
    }
    wheel.schedule(count, Time::from_nanos(round));
    let mut out = ArrayVec::<Position, 8>::new();
    let now = Time::from_nanos(round);
    let calls = (1..).take_while(|_| wheel.expire(now, &mut out)).count();
    // The one that is due stands behind all the parked ones; the tenth call reaches it.
    assert_eq!(calls, 9);
    assert_eq!((&out[..], wheel.len()), (&[count][..], count as usize));
}

#[test]
fn a_burst_comes_in_pieces() {
    let mut wheel = wheel(100);
    for position in 0..100 {
        wheel.schedule(position, Time::from_nanos(u64::from(position / 25) * GRANULARITY));
    }
    let mut all = Vec::new();
    loop {
        let mut out = ArrayVec::<Position, 7>::new();
        let more = wheel.expire(Time::from_nanos(1 << 40), &mut out);
        all.extend(out);
        if !more {
            break;
        }
    }
    assert_eq!(all.len(), 100);
    assert!(wheel.is_empty());
}

#[test]
fn extreme_times_are_survived() {
    let mut wheel = Wheel::new(2, Duration::ZERO, 1);
    wheel.schedule(0, Time::from_nanos(u64::MAX));
    wheel.schedule(1, Time::ZERO);
    let mut out = ArrayVec::<Position, 2>::new();
    while wheel.expire(Time::from_nanos(u64::MAX), &mut out) {}
    assert!(out.contains(&1));
    wheel.schedule(1, Time::from_nanos(u64::MAX));
    assert!(wheel.next(Time::from_nanos(u64::MAX)).is_some());
    while wheel.expire(Time::ZERO, &mut out) {}
}
