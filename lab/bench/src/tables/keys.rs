//! The input of all methods: keys, made before any clock runs, the same for all.
//!
//! A key is 16 random bytes; its value is its first four. A table of some size has a *population* that stays in it, and
//! beside that *spare* keys that come and go, and *absent* ones that never come. Each thread has its own part of the
//! population, as each worker has its own flows; it asks for them in an order that has nothing to do with the order in
//! which they were inserted, from an array that no L2 cache holds.

use super::subject::BURST;
use fastrand::Rng;

/// A key under measurement.
pub(super) type BenchKey = [u8; 16];

/// Keys between two reads of the clock: 100 bursts of 32.
pub(super) const CHUNK: usize = 3_200;
/// Keys that a sequence has at least, 32 MiB of them.
const SEQUENCE_MIN: usize = 655 * CHUNK;
/// Keys of a thread that come and go in one cycle, at most; a table of few entries has fewer.
const CHURN_MAX: usize = 20 * CHUNK;
/// One of so many lookups of [`Sequence::mostly_hits`] misses.
const MISS_EVERY: usize = 100;

/// The value stored under `key`.
pub(super) fn value(key: &BenchKey) -> u32 {
    u32::from_le_bytes([key[0], key[1], key[2], key[3]])
}

/// Keys to look up, in order, a multiple of [`CHUNK`] of them.
pub(super) struct Sequence {
    /// The keys.
    pub keys: Vec<BenchKey>,
    /// How many of each chunk the table has.
    pub hits_per_chunk: usize,
}

impl Sequence {
    /// The keys of `part` in random order, again and again in other orders until there are enough.
    fn hits(part: &[BenchKey], rng: &mut Rng) -> Sequence {
        let length = part.len().max(SEQUENCE_MIN).next_multiple_of(CHUNK);
        let mut keys = Vec::with_capacity(length);
        while keys.len() < length {
            let from = keys.len();
            keys.extend_from_slice(&part[..part.len().min(length - from)]);
            rng.shuffle(&mut keys[from..]);
        }
        Sequence { keys, hits_per_chunk: CHUNK }
    }

    /// Some of `hits` with one key of every hundred, at a random place among them, replaced by one of `absent`.
    fn mostly_hits(hits: &Sequence, absent: &[BenchKey], rng: &mut Rng) -> Sequence {
        let mut keys = hits.keys[..SEQUENCE_MIN].to_vec();
        for (hundred, absent) in keys.chunks_mut(MISS_EVERY).zip(absent.iter().cycle()) {
            let at = rng.usize(..hundred.len());
            hundred[at] = *absent;
        }
        Sequence { keys, hits_per_chunk: CHUNK - CHUNK / MISS_EVERY }
    }
}

/// One thread's share of the work.
pub(super) struct KeyShare<'a> {
    /// The keys that stay in the table, in the order in which they are inserted.
    pub part: &'a [BenchKey],
    /// Lookups that all hit.
    pub hits: Sequence,
    /// Lookups of which 99 percent hit.
    pub mostly_hits: Sequence,
    /// Lookups that all miss.
    pub misses: Sequence,
    /// Keys that take the places of as many of the part.
    pub spare: Vec<BenchKey>,
}

impl KeyShare<'_> {
    /// Keys of the part that may be taken out in cycle number `cycle`, as many as there are spare ones, in an order
    /// that is not that of their insertion.
    pub(super) fn leaving(&self, cycle: usize) -> &[BenchKey] {
        let cycles = (self.part.len() / self.spare.len()).max(1);
        &self.hits.keys[cycle % cycles * self.spare.len()..][..self.spare.len()]
    }
}

/// `population` divided among so many threads.
pub(super) fn shares(population: &[BenchKey], threads: usize, seed: u64) -> Vec<KeyShare<'_>> {
    let bound = |thread: usize| population.len() * thread / threads;
    (0..threads)
        .map(|thread| {
            let mut rng = Rng::with_seed(seed ^ (((threads * 1_000 + thread) as u64) << 32));
            let part = &population[bound(thread)..bound(thread + 1)];
            let hits = Sequence::hits(part, &mut rng);
            let misses = Sequence { keys: random(SEQUENCE_MIN, &mut rng), hits_per_chunk: 0 };
            let mostly_hits = Sequence::mostly_hits(&hits, &misses.keys, &mut rng);
            let churn = (part.len() / 16).clamp(BURST, CHURN_MAX) / BURST * BURST;
            KeyShare { part, hits, mostly_hits, misses, spare: random(churn, &mut rng) }
        })
        .collect()
}

/// So many keys.
pub(super) fn population(entries: usize, seed: u64) -> Vec<BenchKey> {
    random(entries, &mut Rng::with_seed(seed))
}

/// Random keys; that two of 10^8 are equal happens once in 10^22 times.
fn random(count: usize, rng: &mut Rng) -> Vec<BenchKey> {
    (0..count).map(|_| rng.u128(..).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn shares_are_disjoint_and_hit_rates_hold() {
        let population = population(20_001, 6);
        let shares = shares(&population, 2, 7);
        assert_eq!(shares.iter().map(|share| share.part.len()).sum::<usize>(), 20_001);
        let mut all = HashSet::new();
        for share in &shares {
            let part: HashSet<BenchKey> = share.part.iter().copied().collect();
            for sequence in [&share.hits, &share.mostly_hits, &share.misses] {
                assert!(sequence.keys.len() >= SEQUENCE_MIN && sequence.keys.len().is_multiple_of(CHUNK));
                for chunk in sequence.keys.chunks(CHUNK) {
                    let hits = chunk.iter().filter(|key| part.contains(*key)).count();
                    assert_eq!(hits, sequence.hits_per_chunk);
                }
            }
            assert!(share.spare.len().is_multiple_of(32) && !share.spare.is_empty());
            assert!(share.spare.iter().all(|key| !part.contains(key)));
            assert_ne!(share.hits.keys[..100], share.part[..100], "the order is another");
            for cycle in 0..40 {
                let leaving: HashSet<&BenchKey> = share.leaving(cycle).iter().collect();
                assert_eq!(leaving.len(), share.spare.len(), "none twice");
                assert!(leaving.iter().all(|key| part.contains(*key)));
            }
            all.extend(part);
        }
        assert_eq!(all.len(), 20_001, "no key is in two shares");
    }
}
