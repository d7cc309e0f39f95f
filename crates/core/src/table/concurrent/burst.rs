//! Bursts: passes over up to [`BURST`] keys, so that cache misses overlap.

use super::bucket::AWAY;
use super::{Concurrent, FoundEntry, HashPlace};
use crate::table::{BURST, Entries, Key};
use core::mem::MaybeUninit;

/// A set of keys of a burst.
#[derive(Clone, Copy, Default)]
struct Set(u32);

const _: () = assert!(BURST <= u32::BITS as usize);

impl Set {
    #[inline]
    fn add(&mut self, i: usize) {
        self.0 |= 1 << i;
    }

    #[inline]
    fn members(mut self) -> impl Iterator<Item = usize> {
        core::iter::from_fn(move || {
            let next = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
            self.0 &= self.0 - 1;
            Some(next)
        })
    }
}

/// Room for the places of a burst.
type BurstPlaces = [MaybeUninit<HashPlace>; BURST];

impl Concurrent {
    /// The places of up to [`BURST`] keys, with their primary buckets on their way into the cache. (An array returned
    /// would be copied, and the copy would wait until everything before it has been done.)
    #[inline(always)]
    fn places<'a, K: Key>(&self, keys: &[K], places: &'a mut BurstPlaces) -> &'a [HashPlace] {
        let places = &mut places[..keys.len()];
        for (place, key) in places.iter_mut().zip(keys) {
            self.prefetch(place.write(self.place_of(key)).primary);
        }
        // SAFETY: there are as many as there are keys, and all have been written.
        unsafe { core::slice::from_raw_parts(places.as_ptr().cast(), places.len()) }
    }

    #[inline]
    pub(super) fn prefetch(&self, bucket: u32) {
        self.fetch.line(self.buckets.as_ptr().wrapping_add(bucket as usize));
    }

    #[inline]
    fn prefetch_secondary(&self, place: HashPlace) {
        self.prefetch(self.other(place.primary, place.tag));
    }

    /// Looks for all keys, and calls `hit` for each that was found if `TOLD`. (Where entries stand is remembered for
    /// that only.)
    #[inline]
    pub(super) fn search_burst<const TOLD: bool, K: Key, E: Entries<K>>(
        &self,
        keys: &[K],
        entries: &E,
        out: &mut [Option<u32>],
        hit: impl Fn(HashPlace, FoundEntry),
    ) {
        let count = keys.len().min(out.len());
        let (mut keys, mut out) = (&keys[..count], &mut out[..count]);
        while keys.len() > BURST {
            let (now, later) = keys.split_at(BURST);
            let (found, rest) = out.split_at_mut(BURST);
            self.search_piece::<TOLD, K, E>(now, entries, found, &hit);
            (keys, out) = (later, rest);
        }
        self.search_piece::<TOLD, K, E>(keys, entries, out, &hit);
    }

    /// [`Concurrent::search_burst`] of up to [`BURST`] keys, in as few instructions as can be (see there, in `cuckoo++`).
    #[inline(never)]
    fn search_piece<const TOLD: bool, K: Key, E: Entries<K>>(
        &self,
        keys: &[K],
        entries: &E,
        out: &mut [Option<u32>],
        hit: &impl Fn(HashPlace, FoundEntry),
    ) {
        let mut places = [const { MaybeUninit::uninit() }; BURST];
        let places = self.places(keys, &mut places);
        // As many answers as keys: a loop over both then counts one of them.
        let out = &mut out[..keys.len()];
        let mut at = [FoundEntry::default(); BURST];
        let mut is_any_there = false;
        let mut candidate = |i: usize, bucket: u32, slot: usize, value: u32| {
            entries.prefetch(value);
            if TOLD {
                at[i] = FoundEntry { bucket, slot, value };
            }
            is_any_there = true;
            Some(value)
        };
        // Tags in the primary buckets: each key has a candidate there, or may stand in its secondary bucket, which is on
        // its way into the cache, or is surely absent.
        let mut away = Set::default();
        for (i, (place, found)) in places.iter().zip(&mut *out).enumerate() {
            let primary = self.bucket(place.primary);
            let before = primary.version();
            *found = if let Some(slot) = primary.tags().with(place.tag).next() {
                candidate(i, place.primary, slot, primary.value(slot))
            } else {
                if primary.may_be_away(place.tag) || !before.is_same(primary.version()) {
                    self.prefetch_secondary(*place);
                    away.add(i);
                }
                None
            };
        }
        // Tags in the secondary ones: a candidate, or none in either bucket, but it may just be on its way.
        let mut unclear = Set::default();
        for i in away.members() {
            let number = self.other(places[i].primary, places[i].tag);
            let secondary = self.bucket(number);
            if let Some(slot) = secondary.tags().with(places[i].tag | AWAY).next() {
                out[i] = candidate(i, number, slot, secondary.value(slot));
            } else {
                unclear.add(i);
            }
        }
        if is_any_there {
            for (i, (key, found)) in keys.iter().zip(&mut *out).enumerate() {
                let Some(value) = *found else { continue };
                if !entries.is(value, key) {
                    *found = None;
                    unclear.add(i);
                } else if TOLD {
                    hit(places[i], at[i]);
                }
            }
        }
        for i in unclear.members() {
            let found = self.start_over(places[i], &keys[i], entries);
            out[i] = found.map(|found| found.value);
            if TOLD && let Some(found) = found {
                hit(places[i], found);
            }
        }
    }

    /// Looks for one key after all.
    #[cold]
    #[inline(never)]
    fn start_over<K: Key, E: Entries<K>>(&self, place: HashPlace, key: &K, entries: &E) -> Option<FoundEntry> {
        self.search(place, |value| entries.is(value, key))
    }

    /// Has the buckets brought into the cache that an insertion may turn to if the primary one is full.
    #[inline]
    fn prefetch_room(&self, place: HashPlace) {
        let tags = self.bucket(place.primary).tags();
        if tags.with(0).next().is_none() {
            self.prefetch_secondary(place);
            tags.guests().for_each(|slot| self.prefetch(self.other(place.primary, tags.at(slot))));
        }
    }

    /// [`crate::table::SharedIndex::insert_burst`].
    pub(super) fn insert_many<K: Key>(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(keys, &mut places);
            for place in places {
                self.prefetch_room(*place);
            }
            let pairs = places.iter().zip(values);
            let inserted = pairs.take_while(|(place, value)| self.insert_at(**place, **value, 0).is_ok()).count();
            count += inserted;
            if inserted < keys.len() {
                break;
            }
        }
        self.count.add(count as isize);
        count
    }

    /// [`crate::table::SharedIndex::remove_burst`].
    pub(super) fn remove_many<K: Key>(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(keys, &mut places);
            self.prefetch_away(places, values);
            let pairs = places.iter().zip(values);
            count += pairs.filter(|(place, value)| self.remove_at(**place, **value)).count();
        }
        self.count.add(-(count as isize));
        count
    }

    /// [`crate::table::SharedIndex::replace_burst`].
    pub(super) fn replace_many<K: Key>(&self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        let mut count = 0;
        for ((keys, old), new) in keys.chunks(BURST).zip(old.chunks(BURST)).zip(new.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(keys, &mut places);
            self.prefetch_away(places, old);
            let all = places.iter().zip(old).zip(new);
            count += all.filter(|((place, old), new)| self.replace_at(**place, **old, **new)).count();
        }
        count
    }

    /// Prefetches the secondary buckets of entries that are not in their primary ones.
    #[inline]
    fn prefetch_away(&self, places: &[HashPlace], values: &[u32]) {
        for (place, value) in places.iter().zip(values) {
            if self.bucket(place.primary).position(place.tag, *value).is_none() {
                self.prefetch_secondary(*place);
            }
        }
    }
}
