//! Requests for rules of one address family, collected and performed together.

use crate::abi::{Bytes, RULE_OPS_MAX, RULE_SEQUENCE, RuleCounters, RuleHead, SequenceChange, slice_bytes};
use crate::control::QuerySlot;
use crate::programs::Queries;
use crate::query::{RuleKey, RuleValue, query};
use anyhow::Result;
use hairpin_core::engine::{Completion, Counters, Fate, Refusal, Rule, RuleId};
use hairpin_core::flow::Protocol;
use libbpf_rs::{MapCore, MapHandle};
use std::collections::VecDeque;

/// The rules of one address family.
#[derive(Debug)]
pub(super) struct FamilyRules<K, R> {
    rules: MapHandle,
    changes: MapHandle,
    pub(super) installs: Installs<K, R>,
    pub(super) removals: Removals<K>,
}

impl<K: RuleKey, R: RuleValue<K>> FamilyRules<K, R> {
    pub(super) fn new(rules: &MapHandle, changes: &MapHandle, ops_max: usize) -> Result<FamilyRules<K, R>> {
        Ok(FamilyRules {
            rules: MapHandle::try_from(rules)?,
            changes: MapHandle::try_from(changes)?,
            installs: Installs::new(ops_max),
            removals: Removals { ids: Vec::with_capacity(ops_max), keys: Vec::with_capacity(ops_max) },
        })
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
            let taken = query(&queries.take, slot, keys, 0).is_ok();
            for (at, (key, id)) in keys.iter().zip(&self.removals.ids[start..end]).enumerate() {
                let counters = if taken { slot.counters(at) } else { self.take_one(key) };
                answers.push_back(Completion::Removed(*id, answer(counters)));
            }
        }
        self.removals.ids.clear();
        self.removals.keys.clear();
    }

    /// The query's work for one rule, in case it cannot run.
    fn take_one(&self, key: &K) -> RuleCounters {
        let taken = self.rules.lookup_and_delete(key.bytes()).ok().flatten();
        let Some(rule) = taken.and_then(|value| R::from_bytes(&value)) else { return RuleCounters::zeroed() };
        let RuleHead { packets, bytes, last_seen, flags, .. } = *rule.head();
        if flags & RULE_SEQUENCE != 0 {
            // Not there is fine.
            let _ = self.changes.delete(key.bytes());
        }
        RuleCounters { packets, bytes, last_seen, found: 1 }
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
        let mut changes = self.changes.drain(..).peekable();
        for start in (0..self.keys.len()).step_by(RULE_OPS_MAX) {
            let end = self.keys.len().min(start + RULE_OPS_MAX);
            slot.write_rules(slice_bytes(&self.values[start..end]));
            while let Some((at, change)) = changes.next_if(|(at, _)| *at < end) {
                slot.write_change(at - start, &change);
            }
            let put = query(&queries.put, slot, &self.keys[start..end], 0);
            for (at, id) in self.ids[start..end].iter().enumerate() {
                let result = match &put {
                    Ok(()) => slot.counters(at).found as i32,
                    Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
                };
                answers.push_back(match result {
                    0 => Completion::Installed(*id),
                    error => Completion::Rejected(*id, refusal(error)),
                });
            }
        }
        self.ids.clear();
        self.keys.clear();
        self.values.clear();
    }
}

fn refusal(error: i32) -> Refusal {
    match error {
        libc::E2BIG | libc::ENOMEM => Refusal::Full,
        libc::EINVAL | libc::ENOTSUP => Refusal::Unsupported,
        _ => Refusal::Failed,
    }
}
