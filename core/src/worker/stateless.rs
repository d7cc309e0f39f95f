//! Serving without tracking connections (papers/003, sections 2.1 and 4.2.1): every packet finds its backend by itself.
//!
//! A packet's way: parse; if it goes to a service, its 5-tuple says to which of the backends that may be chosen now, and
//! its destination is rewritten; if it comes from a backend's end, its source becomes the service's. Nothing is
//! remembered, so nothing ages or fills up, the engine is asked for nothing, and packets of no connection are not told
//! apart from others.
//!
//! # What that costs
//! When the backends that may be chosen change (one comes, goes, drains, is down or up again), connections in progress
//! move: about half of all under [`Stateless::Hash`], hardly any beside those of the backend concerned under
//! [`Stateless::Maglev`]. A slow start is none, for shares of a weight do not count, only whether there is one. Whatever
//! comes from a backend's end is taken for an answer to a client. All of it is NAT: a pool's ports would have to be
//! remembered. So no two services may share a backend's end, of the same protocol.

use super::packets::{View, volume, volume_of};
use super::{Drop, Worker};
use crate::balance::{Balancer, Target};
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::frame::{BATCH_MAX, Batch, Frame, FrameIo};
use crate::l4::connection::{Connection, State};
use crate::offload::OffloadPolicy;
use crate::rewrite::Rewrite;
use crate::table::stateless::Stateless as Scatter;
use crate::table::{Hasher, Table};
use crate::time::Time;
use crate::wire::plain::{self, Ends, Plain};
use crate::wire::tcp::{ACK, SYN};
use crate::wire::{IcmpError, Transport};

// A burst's packets are told apart by the bits of a word.
const _: () = assert!(BATCH_MAX <= u64::BITS as usize);

/// How every packet finds its backend by itself.
#[derive(Clone, Debug)]
pub enum Stateless {
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

/// Why a packet has no way.
#[derive(Clone, Copy)]
enum Astray {
    /// It neither goes to a service nor comes from a backend.
    NotOurs,
    /// No backend of this service may be chosen.
    NoBackend(u16),
}

/// Who serves a flow.
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

impl Aim<'_> {
    /// The end that a plain packet goes to, in a word.
    #[inline(always)]
    fn end_of(ends: Ends) -> u64 {
        u64::from(ends.destination) << 32 | u64::from(ends.destination_port) << 8 | ends.protocol as u64
    }
}

/// What becomes of the plain packets of a burst.
struct Routes {
    /// Their other ends: the backend, or the service with the backend's number.
    targets: [Target; BATCH_MAX],
    /// Those that have one, a bit each.
    known: u64,
    /// Those that come from a backend.
    answers: u64,
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// [`Worker::handle_batch`] of a worker that tracks no connections. One pass says where plain packets go, another
    /// rewrites them: each step of a hash waits for the one before, so several are to be under way at a time. The
    /// others have their turn after that; all go out in the order in which they came.
    pub(super) fn handle_stateless<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        rx: &mut Batch<IO::Frame>,
        tx: &mut Batch<IO::Frame>,
    ) {
        self.statistics.frames += rx.len() as u64;
        let routes = self.routes(rx);
        let mut others = 0_u64;
        for (i, (frame, &target)) in rx.iter_mut().zip(&routes.targets).enumerate() {
            let direction = if routes.answers >> i & 1 == 0 { Direction::FromClient } else { Direction::FromBackend };
            let rides = routes.known >> i & 1 != 0 && self.ride_untracked(frame, target, direction);
            others |= u64::from(!rides) << i;
        }
        if others == 0 && tx.is_empty() {
            self.statistics.forwarded += rx.len() as u64;
            return core::mem::swap(rx, tx);
        }
        for (i, frame) in rx.drain(..).enumerate() {
            if others >> i & 1 == 0 {
                self.send(frame, tx);
                continue;
            }
            match View::of(&frame) {
                View::Packet(at) => match self.way(now, &at.key) {
                    Ok((connection, direction)) => self.translate(now, frame, &at, &connection, direction, tx),
                    Err(Astray::NoBackend(service)) => self.turn_away(now, frame, &at, service, tx),
                    Err(Astray::NotOurs) => self.give_back(frame, tx),
                },
                View::TooBig(at, mtu) => {
                    let way = self.way(now, &at.key.reversed());
                    self.too_big(now, io, frame, (at, mtu), way.ok(), tx);
                }
                View::Icmp(error) => self.report(now, frame, &error, tx),
                View::Other => self.give_back(frame, tx),
                View::Bad(Ok(reason)) => self.drop_frame(reason),
                View::Bad(Err(malformed)) => self.statistics.malformed[malformed.index()] += 1,
            }
        }
    }

    /// The backend's end, its number, the service's end, and the direction of a flow.
    fn party(&self, key: &FlowKey) -> Result<Party<'_>, Astray> {
        if let Some(number) = self.services.at(&key.destination, key.protocol) {
            let service = self.snapshot.services.get(usize::from(number)).ok_or(Astray::NotOurs)?;
            let balancer = self.balancers.get(usize::from(number));
            let chosen = balancer.and_then(|balancer| self.chosen(balancer, key));
            let chosen = chosen.and_then(|index| service.backends.get(usize::from(index)));
            let backend = chosen.ok_or(Astray::NoBackend(number))?;
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

    /// Where the plain packets of a burst go, as far as that is simple.
    #[inline(never)]
    fn routes<F: Frame>(&self, rx: &Batch<F>) -> Routes {
        let mut routes = Routes { targets: [Target::default(); BATCH_MAX], known: 0, answers: 0 };
        let mut aim = Aim::default();
        for (i, (frame, room)) in rx.iter().zip(&mut routes.targets).enumerate() {
            let Some((plain, ends)) = super::packets::plain(frame) else { continue };
            let end = Aim::end_of(ends);
            if aim.end != end {
                aim = Aim { end, service: self.service_at(ends) };
            }
            let target = match aim.service {
                Some(balancer) => self.chosen(balancer, &ends.key()).and_then(|index| balancer.target(index)),
                None => self.answers_for(ends),
            };
            if let Some(target) = target
                && plain.ttl > 1
            {
                *room = target;
                routes.known |= 1 << i;
                routes.answers |= u64::from(aim.service.is_none()) << i;
            }
        }
        routes
    }

    /// The service that a plain packet goes to.
    fn service_at(&self, ends: Ends) -> Option<&Balancer> {
        let key = ends.key();
        let number = self.services.at(&key.destination, key.protocol)?;
        self.balancers.get(usize::from(number))
    }

    /// The service in whose name the backend that a plain packet comes from answers.
    fn answers_for(&self, ends: Ends) -> Option<Target> {
        let key = ends.key();
        let number = self.backends.at(&key.source, key.protocol)?;
        let end = self.snapshot.backend(number)?.0.endpoint;
        Some(Target { address: end.address.ipv4_octets(), port: end.port, number })
    }

    /// [`Worker::translate`] of a plain packet that has a way: `frame` is to be sent then. `false`, and nothing has
    /// happened, if it is no more what it was.
    #[inline(always)]
    fn ride_untracked<F: Frame>(&mut self, frame: &mut F, target: Target, direction: Direction) -> bool {
        let Target { address, port, number } = target;
        let (checksum, gso_size) = (frame.meta().checksum, frame.meta().gso_size);
        let Some(head) = frame.bytes().first_chunk() else { return false };
        let (protocol, mut volume) = (plain::protocol(head), (1, u64::from(plain::length(head))));
        if gso_size != 0 {
            let Some((plain, _)) = Plain::of(frame.bytes()) else { return false };
            volume = volume_of(frame.meta(), plain);
        }
        let Some(head) = frame.bytes_mut().first_chunk_mut() else { return false };
        Rewrite::readdress_plain_end(head, direction, (address, port), protocol, checksum);
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.software[direction as usize].add(volume.0, volume.1);
        }
        true
    }

    /// The backend (its index) that a client's flow goes to now.
    #[inline(always)]
    fn chosen(&self, balancer: &Balancer, key: &FlowKey) -> Option<u16> {
        match self.stateless.as_ref()? {
            Stateless::Hash(hasher) => {
                let open = balancer.open();
                open.get(Scatter::place(key, hasher, open.len() as u32)? as usize).copied()
            }
            Stateless::Maglev => balancer.pick_up(key),
        }
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
            Err(_) => self.give_back(frame, tx),
        }
    }
}
