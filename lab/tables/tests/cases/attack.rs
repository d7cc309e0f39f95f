//! Why an rte_hash is a peer and no table to expose: its hash is not keyed.

use crate::eal;
use hairpin_core::table::{Full, Table};
use hairpin_tables::rte_hash::{HashFunction, RteHash, RteHashFlags};

type Case = (&'static str, fn());

pub(crate) fn all() -> Vec<Case> {
    vec![("keys that collide under CRC whatever the secret", collisions)]
}

/// Applies the processor's CRC-32C instruction to a state and one byte.
fn crc(state: u32, byte: u8) -> u32 {
    (0..8).fold(state ^ u32::from(byte), |state, _| (state >> 1) ^ (0x82f6_3b78 & (state & 1).wrapping_neg()))
}

/// Made without the secret: the last four bytes undo what the others did to the state, whatever it was at first.
fn colliding(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    let state = key[..12].iter().fold(0, |state, byte| crc(state, *byte));
    key[12..].copy_from_slice(&state.to_le_bytes());
    key
}

/// A table for 100,000 entries is full after the 16 of one pair of buckets; under jhash the same keys do no harm.
fn collisions() {
    let keys: Vec<[u8; 16]> = (0..1000).map(colliding).collect();
    let values: Vec<u32> = (0..1000).collect();
    for secret in [0, 1, 0xdead_beef] {
        let table =
            |function| RteHash::with_hash(eal(), 100_000, RteHashFlags::None, secret, function).expect("a table");
        let mut crc = table(HashFunction::Crc);
        let inserted = crc.insert_burst(&keys, &values);
        assert!(inserted <= 16, "{inserted} entries found room");
        assert_eq!(crc.insert(&keys[inserted], 0), Err(Full));
        let mut jhash = table(HashFunction::Jhash);
        assert_eq!(jhash.insert_burst(&keys, &values), keys.len());
    }
}
