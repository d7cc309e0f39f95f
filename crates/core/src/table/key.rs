//! Keys and their keyed hash.

use crate::flow::FlowKey;
use ahash::RandomState;
use core::hash::{BuildHasher, Hasher as _};

/// The keyed hash of a key. Tables accept any value, also one chosen by an enemy: that costs room, never correctness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub u64);

/// A key of a table.
pub trait Key: Copy + PartialEq {
    /// The hash under the secret of `hasher`; equal keys have equal hashes.
    fn hash(&self, hasher: &Hasher) -> Hash;
}

/// Hashes keys under a secret, so that no outsider can choose which of them collide.
///
/// This is ahash without AES instructions (they are used only where the compiler may take them for granted): folded
/// multiplications, all of whose inputs are masked by the secret. It takes a fifth to a seventh of the time of
/// SipHash-1-3, and is not as strong: flows whose IPv6 addresses are each other's complement, in all or in the lower 64
/// bits, collide under one secret in 2^27 (measured: 14 and 9 of 2^30), other pairs under one in about 2^64. Only pairs
/// are known to behave so (four at once: one secret in 2^49, by extrapolation), and a table bears more than a dozen flows
/// of one hash. So that is of no use for filling a bucket. Flows of IPv4 have both addresses in one word: no two to one
/// service are each other's complement in all of it. `lab/tables/tests/tables/attack.rs` tries what an attacker could.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: RandomState,
}

impl Hasher {
    /// A hasher under `secret`, which has to be random and stays on this machine.
    pub fn new(secret: [u64; 4]) -> Hasher {
        let [k0, k1, k2, k3] = secret;
        Hasher { state: RandomState::with_seeds(k0, k1, k2, k3) }
    }
}

impl Hasher {
    /// The hash of a flow of IPv4, in words ([`FlowKey::ipv4_words`]).
    #[inline(always)]
    pub(crate) fn of_ipv4(&self, [addresses, rest]: [u64; 2]) -> Hash {
        let mut hasher = self.state.build_hasher();
        hasher.write_u128(u128::from(addresses) | u128::from(rest) << 64);
        Hash(hasher.finish())
    }
}

/// A flow is hashed by its two addresses and one word with ports and protocol, never by padding. Two addresses of IPv4 are
/// one word, so that such a flow takes two multiplications instead of five.
impl Key for FlowKey {
    #[inline]
    fn hash(&self, hasher: &Hasher) -> Hash {
        if let Some(words) = self.ipv4_words() {
            return hasher.of_ipv4(words);
        }
        let mut hasher = hasher.state.build_hasher();
        for end in [&self.source, &self.destination] {
            let [low, high] = end.address.words();
            hasher.write_u128(u128::from(low) | u128::from(high) << 64);
        }
        hasher.write_u64(self.ports_word());
        Hash(hasher.finish())
    }
}

/// A 5-tuple as it lies in packets: 13 bytes (IPv4), 37 bytes (IPv6), and what benchmarks use besides.
impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn hash(&self, hasher: &Hasher) -> Hash {
        let mut hasher = hasher.state.build_hasher();
        let (words, rest) = self.as_chunks::<16>();
        for word in words {
            hasher.write_u128(u128::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            hasher.write(rest);
        }
        Hash(hasher.finish())
    }
}

/// A hash that was made elsewhere, or by a test that wants collisions.
impl Key for Hash {
    #[inline]
    fn hash(&self, _: &Hasher) -> Hash {
        *self
    }
}
