//! Bytes that Hairpin keeps: heads that are not complete yet, and what it has put into a stream until it is acknowledged.
//! Three sizes, each with a bounded number; all memory is reserved at start and touched as it is first used.
//!
//! Buffers still have what others had in them. So that no entry with damage in it gets at that, each buffer is given a tag
//! whenever it is taken, and tag and length stand with the buffer as well as with its owner ([`Use`]). A process that adopts
//! an entry compares the two.

use crate::l7::proxy_protocol;
use crate::stored::{Vacant, stored};
use crate::table::region::Array;
#[cfg(test)]
use crate::table::region::Region;
use alloc::vec;
use alloc::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

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
    /// The tag in this buffer's [`Use`].
    tag: [u8; 3],
    number: u32,
    /// Bytes in it.
    length: u32,
}

stored!(Buffer: size, tag, number, length);

impl Vacant for Buffer {
    const VACANT: Buffer = Buffer { size: u8::MAX, tag: NO_TAG, number: 0, length: 0 };
    fn is_vacant(&self) -> bool {
        self.size == u8::MAX
    }
}

impl Buffer {
    fn as_used(&self) -> Use {
        Use { length: self.length, tag: self.tag, unused: 0 }
    }

    /// Bytes in it.
    pub(in crate::l7::splice) fn len(&self) -> usize {
        self.length as usize
    }
}

/// What is stored beside a buffer, for the process that adopts its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Use {
    length: u32,
    tag: [u8; 3],
    unused: u8,
}

stored!(Use: length, tag, unused);

/// The tag of a buffer that is free.
const NO_TAG: [u8; 3] = [0; 3];

/// Memory for buffers of one size, and for what stands with them.
pub(in crate::l7::splice) type Memory = (Array<u8>, Array<Use>);

/// All buffers of a worker.
pub(in crate::l7::splice) struct Buffers {
    classes: [SizeClass; 3],
    /// Makes tags.
    tags: u32,
    /// How often one was wanted and there was none.
    pub(in crate::l7::splice) exhausted: u64,
}

struct SizeClass {
    memory: Array<u8>,
    uses: Array<Use>,
    size: usize,
    free: Vec<u32>,
    /// Buffers from this one on were never used.
    fresh: u32,
    count: u32,
}

impl SizeClass {
    fn new(size: usize, (memory, uses): Memory) -> SizeClass {
        let count = memory.len() / size;
        SizeClass { memory, uses, size, free: Vec::with_capacity(count), fresh: 0, count: count as u32 }
    }

    fn say(&mut self, number: u32, of: Use) {
        if let Some(place) = self.uses.get_mut(number as usize) {
            *place = of;
        }
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
    pub(in crate::l7::splice) fn new(memory: [Memory; 3], tags: u32) -> Buffers {
        let [a, b, c] = memory;
        Buffers {
            classes: [SizeClass::new(SIZES[0], a), SizeClass::new(SIZES[1], b), SizeClass::new(SIZES[2], c)],
            tags,
            exhausted: 0,
        }
    }

    /// Buffers of each size in these numbers, in memory of their own.
    #[cfg(test)]
    pub(in crate::l7::splice) fn with(counts: [u32; 3]) -> Buffers {
        let memory = [0, 1, 2].map(|size| {
            let (count, bytes) = (counts[size] as usize, counts[size] as usize * SIZES[size]);
            (Region::own(bytes).take(bytes), Region::own(Region::room::<Use>(count)).take(count))
        });
        Buffers::new(memory, 1)
    }

    /// An empty buffer of this size, if one is free.
    fn take_of(&mut self, size: usize) -> Option<Buffer> {
        let number = self.classes[size].take()?;
        self.tags = self.tags.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let [_, a, b, c] = self.tags.to_le_bytes();
        // Never `NO_TAG`, the tag of a free buffer.
        let buffer = Buffer { size: size as u8, tag: [a | 1, b, c], number, length: 0 };
        self.noted(&buffer);
        Some(buffer)
    }

    /// A buffer's length is another one.
    #[inline]
    fn noted(&mut self, buffer: &Buffer) {
        self.classes[usize::from(buffer.size)].say(buffer.number, buffer.as_used());
    }

    /// An empty buffer with room for `room` bytes.
    pub(in crate::l7::splice) fn take(&mut self, room: usize) -> Option<Buffer> {
        let first = SIZES.iter().position(|&size| size >= room);
        let taken = first.and_then(|first| (first..SIZES.len()).find_map(|size| self.take_of(size)));
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
            smaller.into_iter().find_map(|size| self.take_of(size))
        })
    }

    /// Gives a buffer back.
    pub(in crate::l7::splice) fn release(&mut self, buffer: Buffer) {
        let class = &mut self.classes[usize::from(buffer.size)];
        class.say(buffer.number, Use::default());
        class.free.push(buffer.number);
    }

    /// Takes the granted buffers into use, when none is in use yet.
    pub(in crate::l7::splice) fn adopt(&mut self, claims: &Claims) {
        for (class, claimed) in self.classes.iter_mut().zip(&claims.0) {
            let used = claimed.iter().rposition(|&claim| claim == Claim::Granted).map_or(0, |last| last + 1);
            class.fresh = used as u32;
            // The lowest is used again first.
            let free = (0..used as u32).rev().filter(|&number| claimed[number as usize] != Claim::Granted);
            for number in free {
                class.say(number, Use::default());
                class.free.push(number);
            }
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
        self.noted(buffer);
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
            self.noted(&bigger);
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
        self.noted(buffer);
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
        self.noted(to);
    }

    /// Takes the first `count` bytes out.
    pub(in crate::l7::splice) fn consume(&mut self, buffer: &mut Buffer, count: usize) {
        let length = buffer.len();
        let count = count.min(length);
        self.room(buffer).copy_within(count..length, 0);
        buffer.length -= count as u32;
        self.noted(buffer);
    }

    /// Keeps only the first `count` bytes.
    pub(in crate::l7::splice) fn truncate(&mut self, buffer: &mut Buffer, count: usize) {
        buffer.length = buffer.length.min(count as u32);
        self.noted(buffer);
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

/// How many entries that another process has left claim a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    None,
    One,
    /// At most one of the claims is right, and which one is not known: none is granted.
    Many,
    /// One, and that entry keeps the buffer.
    Granted,
}

/// Which buffers connections have that another process has left.
pub(in crate::l7::splice) struct Claims([Vec<Claim>; 3]);

impl Claims {
    /// None yet.
    pub(in crate::l7::splice) fn new(buffers: &Buffers) -> Claims {
        Claims([0, 1, 2].map(|size| vec![Claim::None; buffers.classes[size].count as usize]))
    }

    /// Counts an entry's claim to these buffers, also if that entry is forgotten. All entries claim before any is granted.
    pub(in crate::l7::splice) fn claim(&mut self, wanted: &[Option<&Buffer>]) {
        for buffer in wanted.iter().flatten() {
            if let Some(claim) = self.place(buffer) {
                *claim = if *claim == Claim::None { Claim::One } else { Claim::Many };
            }
        }
    }

    /// Grants an entry all of its buffers; or none, if another entry claims one of them, or if its length or tag differs from
    /// the buffer's [`Use`].
    pub(in crate::l7::splice) fn grant(&mut self, buffers: &Buffers, wanted: &[Option<&Buffer>]) -> bool {
        let is_granted = wanted.iter().flatten().all(|buffer| {
            let size = usize::from(buffer.size);
            let left = buffers.classes.get(size).and_then(|class| class.uses.get(buffer.number as usize));
            left == Some(&buffer.as_used())
                && buffer.tag != NO_TAG
                && buffer.len() <= SIZES[size]
                && self.place(buffer).is_some_and(|claim| *claim == Claim::One)
        });
        if is_granted {
            for buffer in wanted.iter().flatten() {
                self.place(buffer).into_iter().for_each(|claim| *claim = Claim::Granted);
            }
        }
        is_granted
    }

    fn place(&mut self, buffer: &Buffer) -> Option<&mut Claim> {
        self.0.get_mut(usize::from(buffer.size))?.get_mut(buffer.number as usize)
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
