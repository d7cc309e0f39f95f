//! The attack on hash tables: an enemy who knows the code chooses flows whose hashes collide.
//!
//! Without the secret he can only choose such as collide under a secret of his own, or such whose difference he hopes
//! will cancel under many secrets. Neither gets him further than random flows would.

use crate::random::Random;
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::table::{Entries, Hash, Hasher, Key, Lookup, Table};
use hairpin_tables::{OwnMethod, OwnTable};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

const VIP: Endpoint =
    Endpoint { address: Address([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), port: 443 };

const VIP_V4: Endpoint =
    Endpoint { address: Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]), port: 443 };

/// The secret that the enemy tries.
const TRIED: [u64; 4] = [0x0123_4567_89ab_cdef, 2, 3, 4];

/// A flow from one of 2^16 clients per family.
fn flow(random: &mut Random) -> FlowKey {
    let bits = random.next().to_le_bytes();
    let (address, destination) = match bits[7] & 1 {
        0 => (Address::from_ipv4([10, 0, bits[0], bits[1]]), VIP_V4),
        _ => (Address([0x20, 1, 0xd, 0xb8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, bits[0], bits[1]]), VIP),
    };
    let source = Endpoint { address, port: u16::from_le_bytes([bits[2], bits[3]]) };
    FlowKey { source, destination, protocol: Protocol::Tcp }
}

/// A hash's two halves, in `2^bits` equal parts each.
fn parts(hash: Hash, bits: u32) -> (u32, u32) {
    ((hash.0 >> 32) as u32 >> (32 - bits), hash.0 as u32 >> (32 - bits))
}

/// Whether a flow of this hash is one of those that a table for about 1000 entries has to put into two buckets, as its
/// code says.
fn falls_into_one_place(method: OwnMethod, hash: Hash) -> bool {
    match method {
        OwnMethod::TwoChoice => parts(hash, 8) == (0, 0),
        // The first two buckets by the upper half, the others by the lower one as it is, and turned by 16 bits.
        OwnMethod::Inline => parts(hash, 6) == (0, 0) && (hash.0 as u16) >> 10 == 0,
        // The first bucket by the upper half, the second by the tag: 16 bits, of a concurrent table 15.
        _ => {
            let tag = hash.0 as u32 & if method == OwnMethod::Concurrent { 0x7fff } else { 0xffff };
            parts(hash, 8).0 == 0 && tag.wrapping_mul(0x9E37_79B1) >> 25 == 0
        }
    }
}

/// So many different flows of whose hashes `wanted` is true under the secret tried.
fn chosen(count: usize, wanted: impl Fn(Hash) -> bool) -> Vec<FlowKey> {
    let tried = Hasher::new(TRIED);
    let mut random = Random(1);
    let mut found = BTreeSet::new();
    while found.len() < count {
        let flow = flow(&mut random);
        if wanted(flow.hash(&tried)) {
            found.insert(flow);
        }
    }
    found.into_iter().collect()
}

/// The flows that a table holds, which count the questions.
struct Slab<'a> {
    flows: &'a [FlowKey],
    asked: Cell<usize>,
}

impl Entries<FlowKey> for Slab<'_> {
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.flows[value as usize] == *key
    }
}

/// Puts `flows` into a table under `secret`: returns how many find room, and how many probes a lookup takes.
fn outcome(method: OwnMethod, secret: [u64; 4], flows: &[FlowKey], capacity: usize) -> (usize, f64) {
    let mut table = OwnTable::of(method, capacity, Hasher::new(secret));
    let held: Vec<bool> = (0u32..).zip(flows).map(|(value, flow)| table.insert(flow, value).is_ok()).collect();
    let slab = Slab { flows, asked: Cell::new(0) };
    for ((value, flow), &held) in (0u32..).zip(flows).zip(&held) {
        assert_eq!(table.find(flow, &slab), held.then_some(value), "{method}");
    }
    let count = held.into_iter().filter(|held| *held).count();
    (count, slab.asked.get() as f64 / flows.len() as f64)
}

/// In a table for 1000 entries, 300 flows that collide under the secret tried: an attacker who has guessed right is left
/// with a few of them; under any other secret all find room, and are found by asking about hardly more than one entry.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn flows_that_collide_under_another_secret_do_not_here() {
    let mut random = Random(2);
    for &method in OwnMethod::ALL.iter().filter(|method| method.tracks_connections()) {
        let flows = chosen(300, |hash| falls_into_one_place(method, hash));
        let (held, _) = outcome(method, TRIED, &flows, 1000);
        assert!(held < 50, "{method}: the attack is none: {held} of {} found room", flows.len());
        for _ in 0..100 {
            let (held, asked) = outcome(method, random.secret(), &flows, 1000);
            assert!(held == flows.len(), "{method}: {held} of {} found room", flows.len());
            assert!(asked < 1.05, "{method}: {asked} questions");
        }
    }
}

/// How far `counts` are from even: the chi-square statistic, as standard deviations from its mean.
fn unevenness(counts: &[u32]) -> f64 {
    let (cells, total) = (counts.len() as f64, f64::from(counts.iter().sum::<u32>()));
    let expected = total / cells;
    let chi_square: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    (chi_square - (cells - 1.0)) / (2.0 * (cells - 1.0)).sqrt()
}

/// The unevenness of flows' hashes in 256 parts of each half by its upper bits, and by their lowest bits.
fn spread(flows: &[FlowKey], secret: [u64; 4]) -> [f64; 4] {
    let hasher = Hasher::new(secret);
    let mut counts = [[0u32; 256]; 4];
    for flow in flows {
        let hash = flow.hash(&hasher);
        let (upper, lower) = parts(hash, 8);
        let places = [upper, lower, (hash.0 >> 32) as u32 & 255, hash.0 as u32 & 255];
        for (counts, place) in counts.iter_mut().zip(places) {
            counts[place as usize] += 1;
        }
    }
    counts.map(|counts| unevenness(&counts))
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn chosen_flows_spread_like_random_ones() {
    let flows = chosen(20_000, |hash| parts(hash, 4) == (0, 0));
    assert!(spread(&flows, TRIED)[0] > 1000.0, "not chosen at all");
    let mut random = Random(3);
    for _ in 0..50 {
        // 200 draws of a nearly normal distribution: 6 deviations come about once in a million runs.
        let spread = spread(&flows, random.secret());
        assert!(spread.iter().all(|deviations| deviations.abs() < 7.0), "{spread:?}");
    }
}

/// Pairs of flows whose difference from `base` an enemy may hope will cancel.
fn differences(base: FlowKey) -> Vec<(FlowKey, FlowKey)> {
    let mut pairs = Vec::new();
    let mut push = |change: &dyn Fn(&mut FlowKey)| {
        let mut changed = base;
        change(&mut changed);
        pairs.push((base, changed));
    };
    for bit in 0..128 {
        push(&|flow| flow.source.address.0[bit / 8] ^= 1 << (bit % 8));
        push(&|flow| flow.destination.address.0[bit / 8] ^= 1 << (bit % 8));
        push(&|flow| {
            flow.source.address.0[bit / 8] ^= 1 << (bit % 8);
            flow.destination.address.0[bit / 8] ^= 1 << (bit % 8);
        });
    }
    for bit in 0..16 {
        push(&|flow| flow.source.port ^= 1 << bit);
        push(&|flow| flow.destination.port ^= 1 << bit);
    }
    // Complements, of a part and of all: the product of two complements is not far from the product.
    let turn = |end: &mut Endpoint, part: &Range<usize>| {
        end.address.0[part.clone()].iter_mut().for_each(|byte| *byte = !*byte);
    };
    for part in [0..8, 8..16, 0..16, 12..16] {
        push(&|flow| turn(&mut flow.source, &part));
        push(&|flow| turn(&mut flow.destination, &part));
        push(&|flow| [&mut flow.source, &mut flow.destination].into_iter().for_each(|end| turn(end, &part)));
    }
    push(&|flow| flow.source.port = !flow.source.port);
    push(&|flow| [&mut flow.source, &mut flow.destination].into_iter().for_each(|end| end.port = !end.port));
    push(&|flow| *flow = flow.reversed());
    pairs
}

/// Under 2^14 secrets, a pair with a chosen difference falls together no more often than chance has it: once in 2^12
/// for 12 bits of a hash.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn no_difference_cancels_under_many_secrets() {
    let mut random = Random(4);
    let of_family = |random: &mut Random, ipv4| loop {
        let flow = flow(random);
        if flow.is_ipv4() == ipv4 {
            break flow;
        }
    };
    let pairs: Vec<_> = [true, false].into_iter().flat_map(|ipv4| differences(of_family(&mut random, ipv4))).collect();
    let mut together = vec![[0u32; 3]; pairs.len()];
    for _ in 0..1 << 14 {
        let hasher = Hasher::new(random.secret());
        for ((one, other), together) in pairs.iter().zip(&mut together) {
            let (one, other) = (one.hash(&hasher), other.hash(&hasher));
            let ((upper, lower), (upper_2, lower_2)) = (parts(one, 12), parts(other, 12));
            together[0] += u32::from(upper == upper_2);
            together[1] += u32::from(lower == lower_2);
            together[2] += u32::from(one.0 & 0xfff == other.0 & 0xfff);
        }
    }
    // 4 are expected; of 2600 draws of that Poisson distribution one is above 22 in fewer than one of 10^6 runs.
    for ((one, other), together) in pairs.iter().zip(&together) {
        assert!(together.iter().all(|count| *count <= 22), "{one:?} and {other:?}: {together:?}");
    }
}
