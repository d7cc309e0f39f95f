//! Bursts: passes over up to [`BURST`] keys, so that cache misses overlap.

use super::bucket::{AWAY, Slots};
use super::{Concurrent, Found, Place};
use crate::table::{BURST, Entries, Key, prefetch_line};

/// A set of keys of a burst.
#[derive(Clone, Copy, Default)]
struct Set(u32);

const _: () = assert!(BURST <= u32::BITS as usize);

impl Set {
    #[inline]
    fn add(&mut self, i: usize, is_member: bool) {
        self.0 |= u32::from(is_member) << i;
    }

    #[inline]
    fn has(self, i: usize) -> bool {
        self.0 >> i & 1 != 0
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
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let places = self.places(keys);
            let mut first = [(0u32, 0u8); BURST];
            let (here, away) = self.first_candidates(&places[..keys.len()], entries, &mut first);
            for i in away.members() {
                self.prefetch_candidate(places[i], entries);
            }
            for (i, (key, out)) in keys.iter().zip(out).enumerate() {
                let (value, slot) = first[i];
                let found = if here.has(i) && entries.is(value, key) {
                    Some(Found { bucket: places[i].primary, slot: usize::from(slot), value })
                } else if here.has(i) || away.has(i) {
                    self.look(places[i], |value| entries.is(value, key))
                } else {
                    None
                };
                if let Some(found) = found {
                    hit(places[i], found);
                }
                *out = found.map(|found| found.value);
            }
        }
    }

    /// Compares tags in the primary buckets. Of the keys, the first set has a candidate there, the second one may stand
    /// in the secondary bucket (not seen yet), and those in neither are surely absent.
    #[inline]
    fn first_candidates<K, E: Entries<K>>(
        &self,
        places: &[Place],
        entries: &E,
        first: &mut [(u32, u8); BURST],
    ) -> (Set, Set) {
        let (mut here, mut away) = (Set::default(), Set::default());
        for (i, (place, first)) in places.iter().zip(first).enumerate() {
            let primary = self.bucket(place.primary);
            let before = primary.version();
            let mut slots: Slots = primary.tags().with(place.tag);
            if let Some(slot) = slots.next() {
                let value = primary.value(slot);
                entries.prefetch(value);
                *first = (value, slot as u8);
                here.add(i, true);
            } else if primary.may_be_away(place.tag) || !before.is_same(primary.version()) {
                self.prefetch_secondary(*place);
                away.add(i, true);
            }
        }
        (here, away)
    }

    /// Has what the first candidate in the secondary bucket leads to brought into the cache.
    #[inline]
    fn prefetch_candidate<K, E: Entries<K>>(&self, place: Place, entries: &E) {
        let secondary = self.bucket(self.other(place.primary, place.tag));
        if let Some(slot) = secondary.tags().with(place.tag | AWAY).next() {
            entries.prefetch(secondary.value(slot));
        }
    }

    /// [`crate::table::Shared::insert_burst`].
    pub(super) fn insert_many<K: Key>(&self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = &self.places(keys)[..keys.len()];
            for place in places {
                if self.bucket(place.primary).free().is_none() {
                    self.prefetch_secondary(*place);
                }
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
