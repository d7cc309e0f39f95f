//! The link layer of a plane that owns its ports: a [`FrameIo`] around a [`FrameIo`], between a worker and, say, DPDK. It
//! answers and asks ARP and neighbour discovery, answers echo requests, checks IP headers, and finds the route: port,
//! next hop, Ethernet addresses. On the linux plane the kernel does all of this.
//!
//! It reads no clock: [`Link::advance`] is to be called once per iteration of the event loop. Nothing is allocated after [`Link::new`].
//!
//! # In
//! Frames for other Ethernet addresses are dropped. ARP, neighbour discovery and echo requests for addresses of ours end
//! here, or go back as answers in their own frames. IP headers are checked ([`header`]); what passes goes to the worker,
//! also what is for an address that is not ours: backends send to clients through us.
//!
//! # Out
//! The longest prefix names port and next hop. Where several gateways serve one prefix, the first is taken that is not
//! known to be dead. A packet longer than the port's MTU comes back to the worker with [`Arrival::TooBig`]; of a
//! super-packet, which the plane will cut up, that is said of its segments. The frame
//! gets Ethernet addresses, and its [`Meta::port`](crate::frame::Meta::port) becomes the port it leaves by. If the next
//! hop's address is not known, it is asked for, and the frame waits. What the worker passes to the kernel
//! ([`Egress::Kernel`]) is dropped: there is no other stack to take it. What is to go to a backend by its number
//! ([`Egress::Direct`]) goes to the neighbour that has the backend's address, whatever its own destination; never to a router,
//! which would send it back. If the backend is one that is hops away, the packet is wrapped, and routed by its outer header.
//! Hops were counted by the worker.
//!
//! VLAN tags stay as they are; neighbours under different tags are different ([`LinkSegment`]).
//!
//! # Bounds
//! [`HELD_MAX`] frames wait for neighbours, [`BATCH_MAX`] of our own for room on their way out, [`BATCH_MAX`] that are too
//! big for the worker to ask; a worker's requests for new neighbours, and its echo answers, are 1000 a second each (a
//! burst as many). Everything dropped is counted ([`LinkDrop`]), and [`LinkStatistics::balance`] holds after every call.
//!
//! # Not here
//! Fragments of what is for us, source routing, redirects, router and multicast listener discovery, ICMP host unreachable
//! when a neighbour does not answer, detection of duplicate addresses before use (claims of others are counted and, at
//! most once in ten seconds, countered by an announcement: RFC 5227, 2.4).

mod arp;
mod discovery;
mod echo;
pub mod header;
mod held;
mod hop;
mod inward;
pub mod neighbours;
mod outer;
mod outward;
mod plan;
mod routes;
mod segment;
mod statistics;
#[cfg(test)]
mod tests;

pub use held::{HELD_EACH, HELD_FOR, HELD_MAX};
pub use hop::{Hop, hop, hops_version};
pub use neighbours::{Neighbour, Neighbours};
pub use outer::DirectBackend;
pub use plan::{ADDRESSES_MAX, LinkError, LinkOptions, LinkPlan, MTU_MIN, PORTS_MAX, PortAddresses, ROUTES_MAX};
pub use routes::LinkRoute;
pub use segment::LinkSegment;
pub use statistics::{LinkDrop, LinkStatistics};

#[cfg(doc)]
use crate::frame::{Arrival, Egress};
use crate::frame::{BATCH_MAX, Batch, Frame, FrameIo};
use crate::time::{Duration, Time};
use crate::worker::Answers;
use alloc::boxed::Box;
use alloc::sync::Arc;
use held::Hold;
use neighbours::Asks;
use outward::CachedHop;
use routes::FEW_MAX;

/// Times an address is announced, a second apart (RFC 4861, 7.2.6; RFC 5227 does with two).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_secs(1);
/// Addresses announced in one iteration at most.
const ANNOUNCED_AT_ONCE: usize = 8;
/// Claims of others to our addresses are countered no more often (RFC 5227, DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// Next hops remembered from frame to frame; a power of two.
const REMEMBERED: usize = 128;

/// Announcements under way.
#[derive(Clone, Copy, Default)]
struct Announcing {
    /// Rounds left.
    rounds: u8,
    /// Which address is next, and at which port.
    address: usize,
    port: u16,
    /// When.
    due: Time,
}

/// The link layer of one worker. See the module's documentation.
pub struct Link<I: FrameIo> {
    io: I,
    plan: Arc<LinkPlan>,
    neighbours: Arc<Neighbours>,
    now: Time,
    /// Whether the neighbours have been told which of them are to be known at all times.
    kept: bool,
    hold: Hold<I::Frame>,
    /// The table's version when the hold was last gone through.
    hold_version: u64,
    /// Frames of our own, and released ones, that wait for room on their way out.
    departing: Batch<I::Frame>,
    /// Frames too big for the egress MTU, for the worker.
    too_big: Batch<I::Frame>,
    /// Next hops by their addresses, then gateways by the few routes that there mostly are.
    remembered: Box<[CachedHop; REMEMBERED + FEW_MAX]>,
    announcing: Announcing,
    /// Until when claims to our addresses are not countered.
    defended: Time,
    asks: Answers,
    echoes: Answers,
    statistics: LinkStatistics,
}

impl<I: FrameIo> Link<I> {
    /// A link layer around `io`. `neighbours` is shared by the workers of all of the plan's ports.
    pub fn new(plan: Arc<LinkPlan>, neighbours: Arc<Neighbours>, io: I) -> Link<I> {
        Link {
            io,
            plan,
            neighbours,
            now: Time::ZERO,
            kept: false,
            hold: Hold::new(),
            hold_version: 0,
            departing: Batch::new(),
            too_big: Batch::new(),
            remembered: Box::new([CachedHop::default(); REMEMBERED + FEW_MAX]),
            announcing: Announcing::default(),
            defended: Time::ZERO,
            asks: Answers::default(),
            echoes: Answers::default(),
            statistics: LinkStatistics::default(),
        }
    }

    /// Goes by another plan from now on. Its new addresses are announced if [`Link::announce`] is called.
    pub fn set_plan(&mut self, plan: Arc<LinkPlan>) {
        self.plan = plan;
        self.kept = false;
        self.announcing = Announcing::default();
        self.forget();
    }

    /// The plane's own.
    pub fn io(&self) -> &I {
        &self.io
    }

    /// The plane's own, to change.
    pub fn io_mut(&mut self) -> &mut I {
        &mut self.io
    }

    /// The counters so far.
    pub fn statistics(&self) -> &LinkStatistics {
        &self.statistics
    }

    /// Frames that are in here now: waiting for neighbours, for room on their way out, for the worker.
    pub fn waiting(&self) -> usize {
        self.hold.len() + self.departing.len() + self.too_big.len()
    }

    /// Announces our addresses on all ports ([`Neighbours::announce`] does the same from any thread).
    pub fn announce(&mut self) {
        self.announcing = Announcing { rounds: ANNOUNCEMENTS, address: 0, port: 0, due: self.now };
    }

    /// Tells the time, and does what is due, a bounded amount: requests, announcements, frames that have waited. To be
    /// called once per iteration, before [`FrameIo::receive`].
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        if !self.kept {
            self.kept = self.neighbours.keep(self.now, &self.plan.kept);
        }
        if now >= self.neighbours.sweep_due() {
            let mut asks = Asks::new();
            self.neighbours.sweep(now, &mut asks);
            asks.iter().for_each(|ask| self.ask(ask));
        }
        if self.neighbours.takes_announcement() {
            self.announce();
        }
        if self.announcing.rounds > 0 && self.announcing.due <= now {
            self.announce_some();
        }
        self.release();
        self.flush();
    }

    /// Sends what waits for room on its way out. Whether there is none left.
    fn flush(&mut self) -> bool {
        if !self.departing.is_empty() {
            let before = self.departing.len();
            self.io.transmit(&mut self.departing);
            self.statistics.sent += (before - self.departing.len()) as u64;
        }
        self.departing.is_empty()
    }

    /// Sends a frame of our own as soon as there is room.
    fn depart(&mut self, frame: I::Frame) {
        if self.departing.is_full() {
            self.flush();
        }
        if self.departing.try_push(frame).is_err() {
            self.drop_frame(LinkDrop::Backlog);
        }
    }

    fn drop_frame(&mut self, reason: LinkDrop) {
        self.statistics.drops[reason as usize] += 1;
    }

    /// Empties the cache of next hops.
    fn forget(&mut self) {
        self.remembered.fill(CachedHop::default());
    }
}

impl<I: FrameIo> FrameIo for Link<I> {
    type Frame = I::Frame;

    fn receive(&mut self, out: &mut Batch<I::Frame>) {
        let room = out.remaining_capacity().min(self.too_big.len());
        self.statistics.delivered += room as u64;
        self.statistics.too_big += room as u64;
        out.extend(self.too_big.drain(..room));
        let first = out.len();
        self.io.receive(out);
        self.statistics.received += (out.len() - first) as u64;
        self.inward(out, first);
        if !self.departing.is_empty() {
            self.flush();
        }
    }

    fn transmit(&mut self, batch: &mut Batch<I::Frame>) {
        self.release();
        // what waits goes first
        if !self.flush() {
            return;
        }
        self.outward(batch);
        let before = batch.len();
        if before > 0 {
            self.io.transmit(batch);
        }
        let sent = (before - batch.len()) as u64;
        self.statistics.sent += sent;
        self.statistics.taken += sent;
        self.flush();
    }

    fn allocate(&mut self) -> Option<I::Frame> {
        self.io.allocate()
    }

    fn room(&self) -> usize {
        self.io.room()
    }
}

/// Frames of one batch by position, as bits.
type Positions = u64;
const _: () = assert!(BATCH_MAX == Positions::BITS as usize);

/// Whether the frame goes to the worker, given that a plane may have marked it already.
fn is_returned<F: Frame>(frame: &F) -> bool {
    frame.meta().arrival != crate::frame::Arrival::Received
}
