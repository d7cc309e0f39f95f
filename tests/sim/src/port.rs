//! The worker's plane: frames wait here on their way to it, and leave through here.

use fastrand::Rng;
use hairpin_core::frame::{Batch, Frame, FrameIo, Meta, VecFrame};
use std::collections::VecDeque;
use std::rc::Rc;

/// Frames the worker may hold at a time.
const FRAMES_MAX: usize = 256;

/// A frame the plane has lent to the worker; the lease is counted.
pub struct LentFrame {
    frame: VecFrame,
    _lease: Rc<()>,
}

impl Frame for LentFrame {
    fn bytes(&self) -> &[u8] {
        self.frame.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.frame.bytes_mut()
    }
    fn resize(&mut self, length: usize) -> bool {
        self.frame.resize(length)
    }
    fn meta(&self) -> &Meta {
        self.frame.meta()
    }
    fn meta_mut(&mut self) -> &mut Meta {
        self.frame.meta_mut()
    }
}

/// The worker's plane: frames wait here on their way to it, and leave through here.
pub struct WorkerPort {
    pub(crate) waiting: VecDeque<VecFrame>,
    pub(crate) sent: Vec<VecFrame>,
    lease: Rc<()>,
    /// Draws when the plane takes and lends nothing; `None`: never.
    moods: Option<Rng>,
    /// The worker left frames in the batch that it was given.
    pub(crate) got_leftovers: bool,
    /// The first frame to be sent is to be kept, and never given back.
    leaks: bool,
    leaked: Option<LentFrame>,
}

impl WorkerPort {
    /// A plane; `moods` draws when it takes and lends nothing, and it can be made to leak a frame.
    pub(crate) fn new(moods: Option<Rng>, leaks: bool) -> WorkerPort {
        let (waiting, sent, lease) = (VecDeque::new(), Vec::new(), Rc::new(()));
        WorkerPort { waiting, sent, lease, moods, got_leftovers: false, leaks, leaked: None }
    }

    /// Frames the worker holds.
    pub(crate) fn lent(&self) -> usize {
        Rc::strong_count(&self.lease) - 1
    }

    fn refuses(&mut self) -> bool {
        self.moods.as_mut().is_some_and(|moods| moods.u8(..8) == 0)
    }
}

impl FrameIo for WorkerPort {
    type Frame = LentFrame;

    fn receive(&mut self, out: &mut Batch<LentFrame>) {
        self.got_leftovers |= !out.is_empty();
        while !out.is_full() {
            let Some(frame) = self.waiting.pop_front() else { break };
            out.push(LentFrame { frame, _lease: self.lease.clone() });
        }
    }

    fn transmit(&mut self, batch: &mut Batch<LentFrame>) {
        if self.leaks && self.leaked.is_none() {
            self.leaked = batch.pop();
        }
        let takes = if self.refuses() { batch.len() / 2 } else { batch.len() };
        self.sent.extend(batch.drain(..takes).map(|lent| lent.frame));
    }

    fn allocate(&mut self) -> Option<LentFrame> {
        if self.lent() >= FRAMES_MAX || self.refuses() {
            return None;
        }
        Some(LentFrame { frame: VecFrame::default(), _lease: self.lease.clone() })
    }
}
