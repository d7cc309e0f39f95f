//! Methods without entries: how evenly they spread flows, and how many flows move when backends change.

use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::table::stateless::{Maglev, Stateless};
use hairpin_core::table::{Entries, Hasher, Lookup};
use std::net::{IpAddr, Ipv4Addr};

struct Nothing;

impl Entries<FlowKey> for Nothing {
    fn is(&self, _: u32, _: &FlowKey) -> bool {
        panic!("there is nothing to ask about")
    }
}

const SECRET: [u64; 4] = [1, 2, 3, 4];
const FLOWS: usize = 40_000;

fn end(address: u32, port: u16) -> Endpoint {
    Endpoint::new(IpAddr::from(Ipv4Addr::from(address)), port)
}

/// As alike as clients' flows are: neighbouring addresses and ports.
fn flow(number: usize) -> FlowKey {
    let client = end(0x0a00_0000 + number as u32 / 64, 40_000 + number as u16 % 64);
    FlowKey { source: client, destination: end(0xc000_0201, 443), protocol: Protocol::Tcp }
}

/// The backend of each flow, singly and in bursts.
fn chosen(lookup: &impl Lookup<FlowKey>) -> Vec<u32> {
    let flows: Vec<FlowKey> = (0..FLOWS).map(flow).collect();
    let mut out = vec![None; FLOWS];
    lookup.find_burst(&flows, &Nothing, &mut out);
    for (flow, found) in flows.iter().zip(&out) {
        assert_eq!(lookup.find(flow, &Nothing), *found);
    }
    out.into_iter().map(|found| found.expect("every flow has a backend")).collect()
}

/// Each backend's share of the flows in parts of what it should have.
fn shares(chosen: &[u32], weights: &[u16]) -> Vec<f64> {
    let total: u32 = weights.iter().copied().map(u32::from).sum();
    let share = |(index, &weight): (usize, &u16)| {
        let count = chosen.iter().filter(|&&backend| backend as usize == index).count();
        count as f64 / FLOWS as f64 * f64::from(total) / f64::from(weight)
    };
    weights.iter().enumerate().map(share).collect()
}

fn moved(before: &[u32], after: &[u32]) -> f64 {
    let moved = before.iter().zip(after).filter(|(before, after)| before != after).count();
    moved as f64 / FLOWS as f64
}

fn maglev(weights: &[u16]) -> Maglev {
    let backends: Vec<(Endpoint, u16)> = (0u32..).zip(weights).map(|(i, &w)| (end(0x0a01_0000 + i, 80), w)).collect();
    Maglev::new(&backends, Hasher::new(SECRET)).expect("there are weights")
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn stateless_spreads_evenly_and_moves_half() {
    let stateless = |backends| Stateless::new(backends, Hasher::new(SECRET));
    let ten = chosen(&stateless(10));
    let shares = shares(&ten, &[1; 10]);
    assert!(shares.iter().all(|share| (0.8..1.2).contains(share)), "{shares:?}");
    let share = moved(&ten, &chosen(&stateless(11)));
    assert!((0.45..0.55).contains(&share), "{share}");
    assert_eq!(ten, chosen(&stateless(10)), "the same backends, the same answers");
    assert_ne!(ten, chosen(&Stateless::new(10, Hasher::new([1, 2, 3, 5]))), "the secret counts");
    assert!(chosen(&stateless(1)).iter().all(|backend| *backend == 0));
    assert_eq!(stateless(0).find(&flow(1), &Nothing), None);
    let many = chosen(&stateless(u32::MAX));
    assert!(many.iter().any(|backend| *backend > 1 << 31), "the highest number does not wrap");
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn maglev_respects_weights_and_moves_few() {
    let weights = [1, 1, 1, 1, 1, 1, 1, 1, 2, 5];
    let ten = chosen(&maglev(&weights));
    let shares = shares(&ten, &weights);
    assert!(shares.iter().all(|share| (0.8..1.2).contains(share)), "{shares:?}");

    // One of fifteen parts goes away: it has to move, and hardly anything else does.
    let less = chosen(&maglev(&[1, 1, 1, 0, 1, 1, 1, 1, 2, 5]));
    assert!(less.iter().all(|backend| *backend != 3));
    let share = moved(&ten, &less);
    assert!((0.05..0.12).contains(&share), "{share}");
    assert!(Maglev::new(&[(end(1, 1), 0)], Hasher::new(SECRET)).is_none());
    assert!(maglev(&weights).bytes() >= 100 * weights.len());
}
