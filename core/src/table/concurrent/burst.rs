//! Bursts: passes over up to [`BURST`] keys, so that cache misses overlap.

use super::bucket::AWAY;
use super::{Concurrent, Found, Place};
use crate::table::{BURST, Entries, Key, prefetch_line};

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

/// What is known of the keys of a burst.
#[derive(Clone, Copy, Default)]
struct Sets {
    /// There is an entry with the right tag.
    candidate: Set,
    /// There is none in the primary bucket, and perhaps one in the secondary one.
    away: Set,
    /// There is none in either, but one may just be on its way.
    unclear: Set,
}

impl Concurrent {
    /// The places of up to [`BURST`] keys, with their primary buckets on their way into the cache.
    #[inline]
    fn places<K: Key>(&self, keys: &[K]) -> [Place; BURST] {
        let mut places = [Place::default(); BURST];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.place_of(key);
            prefetch_line(self.bucket(place.primary));
        }
        places
    }

    #[inline]
    fn prefetch_secondary(&self, place: Place) {
        prefetch_line(self.bucket(self.other(place.primary, place.tag)));
    }

    /// Looks for all keys, and calls `hit` for each that was found.
    #[inline]
    pub(super) fn look_burst<K: Key, E: Entries<K>>(
        &self,
        keys: &[K],
        entries: &E,
        out: &mut [Option<u32>],
        hit: impl Fn(Place, Found),
    ) {
        let count = keys.len().min(out.len());
        for (keys, out) in keys[..count].chunks(BURST).zip(out[..count].chunks_mut(BURST)) {
            let places = &self.places(keys)[..keys.len()];
            let mut candidates = [Found::default(); BURST];
            let mut sets = self.primary_candidates(places, entries, &mut candidates);
            self.secondary_candidates(places, entries, &mut candidates, &mut sets);
            out.fill(None);
            for i in sets.candidate.members() {
                let found = if entries.is(candidates[i].value, &keys[i]) {
                    Some(candidates[i])
                } else {
                    self.look(places[i], |value| entries.is(value, &keys[i]))
                };
                out[i] = found.map(|found| found.value);
                found.into_iter().for_each(|found| hit(places[i], found));
            }
            for i in sets.unclear.members() {
                let found = self.look(places[i], |value| entries.is(value, &keys[i]));
                out[i] = found.map(|found| found.value);
                found.into_iter().for_each(|found| hit(places[i], found));
            }
        }
    }

    /// Compares tags in the primary buckets. Each key then has a candidate there, or may stand in its secondary bucket,
    /// which is on its way into the cache, or is surely absent.
    #[inline]
    fn primary_candidates<K, E: Entries<K>>(
        &self,
        places: &[Place],
        entries: &E,
        candidates: &mut [Found; BURST],
    ) -> Sets {
        let mut sets = Sets::default();
        for (i, (place, candidate)) in places.iter().zip(candidates).enumerate() {
            let primary = self.bucket(place.primary);
            let before = primary.version();
            if let Some(slot) = primary.tags().with(place.tag).next() {
                let value = primary.value(slot);
                entries.prefetch(value);
                *candidate = Found { bucket: place.primary, slot, value };
                sets.candidate.add(i);
            } else if primary.may_be_away(place.tag) || !before.is_same(primary.version()) {
                self.prefetch_secondary(*place);
                sets.away.add(i);
            }
        }
        sets
    }

    /// Compares tags in the secondary buckets, where need be.
    #[inline]
    fn secondary_candidates<K, E: Entries<K>>(
        &self,
        places: &[Place],
        entries: &E,
        candidates: &mut [Found; BURST],
        sets: &mut Sets,
    ) {
        for i in sets.away.members() {
            let bucket = self.other(places[i].primary, places[i].tag);
            let secondary = self.bucket(bucket);
            if let Some(slot) = secondary.tags().with(places[i].tag | AWAY).next() {
                let value = secondary.value(slot);
                entries.prefetch(value);
                candidates[i] = Found { bucket, slot, value };
                sets.candidate.add(i);
            } else {
                sets.unclear.add(i);
            }
        }
    }

    /// Has the buckets brought into the cache that an insertion may turn to if the primary one is full.
    #[inline]
    fn prefetch_room(&self, place: Place) {
        let tags = self.bucket(place.primary).tags();
        if tags.with(0).next().is_none() {
            self.prefetch_secondary(place);
            tags.guests().for_each(|slot| prefetch_line(self.bucket(self.other(place.primary, tags.at(slot)))));
        }
    }

    /// [`crate::table::Shared::insert_burst`].
    pub(super) fn insert_many<K: Key>(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = &self.places(keys)[..keys.len()];
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

    /// [`crate::table::Shared::remove_burst`].
    pub(super) fn remove_many<K: Key>(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = &self.places(keys)[..keys.len()];
            for (place, value) in places.iter().zip(values) {
                if self.bucket(place.primary).position(place.tag, *value).is_none() {
                    self.prefetch_secondary(*place);
                }
            }
            let pairs = places.iter().zip(values);
            count += pairs.filter(|(place, value)| self.remove_at(**place, **value)).count();
        }
        self.count.add(-(count as isize));
        count
    }
}
