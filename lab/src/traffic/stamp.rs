//! The stamp in every packet, by which the sink can tell its fate, where a translator of addresses and ports leaves
//! it alone.
//!
//! 18 bytes, in network order: flow (4), sequence number (6), time of sending (6), check (2).
//!
//! - The flow is the generator's number of it.
//! - The sequence number counts a generator's packets over all flows; its uppermost byte is the generator's number.
//! - The time is the [clock](crate::clock)'s in nanoseconds, modulo 2^48 (78 hours).
//! - The check is a hash of the others and of the run's session, so that packets of another run, or of other programs, are
//!   not taken for ours. It is no protection against an enemy.
//!
//! In a UDP packet they are the first 18 bytes of the payload. A TCP packet of 64 bytes has room for 10 only: there the
//! flow is in the sequence number, the first 4 bytes of our sequence number in the acknowledgement number, the other 2 in
//! the window, and the rest are the first 8 bytes of the payload. So the shortest frames are of 60 bytes (UDP over IPv4),
//! 62 (TCP over IPv4), 80 and 82 (IPv6).
//!
//! All of it lies at even offsets of the segment, so that its words count towards the checksum wherever they are.

use hairpin_core::flow::Protocol;
use hairpin_core::wire::checksum::{Difference, Sum};
use hairpin_core::wire::{Parsed, Transport, parse, tcp, udp};

/// Bytes of a stamp.
pub const BYTES: usize = 18;
/// Bytes of it in the payload of a TCP packet.
pub const TCP_PAYLOAD: usize = 8;
/// Sequence numbers and times are below this.
pub const MODULUS: u64 = 1 << 48;
/// Packets of one generator: the sequence number's lower part.
pub const SEQUENCES: u64 = 1 << 40;

/// A packet's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The generator's number of the flow.
    pub flow: u32,
    /// The generator's number and the packet's, below [`MODULUS`].
    pub sequence: u64,
    /// When it was sent, in nanoseconds, below [`MODULUS`].
    pub time: u64,
}

impl Stamp {
    /// The stamp's bytes in `session`.
    #[inline]
    pub fn bytes(&self, session: u64) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..4].copy_from_slice(&self.flow.to_be_bytes());
        out[4..10].copy_from_slice(&self.sequence.to_be_bytes()[2..]);
        out[10..16].copy_from_slice(&self.time.to_be_bytes()[2..]);
        out[16..].copy_from_slice(&self.check(session).to_be_bytes());
        out
    }

    /// The stamp of these bytes, if they are one of `session`.
    #[inline]
    pub fn of(bytes: &[u8; BYTES], session: u64) -> Option<Stamp> {
        let six = |at: usize| {
            let mut wide = [0; 8];
            wide[2..].copy_from_slice(&bytes[at..at + 6]);
            u64::from_be_bytes(wide)
        };
        let flow = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let stamp = Stamp { flow, sequence: six(4), time: six(10) };
        let check = u16::from_be_bytes([bytes[16], bytes[17]]);
        (stamp.check(session) == check).then_some(stamp)
    }

    #[inline]
    fn check(&self, session: u64) -> u16 {
        // A round for each: where two fields met in one, changes of both could cancel out.
        let mut x = session ^ self.sequence;
        x = (x ^ (x >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= self.time;
        x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^= u64::from(self.flow);
        x = (x ^ (x >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (x >> 48) as u16
    }

    /// Nanoseconds from its sending to `now`; `None` if it says that it is not sent yet.
    #[inline]
    pub fn age(&self, now: u64) -> Option<u64> {
        let age = now.wrapping_sub(self.time) % MODULUS;
        (age < MODULUS / 2).then_some(age)
    }
}

/// The three places a stamp's bytes lie at, as offsets from the transport header: 10 bytes in two parts, then 8.
#[inline]
fn places(protocol: Protocol) -> [usize; 3] {
    match protocol {
        Protocol::Udp => [udp::HEADER, udp::HEADER + 8, udp::HEADER + 10],
        Protocol::Tcp => [tcp::SEQUENCE, tcp::WINDOW, tcp::HEADER],
    }
}

/// Writes a stamp into a segment from its transport header (without options) on, and leaves the checksum as it is. Writes
/// nothing where it does not fit.
#[inline]
pub fn write(segment: &mut [u8], protocol: Protocol, stamp: &[u8; BYTES]) {
    let [first, second, third] = places(protocol);
    if let Some(fields) = segment.get_mut(..third + 8) {
        fields[first..first + 8].copy_from_slice(&stamp[..8]);
        fields[second..second + 2].copy_from_slice(&stamp[8..10]);
        fields[third..third + 8].copy_from_slice(&stamp[10..]);
    }
}

/// The stamp's bytes in the packet that was found `at` in `frame`, if it is long enough for one.
#[inline]
pub fn read(frame: &[u8], at: &Transport) -> Option<[u8; BYTES]> {
    let [first, second, third] = places(at.key.protocol);
    let segment = frame.get(at.l4..at.end)?.get(..third + 8)?;
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&segment[first..first + 8]);
    out[8..10].copy_from_slice(&segment[second..second + 2]);
    out[10..].copy_from_slice(&segment[third..third + 8]);
    Some(out)
}

/// The sum that the words of a stamp add to a checksum.
#[inline]
pub(super) fn sum(stamp: &[u8; BYTES]) -> u64 {
    let (words, rest) = stamp.as_chunks::<4>();
    let rest = u16::from_be_bytes([rest[0], rest[1]]);
    words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum::<u64>() + u64::from(rest)
}

/// Makes a packet of ours that has had to wait one of now: its time, check and checksum. Others are left alone.
pub fn retime(frame: &mut [u8], session: u64, now: u64) {
    let Ok(Parsed::Transport(at)) = parse(frame) else { return };
    let Some(old) = read(frame, &at) else { return };
    let Some(stamp) = Stamp::of(&old, session) else { return };
    let new = Stamp { time: now % MODULUS, ..stamp }.bytes(session);
    write(&mut frame[at.l4..at.end], at.key.protocol, &new);
    let field = at.checksum_offset();
    let Some(&[a, b]) = frame.get(field..field + 2) else { return };
    let changed = Difference::between(Sum::of(&old), Sum::of(&new)).update(u16::from_be_bytes([a, b]));
    let changed = if at.key.protocol == Protocol::Udp { udp::mangled(changed) } else { changed };
    frame[field..field + 2].copy_from_slice(&changed.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_back_as_it_was(flow: u32, sequence in 0..MODULUS, time in 0..MODULUS, session: u64) {
            let stamp = Stamp { flow, sequence, time };
            prop_assert_eq!(Stamp::of(&stamp.bytes(session), session), Some(stamp));
        }

        #[test]
        fn a_changed_bit_is_seen(flow: u32, sequence in 0..MODULUS, session: u64, bits in prop::collection::btree_set(0..144usize, 1..4)) {
            // One in 65,536 passes; over all cases of all tests of this kind that is rare enough to try twice.
            let tries = [17u64, 1 << 40].iter().filter(|&&time| {
                let mut bytes = Stamp { flow, sequence, time }.bytes(session);
                for bit in &bits {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                Stamp::of(&bytes, session).is_some()
            }).count();
            prop_assert!(tries < 2);
        }

        #[test]
        fn ages_are_never_negative(time in 0..MODULUS, later in 0..MODULUS / 2) {
            let stamp = Stamp { flow: 0, sequence: 0, time };
            prop_assert_eq!(stamp.age(time + later), Some(later));
            prop_assert_eq!(stamp.age((time + later) % MODULUS), Some(later));
            if later > 0 {
                prop_assert_eq!(stamp.age(time.wrapping_sub(later)), None);
            }
        }
    }

    #[test]
    fn another_sessions_stamp_is_none() {
        let stamp = Stamp { flow: 7, sequence: 9, time: 11 };
        assert!((1..100).filter(|&session| Stamp::of(&stamp.bytes(session), 0).is_some()).count() < 3);
    }
}
