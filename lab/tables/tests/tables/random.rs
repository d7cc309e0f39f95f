//! Random numbers from a seed, for what need not shrink.

use crate::model::Op;

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A secret for hashing.
    pub(crate) fn secret(&mut self) -> [u64; 4] {
        core::array::from_fn(|_| self.next())
    }

    /// A key of 16 bytes.
    pub(crate) fn key(&mut self) -> [u8; 16] {
        (u128::from(self.next()) << 64 | u128::from(self.next())).to_le_bytes()
    }

    fn list(&mut self) -> Vec<usize> {
        (0..self.below(80)).map(|_| self.next() as usize).collect()
    }

    /// Something to do that needs no other thread to hold still.
    pub(crate) fn op(&mut self) -> Op {
        let (key, value) = (self.next() as usize, self.next() as u32);
        match self.below(14) {
            0..4 => Op::Insert(key, value),
            4 => Op::InsertBurst(self.list(), value),
            5..7 => Op::Remove(key),
            7 => Op::RemoveBurst(self.list()),
            8 => Op::RemoveAbsent(key, value),
            9 => Op::Replace(key, value),
            10 => Op::ReplaceAbsent(key, value),
            11 => Op::Find(key),
            _ => Op::FindBurst(self.list(), 0),
        }
    }
}
