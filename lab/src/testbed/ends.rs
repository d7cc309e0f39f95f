//! What a generator and a sink need of a frame transport: rings, ports, memory.

use hairpin_core::frame::{Batch, Frame};

/// Where a generator's frames come from and go to.
pub trait Outlet: Send {
    /// Its frames.
    type Frame: Frame;
    /// What it is called in accounts when a frame finds no room in it.
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

/// Where a sink's frames come from.
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
