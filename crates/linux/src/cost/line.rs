//! A table of rules that take one cache line each, as a BPF array (`one_line` of `crates/linux/bpf/reference.c`): what a lookup in
//! it could cost at best, beside the kernel's hash.

use crate::abi::{Bytes, FlowV4, RuleV4};
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::engine::Rule;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// `struct line` of reference.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Line {
    key: FlowV4,
    source: [u8; 4],
    destination: [u8; 4],
    source_port: [u8; 2],
    destination_port: [u8; 2],
    rest: [u32; 9],
}

// SAFETY: `repr(C)`, integers and arrays of them, 64 bytes without padding.
unsafe impl Bytes for Line {}

const _: () = assert!(size_of::<Line>() == 64);

/// `PROBES` of reference.c.
const PROBES: u64 = 64;

/// Places for so many rules: half of them stay free, at least.
pub(super) fn places(rules: usize) -> u32 {
    (2 * rules).next_power_of_two().max(64) as u32
}

/// The hash of a key in two words.
fn hash(key: &FlowV4) -> u64 {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&key.bytes()[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let first = (word(0) ^ 0x2545_f491_4f6c_dd1d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (first ^ first >> 32 ^ word(8)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    hash ^ hash >> 32
}

/// Writes the rules to the table of so many places.
pub(super) fn fill(table: &MapHandle, rules: &[Rule], places: u32) -> Result<()> {
    ensure!(places.is_power_of_two(), "{places} is no power of two");
    let mut taken = vec![false; places as usize];
    for rule in rules {
        let (key, value) = (FlowV4::of(&rule.key), RuleV4::of(rule, 0));
        let hash = hash(&key);
        let tried = (0..PROBES).map(|probe| (hash.wrapping_add(probe) & u64::from(places - 1)) as u32);
        let Some(place) = tried.into_iter().find(|&place| !taken[place as usize]) else {
            bail!("no place for a rule within {PROBES} probes");
        };
        taken[place as usize] = true;
        let line = Line {
            key,
            source: value.source,
            destination: value.destination,
            source_port: value.head.source_port,
            destination_port: value.head.destination_port,
            rest: [0; 9],
        };
        table.update(place.bytes(), line.bytes(), MapFlags::ANY).context("cannot write a line")?;
    }
    Ok(())
}
