//! The table against a plain map with its invariants checked after every operation, how far it fills, and what hashes
//! chosen by an enemy can do.

use super::bucket::{BucketHead, CHOICE, LANES, LISTED, SLOTS, UNLISTED_MAX, with_tag_words};
use super::{Broken, Inline, MOVED_MAX};
use core::sync::atomic::Ordering;
use hairpin_core::flow::FlowKey;
use hairpin_core::table::{Full, Hash, Hasher, Key};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

fn table<K: Key, V: Copy + Default>(capacity: usize) -> Inline<K, V> {
    Inline::new(capacity, Hasher::new([1, 2, 3, 4]))
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[derive(Clone, Debug)]
enum Op {
    Put(u64, u64),
    PutBurst(Vec<u64>),
    Take(u64),
    TakeBurst(Vec<u64>),
    Set(u64, u64),
    Value(u64),
    Values(Vec<u64>, i8),
}

/// Few different hashes, among them the extremes and such that differ in the tag or in the bucket only.
fn hash() -> impl Strategy<Value = u64> {
    let high = prop_oneof![Just(0u32), Just(1), Just(u32::MAX), Just(0x8000_0000), any::<u32>()];
    let low = prop_oneof![Just(0u32), Just(1), Just(0xffff), Just(0x1234), 0x1200u32..0x1300, any::<u32>()];
    (low, high).prop_map(|(low, high)| u64::from(low) | u64::from(high) << 32)
}

fn op() -> impl Strategy<Value = Op> {
    let hashes = || prop::collection::vec(hash(), 0..80);
    prop_oneof![
        8 => (hash(), any::<u64>()).prop_map(|(hash, value)| Op::Put(hash, value)),
        2 => hashes().prop_map(Op::PutBurst),
        4 => hash().prop_map(Op::Take),
        1 => hashes().prop_map(Op::TakeBurst),
        2 => (hash(), any::<u64>()).prop_map(|(hash, value)| Op::Set(hash, value)),
        2 => hash().prop_map(Op::Value),
        1 => (hashes(), -3..3i8).prop_map(|(hashes, more)| Op::Values(hashes, more)),
    ]
}

/// The table and what it should hold.
struct Pair {
    table: Inline<Hash, u64>,
    map: BTreeMap<u64, u64>,
}

impl Pair {
    fn apply(&mut self, op: Op) {
        match op {
            Op::Put(hash, value) => self.put(hash, value),
            Op::PutBurst(hashes) => self.put_burst(hashes),
            Op::Take(hash) => assert_eq!(self.table.take(&Hash(hash)), self.map.remove(&hash)),
            Op::TakeBurst(hashes) => {
                let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
                let there = hashes.iter().filter(|hash| self.map.remove(hash).is_some()).count();
                assert_eq!(self.table.take_burst(&keys), there);
            }
            Op::Set(hash, value) => {
                let there = self.map.get_mut(&hash).map(|old| *old = value).is_some();
                assert_eq!(self.table.set(&Hash(hash), value), there);
            }
            Op::Value(hash) => assert_eq!(self.table.value(&Hash(hash)), self.map.get(&hash).copied()),
            Op::Values(hashes, more) => self.values(&hashes, more),
        }
    }

    fn put(&mut self, hash: u64, value: u64) {
        if self.map.contains_key(&hash) {
            return;
        }
        let place = self.table.place(Hash(hash));
        match self.table.put(&Hash(hash), value) {
            Ok(()) => assert_eq!(self.map.insert(hash, value), None),
            Err(Full) => {
                let free = |choice| self.table.bucket(self.table.chosen(place, choice)).head.free();
                assert!((0..4).all(|choice| free(choice).is_none()));
            }
        }
    }

    fn put_burst(&mut self, mut hashes: Vec<u64>) {
        hashes.sort_unstable();
        hashes.dedup();
        hashes.retain(|hash| !self.map.contains_key(hash));
        let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        let values: Vec<u64> = hashes.iter().map(|hash| !hash).collect();
        let count = self.table.put_burst(&keys, &values);
        self.map.extend(hashes.iter().copied().zip(values).take(count));
        if let Some(refused) = keys.get(count) {
            assert_eq!(self.table.put(refused, 0), Err(Full), "refused in a burst but not alone");
        }
    }

    fn values(&self, hashes: &[u64], more: i8) {
        const UNTOUCHED: Option<u64> = Some(0xdead_beef);
        let keys: Vec<Hash> = hashes.iter().map(|&hash| Hash(hash)).collect();
        // Whatever it expects, the answer is the same.
        for expects_misses in [true, false] {
            self.table.expects_misses.store(expects_misses, Ordering::Relaxed);
            let mut out = vec![UNTOUCHED; keys.len().saturating_add_signed(more.into())];
            self.table.values(&keys, &mut out);
            for (i, found) in out.into_iter().enumerate() {
                assert_eq!(found, hashes.get(i).map_or(UNTOUCHED, |hash| self.map.get(hash).copied()));
            }
        }
    }

    /// The table holds what it should, in order.
    fn check(&self) {
        assert_eq!(self.table.check(), Ok(()));
        assert_eq!(self.table.count(), self.map.len());
        let (mut met, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            at = self.table.walk(from, &mut |key, value| met.push((key.0, value)));
        }
        met.sort_unstable();
        assert!(met.into_iter().eq(self.map.iter().map(|(&hash, &value)| (hash, value))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn agrees_with_a_map(capacity in 1usize..100, ops in prop::collection::vec(op(), 1..200)) {
        let mut pair = Pair { table: table(capacity), map: BTreeMap::new() };
        for op in ops {
            pair.apply(op);
            pair.check();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn both_ways_of_comparing_agree(
        lanes in prop::array::uniform8(prop_oneof![Just(0u16), 0u16..16, any::<u16>()]),
        tag in prop_oneof![Just(0u16), Just(4), Just(8), Just(0xfffc), any::<u16>().prop_map(|tag| tag & !CHOICE)],
    ) {
        for tag in lanes.into_iter().map(|lane| lane & !CHOICE).chain([tag]) {
            let with_tag = |lane: &usize| lanes[*lane] >> 2 == tag >> 2;
            let plain = (0..LANES).filter(with_tag).fold(0, |all, lane| all | 3 << (2 * lane));
            assert_eq!(with_tag_words(&lanes, tag), plain);
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            assert_eq!(super::bucket::with_tag_sse2(&lanes, tag), plain);
        }
    }

    /// The head against a list of what has moved: it is never wrong in saying no, and right in saying yes when all are
    /// listed.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn heads_agree_with_a_list(
        ops in prop::collection::vec((any::<bool>(), prop_oneof![1u16..0x4000, 1u16..5], 1u16..4, any::<usize>()), 1..200),
    ) {
        let marks = [0xfffc, 0];
        let (mut head, mut moved) = (BucketHead { marks, ..BucketHead::default() }, Vec::<u16>::new());
        for (is_added, tag, choice, which) in ops {
            if is_added {
                head.add(tag << 2 | choice);
                moved.push(tag << 2 | choice);
            } else if !moved.is_empty() {
                head.strike(moved.swap_remove(which % moved.len()));
            }
            assert_eq!(head.listed().count() + usize::from(head.unlisted), moved.len());
            assert_eq!((head.marks, head.free()), (marks, Some(1)));
            let tags = moved.iter().map(|mark| mark & !CHOICE).chain((1..20).map(|tag| tag << 2));
            for tag in tags.filter(|tag| *tag != marks[0]) {
                let its = moved.iter().filter(|mark| *mark & !CHOICE == tag);
                let choices = its.fold(0, |choices, mark| choices | 1u8 << (mark & CHOICE));
                let said = head.choices(tag);
                assert_eq!(said & choices, choices, "tag {tag} of {moved:?} is denied");
                assert!(said == choices || head.unlisted != 0, "tag {tag} is claimed");
                match head.lead(tag) {
                    None => assert_eq!(choices, 0, "tag {tag} of {moved:?} leads nowhere"),
                    Some(mark) => assert!(moved.contains(&mark) || head.unlisted != 0, "tag {tag} leads to {mark}"),
                }
            }
            assert_eq!(head.lead(marks[0]), Some(marks[0]));
        }
    }
}

/// A head can list five entries and count as many as it says, and is empty again when they are gone.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn heads_have_a_bound() {
    let mut head = BucketHead::default();
    let mark = |i: usize| ((i % 63) as u16 + 1) << 2 | ((i % 3) as u16 + 1);
    let most = LISTED + UNLISTED_MAX as usize;
    for i in 0..most {
        assert_eq!(head.has_room_for(100), i <= most - 100);
        head.add(mark(i));
    }
    assert_eq!((head.unlisted, head.listed().count()), (UNLISTED_MAX, LISTED));
    for i in 0..most {
        head.strike(mark(i));
    }
    assert_eq!(head, BucketHead::default());
}

/// An entry's four buckets are different, the first two neighbours.
#[test]
fn choices_are_different() {
    for capacity in [1, 16, 30, 1000, 20_000] {
        let table = table::<Hash, u32>(capacity);
        let count = table.buckets.len() as u32;
        assert!(count.is_multiple_of(4));
        let mut seed = 5;
        for _ in 0..if cfg!(miri) { 50 } else { 20_000 } {
            let place = table.place(Hash(splitmix(&mut seed)));
            let chosen = [0, 1, 2, 3].map(|choice| table.chosen(place, choice));
            assert!(chosen[0] == place.primary && chosen.iter().all(|&bucket| bucket < count));
            assert!(chosen[0] ^ 1 == chosen[1] && chosen[2] & 1 != chosen[3] & 1);
            assert!(chosen[2..].iter().all(|bucket| bucket / 2 != place.primary / 2));
            for (choice, bucket) in (0..).zip(chosen) {
                assert_eq!(table.choice(place, bucket), choice);
            }
        }
    }
}

/// The entries that fit in a bucket: with the keys that benchmarks use, and with a worker's.
#[test]
fn sizes_are_as_documented() {
    assert_eq!(Inline::<[u8; 16], u64>::bucket_bytes(), 64);
    assert_eq!(Inline::<[u8; 13], u32>::bucket_bytes(), 64);
    assert_eq!(Inline::<[u8; 37], u32>::bucket_bytes(), 128);
    assert_eq!(Inline::<FlowKey, u32>::bucket_bytes(), 128);
    for slots in [10_000, 1 << 20] {
        let table = table::<[u8; 16], u64>(slots * 95 / 100);
        assert!(table.slots() <= slots + 4 * SLOTS && table.slots() >= slots * 94 / 100, "{} slots", table.slots());
    }
}

/// Fills a table with random hashes until it refuses one, and gives the share of its slots then taken.
fn load(capacity: usize, seed: &mut u64) -> f64 {
    let mut table = table::<Hash, u64>(capacity);
    while table.put(&Hash(splitmix(seed)), 0).is_ok() {}
    assert_eq!(table.check(), Ok(()));
    assert!(table.count() >= capacity, "{} of {capacity} found room", table.count());
    table.count() as f64 / table.slots() as f64
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn is_filled_to_98_percent_and_to_its_capacity() {
    let mut seed = 1;
    for capacity in (1..2000).chain([10_000, 100_000, 1_000_000]) {
        let load = load(capacity, &mut seed);
        // Small ones by their capacity only: they have room to spare, since chance is coarse in them.
        assert!(load >= 0.98 || capacity < 2000, "a table for {capacity} is full at {load:.3}");
    }
}

/// A test short enough for Miri, with keys that leave holes in the memory of an entry.
#[test]
fn lives_a_short_life() {
    let mut pair = Pair { table: table(40), map: BTreeMap::new() };
    let mut seed = 11;
    let mut hashes = |count: usize| -> Vec<u64> { (0..count).map(|_| splitmix(&mut seed)).collect() };
    let first = hashes(40);
    pair.apply(Op::PutBurst(first.clone()));
    for round in 0..5 {
        pair.apply(Op::TakeBurst(first[round * 8..][..8].to_vec()));
        pair.apply(Op::PutBurst(hashes(8)));
        pair.apply(Op::Values(first.clone(), 2));
        pair.apply(Op::Set(first[39], round as u64));
        pair.check();
    }
    let mut odd = table::<[u8; 13], u16>(30);
    let keys: Vec<[u8; 13]> = (0..30).map(|i| [i; 13]).collect();
    let values: Vec<u16> = (0..30).collect();
    assert_eq!(odd.put_burst(&keys, &values), 30);
    let mut out = [None; 30];
    odd.values(&keys, &mut out);
    assert!(out.iter().copied().eq(values.iter().copied().map(Some)));
    assert_eq!((odd.take_burst(&keys[..7]), odd.count(), odd.check()), (7, 23, Ok(())));
}

/// At capacity, with entries coming and going, nothing is refused, nothing is lost, and the filters stay right.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn stays_usable_in_churn() {
    const CAPACITY: usize = 20_000;
    let mut seed = 3;
    let mut table = table::<Hash, u64>(CAPACITY);
    let mut hashes: Vec<u64> = (0..CAPACITY).map(|_| splitmix(&mut seed)).collect();
    for &hash in &hashes {
        assert_eq!(table.put(&Hash(hash), !hash), Ok(()));
    }
    for step in 0..400_000 {
        let at = splitmix(&mut seed) as usize % CAPACITY;
        assert_eq!(table.take(&Hash(hashes[at])), Some(!hashes[at]));
        hashes[at] = splitmix(&mut seed);
        assert_eq!(table.put(&Hash(hashes[at]), !hashes[at]), Ok(()), "step {step}");
    }
    assert_eq!(table.check(), Ok(()));
    assert!(hashes.iter().all(|&hash| table.value(&Hash(hash)) == Some(!hash)));
}

/// A key whose hash an enemy has chosen.
#[derive(Clone, Copy, PartialEq)]
struct Chosen(u32, Hash);

impl Key for Chosen {
    fn hash(&self, _: &Hasher) -> Hash {
        self.1
    }
}

/// Eight keys of one hash find room, the next is refused and nothing changes.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn equal_hashes_are_refused_cleanly() {
    for capacity in [1, 100, 1000] {
        let mut table = table::<Chosen, u32>(capacity);
        let key = |number| Chosen(number, Hash(0x1234_5678_9abc_def0));
        for number in 0..8 {
            assert_eq!(table.put(&key(number), number), Ok(()));
        }
        for number in 8..12 {
            assert_eq!(table.put(&key(number), number), Err(Full));
            assert_eq!((table.check(), table.count()), (Ok(()), 8));
        }
        for number in (0..8).rev() {
            assert_eq!(table.take(&key(number)), Some(number));
            assert_eq!((table.check(), table.value(&key(number))), (Ok(()), None));
        }
    }
}

/// Hashes that all have one first bucket find room, many more than it can list, and others beside them.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn one_first_bucket_for_all_is_borne() {
    let mut table = table::<Hash, u32>(2_000);
    let hash = |number: u32| Hash((7 << 32) + u64::from((number + 1).wrapping_mul(0x9E37_79B9)));
    let mut count = 0;
    while table.put(&hash(count), count).is_ok() {
        count += 1;
    }
    assert!(count >= 300, "{count} found room");
    assert_eq!(table.check(), Ok(()));
    let foreign = Hash(0x8000_0000_0000_0001);
    assert_eq!((table.put(&foreign, 1), table.take(&foreign)), (Ok(()), Some(1)));
    let mut seed = 5;
    let mut numbers: Vec<u32> = (0..count).collect();
    while !numbers.is_empty() {
        let number = numbers.swap_remove(splitmix(&mut seed) as usize % numbers.len());
        assert_eq!(table.take(&hash(number)), Some(number));
        if numbers.len().is_multiple_of(50) {
            assert_eq!(table.check(), Ok(()));
            assert!(numbers.iter().all(|&number| table.value(&hash(number)) == Some(number)));
        }
    }
    assert!(table.buckets.iter().all(|bucket| bucket.head == BucketHead::default()));
}

/// When a head can count no more, entries of its bucket stay in their first bucket or are refused; nothing is lost.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn one_first_bucket_for_all_is_bounded() {
    let mut table = table::<Hash, u32>(2_000_000);
    let hash = |number: u32| Hash((7 << 32) + u64::from((number + 1).wrapping_mul(0x9E37_79B9)));
    let mut count = 0;
    while table.put(&hash(count), count).is_ok() {
        count += 1;
    }
    assert!(count as usize > MOVED_MAX - 1_000 && count as usize <= MOVED_MAX + SLOTS, "{count} found room");
    assert_eq!(table.check(), Ok(()));
    assert!((0..count).all(|number| table.value(&hash(number)) == Some(number)));
    assert!((0..count).all(|number| table.take(&hash(number)) == Some(number)));
    assert_eq!((table.check(), table.count()), (Ok(()), 0));
}

/// Most entries stand in their first bucket, and few absent keys send a lookup to another one, also after churn.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn heads_do_not_fill_with_time() {
    const CAPACITY: usize = 60_000;
    let mut table = table::<Hash, u32>(CAPACITY);
    let (mut seed, used) = (9, table.slots() * 8 / 10);
    let mut hashes: Vec<u64> = (0..used).map(|_| splitmix(&mut seed)).collect();
    for &hash in &hashes {
        assert_eq!(table.put(&Hash(hash), 0), Ok(()));
    }
    let wrong = |table: &Inline<Hash, u32>, seed: &mut u64| {
        let places = (0..100_000).map(|_| table.place(Hash(splitmix(seed))));
        places.filter(|place| table.bucket(place.primary).head.lead(place.tag()).is_some()).count()
    };
    let moved = |table: &Inline<Hash, u32>| -> usize {
        let choices =
            |bucket: &super::Bucket<Hash, u32>| (0..SLOTS).filter_map(|slot| bucket.head.choice(slot)).collect();
        table.buckets.iter().flat_map(|bucket| -> Vec<u8> { choices(bucket) }).filter(|&choice| choice != 0).count()
    };
    let before = (wrong(&table, &mut seed), moved(&table));
    for _ in 0..20 * used {
        let at = splitmix(&mut seed) as usize % used;
        assert!(table.take(&Hash(hashes[at])).is_some());
        hashes[at] = splitmix(&mut seed);
        assert_eq!(table.put(&Hash(hashes[at]), 0), Ok(()));
    }
    let after = (wrong(&table, &mut seed), moved(&table));
    std::println!("of 100,000 absent keys, of {used} entries: {before:?}, after churn {after:?}");
    assert!(before.0 < 200 && after.0 < 500, "of 100,000 absent keys {} were sent on, later {}", before.0, after.0);
    assert!(before.1 < used * 3 / 10 && after.1 < used * 2 / 5, "of {used} {} have moved, later {}", before.1, after.1);
}

/// Bursts that find nothing send the next one to the screens, and those that find something bring it back.
#[test]
fn expects_what_was_last() {
    let mut table = table::<Hash, u64>(1000);
    let mut seed = 4;
    let [there, absent] = [(); 2].map(|()| (0..32).map(|_| Hash(splitmix(&mut seed))).collect::<Vec<Hash>>());
    assert_eq!(table.put_burst(&there, &[0; 32]), 32);
    let expects = |keys: &[Hash]| {
        table.values(keys, &mut [None; 32]);
        table.expects_misses.load(Ordering::Relaxed)
    };
    let half = [&there[..16], &absent[..16]].concat();
    let asked = [&there, &half, &absent, &absent, &half, &there, &there];
    assert_eq!(asked.map(|keys| expects(keys)), [false, false, true, true, true, false, false]);
}

/// The checker sees what it is for.
#[test]
fn what_is_broken_is_found() {
    let filled = || {
        let mut table = table::<Hash, u32>(40);
        let mut seed = 2;
        for value in 0..40 {
            assert_eq!(table.put(&Hash(splitmix(&mut seed)), value), Ok(()));
        }
        assert_eq!(table.check(), Ok(()));
        table
    };
    let first = |table: &Inline<Hash, u32>| (0..).find(|&at| table.bucket(at).head.marks[0] != 0).unwrap();
    let mut lost = filled();
    let at = first(&lost);
    lost.bucket_mut(at).head.marks[0] = 0;
    assert!(matches!(lost.check(), Err(Broken::Length { said: 40, counted: 39 } | Broken::Count { .. })));
    let mut counted = filled();
    counted.bucket_mut(at).head.add(7 << 2 | 1);
    assert!(matches!(counted.check(), Err(Broken::Count { .. })));
    let mut astray = filled();
    let entry = astray.bucket(at).entry(0).unwrap();
    let mark = astray.bucket(at).head.marks[0];
    astray.bucket_mut(at).put(0, mark ^ 1, entry);
    assert!(matches!(astray.check(), Err(Broken::Astray { .. })));
    let mut listed = filled();
    let at = (0..).find(|&at| listed.bucket(at).head.cells[0] != 0).unwrap();
    listed.bucket_mut(at).head.cells[0] ^= 3 << 3;
    assert!(matches!(listed.check(), Err(Broken::Listed { .. })));
    let mut screened = filled();
    screened.screens[at as usize] ^= 1;
    assert_eq!(screened.check(), Err(Broken::Screen { bucket: at }));
}
