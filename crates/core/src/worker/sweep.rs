//! Ending what a backend has: a scan over all connections in small pieces, so that no packet waits for it.
//!
//! Whatever is to be ended, there is one scan. It goes round: what is asked for while it runs makes it go on for one more
//! round from there. Only connections that were there when they were to be ended go, so that a backend may have new ones
//! meanwhile. What cannot go yet (the engine owes answers, the queue to it is full) is tried again in another round, after a
//! pause that grows while that does not help.

use super::Worker;
use crate::flow::{FlowKey, Protocol};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::OffloadPolicy;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use alloc::collections::BTreeMap;

/// Positions looked at per call of [`Worker::handle_timeout`] at most.
const POSITIONS_MAX: u32 = 512;
/// Connections ended per call at most.
const ENDS_MAX: usize = 64;
/// Pause before the first round for what could not go.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause before such a round at most.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Which connections of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// The UDP ones, whose next datagram chooses another backend. A TCP connection cannot change its backend.
    Datagrams,
}

/// The age limit of a backend's connections: those begun at this time or before are removed.
#[derive(Clone, Copy, Default)]
struct Wanted {
    all: Option<Time>,
    datagrams: Option<Time>,
}

impl Wanted {
    fn has(&self, connection: &Connection) -> bool {
        let until = match connection.protocol {
            Protocol::Tcp => self.all,
            Protocol::Udp => self.all.max(self.datagrams),
        };
        until.is_some_and(|until| connection.created <= until)
    }
}

/// The scan.
#[derive(Default)]
pub(super) struct Sweep {
    /// By backend number. At most as many as there are backends.
    wanted: BTreeMap<u16, Wanted>,
    /// The position to continue from.
    next: Position,
    /// The position at which it wraps around. Fixed while a round lasts: positions used since then hold nothing it wants.
    reach: Position,
    /// Positions it still has to look at.
    left: u32,
    /// Something could not go in this round.
    missed: bool,
    /// Not to go on before.
    due: Time,
    pause: Duration,
}

impl Sweep {
    /// When it goes on, if there is anything to do.
    pub(super) fn due(&self) -> Option<Time> {
        (self.left > 0).then_some(self.due)
    }

    /// Another round, from wherever it is.
    fn begin(&mut self, due: Time, reach: Position) {
        self.reach = reach;
        self.left = reach;
        self.due = due;
    }

    /// The next position to look at.
    fn step(&mut self) -> Position {
        let position = if self.next < self.reach { self.next } else { 0 };
        self.next = position + 1;
        self.left -= 1;
        position
    }

    /// A round is over: another one for what could not go, or none.
    fn finish(&mut self, now: Time, reach: Position) {
        if core::mem::take(&mut self.missed) {
            self.begin(now + self.pause, reach);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        } else {
            self.wanted.clear();
        }
    }
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Ends connections that backend `number` has now: they leave the engine, and their ends are told (`severed.rs`). Where
    /// there is nothing to tell (UDP, half-open connections) they leave the index at once. It takes a while:
    /// [`Worker::handle_timeout`] does a bounded part of it at a time. Counted in
    /// [`Statistics::ended`](super::Statistics::ended).
    pub fn end_backend(&mut self, now: Time, number: u16, which: Which) {
        if which == Which::All {
            self.splices.end_backend(now, number);
        }
        let reach = self.slab.used();
        if reach == 0 {
            return;
        }
        let wanted = self.sweep.wanted.entry(number).or_default();
        match which {
            Which::All => wanted.all = Some(now),
            Which::Datagrams => wanted.datagrams = Some(now),
        }
        self.sweep.begin(now, reach);
        self.sweep.pause = PAUSE;
    }

    /// A piece of the scan.
    pub(super) fn sweep(&mut self, now: Time) {
        if self.sweep.due().is_none_or(|due| now < due) {
            return;
        }
        let mut ended = 0;
        for _ in 0..self.sweep.left.min(POSITIONS_MAX) {
            if ended == ENDS_MAX {
                break;
            }
            let position = self.sweep.step();
            if !self.slab.contains(position) {
                continue;
            }
            let connection = self.slab.at(position);
            let wanted = self.sweep.wanted.get(&connection.backend_number).is_some_and(|wanted| wanted.has(connection));
            if !wanted || connection.state == State::Pass || connection.flags.has(Flags::PENDING_REMOVAL) {
                continue;
            }
            if connection.flags.has(Flags::SEVERED) {
                continue;
            }
            let has_ended = match Self::has_to_be_told(connection) {
                true => self.sever(now, position),
                false => self.begin_removal(now, position),
            };
            if has_ended {
                self.statistics.ended += 1;
                ended += 1;
            } else {
                self.sweep.missed = true;
            }
        }
        if self.sweep.left == 0 {
            self.sweep.finish(now, self.slab.used());
        }
    }
}
