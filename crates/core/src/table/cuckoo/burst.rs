//! Bursts: each of the passes brings in what the next one reads, so that cache misses overlap.

use super::{CuckooPlusPlus, HashPlace};
use crate::table::fetch::Fetch;
use crate::table::{BURST, Entries, Key};
use core::mem::MaybeUninit;

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
            let mut hits = [(HashPlace::default(), 0); BURST];
            self.look_up(keys, entries, out, |i, place, value| hits[i] = (place, value));
            for (found, (place, value)) in out.iter().zip(hits).take(keys.len()) {
                if found.is_some()
                    && let Some(at) = self.position(place, value)
                {
                    self.bucket_mut(at.bucket).set_stamp(at.slot, stamp);
                }
            }
        }
    }

    /// Finds; of every hit it says where in its piece of [`BURST`] keys it stands, its place and its value.
    #[inline]
    pub(super) fn look_up<K, E, F>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>], mut hit: F)
    where
        K: Key,
        E: Entries<K>,
        F: FnMut(usize, HashPlace, u32),
    {
        let count = keys.len().min(out.len());
        let (mut keys, mut out) = (&keys[..count], &mut out[..count]);
        while keys.len() > BURST {
            let (now, later) = keys.split_at(BURST);
            let (found, rest) = out.split_at_mut(BURST);
            self.look_up_piece(now, entries, found, &mut hit);
            (keys, out) = (later, rest);
        }
        self.look_up_piece(keys, entries, out, &mut hit);
    }

    /// [`CuckooPlusPlus::look_up`] of up to [`BURST`] keys. What it does between the last line it waits for and the
    /// first it asks for in the next burst is time in which memory has nothing to do, and while it waits the processor
    /// speculates a few hundred instructions ahead only; so this has as few as can be, in a function that is compiled by
    /// itself.
    #[inline(never)]
    fn look_up_piece<K, E, F>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>], hit: &mut F)
    where
        K: Key,
        E: Entries<K>,
        F: FnMut(usize, HashPlace, u32),
    {
        match self.fetch {
            Fetch::Near => self.passes(Fetch::Near, keys, entries, out, hit),
            Fetch::Far => self.passes(Fetch::Far, keys, entries, out, hit),
        }
    }

    /// [`CuckooPlusPlus::look_up_piece`], with a constant for [`CuckooPlusPlus::fetch`].
    #[inline(always)]
    fn passes<K, E, F>(&self, fetch: Fetch, keys: &[K], entries: &E, out: &mut [Option<u32>], hit: &mut F)
    where
        K: Key,
        E: Entries<K>,
        F: FnMut(usize, HashPlace, u32),
    {
        let mut places = [const { MaybeUninit::uninit() }; BURST];
        let places = self.places(fetch, keys, &mut places);
        // As many answers as keys: a loop over both then counts one of them.
        let out = &mut out[..keys.len()];
        if !self.guess_piece(fetch, places, entries, out) {
            return;
        }
        for (i, (key, found)) in keys.iter().zip(out).enumerate() {
            let Some(value) = *found else { continue };
            if !entries.is(value, key) {
                *found = self.start_over(places[i], key, entries);
            }
            if let Some(value) = *found {
                hit(i, places[i], value);
            }
        }
    }

    /// [`Lookup::guess_burst`](crate::table::Lookup::guess_burst).
    pub(super) fn guess<K: Key, E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        match self.fetch {
            Fetch::Near => self.guess_by(Fetch::Near, keys, entries, out),
            Fetch::Far => self.guess_by(Fetch::Far, keys, entries, out),
        }
    }

    /// [`CuckooPlusPlus::guess`], with a constant for [`CuckooPlusPlus::fetch`]. The buckets of a second piece are on their
    /// way before those of the first are read: a whole burst of a worker waits for memory once, not twice.
    #[inline(always)]
    fn guess_by<K: Key, E: Entries<K>>(&self, fetch: Fetch, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(2 * BURST).zip(out.chunks_mut(2 * BURST)) {
            let count = keys.len().min(out.len());
            let mut places = [const { MaybeUninit::uninit() }; 2 * BURST];
            let places = self.places(fetch, &keys[..count], &mut places);
            for (places, out) in places.chunks(BURST).zip(out[..count].chunks_mut(BURST)) {
                self.guess_piece(fetch, places, entries, out);
            }
        }
    }

    /// The first entries that have the tags of these places, on their way into the cache; whether there are any. Of a key
    /// that is there it is another one's one time in 5,000.
    #[inline(always)]
    fn guess_piece<K, E: Entries<K>>(
        &self,
        fetch: Fetch,
        places: &[HashPlace],
        entries: &E,
        out: &mut [Option<u32>],
    ) -> bool {
        let (mut is_any_there, mut perhaps_moved) = (false, 0u32);
        for (i, (place, found)) in places.iter().zip(&mut *out).enumerate() {
            let bucket = self.bucket(place.primary);
            if let Some(slot) = bucket.at_home(place.tag).first() {
                let value = bucket.value(slot);
                entries.prefetch(value);
                *found = Some(value);
                is_any_there = true;
            } else {
                *found = None;
                if bucket.filter.may_have_moved(place.print()) {
                    self.prefetch_by(fetch, self.secondary(*place));
                    perhaps_moved |= 1 << i;
                }
            }
        }
        for i in Bits(perhaps_moved) {
            let bucket = self.bucket(self.secondary(places[i]));
            if let Some(slot) = bucket.moved_here(places[i].tag).first() {
                let value = bucket.value(slot);
                entries.prefetch(value);
                out[i] = Some(value);
                is_any_there = true;
            }
        }
        is_any_there
    }

    /// Another entry has the same tag.
    #[cold]
    #[inline(never)]
    fn start_over<K: Key, E: Entries<K>>(&self, place: HashPlace, key: &K, entries: &E) -> Option<u32> {
        let found = self.locate(place, |value| entries.is(value, key))?;
        Some(self.bucket(found.bucket).value(found.slot))
    }

    /// The places of keys that `places` has room for, their first buckets prefetched. (An array returned would be copied,
    /// and the copy would wait until everything before it has been done.)
    #[inline(always)]
    fn places<'a, K: Key>(
        &self,
        fetch: Fetch,
        keys: &[K],
        places: &'a mut [MaybeUninit<HashPlace>],
    ) -> &'a [HashPlace] {
        let places = &mut places[..keys.len()];
        for (place, key) in places.iter_mut().zip(keys) {
            self.prefetch_by(fetch, place.write(self.place_of(key)).primary);
        }
        // SAFETY: there are as many as there are keys, and all have been written.
        unsafe { core::slice::from_raw_parts(places.as_ptr().cast(), places.len()) }
    }

    /// [`Table::insert_burst`](crate::table::Table::insert_burst).
    pub(super) fn add<K: Key>(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(self.fetch, keys, &mut places);
            for place in places {
                let bucket = self.bucket(place.primary);
                if bucket.free().is_empty() {
                    self.prefetch(self.secondary(*place));
                    bucket.guests().for_each(|slot| self.prefetch(self.other(place.primary, bucket.entry(slot).tag)));
                }
            }
            for (&place, &value) in places.iter().zip(values) {
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
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(self.fetch, keys, &mut places);
            self.prefetch_moved(places, values);
            let pairs = places.iter().zip(values);
            count += pairs.filter(|(place, value)| self.remove_at(**place, **value)).count();
        }
        count
    }

    /// [`Table::replace_burst`](crate::table::Table::replace_burst).
    pub(super) fn exchange<K: Key>(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        let mut count = 0;
        for ((keys, old), new) in keys.chunks(BURST).zip(old.chunks(BURST)).zip(new.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(self.fetch, keys, &mut places);
            self.prefetch_moved(places, old);
            let all = places.iter().zip(old).zip(new);
            count += all.filter(|((place, old), new)| self.replace_at(**place, **old, **new)).count();
        }
        count
    }

    /// Prefetches the second buckets of entries that are not in their first ones.
    #[inline]
    fn prefetch_moved(&self, places: &[HashPlace], values: &[u32]) {
        for (place, &value) in places.iter().zip(values) {
            let bucket = self.bucket(place.primary);
            let is_home = bucket.confirm(bucket.at_home(place.tag), &mut |other| other == value).is_some();
            if !is_home && bucket.filter.may_have_moved(place.print()) {
                self.prefetch(self.secondary(*place));
            }
        }
    }
}
