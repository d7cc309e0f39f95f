//! The engine's part that sets TCP connections up under NAT: what `crates/linux/bpf/setup.h`, `pending.h` and `follow.h` do,
//! said anew. Not here: UDP, direct server return, the policer of backends.

mod meet;

use super::{Gate, Installed};
use hairpin_core::balance::{SCHEDULE_NONE, flow_hash, source_hash};
use hairpin_core::config::Snapshot;
use hairpin_core::engine::{Begun, Fate, Report, RuleId, ScheduleKind, SetsUp};
use hairpin_core::flow::{Direction, Endpoint, FlowKey, Steering};
use hairpin_core::rewrite::Rewrite;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A SYN that comes again after so long without an answer is the worker's: `meet_client` of `setup.h`.
const UNANSWERED: Duration = Duration::from_millis(500);
/// Packets that the policer lets pass at once.
const BURST: u64 = 4;
/// The name of rules that no worker has asked for.
pub(super) const OWN: RuleId = RuleId(u64::MAX);

/// The parameters of set-up.
#[derive(Clone, Copy, Debug)]
pub struct SetUpOptions {
    /// Half-open connections at most; the least recently used gives way.
    pub pending_max: usize,
    /// Reports that wait for the worker at most.
    pub reports_max: usize,
    /// Cells by which known clients are recognised: a power of two.
    pub known_cells: usize,
    /// SYNs, and packets of no known connection, that pass per second; `None`: all.
    pub admitted: Option<u32>,
    /// How long after its last iteration a process counts as present.
    pub heartbeat_timeout: Duration,
    /// How long after that set-up goes on: `when_absent = "serve"`.
    pub serves: Duration,
    /// How long no process is there after one was killed, at most.
    pub away_max: Duration,
}

/// What set-up has done in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetUpTally {
    /// Pairs of rules made.
    pub made: u64,
    /// Of these, while no process was there.
    pub made_absent: u64,
    /// Segments with SYN, FIN or RST that have gone by their rules, and were reported.
    pub followed: u64,
    /// Packets of connections that have begun here that were left to the worker.
    pub deferred: u64,
    /// First packets and rules that found no credit of the worker's.
    pub no_room: u64,
    /// Reports that found no place.
    pub reports_full: u64,
    /// First packets whose backend's flow had a rule.
    pub taken: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Half-open connections that gave way to others.
    pub evicted: u64,
    /// Pairs that a process found at its start, of which no worker had heard.
    pub found: u64,
}

impl std::ops::AddAssign for SetUpTally {
    fn add_assign(&mut self, other: SetUpTally) {
        self.made += other.made;
        self.made_absent += other.made_absent;
        self.followed += other.followed;
        self.deferred += other.deferred;
        self.no_room += other.no_room;
        self.reports_full += other.reports_full;
        self.taken += other.taken;
        self.policed += other.policed;
        self.evicted += other.evicted;
        self.found += other.found;
    }
}

/// A half-open connection.
#[derive(Clone, Copy)]
struct Pending {
    backend: u16,
    begun: Time,
    answered: bool,
    proof: u32,
    /// Grows with each use.
    used: u64,
}

/// What engine and worker share.
#[derive(Default)]
struct Shared {
    pending: BTreeMap<FlowKey, Pending>,
    reports: VecDeque<Report>,
    /// Connections made so far, and how many the worker has room for, counted likewise.
    made: u32,
    allowed: u32,
}

/// The worker's end of it.
struct WorkerEnd(Arc<Mutex<Shared>>);

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SetsUp for WorkerEnd {
    fn next(&mut self) -> Option<Report> {
        lock(&self.0).reports.front().copied()
    }

    fn done(&mut self) {
        lock(&self.0).reports.pop_front();
    }

    fn take(&mut self, key: &FlowKey) -> Option<Begun> {
        let Pending { backend, answered, proof, .. } = lock(&self.0).pending.remove(key)?;
        Some(Begun { backend, answered, proof, sent: 1 })
    }

    fn grant(&mut self, room: u32) {
        let mut shared = lock(&self.0);
        let waiting = shared.reports.len() as u32;
        shared.allowed = shared.made.wrapping_add(room.saturating_sub(waiting));
    }
}

/// How `pending` is changed with a packet that is sent on.
#[derive(Clone, Copy)]
enum Update {
    /// Made, or made anew.
    Begin,
    /// Only if it is there.
    Change,
    /// Not at all.
    Nothing,
}

/// The part of an engine that sets connections up.
pub struct SetUpPart {
    options: SetUpOptions,
    vip: Endpoint,
    /// Their numbers, and the other way round.
    backends: BTreeMap<Endpoint, u16>,
    ends: BTreeMap<u16, Endpoint>,
    lifetime: Duration,
    schedule: (ScheduleKind, Vec<u16>),
    turn: usize,
    known: &'static [AtomicU8],
    steering: Steering,
    /// Millionths of packets that the policer lets pass, and as of when.
    tokens: (u64, Time),
    shared: Arc<Mutex<Shared>>,
    uses: u64,
    /// When the process that served last was killed; `None`: it serves.
    died: Option<Time>,
    /// What it has done.
    pub tally: SetUpTally,
}

impl SetUpPart {
    /// Set-up for the one service of a snapshot, whose backends are chosen by `schedule`.
    pub fn new(
        options: SetUpOptions,
        snapshot: &Snapshot,
        schedule: (ScheduleKind, Vec<u16>),
        known: &'static [AtomicU8],
        steering: Steering,
    ) -> SetUpPart {
        let service = &snapshot.services[0];
        let ends = service.backends.iter().map(|backend| (backend.number, backend.endpoint));
        SetUpPart {
            options,
            vip: service.endpoint,
            backends: ends.clone().map(|(number, end)| (end, number)).collect(),
            ends: ends.collect(),
            lifetime: service.timeouts.tcp_handshake,
            schedule,
            turn: 0,
            known,
            steering,
            tokens: (BURST * 1_000_000, Time::ZERO),
            shared: Arc::default(),
            uses: 0,
            died: None,
            tally: SetUpTally::default(),
        }
    }

    /// The worker's end of it.
    pub(super) fn worker_end(&self) -> Box<dyn SetsUp> {
        Box::new(WorkerEnd(self.shared.clone()))
    }

    /// Whether reports wait.
    pub(super) fn has_reports(&self) -> bool {
        !lock(&self.shared).reports.is_empty()
    }

    /// The process that served was killed.
    pub(super) fn dies(&mut self, now: Time) {
        self.died = Some(now);
    }

    /// Another one serves, which has found so many pairs, and takes the reports.
    pub(super) fn serve(&mut self, found: u64) -> Vec<Report> {
        self.died = None;
        self.tally.found += found;
        lock(&self.shared).reports.drain(..).collect()
    }

    /// Whether no process is known to serve.
    pub(super) fn is_absent(&self, now: Time) -> bool {
        self.died.is_some_and(|died| now > died + self.options.heartbeat_timeout)
    }

    fn serves(&self, now: Time) -> bool {
        let until = self.options.heartbeat_timeout + self.options.serves;
        self.died.is_none_or(|died| now <= died + until)
    }

    fn is_known(&self, client: &Endpoint) -> bool {
        let cell = self.steering.hash(client) as usize & (self.known.len() - 1);
        self.known[cell].load(Ordering::Relaxed) != 0
    }

    fn admits(&mut self, now: Time) -> bool {
        let Some(rate) = self.options.admitted else { return true };
        let (tokens, since) = self.tokens;
        let more = now.since(since).as_micros() as u64 * u64::from(rate);
        let tokens = (tokens + more).min(BURST * 1_000_000);
        let admits = tokens >= 1_000_000;
        self.tokens = (if admits { tokens - 1_000_000 } else { tokens }, now);
        self.tally.policed += u64::from(!admits);
        admits
    }

    fn has_room(&mut self) -> bool {
        let shared = lock(&self.shared);
        let has_room = (shared.allowed.wrapping_sub(shared.made) as i32) > 0;
        self.tally.no_room += u64::from(!has_room);
        has_room
    }

    /// Whether there is a place for a report.
    fn has_place(&mut self) -> bool {
        let has_place = lock(&self.shared).reports.len() < self.options.reports_max;
        self.tally.reports_full += u64::from(!has_place);
        has_place
    }

    fn choose(&mut self, key: &FlowKey) -> Option<Pending> {
        let (kind, list) = &self.schedule;
        let by_hash = |hash: u64| ((u128::from(hash) * list.len() as u128) >> 64) as usize;
        let place = match kind {
            ScheduleKind::Turns => self.turn % list.len().max(1),
            ScheduleKind::Flow => by_hash(flow_hash(key)),
            ScheduleKind::Source => by_hash(source_hash(&key.source.address)),
        };
        self.turn += 1;
        let backend = *list.get(place).filter(|&&backend| backend != SCHEDULE_NONE)?;
        Some(Pending { backend, begun: Time::ZERO, answered: false, proof: 0, used: 0 })
    }

    /// What is half-open under a client's flow, unless its time is over.
    fn find(&self, now: Time, key: &FlowKey) -> Option<Pending> {
        let found = lock(&self.shared).pending.get(key).copied();
        found.filter(|pending| now.since(pending.begun) < self.lifetime)
    }

    /// Changes `pending`; whether that went.
    fn put(&mut self, key: &FlowKey, begun: Pending, update: Update) -> bool {
        self.uses += 1;
        let mut shared = lock(&self.shared);
        let is_there = shared.pending.contains_key(key);
        match update {
            Update::Nothing => return true,
            Update::Change if !is_there => return false,
            Update::Begin if !is_there && shared.pending.len() >= self.options.pending_max => {
                let oldest = shared.pending.iter().min_by_key(|(_, pending)| pending.used).map(|(key, _)| *key);
                oldest.and_then(|oldest| shared.pending.remove(&oldest));
                self.tally.evicted += 1;
            }
            Update::Begin | Update::Change => {}
        }
        shared.pending.insert(*key, Pending { used: self.uses, ..begun });
        true
    }

    /// The flow in one direction of the connection of a client's flow with a backend, and its rewrite.
    fn flow(&self, client: &FlowKey, backend: u16, direction: Direction) -> Option<(FlowKey, Rewrite)> {
        let end = *self.ends.get(&backend)?;
        let back = FlowKey { source: end, destination: client.source, protocol: client.protocol };
        let to = |source, destination| Rewrite { source, destination, ..Rewrite::default() };
        Some(match direction {
            Direction::FromClient => (*client, to(client.source, end)),
            Direction::FromBackend => (back, to(self.vip, client.source)),
        })
    }

    /// Whether a segment with these flags goes by a rule that is active. The backends always take connections.
    pub(super) fn follows(&self, there: &Installed, tcp_flags: u8) -> bool {
        if there.rule.fate != Fate::Forward || there.rule.guard.is_some() || there.gate != Gate::Active {
            return false;
        }
        if tcp_flags & SYN == 0 {
            return true;
        }
        match tcp_flags & (FIN | RST | ACK) {
            ACK => there.rule.total & 1 != 0 && there.opens,
            0 => there.rule.total & 1 == 0,
            _ => false,
        }
    }
}
