//! Connections that the engine has set up, or has begun to (`engine::SetsUp`): how they come into the table.
//!
//! What has been set up is told, and taken before each burst, so that a packet of such a connection finds it. What has only
//! begun stays with the engine until a packet of it comes here: then it is taken from there, and goes on as if its first
//! packets had come by here. The flags of segments with SYN, FIN and RST that rules have taken are told likewise, and move
//! states as the segments would have here.
//!
//! Of direct server return a connection is told when its client has gone on after the SYN, and once more when the engine has
//! made the rule; in between it is one that gives way (`one_way.rs`), although its packets do not come here.
//!
//! First packets, and answers to datagrams, are counted where they pass: not here if the engine has sent them on.
//!
//! The engine makes connections without asking, as many as the worker has granted it. The worker's limits still hold: what
//! finds no room is taken out of the engine again, and its ends see an unknown connection.

use super::{Drop, Which, Worker};
use crate::config::{BackendState, Forwarding, ServiceState};
use crate::engine::{Begun, Report, RuleId, RuleOp, SetUp, SetsUp, set_up_services};
use crate::flow::{Direction, FlowKey, Protocol};
use crate::l4::connection::{Flags, State};
use crate::offload::{OffloadPolicy, OffloadState, RulePair};
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use alloc::boxed::Box;

/// Reports read at a time at most.
const REPORTS_MAX: usize = 512;
/// How often a worker looks for reports at least.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it does so while there have been some within [`BUSY_FOR`]: the queue has room for 4,096, and a report that finds
/// none costs a packet's way through the worker.
const LOOK_SOON: Duration = Duration::from_millis(5);
const BUSY_FOR: Duration = Duration::from_millis(100);
/// One in this many places of the table is kept for connections that come by here.
const RESERVE_SHARE: usize = 16;

/// The name of rules that no connection in the table has: the engine's answers about them change nothing.
const NO_RULE: RuleId = RuleId((u32::MAX as u64) << 31);

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// From now on the engine sets connections up. Where none are tracked it may not.
    pub fn set_up_by(&mut self, engine: Box<dyn SetsUp>) {
        if self.stateless.is_none() {
            self.sets_up = Some(engine);
            self.learn_set_up();
        }
    }

    /// Learns from the snapshot of which services the engine sets connections up.
    pub(super) fn learn_set_up(&mut self) {
        if self.sets_up.is_some() {
            self.set_up_there = set_up_services(&self.snapshot).iter().map(Result::is_ok).collect();
        }
    }

    /// Follows what the engine reports, a bounded number of reports, and says how many more connections there is room for.
    /// Whether there were any.
    pub fn take_set_up(&mut self, now: Time) -> bool {
        let Some(mut engine) = self.sets_up.take() else { return false };
        let mut count = 0;
        while count < REPORTS_MAX && self.queue_has_room() {
            let Some(report) = engine.next() else { break };
            self.take_report(now, &report);
            engine.done();
            count += 1;
        }
        let reserve = self.slab.capacity() / RESERVE_SHARE;
        // What may be forged gives way (`one_way.rs`), and a flood of it leaves the others to the engine.
        let stay = self.slab.len().saturating_sub(self.yielding.len() as usize);
        engine.grant(self.slab.capacity().saturating_sub(stay + reserve) as u32);
        self.sets_up = Some(engine);
        if count > 0 {
            self.reported = now;
        }
        count > 0
    }

    /// Follows one report. That of another worker's connection changes nothing.
    pub fn take_report(&mut self, now: Time, report: &Report) {
        match report {
            Report::SetUp(set_up) => self.adopt_set_up(now, set_up),
            Report::Begun { key, begun } => self.adopt_begun(now, key, begun),
            Report::Segment { key, flags } => self.follow_segment(now, key, *flags),
        }
    }

    /// When to look for reports again, if there can be any.
    pub(super) fn set_up_due(&self, now: Time) -> Option<Time> {
        let wait = if now.since(self.reported) < BUSY_FOR { LOOK_SOON } else { LOOK_EVERY };
        self.sets_up.is_some().then(|| now + wait)
    }

    /// Takes one connection that the engine has set up into the table. What cannot be taken leaves the engine.
    pub fn adopt_set_up(&mut self, now: Time, set_up: &SetUp) {
        if self.steering.worker(&set_up.key.source) != self.number {
            // Told to a process with another number of workers: all workers of this one have this report.
            return;
        }
        match self.settle_rivals(now, set_up) {
            Rivals::Same => return self.adopt_rule(now, set_up),
            Rivals::Stay => return self.take_away(set_up),
            Rivals::None => {}
        }
        let Some((service, index)) = self.place_of(&set_up.key, set_up.backend) else {
            return self.take_away(set_up);
        };
        if self.slab.len() >= self.slab.capacity() && !self.make_room(now) {
            self.drop_frame(Drop::TableFull);
            return self.take_away(set_up);
        }
        let Ok(mut connection) = self.draft(now, &set_up.key, service, index, false) else {
            return self.take_away(set_up);
        };
        connection.state = match set_up.key.protocol {
            Protocol::Tcp => State::Established,
            Protocol::Udp => State::UdpEstablished,
        };
        let is_one_way = connection.flags.has(Flags::DIRECT);
        connection.flags.put(Flags::CHALLENGED, !is_one_way);
        connection.pair = RulePair::holding(connection.rules_wanted());
        let Ok(position) = self.admit(now, connection) else { return self.take_away(set_up) };
        self.count_set_up(position);
        if is_one_way {
            self.trust(position);
        } else if set_up.answered {
            self.succeeded(position);
        }
        if self.snapshot.backend(set_up.backend).is_some_and(|(_, backend)| backend.state == BackendState::Disabled) {
            self.end_backend(now, set_up.backend, Which::All);
        }
    }

    /// Counts rules that the engine has made.
    fn count_set_up(&mut self, position: Position) {
        let connection = self.slab.at(position);
        self.rules.add(connection.source.address.is_ipv4(), connection.pair.held().count_ones());
        self.statistics.offload.rules = u64::from(self.rules.own());
        self.statistics.offload.set_up += 1;
    }

    /// A connection in the table, of which the engine has made the rules: both are known, but that of direct server return
    /// may be news.
    fn adopt_rule(&mut self, now: Time, set_up: &SetUp) {
        let Some((position, _)) = self.find(&set_up.key) else { return };
        let connection = self.slab.at_mut(position);
        if !connection.flags.has(Flags::DIRECT) {
            return;
        }
        if connection.pair.state() == OffloadState::Software {
            connection.pair = RulePair::holding(connection.rules_wanted());
            // The client's numbers run on where they are not seen.
            connection.proof = 0;
            connection.last_seen = now;
            self.count_set_up(position);
            if self.slab.at(position).state == State::UdpNew {
                self.transition(now, position, State::UdpEstablished);
                self.established(position);
            }
            self.goes_on_one_way(now, position);
        }
        self.trust(position);
    }

    /// Takes a connection of direct server return into the table whose client has gone on after its SYN, or begun anew, and
    /// which has no rule yet. What cannot be taken is the engine's until it has one.
    fn adopt_begun(&mut self, now: Time, key: &FlowKey, begun: &Begun) {
        if self.steering.worker(&key.source) != self.number {
            return;
        }
        if let Some((position, _)) = self.find(key) {
            let rival = *self.slab.at(position);
            let is_same = rival.flags.has(Flags::DIRECT) && rival.backend_number == begun.backend;
            if is_same {
                self.restart_one_way(now, position, Some(begun.proof));
                return if begun.answered {
                    self.goes_on_one_way(now, position)
                };
            }
            let yields = rival.state.is_half_open() || rival.state.is_over() || rival.state == State::FinClient;
            if !yields || !self.begin_removal(now, position) {
                return;
            }
        }
        self.go_on(now, key, begun);
    }

    /// A segment with these flags has gone by its rule.
    fn follow_segment(&mut self, now: Time, key: &FlowKey, flags: u8) {
        let Some((position, direction)) = self.find(key) else { return };
        let connection = self.slab.at_mut(position);
        if connection.state == State::Pass || connection.flags.has(Flags::SEVERED) {
            return;
        }
        if connection.flags.has(Flags::DIRECT) {
            connection.last_seen = now;
            return self.follow_one_way(now, position, flags);
        }
        if self.is_guessed(position) {
            return;
        }
        if self.begins_anew(position, direction, flags) {
            self.restart(now, position);
        }
        self.step(now, position, direction, flags, true);
        if self.slab.at(position).state == State::SynReceived {
            // The client's ACK goes by the rule, and is not told.
            self.prove(position);
            self.succeeded(position);
            self.transition(now, position, State::Established);
        }
        self.slab.at_mut(position).last_seen = now;
    }

    /// What a packet with this key, of no connection, belongs to, if that has begun in the engine, or was set up there just
    /// now.
    pub(super) fn seek_in_engine(&mut self, now: Time, key: &FlowKey) -> Option<(Position, Direction)> {
        let client = self.client_flow(key)?;
        // What finds no room stays with the engine, and goes on when its client sends again.
        let has_room = self.slab.len() < self.slab.capacity() || self.half_open.len() + self.yielding.len() > 0;
        let begun = if has_room { self.sets_up.as_mut()?.take(&client) } else { None };
        if let Some(begun) = begun {
            if self.give_way_to_begun(now, &client) {
                self.go_on(now, &client, &begun);
            }
        } else {
            // A report is whole before what has begun is gone.
            self.take_set_up(now);
        }
        self.find(key)
    }

    /// Whether no connection has the client's flow of one that has begun: a packet of the backend asks for that, and the engine
    /// begins one beside what the table has while no process is there. What is half-open or over gives way. Beside any other
    /// the SYN was forged, or comes late.
    fn give_way_to_begun(&mut self, now: Time, key: &FlowKey) -> bool {
        let Some((position, _)) = self.find(key) else { return true };
        let state = self.slab.at(position).state;
        (state.is_half_open() || state.is_over()) && self.begin_removal(now, position)
    }

    /// The client's flow of the connection that a packet with this key may be of, if the engine sets such up.
    fn client_flow(&self, key: &FlowKey) -> Option<FlowKey> {
        self.sets_up.as_ref()?;
        let is_there = |service: u16| self.set_up_there.get(usize::from(service)).is_some_and(|there| *there);
        if let Some(service) = self.services.at(&key.destination, key.protocol) {
            return is_there(service).then_some(*key);
        }
        let (service, _) = self.snapshot.place(self.backends.at(&key.source, key.protocol)?)?;
        let vip = self.snapshot.services.get(usize::from(service))?.endpoint;
        is_there(service).then_some(FlowKey { source: key.destination, destination: vip, protocol: key.protocol })
    }

    /// Goes on with what the engine has begun.
    fn go_on(&mut self, now: Time, key: &FlowKey, begun: &Begun) {
        let Some((service, index)) = self.place_of(key, begun.backend) else { return };
        let is_disabled =
            self.snapshot.backend(begun.backend).is_none_or(|(_, backend)| backend.state == BackendState::Disabled);
        let is_full = self.slab.len() >= self.slab.capacity() && !self.make_room(now);
        if is_disabled || is_full {
            return;
        }
        let Ok(mut connection) = self.draft(now, key, service, index, false) else { return };
        let is_one_way = connection.flags.has(Flags::DIRECT);
        if !is_one_way && !self.clear_way(now, &connection.key(Direction::FromBackend)) {
            return;
        }
        match key.protocol {
            Protocol::Tcp if is_one_way => {
                connection.state = if begun.answered { State::Established } else { State::SynSent };
                connection.proof = begun.proof.max(1);
                connection.forwarded[Direction::FromClient as usize].packets = u64::from(begun.sent);
            }
            Protocol::Tcp if begun.answered => {
                connection.state = State::SynReceived;
                connection.proof = begun.proof;
                connection.flags.set(Flags::CHALLENGED);
            }
            Protocol::Tcp => {}
            Protocol::Udp => {
                connection.forwarded[Direction::FromClient as usize].packets = u64::from(begun.sent);
                connection.forwarded[Direction::FromBackend as usize].packets = u64::from(begun.answered);
            }
        }
        if let Ok(position) = self.admit(now, connection)
            && key.protocol == Protocol::Udp
            && begun.answered
        {
            self.succeeded(position);
        }
    }

    /// Service and position of the backend of a client's flow, if the snapshot has them for it.
    fn place_of(&self, key: &FlowKey, backend: u16) -> Option<(u16, usize)> {
        let (service, index) = self.snapshot.place(backend)?;
        let settings = self.snapshot.services.get(usize::from(service))?;
        let is_its = (settings.endpoint, settings.protocol) == (key.destination, key.protocol);
        (is_its && settings.state != ServiceState::Vacant).then_some((service, index.into()))
    }

    /// The backend's flow of a connection that was set up, unless its packets do not pass.
    fn reverse_of(&self, set_up: &SetUp) -> Option<FlowKey> {
        let (service, backend) = self.snapshot.backend(set_up.backend)?;
        let passes = service.forwarding != Forwarding::Direct;
        let SetUp { key, .. } = set_up;
        passes.then_some(FlowKey { source: backend.endpoint, destination: key.source, protocol: key.protocol })
    }

    /// Looks for connections that have a flow of one that was set up. What is half-open or over gives way.
    fn settle_rivals(&mut self, now: Time, set_up: &SetUp) -> Rivals {
        for key in [Some(set_up.key), self.reverse_of(set_up)].into_iter().flatten() {
            let Some((position, _)) = self.find(&key) else { continue };
            let rival = self.slab.at(position);
            let is_same = rival.key(Direction::FromClient) == set_up.key && rival.backend_number == set_up.backend;
            if is_same && (rival.pair.state() != OffloadState::Software || rival.flags.has(Flags::DIRECT)) {
                return Rivals::Same;
            }
            let yields = rival.state.is_half_open() || rival.state.is_over() || rival.state == State::Pass || is_same;
            if !yields || !self.begin_removal(now, position) {
                return Rivals::Stay;
            }
        }
        Rivals::None
    }

    /// Takes the rules of a connection that cannot be in the table out of the engine, but for one that a connection in the
    /// table has.
    fn take_away(&mut self, set_up: &SetUp) {
        for key in [Some(set_up.key), self.reverse_of(set_up)].into_iter().flatten() {
            let is_held = self.find(&key).is_some_and(|(position, direction)| {
                let pair = self.slab.at(position).pair;
                pair.holds(direction) || pair.state() == OffloadState::Installing
            });
            if !is_held {
                self.ops.push_back(RuleOp::Remove { id: NO_RULE, key });
            }
        }
    }
}

/// What stands in the way of a connection that was set up.
enum Rivals {
    None,
    /// It is in the table already.
    Same,
    Stay,
}
