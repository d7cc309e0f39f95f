//! Passive health checks: the evidence of connections about their backends.
//!
//! A connection counts once, as taken up or as failed, by its first exchange ([`Flags::JUDGED`]). Clients may be forged, so
//! what they alone can bring about must not count as failed:
//! - A RST counts only if it answers the SYN (it acknowledges something), not a stray ACK that followed it.
//! - A SYN with a wrong checksum makes no connection. One that a backend may well ignore (IP options, TCP's MD5 or AO) or
//!   whose hops ran out is excused.
//! - An ICMP error counts only if, a moment after it, the backend still has not answered.
//! - A connection that is evicted does not count: a flood says nothing about the backend.
//!
//! The remaining case: a forger whose source address the backend ignores, or answers by another way than through here, makes a
//! SYN that is never answered. A caller that acts on these numbers should ask for failures in a row.

use super::Worker;
use crate::flow::{Direction, FlowKey, Protocol};
use crate::frame::{Checksum, Frame};
use crate::l4::connection::{Connection, Flags, State};
use crate::l4::tcp;
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use crate::wire::tcp::{ACK, ACKNOWLEDGEMENT, Options, RST, SEQUENCE, SYN};
use crate::wire::{ErrorKind, Transport};

/// How long a backend that was said to be unreachable has to answer all the same.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// TCP option: MD5 signature (RFC 2385).
const OPTION_MD5: u8 = 19;
/// TCP option: authentication (RFC 5925).
const OPTION_AUTHENTICATION: u8 = 29;

/// Whether its TCP checksum is wrong, so that its receiver would drop it.
pub(super) fn is_broken<F: Frame>(frame: &F, at: &Transport) -> bool {
    if at.key.protocol != Protocol::Tcp || frame.meta().checksum == Checksum::Partial {
        return false;
    }
    let bytes = frame.bytes();
    let field = bytes.get(at.checksum_offset()..at.checksum_offset() + 2);
    // Both zeros of one's complement arithmetic are right.
    let negative = |sum: u16| if sum == 0xffff { 0 } else { sum };
    match (field, at.transport_checksum(bytes)) {
        (Some(&[high, low]), Some(right)) => negative(u16::from_be_bytes([high, low])) != negative(right),
        _ => true,
    }
}

/// Whether a backend may well ignore a SYN for what it carries.
fn is_odd(bytes: &[u8], at: &Transport) -> bool {
    let plain_header = if at.key.is_ipv4() { 20 } else { 40 };
    let options = bytes.get(at.l4 + crate::wire::tcp::HEADER..at.payload).unwrap_or_default();
    let signed = |kind| matches!(kind, OPTION_MD5 | OPTION_AUTHENTICATION);
    at.l4 - at.l3 != plain_header || Options::new(options).any(|option| signed(option.kind))
}

/// Whether the backend has not said anything yet.
fn is_unanswered(connection: &Connection) -> bool {
    match connection.protocol {
        Protocol::Tcp => connection.state == State::SynSent,
        Protocol::Udp => connection.forwarded[Direction::FromBackend as usize].packets == 0,
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Whether a TCP connection's client has shown that it hears the backend, by this packet or an earlier one: it has
    /// acknowledged the SYN-ACK. A sender that forges its address never sees that. Takes note of it.
    pub(super) fn hears(&mut self, position: Position, direction: Direction, at: &Transport, bytes: &[u8]) -> bool {
        let connection = self.slab.at_mut(position);
        if connection.protocol != Protocol::Tcp || connection.flags.has(Flags::PROVEN) {
            return true;
        }
        if self.slab.at(position).flags.has(Flags::GUESSED) {
            return self.confirm_guess(position, at);
        }
        let connection = self.slab.at_mut(position);
        match (direction, at.tcp_flags & (SYN | ACK | RST)) {
            (Direction::FromBackend, answer) if answer == SYN | ACK => {
                connection.flags.set(Flags::CHALLENGED);
                connection.proof = tcp::proof(word(bytes, at.l4 + SEQUENCE));
                // the backend's word moves the state, whatever the client may be
                true
            }
            (Direction::FromBackend, _) => true,
            (Direction::FromClient, ACK)
                if tcp::acknowledges(connection.proof, word(bytes, at.l4 + ACKNOWLEDGEMENT)) =>
            {
                self.prove(position);
                self.succeeded(position);
                true
            }
            (Direction::FromClient, _) => false,
        }
    }

    /// Does not count a connection that the backend may ignore for what its SYN carries.
    pub(super) fn excuse_odd(&mut self, position: Position, bytes: &[u8], at: &Transport) {
        if at.key.protocol == Protocol::Tcp && is_odd(bytes, at) {
            self.slab.at_mut(position).flags.set(Flags::JUDGED);
        }
    }

    /// The backend has taken the connection up.
    pub(super) fn succeeded(&mut self, position: Position) {
        if self.judged(position) {
            let number = self.backend_number(position);
            self.statistics.backends[number].established += 1;
        }
    }

    /// It has not.
    pub(super) fn failed(&mut self, position: Position) {
        if self.judged(position) {
            let number = self.backend_number(position);
            self.statistics.backends[number].failed += 1;
        }
    }

    /// Whether the connection had not been counted before.
    fn judged(&mut self, position: Position) -> bool {
        let flags = &mut self.slab.at_mut(position).flags;
        let first = !flags.has(Flags::JUDGED);
        flags.set(Flags::JUDGED);
        first
    }

    /// An ICMP error says that a packet did not reach the backend.
    pub(super) fn note_report(&mut self, now: Time, position: Position, kind: ErrorKind) {
        let connection = self.slab.at_mut(position);
        let unanswered = connection.pair.state() == OffloadState::Software && is_unanswered(connection);
        if connection.flags.has(Flags::JUDGED) || !unanswered {
            return;
        }
        match kind {
            ErrorKind::Unreachable if !connection.flags.has(Flags::REPORTED) => {
                connection.flags.set(Flags::REPORTED);
                let deadline = self.deadline(self.slab.at(position));
                self.stamps.started(position, deadline.min(now + REPORT_DELAY));
            }
            ErrorKind::Unreachable | ErrorKind::TooBig { .. } => {}
            ErrorKind::TimeExceeded | ErrorKind::ParameterProblem => connection.flags.set(Flags::JUDGED),
        }
    }

    /// A moment after such a report: was it right?
    pub(super) fn weigh_report(&mut self, position: Position) {
        let connection = self.slab.at(position);
        if connection.flags.has(Flags::REPORTED) && is_unanswered(connection) {
            self.failed(position);
        }
    }
}
