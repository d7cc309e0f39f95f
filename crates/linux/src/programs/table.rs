//! The table of IPv4 rules (`crates/linux/bpf/lines.h`), as the process reads it.

use super::LoadedPlane;
use super::object::Maps;
use crate::abi::{
    self, Bytes, FlowV4, LINE_ELSEWHERE, LINE_PROTOCOL, LINE_VERSION, LINES, RuleBucket, RuleLine, RuleV4,
};
use anyhow::{Context, Result, bail};
use libbpf_rs::{MapCore, MapFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The elements of `rules_v4` for so many rules: buckets with half as many lines again, and lines for those that find none in their
/// bucket, twice as many as there are of them by chance.
pub(super) fn buckets(rules: u32) -> [u32; 2] {
    let lines = u64::from(rules).saturating_mul(3).div_ceil(2);
    [lines.div_ceil(LINES as u64) as u32, (rules / 6).div_ceil(LINES as u32).max(SPILL_BUCKETS_MIN)]
}

/// The fewest elements of `rules_v4` behind its buckets: as many as are tried.
const SPILL_BUCKETS_MIN: u32 = 32;

/// Elements of `spilled_v4` for so many rules.
pub(super) fn spilled(rules: u32) -> u32 {
    buckets(rules)[1] * LINES as u32
}

/// Where rules of IPv4 lie.
#[derive(Clone, Debug)]
pub struct RuleTable {
    maps: Arc<Maps>,
    keys: [u64; 5],
    buckets: u32,
}

impl LoadedPlane {
    /// The table of IPv4 rules.
    pub fn rule_table(&self) -> RuleTable {
        let block = self.control.block();
        RuleTable {
            maps: self.maps(),
            keys: [0, 1, 2, 3, 4].map(|at: usize| block.rule_keys[at].load(Ordering::Relaxed)),
            buckets: block.rule_buckets.load(Ordering::Relaxed),
        }
    }
}

impl RuleTable {
    pub(super) fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The flow's hash: `hash_v4` of lines.h.
    fn hash(&self, key: &FlowV4) -> u64 {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&key.bytes()[at..at + 4]);
            u64::from(u32::from_ne_bytes(bytes))
        };
        let words = [word(0), word(4), word(8), u64::from(key.protocol)];
        let products = words.iter().zip(&self.keys[1..]).map(|(word, key)| word.wrapping_mul(*key));
        let sum = products.fold(self.keys[0], u64::wrapping_add);
        (sum ^ sum >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32
    }

    /// The number of the flow's bucket, and the bucket.
    fn bucket(&self, hash: u64) -> Result<(u32, RuleBucket)> {
        let index = ((hash * u64::from(self.buckets)) >> 32) as u32;
        Ok((index, self.element(index)?))
    }

    fn element(&self, index: u32) -> Result<RuleBucket> {
        let bytes =
            self.maps.named("rules_v4")?.lookup(index.bytes(), MapFlags::ANY).context("cannot read rules_v4")?;
        bytes.and_then(|bytes| RuleBucket::from_bytes(&bytes)).context("rules_v4 has another layout")
    }

    /// The rule for `key`, as it is now.
    ///
    /// # Errors
    /// The kernel does not let the maps be read.
    pub fn find(&self, key: &FlowV4) -> Result<Option<RuleV4>> {
        let (_, bucket) = self.bucket(self.hash(key))?;
        if let Some(line) = bucket.lines.iter().find(|line| line.key() == Some(*key)) {
            return Ok(Some(line.rule));
        }
        let Some(number) = self.spilled(key)? else { return Ok(None) };
        let line = self.element(number / LINES as u32)?.lines[number as usize % LINES];
        Ok((line.key() == Some(*key)).then_some(line.rule))
    }

    /// The number of the line behind all buckets where the rule for `key` lies.
    fn spilled(&self, key: &FlowV4) -> Result<Option<u32>> {
        let found = self.maps.named("spilled_v4")?.lookup(key.bytes(), MapFlags::ANY);
        Ok(found.context("cannot read spilled_v4")?.and_then(|number| u32::from_bytes(&number)))
    }

    /// Writes a rule, for measurements and tests: while nothing else changes rules, and packets' counts may be lost.
    ///
    /// # Errors
    /// The kernel does not let the maps be written, or there is no room.
    pub fn write(&self, key: &FlowV4, rule: &RuleV4) -> Result<()> {
        let hash = self.hash(key);
        let (home, mut bucket) = self.bucket(hash)?;
        if let Some(number) = self.spilled(key)? {
            return self.write_line(number, key, rule);
        }
        let order = || (0..LINES as u64).map(|attempt| ((hash ^ attempt) % LINES as u64) as usize);
        let same = order().find(|&at| bucket.lines[at].key() == Some(*key));
        let free = order().find(|&at| bucket.lines[at].state & LINE_PROTOCOL == 0);
        if same.is_none() {
            let count = self.maps.named("rules_v4_count")?;
            let before = count.lookup(0u32.bytes(), MapFlags::ANY)?.and_then(|bytes| u32::from_bytes(&bytes));
            count.update(0u32.bytes(), (before.unwrap_or_default() + 1).bytes(), MapFlags::ANY)?;
        }
        if let Some(at) = same.or(free) {
            return self.write_line(home * LINES as u32 + at as u32, key, rule);
        }
        let behind = u64::from(self.maps.named("rules_v4")?.max_entries() - self.buckets) * LINES as u64;
        for attempt in 0..behind {
            let number = self.buckets * LINES as u32 + (hash.wrapping_add(attempt) % behind) as u32;
            if self.element(number / LINES as u32)?.lines[number as usize % LINES].state & LINE_PROTOCOL == 0 {
                self.write_line(number, key, rule)?;
                self.maps.named("spilled_v4")?.update(key.bytes(), number.bytes(), MapFlags::ANY)?;
                bucket.lines[0].state += LINE_ELSEWHERE;
                return self.write_element(home, &bucket);
            }
        }
        bail!("no line is free")
    }

    fn write_line(&self, number: u32, key: &FlowV4, rule: &RuleV4) -> Result<()> {
        let (index, at) = (number / LINES as u32, number as usize % LINES);
        let mut bucket = self.element(index)?;
        bucket.lines[at].fill(key, rule);
        self.write_element(index, &bucket)
    }

    fn write_element(&self, index: u32, bucket: &RuleBucket) -> Result<()> {
        let rules = self.maps.named("rules_v4")?;
        rules.update(index.bytes(), bucket.bytes(), MapFlags::ANY).context("cannot write rules_v4")
    }
}

impl RuleLine {
    /// The flow of the rule, if there is one.
    pub(super) fn key(&self) -> Option<FlowV4> {
        let protocol = (self.state & LINE_PROTOCOL) as u8;
        (protocol != 0).then_some(FlowV4 {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol,
            zero: [0; 3],
        })
    }

    /// How often it has been written.
    pub(super) fn version(&self) -> u32 {
        self.state / LINE_VERSION
    }

    fn fill(&mut self, key: &FlowV4, rule: &RuleV4) {
        (self.source, self.destination) = (key.source, key.destination);
        (self.source_port, self.destination_port) = (key.source_port, key.destination_port);
        self.state = self.state & !LINE_PROTOCOL | u32::from(key.protocol);
        self.rule = *rule;
    }
}

impl abi::NextHop {
    /// A next hop that stays good without lookups, for measurements and tests.
    pub fn lasting(egress: u32, addresses: [u8; 12], mtu: u16, wrapped: bool) -> abi::NextHop {
        let used = (crate::cpu::now().as_nanos() >> abi::TICK_SHIFT) as u32;
        let used = used.wrapping_add(1 << 30) | 2;
        abi::NextHop { egress, addresses, mtu, wrapped: u16::from(wrapped), used, zero: [0; 2] }
    }
}
