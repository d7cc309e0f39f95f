//! Which flows there are: their ends, and which of them a lane sends.
//!
//! A *lane* is one of a generator's cores together with the one of the device's that its packets go to: flows are dealt to
//! lanes as the device would steer them, by a hash of the client's end, so that no flow is on two.

use super::template::{IPV6_PREFIX, PacketEnds};
use crate::testbed::Masks;
use anyhow::{Result, ensure};
use fastrand::Rng;
use hairpin_core::flow::{Address, Endpoint, Steering};

/// Flows at most.
pub const FLOWS_MAX: u64 = 1 << 26;
/// Clients' addresses: 10.0.0.0/8, and 2001:db8::a00:0/104.
pub const CLIENTS: u32 = 0x0a00_0000;
/// The service's address: 192.0.2.1, 2001:db8::c000:201.
pub const SERVICE: u32 = 0xc000_0201;
/// The service's port.
pub const SERVICE_PORT: u16 = 80;
/// The first backend's address: 198.18.0.1 (RFC 2544), 2001:db8::c612:1; the next one's is one higher.
pub const BACKENDS: u32 = 0xc612_0001;
/// The backends' port.
pub const BACKEND_PORT: u16 = 8080;

/// Addresses that clients are spread over before a second port is used.
const ADDRESSES: u64 = 65_521;
/// The first of their ports.
const PORT_FIRST: u64 = 1024;

/// One of the lanes.
#[derive(Clone, Copy, Debug)]
pub struct FlowLane {
    /// Its number.
    pub number: u16,
    /// How flows are dealt; as many workers as lanes.
    pub steering: Steering,
}

impl FlowLane {
    /// The only lane there is.
    pub fn only() -> FlowLane {
        FlowLane { number: 0, steering: Steering::by_hash([0; 2], 1) }
    }

    /// Whether flows from this end are its own.
    pub fn has(&self, ends: &PacketEnds, ipv6: bool) -> bool {
        self.steering.workers <= 1
            || self.steering.worker(&endpoint(ends.source, ends.source_port, ipv6)) == self.number
    }
}

/// An end of either family, by the last four bytes of its address.
pub fn endpoint(address: u32, port: u16, ipv6: bool) -> Endpoint {
    let address = if ipv6 {
        let mut bytes = [0; 16];
        bytes[..12].copy_from_slice(&IPV6_PREFIX);
        bytes[12..].copy_from_slice(&address.to_be_bytes());
        Address(bytes)
    } else {
        Address::from_ipv4(address.to_be_bytes())
    };
    Endpoint { address, port }
}

/// The ends of the `number`th client's flow to the service; different for every number.
pub fn client(number: u32) -> PacketEnds {
    let number = u64::from(number);
    PacketEnds {
        source: CLIENTS + 1 + (number % ADDRESSES) as u32,
        destination: SERVICE,
        // 2^32 / 65,521 is 65,552: a few of the last numbers share a port.
        source_port: (PORT_FIRST + number / ADDRESSES % (65_536 - PORT_FIRST)) as u16,
        destination_port: SERVICE_PORT,
    }
}

/// Flows that are there all the time.
#[derive(Clone, Debug, Default)]
pub struct FlowSet {
    /// Their ends.
    pub ends: Vec<PacketEnds>,
    /// The first one's number; the next one's is one higher.
    pub first: u32,
}

impl FlowSet {
    /// The lane's share of `count` clients' flows from the `skip`th client on, numbered from `first` on.
    pub fn clients(skip: u32, count: u32, ipv6: bool, lane: &FlowLane, first: u32) -> FlowSet {
        let all = (skip..skip.saturating_add(count)).map(client);
        FlowSet { ends: all.filter(|ends| lane.has(ends, ipv6)).collect(), first }
    }

    /// The lane's share of all the flows that `masks` leave, numbered from `first` on.
    ///
    /// # Errors
    /// There are more than [`FLOWS_MAX`].
    pub fn masked(masks: &Masks, ipv6: bool, lane: &FlowLane, first: u32) -> Result<FlowSet> {
        let bits = mask_bits(masks);
        ensure!(
            1 << bits.min(63) <= FLOWS_MAX,
            "the masks leave {bits} bits: 26 make 67,108,864 flows, which is the most"
        );
        let all = (0..1u64 << bits).map(|number| unmasked(masks, number));
        Ok(FlowSet { ends: all.filter(|ends| lane.has(ends, ipv6)).collect(), first })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

/// The meaningful bits of the masks: source addresses stay in 10.0.0.0/8.
fn parts(masks: &Masks) -> [u64; 4] {
    [
        u64::from(u32::from(masks.source) & 0x00ff_ffff),
        u64::from(u32::from(masks.destination) & 0x00ff_ffff),
        u64::from(masks.source_port),
        u64::from(masks.destination_port),
    ]
}

/// Bits that the masks leave: there are two to the power of that many flows.
pub fn mask_bits(masks: &Masks) -> u32 {
    parts(masks).iter().map(|part| part.count_ones()).sum()
}

/// The bits of recorded ends that the masks leave, put together.
pub fn masked(masks: &Masks, ends: &PacketEnds) -> u64 {
    let fields = [ends.source.into(), ends.destination.into(), ends.source_port.into(), ends.destination_port.into()];
    parts(masks).iter().zip(fields).fold(0, |number, (&mask, field)| number << mask.count_ones() | extract(field, mask))
}

/// The ends of the flow whose bits are `number`: each field's masked bits over its fixed part. Of an address without bits
/// that is a client's or the service's own, of a port without bits the service's for the destination.
fn unmasked(masks: &Masks, mut number: u64) -> PacketEnds {
    let parts = parts(masks);
    let mut fields = [0; 4];
    for (field, &mask) in fields.iter_mut().zip(&parts).rev() {
        *field = deposit(number, mask);
        number >>= mask.count_ones();
    }
    let [source, destination, source_port, destination_port] = fields;
    PacketEnds {
        source: CLIENTS | source as u32,
        destination: if parts[1] == 0 { SERVICE } else { 0x0b00_0000 | destination as u32 },
        source_port: source_port as u16,
        destination_port: if parts[3] == 0 { SERVICE_PORT } else { destination_port as u16 },
    }
}

/// The bits of `value` under `mask`, put together.
fn extract(value: u64, mask: u64) -> u64 {
    bits(mask).enumerate().fold(0, |out, (place, bit)| out | (value >> bit & 1) << place)
}

/// The reverse: the lowest bits of `value` at the places of `mask`.
fn deposit(value: u64, mask: u64) -> u64 {
    bits(mask).enumerate().fold(0, |out, (place, bit)| out | (value >> place & 1) << bit)
}

fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| mask >> bit & 1 == 1)
}

/// Goes over `0..count` in rounds, each number once a round: the first round in order, every other in an order of its own
/// (steps of a length that has no factor in common with `count`), so that nothing later profits from lying in memory in
/// the order in which it was made.
#[derive(Clone, Debug)]
pub struct Rounds {
    count: usize,
    at: usize,
    step: usize,
    left: usize,
    round: u32,
    random: Rng,
}

impl Rounds {
    /// Over `0..count`; `count` is not 0.
    pub fn new(count: usize, random: Rng) -> Rounds {
        Rounds { count, at: 0, step: 1 % count.max(1), left: count, round: 0, random }
    }

    /// Which round it is, from 0.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The round after this one, or one more, begins.
    pub fn turn(&mut self) {
        self.round = self.round.saturating_add(1);
        self.left = self.count;
        self.at = self.random.usize(..self.count.max(1));
        self.step = loop {
            let step = self.random.usize(..self.count.max(1)).max(1) % self.count.max(1);
            if self.count <= 2 || common_factor(step, self.count) == 1 {
                break step;
            }
        };
    }

    /// The next number.
    #[inline]
    pub fn step(&mut self) -> usize {
        if self.left == 0 {
            self.turn();
        }
        self.left -= 1;
        let at = self.at;
        self.at += self.step;
        if self.at >= self.count {
            self.at -= self.count;
        }
        at
    }
}

fn common_factor(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    #[test]
    fn every_client_has_ends_of_its_own() {
        let all: BTreeSet<PacketEnds> = (0..200_000).map(client).collect();
        assert_eq!(all.len(), 200_000);
    }

    #[test]
    fn masks_leave_the_flows_they_say() {
        for (source, port, flows) in [(0x0000_00ff, 0x000f, 4096), (0x0010_0101, 0, 8), (0, 0, 1), (0xff00_0000, 3, 4)]
        {
            let masks = Masks { source: Ipv4Addr::from(source), source_port: port, ..Masks::default() };
            let set = FlowSet::masked(&masks, false, &FlowLane::only(), 0).unwrap();
            let different: BTreeSet<PacketEnds> = set.ends.iter().copied().collect();
            assert_eq!((set.len(), different.len()), (flows, flows));
            for (number, ends) in set.ends.iter().enumerate() {
                assert_eq!(ends.source & !(source & 0x00ff_ffff), CLIENTS);
                assert_eq!(ends.source_port & !port, 0);
                assert_eq!((ends.destination, ends.destination_port), (SERVICE, SERVICE_PORT));
                assert_eq!(masked(&masks, ends), number as u64);
            }
        }
        let all = Masks::default();
        assert!(FlowSet::masked(&all, false, &FlowLane::only(), 0).is_err());
    }

    #[test]
    fn what_is_masked_out_makes_no_difference() {
        let masks = Masks { source: Ipv4Addr::new(0, 0, 15, 240), source_port: 0xf0, ..Masks::default() };
        let ends = PacketEnds { source: 0x5566_7788, destination: 1, source_port: 0x1234, destination_port: 5 };
        let other = PacketEnds { source: 0x0a0f_f78a, destination: 9, source_port: 0x9a3f, destination_port: 7 };
        assert_eq!(masked(&masks, &ends), masked(&masks, &other));
        assert_ne!(masked(&masks, &ends), masked(&masks, &PacketEnds { source: 0x5566_7798, ..ends }));
    }

    #[test]
    fn lanes_share_the_flows_out() {
        for ipv6 in [false, true] {
            let lanes: Vec<FlowSet> = (0..3)
                .map(|number| {
                    let lane = FlowLane { number, steering: Steering::by_hash([1, 2], 3) };
                    FlowSet::clients(0, 3000, ipv6, &lane, 0)
                })
                .collect();
            let all: BTreeSet<PacketEnds> = lanes.iter().flat_map(|set| set.ends.iter().copied()).collect();
            assert_eq!(all.len(), 3000);
            assert_eq!(lanes.iter().map(FlowSet::len).sum::<usize>(), 3000);
            assert!(lanes.iter().all(|set| set.len() > 800));
        }
    }

    #[test]
    fn a_round_has_every_number_once() {
        for count in [1, 2, 3, 4, 6, 97, 1000, 4096] {
            let mut rounds = Rounds::new(count, Rng::with_seed(3));
            for round in 0..4 {
                let seen: Vec<usize> = (0..count).map(|_| rounds.step()).collect();
                assert_eq!(rounds.round(), round);
                assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), count, "{count}: {seen:?}");
                assert!(round > 0 || seen.is_sorted());
            }
        }
    }
}
