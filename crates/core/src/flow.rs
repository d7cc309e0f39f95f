//! Names of flows: addresses, the 5-tuple, directions.

use crate::keys::{Purpose, Secret};
use crate::stored::stored_leaf;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// An IPv4 or IPv6 address in 16 bytes; IPv4 is held as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2), so that one code path
/// serves both families.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Address(pub [u8; 16]);

stored_leaf!(Address: 1, Protocol: 1, Endpoint: 1, Direction: 1);

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// The last four bytes of it, read with the lowest first; the others are 0.
const MAPPED_WORD: u32 = 0xffff_0000;

impl Address {
    /// The IPv4 address `octets`.
    pub fn from_ipv4(octets: [u8; 4]) -> Address {
        let mut bytes = [0; 16];
        bytes[..12].copy_from_slice(&MAPPED);
        bytes[12..].copy_from_slice(&octets);
        Address(bytes)
    }

    /// Whether this is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.0[..12] == MAPPED
    }

    /// The four octets; those of the last 32 bits if this is an IPv6 address.
    pub fn ipv4_octets(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// In two words, since the address may just have been written so: wider reads would have to wait.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 2] {
        let (words, _) = self.0.as_chunks::<8>();
        [words[0], words[1]].map(u64::from_le_bytes)
    }
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address {
            IpAddr::V4(v4) => Address::from_ipv4(v4.octets()),
            IpAddr::V6(v6) => Address(v6.octets()),
        }
    }
}

impl From<Address> for IpAddr {
    fn from(address: Address) -> IpAddr {
        if address.is_ipv4() {
            IpAddr::V4(Ipv4Addr::from(address.ipv4_octets()))
        } else {
            IpAddr::V6(Ipv6Addr::from(address.0))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        IpAddr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transport protocol Hairpin balances; the values are IANA's protocol numbers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(u8)]
pub enum Protocol {
    /// TCP (RFC 9293).
    #[default]
    Tcp = 6,
    /// UDP (RFC 768).
    Udp = 17,
}

/// One end of a flow: address and port (host order).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Endpoint {
    /// The address.
    pub address: Address,
    /// The port, 0 to 65535, host order.
    pub port: u16,
}

impl Endpoint {
    /// An end at `address` and `port`.
    pub fn new(address: impl Into<Address>, port: u16) -> Endpoint {
        Endpoint { address: address.into(), port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address.is_ipv4() {
            write!(f, "{}:{}", self.address, self.port)
        } else {
            write!(f, "[{}]:{}", self.address, self.port)
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A flow: one direction of a connection, as its packets show it (the 5-tuple).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// The source address of the packets.
    pub source: Endpoint,
    /// The destination address of the packets.
    pub destination: Endpoint,
    /// The transport protocol.
    pub protocol: Protocol,
}

impl FlowKey {
    /// The same 5-tuple seen from the other end.
    pub fn reversed(&self) -> FlowKey {
        FlowKey { source: self.destination, destination: self.source, protocol: self.protocol }
    }

    /// Whether the flow is IPv4 (both of its addresses always are of one family).
    pub fn is_ipv4(&self) -> bool {
        self.source.address.is_ipv4()
    }

    /// A flow of IPv4 in two words, by which it is hashed: its addresses, as they stand in packets one behind the other and
    /// are read with the lowest byte first; protocol, source port and destination port.
    #[inline(always)]
    pub(crate) fn ipv4_words(&self) -> Option<[u64; 2]> {
        let [from, to] = [&self.source, &self.destination].map(|end| end.address.words());
        let mapped = from[0] | to[0] == 0 && from[1] as u32 == MAPPED_WORD && to[1] as u32 == MAPPED_WORD;
        mapped.then(|| [from[1] >> 32 | to[1] & 0xffff_ffff_0000_0000, self.ports_word()])
    }

    /// Protocol, source port and destination port in a word.
    #[inline(always)]
    pub(crate) fn ports_word(&self) -> u64 {
        (self.protocol as u64) << 32 | u64::from(self.source.port) << 16 | u64::from(self.destination.port)
    }
}

/// Which way a flow of a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Direction {
    /// From the client to the backend: key (client, VIP).
    FromClient = 0,
    /// From the backend to the client: key (backend, client or pool address).
    FromBackend = 1,
}

impl Direction {
    /// The other direction.
    pub fn reversed(self) -> Direction {
        match self {
            Direction::FromClient => Direction::FromBackend,
            Direction::FromBackend => Direction::FromClient,
        }
    }
}

/// Rules of one port that steer packets to workers, at most: on a BlueField-2 as many take 1.2 s to go in one by one (Laconic).
pub const STEERING_RULES_MAX: usize = 4096;

/// Spreads connections over workers, the same way in the worker and in BPF (`steer_hash` in `crates/linux/bpf/parse.h`).
///
/// The deciding end is the client's, or the pool's under full NAT: the source of what comes from a client and the
/// destination of what comes from a backend, so that both directions meet on one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Secret of this instance.
    pub key: [u64; 2],
    /// Number of workers, 1 to 256.
    pub workers: u16,
    /// The part of the end that decides.
    pub by: SteerBy,
}

/// The part of an end that decides the worker of its connections.
///
/// The values are those in the header of a connection table's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SteerBy {
    /// Address and port by a keyed hash, so that an attacker cannot aim at one worker.
    #[default]
    Hash = 0,
    /// Some bits of the port ([`Steering::port_mask`]), which cards can match. A client that chooses its port chooses
    /// its worker.
    Port = 1,
}

impl Steering {
    /// By the keyed hash of address and port.
    pub const fn by_hash(key: [u64; 2], workers: u16) -> Steering {
        Steering { key, workers, by: SteerBy::Hash }
    }

    /// Classes of ports: one for each worker if there are 2, 4, 8, ... of them, else so many that no worker has much more
    /// than its share.
    fn classes(&self) -> u16 {
        if self.workers.is_power_of_two() { self.workers } else { self.workers.next_power_of_two() * 4 }
    }

    /// The bits of a port that decide, by [`SteerBy::Port`]. The lowest is not among them: Linux gives connections even
    /// ports as long as there are any.
    pub fn port_mask(&self) -> u16 {
        (self.classes() - 1) << 1
    }

    /// The range of those bits, and the worker of each value.
    pub fn port_classes(&self) -> impl Iterator<Item = (u16, u16)> {
        (0..self.classes()).map(|class| (class << 1, self.of_class(class)))
    }

    fn of_class(&self, class: u16) -> u16 {
        (u32::from(class) * u32::from(self.workers) / u32::from(self.classes())) as u16
    }

    /// The keyed hash of one end. It is quick and no more: an observer that sees a value of it and knows the end can
    /// tell those of other ends ([`secret`](Steering::secret)).
    pub fn hash(&self, end: &Endpoint) -> u64 {
        let a = u64::from_le_bytes(half(&end.address, 0));
        let b = u64::from_le_bytes(half(&end.address, 8));
        let mut x = self.key[0] ^ a;
        x = (x ^ (x >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= b ^ self.key[1];
        x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^= u64::from(end.port);
        x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^ (x >> 32)
    }

    /// A pseudo-random value of some ends for each `purpose`, by SipHash-1-3 under the same key. Unlike with
    /// [`hash`](Steering::hash), an observer cannot work out the ends, the key or any other value from it. For what
    /// others get to see.
    pub fn secret(&self, purpose: Purpose, ends: &[Endpoint]) -> u64 {
        Secret::new(self.key).of(purpose, ends)
    }

    /// How far the clock that clients of spliced services see in TCP timestamps is ahead of the machine's, in ms, modulo 2^32.
    pub fn clock_ahead(&self) -> u32 {
        self.secret(Purpose::Timestamps, &[]) as u32
    }

    /// The worker that owns connections whose client (or pool) end is `end`: the hash's upper 32 bits scaled, or the class
    /// of its port.
    pub fn worker(&self, end: &Endpoint) -> u16 {
        match self.by {
            SteerBy::Hash => (((self.hash(end) >> 32) * u64::from(self.workers)) >> 32) as u16,
            SteerBy::Port => self.of_class((end.port & self.port_mask()) >> 1),
        }
    }
}

fn half(address: &Address, from: usize) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&address.0[from..from + 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_hash_reveals_nothing_of_steering() {
        let steering = Steering::by_hash([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], 1);
        let end = |last: u8, port| Endpoint::new(Address::from_ipv4([10, 0, 0, last]), port);
        let secret = |purpose, ends: &[Endpoint]| steering.secret(purpose, ends);
        let (a, b) = (end(1, 80), end(2, 80));
        // Steps that can be taken back would carry the difference of two ends into that of their values.
        let carried = |x: u64| x ^ (x >> 32);
        let difference = |x: u64, y: u64| carried(x).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ carried(y);
        let cookies = [a, b].map(|end| secret(Purpose::Sticky, &[end]));
        assert_ne!(cookies[0], steering.hash(&a));
        assert_ne!(difference(cookies[0], cookies[1]), difference(steering.hash(&a), steering.hash(&b)));
        assert_ne!(secret(Purpose::Sequence, &[a]), cookies[0], "a value for each purpose");
        assert_ne!(secret(Purpose::Sequence, &[a, b]), secret(Purpose::Sequence, &[b, a]), "and for each direction");
        assert_ne!(Steering::by_hash([1, 2], 1).secret(Purpose::Sticky, &[a]), cookies[0], "and key");
    }

    #[test]
    fn classes_of_ports_are_dealt_out_evenly() {
        for workers in 1..=256 {
            let steering = Steering { by: SteerBy::Port, ..Steering::by_hash([1, 2], workers) };
            let mut shares = [0u16; 256];
            for (value, worker) in steering.port_classes() {
                assert_eq!(value & !steering.port_mask(), 0);
                shares[usize::from(worker)] += 1;
                // Other bits do not matter.
                for other in [0, 1, !steering.port_mask()] {
                    let end = Endpoint::new(Address::from_ipv4([10, 0, 0, 1]), value | other);
                    assert_eq!(steering.worker(&end), worker, "{workers} workers, port {}", value | other);
                }
            }
            let (least, most) = shares[..usize::from(workers)]
                .iter()
                .fold((u16::MAX, 0), |(least, most), share| (least.min(*share), most.max(*share)));
            assert!(least >= 1 && most - least <= 1 && (most == least || least >= 4), "{workers}: {least} to {most}");
            assert!(shares[usize::from(workers)..].iter().all(|share| *share == 0));
        }
    }
}
