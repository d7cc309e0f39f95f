//! Replays packets from ordinary memory, to measure a worker without a plane.

use super::{Batch, Frame, FrameIo, Meta};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A frame of `LENGTH` bytes that is used again.
pub struct ReplayFrame<const LENGTH: usize> {
    /// A box, as a plane's frames are: moving one moves a pointer.
    bytes: Box<[u8; LENGTH]>,
    meta: Meta,
}

impl<const LENGTH: usize> Frame for ReplayFrame<LENGTH> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &*self.bytes
    }
    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut *self.bytes
    }
    fn resize(&mut self, length: usize) -> bool {
        length == LENGTH
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

/// The same packets again and again, and an end for all.
pub struct Replay<P, const LENGTH: usize> {
    packets: P,
    burst: usize,
    next: usize,
    sent: u64,
    #[allow(clippy::vec_box)]
    free: Vec<Box<[u8; LENGTH]>>,
}

impl<P: AsRef<[[u8; LENGTH]]>, const LENGTH: usize> Replay<P, LENGTH> {
    /// Replays these packets, up to `burst` at a time.
    pub fn new(packets: P, burst: usize) -> Replay<P, LENGTH> {
        Replay { packets, burst, next: 0, sent: 0, free: Vec::new() }
    }

    /// Packets that were sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

impl<P: AsRef<[[u8; LENGTH]]>, const LENGTH: usize> FrameIo for Replay<P, LENGTH> {
    type Frame = ReplayFrame<LENGTH>;

    #[inline]
    fn receive(&mut self, out: &mut Batch<ReplayFrame<LENGTH>>) {
        let packets = self.packets.as_ref();
        for _ in 0..self.burst.min(out.remaining_capacity()) {
            let Some(packet) = packets.get(self.next) else { return };
            let mut bytes = self.free.pop().unwrap_or_else(|| Box::new([0; LENGTH]));
            *bytes = *packet;
            self.next = if self.next + 1 == packets.len() { 0 } else { self.next + 1 };
            out.push(ReplayFrame { bytes, meta: Meta::default() });
        }
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Batch<ReplayFrame<LENGTH>>) {
        self.sent += batch.len() as u64;
        self.free.extend(batch.drain(..).map(|frame| frame.bytes));
    }

    fn allocate(&mut self) -> Option<ReplayFrame<LENGTH>> {
        None
    }
}
