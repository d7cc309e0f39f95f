//! What requests tell of the backends they went to: passive health checks of HTTP services.
//!
//! A backend that takes connections up may still fail whatever is asked of it, so what speaks for it is a response, not a
//! handshake. Clients have a part in it: one may ask for what a backend cannot answer. A caller that acts on these
//! numbers should ask for failures in a row.
//!
//! What does not count, neither way: a client that goes away or does not finish its request, a connection that had been used
//! before and was closed while the next request was on its way, a head that is no response or too long for us, and whatever
//! we end ourselves.

use super::Context;
use super::state::exchange::Exchange;
use crate::config::Algorithm;
use crate::frame::FrameIo;
use crate::l7::config::{Group, Kind};

/// How a backend has failed a request that it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// It reset or closed the connection before the response's head was complete, or did not even acknowledge the request.
    Lost,
    /// It did not answer in time.
    Silent,
    /// It answered with a status that the service does not want to see.
    Status,
}

impl Fault {
    /// All of them, in order.
    pub const ALL: [Fault; 3] = [Fault::Lost, Fault::Silent, Fault::Status];

    /// Its name in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Lost => "lost",
            Fault::Silent => "silent",
            Fault::Status => "status",
        }
    }
}

impl<IO: FrameIo> Context<'_, IO> {
    /// A backend has taken a connection up. Where only connections are known (TLS), that speaks for it.
    pub(super) fn took_up(&mut self, number: u16, service: Option<u16>) {
        let speaks = service.is_some_and(|service| matches!(self.kind(service), Kind::Tls(_)));
        if speaks && let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.established += 1;
        }
    }

    /// A backend, chosen from this group, has answered a request with this status.
    pub(super) fn answered_with(&mut self, number: u16, group: Group, status: u16) {
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.server_errors += u64::from(status >= 500);
        }
        if self.snapshot.services.get(usize::from(group)).is_some_and(|group| group.faulty.contains(status)) {
            return self.failed_request(number, Fault::Status);
        }
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.established += 1;
        }
    }

    /// A response of this class, 0 for 1xx, has come from a backend.
    pub(super) fn responded(&mut self, number: u16, class: usize) {
        self.statistics.http.responses[class] += 1;
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.responses[class] += 1;
        }
    }

    /// A backend has failed a request.
    pub(super) fn failed_request(&mut self, number: u16, fault: Fault) {
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(number)) {
            backend.faults[fault as usize] += 1;
        }
        self.loads.latencies().failed(number.into(), self.now);
    }

    /// A backend has begun to answer the request of an exchange: so long after that was sent.
    pub(super) fn measured(&mut self, exchange: &Exchange) {
        let group = self.snapshot.services.get(usize::from(exchange.group));
        let us = self.now.micros_since(exchange.started).saturating_sub(exchange.chosen_in_us);
        if let Some(backend) = self.statistics.backends.get_mut(usize::from(exchange.backend)) {
            backend.response_us += u64::from(us);
        }
        if group.is_some_and(|group| group.algorithm == Algorithm::LeastLatency) {
            self.loads.latencies().measured(exchange.backend.into(), self.now, us);
        }
    }
}
