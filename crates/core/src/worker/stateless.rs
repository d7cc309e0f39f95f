//! Serving without tracking connections (KTH 2020, sections 2.1 and 4.2.1): every packet finds its backend by itself.
//!
//! A packet's way: parse; if it goes to a service, its 5-tuple says to which of the backends that may be chosen now, and
//! its destination is rewritten; if it comes from a backend's end, its source becomes the service's. Nothing is
//! remembered, so nothing ages or fills up, the engine is asked for nothing, and packets of no connection are not told
//! apart from others.
//!
//! # What that costs
//! When the backends that may be chosen change (one comes, goes, drains, is down or up again), connections in progress
//! move: about half of all under [`StatelessMethod::Hash`], hardly any beside those of the backend concerned under
//! [`StatelessMethod::Maglev`]. A slow start is none, for shares of a weight do not count, only whether there is one. Whatever
//! comes from a backend's end is taken for an answer to a client. All of it is NAT: a pool's ports would have to be
//! remembered. So no two services may share a backend's end, of the same protocol.

use super::ends::Ends as Numbers;
use super::views::{FrameView, volume};
use super::{BackendStatistics, Drop, Worker};
use crate::balance::{Balancer, Ipv4Target};
use crate::config::Snapshot;
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::{BATCH_MAX, Batch, Checksum, Frame, FrameIo};
use crate::l4::connection::{Connection, State};
use crate::offload::OffloadPolicy;
use crate::rewrite::Rewrite;
use crate::table::stateless::Stateless as Scatter;
use crate::table::{Hash, Hasher, Key, Table};
use crate::time::Time;
use crate::wire::plain::{self, PlainEnds, PlainNetwork, PlainPacket};
use crate::wire::tcp::{ACK, SYN};
use crate::wire::{IcmpError, Transport};

// A burst's packets are told apart by the bits of a word.
const _: () = assert!(BATCH_MAX <= u64::BITS as usize);

/// How every packet finds its backend by itself.
#[derive(Clone, Debug)]
pub enum StatelessMethod {
    /// A hash of the 5-tuple, scaled to the number of backends that may be chosen; weights beyond 0 are ignored. A hasher
    /// of the same secret gives the same answers, in any worker and process.
    Hash(Hasher),
    /// Maglev's table and hash, as the balancer of the same name has them ([`Balancer::pick_up`]): every service must be
    /// balanced by [`Algorithm::Maglev`]. The same answers wherever there are the same backends.
    ///
    /// [`Balancer::pick_up`]: crate::balance::Balancer::pick_up
    /// [`Algorithm::Maglev`]: crate::config::Algorithm::Maglev
    Maglev,
}

impl StatelessMethod {
    /// The backend that a client's flow goes to now.
    fn choose(&self, balancer: &Balancer, key: &FlowKey) -> Option<Ipv4Target> {
        match self {
            StatelessMethod::Hash(hasher) => place(balancer, key.hash(hasher)),
            StatelessMethod::Maglev => balancer.target(balancer.pick_up(key)?),
        }
    }

    /// The backend that the flow of a client's plain packet goes to now.
    #[inline(always)]
    fn choose_plain(&self, balancer: &Balancer, ends: PlainEnds) -> Option<Ipv4Target> {
        match self {
            StatelessMethod::Hash(hasher) => place(balancer, hasher.of_ipv4(ends.ipv4_words())),
            StatelessMethod::Maglev => balancer.target(balancer.pick_up_ipv4(ends.ipv4_words())?),
        }
    }
}

/// The backend, of those that may be chosen, that a flow of this hash goes to.
#[inline(always)]
fn place(balancer: &Balancer, hash: Hash) -> Option<Ipv4Target> {
    let open = balancer.open_targets();
    open.get(Scatter::place(hash, open.len() as u32) as usize).copied()
}

/// Why a packet has no way.
#[derive(Clone, Copy)]
enum Astray {
    /// It neither goes to a service nor comes from a backend.
    NotOurs,
    /// No backend of this service may be chosen.
    NoBackend(u16),
}

/// The backend that serves a flow.
struct Party<'a> {
    /// The backend's and the service's.
    ends: [&'a Endpoint; 2],
    /// The backend's.
    number: u16,
    direction: Direction,
}

/// Whom the packet before went to: in a burst many go to the same.
#[derive(Default)]
struct Aim<'a> {
    /// The end it went to, in a word; 0, which is none, before the first.
    end: u64,
    /// The service there, if there is one.
    service: Option<&'a Balancer>,
}

/// The parts that decide where packets go.
struct Ways<'a> {
    stateless: &'a StatelessMethod,
    services: &'a Numbers,
    backends: &'a Numbers,
    balancers: &'a [Balancer],
    snapshot: &'a Snapshot,
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// [`Worker::handle_batch`] of a worker that tracks no connections: plain packets first, then the others; all go out in
    /// the order in which they came.
    pub(super) fn handle_stateless<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        rx: &mut Batch<IO::Frame>,
        tx: &mut Batch<IO::Frame>,
    ) {
        self.statistics.frames += rx.len() as u64;
        let others = self.ride_untracked(rx);
        if others == 0 && tx.is_empty() {
            self.statistics.forwarded += rx.len() as u64;
            *tx = core::mem::take(rx);
            return;
        }
        for (i, frame) in rx.drain(..).enumerate() {
            if others >> i & 1 == 0 {
                self.send(frame, tx);
                continue;
            }
            match FrameView::of(&frame) {
                FrameView::Packet(at) => match self.way(now, &at.key) {
                    Ok((connection, direction)) => self.translate(now, frame, &at, &connection, direction, tx),
                    Err(Astray::NoBackend(service)) => self.turn_away(now, frame, &at, service, tx),
                    Err(Astray::NotOurs) => self.pass_to_kernel(frame, tx),
                },
                FrameView::TooBig(at, mtu) => {
                    let way = self.way(now, &at.key.reversed());
                    self.too_big(now, io, frame, (at, mtu), way.ok(), tx);
                }
                FrameView::Icmp(error) => self.report(now, frame, &error, tx),
                FrameView::Other => self.pass_to_kernel(frame, tx),
                FrameView::Bad(Ok(reason)) => self.drop_frame(reason),
                FrameView::Bad(Err(malformed)) => self.statistics.malformed[malformed.index()] += 1,
            }
        }
    }

    /// [`Worker::translate`] of the plain packets of a burst that have a way: they are to be sent then. Says which do not,
    /// a bit each; nothing has happened to those.
    #[inline(never)]
    fn ride_untracked<F: Frame>(&mut self, rx: &mut Batch<F>) -> u64 {
        let Worker { stateless: Some(stateless), services, backends, balancers, snapshot, statistics, .. } = self
        else {
            return u64::MAX;
        };
        let ways = Ways { stateless, services, backends, balancers, snapshot };
        let (mut aim, mut others, mut next) = (Aim::default(), 0, 0);
        while let Some(frames) = rx.get_mut(next..)
            && let Some(odd) = frames
                .iter_mut()
                .position(|frame| ways.forward_fast(frame, &mut aim, &mut statistics.backends).is_none())
        {
            others |= 1 << (next + odd);
            next += odd + 1;
        }
        others
    }

    /// The backend's end, its number, the service's end, and the direction of a flow.
    fn party(&self, key: &FlowKey) -> Result<Party<'_>, Astray> {
        if let Some(number) = self.services.at(&key.destination, key.protocol) {
            let service = self.snapshot.services.get(usize::from(number)).ok_or(Astray::NotOurs)?;
            let balancer = self.balancers.get(usize::from(number));
            let chosen = balancer.and_then(|balancer| self.stateless.as_ref()?.choose(balancer, key));
            let chosen = chosen.and_then(|target| self.snapshot.backend(target.number));
            let (_, backend) = chosen.ok_or(Astray::NoBackend(number))?;
            let (ends, direction) = ([&backend.endpoint, &service.endpoint], Direction::FromClient);
            return Ok(Party { ends, number: backend.number, direction });
        }
        let number = self.backends.at(&key.source, key.protocol).ok_or(Astray::NotOurs)?;
        let (service, backend) = self.snapshot.backend(number).ok_or(Astray::NotOurs)?;
        Ok(Party { ends: [&backend.endpoint, &service.endpoint], number, direction: Direction::FromBackend })
    }

    /// The connection that a flow must be of, as if it began now, and the flow's direction.
    fn way(&self, now: Time, key: &FlowKey) -> Result<(Connection, Direction), Astray> {
        let Party { ends: [backend, service], number, direction } = self.party(key)?;
        let client = match direction {
            Direction::FromClient => key.source,
            Direction::FromBackend => key.destination,
        };
        let connection = Connection::new(now, key.protocol, State::Established, [client, *service, *backend, client]);
        Ok((Connection { backend_number: number, ..connection }, direction))
    }

    /// A packet that has a way is rewritten and sent on.
    fn translate<F: Frame>(
        &mut self,
        now: Time,
        mut frame: F,
        at: &Transport,
        connection: &Connection,
        direction: Direction,
        tx: &mut Batch<F>,
    ) {
        if at.ttl <= 1 {
            return self.time_exceeded(now, frame, at, tx);
        }
        let (packets, bytes) = volume(frame.meta(), at);
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(connection.backend_number)) {
            backend.software[direction as usize].add(packets, bytes);
        }
        let checksum = frame.meta().checksum;
        connection.rewrite(direction).apply(frame.bytes_mut(), at, checksum);
        self.send(frame, tx);
    }

    /// There is no backend for it. What begins a connection, as far as can be seen, counts as one refused.
    fn turn_away<F: Frame>(&mut self, now: Time, frame: F, at: &Transport, service: u16, tx: &mut Batch<F>) {
        let first = at.key.protocol == Protocol::Udp || at.tcp_flags & (SYN | ACK) == SYN;
        if let Some(service) = self.statistics.services.get_mut(usize::from(service))
            && first
        {
            service.refused += 1;
        }
        self.refuse(now, frame, at, Drop::NoBackend, tx);
    }

    /// An ICMP error about a packet that we, by what it quotes, have sent on.
    fn report<F: Frame>(&mut self, now: Time, frame: F, error: &IcmpError, tx: &mut Batch<F>) {
        match self.way(now, &error.quoted.reversed()) {
            Ok((connection, toward)) => self.pass_on(frame, error, &connection, toward, tx),
            Err(_) => self.pass_to_kernel(frame, tx),
        }
    }
}

impl<'a> Ways<'a> {
    /// An ordinary plain packet that has a way is rewritten and counted; `None`, and nothing has happened, of any other.
    #[inline(always)]
    fn forward_fast<F: Frame>(
        &self,
        frame: &mut F,
        aim: &mut Aim<'a>,
        backends: &mut [BackendStatistics],
    ) -> Option<()> {
        let network = match frame.is_examined() {
            true => PlainNetwork::examined(frame.bytes())?,
            false => PlainNetwork::of(frame.bytes())?,
        };
        if network.ttl() <= 1 || !frame.is_ordinary() {
            return None;
        }
        // A way each, in which the compiler knows the protocol.
        match network.protocol() {
            plain::TCP => {
                let found = network.honest(Protocol::Tcp)?;
                self.readdress(frame, found, aim, backends)
            }
            plain::UDP => {
                let found = network.honest(Protocol::Udp)?;
                self.readdress(frame, found, aim, backends)
            }
            _ => None,
        }
    }

    /// A plain packet of this flow is rewritten and counted if it has a way; `None`, and nothing has happened, if not.
    #[inline(always)]
    fn readdress<F: Frame>(
        &self,
        frame: &mut F,
        (plain, ends): (PlainPacket, PlainEnds),
        aim: &mut Aim<'a>,
        backends: &mut [BackendStatistics],
    ) -> Option<()> {
        let end = ends.destination();
        if aim.end != end {
            *aim = Aim { end, service: self.service_at(&ends.key()) };
        }
        // A way for each direction, too.
        match aim.service {
            Some(balancer) => {
                let target = self.stateless.choose_plain(balancer, ends)?;
                forward(frame, (plain, ends), target, Direction::FromClient, backends)
            }
            None => {
                let target = self.answers_for(&ends.key())?;
                forward(frame, (plain, ends), target, Direction::FromBackend, backends)
            }
        }
    }

    /// The service that a packet goes to.
    #[inline(never)]
    fn service_at(&self, key: &FlowKey) -> Option<&'a Balancer> {
        let number = self.services.at(&key.destination, key.protocol)?;
        self.balancers.get(usize::from(number))
    }

    /// The service in whose name the backend that a packet comes from answers.
    fn answers_for(&self, key: &FlowKey) -> Option<Ipv4Target> {
        let number = self.backends.at(&key.source, key.protocol)?;
        let end = self.snapshot.backend(number)?.0.endpoint;
        Some(Ipv4Target { address: end.address.ipv4_octets(), port: end.port, number })
    }
}

/// A plain packet gets a new end, and is counted.
#[inline(always)]
fn forward<F: Frame>(
    frame: &mut F,
    (plain, ends): (PlainPacket, PlainEnds),
    target: Ipv4Target,
    direction: Direction,
    backends: &mut [BackendStatistics],
) -> Option<()> {
    let head = frame.bytes_mut().first_chunk_mut()?;
    let end = (target.address, target.port);
    Rewrite::readdress_plain_end(head, direction, end, ends.protocol, Checksum::Complete);
    if let Some(backend) = backends.get_mut(usize::from(target.number)) {
        backend.software[direction as usize].add(1, u64::from(plain.length()));
    }
    Some(())
}
