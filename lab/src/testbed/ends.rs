//! The frame transports of a generator and a sink: rings, ports, memory.

use hairpin_core::frame::{Batch, Frame};

/// The source and destination of a generator's frames.
pub trait Outlet: Send {
    /// Its frames.
    type Frame: Frame;
    /// Its name in accounts when a frame finds no room in it.
    const FULL: &'static str;

    /// Adds up to `count` empty frames to `out`.
    fn lend(&mut self, out: &mut Batch<Self::Frame>, count: usize);
    /// Sends from the front; what finds no room stays.
    fn send(&mut self, batch: &mut Batch<Self::Frame>);
    /// Whether `count` frames surely find room. Where the outlet cannot tell, it says yes.
    fn has_room(&self, count: usize) -> bool;
    /// Gives frames back that are not sent.
    fn release(&mut self, batch: &mut Batch<Self::Frame>) {
        batch.clear();
    }
}

/// The source of a sink's frames.
pub trait Inlet: Send {
    /// Its frames.
    type Frame: Frame;

    /// Adds what is there to `out`.
    fn receive(&mut self, out: &mut Batch<Self::Frame>);
    /// Gives frames back that have been examined.
    fn release(&mut self, batch: &mut Batch<Self::Frame>) {
        batch.clear();
    }
}
