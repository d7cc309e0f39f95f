//! Operations on all own connection tables at once, each beside an ordinary map.
//!
//! The input begins with [`PARAMETERS`] bytes: what the tables are made for (1 to 128 entries); how many workers share
//! (bits 0 and 1) and whether keys are hashes of the input's own choice (bit 2) or flows of IPv6 (bit 3) or of IPv4;
//! then 16 bytes that the hashes are made from. After that come operations: one byte says which (the lower half) and whose
//! (the upper half), one the key or entry, one the value; those of bursts take a fourth: how many keys.

#[path = "../../../lab/tables/tests/tables/model.rs"]
mod model;

use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::table::{Hash, Hasher, Key};
use hairpin_tables::{OwnMethod, OwnTable};
use model::{ModelTest, Op};
use std::fmt::Debug;

/// Bytes before the first operation.
pub const PARAMETERS: usize = 18;

/// Keys in play.
const KEYS: u8 = 160;

/// Halves of hashes at which something may break: where scaling, tags and their combinations turn over.
const HALVES: [u32; 16] = [
    0,
    1,
    2,
    0xffff,
    0x1_0000,
    0x7fff,
    0x8000,
    0x8001,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_ffff,
    0xffff_0000,
    0xffff_8000,
    0xffff_fffe,
    u32::MAX,
    0x5555_5555,
];

/// The number `number` of the hashes made of `chosen`: in each group of 16, tags differ from the groups before.
fn hash(chosen: &[u8; 16], number: u8) -> Hash {
    let halves = usize::from(chosen[usize::from(number % 16)]);
    let (low, high) = (HALVES[halves % 16] ^ u32::from(number / 16), HALVES[halves / 16]);
    Hash(u64::from(low) | u64::from(high) << 32)
}

fn flow(is_ipv4: bool, number: u8) -> FlowKey {
    let address = match is_ipv4 {
        true => Address::from_ipv4([192, 0, 2, number % 8]),
        false => Address([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, number % 8]),
    };
    let end = |port| Endpoint { address, port };
    let protocol = if number.is_multiple_of(2) { Protocol::Tcp } else { Protocol::Udp };
    FlowKey { source: end(1000 + u16::from(number / 8)), destination: end(443), protocol }
}

/// Values are small, or at the other end of what there is.
fn value(byte: u8) -> u32 {
    if byte < 128 { u32::from(byte) } else { u32::MAX - u32::from(255 - byte) }
}

/// The next operation and whose it is.
fn op(input: &mut &[u8]) -> Option<(usize, Op)> {
    let (&[kind, key, byte], rest) = input.split_first_chunk()?;
    *input = rest;
    let (view, key, value) = (usize::from(kind >> 4), usize::from(key), value(byte));
    let mut keys = |stride: usize| {
        let (&count, rest) = input.split_first().unwrap_or((&40, &[]));
        *input = rest;
        (0..usize::from(count % 100)).map(|i| key + i * stride).collect::<Vec<usize>>()
    };
    let op = match kind & 15 {
        0..3 => Op::Insert(key, value),
        3 | 4 => Op::InsertBurst(keys(1), value),
        5 | 6 => Op::Remove(key),
        7 => Op::RemoveBurst(keys(3)),
        8 => Op::RemoveAbsent(key, value),
        9 => Op::Replace(key, value),
        10 => Op::ReplaceBurst(keys(5), value),
        11 => Op::ReplaceAbsent(key, value),
        12 => Op::Find(key),
        13 | 14 => Op::FindBurst(keys(7), byte as i8 % 4),
        _ => Op::Sweep(u32::from(byte), u32::from(byte / 2)),
    };
    Some((view, op))
}

/// Does `ops` to a table of every method that has one; whether that was worth it.
fn with_all<K: Key + Ord + Debug>(views: usize, capacity: usize, keys: &[K], ops: &[(usize, Op)]) -> bool {
    let mut reached = ops.len() >= 8;
    for &method in OwnMethod::ALL.iter().filter(|method| method.tracks_connections()) {
        let views = if method.is_shared() { views } else { 1 };
        let value_max = ((1u64 << 32) / views as u64 - 1) as u32;
        let tables = OwnTable::for_workers(method, views, capacity.div_ceil(views), Hasher::new([7, 2, 3, 4]));
        // A fuzzer finds keys that fall into one place, as an enemy with the secret does.
        let mut model_test = ModelTest::new(tables, keys.to_vec(), value_max, true);
        for (view, op) in ops {
            model_test.apply(*view, op);
        }
        model_test.check();
        reached &= model_test.refused() < ops.len() / 2;
    }
    reached
}

/// The target: every table agrees with its map after every operation, and its insides are in order.
pub fn tables(input: &[u8]) -> bool {
    let Some((parameters, mut rest)) = input.split_first_chunk::<PARAMETERS>() else { return false };
    let [capacity, kind, chosen @ ..] = parameters;
    let capacity = usize::from(capacity % 128) + 1;
    let views = usize::from(kind % 4) + 1;
    // More would take long and show nothing new.
    let ops: Vec<(usize, Op)> = std::iter::from_fn(|| op(&mut rest)).take(400).collect();
    if kind & 4 != 0 {
        let keys: Vec<Hash> = (0..KEYS).map(|number| hash(chosen, number)).collect();
        with_all(views, capacity, &keys, &ops)
    } else {
        let keys: Vec<FlowKey> = (0..KEYS).map(|number| flow(kind & 8 == 0, number)).collect();
        with_all(views, capacity, &keys, &ops)
    }
}
