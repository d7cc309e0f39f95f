//! Access rules of services without requests: which clients' connections may begin.
//!
//! The first rule that has a client's address in one of its networks decides, as for HTTP services
//! ([`crate::l7::route::Access`]); if none has, the connection begins. A rule that counts decides nothing: it counts what it
//! would have refused, and the rules behind it decide.
//!
//! Rules are compiled into prefixes of which the longest match has the answer, whatever the order in which the rules stand:
//! an address is in the networks of its longest match and of all that contain that, and in no others, so the first rule
//! among those is known beforehand. Engines look an address up in a trie of [`AccessList::prefixes`], software in
//! sorted ranges of addresses.

#[cfg(test)]
mod tests;

use crate::flow::Address;
use crate::l7::config::Network;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Rules of a service at most.
pub const RULES_MAX: usize = 16;
/// Networks in the rules of a service at most, those from files included.
pub const NETWORKS_MAX: usize = 100_000;
/// Networks in the rules of all services at most.
pub const NETWORKS_TOTAL_MAX: usize = 400_000;

/// What a rule does with connections of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessAction {
    /// They begin.
    Allow,
    /// Their packets are dropped and counted.
    Deny,
    /// They are counted as if they were refused; a later rule decides.
    Count,
}

/// What the rules say about an address. Rules go by their number, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessDecision {
    /// The rule that refuses its connections; `None`: they begin.
    pub denied: Option<u8>,
    /// The rule that counts them.
    pub counted: Option<u8>,
}

/// The compiled rules of a service: 61 bytes a network at most.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessList {
    actions: Box<[AccessAction]>,
    prefixes: Box<[(Network, AccessDecision)]>,
    /// Where ranges of addresses begin; each ends where the next one begins. What lies before the first is decided by no rule.
    starts: Box<[u128]>,
    /// By range.
    decisions: Box<[AccessDecision]>,
}

/// The first rule of each kind that has an address.
#[derive(Clone, Copy, Default)]
struct FirstRules {
    deciding: Option<u8>,
    counting: Option<u8>,
}

impl FirstRules {
    /// With those of networks that contain this one.
    fn within(self, outer: FirstRules) -> FirstRules {
        let first = |a: Option<u8>, b: Option<u8>| [a, b].into_iter().flatten().min();
        FirstRules { deciding: first(self.deciding, outer.deciding), counting: first(self.counting, outer.counting) }
    }

    fn decision(self, actions: &[AccessAction]) -> AccessDecision {
        let is_denial = |rule: &u8| actions.get(usize::from(*rule)) == Some(&AccessAction::Deny);
        AccessDecision {
            denied: self.deciding.filter(is_denial),
            counted: self.counting.filter(|counting| self.deciding.is_none_or(|deciding| *counting < deciding)),
        }
    }
}

/// The first address of a network, and the last.
fn ends(network: &Network) -> (u128, u128) {
    let first = u128::from_be_bytes(network.address.0);
    (first, first | u128::MAX.checked_shr(u32::from(network.prefix)).unwrap_or(0))
}

impl AccessList {
    /// The rules in their order, each with its networks, whose bits beyond the prefix are zero. Of more than [`RULES_MAX`] rules
    /// the others have no effect.
    pub fn new(rules: &[(AccessAction, Vec<Network>)]) -> AccessList {
        let rules = &rules[..rules.len().min(RULES_MAX)];
        let actions: Box<[AccessAction]> = rules.iter().map(|(action, _)| *action).collect();
        let named = (0u8..).zip(rules).flat_map(|(rule, (_, networks))| networks.iter().map(move |n| (*n, rule)));
        let mut all: Vec<(Network, u8)> = named.collect();
        // A network comes behind those that contain it.
        all.sort_unstable_by_key(|(network, rule)| (network.address.0, network.prefix, *rule));
        let mut list = AccessList { actions, ..AccessList::empty() };
        list.compile(&all);
        list
    }

    fn empty() -> AccessList {
        AccessList {
            actions: Box::default(),
            prefixes: Box::default(),
            starts: Box::default(),
            decisions: Box::default(),
        }
    }

    /// Fills prefixes and ranges in from the networks of all rules, sorted.
    fn compile(&mut self, all: &[(Network, u8)]) {
        let (mut prefixes, mut ranges) = (Vec::new(), Ranges::default());
        // The networks that contain the present one: the last address of each, and what holds there.
        let mut outer: Vec<(u128, FirstRules)> = Vec::new();
        for same in all.chunk_by(|(a, _), (b, _)| a == b) {
            let network = same[0].0;
            let (first, last) = ends(&network);
            while let Some((end, _)) = outer.pop_if(|(end, _)| *end < first) {
                ranges.begin(end.wrapping_add(1), self.decision_of(&outer));
            }
            let around = outer.last().map(|(_, rules)| *rules).unwrap_or_default();
            let rules = same.iter().fold(around, |rules, (_, rule)| {
                let own = match self.actions[usize::from(*rule)] {
                    AccessAction::Count => FirstRules { counting: Some(*rule), deciding: None },
                    AccessAction::Allow | AccessAction::Deny => FirstRules { deciding: Some(*rule), counting: None },
                };
                own.within(rules)
            });
            // Where it says what holds around it the look-up gives that.
            let decision = rules.decision(&self.actions);
            if decision != around.decision(&self.actions) {
                prefixes.push((network, decision));
                ranges.begin(first, decision);
            }
            outer.push((last, rules));
        }
        while let Some((end, _)) = outer.pop() {
            if end < u128::MAX {
                ranges.begin(end + 1, self.decision_of(&outer));
            }
        }
        self.prefixes = prefixes.into();
        (self.starts, self.decisions) = (ranges.starts.into(), ranges.decisions.into());
    }

    /// What holds within the innermost of these networks.
    fn decision_of(&self, outer: &[(u128, FirstRules)]) -> AccessDecision {
        outer.last().map(|(_, rules)| rules.decision(&self.actions)).unwrap_or_default()
    }

    /// What the rules say about connections of `client`.
    pub fn decide(&self, client: &Address) -> AccessDecision {
        let address = u128::from_be_bytes(client.0);
        let behind = self.starts.partition_point(|start| *start <= address);
        behind.checked_sub(1).and_then(|range| self.decisions.get(range)).copied().unwrap_or_default()
    }

    /// The rules' actions, in their order.
    pub fn actions(&self) -> &[AccessAction] {
        &self.actions
    }

    /// Prefixes, each once and in no particular order, whose longest match says what holds for an address. An address that none of
    /// them has is decided by no rule.
    pub fn prefixes(&self) -> &[(Network, AccessDecision)] {
        &self.prefixes
    }
}

impl core::fmt::Debug for AccessList {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let prefixes = self.prefixes.len();
        f.debug_struct("AccessList")
            .field("actions", &self.actions)
            .field("prefixes", &prefixes)
            .finish_non_exhaustive()
    }
}

/// Ranges of addresses in the making.
#[derive(Default)]
struct Ranges {
    starts: Vec<u128>,
    decisions: Vec<AccessDecision>,
}

impl Ranges {
    /// From `start` on, which is not before any earlier one, this holds.
    fn begin(&mut self, start: u128, decision: AccessDecision) {
        if self.starts.last() == Some(&start) {
            self.starts.pop();
            self.decisions.pop();
        }
        if self.decisions.last().copied().unwrap_or_default() != decision {
            self.starts.push(start);
            self.decisions.push(decision);
        }
    }
}
