//! A worker's way to the ports: its own queues, or those of another worker.

use anyhow::{Context, Result};
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_dpdk::{Eal, Mbuf, Pool, Port, PortIo, Ring, RingKind, RingReceiver, RingSender};

/// Frames that may wait for a worker that sends for others.
const RELAYED_MAX: u32 = 1024;

/// Where a worker's frames come from and go to.
pub(super) enum Way {
    /// A queue of each port, and frames of workers that have none.
    Queues {
        /// The queues.
        io: PortIo,
        /// What others want to send.
        relayed: Option<RingReceiver>,
        /// What of it found no room yet.
        waiting: Box<Batch<Mbuf>>,
    },
    /// No queue: frames to send go to a worker that has some; none come in.
    Relay {
        /// That worker.
        to: RingSender,
        /// Where frames of the worker's own are from.
        pool: Pool,
    },
}

/// One for each of `workers` workers, of which the first `queues` have queues.
pub(super) fn of_workers(eal: &Eal, ports: &[Port], pool: &Pool, queues: u16, workers: u16) -> Result<Vec<Way>> {
    let mut senders: Vec<RingSender> = Vec::new();
    let mut ways = Vec::new();
    for worker in 0..queues {
        let own = ports.iter().map(|port| port.queue(worker).context("a queue is in use already"));
        let io = PortIo::new(own.collect::<Result<Vec<_>>>()?, pool.clone());
        // Those without queues take turns.
        let relays = worker < workers - queues;
        let relayed = match relays {
            true => {
                let (sender, receiver) = Ring::create(eal, RELAYED_MAX, RingKind::ManyToOne)?;
                senders.push(sender);
                Some(receiver)
            }
            false => None,
        };
        ways.push(Way::Queues { io, relayed, waiting: Box::default() });
    }
    for worker in queues..workers {
        let by = &senders[usize::from(worker - queues) % senders.len()];
        ways.push(Way::Relay { to: by.another().context("a ring for one sender")?, pool: pool.clone() });
    }
    Ok(ways)
}

impl Way {
    /// Sends what other workers want to be sent, a batch at most.
    pub(super) fn relay(&mut self) {
        let Way::Queues { io, relayed: Some(relayed), waiting } = self else { return };
        if waiting.is_empty() {
            relayed.receive(waiting);
        }
        if !waiting.is_empty() {
            io.transmit(waiting);
        }
    }

    /// Frames dropped because they named a port that there is not.
    pub(super) fn misrouted(&self) -> u64 {
        match self {
            Way::Queues { io, .. } => io.misrouted(),
            Way::Relay { .. } => 0,
        }
    }

    /// Frames that came in several buffers, too long for one.
    pub(super) fn too_long(&self) -> u64 {
        match self {
            Way::Queues { io, .. } => io.queues().iter().map(|queue| queue.chained().dropped).sum(),
            Way::Relay { .. } => 0,
        }
    }
}

impl FrameIo for Way {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        if let Way::Queues { io, .. } = self {
            io.receive(out);
        }
    }

    fn transmit(&mut self, batch: &mut Batch<Mbuf>) {
        match self {
            Way::Queues { io, .. } => io.transmit(batch),
            Way::Relay { to, .. } => drop(to.send(batch)),
        }
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        match self {
            Way::Queues { io, .. } => io.allocate(),
            Way::Relay { pool, .. } => pool.allocate(),
        }
    }

    fn room(&self) -> usize {
        let pool = match self {
            Way::Queues { io, .. } => io.pool(),
            Way::Relay { pool, .. } => pool,
        };
        usize::from(pool.options().data_room)
    }
}
