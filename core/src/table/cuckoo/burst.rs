//! Bursts: each of the passes brings in what the next one reads, so that cache misses overlap.

use super::{CuckooPlusPlus, Found, Place};
use crate::table::{BURST, Entries, Key};

/// What a lookup knows before it has asked whether it is right.
#[derive(Clone, Copy, Default)]
struct Candidate {
    value: u32,
    bucket: u32,
    slot: u8,
    is_there: bool,
}

impl CuckooPlusPlus {
    /// [`Lookup::find_burst`](crate::table::Lookup::find_burst) that stamps what it finds.
    pub fn find_burst_stamped<K, E>(&mut self, keys: &[K], entries: &E, stamp: u8, out: &mut [Option<u32>])
    where
        K: Key,
        E: Entries<K>,
    {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let mut hits = [Found { bucket: 0, slot: 0 }; BURST];
            self.look_up(keys, entries, out, |i, found| hits[i] = found);
            for (found, hit) in out.iter().zip(hits) {
                if found.is_some() {
                    self.bucket_mut(hit.bucket).set_stamp(hit.slot, stamp);
                }
            }
        }
    }

    /// Finds; of every hit it says where in its piece of [`BURST`] keys it stands, and where in the table.
    #[inline]
    pub(super) fn look_up<K, E, F>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>], mut hit: F)
    where
        K: Key,
        E: Entries<K>,
        F: FnMut(usize, Found),
    {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let places = self.places(keys);
            let candidates = self.candidates(&places[..keys.len()], |value| entries.prefetch(value));
            for (i, (key, out)) in keys.iter().zip(out).enumerate() {
                let Candidate { value, bucket, slot, is_there } = candidates[i];
                *out = None;
                if !is_there {
                    continue;
                }
                if entries.is(value, key) {
                    *out = Some(value);
                    hit(i, Found { bucket, slot: usize::from(slot) });
                } else if let Some(found) = self.locate(places[i], |value| entries.is(value, key)) {
                    // Another entry has the same tag; this is rare, and starts over.
                    *out = Some(self.bucket(found.bucket).value(found.slot));
                    hit(i, found);
                }
            }
        }
    }

    /// For each place the first entry that has its tag; if there is none, there is no entry.
    #[inline]
    fn candidates(&self, places: &[Place], prefetch: impl Fn(u32)) -> [Candidate; BURST] {
        let mut candidates = [Candidate::default(); BURST];
        let mut perhaps_moved = [0u8; BURST];
        let mut count = 0;
        for (i, place) in places.iter().enumerate() {
            let bucket = self.bucket(place.primary);
            if let Some(slot) = bucket.at_home(place.tag).first() {
                let value = bucket.value(slot);
                prefetch(value);
                candidates[i] = Candidate { value, bucket: place.primary, slot: slot as u8, is_there: true };
            } else if bucket.filter.may_have_moved(place.print()) {
                self.prefetch(self.secondary(*place));
                perhaps_moved[count] = i as u8;
                count += 1;
            }
        }
        for &i in &perhaps_moved[..count] {
            let place = places[usize::from(i)];
            let at = self.secondary(place);
            let bucket = self.bucket(at);
            if let Some(slot) = bucket.moved_here(place.tag).first() {
                let value = bucket.value(slot);
                prefetch(value);
                candidates[usize::from(i)] = Candidate { value, bucket: at, slot: slot as u8, is_there: true };
            }
        }
        candidates
    }

    /// The places of up to [`BURST`] keys, their first buckets prefetched.
    #[inline]
    fn places<K: Key>(&self, keys: &[K]) -> [Place; BURST] {
        let mut places = [Place::default(); BURST];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = self.place_of(key);
            self.prefetch(place.primary);
        }
        places
    }

    /// [`Table::insert_burst`](crate::table::Table::insert_burst).
    pub(super) fn add<K: Key>(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = self.places(keys);
            for place in &places[..keys.len()] {
                if self.bucket(place.primary).free().0 == 0 {
                    self.prefetch(self.secondary(*place));
                }
            }
            for (&place, &value) in places.iter().zip(values).take(keys.len()) {
                if self.insert_at(place, value, 0).is_err() {
                    return count;
                }
                count += 1;
            }
        }
        count
    }

    /// [`Table::remove_burst`](crate::table::Table::remove_burst).
    pub(super) fn take_away<K: Key>(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let places = self.places(keys);
            for (place, &value) in places.iter().zip(values).take(keys.len()) {
                let bucket = self.bucket(place.primary);
                let is_home = bucket.confirm(bucket.at_home(place.tag), &mut |other| other == value).is_some();
                if !is_home && bucket.filter.may_have_moved(place.print()) {
                    self.prefetch(self.secondary(*place));
                }
            }
            let pairs = places.iter().zip(values).take(keys.len());
            count += pairs.filter(|(place, value)| self.remove_at(**place, **value)).count();
        }
        count
    }
}
