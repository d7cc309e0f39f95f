//! Secrets, and the values derived from them that clients see.

use crate::flow::Endpoint;
use alloc::boxed::Box;
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// Secrets of a file at most.
pub const KEYS_MAX: usize = 4;

/// The purpose of a value: no two purposes have values in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The value of a cookie that names a backend.
    Sticky = 1,
    /// The initial sequence number of a connection to a backend (RFC 6528).
    Sequence = 2,
    /// The key of an epoch of SYN cookies.
    SynCookies = 3,
    /// The name of a secret, so that people can compare those of two machines.
    Fingerprint = 4,
    /// The seeds of the hash by which ended connections are remembered from process to process.
    Ended = 5,
    /// The seeds of the hash by which a process knows the entries that another has left.
    Seal = 6,
    /// How far the clock that clients see in TCP timestamps is ahead of the machine's (RFC 7323, 7.1).
    Timestamps = 7,
    /// The key of TLS session tickets.
    Tickets = 8,
    /// The ids of traces and spans.
    Traces = 9,
    /// The places of clients in the table of limits.
    Limits = 10,
}

/// A key of 128 bits. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The key of these words.
    pub const fn new(words: [u64; 2]) -> Secret {
        Secret(words)
    }

    /// The key of these bytes, the same one on every machine.
    pub fn from_bytes(bytes: [u8; 16]) -> Secret {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        Secret([word(0), word(8)])
    }

    /// A pseudo-random value of some ends, by SipHash-1-3. An observer cannot work out the ends, the key or any other
    /// value from it.
    pub fn of(&self, purpose: Purpose, ends: &[Endpoint]) -> u64 {
        let mut hasher = self.hasher(purpose);
        for end in ends {
            hasher.write(&end.address.0);
            hasher.write_u16(end.port);
        }
        hasher.finish()
    }

    /// A pseudo-random value of a number, for each `which` another one.
    pub fn of_number(&self, purpose: Purpose, number: u64, which: u8) -> u64 {
        let mut hasher = self.hasher(purpose);
        hasher.write_u64(number);
        hasher.write_u8(which);
        hasher.finish()
    }

    /// A pseudo-random value of a client, for each `which` another one.
    pub fn of_client(&self, purpose: Purpose, which: u64, client: &[u8]) -> u64 {
        let mut hasher = self.hasher(purpose);
        hasher.write_u64(which);
        hasher.write(client);
        hasher.finish()
    }

    /// The key of SYN cookies' `epoch`. A process that has the secret and a right clock has the same one.
    pub fn of_epoch(&self, epoch: u64) -> [u64; 2] {
        [0, 1].map(|word| {
            let mut hasher = self.hasher(Purpose::SynCookies);
            hasher.write_u64(epoch);
            hasher.write_u8(word);
            hasher.finish()
        })
    }

    /// A name for the secret that tells nothing of it.
    pub fn fingerprint(&self) -> u32 {
        self.hasher(Purpose::Fingerprint).finish() as u32
    }

    /// It writes integers in little-endian order whatever the machine's is.
    fn hasher(&self, purpose: Purpose) -> SipHasher13 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write_u8(purpose as u8);
        hasher
    }
}

/// Secrets that several balancers share. None: each makes its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(Box<[Secret]>);

impl Keys {
    /// These, of which the first makes values and all are accepted; those beyond [`KEYS_MAX`] are not.
    pub fn new(secrets: &[Secret]) -> Keys {
        Keys(secrets.iter().copied().take(KEYS_MAX).collect())
    }

    /// The secret from which new values are made.
    pub fn first(&self) -> Option<Secret> {
        self.0.first().copied()
    }

    /// All, the first first.
    pub fn all(&self) -> &[Secret] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Address;
    use alloc::format;

    const SECRET: Secret = Secret::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    #[test]
    fn bytes_are_the_same_key_everywhere() {
        assert_eq!(Secret::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]), SECRET);
    }

    #[test]
    fn no_two_values_are_alike() {
        let end = Endpoint::new(Address::from_ipv4([10, 0, 0, 1]), 80);
        let values = [SECRET.of(Purpose::Sticky, &[end]), SECRET.of(Purpose::Sequence, &[end])];
        let epochs = [SECRET.of_epoch(1), SECRET.of_epoch(2)];
        let mut all = [values, epochs[0], epochs[1], [SECRET.fingerprint().into(), SECRET.of(Purpose::Sticky, &[])]];
        let all = all.as_flattened_mut();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]), "{all:x?}");
        assert_ne!(Secret::new([0, 1]).of_epoch(1), epochs[0]);
    }

    #[test]
    fn nothing_is_printed() {
        assert_eq!(format!("{:?}", Keys::new(&[SECRET; 5])), "Keys([Secret, Secret, Secret, Secret])");
    }
}
