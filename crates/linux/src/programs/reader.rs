//! Reads rules for listings, not for workers.

use super::LoadedPlane;
use super::object::Maps;
use super::rules::{InstalledRule, walk};
use crate::abi::{Bytes, FlowV4, FlowV6, RuleHead, RuleV4, RuleV6};
use anyhow::{Context, Result};
use hairpin_core::engine::Counters;
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use libbpf_rs::{MapCore, MapFlags};
use std::sync::Arc;

/// Reads rules' counters, one system call each; any number of threads may.
#[derive(Clone, Debug)]
pub struct RuleReader(Arc<Maps>);

impl LoadedPlane {
    /// A handle with which other threads can query rules.
    pub fn rule_reader(&self) -> RuleReader {
        RuleReader(self.maps())
    }
}

impl RuleReader {
    /// The counters of the rule for `key`; `None` if there is none. `now` is the time.
    pub fn counters(&self, key: &FlowKey, now: Time) -> Result<Option<Counters>> {
        let head = if key.is_ipv4() {
            self.value("rules_v4", FlowV4::of(key).bytes())?
                .and_then(|value| RuleV4::from_bytes(&value))
                .map(|r| r.head)
        } else {
            self.value("rules_v6", FlowV6::of(key).bytes())?
                .and_then(|value| RuleV6::from_bytes(&value))
                .map(|r| r.head)
        };
        Ok(head.map(|head| counters(&head, now)))
    }

    /// How many rules there are: IPv4, IPv6, and how many of both leave their flow to the kernel. Goes through all of
    /// them: about a microsecond for each four.
    pub fn count(&self) -> Result<[u64; 3]> {
        let (mut v4, mut v6, mut passes) = (0, 0, 0);
        let mut visit = |count: &mut u64, rule: InstalledRule| {
            *count += 1;
            passes += u64::from(rule.pass);
        };
        walk::<FlowV4, RuleV4>(self.0.named("rules_v4")?, &mut |rule| visit(&mut v4, rule))?;
        walk::<FlowV6, RuleV6>(self.0.named("rules_v6")?, &mut |rule| visit(&mut v6, rule))?;
        Ok([v4, v6, passes])
    }

    fn value(&self, map: &str, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.named(map)?.lookup(key, MapFlags::ANY).with_context(|| format!("cannot read map {map}"))
    }
}

fn counters(head: &RuleHead, now: Time) -> Counters {
    let last_seen = (head.last_seen != 0).then(|| crate::engine::time_of(head.last_seen, now));
    Counters { packets: head.packets, bytes: head.bytes, last_seen }
}
