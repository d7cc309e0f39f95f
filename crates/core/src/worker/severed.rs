//! TCP connections whose backend was taken away: both ends are told, by a RST that they believe.
//!
//! An end believes a RST only with the very number that it expects next (RFC 5961, 3.2), which is not tracked here. Each
//! packet of its own says it, though: its acknowledgement. So a *severed* connection stays for a while, and what either
//! end sends is answered with RST (RFC 9293, 3.10.7.1). An end that is silent is asked for a packet: by two bare
//! acknowledgements whose numbers are half their space apart, so that one of them is outside any window, and that is
//! answered (RFC 9293, 3.10.7.4). An end that has believed the RST answers the next question with a RST of its own.
//!
//! Some hosts and firewalls drop such a question: those ends are told when they next send something, as long as the
//! connection is remembered, and then by `unknown = "reset"`.

use super::{Drop, Worker};
use crate::flow::{Direction, FlowKey, Protocol};
use crate::frame::{Batch, Frame, FrameIo};
use crate::l4::answer;
use crate::l4::connection::{Connection, Flags, State};
use crate::l7::splice::Context;
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use crate::wire::Transport;
use crate::wire::tcp::{ACK, RST, SYN};

/// Before the first question: rules have to go.
const ASK_AFTER: Duration = Duration::from_millis(50);
/// How long after the first question the next is asked; doubled each time.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Questions to each end at most: the last is asked 3 s after the first.
pub const ASKS_MAX: u32 = 5;
/// Connections whose questions wait to be sent at most.
pub const ASKING_MAX: usize = 128;
/// How long a connection waits that found no room there, or too many of late.
const WAIT: Duration = Duration::from_millis(50);
/// Questions and resets per second, per worker.
pub const PER_SECOND: u64 = 10_000;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Whether the ends of a connection have to be told when it is to end.
    pub(super) fn has_to_be_told(connection: &Connection) -> bool {
        // Those of direct server return end without a word (`one_way.rs`).
        let is_one_way = connection.flags.has(Flags::DIRECT);
        connection.protocol == Protocol::Tcp && connection.state.is_established() && !is_one_way
    }

    /// Begins to tell both ends of a connection that it is over. `false`, and nothing happens, while the engine owes
    /// answers about it or the queue to the engine is full.
    pub(super) fn sever(&mut self, now: Time, position: Position) -> bool {
        let offload_state = self.slab.at(position).pair.state();
        match offload_state {
            OffloadState::Software => {}
            OffloadState::Offloaded if self.queue_has_room() => {}
            _ => return false,
        }
        self.forget_half_open(position);
        self.transition(now, position, State::Reset);
        let connection = self.slab.at_mut(position);
        connection.flags.set(Flags::SEVERED);
        connection.flags.clear(Flags::MISSTEERED | Flags::CLIENT_GONE | Flags::BACKEND_GONE);
        connection.proof = 0;
        self.stamps.started(position, now + ASK_AFTER);
        if offload_state == OffloadState::Offloaded {
            self.remove_rules(now, position);
        }
        true
    }

    /// The time of a severed connection has come: its ends are asked for a packet, or it is forgotten.
    pub(super) fn severed_due(&mut self, now: Time, position: Position) {
        let connection = *self.slab.at(position);
        let asked = connection.proof >= ASKS_MAX;
        let over = now >= self.deadline(&connection) || asked && connection.flags.has(Flags::CLIENT_GONE);
        let next = match connection.pair.state() {
            OffloadState::Software if over => {
                self.begin_removal(now, position);
                return;
            }
            OffloadState::Software if asked => self.deadline(&connection),
            OffloadState::Software if self.asking.len() < ASKING_MAX && self.tellings.admits(now) => {
                self.asking.push_back((position, self.slab.generation(position)));
                self.slab.at_mut(position).proof += 1;
                now + ASK_AGAIN_AFTER * (1 << connection.proof)
            }
            _ => now + WAIT,
        };
        self.stamps.started(position, next);
    }

    /// The next connection whose ends are to be asked now, and of which.
    pub(super) fn next_to_ask(&mut self) -> Option<Connection> {
        while let Some((position, generation)) = self.asking.pop_front() {
            let there = self.slab.contains(position) && self.slab.generation(position) == generation;
            if there && self.slab.at(position).flags.has(Flags::SEVERED) {
                return Some(*self.slab.at(position));
            }
        }
        None
    }

    /// A packet of a severed connection.
    pub(super) fn answer_severed<F: Frame>(
        &mut self,
        now: Time,
        mut frame: F,
        at: Transport,
        (position, direction): (Position, Direction),
        tx: &mut Batch<F>,
    ) {
        let begins = direction == Direction::FromClient && at.tcp_flags & (SYN | ACK | RST) == SYN;
        if begins {
            // The client has begun another one between the same ends.
            return match self.begin_removal(now, position) {
                true => self.unmatched(now, frame, at, tx),
                false => self.drop_frame(Drop::Stale),
            };
        }
        self.slab.at_mut(position).last_seen = now;
        self.drop_frame(Drop::Unknown);
        if at.tcp_flags & RST != 0 {
            return self.is_gone(now, position, direction);
        }
        if !self.tellings.admits(now) {
            self.drop_frame(Drop::AnswerLimit);
        } else if answer::reset(&mut frame, &at) {
            self.statistics.answered += 1;
            self.send(frame, tx);
        }
    }

    /// An end has said that it has no connection any more. (Or a forged packet says so: then it is not asked again, and
    /// told as soon as it sends something.)
    fn is_gone(&mut self, now: Time, position: Position, direction: Direction) {
        let connection = self.slab.at_mut(position);
        connection.flags.set(gone(direction));
        if connection.flags.has(Flags::CLIENT_GONE) && connection.flags.has(Flags::BACKEND_GONE) {
            // If the engine still owes answers, when its time comes.
            self.begin_removal(now, position);
        }
    }
}

/// The flag of an end that has no connection any more.
fn gone(direction: Direction) -> u16 {
    match direction {
        Direction::FromClient => Flags::CLIENT_GONE,
        Direction::FromBackend => Flags::BACKEND_GONE,
    }
}

/// Asks the ends of a connection for a packet.
pub(super) fn ask<IO: FrameIo>(cx: &mut Context<'_, IO>, connection: &Connection, port: u16) {
    for direction in [Direction::FromClient, Direction::FromBackend] {
        if !connection.flags.has(gone(direction)) {
            let key = connection.key(direction);
            for sequence in [0, 1 << 31] {
                cx.acknowledge([key.destination, key.source], sequence, port);
            }
        }
    }
}
