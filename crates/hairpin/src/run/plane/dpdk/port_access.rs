//! A worker's access to the ports: its own queues, or those of another worker.

use super::super::limits::RELAYED_MAX;
use anyhow::{Context, Result};
use hairpin_core::frame::{Batch, Frame, FrameIo};
use hairpin_dpdk::{Eal, Mbuf, MbufPool, Port, PortIo, Ring, RingKind, RingReceiver, RingSender};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The source and the destination of a worker's frames.
pub(super) enum PortAccess {
    /// A queue of each port, and frames of workers that have none.
    Queues {
        /// The queues.
        io: PortIo,
        /// Frames that others want to send.
        relayed: Option<RingReceiver>,
        /// Frames of others that the ports had no room for yet.
        waiting: Box<Batch<Mbuf>>,
        /// The state of the ports' links.
        links: Arc<PortLinks>,
        /// Frames dropped for want of a link.
        cut_off: u64,
    },
    /// No queue: frames to send go to a worker that has some; none come in.
    Relay {
        /// That worker.
        to: RingSender,
        /// The source addresses of the worker's own frames.
        pool: MbufPool,
    },
}

/// Whether each port's link is up, as the supervisor saw it last.
pub(super) struct PortLinks(Vec<AtomicBool>);

impl PortLinks {
    pub(super) fn of(ports: &[Port]) -> PortLinks {
        PortLinks(ports.iter().map(|port| AtomicBool::new(port.is_up())).collect())
    }

    /// A link's state now. Whether that is another than before.
    pub(super) fn set(&self, port: usize, up: bool) -> bool {
        self.0.get(port).is_some_and(|known| known.swap(up, Ordering::Relaxed) != up)
    }

    fn is_up(&self, port: u16) -> bool {
        self.0.get(usize::from(port)).is_none_or(|up| up.load(Ordering::Relaxed))
    }
}

/// One for each of `workers` workers, the first `queues` of which have queues.
pub(super) fn of_workers(
    eal: &Eal,
    (ports, links): (&[Port], &Arc<PortLinks>),
    pool: &MbufPool,
    (queues, workers): (u16, u16),
) -> Result<Vec<PortAccess>> {
    let mut senders: Vec<RingSender> = Vec::new();
    let mut accesses = Vec::new();
    for worker in 0..queues {
        let io = PortIo::of(ports, worker, pool.clone()).context("a queue is in use already")?;
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
        accesses.push(PortAccess::Queues {
            io,
            relayed,
            waiting: Box::default(),
            links: Arc::clone(links),
            cut_off: 0,
        });
    }
    for worker in queues..workers {
        let by = &senders[usize::from(worker - queues) % senders.len()];
        accesses.push(PortAccess::Relay { to: by.another().context("a ring for one sender")?, pool: pool.clone() });
    }
    Ok(accesses)
}

impl PortAccess {
    /// To be called in every iteration: sends what other workers want to be sent, a batch at most.
    pub(super) fn relay(&mut self) {
        let PortAccess::Queues { io, relayed, waiting, links, cut_off } = self else { return };
        io.renew();
        let Some(relayed) = relayed else { return };
        if waiting.is_empty() {
            relayed.receive(waiting);
        }
        if !waiting.is_empty() {
            send(io, waiting, (links, cut_off));
        }
    }

    /// Frames dropped because the link of the port that they were to leave by was down.
    pub(super) fn cut_off(&self) -> u64 {
        match self {
            PortAccess::Queues { cut_off, .. } => *cut_off,
            PortAccess::Relay { .. } => 0,
        }
    }

    /// Frames dropped because they named a port that there is not.
    pub(super) fn misrouted(&self) -> u64 {
        match self {
            PortAccess::Queues { io, .. } => io.misrouted(),
            PortAccess::Relay { .. } => 0,
        }
    }

    /// Frames that came in several buffers, too long for one.
    pub(super) fn too_long(&self) -> u64 {
        match self {
            PortAccess::Queues { io, .. } => io.chained().dropped,
            PortAccess::Relay { .. } => 0,
        }
    }
}

/// Sends; what finds no room stays in the batch, unless it is for a port whose link is down: frames for other ports
/// must not wait for that link's return.
fn send(io: &mut PortIo, batch: &mut Batch<Mbuf>, (links, cut_off): (&PortLinks, &mut u64)) {
    io.transmit(batch);
    if !batch.is_empty() {
        let before = batch.len();
        batch.retain(|frame| links.is_up(frame.meta().port));
        *cut_off += (before - batch.len()) as u64;
    }
}

impl FrameIo for PortAccess {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        if let PortAccess::Queues { io, .. } = self {
            io.receive(out);
        }
    }

    fn transmit(&mut self, batch: &mut Batch<Mbuf>) {
        match self {
            PortAccess::Queues { io, links, cut_off, .. } => send(io, batch, (links, cut_off)),
            PortAccess::Relay { to, .. } => drop(to.send(batch)),
        }
    }

    fn allocate(&mut self) -> Option<Mbuf> {
        match self {
            PortAccess::Queues { io, .. } => io.allocate(),
            PortAccess::Relay { pool, .. } => pool.allocate(),
        }
    }

    fn room(&self) -> usize {
        let pool = match self {
            PortAccess::Queues { io, .. } => io.pool(),
            PortAccess::Relay { pool, .. } => pool,
        };
        usize::from(pool.options().data_room)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DpdkFixture, drained};
    use super::*;
    use hairpin_dpdk::PortOptions;

    /// A port that returns what is sent to it, as far as it has room, between workers of which one has a queue.
    fn accesses(fixture: &DpdkFixture, workers: u16) -> (Port, Arc<PortLinks>, Vec<PortAccess>) {
        let options = PortOptions { device: "net_ring0".into(), ..PortOptions::default() };
        let port = Port::open(&fixture.eal, &options, &fixture.pool).expect("a ring is a port");
        let ports = [port];
        let links = Arc::new(PortLinks::of(&ports));
        let accesses = of_workers(&fixture.eal, (&ports, &links), &fixture.pool, (1, workers)).expect("its queue");
        let [port] = ports;
        (port, links, accesses)
    }

    /// Sends until something finds no room: how many went, and what is left.
    fn filled(fixture: &DpdkFixture, access: &mut PortAccess) -> (usize, Batch<Mbuf>) {
        let mut sent = 0;
        for _ in 0..100 {
            let mut batch = fixture.frames(50, 0, &[0; 60]);
            access.transmit(&mut batch);
            sent += 50 - batch.len();
            if !batch.is_empty() {
                return (sent, batch);
            }
        }
        panic!("there is room for everything");
    }

    #[test]
    fn what_finds_no_room_waits_unless_its_link_is_down() {
        let fixture = DpdkFixture::new(8191);
        let (port, links, mut accesses) = accesses(&fixture, 1);
        let (sent, mut left) = filled(&fixture, &mut accesses[0]);
        let waiting = left.len();
        accesses[0].transmit(&mut left);
        assert_eq!((left.len(), accesses[0].cut_off()), (waiting, 0), "the link is up");
        assert!(links.set(0, false));
        accesses[0].transmit(&mut left);
        assert_eq!((left.len(), accesses[0].cut_off()), (0, waiting as u64));
        assert_eq!(fixture.pool.in_use(), sent as u32);
        // The link's state alone drops nothing that the port takes.
        assert_eq!(drained(&mut accesses[0]), sent);
        accesses[0].transmit(&mut fixture.frames(7, 0, &[0; 60]));
        assert_eq!((drained(&mut accesses[0]), accesses[0].cut_off()), (7, waiting as u64));
        drop((accesses, port));
        assert_eq!(fixture.pool.in_use(), 0);
    }

    #[test]
    fn what_names_no_port_is_counted() {
        let fixture = DpdkFixture::new(1023);
        let (port, _links, mut accesses) = accesses(&fixture, 1);
        // All of a batch, and some of one.
        accesses[0].transmit(&mut fixture.frames(5, 3, &[0; 60]));
        let mut mixed = fixture.frames(6, 3, &[0; 60]);
        mixed.extend(fixture.frames(4, 0, &[0; 60]));
        accesses[0].transmit(&mut mixed);
        assert_eq!((mixed.len(), accesses[0].misrouted(), accesses[0].cut_off()), (0, 11, 0));
        assert_eq!(drained(&mut accesses[0]), 4);
        drop((accesses, port));
        assert_eq!(fixture.pool.in_use(), 0);
    }

    /// The worker that sends for another falls behind: the other keeps what the ring has no room for; nothing is lost.
    #[test]
    fn what_is_sent_by_another_worker_waits_for_it() {
        let fixture = DpdkFixture::new(8191);
        let (port, _links, mut accesses) = accesses(&fixture, 2);
        let [first, second] =
            accesses.get_mut(..).and_then(|accesses| <&mut [PortAccess; 2]>::try_from(accesses).ok()).expect("two");
        let (sent, mut left) = filled(&fixture, second);
        assert_eq!(sent, 1024);
        let waiting = left.len();
        let mut got = 0;
        for _ in 0..1000 {
            first.relay();
            got += drained(first);
            second.transmit(&mut left);
        }
        assert_eq!((got, left.len()), (sent + waiting, 0));
        // The port has no room either: what was taken out of the ring waits, and goes when there is some.
        let (mut there, mut asked) = (0, 0);
        for _ in 0..100 {
            if left.is_empty() {
                left = fixture.frames(50, 0, &[0; 60]);
                asked += left.len();
            }
            second.transmit(&mut left);
            first.relay();
        }
        assert!(!left.is_empty());
        for _ in 0..1000 {
            there += drained(first);
            first.relay();
            second.transmit(&mut left);
        }
        assert_eq!((there, left.len()), (asked, 0));
        drop((accesses, port));
        assert_eq!(fixture.pool.in_use(), 0);
    }
}
