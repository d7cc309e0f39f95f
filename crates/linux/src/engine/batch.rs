//! Requests for rules of one address family, collected and performed together.

use crate::abi::{Bytes, RULE_OPS_MAX, RULE_SEQUENCE, RuleCounters, SequenceChange, slice_bytes};
use crate::control::QuerySlot;
use crate::programs::Queries;
use crate::query::{RuleKey, RuleValue, query};
use arrayvec::ArrayVec;
use hairpin_core::engine::{Completion, Counters, Fate, Refusal, Rule, RuleId};
use hairpin_core::flow::Protocol;
use std::collections::VecDeque;

/// Attempts to take rules out; to put one in again whose bucket is locked, and for which the kernel has no memory at hand.
const TAKE_TRIES: usize = 3;
const LOCKED_TRIES: usize = 100;
const MEMORY_TRIES: usize = 10;

/// The rules of one address family.
#[derive(Debug)]
pub(super) struct FamilyRules<K, R> {
    pub(super) installs: Installs<K, R>,
    pub(super) removals: Removals<K>,
}

impl<K: RuleKey, R: RuleValue<K>> FamilyRules<K, R> {
    pub(super) fn new(ops_max: usize) -> FamilyRules<K, R> {
        FamilyRules {
            installs: Installs::new(ops_max),
            removals: Removals { ids: Vec::with_capacity(ops_max), keys: Vec::with_capacity(ops_max) },
        }
    }

    /// Performs the removals.
    pub(super) fn remove(
        &mut self,
        queries: &Queries,
        slot: &mut QuerySlot,
        answers: &mut VecDeque<Completion>,
        answer: impl Fn(RuleCounters) -> Option<Counters>,
    ) {
        for start in (0..self.removals.keys.len()).step_by(RULE_OPS_MAX) {
            let end = self.removals.keys.len().min(start + RULE_OPS_MAX);
            let keys = &self.removals.keys[start..end];
            // The kernel may have no memory for a moment.
            let taken = (0..TAKE_TRIES).any(|_| query(&queries.take, slot, keys, 0).is_ok());
            for (at, id) in self.removals.ids[start..end].iter().enumerate() {
                let counters = if taken { slot.counters(at) } else { RuleCounters::zeroed() };
                answers.push_back(Completion::Removed(*id, answer(counters)));
            }
        }
        self.removals.ids.clear();
        self.removals.keys.clear();
    }
}

/// Rules to be taken away.
#[derive(Debug)]
pub(super) struct Removals<K> {
    ids: Vec<RuleId>,
    keys: Vec<K>,
}

impl<K> Removals<K> {
    pub(super) fn add(&mut self, id: RuleId, key: K) {
        self.ids.push(id);
        self.keys.push(key);
    }
}

/// Rules to be put in.
#[derive(Debug)]
pub(super) struct Installs<K, R> {
    ids: Vec<RuleId>,
    keys: Vec<K>,
    values: Vec<R>,
    /// The sequence changes of rules that have one, by position; in order.
    changes: Vec<(usize, SequenceChange)>,
}

impl<K: RuleKey, R: RuleValue<K>> Installs<K, R> {
    fn new(ops_max: usize) -> Installs<K, R> {
        Installs {
            ids: Vec::with_capacity(ops_max),
            keys: Vec::with_capacity(ops_max),
            values: Vec::with_capacity(ops_max),
            changes: Vec::with_capacity(ops_max),
        }
    }

    /// Adds a rule.
    pub(super) fn add(&mut self, rule: &Rule, key: K, value: R, answers: &mut VecDeque<Completion>) {
        if rule.guard.is_some() && (rule.fate != Fate::Forward || rule.key.protocol != Protocol::Tcp) {
            answers.push_back(Completion::Rejected(rule.id, Refusal::Unsupported));
            return;
        }
        if value.head().flags & RULE_SEQUENCE != 0 {
            self.changes.push((self.keys.len(), SequenceChange::of(rule, &value)));
        }
        self.ids.push(rule.id);
        self.keys.push(key);
        self.values.push(value);
    }

    /// Carries the installs out.
    pub(super) fn execute(&mut self, queries: &Queries, slot: &mut QuerySlot, answers: &mut VecDeque<Completion>) {
        let mut first_change = 0;
        for start in (0..self.keys.len()).step_by(RULE_OPS_MAX) {
            let end = self.keys.len().min(start + RULE_OPS_MAX);
            slot.write_rules(slice_bytes(&self.values[start..end]));
            let changes = self.changes[first_change..].iter().take_while(|(at, _)| *at < end);
            first_change += changes.map(|(at, change)| slot.write_change(at - start, change)).count();
            let put = query(&queries.put, slot, &self.keys[start..end], 0);
            let mut results: ArrayVec<i32, RULE_OPS_MAX> = ArrayVec::new();
            results.extend((start..end).map(|at| result(&put, slot, at - start)));
            for (at, result) in (start..end).zip(results) {
                let result = match result {
                    libc::EBUSY => self.put_again(queries, slot, at, LOCKED_TRIES),
                    libc::ENOMEM => self.put_again(queries, slot, at, MEMORY_TRIES),
                    other => other,
                };
                answers.push_back(match result {
                    0 => Completion::Installed(self.ids[at]),
                    error => Completion::Rejected(self.ids[at], refusal(error)),
                });
            }
        }
        self.ids.clear();
        self.keys.clear();
        self.values.clear();
        self.changes.clear();
    }

    /// Puts a rule in whose bucket another thread was changing, or packets on another CPU, which is a matter of nanoseconds unless
    /// that thread has been interrupted; or for which the kernel had no memory, which it keeps a little of for each CPU and gets
    /// more of in an interrupt.
    fn put_again(&self, queries: &Queries, slot: &mut QuerySlot, at: usize, tries: usize) -> i32 {
        let mut last = libc::EBUSY;
        for _ in 0..tries {
            std::thread::yield_now();
            slot.write_rules(self.values[at].bytes());
            if let Ok(found) = self.changes.binary_search_by_key(&at, |(at, _)| *at) {
                slot.write_change(0, &self.changes[found].1);
            }
            let put = query(&queries.put, slot, &self.keys[at..=at], 0);
            last = result(&put, slot, 0);
            if last != libc::EBUSY && last != libc::ENOMEM {
                break;
            }
        }
        last
    }
}

/// What became of the rule at this place of a batch: 0 or an error's number.
fn result(put: &std::io::Result<()>, slot: &QuerySlot, at: usize) -> i32 {
    match put {
        Ok(()) => slot.counters(at).found as i32,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

fn refusal(error: i32) -> Refusal {
    match error {
        libc::E2BIG | libc::ENOMEM => Refusal::Full,
        libc::EINVAL | libc::ENOTSUP => Refusal::Unsupported,
        _ => Refusal::Failed,
    }
}
