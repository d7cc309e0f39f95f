//! The limit by memory: the least that a lookup reads, and nothing else.
//!
//! `limit/one-line`: a hash, and a random line of an array as large as an index of 8 bytes per slot; as of a key that is
//! absent. `limit/two-lines`: also the entry to which a number in that line leads; as of a key that is there. No tag is
//! compared, no key confirmed. A table that stores full keys outside its index cannot be faster in bursts; what it takes
//! beyond that is what it could still save.

use super::keys::BenchKey;
use super::own::hasher;
use super::subject::{BURST, Hands, LookupSum, TableSharing, TableSize, TableSubject};
use anyhow::{Context, Result};
use hairpin_core::table::{Hasher, Key as _};
use hairpin_tables::store::Store;

/// Slots whose 8 bytes make a line.
const SLOTS: usize = 8;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadDepth {
    /// A line of the index.
    Line,
    /// That and the entry it leads to.
    Entry,
}

/// Lines that lead to random entries.
pub(super) struct Limit {
    depth: ReadDepth,
    hasher: Hasher,
    /// A line each; the value is the position of an entry.
    lines: Store<[u64; 7], u64>,
    entries: Store<BenchKey, u64>,
}

impl Limit {
    /// As much memory as an index of so many slots with its entries takes.
    ///
    /// # Errors
    /// When a store has less room than was asked for.
    pub(super) fn new(size: &TableSize, depth: ReadDepth) -> Result<Limit> {
        // One entry at least, for lines to lead to.
        let (count, reached) = (size.slots / SLOTS, size.entries.max(1));
        let (mut lines, mut entries) = (Store::new(count), Store::new(reached));
        for i in 0..reached {
            entries.insert([0; 16], i as u64).context("no room for entries")?;
        }
        for _ in 0..count {
            lines.insert([0; 7], fastrand::u64(..reached as u64)).context("no room for lines")?;
        }
        Ok(Limit { depth, hasher: hasher(), lines, entries })
    }

    #[inline]
    fn line(&self, key: &BenchKey) -> u32 {
        (((key.hash(&self.hasher).0 >> 32) * self.lines.len() as u64) >> 32) as u32
    }
}

impl TableSubject for Limit {
    fn sharing(&self) -> TableSharing {
        TableSharing::Fixed
    }

    fn hands(&self, _: usize, _: usize) -> Result<Box<dyn Hands + '_>> {
        Ok(Box::new(LimitHands(self)))
    }

    fn bytes(&self) -> usize {
        self.lines.bytes() + self.entries.bytes()
    }

    fn slots(&self) -> Option<usize> {
        None
    }
}

struct LimitHands<'a>(&'a Limit);

impl Hands for LimitHands<'_> {
    fn find_each(&mut self, keys: &[BenchKey]) -> LookupSum {
        let Limit { depth, lines, entries, .. } = self.0;
        let mut found = LookupSum::default();
        for key in keys {
            let next = lines.value(self.0.line(key));
            found.add(Some(if *depth == ReadDepth::Entry { entries.value(next as u32) } else { next }));
        }
        found
    }

    fn find_bursts(&mut self, keys: &[BenchKey]) -> LookupSum {
        let Limit { depth, lines, entries, .. } = self.0;
        let mut found = LookupSum::default();
        for keys in keys.chunks(BURST) {
            let mut at = [0; BURST];
            for (at, key) in at.iter_mut().zip(keys) {
                *at = self.0.line(key);
                lines.prefetch(*at);
            }
            let at = &mut at[..keys.len()];
            if *depth == ReadDepth::Line {
                at.iter().for_each(|&at| found.add(Some(lines.value(at))));
                continue;
            }
            for at in &mut *at {
                *at = lines.value(*at) as u32;
                entries.prefetch(*at);
            }
            at.iter().for_each(|&at| found.add(Some(entries.value(at))));
        }
        found
    }

    fn insert(&mut self, _: &[BenchKey]) -> usize {
        0
    }

    fn remove(&mut self, _: &[BenchKey]) -> usize {
        0
    }
}
