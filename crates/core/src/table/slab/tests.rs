//! The slab against a map, and adoption of what a crash leaves. (`crates/core/tests/slab_crash.rs` stops a process at every
//! instruction.)

use super::{PRESENT, Slab, SlabView, Slot, boxed, slots_at};
use crate::table::Position;
use crate::table::entry::Adoptable;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Memory that outlives slabs over it.
struct Memory<T = Value> {
    start: *mut Slot<T>,
    count: usize,
}

type Value = [u64; 3];

fn value(seed: u64) -> Value {
    [seed, !seed, seed.wrapping_mul(3)]
}

impl<T: Adoptable> Memory<T> {
    fn new(count: usize) -> Memory<T> {
        let mut memory = ManuallyDrop::new(boxed::<T>(count));
        Memory { start: memory.as_mut_ptr(), count }
    }

    /// Only one use at a time.
    fn slots(&self) -> &'static mut [Slot<T>] {
        // SAFETY: the memory is never given back, and the tests drop a slab before they make the next one.
        unsafe { slots_at(self.start, self.count) }
    }

    /// Only between uses.
    fn view(&self) -> SlabView<T> {
        // SAFETY: as above; nothing is written while the view reads, or by atomic stores.
        unsafe { SlabView::at(NonNull::new(self.start).unwrap(), self.count) }
    }
}

impl Memory {
    fn adopt(&self) -> Slab<Value> {
        let (slab, invalid) = Slab::adopt(self.slots());
        assert_eq!(invalid, 0);
        slab
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
                    let view = memory.view();
                    for position in 0..count as u32 + 2 {
                        let read = view.read(position).map(|(_, value)| value);
                        prop_assert_eq!(read.as_ref(), model.get(&position));
                    }
                    let used = generations.keys().next_back().map_or(0, |last| *last as usize + 1);
                    prop_assert_eq!((view.used(), view.capacity()), (used, count));
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

/// Some bytes are not one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Even(u64);

// SAFETY: an integer.
unsafe impl Adoptable for Even {
    fn is_valid(bytes: &[u8]) -> bool {
        bytes[0].is_multiple_of(2)
    }
}

#[test]
fn nonsense_is_made_absent_and_its_place_used_again() {
    let memory = Memory::<Even>::new(8);
    let mut slab = Slab::new(memory.slots());
    for n in [2, 3, 4, 5, 6] {
        slab.insert(Even(n));
    }
    slab.remove(4);
    drop(slab);
    assert_eq!(memory.view().read(1), None);
    assert_eq!(memory.view().read(2), Some((1, Even(4))));
    let (mut slab, invalid) = Slab::adopt(memory.slots());
    assert_eq!((invalid, slab.len()), (2, 2));
    assert_eq!(slab.positions().collect::<Vec<_>>(), [0, 2]);
    assert_eq!((0..4).map(|n| slab.insert(Even(n * 2))).collect::<Vec<_>>(), [Some(1), Some(3), Some(4), Some(5)]);
    drop(slab);
    assert_eq!(Slab::adopt(memory.slots()).1, 0);
}

#[test]
fn a_commit_word_of_anything_does_no_harm() {
    for word in [1, 2, 3, u64::MAX, u64::MAX - 1, PRESENT << 63] {
        let memory = Memory::<Even>::new(3);
        memory.slots()[0].commit.store(word, Ordering::Relaxed);
        memory.slots()[1].commit.store(word, Ordering::Relaxed);
        memory.slots()[1].value.write(Even(1));
        // A slab that is to be empty does not believe what is there.
        let mut slab = Slab::new(memory.slots());
        assert!(!slab.contains(0) && slab.is_empty());
        assert_eq!(slab.insert(Even(8)), Some(0));
        drop(slab);
        let (mut slab, _) = Slab::adopt(memory.slots());
        assert!(!slab.contains(1));
        while slab.insert(Even(4)).is_some() {}
        drop(slab);
        let view = memory.view();
        assert_eq!((view.used(), view.read(0).map(|(_, value)| value)), (3, Some(Even(8))));
    }
}

#[test]
fn what_lies_behind_damage_does_not_come_back() {
    let memory = Memory::<Even>::new(6);
    let mut slab = Slab::new(memory.slots());
    (0..6).for_each(|n| assert_eq!(slab.insert(Even(n * 2)), Some(n as u32)));
    drop(slab);
    memory.slots()[2].commit.store(0, Ordering::Relaxed);
    let (mut slab, _) = Slab::adopt(memory.slots());
    assert_eq!(slab.len(), 2, "a word of zero ends what was used");
    assert_eq!((slab.vacant(), slab.insert(Even(20))), (Some(2), Some(2)));
    drop(slab);
    let (slab, _) = Slab::adopt(memory.slots());
    assert_eq!(slab.positions().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn the_end_of_what_was_used_is_found_everywhere() {
    for used in 0..40usize {
        for count in [used, used + 1, used + 7, 64] {
            let memory = Memory::<Even>::new(count);
            let mut slab = Slab::new(memory.slots());
            (0..used).for_each(|n| assert!(slab.insert(Even(n as u64 * 2)).is_some()));
            (0..used as u32).step_by(3).for_each(|n| assert_eq!(slab.remove(n), Even(u64::from(n) * 2)));
            drop(slab);
            assert_eq!(memory.view().used(), used, "of {count}");
        }
    }
}

/// A writer as another process would be: what it puts into one slot, again and again, always consists of one number,
/// and a reader never sees two.
#[test]
fn a_view_never_mixes_up_entries() {
    type Large = [u64; 9];
    const ROUNDS: u64 = if cfg!(miri) { 60 } else { 200_000 };
    let memory = Memory::<Large>::new(1);
    let view = memory.view();
    let slot = memory.start as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let words = slot as *const AtomicU64;
            // SAFETY: a slot is its commit word and the value's nine, and all are accessed as atomics only.
            let word = |i: usize| unsafe { &*words.add(i) };
            for round in 1..=ROUNDS {
                (1..10).for_each(|i| word(i).store(round, Ordering::Relaxed));
                word(0).store(round << 1 | PRESENT, Ordering::Release);
                word(0).store(round << 1, Ordering::Relaxed);
                fence(Ordering::Release);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            if let Some((generation, value)) = view.read(0) {
                assert_eq!(value, [u64::from(generation); 9]);
            }
        }
    });
}
