//! Silence: timeouts by state, judged by the engine's counters for what it carries.
//!
//! A connection has one stamp. Packets only write `last_seen`; when its time comes the deadline is worked out anew, so
//! that the packet path never touches the stamp but when a state with a shorter timeout begins.

use super::lifecycle::QUEUE_FULL_FOR;
use super::{SAMPLES_MAX, Worker};
use crate::engine::{COMPLETIONS_MAX, RuleId, Samples};
use crate::flow::{Direction, FlowKey};
use crate::l4::connection::{Connection, Flags, State};
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::table::ageing::{Ageing, Deadlines};
use crate::table::slab::Slab;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;

/// How long a Pass entry lives without a packet.
pub(super) const PASS_IDLE: Duration = Duration::from_secs(30);
/// Entries judged per call at most.
const EXPIRE_MAX: usize = 64;

/// Connections with a stamp: all are judged by the worker when it is due, since more than silence counts.
struct StampedConnections<'a>(&'a Slab<Connection>);

impl Deadlines for StampedConnections<'_> {
    fn deadline(&self, _: Position) -> Option<Time> {
        Some(Time::ZERO)
    }

    fn prefetch(&self, position: Position) {
        self.0.prefetch(position);
    }
}

/// Rules whose counters are wanted.
pub type SampledRules = ArrayVec<(RuleId, FlowKey), COMPLETIONS_MAX>;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// How long silence is borne in a connection's state.
    pub(super) fn timeout(&self, connection: &Connection) -> Duration {
        if connection.state == State::Pass {
            return self.pass_timeout(connection);
        }
        let Some(service) = self.snapshot.services.get(usize::from(connection.service)) else { return PASS_IDLE };
        let timeouts = &service.timeouts;
        match connection.state {
            _ if connection.flags.has(Flags::SEVERED) => timeouts.tcp_half_closed,
            State::SynSent | State::SynReceived => timeouts.tcp_handshake,
            State::Established if connection.flags.has(Flags::REVIVED) => timeouts.tcp_half_closed,
            State::Established => timeouts.tcp_established,
            State::FinClient | State::FinBackend => timeouts.tcp_half_closed,
            State::Closed => timeouts.tcp_closed,
            State::Reset => timeouts.tcp_reset,
            State::UdpNew => timeouts.udp_new,
            State::UdpEstablished => timeouts.udp_established,
            State::Pass => PASS_IDLE,
        }
    }

    /// When a connection is to be judged: after silence, or so long after it seemed over.
    pub(super) fn deadline(&self, connection: &Connection) -> Time {
        let from = if connection.state.is_over() { connection.changed } else { connection.last_seen };
        from + self.timeout(connection)
    }

    /// Moves a connection into another state.
    pub(super) fn transition(&mut self, now: Time, position: Position, next: State) {
        let connection = self.slab.at_mut(position);
        let before = connection.state;
        connection.state = next;
        connection.changed = now;
        self.count(position, !next.is_over());
        let shorter = next.is_over() || matches!(next, State::FinClient | State::FinBackend | State::SynSent);
        if shorter && before != next {
            let timeout = self.timeout(self.slab.at(position));
            self.stamps.started(position, now + timeout);
        }
    }

    /// Notes that both ends of a connection have agreed to talk: it does not give way to newer ones any more.
    pub(super) fn prove(&mut self, position: Position) {
        let connection = self.slab.at_mut(position);
        if !connection.flags.has(Flags::PROVEN) {
            connection.flags.set(Flags::PROVEN);
            let service = usize::from(connection.service);
            self.forget_half_open(position);
            self.statistics.services[service].established += 1;
        }
    }

    /// When [`Worker::handle_timeout`] next has something to do; it may be early.
    pub fn poll_timeout(&self, now: Time) -> Option<Time> {
        let effective_weights = self.effective_weights_have_changed().then_some(now);
        let splices = self.splices.poll_timeout(now);
        let set_up = self.set_up_due(now);
        let others =
            [self.sweep.due(), self.unfinished_until(now), effective_weights, splices, self.survey_due(), set_up];
        self.stamps.next(now).into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Judges connections whose time has come and ends those that [`Worker::end_backend`] wants ended, a bounded number of
    /// them; [`Worker::poll_timeout`] says when to go on.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.effective_weights_have_changed() {
            self.follow_effective_weights(now);
        }
        self.finish_adoption(now);
        self.sweep(now);
        self.survey(now);
        let mut due: ArrayVec<Position, EXPIRE_MAX> = ArrayVec::new();
        self.stamps.due(now, &StampedConnections(&self.slab), &mut due);
        for position in due {
            let connection = self.slab.at(position);
            match connection.pair.state() {
                _ if connection.flags.has(Flags::SEVERED) => self.severed_due(now, position),
                OffloadState::Software
                    if connection.flags.has(Flags::MISSTEERED) && now < self.deadline(connection) =>
                {
                    self.offer_missteered(now, position);
                }
                OffloadState::Software => self.judge(now, position),
                OffloadState::Offloaded if now < self.deadline(connection) => self.judge(now, position),
                OffloadState::Offloaded if self.sampling.len() < SAMPLES_MAX => self.sampling.push_back(position),
                _ => self.stamps.started(position, now + QUEUE_FULL_FOR),
            }
        }
    }

    /// Rules whose counters are needed to judge their connections. The caller must bring the answers to
    /// [`Worker::handle_samples`] before anything else.
    pub fn poll_samples(&mut self, asked: &mut SampledRules) {
        while asked.remaining_capacity() >= 2 {
            let Some(position) = self.sampling.pop_front() else { return };
            if !self.slab.contains(position) || self.slab.at(position).pair.state() != OffloadState::Offloaded {
                continue; // overtaken by events, and stamped again or on its way out
            }
            for direction in [Direction::FromClient, Direction::FromBackend] {
                if self.slab.at(position).pair.holds(direction) {
                    asked.push((self.rule_id(position, direction), self.slab.at(position).key(direction)));
                }
            }
        }
    }

    /// Takes the counters asked for, in the order asked, and judges the connections.
    pub fn handle_samples(&mut self, now: Time, asked: &SampledRules, samples: &Samples) {
        self.rules.refresh(self.splices.rules());
        for ((id, _), sample) in asked.iter().zip(samples) {
            if let (Some((position, direction)), Some(counters)) = (self.rule_of(*id), sample) {
                self.slab.at_mut(position).sampled(direction, counters);
            }
        }
        let mut last = None;
        for (id, _) in asked {
            let Some((position, _)) = self.rule_of(*id) else { continue };
            if last == Some(position) || self.slab.at(position).flags.has(Flags::PENDING_REMOVAL) {
                continue;
            }
            last = Some(position);
            self.judge(now, position);
            self.review(now, position);
        }
    }

    /// Stamps a connection again if it has gone on, else concludes it.
    fn judge(&mut self, now: Time, position: Position) {
        self.weigh_report(position);
        let connection = *self.slab.at(position);
        if connection.awaits_revival() && self.has_gone_on(&connection) {
            return self.revive(now, position);
        }
        if now >= self.deadline(&connection) {
            return self.conclude(now, position);
        }
        let connection = self.slab.at_mut(position);
        if connection.last_seen > connection.changed && !connection.awaits_revival() {
            connection.flags.clear(Flags::REVIVED);
        }
        let deadline = self.deadline(self.slab.at(position));
        self.stamps.started(position, deadline);
    }

    /// Whether packets have come for long after its state changed. Those that arrive in the first half of its timeout may have
    /// been on their way; one in the second half means that the FIN, RST or SYN was forged, or that the ends have started anew
    /// behind our back.
    fn has_gone_on(&self, connection: &Connection) -> bool {
        connection.last_seen > connection.changed + self.timeout(connection) / 2
    }

    /// Brings back a connection that seemed over, or to have begun anew.
    pub(super) fn revive(&mut self, now: Time, position: Position) {
        self.statistics.revived += 1;
        self.slab.at_mut(position).flags.set(Flags::REVIVED);
        if self.slab.at(position).state == State::SynSent {
            // It has been counted as established, and does not give way.
            self.slab.at_mut(position).flags.set(Flags::PROVEN | Flags::JUDGED);
            self.forget_half_open(position);
        }
        self.transition(now, position, State::Established);
        let deadline = self.deadline(self.slab.at(position));
        self.stamps.started(position, deadline);
    }

    /// The last word on a connection whose time is up: gone, unless it went on after it seemed over.
    fn conclude(&mut self, now: Time, position: Position) {
        let connection = *self.slab.at(position);
        if connection.state.is_over() && self.has_gone_on(&connection) {
            return self.revive(now, position);
        }
        if connection.state == State::SynSent {
            self.failed(position);
        }
        if !self.begin_removal(now, position) {
            self.stamps.started(position, now + QUEUE_FULL_FOR);
        }
    }
}
