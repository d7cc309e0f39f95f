//! Against an ordinary map.

use super::{NotAsked, key};
use crate::eal;
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::table::{Lookup, Table};
use hairpin_tables::rte_hash::{HashFunction, PackedKey, RteHash, RteHashFlags, UnprotectedSharing};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Keys that a model test uses.
const KEYS: u32 = 1500;

/// Steps of a model test; `HAIRPIN_STEPS` sets more.
fn steps() -> u32 {
    std::env::var("HAIRPIN_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(4000)
}

/// Every kind of key, owned and by a handle.
pub(crate) fn all(flags: RteHashFlags) {
    let bytes = |number: u32, length: usize| key(number).into_iter().cycle().take(length).collect::<Vec<u8>>();
    owned::<[u8; 16]>(flags, HashFunction::Crc, key);
    owned::<[u8; 13]>(flags, HashFunction::Jhash, |number| bytes(number, 13).try_into().expect("13 bytes"));
    owned::<[u8; 37]>(flags, HashFunction::Crc, |number| bytes(number, 37).try_into().expect("37 bytes"));
    owned::<FlowKey>(flags, HashFunction::Jhash, flow);
    let table = RteHash::<[u8; 16]>::new(eal(), 2 * KEYS as usize, flags, 7).expect("a table");
    let shared = Arc::new(table.share(UnprotectedSharing::EvenIfUnsafe).expect("shared by one thread"));
    against_map(shared.handle().expect("a handle"), key);
    let table = RteHash::<[u8; 16]>::new(eal(), 2 * KEYS as usize, flags, 8).expect("a table");
    against_map(Arc::new(table.share(UnprotectedSharing::EvenIfUnsafe).expect("shared by one thread")), key);
}

/// Flows of both families that differ in any one part, the direction included.
fn flow(number: u32) -> FlowKey {
    let host = number / 8;
    let address = |last: u32| match number & 1 {
        0 => IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + last)),
        _ => IpAddr::V6(Ipv6Addr::from((0x2001_0db8 << 96) + u128::from(last))),
    };
    let protocol = if number & 2 == 0 { Protocol::Tcp } else { Protocol::Udp };
    let source = Endpoint::new(address(host + 1), 1000);
    let flow = FlowKey { source, destination: Endpoint::new(address(0), 80), protocol };
    if number & 4 == 0 { flow } else { flow.reversed() }
}

fn owned<K: PackedKey>(flags: RteHashFlags, function: HashFunction, key: impl Fn(u32) -> K) {
    let table = RteHash::<K>::with_hash(eal(), 2 * KEYS as usize, flags, 0x1234_5678, function).expect("a table");
    assert_eq!(table.flags(), flags);
    against_map(table, key);
}

fn against_map<K: PackedKey>(mut table: impl Table<K>, key: impl Fn(u32) -> K) {
    let mut random = fastrand::Rng::with_seed(4);
    let mut map: HashMap<u32, u32> = HashMap::new();
    for step in 0..steps() {
        let (number, value) = (random.u32(..KEYS), random.u32(..));
        let there = map.get(&number).copied();
        assert_eq!(table.find(&key(number), &NotAsked), there);
        match random.u8(..8) {
            0..3 if there.is_none() => {
                assert_eq!(table.insert(&key(number), value), Ok(()));
                map.insert(number, value);
            }
            0..3 => {
                let (old, wrong) = (there.unwrap_or(0), there.unwrap_or(0) ^ 1);
                assert!(!table.remove(&key(number), wrong), "the value is another");
                assert!(table.remove(&key(number), old));
                map.remove(&number);
            }
            3 => {
                assert_eq!(table.replace(&key(number), there.unwrap_or(9), value), there.is_some());
                there.map(|_| map.insert(number, value));
            }
            4 => insert_burst(&mut table, &mut map, &mut random, &key),
            5 => remove_burst(&mut table, &mut map, &mut random, &key),
            _ => find_burst(&table, &map, &mut random, &key),
        }
        assert_eq!(table.len(), map.len());
        if step % 512 == 0 {
            let mut expected: Vec<u32> = map.values().copied().collect();
            let (mut seen, mut from) = (Vec::new(), Some(0));
            while let Some(at) = from {
                from = table.scan(at, &mut |value| seen.push(value));
            }
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected);
        }
    }
}

/// Up to 80 different numbers: bursts of several pieces.
fn numbers(random: &mut fastrand::Rng) -> Vec<u32> {
    let first = random.u32(..KEYS);
    (0..random.u32(..80)).map(|i| (first + 7 * i) % KEYS).collect()
}

fn insert_burst<K: PackedKey>(
    table: &mut impl Table<K>,
    map: &mut HashMap<u32, u32>,
    random: &mut fastrand::Rng,
    key: &impl Fn(u32) -> K,
) {
    let new: Vec<u32> = numbers(random).into_iter().filter(|number| !map.contains_key(number)).collect();
    let values: Vec<u32> = new.iter().map(|_| random.u32(..)).collect();
    let keys: Vec<K> = new.iter().map(|&number| key(number)).collect();
    assert_eq!(table.insert_burst(&keys, &values), new.len());
    map.extend(new.into_iter().zip(values));
}

/// Some are there, some not, some have other values.
fn remove_burst<K: PackedKey>(
    table: &mut impl Table<K>,
    map: &mut HashMap<u32, u32>,
    random: &mut fastrand::Rng,
    key: &impl Fn(u32) -> K,
) {
    let chosen = numbers(random);
    let keys: Vec<K> = chosen.iter().map(|&number| key(number)).collect();
    let right = |number: &u32| map.get(number).copied().unwrap_or(3).wrapping_add(number & 1);
    let values: Vec<u32> = chosen.iter().map(right).collect();
    let before = map.len();
    map.retain(|number, _| number & 1 != 0 || !chosen.contains(number));
    assert_eq!(table.remove_burst(&keys, &values), before - map.len());
}

fn find_burst<K: PackedKey>(
    table: &impl Table<K>,
    map: &HashMap<u32, u32>,
    random: &mut fastrand::Rng,
    key: &impl Fn(u32) -> K,
) {
    let chosen = numbers(random);
    let keys: Vec<K> = chosen.iter().map(|&number| key(number)).collect();
    let mut out = vec![Some(u32::MAX); keys.len()];
    table.find_burst(&keys, &NotAsked, &mut out);
    let expected: Vec<Option<u32>> = chosen.iter().map(|number| map.get(number).copied()).collect();
    assert_eq!(out, expected);
}

/// A capacity that is no power of two is reached; removed entries make room, by whichever way they are removed.
pub(crate) fn fill(flags: RteHashFlags) {
    const CAPACITY: u32 = 3000;
    let mut table = RteHash::<[u8; 16]>::new(eal(), CAPACITY as usize, flags, 99).expect("a table");
    assert_eq!((Table::capacity(&table), table.len()), (CAPACITY as usize, 0));
    let expected_bytes = CAPACITY as usize * (8 + 16 + 4);
    assert!(table.bytes() > expected_bytes, "{} bytes", table.bytes());
    let mut inserted = 0;
    while table.insert(&key(inserted), inserted).is_ok() {
        inserted += 1;
        assert!(inserted <= 4096, "more than there are slots");
    }
    // Several writers have spare positions; only the 4096 slots limit them.
    let expected = if flags.protects_writers() { 3800..=4096 } else { CAPACITY..=CAPACITY };
    assert!(expected.contains(&inserted), "full at {inserted}");
    assert_eq!(table.len(), inserted as usize);
    // If the slots are the limit, an entry that found room once need not find it again: leave some free.
    let spare: Vec<[u8; 16]> = (inserted - 300..inserted).map(key).collect();
    inserted -= table.remove_keys(&spare) as u32;
    for round in 0..3 {
        let half: Vec<[u8; 16]> = (0..inserted / 2).map(key).collect();
        let values: Vec<u32> = (0..inserted / 2).collect();
        let removed = if round == 0 { table.remove_keys(&half) } else { table.remove_burst(&half, &values) };
        assert_eq!(removed, half.len());
        assert_eq!(table.remove_keys(&half[..5]), 0, "they are gone");
        assert_eq!(table.insert_burst(&half, &values), half.len());
        for number in 0..inserted {
            assert_eq!(table.find(&key(number), &NotAsked), Some(number));
        }
    }
}
