//! Seals: keyed hashes in entries, by which a process that adopts them knows that their ends are the ones they began with.
//!
//! An address that was damaged is still an address. So each entry carries a hash of its position and of what never changes
//! while it lasts, set when it begins. What makes a client connection and a backend connection each other's, and the key
//! that a pair of rules leads to, change now and then: they have seals of their own. Seals are checked at adoption alone.
//!
//! They find damage. A process that may write the memory and read the key can make any seal.
//!
//! The key follows from the steering key, which lies with layer 4's connections. Where those are given up and the steering
//! key is drawn anew, no seal is right any more, and every spliced connection is forgotten.

use super::entry::{BackendConn, ClientConn, TcpKey};
use crate::flow::{Endpoint, Steering};
use crate::keys::Purpose;
use core::mem::offset_of;
use zerocopy::IntoBytes;

/// Bytes at the beginning of an entry that never change: key, service or number, interface.
const FIXED: usize = 40;
const _: () = {
    assert!(offset_of!(ClientConn, key) == 0 && offset_of!(BackendConn, key) == 0);
    assert!(offset_of!(ClientConn, port) + 2 == FIXED && offset_of!(BackendConn, port) + 2 == FIXED);
    assert!(offset_of!(BackendConn, number) == FIXED - 4);
};

/// Where the number of the backend is in the last word of them.
const NUMBER: u64 = 0xffff << 32;
/// Marks in the word with the position, so that an entry of one kind is none of another.
const IS_TLS: u64 = 1 << 32;
const IS_BACKEND: u64 = 1 << 33;

/// Makes seals.
pub(in crate::l7::splice) struct Seals([u64; 4]);

impl Seals {
    /// Seals with secrets that follow from the steering key: each process with that key makes equal seals.
    pub(in crate::l7::splice) fn new(steering: &Steering) -> Seals {
        Seals([0, 1, 2, 3].map(|seed| {
            let end = Endpoint { port: seed, ..Endpoint::default() };
            steering.secret(Purpose::Seal, &[end])
        }))
    }

    /// The seal of a client connection at this position: over its ends, service, interface, first numbers, when it was created, and
    /// whether it is of a TLS service.
    pub(in crate::l7::splice) fn client(&self, position: u32, entry: &ClientConn) -> u64 {
        let [a, b, c, d, e] = fixed(entry.as_bytes());
        let [theirs, ours] = entry.first.map(u64::from);
        let place = u64::from(position) | if entry.is_tls { IS_TLS } else { 0 };
        self.hash([a, b, c, d, e, theirs << 32 | ours, entry.created.as_nanos(), place])
    }

    /// The seal of a backend connection at this position: over its ends, its interface, when it was created, and `number`, the
    /// number of its backend.
    pub(in crate::l7::splice) fn backend(&self, position: u32, entry: &BackendConn, number: u16) -> u64 {
        let [a, b, c, d, e] = fixed(entry.as_bytes());
        let e = e & !NUMBER | u64::from(number) << NUMBER.trailing_zeros();
        self.hash([a, b, c, d, e, 0, entry.created.as_nanos(), u64::from(position) | IS_BACKEND])
    }

    /// The seal of a client connection and a backend connection that are joined; without `client`, of an idle backend
    /// connection. It is made of their two seals, which differ between entries and between uses of one position.
    #[inline]
    pub(in crate::l7::splice) fn pair(&self, client: Option<u64>, backend: u64) -> u64 {
        folded(client.unwrap_or(0) ^ self.0[2], backend ^ self.0[3])
    }

    /// The seal of the flow key that a client connection's pair of rules leads to.
    pub(in crate::l7::splice) fn rule(&self, client: u64, key: &TcpKey) -> u64 {
        let mut bytes = [0; FIXED];
        let key = key.as_bytes();
        bytes[..key.len()].copy_from_slice(key);
        let [a, b, c, d, e] = fixed(&bytes);
        self.hash([a, b, c, d, e, 0, 0, client])
    }

    /// Where the tags of buffers begin: none that a guess would find.
    pub(in crate::l7::splice) fn tags(&self) -> u32 {
        self.0[1] as u32
    }

    /// Multiplications whose factors are masked by the key and by what came before. Not the hasher of the tables: that is
    /// another one in a program for another processor, and these have to outlive the program.
    #[inline]
    fn hash(&self, words: [u64; 8]) -> u64 {
        let hash = words.as_chunks::<2>().0.iter().fold(self.0[0], |hash, [a, b]| folded(a ^ self.0[1], b ^ hash));
        folded(hash ^ self.0[2], self.0[3])
    }
}

/// The product's two halves, over each other.
#[inline(always)]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The words of an entry's first bytes.
#[inline]
fn fixed(entry: &[u8]) -> [u64; FIXED / 8] {
    let mut words = [0; FIXED / 8];
    for (word, bytes) in words.iter_mut().zip(entry.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::peer::Peer;
    use super::*;
    use crate::flow::{Address, FlowKey, Protocol};
    use crate::l7::splice::tcp::segment::Abilities;
    use crate::time::{Duration, Time};
    use alloc::vec::Vec;

    const NOW: Time = Time::from_nanos(1 << 40);

    fn key() -> FlowKey {
        let end = |last, port| Endpoint::new(Address::from_ipv4([10, 0, 0, last]), port);
        FlowKey { source: end(1, 1000), destination: end(2, 80), protocol: Protocol::Tcp }
    }

    fn client() -> ClientConn {
        let peer = Peer::new(1, 2, &Abilities { mss: 1460, scale: None, sack: false, timestamps: None });
        ClientConn { first: [1, 2], ..ClientConn::new(NOW, &key(), 3, peer) }
    }

    fn backend() -> BackendConn {
        BackendConn::new(
            NOW,
            &key(),
            3,
            Peer::new(1, 2, &Abilities { mss: 1460, scale: None, sack: false, timestamps: None }),
        )
    }

    /// A program of another version must make equal seals. A change that breaks this raises `LAYOUT_VERSION` in `memory.rs`.
    #[test]
    fn seals_are_the_same_in_every_program() {
        let seals = Seals::new(&Steering::by_hash([1, 2], 1));
        let all = [
            seals.client(5, &client()),
            seals.backend(5, &backend(), 3),
            seals.pair(Some(7), 8),
            seals.pair(None, 8),
            seals.rule(7, &TcpKey::of(&key())),
        ];
        assert_eq!(all, EXPECTED);
    }

    const EXPECTED: [u64; 5] =
        [15739046741036734351, 11694851451038815540, 8936096174714023895, 6752864133622429722, 5202212889996290970];

    #[test]
    fn a_seal_covers_what_never_changes() {
        let seals = Seals::new(&Steering::by_hash([1, 2], 1));
        let mut all: Vec<u64> = Vec::new();
        let changes: [fn(&mut ClientConn); 9] = [
            |_| {},
            |entry| entry.key.source.address.0[15] ^= 1,
            |entry| entry.key.source.port ^= 1 << 15,
            |entry| entry.key.destination.address.0[0] ^= 1,
            |entry| entry.service ^= 1,
            |entry| entry.port ^= 1,
            |entry| entry.first[1] ^= 1,
            |entry| entry.created = entry.created + Duration::from_nanos(1),
            |entry| entry.is_tls = true,
        ];
        for change in changes {
            let mut entry = client();
            change(&mut entry);
            all.extend([seals.client(5, &entry), seals.client(6, &entry)]);
        }
        let changes: [fn(&mut BackendConn); 5] = [
            |_| {},
            |entry| entry.key.source.address.0[15] ^= 1,
            |entry| entry.number ^= 1,
            |entry| entry.port ^= 1,
            |entry| entry.created = entry.created + Duration::from_nanos(1),
        ];
        for change in changes {
            let mut entry = backend();
            change(&mut entry);
            all.extend([5, 6].map(|position| seals.backend(position, &entry, entry.number)));
        }
        all.push(Seals::new(&Steering::by_hash([1, 3], 1)).client(5, &client()));
        all.extend([(Some(7), 8), (Some(8), 7), (Some(8), 8), (None, 8)].map(|(a, b)| seals.pair(a, b)));
        assert_eq!(seals.backend(5, &BackendConn { number: 9, ..backend() }, 3), seals.backend(5, &backend(), 3));
        let mut key = TcpKey::of(&key());
        all.extend([seals.rule(7, &key), seals.rule(8, &key)]);
        key.destination.port ^= 1;
        all.push(seals.rule(7, &key));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        // Changes of everything else leave it as it is.
        let mut entry = client();
        let seal = seals.client(5, &entry);
        (entry.requests, entry.backend_conn, entry.last_seen) = (9, Some(3).into(), NOW + Duration::from_secs(1));
        entry.peer.expected += 9;
        assert_eq!(seals.client(5, &entry), seal);
    }
}
