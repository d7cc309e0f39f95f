//! The keyed hash.

use super::{AnyTable, Entries, Hash, Hasher, Key, Lookup, Method, Table, cuckoo::CuckooPlusPlus};
use crate::flow::{Endpoint, FlowKey, Protocol};
use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::BTreeSet;
use std::string::ToString;

const SECRET: [u64; 4] = [1, 2, 3, 4];

fn key() -> FlowKey {
    FlowKey {
        source: Endpoint::new(core::net::IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)), 40_000),
        destination: Endpoint::new(core::net::IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)), 80),
        protocol: Protocol::Tcp,
    }
}

#[test]
fn every_field_and_the_secret_count() {
    let hasher = Hasher::new(SECRET);
    let mut hashes = BTreeSet::from([key().hash(&hasher), key().hash(&Hasher::new([1, 2, 3, 5]))]);
    let v6 = Endpoint::new(core::net::IpAddr::from(Ipv6Addr::LOCALHOST), 40_000);
    for changed in [
        FlowKey { source: Endpoint { port: 40_001, ..key().source }, ..key() },
        FlowKey { destination: Endpoint { port: 81, ..key().destination }, ..key() },
        FlowKey { protocol: Protocol::Udp, ..key() },
        FlowKey { source: v6, ..key() },
        FlowKey { destination: v6, ..key() },
        key().reversed(),
    ] {
        hashes.insert(changed.hash(&hasher));
    }
    assert_eq!(hashes.len(), 8);
    assert_eq!(key().hash(&hasher), key().hash(&Hasher::new(SECRET)), "the same secret, the same hash");
}

struct NoEntries;

impl Entries<FlowKey> for NoEntries {
    fn is(&self, _: u32, _: &FlowKey) -> bool {
        false
    }
}

/// Keys as alike as they come (one client, consecutive ports; consecutive clients) fill a table as random ones do.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn similar_keys_spread() {
    let mut table = CuckooPlusPlus::new(200_000, Hasher::new(SECRET));
    for i in 0..200_000u32 {
        let client = Ipv4Addr::from(0x0a00_0000 + i / 1000);
        let source = Endpoint::new(core::net::IpAddr::from(client), 10_000 + (i % 1000) as u16);
        assert_eq!(table.insert(&FlowKey { source, ..key() }, i), Ok(()), "entry {i}");
    }
    assert_eq!(table.find(&key(), &NoEntries), None);
}

#[test]
fn every_method_has_a_name_and_a_table() {
    for &method in Method::ALL {
        assert_eq!(method.name().parse(), Ok(method));
        assert!(!method.description().is_empty() && !method.description().contains('\n'));
        for table in AnyTable::for_workers(method, 3, 100, Hasher::new(SECRET)) {
            let room = if method.tracks_connections() { 100 } else { 0 };
            assert_eq!((Table::<Hash>::name(&table), Table::<Hash>::capacity(&table)), (method.name(), room));
        }
    }
    let error = "rte-hash".parse::<Method>().unwrap_err().to_string();
    assert!(Method::ALL.iter().all(|method| error.contains(method.name())), "{error}");
    assert!(Method::ALL.contains(&Method::DEFAULT) && Method::DEFAULT.tracks_connections());
}
