//! The slab against a map, and adoption of what a crash leaves. (`core/tests/slab_crash.rs` stops a process at every
//! instruction.)

use super::{PRESENT, Slab, Slot, boxed, slots_at};
use crate::table::Position;
use core::sync::atomic::Ordering;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Memory that outlives slabs over it.
struct Memory {
    start: *mut Slot<Value>,
    count: usize,
}

type Value = [u64; 3];

fn value(seed: u64) -> Value {
    [seed, !seed, seed.wrapping_mul(3)]
}

impl Memory {
    fn new(count: usize) -> Memory {
        Memory { start: boxed::<Value>(count).as_mut_ptr(), count }
    }

    /// Only one use at a time.
    fn slots(&self) -> &'static mut [Slot<Value>] {
        // SAFETY: `boxed` memory lives for ever, and the tests drop a slab before they make the next one.
        unsafe { slots_at(self.start, self.count) }
    }

    fn adopt(&self) -> Slab<Value> {
        // SAFETY: only slabs of `Value` have written there.
        unsafe { Slab::adopt(self.slots()) }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64),
    Remove(usize),
    Change(usize, u64),
    Adopt,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => any::<u64>().prop_map(Op::Insert),
        3 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(which, seed)| Op::Change(which, seed)),
        1 => Just(Op::Adopt),
    ]
}

fn nth(model: &BTreeMap<Position, Value>, which: usize) -> Option<Position> {
    model.keys().copied().nth(which.checked_rem(model.len())?)
}

fn check(slab: &Slab<Value>, model: &BTreeMap<Position, Value>, count: usize) {
    assert_eq!((slab.len(), slab.is_empty(), slab.capacity()), (model.len(), model.is_empty(), count));
    let held: BTreeMap<Position, Value> = slab.positions().map(|position| (position, *slab.at(position))).collect();
    assert_eq!(&held, model);
    for position in 0..count as u32 + 2 {
        assert_eq!(slab.contains(position), model.contains_key(&position));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 6 } else { 300 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn agrees_with_a_map(count in 0usize..20, ops in prop::collection::vec(op(), 1..150)) {
        let memory = Memory::new(count);
        let mut slab = Slab::new(memory.slots());
        let mut model = BTreeMap::new();
        let mut generations: BTreeMap<Position, Vec<u32>> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Insert(seed) => match slab.insert(value(seed)) {
                    Some(position) => {
                        prop_assert_eq!(model.insert(position, value(seed)), None, "position given twice");
                        let generation = slab.generation(position);
                        let before = generations.entry(position).or_default();
                        prop_assert!(!before.contains(&generation), "generation {} used before", generation);
                        before.push(generation);
                    }
                    None => prop_assert_eq!(model.len(), count, "refused with room left"),
                },
                Op::Remove(which) => if let Some(position) = nth(&model, which) {
                    prop_assert_eq!(Some(slab.remove(position)), model.remove(&position));
                },
                Op::Change(which, seed) => if let Some(position) = nth(&model, which) {
                    *slab.at_mut(position) = value(seed);
                    model.insert(position, value(seed));
                },
                Op::Adopt => {
                    drop(slab);
                    slab = memory.adopt();
                }
            }
            check(&slab, &model, count);
        }
    }
}

#[test]
fn fresh_positions_ascend_and_freed_ones_come_back_last_first() {
    let mut slab = Slab::new(boxed::<u64>(4));
    assert_eq!((0..4).map(|i| slab.insert(i)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(slab.insert(9), None);
    assert_eq!((slab.remove(1), slab.remove(3)), (1, 3));
    assert_eq!((slab.insert(5), slab.insert(6), slab.insert(7)), (Some(3), Some(1), None));
}

/// The stores of an insertion in their order: the value's words (any of them, in any order), then the commit word.
#[test]
fn an_insertion_cut_short_is_absent() {
    for written in 0..8u8 {
        for position in 0..2 {
            let memory = Memory::new(3);
            let mut slab = Slab::new(memory.slots());
            let kept = slab.insert(value(1));
            if position == 0 {
                // The slot was used before: its old words are still there.
                slab.insert(value(2));
                slab.remove(1);
            }
            drop(slab);
            let slot = &mut memory.slots()[1];
            // SAFETY: arrays of integers: anything is valid.
            let words = unsafe { slot.value.as_mut_ptr().as_mut() };
            for (i, word) in words.into_iter().flatten().enumerate() {
                if written & 1 << i != 0 {
                    *word = value(3)[i];
                }
            }
            let mut slab = memory.adopt();
            assert_eq!(slab.positions().map(Some).collect::<Vec<_>>(), [kept]);
            assert_eq!(slab.at(0), &value(1));
            assert_eq!((slab.insert(value(4)), slab.insert(value(5)), slab.insert(value(6))), (Some(1), Some(2), None));
            assert_eq!((slab.at(1), slab.at(2)), (&value(4), &value(5)));
        }
    }
}

#[test]
fn a_removal_cut_short_is_whole_or_absent() {
    let memory = Memory::new(2);
    let mut slab = Slab::new(memory.slots());
    slab.insert(value(1));
    let generation = slab.generation(0);
    drop(slab);
    // Before its only store that matters.
    let slab = memory.adopt();
    assert_eq!((slab.at(0), slab.len()), (&value(1), 1));
    drop(slab);
    // After it; what the process had in its free list is lost with it.
    memory.slots()[0].commit.fetch_and(!PRESENT, Ordering::Relaxed);
    let mut slab = memory.adopt();
    assert!(slab.is_empty());
    assert_eq!(slab.insert(value(2)), Some(0));
    assert_ne!(slab.generation(0), generation, "a position used again after a crash has another generation");
}

#[test]
#[should_panic(expected = "no entry at position 0")]
fn what_is_removed_cannot_be_reached() {
    let mut slab = Slab::new(boxed::<u64>(1));
    slab.insert(7);
    slab.remove(0);
    slab.at(0);
}
