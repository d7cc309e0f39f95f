//! A worker takes over the connections that another process has left, in the middle of whatever it was doing.
//!
//! The contents of an entry are believed (as far as [`Connection`] allows for words of before and after a change); what it
//! says about its rules is not: the engine is asked. Afterwards the usual invariants hold. In particular every rule that
//! the engine holds and an entry names is in the offload state of exactly one entry. What the engine holds beyond all
//! workers' [`Worker::rules_known`] belongs to none, and the caller takes it away before any worker gets to work.
//!
//! Entries that do not stay (already pending removal, Pass entries, those whose service or backend is gone) but still have rules
//! become pending removal like any other, and go when the engine has confirmed that their rules are gone. A rule that both such an
//! entry and one that stays could name is the former's: it may be an old one, of the same key but another rewrite. All
//! these rules are asked to be taken back before the first new one is asked for, so no request overtakes another.
//!
//! A pair of rules that the engine has made by itself, while no process was there, is a connection that no entry has yet
//! ([`Worker::adopt_set_up`]): an entry between the same ends that is half-open does not take it for its own.
//!
//! Connections that were, or were about to be, with an engine that holds nothing of them now are offered to it again
//! without waiting for a packet.
//!
//! # Another number of workers
//! A connection belongs to the worker to which its *source* steers ([`home`]): the client, or under full NAT the end of
//! the pool, so that every worker's part of the pool knows its ports. Under full NAT the client's packets may then steer
//! to another worker, who does not know the connection; the engine's rules are right wherever their worker is. So a
//! connection that is not established is dropped, and any other is offered to the engine, whatever the policy says, until
//! it has it ([`Flags::MISSTEERED`]). Its rules should be in force before any worker takes its first batch: each worker
//! lets the engine carry out what [`Worker::poll_op`] has after adoption, and then they begin.

use super::lifecycle::QUEUE_FULL_FOR;
use super::{ConnectionFlows, Worker, WorkerOptions, value};
use crate::config::{BackendState, ServiceState};
use crate::flow::{Direction, FlowKey, Steering};
use crate::l4::connection::{Connection, Flags, Kept, State};
use crate::l7::splice::AdoptedSplices;
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// A packet that arrived while no process was there gets so long to be repeated: no connection in software is over
/// earlier than this after adoption.
const GRACE: Duration = Duration::from_secs(1);
/// How often a connection that only the engine can carry is offered to it.
const MISSTEERED_AGAIN: Duration = Duration::from_secs(1);
/// Connections indexed together, so that cache misses overlap.
const BLOCK: u32 = 32;
/// Connections dealt with per call of [`Worker::handle_timeout`] at most.
const FINISH_MAX: usize = 2048;

const BOTH: [Direction; 2] = [Direction::FromClient, Direction::FromBackend];

/// The fates of the entries that another process left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Connections that go on.
    pub kept: u64,
    /// Of these, in the engine with both rules.
    pub offloaded: u64,
    /// Of these, ones of which the engine held half a pair, which is taken back.
    pub rules_missing: u64,
    /// Of these, ones that were with the engine, or about to be, of which it holds nothing.
    pub rules_gone: u64,
    /// Of these, ones whose two flows steer to different workers now.
    pub missteered: u64,
    /// Entries that made no sense. Always zero after a crash; anything else means that something wrote into the memory.
    pub invalid: u64,
    /// Entries on their way out, and Pass entries.
    pub pending_removal: u64,
    /// Entries whose service or backend the snapshot does not have (under the same numbers), or has disabled. Where
    /// connections are not tracked, all of them.
    pub without_service: u64,
    /// Entries of other workers, and ones not established whose two flows steer to different workers.
    pub misplaced: u64,
    /// Older entries of flows that a newer one has.
    pub duplicates: u64,
    /// What became of connections of HTTP and TLS services.
    pub splices: AdoptedSplices,
}

impl Adopted {
    /// Adds what became of another worker's.
    pub fn add(&mut self, other: &Adopted) {
        self.kept += other.kept;
        self.offloaded += other.offloaded;
        self.rules_missing += other.rules_missing;
        self.rules_gone += other.rules_gone;
        self.missteered += other.missteered;
        self.invalid += other.invalid;
        self.pending_removal += other.pending_removal;
        self.without_service += other.without_service;
        self.misplaced += other.misplaced;
        self.duplicates += other.duplicates;
        self.splices.add(&other.splices);
    }
}

/// The worker that a connection belongs to.
pub fn home(connection: &Connection, steering: &Steering) -> u16 {
    steering.worker(&connection.source)
}

/// The work that adoption leaves, by position and generation; both empty soon, and then for ever.
#[derive(Default)]
pub(super) struct Unfinished {
    /// Their rules are to be taken back.
    take_back: VecDeque<(Position, u32)>,
    /// To be offered to the engine again.
    offers: VecDeque<(Position, u32)>,
}

impl Unfinished {
    /// Whether rules wait to be taken back; no new ones may be asked for before that.
    pub(super) fn is_taking_back(&self) -> bool {
        !self.take_back.is_empty()
    }
}

/// The decision about an entry.
enum AdoptVerdict {
    Keep,
    PendingRemoval,
    Pass,
    WithoutService,
    Misplaced,
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// A worker with the connections that another process has left in `options.memory`, for workers of the same
    /// steering key; `engine` says whether the engine holds a rule for a key. All workers have to be made, and the
    /// counters in `options.loads` and `options.known` to be zero before the first is, before any gets to work.
    ///
    /// Takes a few hundred nanoseconds for each connection, and memory for the keys of rules that have to be taken back.
    pub fn adopt(
        options: WorkerOptions<P, T>,
        now: Time,
        engine: &dyn Fn(&FlowKey) -> bool,
    ) -> (Worker<P, T>, Adopted) {
        let number = options.worker;
        let mut options = options;
        let formers = core::mem::take(&mut options.formers);
        let mut worker = Worker::new(options);
        // Stamps count from the last time they were looked at.
        worker.handle_timeout(now);
        let mut adopted = Adopted { invalid: worker.slab.recover() as u64, ..Adopted::default() };
        let going = worker.index_adopted(number, &mut adopted);
        let claimed = worker.claim(&going, engine);
        let mut half_open = Vec::new();
        for position in 0..worker.slab.used() {
            if worker.is_adopted(position) {
                let connection = worker.slab.at(position);
                // One that is half-open has no rules, unless it began anew while they were in force. Those that the engine
                // holds then are of a connection that it has set up since.
                let may_hold = !connection.state.is_half_open() || connection.pair.state() != OffloadState::Software;
                let held = |direction| {
                    let key = worker.slab.at(position).key(direction);
                    may_hold && engine(&key) && !claimed.contains(&key)
                };
                let ways = worker.slab.at(position).directions();
                let held = ways.iter().fold(0, |bits, &way| bits | u8::from(held(way)) << way as u8);
                worker.take_in(now, position, held, &mut adopted);
                let connection = worker.slab.at(position);
                if !connection.flags.has(Flags::PROVEN) {
                    half_open.push((connection.created, position));
                }
            }
        }
        half_open.sort_unstable();
        half_open.iter().for_each(|&(_, position)| worker.remember_half_open(position));
        going.into_iter().for_each(|position| worker.dismiss(now, position));
        worker.statistics.offload.rules = u64::from(worker.rules.own());
        adopted.splices = worker.adopt_splices((now, number), &formers, engine);
        worker.finish_adoption(now);
        (worker, adopted)
    }

    /// Whether the entry at `position` stays.
    fn is_adopted(&self, position: Position) -> bool {
        self.slab.contains(position) && !self.slab.at(position).flags.has(Flags::PENDING_REMOVAL)
    }

    /// Puts all entries that stay into the index; returns the others.
    fn index_adopted(&mut self, number: u16, adopted: &mut Adopted) -> Vec<Position> {
        let mut going = Vec::new();
        let mut block: ArrayVec<Position, { BLOCK as usize }> = ArrayVec::new();
        let used = self.slab.used();
        for start in (0..used).step_by(BLOCK as usize) {
            for position in start..used.min(start.saturating_add(BLOCK)) {
                if !self.slab.contains(position) {
                    continue;
                }
                let connection = self.slab.at(position);
                let verdict = self.verdict(number, connection);
                if !matches!(verdict, AdoptVerdict::Keep) {
                    self.let_go(position, &verdict, adopted);
                    going.push(position);
                    continue;
                }
                block.push(position);
            }
            // Sought together, so that cache misses overlap; what comes of it is looked at one by one.
            let keys: ArrayVec<FlowKey, { 2 * BLOCK as usize }> =
                block.iter().flat_map(|&position| BOTH.map(|way| self.slab.at(position).key(way))).collect();
            self.table.find_burst(&keys, &ConnectionFlows(&self.slab), &mut [None; 2 * BLOCK as usize]);
            for position in block.drain(..) {
                self.index_one(position, &mut going, adopted);
            }
        }
        going
    }

    fn verdict(&self, number: u16, connection: &Connection) -> AdoptVerdict {
        if connection.state == State::Pass {
            return AdoptVerdict::Pass;
        }
        if self.stateless.is_some() || !self.is_served(connection) {
            return AdoptVerdict::WithoutService;
        }
        let half_open = connection.state.is_half_open();
        if home(connection, &self.steering) != number || half_open && self.is_missteered(connection) {
            return AdoptVerdict::Misplaced;
        }
        if connection.flags.0 & (Flags::PENDING_REMOVAL | Flags::SEVERED) != 0 {
            AdoptVerdict::PendingRemoval
        } else {
            AdoptVerdict::Keep
        }
    }

    /// Whether the snapshot has the connection's service and backend under their numbers.
    fn is_served(&self, connection: &Connection) -> bool {
        let Some(named) = self.snapshot.services.get(usize::from(connection.service)) else { return false };
        let Some((service, backend)) = self.snapshot.backend(connection.backend_number) else { return false };
        core::ptr::eq(named, service)
            && service.state != ServiceState::Vacant
            && !service.kind.is_spliced()
            && !service.kind.is_terminated()
            && (service.endpoint, service.protocol) == (connection.vip, connection.protocol)
            && backend.endpoint == connection.backend
            && backend.state != BackendState::Disabled
    }

    fn is_missteered(&self, connection: &Connection) -> bool {
        home(connection, &self.steering) != self.steering.worker(&connection.client)
    }

    /// Marks an entry that does not stay. Only one whose service and place are right remains a connection until it is
    /// gone: it has a port of the pool to give back. Any other becomes a Pass entry, which is nothing but its keys.
    fn let_go(&mut self, position: Position, verdict: &AdoptVerdict, adopted: &mut Adopted) {
        match verdict {
            AdoptVerdict::Keep => adopted.duplicates += 1,
            AdoptVerdict::PendingRemoval | AdoptVerdict::Pass => adopted.pending_removal += 1,
            AdoptVerdict::WithoutService => adopted.without_service += 1,
            AdoptVerdict::Misplaced => adopted.misplaced += 1,
        }
        let connection = self.slab.at_mut(position);
        connection.flags.set(Flags::PENDING_REMOVAL);
        connection.flags.clear(Flags::COUNTED);
        if !matches!(verdict, AdoptVerdict::PendingRemoval) {
            connection.state = State::Pass;
        }
    }

    /// Puts an entry into the index. Of two with the same flow the newer one stays.
    fn index_one(&mut self, position: Position, going: &mut Vec<Position>, adopted: &mut Adopted) {
        let mut rivals: ArrayVec<Position, 2> = ArrayVec::new();
        for &direction in self.slab.at(position).directions() {
            rivals.extend(self.find(&self.slab.at(position).key(direction)).map(|(rival, _)| rival));
        }
        let age = |position: Position| (self.slab.at(position).created, self.slab.at(position).last_seen);
        let is_older = rivals.iter().any(|&rival| age(rival) > age(position));
        if !is_older {
            rivals.into_iter().for_each(|rival| self.make_way(rival, going, adopted));
        }
        let connection = *self.slab.at(position);
        if is_older || !self.index(position, &connection) {
            self.let_go(position, &AdoptVerdict::Keep, adopted);
            going.push(position);
        }
    }

    /// Takes an entry out of the index again, unless that has been done.
    fn make_way(&mut self, rival: Position, going: &mut Vec<Position>, adopted: &mut Adopted) {
        if !self.is_adopted(rival) {
            return;
        }
        for &direction in self.slab.at(rival).directions() {
            let key = self.slab.at(rival).key(direction);
            self.table.remove(&key, value(rival, direction));
        }
        self.let_go(rival, &AdoptVerdict::Keep, adopted);
        going.push(rival);
    }

    /// Finds out which rules the engine holds of entries that do not stay; returns their keys.
    fn claim(&mut self, going: &[Position], engine: &dyn Fn(&FlowKey) -> bool) -> BTreeSet<FlowKey> {
        let mut claimed = BTreeSet::new();
        for &position in going {
            let connection = self.slab.at_mut(position);
            let mut held = 0;
            for &direction in connection.directions() {
                let key = connection.key(direction);
                if engine(&key) && claimed.insert(key) {
                    held |= 1 << direction as u8;
                }
            }
            connection.holds(held);
        }
        claimed
    }

    /// Makes an entry that is in the index a connection of this worker's. `held`: which rules the engine holds of it.
    fn take_in(&mut self, now: Time, position: Position, held: u8, adopted: &mut Adopted) {
        let misses = self.is_missteered(self.slab.at(position));
        let connection = self.slab.at_mut(position);
        let was_offered = matches!(connection.pair.state(), OffloadState::Installing | OffloadState::Offloaded);
        connection.holds(held);
        let gone = held == 0 && was_offered;
        if held != 0 || gone || misses {
            connection.kept = Kept::Nothing;
        }
        connection.offer_after = if gone || misses { Time::ZERO } else { connection.offer_after.min(now + GRACE) };
        for time in [&mut connection.created, &mut connection.changed, &mut connection.last_seen] {
            *time = (*time).min(now);
        }
        connection.flags.put(Flags::FULL_NAT, connection.source != connection.client);
        connection.flags.put(Flags::MISSTEERED, misses);
        connection.flags.clear(Flags::COUNTED);
        let (backend, source, over) = (connection.backend_number, connection.source, connection.state.is_over());
        let full_nat = connection.flags.has(Flags::FULL_NAT);
        if full_nat {
            // A pair that is not in the pool any more is not given out again.
            self.ports.mark(u32::from(backend), source);
        }
        self.rules.add(self.slab.at(position).source.address.is_ipv4(), held.count_ones());
        self.count_in(position);
        self.count(position, !over);
        let deadline = self.deadline(self.slab.at(position));
        let deadline = match held {
            // to be offered again if the engine refuses it now
            0 if misses => now + QUEUE_FULL_FOR,
            0 => deadline.max(now + GRACE),
            _ => deadline,
        };
        self.stamps.started(position, deadline);
        let named = (position, self.slab.generation(position));
        let wanted = self.slab.at(position).rules_wanted();
        match held {
            _ if held == wanted => adopted.offloaded += 1,
            0 if gone || misses => self.unfinished.offers.push_back(named),
            0 => {}
            _ => self.unfinished.take_back.push_back(named),
        }
        adopted.kept += 1;
        adopted.rules_missing += u64::from(held != 0 && held != wanted);
        adopted.rules_gone += u64::from(gone);
        adopted.missteered += u64::from(misses);
    }

    /// Ends an entry that does not stay, at once if the engine holds nothing of it.
    fn dismiss(&mut self, now: Time, position: Position) {
        let connection = *self.slab.at(position);
        if connection.state == State::Pass {
            self.passes += 1;
            self.statistics.passes_now += 1;
        } else {
            let number = u32::from(connection.backend_number);
            if connection.flags.has(Flags::FULL_NAT) && !self.ports.mark(number, connection.source) {
                // The pair is another connection's by now, which will give it back.
                self.slab.at_mut(position).flags.clear(Flags::FULL_NAT);
            }
            self.count_in(position);
        }
        self.rules.add(connection.source.address.is_ipv4(), connection.pair.held().count_ones());
        if connection.pair.held() == 0 {
            self.release(now, position);
        } else {
            self.unfinished.take_back.push_back((position, self.slab.generation(position)));
        }
    }

    /// When there is more to do of what adoption has left.
    pub(super) fn unfinished_until(&self, now: Time) -> Option<Time> {
        let done = self.unfinished.take_back.is_empty() && self.unfinished.offers.is_empty();
        (!done).then(|| if self.queue_has_room() { now } else { now + QUEUE_FULL_FOR })
    }

    /// Goes on with what adoption has left: first all rules that have to go, then what is offered again.
    pub(super) fn finish_adoption(&mut self, now: Time) {
        for _ in 0..FINISH_MAX {
            if !self.queue_has_room() {
                return;
            }
            if let Some(named) = self.unfinished.take_back.pop_front() {
                self.take_back(now, named);
            } else if let Some((position, generation)) = self.unfinished.offers.pop_front() {
                if self.slab.contains(position) && self.slab.generation(position) == generation {
                    self.offer(now, position, 0, Direction::FromClient);
                }
            } else {
                self.unfinished = Unfinished::default();
                return;
            }
        }
    }

    fn take_back(&mut self, now: Time, (position, generation): (Position, u32)) {
        let there = self.slab.contains(position) && self.slab.generation(position) == generation;
        if !there || self.slab.at(position).pair.state() != OffloadState::Offloaded {
            return; // ended meanwhile, its rules with it
        }
        if !self.slab.at(position).flags.has(Flags::PENDING_REMOVAL) {
            // It may have no stamp, waiting for a sample that will not be asked for now.
            self.stamps.started(position, now + QUEUE_FULL_FOR);
        }
        self.remove_rules(now, position);
    }

    /// Offers a connection that only the engine can carry, again and again until the engine has it.
    pub(super) fn offer_missteered(&mut self, now: Time, position: Position) {
        self.offer(now, position, 0, Direction::FromClient);
        let deadline = self.deadline(self.slab.at(position));
        self.stamps.started(position, deadline.min(now + MISSTEERED_AGAIN));
    }
}
