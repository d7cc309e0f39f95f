//! The input that proptest makes up: keys of every kind, and operations on them.

use super::model::Op;
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::table::Hash;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most values are small, some at the extremes.
fn value() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..50, 1 => Just(u32::MAX), 1 => Just(0x8000_0000), 1 => Just(0x7fff_ffff), 1 => any::<u32>()]
}

/// The numbers of keys in a burst: none, one, about [`BURST`](hairpin_core::table::BURST), several of them.
fn burst() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![prop::collection::vec(any::<usize>(), 0..8), prop::collection::vec(any::<usize>(), 28..100)]
}

fn op() -> impl Strategy<Value = Op> {
    let key = any::<usize>;
    prop_oneof![
        8 => (key(), value()).prop_map(|(key, value)| Op::Insert(key, value)),
        2 => (burst(), value()).prop_map(|(keys, value)| Op::InsertBurst(keys, value)),
        3 => key().prop_map(Op::Remove),
        1 => burst().prop_map(Op::RemoveBurst),
        1 => (key(), value()).prop_map(|(key, value)| Op::RemoveAbsent(key, value)),
        2 => (key(), value()).prop_map(|(which, value)| Op::Replace(which, value)),
        1 => (burst(), value()).prop_map(|(which, value)| Op::ReplaceBurst(which, value)),
        1 => (key(), value()).prop_map(|(key, value)| Op::ReplaceAbsent(key, value)),
        2 => key().prop_map(Op::Find),
        2 => (burst(), -3i8..3).prop_map(|(keys, more)| Op::FindBurst(keys, more)),
        1 => (1u32..6, 0u32..6).prop_map(|(divisor, remainder)| Op::Sweep(divisor, remainder)),
    ]
}

/// Things to do, each with the number of the view to do it with.
pub(crate) fn ops() -> impl Strategy<Value = Vec<(usize, Op)>> {
    prop::collection::vec((0usize..4, op()), 1..120)
}

/// Up to so many keys are in play.
const KEYS_MAX: usize = 200;

fn keys<K: std::fmt::Debug>(key: impl Strategy<Value = K>) -> impl Strategy<Value = Vec<K>> {
    prop::collection::vec(key, 1..KEYS_MAX)
}

/// Flows of few clients and services, IPv4 and IPv6.
pub(crate) fn flows() -> impl Strategy<Value = Vec<FlowKey>> {
    let address = (any::<bool>(), 0u16..6).prop_map(|(is_ipv4, number)| match is_ipv4 {
        true => IpAddr::from(Ipv4Addr::new(192, 0, 2, number as u8)),
        false => IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number)),
    });
    let end = || (address.clone(), 1000u16..1010).prop_map(|(address, port)| Endpoint::new(address, port));
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    keys((end(), end(), protocol).prop_map(|(source, destination, protocol)| FlowKey { source, destination, protocol }))
}

/// Keys of `N` bytes that differ in few places.
pub(crate) fn bytes<const N: usize>() -> impl Strategy<Value = Vec<[u8; N]>> {
    keys((0..N, any::<u8>(), 0..N, any::<u8>()).prop_map(|(i, a, j, b)| {
        let mut key = [0x55; N];
        key[i] = a;
        key[j] ^= b;
        key
    }))
}

/// Hashes as an attacker with the secret would choose them: few different ones, and such as differ in a few bits.
pub(crate) fn hashes() -> impl Strategy<Value = Vec<Hash>> {
    let part = prop_oneof![
        Just(0u32),
        Just(1),
        Just(u32::MAX),
        Just(0x8000_0000),
        Just(0x8000_0001),
        Just(0xffff),
        0u32..64,
        any::<u32>(),
    ];
    keys((part.clone(), part).prop_map(|(low, high)| Hash(u64::from(low) | u64::from(high) << 32)))
}
