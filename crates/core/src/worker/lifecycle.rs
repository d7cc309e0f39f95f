//! The rules of layer 4's connections: when both directions' are asked for and removed, and what the engine's answers mean.
//! Their life cycle is [`RulePair`](crate::offload::RulePair)'s.

use super::Worker;
use crate::engine::{Completion, Fate, OPS_MAX, Refusal, Rule, RuleOp};
use crate::flow::{Direction, FlowKey};
use crate::l4::connection::{Flags, Kept, State};
use crate::l7::splice::RULE_BIT;
use crate::offload::{Answer, BOTH, OffloadPolicy, OffloadState};
use crate::rewrite::Rewrite;
use crate::table::ageing::Ageing;
use crate::table::{Position, Table};
use crate::time::{Duration, Time};

/// How long a connection that the engine refused stays in software before it is offered again.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);
/// How long before what found the queue full, or the engine's answers outstanding, is tried again.
pub const QUEUE_FULL_FOR: Duration = Duration::from_millis(100);

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Whether both requests about a connection fit into the queue to the engine.
    pub(super) fn queue_has_room(&self) -> bool {
        self.ops.len() + 2 <= OPS_MAX
    }

    /// Whether rules may be asked for now.
    fn takes_installs(&self) -> bool {
        self.queue_has_room() && !self.unfinished.is_taking_back()
    }

    /// Asks for the rules of a connection.
    pub(super) fn install(&mut self, now: Time, position: Position) {
        if !self.takes_installs() {
            self.statistics.offload.queue_full += 1;
            let connection = self.slab.at_mut(position);
            connection.kept = Kept::QueueFull;
            connection.offer_after = now + QUEUE_FULL_FOR;
            return;
        }
        let number = self.backend_number(position) as u32;
        let wanted = self.slab.at(position).rules_wanted();
        for &direction in self.slab.at(position).directions() {
            let id = self.rule_id(position, direction);
            let connection = self.slab.at(position);
            let (key, rewrite) = (connection.key(direction), connection.rewrite(direction));
            let (fate, rewrite) = match connection.flags.has(Flags::DIRECT) {
                true => (Fate::Direct, Rewrite { destination: connection.backend, ..rewrite }),
                false => (Fate::Forward, rewrite),
            };
            let total = number * 2 + direction as u32;
            self.ops.push_back(RuleOp::Install(Rule { id, key, rewrite, fate, total, ..Rule::default() }));
        }
        self.asked(now, position, wanted);
    }

    /// Asks for the one rule of a Pass entry.
    pub(super) fn install_pass(&mut self, now: Time, position: Position) {
        if !self.takes_installs() {
            self.statistics.offload.queue_full += 1;
            return;
        }
        let id = self.rule_id(position, Direction::FromBackend);
        let key = self.slab.at(position).key(Direction::FromBackend);
        self.ops.push_back(RuleOp::Install(Rule { id, key, fate: Fate::Pass, ..Rule::default() }));
        self.asked(now, position, 0b10);
    }

    /// Notes that the rules `wanted` have been asked for.
    fn asked(&mut self, now: Time, position: Position, wanted: u8) {
        let connection = self.slab.at_mut(position);
        if connection.flags.has(Flags::DIRECT) {
            // The client's numbers run on where they are not seen (`one_way.rs`).
            connection.proof = 0;
        }
        connection.kept = Kept::Nothing;
        connection.offer_after = now;
        let fresh = connection.pair.ask(wanted);
        let ipv4 = connection.source.address.is_ipv4();
        self.rules.add(ipv4, fresh);
    }

    /// Asks for the removal of what rules a connection has in force. The queue may be a little over its bound for
    /// this: at most by as many as the engine can answer at a time.
    pub(super) fn remove_rules(&mut self, now: Time, position: Position) {
        let ids = BOTH.map(|direction| self.rule_id(position, direction));
        let Worker { slab, ops, .. } = self;
        let connection = slab.at_mut(position);
        let keys = BOTH.map(|direction| connection.key(direction));
        let name = |direction: Direction| (ids[direction as usize], keys[direction as usize]);
        if connection.pair.remove(name, |op| ops.push_back(op)) == 0 {
            self.settle(now, position, OffloadState::Removing);
        }
    }

    /// Both ends have closed: what still comes is little and software carries it, so that the engine's room is for others
    /// long before the connection is forgotten, if there is not room enough. If that was forged, the connection goes on in
    /// software until it is judged.
    ///
    /// Not after a RST, which a single forged packet is.
    pub(super) fn wind_up(&mut self, now: Time, position: Position) {
        let connection = self.slab.at(position);
        match connection.pair.state() {
            OffloadState::Software => self.tell_end(now, position),
            OffloadState::Offloaded if connection.flags.has(Flags::MISSTEERED) => {}
            OffloadState::Offloaded if self.is_tight(connection.source.address.is_ipv4()) && self.queue_has_room() => {
                self.remove_rules(now, position);
            }
            // Once the engine has answered; or when the connection is forgotten.
            OffloadState::Offloaded | OffloadState::Installing | OffloadState::Removing => {}
        }
    }

    /// Whether more than an eighth of the engine's room is taken, by whichever worker.
    fn is_tight(&self, ipv4: bool) -> bool {
        self.rules.all(ipv4) > self.caps.rules_max / 8
    }

    /// The next request to the engine.
    pub fn poll_op(&mut self) -> Option<RuleOp> {
        let op = self.ops.pop_front()?;
        self.in_flight += 1;
        Some(op)
    }

    /// Takes back a request that the engine had no room for; it will be the next again.
    pub fn return_op(&mut self, op: RuleOp) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ops.push_front(op);
    }

    /// Takes an answer of the engine.
    pub fn handle_completion(&mut self, now: Time, completion: &Completion) {
        // The request may be of a worker that was before this one.
        self.in_flight = self.in_flight.saturating_sub(1);
        let (id, held) = match *completion {
            Completion::Installed(id) => (id, true),
            Completion::Rejected(id, _) | Completion::Removed(id, _) => (id, false),
        };
        let statistics = &mut self.statistics.offload;
        match completion {
            Completion::Installed(_) => statistics.installed += 1,
            Completion::Removed(_, Some(_)) => statistics.removed += 1,
            Completion::Removed(_, None) => statistics.lost += 1,
            Completion::Rejected(_, Refusal::Full) => statistics.refused_full += 1,
            Completion::Rejected(_, Refusal::Unsupported) => statistics.refused_unsupported += 1,
            Completion::Rejected(_, Refusal::Failed) => statistics.refused_failed += 1,
        }
        if id.0 & RULE_BIT != 0 {
            self.handle_splice_completion(now, completion);
            self.rules.refresh(self.splices.rules());
            self.statistics.offload.rules = u64::from(self.rules.own());
            return;
        }
        let Some((position, direction)) = self.rule_of(id) else { return };
        if !held {
            let ipv4 = self.slab.at(position).source.address.is_ipv4();
            self.rules.take(ipv4, 1);
        }
        self.statistics.offload.rules = u64::from(self.rules.own());
        let connection = self.slab.at_mut(position);
        let was = connection.pair.state();
        let answer = match completion {
            Completion::Installed(_) => {
                self.statistics.offload.latency.add(now.since(connection.offer_after));
                Answer::Installed
            }
            Completion::Rejected(_, refusal) => {
                connection.kept = match refusal {
                    Refusal::Full => Kept::EngineFull,
                    Refusal::Unsupported => Kept::Unsupported,
                    Refusal::Failed => Kept::Failed,
                };
                if *refusal == Refusal::Full {
                    self.policy.on_refused(now);
                }
                Answer::Rejected
            }
            Completion::Removed(_, counters) => {
                connection.settled(direction, counters.as_ref());
                Answer::Removed
            }
        };
        if connection.pair.answer(direction, answer) {
            self.settle(now, position, was);
        }
    }

    /// All answers about a connection whose rules were in the state `was` are in: what is it now, and what next?
    fn settle(&mut self, now: Time, position: Position, was: OffloadState) {
        let connection = self.slab.at_mut(position);
        let whole = connection.rules_wanted();
        let pending_removal = connection.flags.has(Flags::PENDING_REMOVAL);
        if was == OffloadState::Installing && connection.pair.held() == whole {
            self.policy.on_installed(now, now.since(connection.offer_after));
        }
        if connection.kept != Kept::Nothing {
            connection.offer_after = now + REFUSED_FOR;
        }
        if connection.pair.held() == 0 {
            if pending_removal {
                self.release(now, position);
            } else if connection.flags.has(Flags::MISSTEERED) {
                // It cannot wait for a packet, which may go to another worker.
                self.stamps.started(position, now + QUEUE_FULL_FOR);
                self.offer(now, position, 0, Direction::FromClient);
            } else if connection.state == State::Closed {
                self.wind_up(now, position);
            }
        } else {
            // A pair of which one was refused is no use.
            if pending_removal || connection.pair.held() != whole {
                self.remove_rules(now, position);
            } else if connection.state == State::Closed {
                self.wind_up(now, position);
            }
        }
    }
}
