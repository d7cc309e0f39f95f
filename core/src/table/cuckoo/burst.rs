//! Bursts: each of the passes brings in what the next one reads, so that cache misses overlap.

use super::{CuckooPlusPlus, Found, Place};
use crate::table::{BURST, Entries, Key};

/// An entry of which nobody has asked yet whether it is the right one.
#[derive(Clone, Copy, Default)]
struct Candidate {
    value: u32,
    bucket: u32,
    slot: u8,
}

/// The numbers of the bits that are set, ascending: all below [`BURST`].
struct Bits(u32);

const _: () = assert!(BURST == u32::BITS as usize);

impl Iterator for Bits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(bit)
    }
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
            for (found, hit) in out.iter().zip(hits).take(keys.len()) {
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
            let count = keys.len().min(out.len());
            let (keys, out) = (&keys[..count], &mut out[..count]);
            let places = self.places(keys);
            out.fill(None);
            let mut candidates = [Candidate::default(); BURST];
            let there = self.candidates(&places[..count], &mut candidates, |value| entries.prefetch(value));
            for i in Bits(there) {
                let Candidate { value, bucket, slot } = candidates[i];
                if entries.is(value, &keys[i]) {
                    out[i] = Some(value);
                    hit(i, Found { bucket, slot: usize::from(slot) });
                } else if let Some(found) = self.start_over(places[i], &keys[i], entries) {
                    out[i] = Some(self.bucket(found.bucket).value(found.slot));
                    hit(i, found);
                }
            }
        }
    }

    /// Another entry has the same tag: one lookup in 10,000.
    #[cold]
    #[inline(never)]
    fn start_over<K: Key, E: Entries<K>>(&self, place: Place, key: &K, entries: &E) -> Option<Found> {
        self.locate(place, |value| entries.is(value, key))
    }

    /// For each place the first entry that has its tag, and a bit that says whether there is one; if there is none, it
    /// is certain that there is no entry.
    #[inline]
    fn candidates(&self, places: &[Place], candidates: &mut [Candidate; BURST], prefetch: impl Fn(u32)) -> u32 {
        let (mut there, mut perhaps_moved) = (0u32, 0u32);
        for (i, (place, candidate)) in places.iter().zip(candidates.iter_mut()).enumerate() {
            let bucket = self.bucket(place.primary);
            if let Some(slot) = bucket.at_home(place.tag).first() {
                let value = bucket.value(slot);
                prefetch(value);
                *candidate = Candidate { value, bucket: place.primary, slot: slot as u8 };
                there |= 1 << i;
            } else if bucket.filter.may_have_moved(place.print()) {
                self.prefetch(self.secondary(*place));
                perhaps_moved |= 1 << i;
            }
        }
        for i in Bits(perhaps_moved) {
            let at = self.secondary(places[i]);
            let bucket = self.bucket(at);
            if let Some(slot) = bucket.moved_here(places[i].tag).first() {
                let value = bucket.value(slot);
                prefetch(value);
                candidates[i] = Candidate { value, bucket: at, slot: slot as u8 };
                there |= 1 << i;
            }
        }
        there
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
                let bucket = self.bucket(place.primary);
                if bucket.free().0 == 0 {
                    self.prefetch(self.secondary(*place));
                    bucket.guests().for_each(|slot| self.prefetch(self.other(place.primary, bucket.entry(slot).tag)));
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
