//! Requests for rules of one address family, collected and carried out together.

use crate::abi::{Bytes, Numbers, RULE_NUMBERS, RULE_OPS_MAX, RuleCounters, RuleHead};
use crate::control::QuerySlot;
use crate::programs::{Queries, checked};
use crate::query::{Key, Value, query};
use anyhow::Result;
use hairpin_core::engine::{Completion, Counters, Refusal, Rule, RuleId};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The rules of one address family.
#[derive(Debug)]
pub(super) struct Family<K, R> {
    pub(super) installs: Installs<K, R>,
    pub(super) removals: Removals<K>,
}

impl<K: Key, R: Value<K>> Family<K, R> {
    pub(super) fn new(rules: &MapHandle, numbers: &MapHandle, ops_max: usize) -> Result<Family<K, R>> {
        Ok(Family {
            installs: Installs {
                ids: Vec::with_capacity(ops_max),
                keys: Vec::with_capacity(ops_max),
                values: Vec::with_capacity(ops_max),
                rules: MapHandle::try_from(rules)?,
                numbers: MapHandle::try_from(numbers)?,
            },
            removals: Removals { ids: Vec::with_capacity(ops_max), keys: Vec::with_capacity(ops_max) },
        })
    }

    /// Carries out the removals.
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

    /// What the query does for one rule, in case it cannot run.
    fn take_one(&self, key: &K) -> RuleCounters {
        let taken = self.installs.rules.lookup_and_delete(key.bytes()).ok().flatten();
        let Some(rule) = taken.and_then(|value| R::from_bytes(&value)) else { return RuleCounters::zeroed() };
        let RuleHead { packets, bytes, last_seen, flags, .. } = *rule.head();
        if flags & RULE_NUMBERS != 0 {
            // Not there is fine.
            let _ = self.installs.numbers.delete(key.bytes());
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
    rules: MapHandle,
    numbers: MapHandle,
}

impl<K: Key, R: Value<K>> Installs<K, R> {
    /// Adds a rule. Its numbers go in at once, so that they are there before the rule is.
    pub(super) fn add(&mut self, rule: &Rule, key: K, value: R, answers: &mut VecDeque<Completion>) {
        if value.head().flags & RULE_NUMBERS != 0 {
            let numbers = Numbers {
                sequence_delta: rule.rewrite.sequence_delta,
                acknowledgement_delta: rule.rewrite.acknowledgement_delta,
            };
            if let Err(error) = update_one(&self.numbers, &key, &numbers, MapFlags::ANY) {
                answers.push_back(Completion::Rejected(rule.id, refusal(&error)));
                return;
            }
        }
        self.ids.push(rule.id);
        self.keys.push(key);
        self.values.push(value);
    }

    /// Carries the installs out.
    pub(super) fn carry_out(&mut self, answers: &mut VecDeque<Completion>) {
        let mut done = 0;
        while done < self.keys.len() {
            let end = done + self.update(done);
            answers.extend(self.ids[done..end].iter().map(|id| Completion::Installed(*id)));
            done = end;
            if let Some(id) = self.ids.get(done) {
                // One that the kernel did not take in a batch: alone, for the reason, and in case it does no batches.
                let updated = update_one(&self.rules, &self.keys[done], &self.values[done], MapFlags::ANY);
                answers.push_back(match updated {
                    Ok(()) => Completion::Installed(*id),
                    Err(error) => {
                        if self.values[done].head().flags & RULE_NUMBERS != 0 {
                            let _ = self.numbers.delete(self.keys[done].bytes());
                        }
                        Completion::Rejected(*id, refusal(&error))
                    }
                });
                done += 1;
            }
        }
        self.ids.clear();
        self.keys.clear();
        self.values.clear();
    }

    /// One batched update of everything from `start` on. Returns how many were done before an error, if there was one.
    fn update(&self, start: usize) -> usize {
        let (keys, values) = (&self.keys[start..], &self.values[start..]);
        let mut count = keys.len() as u32;
        let options = libbpf_sys::bpf_map_batch_opts {
            sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
            ..Default::default()
        };
        // SAFETY: `count` keys and values of the map's sizes are there, the kernel only reads them, and all live
        // through the call.
        let result = unsafe {
            libbpf_sys::bpf_map_update_batch(
                self.rules.as_fd().as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &mut count,
                &options,
            )
        };
        match checked(result) {
            Ok(_) => keys.len(),
            // It did not get to counting.
            Err(_) if count as usize >= keys.len() => 0,
            Err(_) => count as usize,
        }
    }
}

fn update_one<K: Bytes, V: Bytes>(map: &MapHandle, key: &K, value: &V, flags: MapFlags) -> io::Result<()> {
    debug_assert!(map.key_size() as usize == size_of::<K>() && map.value_size() as usize == size_of::<V>());
    // SAFETY: key and value have the map's sizes, the kernel only reads them, and they live through the call.
    checked(unsafe {
        libbpf_sys::bpf_map_update_elem(
            map.as_fd().as_raw_fd(),
            key.bytes().as_ptr().cast(),
            value.bytes().as_ptr().cast(),
            flags.bits(),
        )
    })
    .map(|_| ())
}

fn refusal(error: &io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::E2BIG | libc::ENOMEM) => Refusal::Full,
        Some(libc::EINVAL | libc::ENOTSUP) => Refusal::Unsupported,
        _ => Refusal::Failed,
    }
}
