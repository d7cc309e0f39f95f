//! A worker's queues as the core sees them.

use crate::mbuf::Mbuf;
use crate::pool::Pool;
use crate::port::Queue;
use hairpin_core::frame::{Batch, Frame, FrameIo};
use std::mem;

/// The queues of one worker, one of each port.
///
/// A frame's [`Meta::port`](hairpin_core::frame::Meta::port) is the place of its queue among them, on receiving and on
/// sending: who routes writes the way out there. Frames with a port that is not there are dropped and counted.
#[derive(Debug)]
pub struct PortIo {
    queues: Vec<Queue>,
    pool: Pool,
    /// Where the next turn begins.
    turn: usize,
    /// One for each queue, for bursts of which not all frames go the same way.
    stages: Vec<Batch<Mbuf>>,
    misrouted: u64,
}

impl PortIo {
    /// Over these queues; frames of the worker's own are from `pool`.
    pub fn new(queues: Vec<Queue>, pool: Pool) -> PortIo {
        let stages = queues.iter().map(|_| Batch::new()).collect();
        PortIo { queues, pool, turn: 0, stages, misrouted: 0 }
    }

    /// The queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The pool that frames of the worker's own are from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Frames dropped because no port was where they were to go.
    pub fn misrouted(&self) -> u64 {
        self.misrouted
    }
}

impl FrameIo for PortIo {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        let count = self.queues.len();
        for step in 0..count {
            if out.is_full() {
                return;
            }
            let place = (self.turn + step) % count;
            self.queues[place].receive_as(place as u16, out);
        }
        self.turn = (self.turn + 1) % count.max(1);
    }

    fn transmit(&mut self, batch: &mut Batch<Mbuf>) {
        if batch.is_empty() {
            return;
        }
        let (way, finished) = Mbuf::ways(batch);
        if let Some(way) = way
            && let Some(queue) = self.queues.get_mut(usize::from(way))
        {
            queue.transmit_as(finished, batch);
            return;
        }
        for frame in mem::take(batch) {
            match self.stages.get_mut(usize::from(frame.meta().port)) {
                Some(stage) => stage.push(frame),
                None => self.misrouted += 1,
            }
        }
        for (queue, stage) in self.queues.iter_mut().zip(&mut self.stages) {
            if !stage.is_empty() {
                queue.transmit(stage);
                batch.extend(stage.drain(..));
            }
        }
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        self.pool.allocate()
    }

    fn room(&self) -> usize {
        usize::from(self.pool.options().data_room)
    }
}
