//! A small seeded generator (splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
//! and its finalizer as a hash with no secret.

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Splitmix64. Not for secrets.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        finish(self.0)
    }

    /// A number below `limit`; 0 if `limit` is. The bias is at most limit / 2^64.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// `word` mixed into `state`: the same on every machine and in every version, because balancers have to agree.
#[inline]
pub(super) fn mix(state: u64, word: u64) -> u64 {
    finish((state ^ word).wrapping_add(GOLDEN))
}

#[inline]
fn finish(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
