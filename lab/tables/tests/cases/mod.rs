//! The cases, by what they are about.

pub(crate) mod attack;
pub(crate) mod model;
pub(crate) mod rest;
pub(crate) mod threads;

use hairpin_core::table::Entries;

/// rte_hash compares its own copies of the keys.
pub(crate) struct NotAsked;

impl<K> Entries<K> for NotAsked {
    fn is(&self, _: u32, _: &K) -> bool {
        panic!("rte_hash keeps its own keys");
    }
}

/// The 16-byte key of a number.
pub(crate) fn key(number: u32) -> [u8; 16] {
    let word = (u128::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    word.to_le_bytes()
}
