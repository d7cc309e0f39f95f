//! Reads rules for listings, not for workers.

use super::LoadedPlane;
use super::rules::{InstalledRule, walk_v4, walk_v6};
use super::table::RuleTable;
use crate::abi::{Bytes, FlowV4, FlowV6, RuleHead, RuleV6};
use anyhow::{Context, Result};
use hairpin_core::engine::Counters;
use hairpin_core::flow::FlowKey;
use hairpin_core::time::Time;
use libbpf_rs::{MapCore, MapFlags};

/// Reads rules' counters, one or two system calls each; any number of threads may.
#[derive(Clone, Debug)]
pub struct RuleReader(RuleTable);

impl LoadedPlane {
    /// A handle with which other threads can query rules.
    pub fn rule_reader(&self) -> RuleReader {
        RuleReader(self.rule_table())
    }
}

impl RuleReader {
    /// The counters of the rule for `key`; `None` if there is none. `now` is the time.
    pub fn counters(&self, key: &FlowKey, now: Time) -> Result<Option<Counters>> {
        let head = if key.is_ipv4() {
            self.0.find(&FlowV4::of(key))?.map(|rule| rule.head)
        } else {
            let value = self.0.maps().named("rules_v6")?.lookup(FlowV6::of(key).bytes(), MapFlags::ANY);
            value
                .context("cannot read map rules_v6")?
                .and_then(|value| RuleV6::from_bytes(&value))
                .map(|rule| rule.head)
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
        walk_v4(self.0.maps(), &mut |rule| visit(&mut v4, rule))?;
        walk_v6(self.0.maps(), &mut |rule| visit(&mut v6, rule))?;
        Ok([v4, v6, passes])
    }
}

fn counters(head: &RuleHead, now: Time) -> Counters {
    let last_seen = (head.last_seen != 0).then(|| crate::engine::time_of(head.last_seen, now));
    Counters { packets: head.packets, bytes: head.bytes, last_seen }
}
