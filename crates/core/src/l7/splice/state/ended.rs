//! Clients' connections that have ended while their cookies were still good: the first segment of one that the network
//! brings once more must not make its request a second time.
//!
//! A cookie keeps no state, so nothing in it says that it was used. What was is remembered here as a fingerprint, a keyed
//! hash of the ends and both first numbers, for as long as the cookie lasts; in a bounded table, where the oldest of a
//! bucket gives way (and that is counted: then the network has to be as late as that for a request to be made twice).

use crate::flow::{Endpoint, FlowKey, Steering};
use crate::keys::Purpose;
use crate::l7::cookie;
use crate::stored::stored;
use crate::table::region::Array;
use crate::table::{Hasher, Key};
use crate::time::Time;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Connections with one place.
const WAYS: usize = 4;
/// Room for each connection there can be at a time: most are short.
pub const PER_CONNECTION: usize = 4;

/// One that has ended; with a fingerprint of 0, none.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Entry {
    fingerprint: u64,
    ended: Time,
}

stored!(Entry: fingerprint, ended);

/// Those with one place.
pub(in crate::l7::splice) type Bucket = [Entry; WAYS];

/// Buckets for a worker with so many connections at a time.
pub(in crate::l7::splice) const fn buckets(connections: u32) -> usize {
    (connections as usize * PER_CONNECTION / WAYS).next_power_of_two()
}

/// The connections that have ended.
pub(in crate::l7::splice) struct Ended {
    buckets: Array<Bucket>,
    hasher: Hasher,
    /// How many were overwritten while their cookies were still good.
    pub(in crate::l7::splice) overwritten: u64,
}

impl Ended {
    /// Those that `buckets`, as many as [`buckets`] says, has of an earlier process; all zeroes: none. Fingerprints are of
    /// this hasher.
    pub(in crate::l7::splice) fn new(buckets: Array<Bucket>, hasher: Hasher) -> Ended {
        Ended { buckets, hasher, overwritten: 0 }
    }

    /// Never 0. Differs for all pairs of first numbers between the same ends.
    fn fingerprint(&self, key: &FlowKey, [theirs, ours]: [u32; 2]) -> u64 {
        let pair = u64::from(theirs) << 32 | u64::from(ours);
        (key.hash(&self.hasher).0 ^ pair).wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1)
    }

    fn place(&self, fingerprint: u64) -> usize {
        (fingerprint >> 32) as usize & (self.buckets.len() - 1)
    }

    /// The connection that began with these numbers (the client's, ours) has ended.
    pub(in crate::l7::splice) fn add(&mut self, now: Time, key: &FlowKey, first: [u32; 2]) {
        let fingerprint = self.fingerprint(key, first);
        let place = self.place(fingerprint);
        let Some(oldest) = self.buckets[place].iter_mut().min_by_key(|entry| entry.ended) else { return };
        self.overwritten += u64::from(is_good(now, oldest));
        *oldest = Entry { fingerprint, ended: now };
    }

    /// Adds what another worker knows, as far as there is room.
    pub(in crate::l7::splice) fn take_over(&mut self, now: Time, other: &Ended) {
        for entry in other.buckets.iter().flatten().filter(|entry| is_good(now, entry)) {
            let place = self.place(entry.fingerprint);
            let Some(oldest) = self.buckets[place].iter_mut().min_by_key(|entry| entry.ended) else { return };
            if oldest.ended < entry.ended {
                *oldest = *entry;
            }
        }
    }

    /// Whether that is so.
    pub(in crate::l7::splice) fn has(&self, now: Time, key: &FlowKey, first: [u32; 2]) -> bool {
        let fingerprint = self.fingerprint(key, first);
        let bucket = &self.buckets[self.place(fingerprint)];
        bucket.iter().any(|entry| entry.fingerprint == fingerprint && is_good(now, entry))
    }
}

/// The hasher of fingerprints: the same one in every process that goes by this steering key.
pub(in crate::l7::splice) fn hasher(steering: &Steering) -> Hasher {
    Hasher::new([0, 1, 2, 3].map(|seed| {
        let end = Endpoint { port: seed, ..Endpoint::default() };
        steering.secret(Purpose::Ended, &[end])
    }))
}

/// Whether the cookie of a connection that has ended may still be one.
fn is_good(now: Time, entry: &Entry) -> bool {
    entry.fingerprint != 0 && now.since(entry.ended) < cookie::LIFE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Protocol;
    use crate::table::region::Region;
    use core::net::{IpAddr, Ipv4Addr};

    #[test]
    fn ended_connections_are_kept_for_the_cookie_lifetime() {
        let end = |port| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), port);
        let key = |port| FlowKey { source: end(port), destination: end(80), protocol: Protocol::Tcp };
        let start = Time::from_nanos(1 << 40);
        let memory = Region::own(Region::room::<Bucket>(buckets(64))).take(buckets(64));
        let mut ended = Ended::new(memory, Hasher::new([1, 2, 3, 4]));
        ended.add(start, &key(1), [5, 6]);
        assert!(ended.has(start, &key(1), [5, 6]));
        for (port, first) in [(1, [6, 5]), (1, [5, 7]), (1, [4, 6]), (2, [5, 6])] {
            assert!(!ended.has(start, &key(port), first), "{port} {first:?}");
        }
        let before = Time::from_nanos(start.as_nanos() + cookie::LIFE_MAX.as_nanos() as u64 - 1);
        assert!(ended.has(before, &key(1), [5, 6]));
        assert!(!ended.has(before + crate::time::Duration::from_millis(1), &key(1), [5, 6]), "no cookie any more");
        // Four times as many as there is room for: the youngest are known, and as many as there is room for are.
        for port in 0..1024 {
            let now = Time::from_nanos(start.as_nanos() + u64::from(port));
            ended.add(now, &key(port), [5, 6]);
        }
        let known = (0..1024).filter(|port| ended.has(before, &key(*port), [5, 6])).count();
        assert_eq!(known, 256, "all places are taken");
        assert!((1020..1024).all(|port| ended.has(before, &key(port), [5, 6])));
        assert_eq!(ended.overwritten, 1025 - 256);
        let later = before + crate::time::Duration::from_secs(300);
        ended.add(later, &key(1), [5, 6]);
        assert_eq!(ended.overwritten, 1025 - 256, "that was of no use any more");
    }
}
