//! Bursts: each of the passes brings in what the next one reads, so that cache misses overlap.

use super::bucket::{CHOICE, CHOICES, Entry, screen};
use super::{Inline, Place};
use crate::table::{BURST, Key, prefetch_line};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

/// Room for the places of a burst.
type Places = [MaybeUninit<Place>; BURST];

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

/// Where a key may be found: the bucket and the mark that its entry has there.
#[derive(Clone, Copy, Default)]
struct Target {
    bucket: u32,
    mark: u16,
}

impl<K: Key, V: Copy> Inline<K, V> {
    /// [`Inline::value`] of a burst: `out[i]` becomes what is found for `keys[i]`. Handles as many as the shorter of
    /// the two slices has.
    pub fn values(&self, keys: &[K], out: &mut [Option<V>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            let count = keys.len().min(out.len());
            self.values_piece(&keys[..count], &mut out[..count]);
        }
    }

    /// [`Inline::values`] of up to [`BURST`] keys, in a function that is compiled by itself.
    #[inline(never)]
    fn values_piece(&self, keys: &[K], out: &mut [Option<V>]) {
        let mut places = [const { MaybeUninit::uninit() }; BURST];
        let mut targets = [const { MaybeUninit::<Target>::uninit() }; BURST];
        let count = keys.len() as u32;
        let (places, there) = if self.expects_misses.load(Ordering::Relaxed) {
            let places = self.places(keys, &mut places, |place| self.prefetch_screen(place.primary));
            let perhaps = self.screened(places, out);
            if 2 * perhaps.count_ones() > count {
                self.expects_misses.store(false, Ordering::Relaxed);
            }
            (places, self.leads(places, Bits(perhaps), &mut targets, out))
        } else {
            let places = self.places(keys, &mut places, |place| self.prefetch(place.primary));
            let there = self.leads(places, 0..places.len(), &mut targets, out);
            if 4 * there.count_ones() < count {
                self.expects_misses.store(true, Ordering::Relaxed);
            }
            (places, there)
        };
        for i in Bits(there) {
            // SAFETY: it was written when the bit was set.
            let target = unsafe { targets[i].assume_init() };
            out[i] = match self.bucket(target.bucket).marked(target.mark) {
                Some(entry) if entry.key == keys[i] => Some(entry.value),
                _ => self.start_over(places[i], &keys[i]),
            };
        }
    }

    /// Which keys may be there, as the screens tell; the others get their answer. First buckets are prefetched.
    #[inline(always)]
    fn screened(&self, places: &[Place], out: &mut [Option<V>]) -> u32 {
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

    /// Where to look for the keys of these numbers, as their heads tell: `targets`, of those whose bits are set. The
    /// others get their answer. One entry in four has moved, which no processor can guess; so whether a key stands in
    /// its first bucket or in another one is told by arithmetic and not by a branch.
    #[inline(always)]
    fn leads(
        &self,
        places: &[Place],
        which: impl Iterator<Item = usize>,
        targets: &mut [MaybeUninit<Target>; BURST],
        out: &mut [Option<V>],
    ) -> u32 {
        let mut there = 0;
        for i in which {
            let place = places[i];
            let Some(mark) = self.bucket(place.primary).head.lead(place.tag()) else {
                out[i] = None;
                continue;
            };
            let bucket = self.chosen(place, (mark & CHOICE) as u8);
            self.prefetch(bucket);
            targets[i].write(Target { bucket, mark });
            there |= 1 << i;
        }
        there
    }

    /// Another entry has the same mark, or some are not listed.
    #[cold]
    #[inline(never)]
    fn start_over(&self, place: Place, key: &K) -> Option<V> {
        let found = self.locate(place, |entry| entry.key == *key)?;
        self.entry(found).map(|entry| entry.value)
    }

    #[inline]
    pub(super) fn prefetch(&self, at: u32) {
        let start = self.buckets.as_ptr().wrapping_add(at as usize).cast::<u8>();
        prefetch_line(start);
        // Larger keys take two lines.
        if Self::bucket_bytes() > 64 {
            prefetch_line(start.wrapping_add(64));
        }
    }

    /// For who is going to change something.
    #[inline]
    fn prefetch_both(&self, at: u32) {
        self.prefetch(at);
        self.prefetch_screen(at);
    }

    #[inline]
    fn prefetch_screen(&self, at: u32) {
        prefetch_line(self.screens.as_ptr().wrapping_add(at as usize));
    }

    /// The places of up to [`BURST`] keys; what they lead to is prefetched.
    #[inline(always)]
    fn places<'a>(&self, keys: &[K], places: &'a mut Places, prefetch: impl Fn(Place)) -> &'a [Place] {
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
                if self.insert_at(place, Entry { key, value }).is_err() {
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
                let found = self.locate(place, |entry| entry.key == *key && is(piece * BURST + i, entry.value));
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
    /// [`Table::remove_burst`](crate::table::Table::remove_burst).
    pub(super) fn remove_pairs(&mut self, keys: &[K], values: &[u32]) -> usize {
        let count = keys.len().min(values.len());
        self.take_each(&keys[..count], |i, value| values[i] == value)
    }
}
