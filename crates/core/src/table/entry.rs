//! Types that may lie in memory that another process has left: their values can be validated from any bytes.

use super::slab::Slot;
use crate::flow::{Address, Protocol};
use crate::l4::connection::{Connection, Kept, State};
use crate::offload::{OffloadState, RulePair};
use core::mem::offset_of;

/// A type whose slab may be adopted.
///
/// # Safety
/// It has no padding, its size is a multiple of eight, it is aligned to eight bytes at most, and bytes for which
/// [`Adoptable::is_valid`] says yes are a valid value of it.
pub unsafe trait Adoptable: 'static {
    /// Whether `bytes`, as many as the type has, are a value that a slab may have left.
    fn is_valid(bytes: &[u8]) -> bool;
}

// SAFETY: integers: no padding, and any bytes will do.
unsafe impl<const N: usize> Adoptable for [u64; N] {
    fn is_valid(_: &[u8]) -> bool {
        true
    }
}

/// To be raised whenever the meaning of a stored [`Connection`] changes in a way that [`LAYOUT`] cannot see.
const LAYOUT_VERSION: u64 = 1;

/// Runs a macro over the fields of [`Connection`].
macro_rules! with_fields {
    ($what:ident) => {
        $what!(
            client,
            vip,
            backend,
            source,
            protocol,
            state,
            kept,
            pair,
            flags,
            last_seen,
            forwarded,
            proof,
            service,
            backend_number,
            created,
            changed,
            offer_after,
            offloaded
        )
    };
}

/// The size of what a reference to a field leads to.
const fn field_bytes<F>(_: fn(&Connection) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! layout {
    ($($field:ident),*) => {{
        let mut sum = 0;
        let mut hash = mixed(0xcbf2_9ce4_8422_2325, LAYOUT_VERSION);
        hash = mixed(hash, size_of::<Slot<Connection>>() as u64);
        hash = mixed(hash, align_of::<Slot<Connection>>() as u64);
        $(
            let bytes = field_bytes(|connection| &connection.$field);
            sum += bytes;
            hash = mixed(hash, (offset_of!(Connection, $field) as u64) << 32 | bytes as u64);
            let name = stringify!($field).as_bytes();
            let mut i = 0;
            while i < name.len() {
                hash = mixed(hash, name[i] as u64);
                i += 1;
            }
        )*
        assert!(sum == size_of::<Connection>(), "a connection has padding, or a field that is not named here");
        hash
    }};
}

/// One step of FNV-1a, by words.
const fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

/// Names how connections lie in a slab: other fields, offsets or sizes, another number. A process adopts what another
/// has left only if theirs is the same.
pub const LAYOUT: u64 = with_fields!(layout);

/// The addresses of a connection's ends, and where they lie.
const ENDS: [usize; 4] = [
    offset_of!(Connection, client),
    offset_of!(Connection, backend),
    offset_of!(Connection, source),
    offset_of!(Connection, vip),
];

// SAFETY: `LAYOUT` proves that the fields leave no padding, and none of them has any (integers, arrays of them, and
// enums of one byte). All bytes are valid but those of the enums, which are checked.
unsafe impl Adoptable for Connection {
    /// Each field by itself: an adopter has to expect any mixture of old and new ones.
    fn is_valid(bytes: &[u8]) -> bool {
        let Ok(bytes) = <&[u8; size_of::<Connection>()]>::try_from(bytes) else { return false };
        let state = bytes[offset_of!(Connection, state)];
        let is_pass = state == State::Pass as u8;
        let pair = offset_of!(Connection, pair);
        let enums = [Protocol::Tcp as u8, Protocol::Udp as u8].contains(&bytes[offset_of!(Connection, protocol)])
            && state <= State::Pass as u8
            && bytes[offset_of!(Connection, kept)] <= Kept::Failed as u8;
        let is_udp = bytes[offset_of!(Connection, protocol)] == Protocol::Udp as u8;
        let is_udp_state = [State::UdpNew as u8, State::UdpEstablished as u8].contains(&state);
        let is_ipv4 = |at: usize| {
            let mut address = [0; 16];
            address.copy_from_slice(&bytes[at..at + 16]);
            Address(address).is_ipv4()
        };
        // A Pass entry has no VIP.
        let ends = if is_pass { &ENDS[..3] } else { &ENDS[..] };
        enums
            && (is_pass || is_udp == is_udp_state)
            && ends.iter().all(|&at| is_ipv4(at) == is_ipv4(ENDS[0]))
            && RulePair::is_valid([bytes[pair], bytes[pair + 1], bytes[pair + 2]])
    }
}

const _: () = {
    // The address is what an end begins with, and the discriminants have no gaps.
    assert!(offset_of!(crate::flow::Endpoint, address) == 0);
    assert!(size_of::<RulePair>() == 3);
    assert!(State::Pass as u8 == 9 && OffloadState::Removing as u8 == 3 && Kept::Failed as u8 == 5);
};

#[cfg(test)]
mod tests;
