//! A worker's queues as the core sees them.

use crate::mbuf::Mbuf;
use crate::pool::MbufPool;
use crate::port::{Chained, Inner, Port};
use crate::queue::PortQueue;
use hairpin_core::frame::{BATCH_MAX, Batch, Frame, FrameIo};
use std::mem;
use std::sync::Arc;

/// The queues of one worker, one of each port.
///
/// A frame's [`Meta::port`](hairpin_core::frame::Meta::port) is the place of its queue among them, on receiving and on
/// sending: who routes writes the way out there. Frames with a port that is not there are dropped and counted.
#[derive(Debug)]
pub struct PortIo {
    /// `None`: its port has called it back, or has no peer.
    queues: Vec<Option<PortQueue>>,
    /// Ports whose queues are not always there, and the places of these.
    lenders: Vec<(usize, Arc<Inner>)>,
    /// Which queue of each port it is.
    index: u16,
    /// The counters of queues that were returned.
    chained: Chained,
    pool: MbufPool,
    /// Frames taken from a queue at a time.
    burst: usize,
    /// The queue at which the next iteration begins.
    turn: usize,
    /// One for each queue, for bursts whose frames leave by several ports.
    stages: Vec<Batch<Mbuf>>,
    misrouted: u64,
}

impl PortIo {
    /// Over these queues; frames of the worker's own are from `pool`.
    pub fn new(queues: Vec<PortQueue>, pool: MbufPool) -> PortIo {
        PortIo::over(queues.into_iter().map(Some).collect(), pool)
    }

    /// Over the queue `index` of each of `ports`; clients among these ([`Port::is_client`]) may call theirs back and give
    /// it again ([`PortIo::renew`]), and servers' are read only while a client is there. `None`: one is in use, or
    /// not there.
    pub fn of(ports: &[Port], index: u16, pool: MbufPool) -> Option<PortIo> {
        let own = |port: &Port| match port.queue(index) {
            None if !port.is_client() || index >= port.queues() => None,
            queue => Some(queue),
        };
        let lenders = ports.iter().enumerate().filter(|(_, port)| port.0.has_peer());
        Some(PortIo {
            lenders: lenders.map(|(place, port)| (place, Arc::clone(&port.0))).collect(),
            index,
            ..PortIo::over(ports.iter().map(own).collect::<Option<_>>()?, pool)
        })
    }

    fn over(queues: Vec<Option<PortQueue>>, pool: MbufPool) -> PortIo {
        let stages = queues.iter().map(|_| Batch::new()).collect();
        let (lenders, chained) = (Vec::new(), Chained::default());
        PortIo { queues, lenders, index: 0, chained, pool, burst: BATCH_MAX, turn: 0, stages, misrouted: 0 }
    }

    /// Takes no more than `burst` frames from a queue at a time, instead of a whole batch: a forwarder that does little to
    /// each wants all that is in hand to stay in the first cache.
    pub fn in_bursts_of(self, burst: usize) -> PortIo {
        PortIo { burst, ..self }
    }

    /// Gives back queues that their ports want back, and takes what they have to give: to be called in every iteration.
    /// While a queue is away nothing comes from it, and what is to go there stays in the batch.
    #[inline]
    pub fn renew(&mut self) {
        if !self.lenders.is_empty() {
            self.exchange();
        }
    }

    fn exchange(&mut self) {
        for (place, lender) in &self.lenders {
            let is_away = lender.is_away();
            match &mut self.queues[*place] {
                Some(queue) if is_away => {
                    self.chained.joined += queue.chained().joined;
                    self.chained.dropped += queue.chained().dropped;
                    self.queues[*place] = None;
                }
                empty @ None if !is_away => *empty = Inner::queue(lender, self.index),
                _ => {}
            }
        }
    }

    /// The counters of its queues for frames of several segments.
    pub fn chained(&self) -> Chained {
        self.queues.iter().flatten().fold(self.chained, |sum, queue| {
            let own = queue.chained();
            Chained { joined: sum.joined + own.joined, dropped: sum.dropped + own.dropped }
        })
    }

    /// The pool that frames of the worker's own are from.
    pub fn pool(&self) -> &MbufPool {
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
            if let Some(queue) = &mut self.queues[place] {
                queue.receive_as(place as u16, self.burst, out);
            }
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
            if let Some(queue) = queue {
                queue.transmit_as(finished, batch);
            }
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
                if let Some(queue) = queue {
                    queue.transmit(stage);
                }
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
