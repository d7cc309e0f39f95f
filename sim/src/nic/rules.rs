//! The rules a card holds, and what it counts of them.

use super::profile::{Counting, Tables};
use hairpin_core::engine::{Counters, Rule, RuleId};
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hint::black_box;

struct Held {
    rule: Rule,
    /// The rule whose place it took.
    before: Option<RuleId>,
    /// It stands in the first table.
    is_first: bool,
    counters: Counters,
    /// Counters as they were told last, and when.
    told: Counters,
    told_at: Time,
}

impl Held {
    fn is_named(&self, id: RuleId) -> bool {
        self.rule.id == id || self.before == Some(id)
    }
}

/// All rules. (What order a hash map has them in, nobody ever sees.)
pub(super) struct Rules {
    held: HashMap<FlowKey, Held, ahash::RandomState>,
    tables: Tables,
    counting: Counting,
    /// Rules in the first table.
    first: u32,
    peak: u32,
    /// The last time anybody told.
    now: Time,
}

impl Rules {
    pub(super) fn new(tables: Tables, counting: Counting) -> Rules {
        let held = HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4));
        Rules { held, tables, counting, first: 0, peak: 0, now: Time::ZERO }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn peak(&self) -> u32 {
        self.peak
    }

    pub(super) fn keys(&self) -> Vec<FlowKey> {
        let mut keys: Vec<FlowKey> = self.held.keys().copied().collect();
        keys.sort();
        keys
    }

    /// Whether a new rule, behind `fresh` others, goes to the first table.
    pub(super) fn goes_first(&self, fresh: u32) -> bool {
        self.first + fresh < self.tables.first_rules_max
    }

    /// Whether a flow's rule stands there.
    pub(super) fn is_first(&self, key: &FlowKey) -> bool {
        self.held.get(key).is_some_and(|held| held.is_first)
    }

    /// Puts a rule in; `false`: there is no room.
    pub(super) fn insert(&mut self, rule: Rule) -> bool {
        let (count, is_first) = (self.held.len() as u32, self.goes_first(0));
        match self.held.entry(rule.key) {
            Entry::Occupied(mut there) => {
                let there = there.get_mut();
                there.before = Some(there.rule.id);
                there.rule = rule;
                true
            }
            Entry::Vacant(_) if count >= self.tables.rules_max => false,
            Entry::Vacant(place) => {
                let counters = Counters::default();
                place.insert(Held { rule, before: None, is_first, counters, told: counters, told_at: Time::ZERO });
                self.first += u32::from(is_first);
                self.peak = self.peak.max(count + 1);
                true
            }
        }
    }

    /// Takes a rule out; its last counters, if it was there.
    pub(super) fn remove(&mut self, id: RuleId, key: &FlowKey) -> Option<Counters> {
        if !self.held.get(key)?.is_named(id) {
            return None;
        }
        let held = self.held.remove(key)?;
        self.first -= u32::from(held.is_first);
        Some(held.counters)
    }

    pub(super) fn holds(&self, key: &FlowKey) -> bool {
        self.held.contains_key(key)
    }

    /// The same, and reads what a packet will need.
    pub(super) fn warm(&self, key: &FlowKey) -> bool {
        let held = self.held.get(key);
        black_box(held.map(|held| (held.rule.fate, held.rule.rewrite.destination.port, held.counters.packets)));
        held.is_some()
    }

    pub(super) fn rule(&self, key: &FlowKey) -> Option<Rule> {
        self.held.get(key).map(|held| held.rule)
    }

    /// The rule that a packet meets, and what is counted of it.
    pub(super) fn met(&mut self, key: &FlowKey) -> Option<(&Rule, &mut Counters)> {
        self.held.get_mut(key).map(|held| (&held.rule, &mut held.counters))
    }

    /// What the card tells of a rule: read anew only so often, and not at all while there are too many.
    pub(super) fn sample(&mut self, id: RuleId, key: &FlowKey) -> Option<Counters> {
        let reads = self.counting.rules_max == 0 || self.held.len() as u32 <= self.counting.rules_max;
        let (now, stale_ns) = (self.now, (self.counting.stale_ms * 1e6) as u128);
        let held = self.held.get_mut(key).filter(|held| held.is_named(id))?;
        if reads && now.since(held.told_at).as_nanos() >= stale_ns {
            (held.told, held.told_at) = (held.counters, now);
        }
        Some(held.told)
    }

    /// The time, for those who do not say it.
    pub(super) fn tell(&mut self, now: Time) {
        self.now = self.now.max(now);
    }
}
