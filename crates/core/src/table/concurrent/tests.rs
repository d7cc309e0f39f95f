//! The table in one thread: against a plain list, how far it fills, what it does when full, stamps, and what tags and
//! filter say. (Threads: `crates/core/tests/concurrent_stress.rs`; all orders of a few steps:
//! `crates/core/tests/concurrent_loom.rs`.)

use super::bucket::{AWAY, SLOTS, SlotSet, Tags};
use super::quiescence::Quiescence;
use super::store::{SharedStore, StillRead};
use super::{Concurrent, LOAD_PERCENT};
use crate::table::{Entries, Full, Hash, Hasher, Lookup, SharedIndex};
use alloc::sync::Arc;
use core::cell::RefCell;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn hasher() -> Hasher {
    Hasher::new([1, 2, 3, 4])
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Entries that a closure compares.
struct Is<F>(F);

impl<F: Fn(u32) -> bool> Entries<Hash> for Is<F> {
    fn is(&self, value: u32, _: &Hash) -> bool {
        (self.0)(value)
    }
}

/// The youngest entry of a hash is meant.
struct Model<'a>(&'a [Entry]);

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    value: u32,
    stamp: u8,
}

fn youngest(model: &[Entry], hash: u64) -> Option<u32> {
    model.iter().rev().find(|entry| entry.hash == hash).map(|entry| entry.value)
}

impl Entries<Hash> for Model<'_> {
    fn is(&self, value: u32, key: &Hash) -> bool {
        youngest(self.0, key.0) == Some(value)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u8),
    InsertBurst(Vec<u64>),
    Remove(usize),
    RemoveBurst(usize),
    RemoveStamped(usize, u8),
    RemoveAbsent(u64, u32),
    Replace(usize),
    Find(u64),
    Burst(Vec<u64>),
    BurstStamped(Vec<u64>, u8),
    Scan,
}

/// Few different hashes, among them the extremes and such that differ in the tag or in the bucket only.
fn hash() -> impl Strategy<Value = u64> {
    let part = prop_oneof![Just(0u32), Just(1), Just(u32::MAX), Just(0x8000_0000), Just(0x8000_0001), any::<u32>()];
    (part.clone(), part).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

fn op() -> impl Strategy<Value = Op> {
    let hashes = || prop::collection::vec(hash(), 0..80);
    prop_oneof![
        8 => (hash(), any::<u8>()).prop_map(|(hash, stamp)| Op::Insert(hash, stamp)),
        1 => hashes().prop_map(Op::InsertBurst),
        3 => any::<usize>().prop_map(Op::Remove),
        1 => (0usize..80).prop_map(Op::RemoveBurst),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(which, stamp)| Op::RemoveStamped(which, stamp)),
        1 => (hash(), any::<u32>()).prop_map(|(hash, value)| Op::RemoveAbsent(hash, value)),
        1 => any::<usize>().prop_map(Op::Replace),
        2 => hash().prop_map(Op::Find),
        1 => hashes().prop_map(Op::Burst),
        1 => (hashes(), any::<u8>()).prop_map(|(hashes, stamp)| Op::BurstStamped(hashes, stamp)),
        1 => Just(Op::Scan),
    ]
}

/// The table and what it should hold, all values different.
struct Pair {
    table: Concurrent,
    model: Vec<Entry>,
    next: u32,
}

impl Pair {
    fn new(capacity: usize) -> Pair {
        Pair { table: Concurrent::new(capacity, hasher()), model: Vec::new(), next: 0 }
    }

    fn buckets(&self, hash: u64) -> [u32; 2] {
        let place = self.table.place(Hash(hash));
        [place.primary, self.table.other(place.primary, place.tag)]
    }

    /// A refusal is right only if both buckets are full.
    fn assert_crowded(&self, hash: u64) {
        for bucket in self.buckets(hash) {
            let could = self.model.iter().filter(|entry| self.buckets(entry.hash).contains(&bucket)).count();
            assert!(could >= SLOTS, "refused beside {could} that could stand there");
        }
    }

    fn insert(&mut self, hash: u64, stamp: u8) {
        let value = self.next;
        self.next += 1;
        match self.table.insert_stamped(&Hash(hash), value, stamp) {
            Ok(()) => self.model.push(Entry { hash, value, stamp }),
            Err(Full) => self.assert_crowded(hash),
        }
    }

    fn insert_burst(&mut self, hashes: &[u64]) {
        let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let values: Vec<u32> = (self.next..).take(keys.len()).collect();
        self.next += keys.len() as u32;
        let inserted = self.table.insert_burst(&keys, &values);
        let pairs = hashes.iter().zip(&values);
        self.model.extend(pairs.take(inserted).map(|(&hash, &value)| Entry { hash, value, stamp: 0 }));
        if inserted < hashes.len() {
            self.assert_crowded(hashes[inserted]);
        }
    }

    fn remove_burst(&mut self, count: usize) {
        let rest = self.model.len().saturating_sub(count);
        let gone = self.model.split_off(rest);
        let mut keys: Vec<Hash> = gone.iter().map(|entry| Hash(entry.hash)).collect();
        let mut values: Vec<u32> = gone.iter().map(|entry| entry.value).collect();
        keys.push(Hash(7));
        values.push(u32::MAX);
        assert_eq!(self.table.remove_burst(&keys, &values), gone.len());
    }

    fn find(&self, hash: u64) {
        let asked = RefCell::new(Vec::new());
        let ask = |value| {
            asked.borrow_mut().push(value);
            false
        };
        assert_eq!(self.table.find(&Hash(hash), &Is(ask)), None);
        let mut asked = asked.into_inner();
        asked.sort_unstable();
        let asked_before = asked.len();
        asked.dedup();
        assert_eq!(asked.len(), asked_before, "asked twice about one entry");
        for entry in &self.model {
            let is_asked = asked.contains(&entry.value);
            assert!(entry.hash != hash || is_asked, "{entry:?} is not found");
            if is_asked {
                assert_eq!(self.table.find(&Hash(hash), &Is(|v| v == entry.value)), Some(entry.value));
            }
        }
        assert!(asked.iter().all(|value| self.model.iter().any(|entry| entry.value == *value)), "asked about a ghost");
    }

    fn burst(&mut self, hashes: &[u64], stamp: Option<u8>) {
        let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let mut out = vec![Some(u32::MAX); keys.len()];
        match stamp {
            None => self.table.find_burst(&keys, &Model(&self.model), &mut out),
            Some(stamp) => self.table.find_burst_stamped(&keys, &Model(&self.model), stamp, &mut out),
        }
        for (&hash, found) in hashes.iter().zip(out) {
            assert_eq!(found, youngest(&self.model, hash));
            let entry = self.model.iter_mut().find(|entry| Some(entry.value) == found);
            if let (Some(entry), Some(stamp)) = (entry, stamp) {
                entry.stamp = stamp;
            }
        }
    }

    fn scan(&self) {
        let (mut met, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.table.scan_stamped(at, &mut |value, stamp| met.push((value, stamp)));
        }
        let mut wanted: Vec<_> = self.model.iter().map(|entry| (entry.value, entry.stamp)).collect();
        met.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(met, wanted);
    }

    fn apply(&mut self, op: Op) {
        let is_empty = self.model.is_empty();
        match op {
            Op::Insert(hash, stamp) => self.insert(hash, stamp),
            Op::InsertBurst(hashes) => self.insert_burst(&hashes),
            Op::RemoveBurst(count) => self.remove_burst(count),
            Op::Remove(_) | Op::Replace(_) | Op::RemoveStamped(..) if is_empty => {}
            Op::Remove(which) => {
                let Entry { hash, value, .. } = self.model.swap_remove(which % self.model.len());
                assert!(self.table.remove(&Hash(hash), value));
                assert!(!self.table.remove(&Hash(hash), value), "removed twice");
            }
            Op::RemoveStamped(which, stamp) => {
                let at = which % self.model.len();
                let entry = self.model[at];
                assert_eq!(self.table.remove_stamped(&Hash(entry.hash), entry.value, stamp), entry.stamp == stamp);
                if entry.stamp == stamp {
                    self.model.swap_remove(at);
                }
            }
            Op::RemoveAbsent(hash, value) => {
                let value = value | 1 << 31; // beyond any value handed out
                assert!(!self.table.remove(&Hash(hash), value));
                assert!(!self.table.replace(&Hash(hash), value, 0));
            }
            Op::Replace(which) => {
                let at = which % self.model.len();
                let entry = &mut self.model[at];
                assert!(self.table.replace(&Hash(entry.hash), entry.value, self.next));
                assert!(!self.table.replace(&Hash(entry.hash), entry.value, self.next));
                entry.value = self.next;
                self.next += 1;
            }
            Op::Find(hash) => self.find(hash),
            Op::Burst(hashes) => self.burst(&hashes, None),
            Op::BurstStamped(hashes, stamp) => self.burst(&hashes, Some(stamp)),
            Op::Scan => self.scan(),
        }
        assert_eq!(self.table.entries(), self.model.len());
        assert_eq!(self.table.check(), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agrees_with_a_list(capacity in 1usize..100, ops in prop::collection::vec(op(), 1..300)) {
        let mut pair = Pair::new(capacity);
        for op in ops {
            pair.apply(op);
        }
        for at in 0..pair.model.len() {
            pair.find(pair.model[at].hash);
        }
    }

    /// The vector instructions and the plain ones find the same.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn both_ways_to_compare_tags_agree(words in any::<[u64; 2]>(), tag in any::<u16>(), places in any::<u8>()) {
        let mut tags = Tags(words);
        for slot in (0..SLOTS).filter(|slot| places >> slot & 1 != 0) {
            let (word, shift) = (&mut tags.0[slot / 4], 16 * (slot % 4));
            *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
        }
        let wanted: u8 = (0..SLOTS).map(|slot| u8::from(tags.at(slot) == tag) << slot).sum();
        prop_assert_eq!(tags.with(tag), SlotSet::of(wanted));
        prop_assert_eq!(tags.with_scalar(tag), SlotSet::of(wanted));
    }

    /// An entry's other bucket is another one, exists, and leads back.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn other_buckets_lead_back(pairs in 1usize..10_000, bucket in any::<u32>(), tag in any::<u16>()) {
        let table = Concurrent::new(pairs * 15, hasher());
        let bucket = bucket % table.buckets.len() as u32;
        let other = table.other(bucket, tag);
        prop_assert!(other != bucket && (other as usize) < table.buckets.len());
        prop_assert_eq!(table.other(other, tag ^ AWAY), bucket);
    }
}

/// Every operation once or twice, for Miri, which has no time for the above.
#[test]
fn agrees_with_a_list_in_short() {
    let mut pair = Pair::new(40);
    let hashes: Vec<u64> = (0..45u64).map(|i| (i << 60) | (i * 1009)).collect();
    let stamped = hashes.iter().take(10).map(|&hash| Op::Insert(hash, 3));
    let ops = stamped.chain([
        Op::InsertBurst(hashes[10..].to_vec()),
        Op::BurstStamped(hashes[5..20].to_vec(), 9),
        Op::Burst(hashes.clone()),
        Op::Replace(20),
        Op::RemoveStamped(2, 3),
        Op::RemoveStamped(6, 3),
        Op::RemoveAbsent(5, 5),
        Op::Scan,
        Op::Remove(30),
        Op::RemoveBurst(20),
        Op::Find(hashes[3]),
        Op::Scan,
    ]);
    ops.for_each(|op| pair.apply(op));
    assert!(pair.model.len() > 10);
}

/// How many entries there are when the first one is refused, in percent of the slots.
fn fills(capacity: usize, seed: &mut u64) -> usize {
    let mut table = Concurrent::new(capacity, hasher());
    let mut count = 0;
    while table.insert(&Hash(splitmix(seed)), count as u32).is_ok() {
        count += 1;
    }
    assert!(count >= capacity, "{count} of {capacity}");
    assert_eq!(table.check(), Ok(()));
    count * 100 / table.slots()
}

#[test]
fn fills_to_its_capacity() {
    let mut seed = 1;
    for capacity in 1..if cfg!(miri) { 10 } else { 1500 } {
        fills(capacity, &mut seed);
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn refuses_nothing_before_95_percent() {
    let mut seed = 2;
    for capacity in [10_000, 100_000, 1_000_000] {
        let percent = fills(capacity, &mut seed);
        assert!(percent >= LOAD_PERCENT, "{percent} percent of {capacity}");
    }
}

/// At capacity, with entries coming and going, nothing is refused and nothing is lost.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn stays_usable_in_churn() {
    const CAPACITY: usize = 20_000;
    let mut seed = 3;
    let mut table = Concurrent::new(CAPACITY, hasher());
    let mut hashes: Vec<Hash> = (0..CAPACITY).map(|_| Hash(splitmix(&mut seed))).collect();
    for (value, &hash) in hashes.iter().enumerate() {
        assert_eq!(table.insert(&hash, value as u32), Ok(()));
    }
    for _ in 0..50 * CAPACITY {
        let value = splitmix(&mut seed) as usize % CAPACITY;
        assert!(table.remove(&hashes[value], value as u32));
        hashes[value] = Hash(splitmix(&mut seed));
        assert_eq!(table.insert(&hashes[value], value as u32), Ok(()));
    }
    for (value, &hash) in hashes.iter().enumerate() {
        assert_eq!(table.find(&hash, &Is(|v| v as usize == value)), Some(value as u32));
    }
    assert_eq!(table.check(), Ok(()));
}

/// One hash for all: the worst attack with a known secret. The attacker loses all but 16 entries, and
/// other clients nothing.
#[test]
fn equal_hashes_are_refused_cleanly() {
    let mut table = Concurrent::new(1000, hasher());
    let all = 2 * SLOTS as u32;
    for value in 0..all {
        assert_eq!(table.insert(&Hash(u64::MAX), value), Ok(()));
    }
    assert_eq!(table.insert(&Hash(u64::MAX), 99), Err(Full));
    assert_eq!(table.insert(&Hash(0), 100), Ok(()));
    for value in 0..all {
        assert_eq!(table.find(&Hash(u64::MAX), &Is(|v| v == value)), Some(value));
        // The reads of many lookups if entries kept returning while they search.
        let found = table.search_locked(table.place(Hash(u64::MAX)), |v| v == value);
        assert_eq!(found.map(|found| found.value), Some(value));
    }
    assert!(table.search_locked(table.place(Hash(u64::MAX)), |_| false).is_none());
    assert_eq!(table.entries(), all as usize + 1);
    // A counter of the filter that has reached its limit stays there; that is no defect.
    assert_eq!(table.check(), Ok(()));
    for value in 0..all {
        assert!(table.remove(&Hash(u64::MAX), value));
    }
    assert_eq!((table.entries(), table.check()), (1, Ok(())));
}

#[test]
fn removed_positions_wait_for_readers() {
    let store = Arc::new(SharedStore::<[u8; 16], u64>::new(3, 1));
    let mut writer = store.writer();
    let mut reader = store.reader().unwrap();
    assert!(store.reader().is_none(), "one reader is all there may be");
    let positions: Vec<u32> = (0..3).map(|i| writer.put(&[i; 16], &u64::from(i)).unwrap()).collect();
    assert_eq!(writer.put(&[9; 16], &9), None, "full");
    writer.retire(positions[1]).unwrap();
    assert_eq!(writer.put(&[9; 16], &9), None, "the reader may look at it");
    assert!(store.is(positions[1], &[1; 16]));
    reader.quiescent();
    assert_eq!(writer.put(&[9; 16], &9), Some(positions[1]));
    assert_eq!((store.key(positions[1]), store.value(positions[1])), (Some([9; 16]), Some(9)));
    assert_eq!((store.key(positions[2]), store.value(positions[2])), (Some([2; 16]), Some(2)));
    assert_eq!((store.key(3), store.value(u32::MAX)), (None, None));
    // An offline reader delays nothing, one that is back does.
    reader.offline();
    reader.quiescent();
    writer.retire(positions[0]).unwrap();
    assert_eq!(writer.put(&[8; 16], &8), Some(positions[0]));
    reader.online();
    writer.retire(positions[0]).unwrap();
    assert_eq!(writer.put(&[7; 16], &7), None);
    drop(reader);
    assert_eq!(writer.put(&[7; 16], &7), Some(positions[0]));
    assert!(store.reader().is_some());
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn too_many_removed_are_refused() {
    let store = Arc::new(SharedStore::<u64, u64>::new(10_000, 1));
    let max = store.retired_max();
    let (mut writer, mut reader) = (store.writer(), store.reader().unwrap());
    let positions: Vec<u32> = (0..=max as u64).map(|i| writer.put(&i, &i).unwrap()).collect();
    for &position in &positions[..max] {
        assert_eq!(writer.retire(position), Ok(()));
    }
    assert_eq!(writer.retire(positions[max]), Err(StillRead));
    assert_eq!(writer.reclaim(), 0);
    reader.quiescent();
    assert_eq!(writer.retire(positions[max]), Ok(()));
}

/// Whatever writers come and go, every position can be had again, and none twice.
#[test]
fn no_position_is_lost_or_doubled() {
    let capacity = if cfg!(miri) { 300 } else { 5000 };
    let store = Arc::new(SharedStore::<[u8; 5], u32>::new(capacity, 2));
    let mut seed = 5;
    let mut held: Vec<u32> = Vec::new();
    let mut writers: Vec<_> = (0..3).map(|_| store.writer()).collect();
    let mut reader = store.reader().unwrap();
    for round in 0..20 * capacity {
        let which = splitmix(&mut seed) as usize % 3;
        let share = 200 + 300 * (round / 500 % 3);
        match splitmix(&mut seed) as usize % 1000 {
            0 => writers[which] = store.writer(),
            1..10 => reader.quiescent(),
            n if n < share => held.extend(writers[which].put(&[7; 5], &7)),
            _ if held.is_empty() => {}
            n => {
                let at = splitmix(&mut seed) as usize % held.len();
                if n % 8 == 0 {
                    writers[which].discard(held.swap_remove(at));
                } else if writers[which].retire(held[at]).is_ok() {
                    held.swap_remove(at);
                }
            }
        }
    }
    drop((reader, writers));
    let mut writer = store.writer();
    held.extend(core::iter::from_fn(|| writer.put(&[1; 5], &2)));
    held.sort_unstable();
    assert_eq!(held, (0..capacity as u32).collect::<Vec<_>>());
}

#[test]
fn periods_pass_when_all_have_been_quiescent() {
    let quiescence = Arc::new(Quiescence::new(2));
    let first = quiescence.begin();
    assert!(quiescence.has_passed(first), "no thread is reading");
    let (mut a, mut b) = (quiescence.register().unwrap(), quiescence.register().unwrap());
    assert!(quiescence.register().is_none());
    let second = quiescence.begin();
    assert!(quiescence.has_passed(first) && !quiescence.has_passed(second));
    a.quiescent();
    assert!(!quiescence.has_passed(second));
    let third = quiescence.begin();
    b.quiescent();
    assert!(quiescence.has_passed(second) && !quiescence.has_passed(third));
    a.offline();
    assert!(quiescence.has_passed(third));
}
