//! Frames in DPDK's buffers.

use crate::ffi::port::{self, ELSEWHERE, EXAMINED, MARKED, RawMbuf, WRITTEN};
use hairpin_core::frame::{Arrival, Batch, Checksum, Egress, Frame, Meta};
use std::mem;
use std::ptr::NonNull;

/// A frame in an mbuf of one segment. It owns the mbuf; dropping it gives it back to its pool.
///
/// It is no more than a pointer, so that a batch of frames is what DPDK's calls take and give. Everything of a frame
/// stands in the mbuf, what the core knows of it ([`Meta`]) in a field of our own. That is in the mbuf's second line, and is
/// written when there is something to write: of most frames only the port is known, which has a place in the first.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(NonNull<RawMbuf>);

// SAFETY: an mbuf has no thread; its pool takes it back from any.
unsafe impl Send for Mbuf {}

/// Places of ports whose frames need no [`Meta`] of their own: a power of two, no fewer than DPDK's ports.
const PLACES: usize = 32;

/// The metadata of a received frame about which nothing else is known: the place of the port it came in by.
static FRESH: [Meta; PLACES] = {
    const NONE: Meta = Meta {
        port: 0,
        ticket: 0,
        arrival: Arrival::Received,
        egress: Egress::Route,
        checksum: Checksum::Complete,
        gso_size: 0,
    };
    let mut fresh = [NONE; PLACES];
    let mut place = 0;
    while place < PLACES {
        fresh[place].port = place as u16;
        place += 1;
    }
    fresh
};

/// The fates of frames that came in several segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chains {
    pub(crate) joined: u64,
    pub(crate) dropped: u64,
}

impl Mbuf {
    /// Gives all frames of a batch back at once.
    pub fn free_burst(batch: &mut Batch<Mbuf>) {
        // SAFETY: they are ours, as many as said, and forgotten below.
        unsafe { port::hairpin_mbuf_free_burst(batch.as_mut_ptr(), batch.len() as u32) };
        forget_first(batch, batch.len());
    }

    /// Bytes that the frame can have.
    pub fn room(&self) -> usize {
        usize::from(self.raw().buffer_length.saturating_sub(self.raw().data_offset))
    }

    #[inline(always)]
    fn raw(&self) -> &RawMbuf {
        // SAFETY: the mbuf is there, and ours alone; our field is not read as what it may not be.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    fn raw_mut(&mut self) -> &mut RawMbuf {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }

    /// The port that the frames of a batch go to, if it is one port, and whether nothing is left to be done to any.
    #[inline(always)]
    pub(crate) fn ways(batch: &Batch<Mbuf>) -> (Option<u16>, bool) {
        let first = batch.first().map_or(0, |frame| frame.meta().port);
        let (mut others, mut flags) = (0, 0);
        for frame in batch {
            let raw = frame.raw();
            (others, flags) = (others | (raw.port ^ first), flags | raw.flags);
        }
        if flags & WRITTEN == 0 { ((others == 0).then_some(first), true) } else { Self::ways_written(batch, first) }
    }

    /// [`Mbuf::ways`], where something is written of some frames.
    fn ways_written(batch: &Batch<Mbuf>, first: u16) -> (Option<u16>, bool) {
        let (mut others, mut unfinished) = (0, false);
        for frame in batch {
            let meta = frame.meta();
            others |= meta.port ^ first;
            unfinished |= meta.checksum != Checksum::Complete || meta.gso_size != 0;
        }
        ((others == 0).then_some(first), !unfinished)
    }

    /// Has the device fill in its checksum.
    pub(crate) fn leave_checksum(&mut self, note: u32) {
        // SAFETY: the mbuf is ours.
        unsafe { port::hairpin_mbuf_checksum(self.0.as_ptr(), note) }
    }

    /// Lets `fill` put mbufs behind the frames of `batch`, as many as it is told at most, and says how many they are.
    ///
    /// # Safety
    /// `fill` must have put as many pointers there as it says. They must be to frames that are whole.
    pub(crate) unsafe fn append(
        batch: &mut Batch<Mbuf>,
        most: usize,
        fill: impl FnOnce(*mut Mbuf, u32) -> u32,
    ) -> usize {
        let most = most.min(batch.remaining_capacity());
        let before = batch.len();
        // SAFETY: the capacity is larger than the length, so this is inside the batch or one past it.
        let first = unsafe { batch.as_mut_ptr().add(before) };
        let count = (fill(first, most as u32) as usize).min(most);
        // SAFETY: so many frames are there now.
        unsafe { batch.set_len(before + count) };
        count
    }

    /// [`Mbuf::append`] of mbufs as drivers and pools give them: they become whole frames, of `port`.
    ///
    /// # Safety
    /// `fill` must have put as many pointers there as it says, each to an mbuf of its own.
    #[inline(always)]
    pub(crate) unsafe fn append_fresh(
        batch: &mut Batch<Mbuf>,
        (port, most): (u16, usize),
        chains: &mut Chains,
        fill: impl FnOnce(*mut Mbuf, u32) -> u32,
    ) -> usize {
        let before = batch.len();
        // SAFETY: they are made whole below, before other code sees them.
        unsafe { Self::append(batch, most, fill) };
        let mut segments = 1;
        for frame in &mut batch[before..] {
            // SAFETY: the mbuf is ours.
            let raw = unsafe { frame.0.as_mut() };
            prefetch(raw.buffer.wrapping_add(usize::from(raw.data_offset)));
            segments |= raw.segments;
            raw.port = port;
            if raw.flags != 0 || usize::from(port) >= PLACES {
                let ticket = if raw.flags & MARKED == 0 { 0 } else { raw.mark };
                // Metadata from reception is invalid for sending: marks, tags, checksums.
                raw.flags &= ELSEWHERE;
                if ticket != 0 || usize::from(port) >= PLACES {
                    raw.meta.write(Meta { port, ticket, ..Meta::default() });
                    raw.flags |= WRITTEN;
                }
            }
        }
        if segments > 1 {
            join(batch, before, chains);
        }
        batch.len() - before
    }
}

/// Makes one segment of those that are several, from the place `from` on; what does not fit one is dropped.
#[cold]
fn join(batch: &mut Batch<Mbuf>, from: usize, chains: &mut Chains) {
    for at in (from..batch.len()).rev() {
        if batch[at].raw().segments <= 1 {
            continue;
        }
        // SAFETY: the mbuf is ours; when it could not be joined it is gone, and forgotten below.
        match unsafe { port::hairpin_mbuf_join(batch[at].0.as_ptr()) } {
            0 => chains.joined += 1,
            _ => {
                mem::forget(batch.remove(at));
                chains.dropped += 1;
            }
        }
    }
}

#[inline(always)]
fn prefetch(_at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it has no side effect.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
}

/// Forgets the first frames of a batch: they belong to another owner now.
#[inline]
pub(crate) fn forget_first(batch: &mut Batch<Mbuf>, count: usize) {
    if count == batch.len() {
        // SAFETY: none is left; frames are no more than their mbufs, which belong to another owner.
        unsafe { batch.set_len(0) };
    } else {
        batch.drain(..count).for_each(mem::forget);
    }
}

impl Frame for Mbuf {
    const MARKS: bool = true;
    const TICKETS: bool = false;

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        let raw = self.raw();
        let data = raw.buffer.wrapping_add(usize::from(raw.data_offset));
        // SAFETY: the mbuf is ours and has this many bytes in its buffer, from where its data begin. They are initialised
        // in the sense that matters: pools are memory that began as zeroes or that devices have written.
        unsafe { std::slice::from_raw_parts(data, usize::from(raw.data_length)) }
    }

    #[inline(always)]
    fn bytes_mut(&mut self) -> &mut [u8] {
        let raw = self.raw();
        let data = raw.buffer.wrapping_add(usize::from(raw.data_offset));
        // SAFETY: as in `bytes`, and nothing else refers to the mbuf.
        unsafe { std::slice::from_raw_parts_mut(data, usize::from(raw.data_length)) }
    }

    #[inline]
    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= self.room();
        if fits {
            let raw = self.raw_mut();
            (raw.data_length, raw.packet_length) = (length as u16, length as u32);
        }
        fits
    }

    #[inline(always)]
    fn meta(&self) -> &Meta {
        let raw = self.raw();
        if raw.flags & WRITTEN == 0 {
            return &FRESH[usize::from(raw.port) % PLACES];
        }
        // SAFETY: it is written where the flag is set, and `append_fresh` clears what was there before.
        unsafe { raw.meta.assume_init_ref() }
    }

    #[inline(always)]
    fn meta_mut(&mut self) -> &mut Meta {
        let raw = self.raw_mut();
        if raw.flags & WRITTEN == 0 {
            raw.flags |= WRITTEN;
            return raw.meta.write(FRESH[usize::from(raw.port) % PLACES]);
        }
        // SAFETY: as above.
        unsafe { raw.meta.assume_init_mut() }
    }

    #[inline(always)]
    fn is_examined(&self) -> bool {
        self.raw().flags & EXAMINED != 0
    }

    #[inline(always)]
    fn set_examined(&mut self, examined: bool) {
        let raw = self.raw_mut();
        raw.flags = raw.flags & !EXAMINED | if examined { EXAMINED } else { 0 };
    }

    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        self.raw().flags & WRITTEN == 0 || self.meta().is_ordinary()
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the mbuf is ours and nothing refers to it any more.
        unsafe { port::hairpin_mbuf_free(self.0.as_ptr()) }
    }
}
