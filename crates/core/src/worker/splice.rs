//! The seam between the worker and its splices (`crate::l7::splice`): packets of HTTP and TLS services, their timers, the
//! engine's answers about their rules.

use super::passive::is_broken;
use super::{Drop, Worker};
use crate::config::Snapshot;
use crate::engine::Completion;
use crate::flow::{Direction, FlowKey};
use crate::frame::{Batch, FrameIo};
use crate::l7::cookie::Cookies;
use crate::l7::date::Date;
use crate::l7::splice::{AdoptedSplices, Adoption, Context, SplicedConnection, Terms};
use crate::l7::threshold::Threshold;
use crate::offload::OffloadPolicy;
use crate::table::Table;
use crate::time::Time;
use crate::wire::bytes::u32_at;
use crate::wire::{ErrorKind, IcmpError, Transport};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The worker's context for splices, and the splices: its fields, each by itself.
macro_rules! lend {
    ($worker:ident, $now:expr, $io:expr, $tx:expr) => {{
        let offloads = $worker.policy.offloads();
        let Worker {
            splices,
            snapshot,
            balancers,
            ports,
            loads,
            known,
            steering,
            statistics,
            ops,
            caps,
            answers,
            clock_ahead,
            recorder,
            limits,
            ..
        } = $worker;
        let context = Context {
            now: $now,
            io: $io,
            tx: $tx,
            snapshot,
            balancers,
            ports,
            loads,
            known,
            steering,
            statistics,
            ops,
            caps,
            offloads,
            answers,
            clock_ahead: *clock_ahead,
            recorder: recorder.as_mut(),
            limits,
        };
        (splices, context)
    }};
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// A segment of a spliced connection.
    pub(super) fn splice_segment<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        frame: IO::Frame,
        at: &Transport,
        found: (u32, Direction),
        tx: &mut Batch<IO::Frame>,
    ) {
        // Its fields are acted on, and much of its payload is sent on with a checksum of ours.
        if is_broken(&frame, at) {
            return self.drop_frame(Drop::Checksum);
        }
        let (splices, mut context) = lend!(self, now, io, tx);
        splices.handle_segment(&mut context, frame, at, found);
        splices.finish_operation();
    }

    /// A packet to an HTTP or TLS service that is of no connection: it may begin one.
    pub(super) fn splice_new_flow<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        frame: IO::Frame,
        at: &Transport,
        service: u16,
        tx: &mut Batch<IO::Frame>,
    ) {
        if at.ttl <= 1 {
            return self.drop_frame(Drop::TimeToLive);
        }
        if is_broken(&frame, at) {
            return self.drop_frame(Drop::Checksum);
        }
        self.statistics.services[usize::from(service)].speculative += 1;
        let (splices, mut context) = lend!(self, now, io, tx);
        splices.new_flow(&mut context, frame, at, service);
        splices.finish_operation();
    }

    /// Does what is due for HTTP and TLS services, and asks ends of severed connections; what is to be sent is in `tx`
    /// afterwards. To be called when [`Worker::poll_timeout`] is due, beside [`Worker::handle_timeout`].
    pub fn handle_splices<IO: FrameIo>(&mut self, now: Time, io: &mut IO, tx: &mut Batch<IO::Frame>) {
        while let Some(connection) = self.next_to_ask() {
            let port = self.port;
            let (_, mut context) = lend!(self, now, io, tx);
            super::severed::ask(&mut context, &connection, port);
        }
        let (splices, mut context) = lend!(self, now, io, tx);
        splices.handle_timeout(&mut context);
    }

    /// Resets connections of HTTP and TLS services, a bounded number of them, for a process that ends; what is to be sent is
    /// in `tx` afterwards. Says whether there are more.
    pub fn abandon_splices<IO: FrameIo>(&mut self, now: Time, io: &mut IO, tx: &mut Batch<IO::Frame>) -> bool {
        let (splices, mut context) = lend!(self, now, io, tx);
        splices.abandon_some(&mut context)
    }

    /// Takes over the connections of HTTP and TLS services that another process has left.
    pub(super) fn adopt_splices(
        &mut self,
        (now, worker): (Time, u16),
        formers: &[Arc<Snapshot>],
        engine: &dyn Fn(&FlowKey) -> bool,
    ) -> AdoptedSplices {
        let Worker { splices, snapshot, ports, loads, known, steering, statistics, limits, ops, caps, .. } = self;
        let diverts = caps.checks_guards;
        let adoption = Adoption {
            now,
            worker,
            snapshot,
            formers,
            ports,
            loads,
            known,
            steering,
            statistics,
            limits,
            ops,
            diverts,
            engine,
        };
        splices.adopt(adoption)
    }

    /// Whether neither the engine nor the queue to it has anything of connections of HTTP and TLS services.
    #[cfg(test)]
    pub(crate) fn is_in_software(&self) -> bool {
        self.splices.rules() == [0; 2] && self.ops.is_empty()
    }

    /// Sees the memory of spliced connections as a process leaves it that ends now.
    #[cfg(test)]
    pub(crate) fn spliced_image(&self) -> crate::table::region::Image {
        self.splices.image()
    }

    /// The bytes of all entries for client connections and for backend connections.
    #[cfg(test)]
    pub(crate) fn spliced_entries(&self) -> [alloc::vec::Vec<alloc::vec::Vec<u8>>; 2] {
        self.splices.entries()
    }

    /// Goes on from another worker's counters.
    #[cfg(test)]
    pub(crate) fn count_from(&mut self, statistics: crate::worker::Statistics) {
        self.statistics = statistics;
    }

    /// Makes and checks SYN cookies with other keys from now on.
    pub fn set_cookies(&mut self, cookies: Cookies) {
        self.splices.set_cookies(cookies);
    }

    /// Sets the time in HTTP responses of our own; before the first call they have none.
    pub fn set_date(&mut self, date: Date) {
        self.splices.set_date(date);
    }

    /// Offers bodies to the engine from so many bytes on, where the configuration does not say.
    pub fn set_threshold(&mut self, threshold: Threshold) {
        self.statistics.http.threshold = threshold;
    }

    /// Whether there is an engine that takes rules.
    pub fn has_engine(&self) -> bool {
        self.caps.rules_max > 0
    }

    /// Clients' connections of HTTP and TLS services now, those to their backends, and buffers in use.
    pub fn splices(&self) -> (u32, u32, u32) {
        let (client_conns, backend_conns) = self.splices.len();
        (client_conns, backend_conns, self.splices.buffers().0)
    }

    /// Looks at connections of HTTP and TLS services that lie at place `start` (0 to begin) and behind, a bounded number of
    /// places, and adds copies to `out` as far as its capacity goes. Returns where to go on; `None`: there are no more.
    pub fn snapshot_splices(&self, now: Time, start: u32, out: &mut Vec<SplicedConnection>) -> Option<u32> {
        let terms = Terms {
            now,
            snapshot: &self.snapshot,
            caps: &self.caps,
            offloads: self.policy.offloads(),
            bytes_min: self.statistics.http.threshold.bytes_min,
        };
        self.splices.look(&terms, start, out)
    }

    /// A packet that a splice has sent, come back because it is too big for its way out. `false`: it is no splice's.
    pub(super) fn splice_too_big<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        frame: IO::Frame,
        (at, mtu): (&Transport, u16),
        tx: &mut Batch<IO::Frame>,
    ) -> Option<IO::Frame> {
        let Some(found) = self.splices.find(&at.key.reversed()) else { return Some(frame) };
        let (splices, mut context) = lend!(self, now, io, tx);
        splices.too_big(&mut context, frame, at, mtu, found);
        splices.finish_operation();
        None
    }

    /// An ICMP error about a packet that a splice has sent: only its size matters, time does the rest. `false`: it is no
    /// splice's.
    pub(super) fn splice_error<IO: FrameIo>(
        &mut self,
        now: Time,
        io: &mut IO,
        frame: &[u8],
        error: &IcmpError,
        tx: &mut Batch<IO::Frame>,
    ) -> bool {
        let Some(found) = self.splices.find(&error.quoted.reversed()) else { return false };
        if let (ErrorKind::TooBig { mtu }, Some(sequence)) = (error.kind, u32_at(frame, error.quoted_l4 + 4)) {
            let (splices, mut context) = lend!(self, now, io, tx);
            splices.path_is_narrow(&mut context, error.quoted.is_ipv4(), mtu, found, sequence);
            splices.finish_operation();
        }
        true
    }

    /// Takes an answer of the engine about a splice's rule.
    pub(super) fn handle_splice_completion(&mut self, now: Time, completion: &Completion) {
        let Worker { splices, ops, statistics, .. } = self;
        splices.handle_completion(now, completion, &mut |op| ops.push_back(op));
        splices.finish_operation();
        splices.tell(&mut statistics.http);
    }
}
