//! All rules in force, whichever process has installed them: to compare them with the connections there are.

use super::object::Maps;
use super::{LoadedPlane, checked, raw};
use crate::abi::{self, Bytes, FlowV4, FlowV6, RuleBucket, RuleHead, RuleLine, RuleV6};
use crate::control::QuerySlot;
use crate::query::{RuleKey, query_all};
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::FlowKey;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// Rules read by one system call at most, at first.
const BATCH: usize = 8192;

/// A rule in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    /// The flow it is for.
    pub key: FlowKey,
    /// Its fate: leave the packet to the kernel.
    pub pass: bool,
    /// Its fate: go to its backend unchanged, by direct server return.
    pub direct: bool,
    /// The worker that gets the packets it does not take.
    pub worker: u8,
    /// The slot that sums up its traffic; [`hairpin_core::engine::Rule::total`].
    pub total: u16,
}

impl LoadedPlane {
    /// All rules in force, in no order. One that is installed or removed meanwhile may be among them or not; all others
    /// are there once.
    pub fn rules(&self) -> Result<Vec<InstalledRule>> {
        let mut rules = Vec::new();
        self.for_each_rule(|rule| rules.push(rule))?;
        Ok(rules)
    }

    /// Shows all rules in force to `visit`, as [`LoadedPlane::rules`] does, without needing memory for all of them at once.
    pub fn for_each_rule(&self, mut visit: impl FnMut(InstalledRule)) -> Result<()> {
        walk_v4(&self.maps, &mut visit)?;
        walk_v6(&self.maps, &mut visit)
    }

    /// The keys of all rules in force, in no order: to compare with the offload state.
    pub fn installed(&self) -> Result<Vec<FlowKey>> {
        let mut keys = Vec::new();
        self.for_each_rule(|rule| keys.push(rule.key))?;
        Ok(keys)
    }

    /// Removes the rules for `keys`, whose connections are gone. Returns how many of them there were. Not at the same
    /// time in two processes.
    pub fn remove_rules(&self, keys: &[FlowKey]) -> Result<u64> {
        self.query_rules(&self.programs.queries.take, keys, 0).context("cannot remove rules")
    }

    /// Makes the rules for the given keys other workers', who get the packets they do not take: when the number of
    /// workers has changed. Their counters stay; a hand-over that is under way starts again. Returns how many of them
    /// there were. Not at the same time in two processes.
    pub fn assign_rules(&self, rules: &[(FlowKey, u8)]) -> Result<u64> {
        let mut by_worker: BTreeMap<u8, Vec<FlowKey>> = BTreeMap::new();
        for (key, worker) in rules {
            ensure!(usize::from(*worker) < abi::WORKERS_MAX, "worker {worker}: there are {}", abi::WORKERS_MAX);
            by_worker.entry(*worker).or_default().push(*key);
        }
        let mut found = 0;
        for (worker, keys) in by_worker {
            let assigned = self.query_rules(&self.programs.queries.assign, &keys, worker);
            found += assigned.with_context(|| format!("cannot give rules to worker {worker}"))?;
        }
        Ok(found)
    }

    fn query_rules(&self, program: &OwnedFd, keys: &[FlowKey], worker: u8) -> Result<u64> {
        let mut slot = self.query_slot()?;
        let (v4, v6): (Vec<&FlowKey>, Vec<&FlowKey>) = keys.iter().partition(|key| key.is_ipv4());
        let v4: Vec<FlowV4> = v4.into_iter().map(FlowV4::of).collect();
        let v6: Vec<FlowV6> = v6.into_iter().map(FlowV6::of).collect();
        Ok(query_all(program, &mut slot, &v4, worker)? + query_all(program, &mut slot, &v6, worker)?)
    }

    /// The element of `queries` that is no worker's.
    fn query_slot(&self) -> Result<QuerySlot> {
        self.control.query_slot(abi::WORKERS_MAX).context("another thread is changing rules")
    }
}

/// Shows every rule of IPv4 to `visit`.
pub(super) fn walk_v4(maps: &Maps, visit: &mut impl FnMut(InstalledRule)) -> Result<()> {
    let map = maps.named("rules_v4")?;
    let lines = |index: &u32, first: &RuleBucket, second: &RuleBucket| {
        let bucket = settled(first, second, || {
            map.lookup(index.bytes(), MapFlags::ANY).ok().flatten().and_then(|bytes| RuleBucket::from_bytes(&bytes))
        });
        let rules = bucket.lines.iter().filter_map(|line| Some((line.key()?, line.rule.head)));
        rules.for_each(|(key, head)| show(&key, &head, visit));
    };
    walk(map, true, lines).context("cannot read map rules_v4")
}

/// How often a bucket is read again that changes meanwhile.
const SETTLE_TRIES: usize = 100;

/// A bucket as it was at one time: the later of two copies, made one after the other, between which no line has become another
/// rule's; `first` and `second`, or what `read` returns. A line that changes all the time is left out: its rules are being installed
/// and removed.
fn settled(first: &RuleBucket, second: &RuleBucket, mut read: impl FnMut() -> Option<RuleBucket>) -> RuleBucket {
    let is_same = |(a, b): (&RuleLine, &RuleLine)| a.key() == b.key() && a.version() == b.version();
    let (mut older, mut newer) = (*first, *second);
    for _ in 0..SETTLE_TRIES {
        if older.lines.iter().zip(&newer.lines).all(is_same) {
            return newer;
        }
        let Some(next) = read() else { break };
        (older, newer) = (newer, next);
    }
    for (a, b) in older.lines.iter().zip(&mut newer.lines) {
        if !is_same((a, b)) {
            b.state = 0;
        }
    }
    newer
}

/// Shows every rule of IPv6 to `visit`.
pub(super) fn walk_v6(maps: &Maps, visit: &mut impl FnMut(InstalledRule)) -> Result<()> {
    let shown = |key: &FlowV6, rule: &RuleV6, _: &RuleV6| show(key, &rule.head, visit);
    walk(maps.named("rules_v6")?, false, shown).context("cannot read map rules_v6")
}

fn show<K: RuleKey>(key: &K, head: &RuleHead, visit: &mut impl FnMut(InstalledRule)) {
    // A key of another protocol is none of this build's making.
    let Some(key) = key.flow() else { return };
    let [pass, direct] = [abi::RULE_PASS, abi::RULE_DIRECT].map(|flag| head.flags & flag != 0);
    visit(InstalledRule { key, pass, direct, worker: head.worker, total: head.total });
}

/// Shows every element of `map` to `visit`, and, of an array that is to be read `twice`, what it is a little later.
fn walk<K: Bytes, V: Bytes>(map: &MapHandle, twice: bool, mut visit: impl FnMut(&K, &V, &V)) -> Result<()> {
    ensure!(map.key_size() as usize == size_of::<K>() && map.value_size() as usize == size_of::<V>(), "other sizes");
    let most = map.max_entries() as usize;
    let (mut keys, mut values) = (vec![K::zeroed(); BATCH.min(most)], vec![V::zeroed(); BATCH.min(most)]);
    let mut later = if twice { values.clone() } else { Vec::new() };
    // The kernel's cursor: none yet.
    let mut place: Option<u32> = None;
    loop {
        let mut count = keys.len() as u32;
        let (end, next) = match read(map, place, &mut keys, &mut values, &mut count) {
            Ok(next) => (false, next),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => (true, 0),
                // A bucket of the hash is read whole or not at all, and there was no room for the next one.
                Some(libc::ENOSPC) if keys.len() < most => {
                    let more = most.min(keys.len() * 2);
                    keys.resize(more, K::zeroed());
                    values.resize(more, V::zeroed());
                    continue;
                }
                Some(libc::EINTR) => continue,
                _ => return Err(error.into()),
            },
        };
        if twice {
            read_again(map, place, &mut keys, &mut later, count)?;
        }
        let second = if twice { &later } else { &values };
        keys.iter().zip(values.iter().zip(second)).take(count as usize).for_each(|(key, (a, b))| visit(key, a, b));
        if end {
            return Ok(());
        }
        place = Some(next);
    }
}

/// Reads `count` elements of an array that have been read from `place` on once more.
fn read_again<K: Bytes, V: Bytes>(
    map: &MapHandle,
    place: Option<u32>,
    keys: &mut [K],
    values: &mut [V],
    count: u32,
) -> Result<()> {
    loop {
        let mut again = count;
        match read(map, place, keys, values, &mut again) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error.into()),
            _ => {
                ensure!(again == count, "{again} elements where {count} were");
                return Ok(());
            }
        }
    }
}

/// Reads up to `count` elements, as many as `keys` and `values` have room for, from `place` on. Returns where to go on;
/// ENOENT: these were the last ones.
fn read<K: Bytes, V: Bytes>(
    map: &MapHandle,
    place: Option<u32>,
    keys: &mut [K],
    values: &mut [V],
    count: &mut u32,
) -> std::io::Result<u32> {
    let mut place = place;
    let mut next = 0u32;
    let options =
        libbpf_sys::bpf_map_batch_opts { sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _, ..Default::default() };
    // SAFETY: there is room for `count` keys and values, which have the map's sizes; a hash's and an array's place is 32 bits; all
    // live through the call, and any bytes are valid for them.
    checked(unsafe {
        libbpf_sys::bpf_map_lookup_batch(
            raw(map.as_fd()),
            place.as_mut().map_or(std::ptr::null_mut(), |place| std::ptr::from_mut(place).cast()),
            (&raw mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            count,
            &options,
        )
    })?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(source: u8, port: u8, version: u32) -> RuleBucket {
        let mut bucket = RuleBucket::zeroed();
        bucket.lines[2] = RuleLine {
            source: [source; 4],
            source_port: [0, port],
            state: (abi::LINE_VERSION * version) | 6,
            ..RuleLine::zeroed()
        };
        bucket
    }

    #[test]
    fn a_bucket_is_read_again_until_it_is_one_rules() {
        // The first copy has got the address of one rule and the port of the next.
        let (half, whole, next) = (bucket(1, 2, 8), bucket(2, 2, 8), bucket(1, 1, 9));
        let key = |bucket: RuleBucket| bucket.lines[2].key().map(|key| (key.source[0], key.source_port[1]));
        assert_eq!(key(settled(&whole, &whole, || panic!("nothing has changed"))), Some((2, 2)));
        assert_eq!(key(settled(&half, &whole, || Some(whole))), Some((2, 2)));
        let mut reads = [whole, next, next].into_iter();
        assert_eq!(key(settled(&bucket(1, 1, 7), &half, || reads.next())), Some((1, 1)));
        assert_eq!(reads.len(), 0);
        // The same flow, in a line that another one has had meanwhile.
        let mut reads = [next].into_iter();
        assert_eq!(key(settled(&bucket(1, 1, 7), &next, || reads.next())), Some((1, 1)));
        assert_eq!(reads.len(), 0);
        let mut version = 10;
        let restless = settled(&half, &whole, || {
            version += 1;
            Some(bucket(1, 1, version))
        });
        assert_eq!(key(restless), None);
    }
}
