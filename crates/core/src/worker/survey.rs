//! The questions and reports to the policy: about connections in software at their packets, about those in the engine when
//! their counters are read, about those that have ended.

use super::{SAMPLES_MAX, Worker};
use crate::engine::OPS_MAX;
use crate::flow::{Direction, FlowKey};
use crate::l4::connection::{Connection, Flags, Kept, State};
use crate::offload::OffloadState;
use crate::offload::{Costs, EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use crate::table::{Position, Table};
use crate::time::{Duration, Time};

/// How often a part of the rules' counters is asked for, if the policy wants them.
const STEP: Duration = Duration::from_millis(20);
/// Positions looked at per step at most.
const POSITIONS_MAX: u32 = 4096;

/// Going round over all connections for the policy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survey {
    /// The next position.
    next: Position,
    /// When the last step was.
    stepped: Time,
}

fn flow_stats(position: Position, connection: &Connection) -> FlowStats {
    let volumes = || connection.forwarded.iter().chain(&connection.offloaded);
    FlowStats {
        position,
        protocol: connection.protocol,
        packets: volumes().map(|volume| volume.packets).sum(),
        bytes: volumes().map(|volume| volume.bytes).sum(),
        created: connection.created,
        length: 0,
        direction: Direction::FromClient,
        client: connection.client,
        service: connection.vip,
    }
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// For connections of an address family.
    fn engine_room(&self, ipv4: bool) -> EngineRoom {
        EngineRoom {
            rules: self.rules.all(ipv4),
            own: self.rules.of_connections(),
            rules_max: self.caps.rules_max,
            waiting: self.ops.len() as u32,
            waiting_max: OPS_MAX as u32,
            unanswered: self.in_flight + self.ops.len() as u32,
        }
    }

    /// Asks the policy about an established connection that software still carries, when one of its packets, of so many
    /// bytes and of that direction, has come; 0: none has.
    pub(super) fn offer(&mut self, now: Time, position: Position, length: u64, direction: Direction) {
        let connection = self.slab.at(position);
        let misses = connection.flags.has(Flags::MISSTEERED);
        let open = matches!(connection.state, State::Established | State::UdpEstablished)
            || misses && connection.state.is_established();
        let is_proven = connection.flags.0 & (Flags::DIRECT | Flags::PROVEN) != Flags::DIRECT;
        let in_doubt = connection.flags.0 & (Flags::REPORTED | Flags::JUDGED) == Flags::REPORTED;
        if !open || !is_proven || in_doubt || connection.pair.state() != OffloadState::Software {
            return;
        }
        if !misses && !self.policy.offloads() {
            // As a connection's first two cache lines say it, for the fast path.
            self.statistics.offload.kept[Reason::Never as usize] += 1;
            self.slab.at_mut(position).kept = Kept::Policy;
            return;
        }
        if now < connection.offer_after {
            return;
        }
        let stats = FlowStats { length: length as u32, direction, ..flow_stats(position, connection) };
        let room = self.engine_room(connection.source.address.is_ipv4());
        if misses {
            return self.install(now, position);
        }
        match self.policy.on_packet(now, &stats, room) {
            Verdict::Offload => self.install(now, position),
            Verdict::Keep(reason) | Verdict::Evict(reason) => {
                self.statistics.offload.kept[reason as usize] += 1;
                let full = reason == Reason::Room;
                self.slab.at_mut(position).kept = if full { Kept::EngineFull } else { Kept::Policy };
            }
        }
    }

    /// The policy gets the measurements of the machine.
    pub fn set_costs(&mut self, costs: Costs) {
        self.policy.set_costs(costs);
    }

    /// When the next step of a survey is due, if the policy wants one.
    pub(super) fn survey_due(&self) -> Option<Time> {
        self.policy.samples_within().map(|_| self.survey.stepped + STEP)
    }

    /// Asks for the counters of some more rules, so that all are read within the time the policy wants.
    pub(super) fn survey(&mut self, now: Time) {
        let Some(within) = self.policy.samples_within() else { return };
        let since = now.since(self.survey.stepped);
        if since < STEP {
            return;
        }
        self.survey.stepped = now;
        let used = self.slab.used();
        let part = since.min(within).as_nanos() as u64 * u64::from(used) / within.as_nanos().max(1) as u64;
        for _ in 0..(part as u32 + 1).min(used).min(POSITIONS_MAX) {
            let position = if self.survey.next < used { self.survey.next } else { 0 };
            self.survey.next = position + 1;
            if self.sampling.len() >= SAMPLES_MAX {
                break;
            }
            if self.slab.contains(position) && self.slab.at(position).pair.state() == OffloadState::Offloaded {
                self.sampling.push_back(position);
            }
        }
    }

    /// The counters of a connection in the engine were read: does it stay there?
    pub(super) fn review(&mut self, now: Time, position: Position) {
        if !self.slab.contains(position) {
            return;
        }
        let connection = self.slab.at(position);
        let open = matches!(connection.state, State::Established | State::UdpEstablished);
        let may_go = connection.pair.state() == OffloadState::Offloaded && !connection.flags.has(Flags::MISSTEERED);
        if !open || !may_go || connection.flags.has(Flags::PENDING_REMOVAL) || !self.queue_has_room() {
            return;
        }
        let room = self.engine_room(connection.source.address.is_ipv4());
        let stats = flow_stats(position, connection);
        if let Verdict::Evict(reason) = self.policy.on_sample(now, &stats, room) {
            self.statistics.offload.evicted[reason as usize] += 1;
            // It is not offered again at once.
            self.slab.at_mut(position).kept = Kept::Policy;
            self.remove_rules(now, position);
        }
    }

    /// A connection ends, or both its ends have closed; its counters are final, but for a straggler.
    pub(super) fn tell_end(&mut self, now: Time, position: Position) {
        let connection = self.slab.at_mut(position);
        // A connection that was never established says nothing of those that the policy is asked about.
        if connection.state != State::Pass && connection.flags.0 & (Flags::PROVEN | Flags::TOLD) == Flags::PROVEN {
            connection.flags.set(Flags::TOLD);
            self.policy.on_end(now, &flow_stats(position, connection));
        }
    }
}
