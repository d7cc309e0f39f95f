//! Bursts: each of the passes brings in what the next one reads, so that cache misses overlap.

use super::bucket::{CHOICE, CHOICES, InlineEntry, screen};
use super::{HashPlace, Inline};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use hairpin_core::table::{BURST, Key};

/// Room for the places of a burst.
type BurstPlaces = [MaybeUninit<HashPlace>; BURST];

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

/// A place where a key may be found: the bucket and the mark that its entry has there.
#[derive(Clone, Copy, Default)]
struct KeyTarget {
    bucket: u32,
    mark: u16,
}

impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// [`Inline::value`] of a burst: `out[i]` becomes what is found for `keys[i]`. Handles as many as the shorter of
    /// the two slices has.
    pub fn values(&self, keys: &[K], out: &mut [Option<V>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let count = keys.len().min(out.len());
            self.values_piece(&keys[..count], &mut out[..count]);
        }
    }

    /// [`Inline::values`] of up to [`BURST`] keys.
    #[inline]
    fn values_piece(&self, keys: &[K], out: &mut [Option<V>]) {
        if self.expects_misses.load(Ordering::Relaxed) {
            self.values_of_few(keys, out);
        } else {
            self.values_of_most(keys, out);
        }
    }

    /// For bursts with few expected hits: reads the screens first. A function that is compiled by
    /// itself.
    #[inline(never)]
    fn values_of_few(&self, keys: &[K], out: &mut [Option<V>]) {
        let mut places = [const { MaybeUninit::uninit() }; BURST];
        let mut targets = [const { MaybeUninit::<KeyTarget>::uninit() }; BURST];
        let places = self.places(keys, &mut places, |place| self.prefetch_screen(place.primary));
        let perhaps = self.screened(places, out);
        if 2 * perhaps.count_ones() as usize > keys.len() {
            self.expects_misses.store(false, Ordering::Relaxed);
        }
        let mut there = 0;
        for i in Bits(perhaps) {
            let head = &self.bucket(places[i].primary).head;
            match head.lane(places[i].tag()) {
                Some(lane) => {
                    targets[i].write(self.target(places[i], head.mark_of(lane, places[i].tag())));
                    there |= 1 << i;
                }
                None => out[i] = None,
            }
        }
        for i in Bits(there) {
            // SAFETY: it was written when the bit was set.
            out[i] = self.follow(unsafe { targets[i].assume_init() }, places[i], &keys[i]);
        }
    }

    /// For bursts with mostly hits. One entry in four has moved, which no processor can guess; so
    /// whether a key stands in its first bucket or in another one is told by arithmetic and not by a branch. Those that
    /// stand in their first one are done while others are still waited for.
    #[inline(never)]
    fn values_of_most(&self, keys: &[K], out: &mut [Option<V>]) {
        let mut places = [const { MaybeUninit::uninit() }; BURST];
        let mut targets = [const { MaybeUninit::<KeyTarget>::uninit() }; BURST];
        let places = self.places(keys, &mut places, |place| self.prefetch(place.primary));
        let (mut elsewhere, mut absent) = (0, 0);
        let asked = places.iter().zip(&mut targets).zip(&mut *out).zip(keys);
        for (i, (((place, target), found), key)) in asked.enumerate() {
            let bucket = self.bucket(place.primary);
            let Some(lane) = bucket.head.lane(place.tag()) else {
                *found = None;
                absent += 1;
                continue;
            };
            // SAFETY: the head has just told of it, and no tag is 0.
            let (is_here, value) = unsafe { bucket.at_lane(lane, key) };
            *found = Some(value);
            elsewhere |= u32::from(!is_here) << i;
            target.write(self.target(*place, bucket.head.mark_of(lane, place.tag())));
        }
        for i in Bits(elsewhere) {
            // SAFETY: it was written when the bit was set.
            out[i] = self.follow(unsafe { targets[i].assume_init() }, places[i], &keys[i]);
        }
        if 4 * absent > 3 * keys.len() {
            self.expects_misses.store(true, Ordering::Relaxed);
        }
    }

    /// The place of the entry with this mark, with its bucket on the way into the cache.
    #[inline(always)]
    fn target(&self, place: HashPlace, mark: u16) -> KeyTarget {
        let bucket = self.chosen(place, (mark & CHOICE) as u8);
        self.prefetch(bucket);
        KeyTarget { bucket, mark }
    }

    /// The value of a key that is to be found there.
    #[inline(always)]
    fn follow(&self, target: KeyTarget, place: HashPlace, key: &K) -> Option<V> {
        match self.bucket(target.bucket).marked(target.mark, key) {
            Some(value) => Some(value),
            None => self.start_over(place, key),
        }
    }

    /// Which keys may be there, as the screens tell; the others get their answer. First buckets are prefetched.
    #[inline(always)]
    fn screened(&self, places: &[HashPlace], out: &mut [Option<V>]) -> u32 {
        let mut perhaps = 0;
        for (i, (place, found)) in places.iter().zip(&mut *out).enumerate() {
            if screen(place.tag()) & !self.screens[place.primary as usize] != 0 {
                *found = None;
            } else {
                self.prefetch(place.primary);
                perhaps |= 1 << i;
            }
        }
        perhaps
    }

    /// Another entry has the same mark, or some are not listed.
    #[cold]
    #[inline(never)]
    fn start_over(&self, place: HashPlace, key: &K) -> Option<V> {
        let found = self.locate(place, |other, _| other == key)?;
        self.entry(found).map(|entry| entry.value)
    }

    #[inline]
    pub(super) fn prefetch(&self, at: u32) {
        let start = self.buckets.as_ptr().wrapping_add(at as usize).cast::<u8>();
        self.fetch.line(start);
        // Larger keys take two lines.
        if Self::bucket_bytes() > 64 {
            self.fetch.line(start.wrapping_add(64));
        }
    }

    /// For writers.
    #[inline]
    fn prefetch_both(&self, at: u32) {
        self.prefetch(at);
        self.prefetch_screen(at);
    }

    #[inline]
    fn prefetch_screen(&self, at: u32) {
        self.fetch_screens.line(self.screens.as_ptr().wrapping_add(at as usize));
    }

    /// The places of up to [`BURST`] keys; what they lead to is prefetched.
    #[inline(always)]
    fn places<'a>(&self, keys: &[K], places: &'a mut BurstPlaces, prefetch: impl Fn(HashPlace)) -> &'a [HashPlace] {
        let places = &mut places[..keys.len()];
        for (place, key) in places.iter_mut().zip(keys) {
            prefetch(*place.write(self.place_of(key)));
        }
        // SAFETY: there are as many as there are keys, and all have been written.
        unsafe { core::slice::from_raw_parts(places.as_ptr().cast(), places.len()) }
    }

    /// Adds entries in order until one finds no room; how many were added.
    pub fn put_burst(&mut self, keys: &[K], values: &[V]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(keys, &mut places, |place| self.prefetch_both(place.primary));
            for place in places {
                if self.bucket(place.primary).head.free().is_none() {
                    (1..CHOICES).for_each(|choice| self.prefetch(self.chosen(*place, choice)));
                    self.guests(place.primary).for_each(|(_, home)| self.prefetch_both(home));
                }
            }
            for ((&place, &key), &value) in places.iter().zip(keys).zip(values) {
                if self.insert_at(place, InlineEntry { key, value }).is_err() {
                    return count;
                }
                count += 1;
            }
        }
        count
    }

    /// Takes the entries of keys away; how many of them there were.
    pub fn take_burst(&mut self, keys: &[K]) -> usize {
        self.take_each(keys, |_, _| true)
    }

    /// Takes away the entries of keys for which `is` says yes (of a key's number and value); how many there were.
    fn take_each(&mut self, keys: &[K], is: impl Fn(usize, V) -> bool) -> usize {
        let mut count = 0;
        for (piece, keys) in keys.chunks(BURST).enumerate() {
            let mut places = [const { MaybeUninit::uninit() }; BURST];
            let places = self.places(keys, &mut places, |place| self.prefetch_both(place.primary));
            for place in places {
                let head = &self.bucket(place.primary).head;
                // The neighbour, too: an entry may come home from there.
                self.prefetch(place.primary ^ 1);
                if let Some(mark) = head.lead(place.tag()) {
                    self.prefetch(self.chosen(*place, (mark & CHOICE) as u8));
                }
            }
            for (i, (&place, key)) in places.iter().zip(keys).enumerate() {
                let found = self.locate(place, |other, value| other == key && is(piece * BURST + i, value));
                if let Some(found) = found {
                    self.take_at(place, found);
                    count += 1;
                }
            }
        }
        count
    }
}

impl<K: Key> Inline<K, u32> {
    /// [`Table::remove_burst`](hairpin_core::table::Table::remove_burst).
    pub(super) fn remove_pairs(&mut self, keys: &[K], values: &[u32]) -> usize {
        let count = keys.len().min(values.len());
        self.take_each(&keys[..count], |i, value| values[i] == value)
    }
}
