//! Types that may lie in memory that another process has left: their values can be validated from any bytes.

use super::slab::Slot;
use crate::flow::Protocol;
use crate::l4::connection::{Connection, Flags, State};
use crate::stored::{Stored, mixed};
use zerocopy::TryFromBytes;

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

/// Names how connections lie in a slab: other fields, offsets or sizes, another number. A process adopts what another
/// has left only if theirs is the same.
pub const LAYOUT: u64 =
    mixed(mixed(<Connection as Stored>::LAYOUT_HASH, LAYOUT_VERSION), size_of::<Slot<Connection>>() as u64);

// SAFETY: `IntoBytes` proves that it has no padding; the bytes are checked to be a value, and the assertion below says the
// rest.
unsafe impl Adoptable for Connection {
    /// Each field by itself: an adopter has to expect any mixture of old and new ones.
    fn is_valid(bytes: &[u8]) -> bool {
        const { assert!(align_of::<Connection>() <= 8 && size_of::<Connection>().is_multiple_of(8)) };
        let Ok(connection) = Connection::try_read_from_bytes(bytes) else { return false };
        let Connection { client, vip, backend, source, protocol, state, pair, flags, .. } = &connection;
        let is_pass = *state == State::Pass;
        let is_udp_state = matches!(state, State::UdpNew | State::UdpEstablished);
        // A Pass entry has no VIP. A backend of direct server return may be of another family than the rest.
        let backend = (!flags.has(Flags::DIRECT)).then_some(backend);
        let ends = [Some(source), backend, (!is_pass).then_some(vip)];
        (is_pass || (*protocol == Protocol::Udp) == is_udp_state)
            && ends.iter().flatten().all(|end| end.address.is_ipv4() == client.address.is_ipv4())
            && pair.is_plausible()
    }
}

#[cfg(test)]
mod tests;
