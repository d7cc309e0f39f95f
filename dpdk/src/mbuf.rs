//! Frames in DPDK's buffers.

use crate::ffi::port::{self, RawMbuf};
use hairpin_core::frame::{Batch, Frame, Meta};
use std::mem;
use std::ptr::NonNull;

/// A frame in an mbuf of one segment. It owns the mbuf; dropping it gives it back to its pool.
///
/// Where the bytes are and how many stands here, not only in the mbuf, so that nothing of a frame is a call into C. What
/// the mbuf says of its length is set right when the frame is sent.
#[derive(Debug)]
#[repr(C)]
pub struct Mbuf {
    raw: NonNull<RawMbuf>,
    data: NonNull<u8>,
    length: u16,
    room: u16,
    /// What the shim and we tell each other (`struct hairpin_mbuf`).
    note: u32,
    meta: Meta,
}

// As `struct hairpin_mbuf` has it.
const _: () = assert!(size_of::<Mbuf>() == 40 && mem::offset_of!(Mbuf, note) == 20);
const _: () = assert!(mem::offset_of!(Mbuf, meta) == 24 && size_of::<Meta>() <= 16);

// SAFETY: an mbuf has no thread; its pool takes it back from any.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Gives all frames of a batch back at once.
    pub fn free_burst(batch: &mut Batch<Mbuf>) {
        // SAFETY: they are ours, as many as said, and forgotten below.
        unsafe { port::hairpin_mbuf_free_burst(batch.as_ptr(), batch.len() as u32) };
        forget_first(batch, batch.len());
    }

    /// Bytes that the frame can have.
    pub fn room(&self) -> usize {
        usize::from(self.room)
    }

    /// What the device is told about the frame's checksum; 0: nothing.
    pub(crate) fn set_note(&mut self, note: u32) {
        self.note = note;
    }

    /// Lets `fill` put frames behind those of `batch`, as many as it is told at most, and says how many they are.
    ///
    /// # Safety
    /// `fill` must have made as many frames as it says, each its own mbuf, all but their `meta`.
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
        for i in 0..count {
            // SAFETY: inside the batch's capacity; the note was written by `fill`.
            unsafe {
                let frame = first.add(i);
                let ticket = mem::take(&mut (*frame).note);
                (&raw mut (*frame).meta).write(Meta { ticket, ..Meta::default() });
            }
        }
        // SAFETY: so many frames are there now, in full.
        unsafe { batch.set_len(before + count) };
        count
    }
}

/// Forgets the first frames of a batch: they belong to somebody else now.
pub(crate) fn forget_first(batch: &mut Batch<Mbuf>, count: usize) {
    if count == batch.len() {
        // SAFETY: none is left; frames are no more than their mbufs, which belong to somebody else.
        unsafe { batch.set_len(0) };
    } else {
        batch.drain(..count).for_each(mem::forget);
    }
}

impl Frame for Mbuf {
    const MARKS: bool = true;

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mbuf is ours and has room for `room` bytes from `data` on, of which `length` are no more. They are
        // initialised in the sense that matters: pools are memory that began as zeroes or that devices have written.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), usize::from(self.length)) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and nobody else has the mbuf.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), usize::from(self.length)) }
    }

    #[inline]
    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= usize::from(self.room);
        if fits {
            self.length = length as u16;
        }
        fits
    }

    #[inline]
    fn meta(&self) -> &Meta {
        &self.meta
    }

    #[inline]
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the mbuf is ours and nobody has it any more.
        unsafe { port::hairpin_mbuf_free(self.raw.as_ptr()) }
    }
}
