//! Frame buffers: a fixed number of them in one mapping, handed out last in, first out, so that the few that are in
//! use stay in the cache. Nothing is allocated after construction.

use super::header::{self, OffloadHeader};
use super::mark;
use crate::memory::Mapping;
use hairpin_core::frame::{Frame, Meta};
use std::cell::RefCell;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;

/// Bytes of a frame at most: an Ethernet header, two VLAN tags, an IP packet of 65,535 bytes, rounded up.
pub const FRAME_BYTES_MAX: usize = 65_664;

/// A frame's bytes begin here in its buffer, at the second cache line: a small packet touches this line and the first,
/// where [`BufferHead`] and, right in front of the bytes, the device's header stand.
const DATA: usize = 64;
/// The device's header begins here.
const HEADER: usize = DATA - header::BYTES;
/// From one buffer to the next: an odd number of cache lines, so that the first lines of buffers spread over all sets
/// of the cache.
const STRIDE: usize = DATA + FRAME_BYTES_MAX;

/// Buffers that have memory from the start: of a burst that comes in, and of as many frames on their way out.
const AHEAD: usize = 128;

const _: () = assert!(STRIDE.is_multiple_of(64) && STRIDE / 64 % 2 == 1);
const _: () = assert!(size_of::<BufferHead>() <= HEADER && align_of::<BufferHead>() <= 64);

/// The beginning of a buffer.
#[repr(C)]
struct BufferHead {
    meta: Meta,
    length: u32,
    offload: OffloadHeader,
}

/// The buffers of one device. Single-threaded; lives until its last frame is gone.
#[derive(Debug)]
pub(super) struct BufferPool {
    free: RefCell<Vec<NonNull<BufferHead>>>,
    // Dropped last: the pointers above go into it.
    _memory: Mapping,
}

impl BufferPool {
    /// A pool of `buffers`; no thread waits for the memory of the first [`AHEAD`].
    pub(super) fn new(buffers: usize) -> io::Result<Rc<BufferPool>> {
        let memory = Mapping::zeroed(buffers.max(1) * STRIDE)?;
        memory.populate(AHEAD * STRIDE);
        // The lowest address is on top, so that few buffers in use touch few huge pages.
        let free = (0..buffers).rev().map(|i| {
            // SAFETY: buffer `i` lies inside the mapping of `buffers` times `STRIDE` bytes.
            unsafe { memory.start().add(i * STRIDE) }.cast()
        });
        Ok(Rc::new(BufferPool { free: RefCell::new(free.collect()), _memory: memory }))
    }

    /// An empty frame, if a buffer is free.
    pub(super) fn take(self: &Rc<BufferPool>) -> Option<TapFrame> {
        let buffer = self.free.borrow_mut().pop()?;
        // SAFETY: a free buffer has no other owner; it is aligned to a cache line and longer than a `BufferHead`.
        unsafe { buffer.write(BufferHead { meta: Meta::default(), length: 0, offload: OffloadHeader::default() }) };
        Some(TapFrame { buffer, pool: Rc::clone(self) })
    }

    /// Buffers that are free.
    pub(super) fn free(&self) -> usize {
        self.free.borrow().len()
    }
}

/// A frame read from, or to be written to, a TAP device. It owns its buffer; dropping it gives the buffer back.
#[derive(Debug)]
pub struct TapFrame {
    /// A buffer of [`STRIDE`] bytes that begins with an initialised [`BufferHead`], ours until dropped.
    buffer: NonNull<BufferHead>,
    /// Keeps the buffer mapped, and takes it back.
    pool: Rc<BufferPool>,
}

/// Why bytes from the device are no frame for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// The Ethernet destination is no mark.
    Unmarked,
    /// Too short, or its header makes no sense.
    Malformed,
}

impl TapFrame {
    /// The place of the device's header, the frame's bytes right behind it; [`TapFrame::PACKET_BYTES_MAX`] may be written
    /// there.
    pub(super) fn packet(&mut self) -> *mut u8 {
        // SAFETY: inside the buffer.
        unsafe { self.buffer.cast::<u8>().add(HEADER) }.as_ptr()
    }

    /// Bytes of header and frame at most.
    pub(super) const PACKET_BYTES_MAX: usize = header::BYTES + FRAME_BYTES_MAX;

    /// Takes `bytes` that the device put at [`TapFrame::packet`] as the frame.
    pub(super) fn received(&mut self, bytes: usize) -> Result<(), Rejected> {
        let length = bytes.min(TapFrame::PACKET_BYTES_MAX).checked_sub(header::BYTES).ok_or(Rejected::Malformed)?;
        self.head_mut().length = length as u32;
        let destination = *self.bytes().first_chunk::<6>().ok_or(Rejected::Malformed)?;
        let mut meta = mark::decode(destination).ok_or(Rejected::Unmarked)?;
        if length < 14 {
            return Err(Rejected::Malformed);
        }
        let offload = OffloadHeader::decode(*self.header(), length, &mut meta).ok_or(Rejected::Malformed)?;
        (self.head_mut().meta, self.head_mut().offload) = (meta, offload);
        Ok(())
    }

    /// Writes mark and header for the device and returns how many bytes at [`TapFrame::packet`] are to be written.
    /// `None`: the frame is too short, or contradicts what is known of it.
    pub(super) fn seal(&mut self) -> Option<usize> {
        if self.bytes().len() < 14 {
            return None;
        }
        let mark = mark::encode(self.meta());
        *self.bytes_mut().first_chunk_mut()? = mark;
        let header = self.head().offload.encode(self.bytes(), self.meta())?;
        *self.header() = header;
        Some(header::BYTES + self.bytes().len())
    }

    fn header(&mut self) -> &mut [u8; header::BYTES] {
        // SAFETY: the header's place is inside the buffer, apart from `BufferHead` and the frame's bytes, and only this
        // frame has the buffer. Its bytes are initialised: the mapping began as zeroes.
        unsafe { &mut *self.packet().cast() }
    }

    fn head(&self) -> &BufferHead {
        // SAFETY: initialised in `BufferPool::take`, and only this frame has the buffer.
        unsafe { self.buffer.as_ref() }
    }

    fn head_mut(&mut self) -> &mut BufferHead {
        // SAFETY: as in `head`.
        unsafe { self.buffer.as_mut() }
    }
}

impl Frame for TapFrame {
    fn bytes(&self) -> &[u8] {
        let length = self.head().length as usize;
        // SAFETY: `length` is at most `FRAME_BYTES_MAX`, which fit behind `DATA`; the mapping began as zeroes, so
        // they are initialised; they do not overlap `BufferHead`.
        unsafe { std::slice::from_raw_parts(self.buffer.cast::<u8>().add(DATA).as_ptr(), length) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.head().length as usize;
        // SAFETY: as in `bytes`, and only this frame has the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.cast::<u8>().add(DATA).as_ptr(), length) }
    }

    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= FRAME_BYTES_MAX;
        if fits {
            let head = self.head_mut();
            head.length = length as u32;
            // The checksum's offset is forgotten once it lies outside: a writer of new contents says Complete.
            head.offload.truncate(length);
        }
        fits
    }

    fn meta(&self) -> &Meta {
        &self.head().meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.head_mut().meta
    }
}

impl Drop for TapFrame {
    fn drop(&mut self) {
        // Room for all buffers is there since construction, so this never allocates.
        self.pool.free.borrow_mut().push(self.buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_last_one_used_is_used_next() {
        let pool = BufferPool::new(3).unwrap();
        let frames: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((frames.len(), pool.free()), (3, 0));
        let last = frames[2].buffer;
        drop(frames);
        assert_eq!(pool.free(), 3);
        assert_eq!(pool.take().unwrap().buffer, last);
    }

    #[test]
    fn frames_do_not_share_bytes_and_outlive_the_pool_handle() {
        let pool = BufferPool::new(2).unwrap();
        let (mut a, mut b) = (pool.take().unwrap(), pool.take().unwrap());
        drop(pool);
        assert!(a.resize(FRAME_BYTES_MAX) && b.resize(FRAME_BYTES_MAX) && !b.resize(FRAME_BYTES_MAX + 1));
        a.bytes_mut().fill(0xaa);
        b.bytes_mut().fill(0xbb);
        a.meta_mut().port = 1;
        b.meta_mut().port = 2;
        assert!(a.bytes().iter().all(|&byte| byte == 0xaa) && a.bytes().len() == FRAME_BYTES_MAX);
        assert!(b.bytes().iter().all(|&byte| byte == 0xbb) && b.bytes().len() == FRAME_BYTES_MAX);
        assert_eq!((a.meta().port, b.meta().port), (1, 2));
    }

    #[test]
    fn a_reused_buffer_remembers_nothing() {
        let pool = BufferPool::new(1).unwrap();
        let mut frame = pool.take().unwrap();
        frame.resize(100);
        frame.meta_mut().gso_size = 1000;
        drop(frame);
        let mut frame = pool.take().unwrap();
        assert_eq!((frame.bytes().len(), frame.meta().gso_size), (0, 0));
        assert_eq!(frame.seal(), None, "nothing to send");
        frame.resize(14);
        assert_eq!(frame.seal(), Some(header::BYTES + 14));
    }

    #[test]
    fn a_frame_cut_before_its_checksum_forgets_where_it_goes() {
        let pool = BufferPool::new(1).unwrap();
        let mut frame = pool.take().unwrap();
        frame.resize(60);
        frame.bytes_mut()[0] = mark::RECEIVED;
        frame.header()[0] = 1;
        frame.header()[6..].copy_from_slice(&[34u16.to_ne_bytes(), 16u16.to_ne_bytes()].concat());
        assert_eq!(frame.received(header::BYTES + 60), Ok(()));
        assert!(frame.resize(52) && frame.seal().is_some(), "the checksum is still inside");
        assert!(frame.resize(51) && frame.resize(60));
        assert_eq!(frame.seal(), None, "partial, with an unknown start of the checksum");
        frame.meta_mut().checksum = hairpin_core::frame::Checksum::Complete;
        assert!(frame.seal().is_some());
    }

    #[test]
    fn what_the_device_delivers_is_judged() {
        let pool = BufferPool::new(1).unwrap();
        let mut frame = pool.take().unwrap();
        for bytes in [0, 9, header::BYTES, header::BYTES + 5] {
            assert_eq!(frame.received(bytes), Err(Rejected::Malformed));
        }
        assert_eq!(frame.received(header::BYTES + 60), Err(Rejected::Unmarked));
        frame.bytes_mut()[0] = mark::RECEIVED;
        assert_eq!(frame.received(header::BYTES + 13), Err(Rejected::Malformed));
        assert_eq!(frame.received(header::BYTES + 60), Ok(()));
        assert_eq!(frame.received(usize::MAX), Ok(()), "never more than the buffer");
        assert_eq!(frame.bytes().len(), FRAME_BYTES_MAX);
        frame.header()[1] = 0x77;
        assert_eq!(frame.received(header::BYTES + 60), Err(Rejected::Malformed));
    }
}
