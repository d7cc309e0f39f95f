//! The rules a card holds, and what it counts of them.
//!
//! An index leads from a flow to the place of its rule; what packets need of a rule is there by itself, in two cache lines.
//! The order of the rules in the index is never visible.

use super::profile::{Counting, RuleTables};
use hairpin_core::engine::{Counters, Fate, Rule, RuleId};
use hairpin_core::flow::{Endpoint, FlowKey};
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::{BURST, Entries, Hasher, Lookup, Table};
use hairpin_core::time::Time;
use std::hint::black_box;

/// Rules that there is room for at first; it doubles when that is used up.
const ROOM: usize = 4096;

/// The parts of a rule that a packet needs.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Met {
    key: FlowKey,
    /// The fate of the packet; `None`: there is no rule in this place.
    fate: Option<Fate>,
    /// The destination.
    pub(super) destination: Endpoint,
    pub(super) counters: Counters,
}

/// The rest of a rule.
#[derive(Clone)]
struct RuleRemainder {
    rule: Rule,
    /// The rule whose place it took.
    before: Option<RuleId>,
    /// It stands in the first table.
    is_first: bool,
    /// Counters as they were told last, and when.
    told: Counters,
    told_at: Time,
}

impl RuleRemainder {
    fn is_named(&self, id: RuleId) -> bool {
        self.rule.id == id || self.before == Some(id)
    }
}

/// The places that the index leads to.
struct RulePlaces<'a>(&'a [Met]);

impl Entries<FlowKey> for RulePlaces<'_> {
    #[inline]
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        self.0.get(value as usize).is_some_and(|met| met.is(key))
    }

    /// A read whose result is not waited for.
    #[inline]
    fn prefetch(&self, value: u32) {
        black_box(self.0.get(value as usize).map(|met| (met.fate, met.counters.packets)));
    }
}

impl Met {
    #[inline]
    fn is(&self, key: &FlowKey) -> bool {
        self.fate.is_some() && self.key == *key
    }

    #[inline]
    pub(super) fn passes(&self) -> bool {
        self.fate == Some(Fate::Pass)
    }
}

/// The state of a packet's rule since `CardRules::warm`: good for as long as no rule has been added, and checked else.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    place: Option<u32>,
    added: u32,
}

impl Hint {
    /// Whether there was a rule.
    pub fn is_found(&self) -> bool {
        self.place.is_some()
    }
}

/// All rules.
pub(super) struct CardRules {
    index: CuckooPlusPlus,
    /// Rules that the index is made for.
    room: usize,
    hasher: Hasher,
    met: Vec<Met>,
    held: Vec<RuleRemainder>,
    /// Places without a rule.
    free: Vec<u32>,
    /// Rules added so far, wrapping.
    added: u32,
    tables: RuleTables,
    counting: Counting,
    /// Rules in the first table.
    first: u32,
    peak: u32,
    /// The last time that was told.
    now: Time,
}

impl CardRules {
    pub(super) fn new(tables: RuleTables, counting: Counting) -> CardRules {
        let hasher = Hasher::new([1, 2, 3, 4]);
        CardRules {
            index: CuckooPlusPlus::new(ROOM, hasher.clone()),
            room: ROOM,
            hasher,
            met: Vec::new(),
            held: Vec::new(),
            free: Vec::new(),
            added: 0,
            tables,
            counting,
            first: 0,
            peak: 0,
            now: Time::ZERO,
        }
    }

    /// Makes room for so many rules in all, of a card that has none.
    pub(super) fn reserve(&mut self, rules: usize) {
        if rules > self.room && self.len() == 0 {
            (self.index, self.room) = (CuckooPlusPlus::new(rules, self.hasher.clone()), rules);
        }
        self.met.reserve(rules);
        self.held.reserve(rules);
        self.free.reserve(rules);
    }

    pub(super) fn len(&self) -> usize {
        self.met.len() - self.free.len()
    }

    pub(super) fn peak(&self) -> u32 {
        self.peak
    }

    pub(super) fn keys(&self) -> Vec<FlowKey> {
        let mut keys: Vec<FlowKey> = self.met.iter().filter(|met| met.fate.is_some()).map(|met| met.key).collect();
        keys.sort();
        keys
    }

    /// The place of a flow's rule.
    #[inline]
    fn place(&self, key: &FlowKey) -> Option<usize> {
        self.index.find(key, &RulePlaces(&self.met)).map(|place| place as usize)
    }

    /// Whether a new rule, behind `fresh` others, goes to the first table.
    pub(super) fn goes_first(&self, fresh: u32) -> bool {
        self.first + fresh < self.tables.first_rules_max
    }

    /// Whether a flow's rule stands there.
    pub(super) fn is_first(&self, key: &FlowKey) -> bool {
        self.place(key).is_some_and(|place| self.held[place].is_first)
    }

    /// Puts a rule in; `false`: there is no room.
    pub(super) fn insert(&mut self, rule: Rule) -> bool {
        let (count, is_first) = (self.len() as u32, self.goes_first(0));
        if let Some(place) = self.place(&rule.key) {
            let (met, held) = (&mut self.met[place], &mut self.held[place]);
            held.before = Some(held.rule.id);
            held.rule = rule;
            (met.fate, met.destination) = (Some(rule.fate), rule.rewrite.destination);
            return true;
        }
        if count >= self.tables.rules_max {
            return false;
        }
        if self.len() >= self.room {
            self.grow();
        }
        let counters = Counters::default();
        let met = Met { key: rule.key, fate: Some(rule.fate), destination: rule.rewrite.destination, counters };
        let held = RuleRemainder { rule, before: None, is_first, told: counters, told_at: Time::ZERO };
        let place = self.free.last().copied().unwrap_or(self.met.len() as u32);
        // By chance once in more rules than are simulated; the card is full, then.
        if self.index.insert(&rule.key, place).is_err() {
            return false;
        }
        if self.free.pop().is_some() {
            (self.met[place as usize], self.held[place as usize]) = (met, held);
        } else {
            self.met.push(met);
            self.held.push(held);
        }
        self.added = self.added.wrapping_add(1);
        self.first += u32::from(is_first);
        self.peak = self.peak.max(count + 1);
        true
    }

    /// An index for twice as many.
    fn grow(&mut self) {
        let mut index = CuckooPlusPlus::new(2 * self.room, self.hasher.clone());
        let rules = self.met.iter().zip(0..).filter(|(met, _)| met.fate.is_some());
        if rules.map(|(met, place)| index.insert(&met.key, place)).all(|inserted| inserted.is_ok()) {
            (self.index, self.room) = (index, 2 * self.room);
        }
    }

    /// Takes a rule out; its last counters, if it was there.
    pub(super) fn remove(&mut self, id: RuleId, key: &FlowKey) -> Option<Counters> {
        let place = self.place(key).filter(|place| self.held[*place].is_named(id))?;
        self.index.remove(key, place as u32);
        self.met[place].fate = None;
        self.free.push(place as u32);
        self.first -= u32::from(self.held[place].is_first);
        Some(self.met[place].counters)
    }

    pub(super) fn holds(&self, key: &FlowKey) -> bool {
        self.place(key).is_some()
    }

    /// Says where the rules of flows are, and reads what packets of theirs will need: of as many as the shorter slice has.
    pub(super) fn warm(&self, keys: &[FlowKey], hints: &mut [Hint]) {
        for (keys, hints) in keys.chunks(BURST).zip(hints.chunks_mut(BURST)) {
            let mut found = [None; BURST];
            self.index.find_burst(keys, &RulePlaces(&self.met), &mut found);
            for (hint, place) in hints.iter_mut().zip(found) {
                *hint = Hint { place, added: self.added };
            }
        }
    }

    pub(super) fn rule(&self, key: &FlowKey) -> Option<Rule> {
        self.place(key).map(|place| self.held[place].rule)
    }

    /// The rule that a packet meets.
    #[inline]
    pub(super) fn met(&mut self, key: &FlowKey, hint: Hint) -> Option<&mut Met> {
        let place = match hint.place {
            Some(place) if self.met.get(place as usize).is_some_and(|met| met.is(key)) => place as usize,
            None if hint.added == self.added => return None,
            _ => self.place(key)?,
        };
        self.met.get_mut(place)
    }

    /// A hint that says nothing.
    pub(super) fn no_hint(&self) -> Hint {
        Hint { place: None, added: self.added.wrapping_sub(1) }
    }

    /// The card's report of a rule: read anew only so often, and not at all while there are too many.
    pub(super) fn sample(&mut self, id: RuleId, key: &FlowKey) -> Option<Counters> {
        let reads = self.counting.rules_max == 0 || self.len() as u32 <= self.counting.rules_max;
        let (now, stale_ns) = (self.now, (self.counting.stale_ms * 1e6) as u128);
        let place = self.place(key)?;
        let held = self.held.get_mut(place).filter(|held| held.is_named(id))?;
        if reads && now.since(held.told_at).as_nanos() >= stale_ns {
            (held.told, held.told_at) = (self.met[place].counters, now);
        }
        Some(held.told)
    }

    /// The time, for those who do not say it.
    pub(super) fn tell(&mut self, now: Time) {
        self.now = self.now.max(now);
    }
}
