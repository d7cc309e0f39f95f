//! Which worker a packet belongs to: it may come on any worker's queue, and the worker that takes it hands it to the worker that has
//! its connection, over a ring.
//!
//! No card works out our keyed hash of the client's end, and under NAT no symmetric hash brings both directions together
//! (the addresses of the two differ), so this is done in software, for every packet, whatever the card's own spreading
//! does. What is no packet of a connection stays where it came.

use super::super::ForwardingTable;
use super::super::limits::WAITING_MAX;
use anyhow::{Context, Result};
use hairpin_core::flow::Steering;
use hairpin_core::frame::{Arrival, Batch, Frame};
use hairpin_core::wire;
use hairpin_dpdk::{Eal, Mbuf, Ring, RingKind, RingReceiver, RingSender};
use std::sync::Arc;

/// A worker's part in it.
pub(super) struct WorkerSpread {
    worker: u16,
    steering: Steering,
    forwarding_table: Arc<ForwardingTable>,
    /// Frames that others have received for this worker.
    inbox: RingReceiver,
    /// To each worker; the one to itself is not used.
    outboxes: Vec<Outbox>,
    own: Batch<Mbuf>,
    handed: u64,
    dropped: u64,
}

struct Outbox {
    to: RingSender,
    frames: Batch<Mbuf>,
}

/// One for each worker; none where there is one worker.
pub(super) fn of_workers(
    eal: &Eal,
    forwarding_table: &Arc<ForwardingTable>,
    steering: Steering,
) -> Result<Vec<Option<WorkerSpread>>> {
    if steering.workers <= 1 {
        return Ok(vec![None]);
    }
    let rings = (0..steering.workers).map(|_| Ok(Ring::create(eal, WAITING_MAX, RingKind::ManyToOne)?));
    let (senders, inboxes): (Vec<RingSender>, Vec<RingReceiver>) =
        rings.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let spread = |(worker, inbox)| {
        let outbox =
            |to: &RingSender| Ok(Outbox { to: to.another().context("a ring for one sender")?, frames: Batch::new() });
        Ok(Some(WorkerSpread {
            worker,
            steering,
            forwarding_table: Arc::clone(forwarding_table),
            inbox,
            outboxes: senders.iter().map(outbox).collect::<Result<_>>()?,
            own: Batch::new(),
            handed: 0,
            dropped: 0,
        }))
    };
    (0..).zip(inboxes).map(spread).collect()
}

/// The worker of the flow that a frame is of, or is about as if it were a packet from where the error comes from; `None` if it
/// is of none.
fn owner<F: Frame>(forwarding_table: &ForwardingTable, steering: &Steering, frame: &F) -> Option<u16> {
    let key = wire::flow_of(frame)?;
    let from_client = forwarding_table.services.contains(&(key.destination, key.protocol));
    Some(steering.worker(if from_client { &key.source } else { &key.destination }))
}

impl WorkerSpread {
    /// Uses another set of services from now on.
    pub(super) fn set_forwarding_table(&mut self, forwarding_table: &Arc<ForwardingTable>) {
        self.forwarding_table = Arc::clone(forwarding_table);
    }

    /// Adds what others have received for this worker.
    pub(super) fn collect(&mut self, out: &mut Batch<Mbuf>) {
        self.inbox.receive(out);
    }

    /// Hands frames from position `first` on to the workers they belong to; those of this one stay.
    pub(super) fn hand_over(&mut self, batch: &mut Batch<Mbuf>, first: usize) {
        if batch.len() == first {
            return;
        }
        for frame in batch.drain(first..) {
            // A frame that the worker sent and got back is its own.
            let returned = frame.meta().arrival != Arrival::Received;
            let owner = if returned { None } else { owner(&self.forwarding_table, &self.steering, &frame) };
            match owner.filter(|owner| *owner != self.worker) {
                // A batch has room for all of another.
                Some(owner) => self.outboxes[usize::from(owner)].frames.push(frame),
                None => self.own.push(frame),
            }
        }
        batch.extend(self.own.drain(..));
        for outbox in self.outboxes.iter_mut().filter(|outbox| !outbox.frames.is_empty()) {
            self.handed += outbox.to.send(&mut outbox.frames) as u64;
            self.dropped += outbox.frames.len() as u64;
            Mbuf::free_burst(&mut outbox.frames);
        }
    }

    /// Frames handed to others.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// Frames dropped because too many waited for their worker.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::DpdkFixture;
    use super::*;
    use etherparse::PacketBuilder;
    use hairpin_core::flow::{Endpoint, Protocol};
    use hairpin_core::frame::VecFrame;
    use hairpin_core::link::{LinkOptions, LinkPlan, PortAddresses};
    use std::net::IpAddr;

    const CLIENT: ([u8; 4], u16) = ([198, 51, 100, 1], 4000);
    const VIP: ([u8; 4], u16) = ([192, 0, 2, 1], 80);
    const BACKEND: ([u8; 4], u16) = ([10, 0, 0, 2], 8080);

    fn forwarding_table() -> ForwardingTable {
        let port = PortAddresses {
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            networks: vec![(IpAddr::from([10, 0, 0, 1]), 24)],
            gateways: Vec::new(),
        };
        let plan = LinkPlan::new(&LinkOptions { ports: vec![port], ..LinkOptions::default() }).unwrap();
        let mut services = std::collections::HashSet::with_hasher(ahash::RandomState::with_seed(0));
        services.insert((Endpoint::new(IpAddr::from(VIP.0), VIP.1), Protocol::Tcp));
        ForwardingTable { plan: Arc::new(plan), services }
    }

    fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(from.0, to.0, 20).tcp(from.1, to.1, 1000, 1000);
        let mut bytes = Vec::new();
        builder.ack(1).write(&mut bytes, &[]).unwrap();
        bytes
    }

    /// An ICMP error from `from` about `about`, a frame that went out.
    fn error(from: [u8; 4], about: &[u8]) -> Vec<u8> {
        use etherparse::icmpv4::DestUnreachableHeader::Host;
        let kind = etherparse::Icmpv4Type::DestinationUnreachable(Host);
        let to: [u8; 4] = about[26..30].try_into().unwrap();
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(from, to, 20).icmpv4(kind);
        builder.write(&mut bytes, &about[14..14 + 28]).unwrap();
        bytes
    }

    #[test]
    fn both_directions_and_errors_about_them_belong_to_one_worker() {
        let forwarding_table = forwarding_table();
        let mut seen = std::collections::BTreeSet::new();
        for port in 4000..4100 {
            let client = (CLIENT.0, port);
            let steering = Steering::by_hash([1, 2], 4);
            let of = |frame: &[u8]| owner(&forwarding_table, &steering, &VecFrame::new(frame)).unwrap();
            let worker = of(&segment(client, VIP));
            assert_eq!(worker, steering.worker(&Endpoint::new(IpAddr::from(client.0), client.1)));
            assert_eq!(of(&segment(BACKEND, client)), worker);
            // About what went to the backend, and what went to the client.
            assert_eq!(of(&error([10, 0, 0, 9], &segment(client, BACKEND))), worker);
            assert_eq!(of(&error([10, 0, 0, 9], &segment(VIP, client))), worker);
            seen.insert(worker);
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn what_is_of_no_flow_stays() {
        let steering = Steering::by_hash([1, 2], 4);
        let mut arp = segment(CLIENT, VIP);
        arp[12..14].copy_from_slice(&[8, 6]);
        for frame in [&arp[..], &[], &[0; 60]] {
            assert_eq!(owner(&forwarding_table(), &steering, &VecFrame::new(frame)), None);
        }
    }

    /// A worker that does not keep up: what its ring has no room for is counted, and its buffers go back.
    #[test]
    fn what_finds_no_room_at_its_worker_is_counted() {
        let fixture = DpdkFixture::new(8191);
        let steering = Steering::by_hash([1, 2], 2);
        let both = of_workers(&fixture.eal, &Arc::new(forwarding_table()), steering).unwrap();
        let [Some(mut first), Some(mut second)] = <[_; 2]>::try_from(both).ok().unwrap() else { panic!("two workers") };
        let of_second = |port: &u16| steering.worker(&Endpoint::new(IpAddr::from(CLIENT.0), *port)) == 1;
        let theirs = segment((CLIENT.0, (4000..).find(of_second).unwrap()), VIP);
        for _ in 0..100 {
            let mut batch = fixture.frames(50, 0, &theirs);
            first.hand_over(&mut batch, 0);
            assert!(batch.is_empty());
        }
        assert_eq!((first.handed(), first.dropped()), (4096, 5000 - 4096));
        assert_eq!(fixture.pool.in_use(), WAITING_MAX);
        let (mut batch, mut got) = (Batch::new(), 0);
        while fixture.pool.in_use() > 0 {
            second.collect(&mut batch);
            assert!(!batch.is_empty() && batch.iter().all(|frame| frame.bytes() == theirs));
            got += batch.len();
            batch.clear();
        }
        assert_eq!(got, 4096);
        // There is room again.
        first.hand_over(&mut fixture.frames(50, 0, &theirs), 0);
        assert_eq!((first.handed(), first.dropped()), (4096 + 50, 5000 - 4096));
        drop((first, second));
        assert_eq!(fixture.pool.in_use(), 0);
    }
}
