//! A burst's way through the worker: parse and key; hash and probe; act (rewrite, answer, pass to the kernel, drop). Most
//! packets take the fast path ([`fast_path`](super::fast_path)).

use super::views::{FrameView, Views, look, volume};
use super::{ConnectionFlows, Drop, Worker, passive};
use crate::flow::{Direction, FlowKey, Protocol};
use crate::frame::{Arrival, BATCH_MAX, Batch, Egress, Frame, FrameIo};
use crate::l4::answer::{self, Notice};
use crate::l4::connection::{Connection, Flags, State};
use crate::l4::icmp;
use crate::limit::{LimitAction, Limited};
use crate::offload::OffloadPolicy;
use crate::rewrite::lower_hops;
use crate::table::{Entries, Position, Table};
use crate::time::Time;
use crate::wire::tcp::{FIN, RST, SYN};
use crate::wire::{IcmpError, Transport};

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Takes all frames of `rx`. Those to send are in `tx` afterwards, whose room must be no less than `rx` is long;
    /// the others are counted and dropped. `io` lends frames for the pieces of packets that must be fragmented.
    pub fn handle_batch<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        rx: &mut Batch<IO::Frame>,
        tx: &mut Batch<IO::Frame>,
    ) {
        if self.effective_weights_have_changed() {
            self.follow_effective_weights(now);
        }
        if self.stateless.is_some() {
            return self.handle_stateless(now, io, rx, tx);
        }
        if self.sets_up.is_some() {
            self.take_set_up(now);
        }
        self.rules.refresh(self.splices.rules());
        if let Some(frame) = rx.first() {
            self.port = frame.meta().port;
        }
        // Borrowed for the iteration.
        let mut keys = core::mem::take(&mut self.keys);
        self.handle_tracked(now, io, (rx, tx), &mut keys);
        self.keys = keys;
    }

    /// Takes all frames of `rx` where the worker tracks connections; `keys` is room for the keys of a burst.
    #[inline(always)]
    fn handle_tracked<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        (rx, tx): (&mut Batch<IO::Frame>, &mut Batch<IO::Frame>),
        keys: &mut [FlowKey],
    ) {
        let (mut plains, mut found) = ([None; BATCH_MAX], [None; BATCH_MAX]);
        let mut views = Views::new();
        look(rx, keys, &mut plains, &mut views);
        self.statistics.frames += rx.len() as u64;
        let (keys, found) = (&keys[..rx.len()], &mut found[..rx.len()]);
        if IO::Frame::MARKS && self.marks {
            self.find_marked(rx, keys, found);
        } else {
            // Whether it is so is asked of each only when its turn comes: until then its connection may still be on its way
            // into the cache.
            self.table.guess_burst(keys, &ConnectionFlows(&self.slab), found);
        }
        let probed = self.index_changes;
        // Nearly always all of a burst take the fast path, and stay where they are.
        let fast = self.forward_burst_fast(now, rx, keys, &plains, found);
        if fast == rx.len() && tx.is_empty() {
            self.statistics.forwarded += fast as u64;
            *tx = core::mem::take(rx);
            return;
        }
        let mut views = views.drain(..);
        for (i, mut frame) in rx.drain(..).enumerate() {
            if i < fast {
                self.send(frame, tx);
                continue;
            }
            let (key, plain, found) = (&keys[i], plains[i], found[i]);
            let absent = found.is_none() && self.index_changes == probed;
            let found = if absent { None } else { self.find_again(key, found) };
            match (plain, found) {
                (Some(plain), Some((position, direction))) => {
                    if self.forward_fast(now, &mut frame, plain, key, super::value(position, direction)) {
                        self.send(frame, tx);
                    } else {
                        self.forward(now, frame, plain.transport(*key), position, direction, tx);
                    }
                }
                (Some(plain), None) => self.without_connection(now, io, frame, plain.transport(*key), tx),
                (None, found) => {
                    if let Some(view) = views.next() {
                        self.act(now, io, (frame, view), found, tx);
                    }
                }
            }
        }
    }

    /// The connection that the probe found, if it is still there; else it is searched for again.
    fn find_again(&self, key: &FlowKey, found: Option<u32>) -> Option<(Position, Direction)> {
        match found {
            Some(value) if ConnectionFlows(&self.slab).is(value, key) => Some(super::parts(value)),
            _ => self.find(key),
        }
    }

    /// A frame that is not plain, and what was made of it.
    fn act<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        (frame, view): (IO::Frame, FrameView),
        found: Option<(Position, Direction)>,
        tx: &mut Batch<IO::Frame>,
    ) {
        match view {
            FrameView::Packet(at) => match found {
                Some((position, direction)) => self.forward(now, frame, at, position, direction, tx),
                None => self.without_connection(now, io, frame, at, tx),
            },
            FrameView::TooBig(at, mtu) if found.is_none() => {
                if let Some(frame) = self.splice_too_big(now, io, frame, (&at, mtu), tx) {
                    let found = self.sent_unchanged(&at.key);
                    self.too_big(now, io, frame, (at, mtu), found, tx);
                }
            }
            FrameView::TooBig(at, mtu) => {
                let found = found.map(|(position, direction)| (*self.slab.at(position), direction));
                self.too_big(now, io, frame, (at, mtu), found, tx)
            }
            FrameView::Icmp(error) if found.is_none() && self.splice_error(now, io, frame.bytes(), &error, tx) => {}
            FrameView::Icmp(error) => {
                let found = found.or_else(|| self.seek_in_engine(now, &error.quoted.reversed()));
                self.icmp_error(now, frame, error, found, tx)
            }
            FrameView::Other => self.pass_to_kernel(frame, tx),
            FrameView::Bad(Ok(reason)) => self.drop_frame(reason),
            FrameView::Bad(Err(malformed)) => self.statistics.malformed[malformed.index()] += 1,
        }
    }

    /// The connection of direct server return whose client's packets have this key, as they came and as they were sent, and
    /// the direction of its other flow.
    fn sent_unchanged(&self, key: &FlowKey) -> Option<(Connection, Direction)> {
        let (position, direction) = self.find(key)?;
        let connection = self.slab.at(position);
        connection.flags.has(Flags::DIRECT).then_some((*connection, direction.reversed()))
    }

    /// Counts a dropped frame.
    pub(super) fn drop_frame(&mut self, reason: Drop) {
        self.statistics.drops[reason as usize] += 1;
    }

    /// Sends a frame on, or counts that there was no room.
    pub(super) fn send<F: Frame>(&mut self, frame: F, tx: &mut Batch<F>) {
        match tx.try_push(frame) {
            Ok(()) => self.statistics.forwarded += 1,
            Err(_) => self.drop_frame(Drop::NoFrame),
        }
    }

    /// Turns a frame into an answer of our own and sends it, unless there have been too many of late.
    fn answer<F: Frame>(&mut self, now: Time, mut frame: F, make: impl FnOnce(&mut F) -> bool, tx: &mut Batch<F>) {
        if !self.answers.admits(now) {
            self.drop_frame(Drop::AnswerLimit);
        } else if make(&mut frame) {
            self.statistics.answered += 1;
            self.send(frame, tx);
        } else {
            self.drop_frame(Drop::Unanswerable);
        }
    }

    /// Passes a frame to the kernel.
    pub(super) fn pass_to_kernel<F: Frame>(&mut self, mut frame: F, tx: &mut Batch<F>) {
        frame.meta_mut().egress = Egress::Kernel;
        self.statistics.to_kernel += 1;
        if tx.try_push(frame).is_err() {
            self.drop_frame(Drop::NoFrame);
        }
    }

    /// A packet of a known connection.
    pub(super) fn forward<F: Frame>(
        &mut self,
        now: Time,
        mut frame: F,
        at: Transport,
        position: Position,
        direction: Direction,
        tx: &mut Batch<F>,
    ) {
        if self.slab.at(position).state == State::Pass {
            self.see_passing(now, position, &at);
            return self.pass_to_kernel(frame, tx);
        }
        if at.ttl <= 1 {
            return self.time_exceeded(now, frame, &at, tx);
        }
        if self.slab.at(position).flags.has(Flags::SEVERED) {
            return self.answer_severed(now, frame, at, (position, direction), tx);
        }
        if self.is_wrongly_guessed(now, position, direction, &at, frame.bytes()) {
            return self.give_up_guess(now, frame, position, direction, tx);
        }
        if self.accepts_another_connection(position, direction, &at) {
            // not while the engine owes answers; the backend says it again in a second
            return if self.begin_removal(now, position) {
                self.unmatched(now, frame, at, tx)
            } else {
                self.drop_frame(Drop::Stale)
            };
        }
        if self.begins_anew(position, direction, at.tcp_flags) {
            if self.denies(self.slab.at(position).service, &at) {
                return self.drop_frame(Drop::Denied);
            }
            if passive::is_broken(&frame, &at) {
                return self.drop_frame(Drop::Checksum);
            }
            if !self.takes_connections(position) {
                return if self.begin_removal(now, position) {
                    self.unmatched(now, frame, at, tx)
                } else {
                    self.drop_frame(Drop::Stale)
                };
            }
            let service = self.slab.at(position).service;
            if let Some(limited) = self.begin_limited(now, service, &at.key.source.address) {
                return self.refuse_limited(now, frame, &at, limited, tx);
            }
            self.end_beginning(service, &at.key.source.address);
            self.restart(now, position);
            self.excuse_odd(position, frame.bytes(), &at);
        }
        self.advance(now, position, direction, &at, frame.bytes());
        let (packets, bytes) = volume(frame.meta(), &at);
        let connection = self.slab.at_mut(position);
        connection.last_seen = now;
        connection.forwarded[direction as usize].add(packets, bytes);
        let connection = *connection;
        let number = self.backend_number(position);
        self.statistics.backends[number].software[direction as usize].add(packets, bytes);
        translate(&mut frame, &at, &connection, direction);
        self.offer(now, position, bytes, direction);
        self.send(frame, tx);
    }

    /// A packet of no known connection.
    pub(super) fn unmatched<F: Frame>(&mut self, now: Time, frame: F, at: Transport, tx: &mut Batch<F>) {
        if let Some((position, direction)) = self.seek_in_engine(now, &at.key) {
            return self.forward(now, frame, at, position, direction, tx);
        }
        if let Some(service) = self.services.at(&at.key.destination, at.key.protocol) {
            self.statistics.services[usize::from(service)].speculative += 1;
            return self.new_flow(now, frame, at, service, tx);
        }
        if let Some(position) = self.guess(now, &at) {
            return self.forward(now, frame, at, position, Direction::FromBackend, tx);
        }
        let goes_on = at.tcp_flags & (SYN | FIN | RST) == 0 || self.begins_elsewhere(&at);
        if self.backends.at(&at.key.source, at.key.protocol).is_some() && goes_on {
            self.pass(now, &at.key);
        }
        self.pass_to_kernel(frame, tx);
    }

    /// Leaves a flow from a backend's end to the kernel from now on.
    pub(super) fn pass(&mut self, now: Time, key: &FlowKey) {
        if self.passes >= self.passes_max {
            self.statistics.offload.passes_full += 1;
            return;
        }
        if let Some(position) = self.insert_pass(now, key) {
            self.install_pass(now, position);
        }
    }

    /// A packet's hops have run out.
    pub(super) fn time_exceeded<F: Frame>(&mut self, now: Time, frame: F, at: &Transport, tx: &mut Batch<F>) {
        self.drop_frame(Drop::TimeToLive);
        let from = at.key.destination.address;
        self.answer(now, frame, |f| answer::notice(f, at, Notice::TimeExceeded, from), tx);
    }

    /// A packet we sent was too big for its way out: cut it up if it allows that, else tell its sender. `found`: its
    /// connection, and the direction of the other flow of that.
    pub(super) fn too_big<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        mut frame: IO::Frame,
        (at, mtu): (Transport, u16),
        found: Option<(Connection, Direction)>,
        tx: &mut Batch<IO::Frame>,
    ) {
        let Some((connection, reverse)) = found else { return self.drop_frame(Drop::TooBig) };
        let meta = frame.meta_mut();
        meta.arrival = Arrival::Received;
        meta.egress = Egress::Route;
        let direction = reverse.reversed();
        let egress = connection.egress(direction);
        if at.key.is_ipv4() && frame.bytes()[at.l3 + 6] & 0x40 == 0 && frame.meta().gso_size == 0 {
            self.statistics.fragmented += 1;
            let statistics = &mut self.statistics;
            let out = |mut piece: IO::Frame| {
                piece.meta_mut().egress = egress;
                if tx.try_push(piece).is_err() {
                    statistics.drops[Drop::NoFrame as usize] += 1;
                }
            };
            if answer::fragment(&mut frame, &at, mtu, || io.allocate(), out) {
                frame.meta_mut().egress = egress;
                self.send(frame, tx);
            } else {
                self.drop_frame(Drop::NoFrame);
            }
            return;
        }
        self.drop_frame(Drop::TooBig);
        let key = connection.key(direction);
        let checksum = frame.meta().checksum;
        if egress == Egress::Route {
            connection.rewrite(direction).undone(&key).apply(frame.bytes_mut(), &at, checksum);
        }
        let at = Transport { key, ..at };
        let make = |f: &mut IO::Frame| answer::notice(f, &at, Notice::TooBig { mtu }, key.destination.address);
        self.answer(now, frame, make, tx);
    }

    /// An ICMP error about a packet we sent.
    fn icmp_error<F: Frame>(
        &mut self,
        now: Time,
        frame: F,
        error: IcmpError,
        found: Option<(Position, Direction)>,
        tx: &mut Batch<F>,
    ) {
        let Some((position, toward)) = found else { return self.pass_to_kernel(frame, tx) };
        let connection = *self.slab.at(position);
        if connection.state == State::Pass {
            return self.pass_to_kernel(frame, tx);
        }
        if error.ttl > 1 && toward == Direction::FromBackend {
            self.note_report(now, position, error.kind);
        }
        self.pass_on(frame, &error, &connection, toward, tx);
    }

    /// Sends an ICMP error on to who sent the packet of `connection` that it is about; the flow `toward` comes from where
    /// the error comes from.
    pub(super) fn pass_on<F: Frame>(
        &mut self,
        mut frame: F,
        error: &IcmpError,
        connection: &Connection,
        toward: Direction,
        tx: &mut Batch<F>,
    ) {
        if error.ttl <= 1 {
            return self.drop_frame(Drop::TimeToLive);
        }
        // found by the flow that comes from where the error comes from; the packet in trouble went the other way
        let is_one_way = connection.flags.has(Flags::DIRECT);
        let sent = if is_one_way { connection.key(toward).reversed() } else { connection.key(toward.reversed()) };
        let (near, shown) = match toward {
            Direction::FromClient => (connection.client, connection.source),
            Direction::FromBackend => (connection.backend, connection.vip),
        };
        let source = if error.source == near.address { shown.address } else { error.source };
        icmp::translate(frame.bytes_mut(), error, source, sent.source.address, sent.source, sent.destination);
        self.statistics.icmp_errors += 1;
        frame.meta_mut().egress = connection.egress(toward);
        self.send(frame, tx);
    }

    /// Refuses a connection that is beyond a limit of its client.
    pub(super) fn refuse_limited<F: Frame>(
        &mut self,
        now: Time,
        frame: F,
        at: &Transport,
        limited: Limited,
        tx: &mut Batch<F>,
    ) {
        match limited.action {
            LimitAction::Refuse => self.refuse(now, frame, at, Drop::Limited, tx),
            LimitAction::Drop => self.drop_frame(Drop::Limited),
        }
    }

    /// Refuses a connection with the protocol's own answer.
    pub(super) fn refuse<F: Frame>(&mut self, now: Time, frame: F, at: &Transport, reason: Drop, tx: &mut Batch<F>) {
        self.drop_frame(reason);
        let make = |frame: &mut F| match at.key.protocol {
            Protocol::Tcp => answer::reset(frame, at),
            Protocol::Udp => answer::notice(frame, at, Notice::PortUnreachable, at.key.destination.address),
        };
        self.answer(now, frame, make, tx);
    }
}

/// Does to a packet of a connection what its direction's rule would.
fn translate<F: Frame>(frame: &mut F, at: &Transport, connection: &Connection, direction: Direction) {
    let egress = connection.egress(direction);
    let checksum = frame.meta().checksum;
    match egress {
        Egress::Direct(_) => lower_hops(frame.bytes_mut(), at),
        Egress::Route | Egress::Kernel => connection.rewrite(direction).apply(frame.bytes_mut(), at, checksum),
    }
    frame.meta_mut().egress = egress;
}
