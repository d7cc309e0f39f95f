//! Connections of direct server return, of which only the client's packets pass (RFC 9293's states cannot be told from those
//! alone).
//!
//! # States
//! A SYN begins a connection, and a packet of the client with the number that follows the SYN's establishes it. After the
//! client's FIN silence is borne as long as in a half-closed connection, since the backend may go on sending and the client
//! acknowledging; a SYN between the same ends begins another one then, as after a RST.
//!
//! # What a forged packet can do
//! Nothing proves that a client hears the backend. So a connection gives way to new ones when the table is full, after half-open
//! connections, and is not offloaded, until its client has sent [`ONE_WAY_PACKETS`], as many as an unanswered flow of datagrams needs.
//! The policer does not count it as half-open: most short connections send fewer packets. An engine that sets connections up
//! demands the same before it makes the rule, and tells the worker what this module would see (`set_up.rs`). A FIN or a RST counts only if its
//! number is near the one that the client's packets have reached. Once a rule forwards them that is not known, and any counts;
//! like all that are believed they only shorten the timeout, and a client that goes on brings the connection back
//! (`ageing.rs`).
//!
//! # A backend that is taken away
//! Its connections end without a word: the backend's numbers are not known, and the client hears of it when it next speaks
//! (`unknown = "reset"`).

use super::Worker;
use super::states::ONE_WAY_PACKETS;
use crate::flow::{Direction, FlowKey};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::{OffloadPolicy, OffloadState};
use crate::table::{Position, Table};
use crate::time::Time;
use crate::wire::Transport;
use crate::wire::bytes::u32_at;
use crate::wire::tcp::{ACK, FIN, RST, SEQUENCE, SYN};

/// How far behind the client's next number a FIN or RST may be: packets that overtook it.
const BEHIND_MAX: i32 = 1 << 16;
/// How far before it: packets that were lost on their way here.
const BEFORE_MAX: i32 = 1 << 20;
/// How far behind a SYN the first packet after it may be (RFC 7413 lets a SYN have data).
const FIRST_MAX: u32 = 1 << 16;

/// Whether a number is near the next one of the client, or that is not known.
fn is_near(connection: &Connection, sequence: u32) -> bool {
    let ahead = sequence.wrapping_sub(connection.proof) as i32;
    connection.proof == 0 || (-BEHIND_MAX..=BEFORE_MAX).contains(&ahead)
}

/// A client's next number as it is kept: 0 stands for one that is not known.
fn kept(sequence: u32) -> u32 {
    sequence.max(1)
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Lets a packet of the client move the state of a TCP connection.
    pub(super) fn advance_one_way(&mut self, now: Time, position: Position, at: &Transport, bytes: &[u8]) {
        let connection = *self.slab.at(position);
        let flags = at.tcp_flags & (SYN | FIN | RST | ACK);
        let sequence = u32_at(bytes, at.l4 + SEQUENCE).unwrap_or_default();
        if flags & SYN != 0 {
            return self.begin_one_way(now, position, at.tcp_flags, Some(sequence.wrapping_add(1)));
        }
        let ends = flags & (FIN | RST) != 0;
        if ends && !is_near(&connection, sequence) {
            return;
        }
        let first = sequence.wrapping_sub(connection.proof) < FIRST_MAX && flags & ACK != 0;
        let next = match connection.state {
            State::SynSent if flags & RST != 0 && connection.proof == 0 => State::SynSent,
            _ if flags & RST != 0 => State::Reset,
            State::SynSent if first && flags & FIN != 0 => State::FinClient,
            State::SynSent if first => State::Established,
            State::Established if flags & FIN != 0 => State::FinClient,
            state => state,
        };
        if next != connection.state {
            self.transition(now, position, next);
            if connection.state == State::SynSent && next.is_established() {
                self.established(position);
            }
        } else if next.is_over() && ends {
            self.slab.at_mut(position).changed = now;
        }
        self.follow(position, at, sequence);
        let sent: u64 = [connection.forwarded, connection.offloaded].iter().map(|[client, _]| client.packets).sum();
        if next.is_established() && sent + 1 >= ONE_WAY_PACKETS {
            self.trust(position);
        }
    }

    /// A SYN of the client, whose next number may be known: the first, another one, or one of another connection between the
    /// same ends.
    fn begin_one_way(&mut self, now: Time, position: Position, tcp_flags: u8, next: Option<u32>) {
        let begins = self.begins_anew(position, Direction::FromClient, tcp_flags);
        let connection = self.slab.at_mut(position);
        if begins || connection.state == State::SynSent {
            connection.proof = next.map_or(0, kept);
        }
        if !begins {
            return;
        }
        let has_rule = connection.pair.state() != OffloadState::Software;
        if !has_rule && next.is_some() {
            self.transition(now, position, State::SynSent);
            return self.remember_half_open(position);
        }
        // The client's next packets may not come by here.
        connection.proof = 0;
        self.transition(now, position, State::Established);
        self.established(position);
        if has_rule {
            // What it takes to get one the client has sent before.
            self.trust(position);
        }
    }

    /// Another connection between the same ends has begun in the engine, which has sent the SYN on to the same backend.
    pub(super) fn restart_one_way(&mut self, now: Time, position: Position, next: Option<u32>) {
        if self.begins_anew(position, Direction::FromClient, SYN) {
            self.restart(now, position);
            self.begin_one_way(now, position, SYN, next);
        }
    }

    /// A segment of the client with SYN, FIN or RST has been sent on by the engine, which has looked at its number, if there is
    /// no rule.
    pub(super) fn follow_one_way(&mut self, now: Time, position: Position, flags: u8) {
        if flags & SYN != 0 {
            // One in mid-life is forged, or answered by a challenge (RFC 9293, 3.10.7.4).
            return self.restart_one_way(now, position, None);
        }
        match self.slab.at(position).state {
            State::SynSent => {} // of the connection before
            _ if flags & RST != 0 => self.transition(now, position, State::Reset),
            State::Reset => self.slab.at_mut(position).changed = now,
            _ => self.transition(now, position, State::FinClient),
        }
    }

    /// The engine has seen that the client goes on after its SYN.
    pub(super) fn goes_on_one_way(&mut self, now: Time, position: Position) {
        if self.slab.at(position).state == State::SynSent {
            self.transition(now, position, State::Established);
            self.established(position);
        }
    }

    /// Notes the client's next number. Of a RST it is not known whether it is the client's.
    fn follow(&mut self, position: Position, at: &Transport, sequence: u32) {
        let connection = self.slab.at_mut(position);
        let in_software = connection.pair.state() == OffloadState::Software;
        if in_software && at.tcp_flags & RST == 0 && connection.state != State::SynSent {
            let length = at.end.saturating_sub(at.payload) as u32 + u32::from(at.tcp_flags & FIN != 0);
            connection.proof = kept(sequence.wrapping_add(length));
        }
    }

    /// Counts a connection that has been established. It gives way no longer if both ends have shown that they talk, else after
    /// those that are half-open.
    pub(super) fn established(&mut self, position: Position) {
        let connection = self.slab.at(position);
        if !connection.flags.has(Flags::DIRECT) {
            return self.prove(position);
        }
        self.statistics.services[usize::from(connection.service)].established += 1;
        self.remember_half_open(position);
    }

    /// It gives way no longer.
    pub(super) fn trust(&mut self, position: Position) {
        let connection = self.slab.at_mut(position);
        if !connection.flags.has(Flags::PROVEN) {
            connection.flags.set(Flags::PROVEN);
            self.forget_half_open(position);
        }
    }
}
