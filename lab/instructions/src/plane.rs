//! A plane without a network: frames arrive from a queue, and what is sent is kept until it is read.

use hairpin_core::frame::{Batch, Frame, FrameIo, Meta};
use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

/// Bytes of the longest frame: an Ethernet frame with room to spare.
const ROOM: usize = 2048;

/// Memory of frames that are not in use.
type FrameStore = Rc<RefCell<Vec<Vec<u8>>>>;

/// A frame that goes back to its plane's store when it is dropped, so that the loop that is counted allocates nothing.
pub(crate) struct PooledFrame {
    /// [`ROOM`] bytes.
    memory: Vec<u8>,
    length: usize,
    meta: Meta,
    store: FrameStore,
}

impl Frame for PooledFrame {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= ROOM;
        if fits {
            self.length = length;
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

impl Drop for PooledFrame {
    fn drop(&mut self) {
        self.store.borrow_mut().push(mem::take(&mut self.memory));
    }
}

/// The plane.
pub(crate) struct CountedPlane {
    store: FrameStore,
    /// The frames sent since it was last cleared.
    pub(crate) sent: Vec<PooledFrame>,
}

impl CountedPlane {
    /// With room for `frames` frames at a time.
    pub(crate) fn new(frames: usize) -> CountedPlane {
        let store = (0..frames).map(|_| vec![0; ROOM]).collect();
        CountedPlane { store: Rc::new(RefCell::new(store)), sent: Vec::with_capacity(frames) }
    }

    /// A frame with these bytes, as it arrives.
    ///
    /// # Panics
    /// When all frames are in use, which would be a leak.
    pub(crate) fn frame(&mut self, bytes: &[u8]) -> PooledFrame {
        let mut frame = self.allocate().expect("a frame is free");
        frame.memory[..bytes.len()].copy_from_slice(bytes);
        frame.length = bytes.len();
        frame
    }
}

impl FrameIo for CountedPlane {
    type Frame = PooledFrame;

    /// Nothing: frames are handed to the worker.
    fn receive(&mut self, _: &mut Batch<PooledFrame>) {}

    fn transmit(&mut self, batch: &mut Batch<PooledFrame>) {
        self.sent.extend(batch.drain(..));
    }

    fn allocate(&mut self) -> Option<PooledFrame> {
        let memory = self.store.borrow_mut().pop()?;
        Some(PooledFrame { memory, length: 0, meta: Meta::default(), store: Rc::clone(&self.store) })
    }

    fn room(&self) -> usize {
        ROOM
    }
}
