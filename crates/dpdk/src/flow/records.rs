//! The engine's records of the rules that it holds.

use super::device::DeviceRule;
use super::hops::RouteHop;
use hairpin_core::engine::{Counters, Refusal, Rule};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::HashMap;

/// The next state of a rule that has left the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    /// It is over: [`Completion::Removed`](hairpin_core::engine::Completion::Removed) under this id.
    Gone(u64),
    /// The other one of its pair was refused, or it was condemned while under way.
    Rejected(Refusal),
    /// The rule that takes its place goes in.
    Replaced,
    /// It goes in again, with the route that its packets have now.
    Placed,
}

/// The position of a rule in its life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum RuleState {
    /// No rule.
    #[default]
    Free,
    /// On its way in.
    Coming,
    /// In force.
    Present(DeviceRule),
    /// On its way out.
    Going(Then),
    /// Held, but not in the device: its packets go to the worker. Tried again at that time.
    Absent(Time),
    /// In force, though it should not be: the device did not let it go. Tried again at that time.
    Stuck(DeviceRule, Then, Time),
    /// It is not known whether the device still has it. It keeps its id until the engine ends, so that neither the id
    /// nor the connection is used again while packets may still be changed by it.
    Lost,
}

/// One rule, and what is under way with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RuleRecord {
    pub(super) rule: Rule,
    /// Which worker asked for it.
    pub(super) owner: u16,
    pub(super) state: RuleState,
    /// No worker was told yet that it is installed.
    pub(super) fresh: bool,
    /// The other rule of a pair not reported to its worker yet.
    pub(super) mate: Option<u32>,
    /// It is to be taken back as soon as it is in.
    pub(super) condemned: Option<Refusal>,
    /// The rule in force before this one, while this one has not gone in.
    pub(super) previous: Option<Rule>,
    /// The port it is put into, as the plane counts them, and DPDK's number of it.
    pub(super) port: u16,
    pub(super) device_port: u16,
    pub(super) out: Option<RouteHop>,
    /// The traffic that it forwarded before it last went in.
    pub(super) packets_before: u64,
    pub(super) bytes_before: u64,
    /// The device's last values.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) last_seen: Option<Time>,
    /// The how manieth rule in this place.
    pub(super) generation: u32,
    /// The next hops have changed since it was placed.
    pub(super) stale: bool,
    /// It stands in the queue of rules to be tried again.
    pub(super) waits: bool,
}

impl RuleRecord {
    /// Whether an answer of the device's is awaited, or half a pair's: nothing else is done with it until then.
    pub(super) fn is_busy(&self) -> bool {
        self.mate.is_some()
            || self.fresh
            || matches!(self.state, RuleState::Coming | RuleState::Going(_))
            // A rule that was only to get another route may as well be taken away.
            || matches!(self.state, RuleState::Stuck(_, then, _) if !matches!(then, Then::Placed))
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, RuleState::Free)
    }

    /// The rule's counters, over all times that it was in the device.
    pub(super) fn counters(&self) -> Counters {
        Counters {
            packets: self.packets_before + self.packets,
            bytes: self.bytes_before + self.bytes,
            last_seen: self.last_seen,
        }
    }
}

/// All rules, found by the flow they match; a bounded number of places, which take memory once they are first used.
#[derive(Debug)]
pub(super) struct RuleRecords {
    records: Vec<RuleRecord>,
    records_max: usize,
    /// Places used before.
    free: Vec<u32>,
    by_key: HashMap<FlowKey, u32>,
}

impl RuleRecords {
    pub(super) fn new(rules_max: u32) -> RuleRecords {
        RuleRecords { records: Vec::new(), records_max: rules_max as usize, free: Vec::new(), by_key: HashMap::new() }
    }

    pub(super) fn find(&self, key: &FlowKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// Places that rules have or had.
    pub(super) fn places(&self) -> u32 {
        self.records.len() as u32
    }

    pub(super) fn rules(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn free_places(&self) -> usize {
        self.free.len() + (self.records_max - self.records.len())
    }

    /// A place for a rule whose key no other has; `None` if all are taken.
    pub(super) fn add(&mut self, rule: &Rule, owner: u16) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.records.len() < self.records_max => {
                self.records.push(RuleRecord::default());
                (self.records.len() - 1) as u32
            }
            None => return None,
        };
        let record = &mut self.records[place as usize];
        let (generation, waits) = (record.generation.wrapping_add(1), record.waits);
        *record = RuleRecord { rule: *rule, owner, fresh: true, generation, waits, ..RuleRecord::default() };
        self.by_key.insert(rule.key, place);
        Some(place)
    }

    /// Forgets a rule.
    pub(super) fn remove(&mut self, place: u32) {
        let record = &mut self.records[place as usize];
        if record.is_free() && !record.fresh {
            return;
        }
        self.by_key.remove(&record.rule.key);
        *record = RuleRecord { generation: record.generation, waits: record.waits, ..RuleRecord::default() };
        self.free.push(place);
    }

    pub(super) fn at(&self, place: u32) -> &RuleRecord {
        &self.records[place as usize]
    }

    pub(super) fn at_mut(&mut self, place: u32) -> &mut RuleRecord {
        &mut self.records[place as usize]
    }
}
