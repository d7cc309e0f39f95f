//! Bytes that Hairpin keeps: heads that are not complete yet, and what it has put into a stream until it is acknowledged.
//! Three sizes, each with a bounded number; all memory is reserved at start and touched as it is first used.

use crate::l7::proxy_protocol;
use crate::stored::{Vacant, stored};
use crate::table::region::Array;
#[cfg(test)]
use crate::table::region::Region;
use alloc::vec;
use alloc::vec::Vec;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes of a buffer of each size: nearly any head; the longest head; a super-packet with a head in front.
pub const SIZES: [usize; 3] = [2048, 20_480, 98_304];
/// Client connections of a worker for which there is one buffer of each size.
pub const CONNECTIONS_EACH: [u32; 3] = [1, 16, 256];

/// Bytes of a client's that are kept before they go on, at most: behind the longest head that may come in place of the one
/// that was read, all of them still fit into a buffer.
pub const INPUT_MAX: usize = SIZES[2] - crate::l7::splice::HEAD_ROOM - proxy_protocol::HEADER_MAX;
/// What a client is shown room for is kept.
const _: () = assert!(INPUT_MAX >= crate::l7::splice::tcp::send::RECEIVE_WINDOW as usize);

/// How many buffers of each size there are for so many connections.
pub(in crate::l7::splice) const fn counts(connections: u32) -> [u32; 3] {
    const fn at_least(count: u32, least: u32) -> u32 {
        if count < least { least } else { count }
    }
    let [a, b, c] = CONNECTIONS_EACH;
    [at_least(connections / a, 64), at_least(connections / b, 32), at_least(connections / c, 16)]
}

/// A buffer that is in use. Not Clone: its owner gives it back with [`Buffers::release`].
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Buffer {
    /// Its place in [`SIZES`].
    size: u8,
    unused: [u8; 3],
    number: u32,
    /// Bytes in it.
    length: u32,
}

stored!(Buffer: size, unused, number, length);

impl Vacant for Buffer {
    const VACANT: Buffer = Buffer { size: u8::MAX, unused: [0; 3], number: 0, length: 0 };
    fn is_vacant(&self) -> bool {
        self.size == u8::MAX
    }
}

impl Buffer {
    fn empty(size: usize, number: u32) -> Buffer {
        Buffer { size: size as u8, unused: [0; 3], number, length: 0 }
    }

    /// Bytes in it.
    pub(in crate::l7::splice) fn len(&self) -> usize {
        self.length as usize
    }
}

/// All buffers of a worker.
pub(in crate::l7::splice) struct Buffers {
    classes: [SizeClass; 3],
    /// How often one was wanted and there was none.
    pub(in crate::l7::splice) exhausted: u64,
}

/// The buffers of one size.
struct SizeClass {
    memory: Array<u8>,
    size: usize,
    free: Vec<u32>,
    /// Buffers from this one on were never used.
    fresh: u32,
    count: u32,
}

impl SizeClass {
    fn new(size: usize, memory: Array<u8>) -> SizeClass {
        let count = memory.len() / size;
        SizeClass { memory, size, free: Vec::with_capacity(count), fresh: 0, count: count as u32 }
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let number = self.fresh;
            self.fresh = (number + 1).min(self.count);
            (number < self.count).then_some(number)
        })
    }

    fn has_free(&self) -> bool {
        !self.free.is_empty() || self.fresh < self.count
    }

    fn bytes(&self, number: u32) -> &[u8] {
        let start = number as usize * self.size;
        &self.memory[start..start + self.size]
    }

    fn bytes_mut(&mut self, number: u32) -> &mut [u8] {
        let start = number as usize * self.size;
        &mut self.memory[start..start + self.size]
    }
}

impl Buffers {
    /// As many buffers of each size as its memory has room for, all free.
    pub(in crate::l7::splice) fn new(memory: [Array<u8>; 3]) -> Buffers {
        let [a, b, c] = memory;
        Buffers {
            classes: [SizeClass::new(SIZES[0], a), SizeClass::new(SIZES[1], b), SizeClass::new(SIZES[2], c)],
            exhausted: 0,
        }
    }

    /// Buffers of each size in these numbers, in memory of their own.
    #[cfg(test)]
    pub(in crate::l7::splice) fn with(counts: [u32; 3]) -> Buffers {
        Buffers::new([0, 1, 2].map(|size| {
            let bytes = counts[size] as usize * SIZES[size];
            Region::own(bytes).take(bytes)
        }))
    }

    /// An empty buffer with room for `room` bytes.
    pub(in crate::l7::splice) fn take(&mut self, room: usize) -> Option<Buffer> {
        let first = SIZES.iter().position(|&size| size >= room);
        let taken = first.and_then(|first| {
            (first..SIZES.len()).find_map(|size| Some(Buffer::empty(size, self.classes[size].take()?)))
        });
        self.exhausted += u64::from(taken.is_none());
        taken
    }

    /// An empty buffer with room for `room` bytes, or for as many as there is a buffer for.
    pub(in crate::l7::splice) fn take_most(&mut self, room: usize) -> Option<Buffer> {
        self.take_between(0, room)
    }

    /// An empty buffer with room for `room` bytes, or else the largest free one whose size has number `least` or above.
    fn take_between(&mut self, least: usize, room: usize) -> Option<Buffer> {
        self.take(room.min(SIZES[2])).or_else(|| {
            let smaller = (least..SIZES.len()).rev().filter(|&size| SIZES[size] < room);
            smaller.into_iter().find_map(|size| Some(Buffer::empty(size, self.classes[size].take()?)))
        })
    }

    /// Gives a buffer back.
    pub(in crate::l7::splice) fn release(&mut self, buffer: Buffer) {
        self.classes[usize::from(buffer.size)].free.push(buffer.number);
    }

    /// Those that were claimed are in use; nothing was in use before.
    pub(in crate::l7::splice) fn adopt(&mut self, claims: &Claims) {
        for (class, claimed) in self.classes.iter_mut().zip(&claims.0) {
            let used = claimed.iter().rposition(|&claimed| claimed).map_or(0, |last| last + 1);
            class.fresh = used as u32;
            // The lowest is used again first.
            class.free.extend((0..used as u32).rev().filter(|&number| !claimed[number as usize]));
        }
    }

    /// Bytes there is room for in it.
    pub(in crate::l7::splice) fn size(&self, buffer: &Buffer) -> usize {
        self.classes[usize::from(buffer.size)].size
    }

    /// What is in it.
    pub(in crate::l7::splice) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        &self.classes[usize::from(buffer.size)].bytes(buffer.number)[..buffer.len()]
    }

    /// What is in it, to be changed.
    pub(in crate::l7::splice) fn bytes_mut(&mut self, buffer: &Buffer) -> &mut [u8] {
        let length = buffer.len();
        &mut self.room(buffer)[..length]
    }

    /// Whether [`Buffers::append`] would add all of so many bytes to a buffer.
    pub(in crate::l7::splice) fn has_room(&self, buffer: &Buffer, bytes: usize) -> bool {
        let (size, wanted) = (usize::from(buffer.size), buffer.len() + bytes);
        let is_free = |size: usize| SIZES[size] >= wanted && self.classes[size].has_free();
        wanted <= SIZES[size] || (size + 1..SIZES.len()).any(is_free)
    }

    /// All its room, to write to.
    fn room(&mut self, buffer: &Buffer) -> &mut [u8] {
        self.classes[usize::from(buffer.size)].bytes_mut(buffer.number)
    }

    /// Adds as many of `bytes` as there is room for, in a bigger buffer if there is one; returns how many.
    pub(in crate::l7::splice) fn append(&mut self, buffer: &mut Buffer, bytes: &[u8]) -> usize {
        self.grow(buffer, buffer.len() + bytes.len());
        let length = buffer.len();
        let room = &mut self.room(buffer)[length..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        buffer.length += taken as u32;
        taken
    }

    /// Moves what is in a buffer to a bigger one if `wanted` bytes do not fit, and there is one; returns how many bytes the
    /// buffer has room for in all.
    pub(in crate::l7::splice) fn grow(&mut self, buffer: &mut Buffer, wanted: usize) -> usize {
        let size = usize::from(buffer.size);
        // The biggest one has none beyond it.
        if wanted > SIZES[size]
            && size + 1 < SIZES.len()
            && let Some(mut bigger) = self.take_between(size + 1, wanted)
        {
            let (small, big) = self.classes.split_at_mut(usize::from(bigger.size));
            let from = small[size].bytes(buffer.number);
            big[0].bytes_mut(bigger.number)[..buffer.len()].copy_from_slice(&from[..buffer.len()]);
            bigger.length = buffer.length;
            self.release(core::mem::replace(buffer, bigger));
        }
        SIZES[usize::from(buffer.size)]
    }

    /// Puts `put` in the place of the first `cut` bytes. What does not fit any more at the end is lost.
    pub(in crate::l7::splice) fn replace(&mut self, buffer: &mut Buffer, cut: usize, put: &[u8]) {
        let length = buffer.len();
        let room = self.room(buffer);
        let (cut, put) = (cut.min(length), &put[..put.len().min(room.len())]);
        let kept = (length - cut).min(room.len() - put.len());
        room.copy_within(cut..cut + kept, put.len());
        room[..put.len()].copy_from_slice(put);
        buffer.length = (put.len() + kept) as u32;
    }

    /// Adds a part of what is in one to another, which has room for it.
    pub(in crate::l7::splice) fn copy(&mut self, from: &Buffer, part: core::ops::Range<usize>, to: &mut Buffer) {
        let (start, length) = (to.len(), part.len());
        let (a, b) = (usize::from(from.size), usize::from(to.size));
        if length > from.len().saturating_sub(part.start) || start + length > SIZES[b] {
            return;
        }
        match self.classes.get_disjoint_mut([a, b]) {
            Ok([source, target]) => {
                let bytes = &source.bytes(from.number)[part];
                target.bytes_mut(to.number)[start..start + length].copy_from_slice(bytes);
            }
            Err(_) => {
                let class = &mut self.classes[a];
                let first = from.number as usize * class.size;
                let place = to.number as usize * class.size + start;
                class.memory.copy_within(first + part.start..first + part.end, place);
            }
        }
        to.length += length as u32;
    }

    /// Takes the first `count` bytes out.
    pub(in crate::l7::splice) fn consume(&mut self, buffer: &mut Buffer, count: usize) {
        let length = buffer.len();
        let count = count.min(length);
        self.room(buffer).copy_within(count..length, 0);
        buffer.length -= count as u32;
    }

    /// Keeps only the first `count` bytes.
    pub(in crate::l7::splice) fn truncate(&mut self, buffer: &mut Buffer, count: usize) {
        buffer.length = buffer.length.min(count as u32);
    }

    /// Buffers there are.
    pub(in crate::l7::splice) fn count(&self) -> u32 {
        self.classes.iter().map(|class| class.count).sum()
    }

    /// Buffers in use.
    pub(in crate::l7::splice) fn in_use(&self) -> u32 {
        self.classes.iter().map(|class| class.fresh - class.free.len() as u32).sum()
    }
}

/// Which buffers connections have that another process has left.
pub(in crate::l7::splice) struct Claims([Vec<bool>; 3]);

impl Claims {
    /// None yet.
    pub(in crate::l7::splice) fn new(buffers: &Buffers) -> Claims {
        Claims([0, 1, 2].map(|size| vec![false; buffers.classes[size].count as usize]))
    }

    /// Claims buffers for one connection: all of them, or, if one is none or another's, none.
    pub(in crate::l7::splice) fn claim(&mut self, wanted: &[Option<&Buffer>]) -> bool {
        for (claimed, buffer) in wanted.iter().flatten().enumerate() {
            let size = usize::from(buffer.size);
            let fits = SIZES.get(size).is_some_and(|&bytes| buffer.len() <= bytes);
            match self.0.get_mut(size).and_then(|class| class.get_mut(buffer.number as usize)) {
                Some(is_claimed) if fits && !*is_claimed => *is_claimed = true,
                _ => {
                    for buffer in wanted.iter().flatten().take(claimed) {
                        self.0[usize::from(buffer.size)][buffer.number as usize] = false;
                    }
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_and_comes_back() {
        // More than one of each: the biggest is not replaced by another of its size.
        let mut buffers = Buffers::with([2, 2, 2]);
        let mut buffer = buffers.take(10).unwrap();
        assert!(buffers.has_room(&buffer, 98_304) && !buffers.has_room(&buffer, 98_305));
        assert_eq!(buffers.append(&mut buffer, &[7; 2000]), 2000);
        assert_eq!(buffers.append(&mut buffer, &[8; 2000]), 2000, "in a bigger one");
        assert_eq!(buffers.in_use(), 1);
        assert_eq!(buffers.append(&mut buffer, &[9; 98_304]), 98_304 - 4000, "as much as fits");
        assert!(buffers.has_room(&buffer, 0) && !buffers.has_room(&buffer, 1));
        assert_eq!(buffers.append(&mut buffer, &[9; 10]), 0, "full, and there is no bigger one");
        assert_eq!(buffers.bytes(&buffer)[1999..2001], [7, 8]);
        buffers.consume(&mut buffer, 4000);
        assert!(buffers.bytes(&buffer).iter().all(|&byte| byte == 9));
        buffers.release(buffer);
        assert_eq!((buffers.in_use(), buffers.exhausted, buffers.count()), (0, 0, 6));
    }

    #[test]
    fn the_first_bytes_are_replaced_where_they_lie() {
        let mut buffers = Buffers::with([1, 0, 0]);
        let mut buffer = buffers.take(10).unwrap();
        buffers.append(&mut buffer, b"head, body");
        for (cut, put, expected) in
            [(4, &b"longer"[..], &b"longer, body"[..]), (8, b"", b"body"), (0, b"a ", b"a body")]
        {
            buffers.replace(&mut buffer, cut, put);
            assert_eq!(buffers.bytes(&buffer), expected);
        }
        buffers.append(&mut buffer, &[7; 2042]);
        buffers.replace(&mut buffer, 1, b"not all of it");
        assert_eq!((buffer.len(), &buffers.bytes(&buffer)[..19]), (2048, &b"not all of it body\x07"[..]));
        assert_eq!(buffers.grow(&mut buffer, 3000), 2048, "there is no bigger one");
        buffers.release(buffer);
    }

    #[test]
    fn where_the_right_size_is_missing_a_smaller_one_serves() {
        let mut buffers = Buffers::with([1, 1, 1]);
        let mut all: Vec<Buffer> = (0..3).map(|_| buffers.take_most(90_000).unwrap()).collect();
        let rooms: Vec<usize> = all.iter_mut().map(|buffer| buffers.grow(buffer, 0)).collect();
        assert_eq!(rooms, [SIZES[2], SIZES[1], SIZES[0]]);
        assert!(buffers.take_most(90_000).is_none());
        buffers.release(all.remove(1));
        assert_eq!(buffers.append(&mut all[1], &[7; 90_000]), SIZES[1]);
        all.into_iter().for_each(|buffer| buffers.release(buffer));
        assert_eq!(buffers.in_use(), 0);
    }

    #[test]
    fn there_are_only_so_many() {
        let mut buffers = Buffers::with([1, 1, 1]);
        let all: Vec<Buffer> = (0..3).map(|_| buffers.take(1).unwrap()).collect();
        assert!(buffers.take(1).is_none());
        assert!(buffers.has_room(&all[0], 2048) && !buffers.has_room(&all[0], 2049), "others have the bigger ones");
        assert_eq!(buffers.exhausted, 1);
        all.into_iter().for_each(|buffer| buffers.release(buffer));
        assert!(buffers.take(98_305).is_none(), "longer than any");
        assert!(buffers.take(98_304).is_some());
    }
}
