//! Keys as rte_hash compares them: byte for byte, so without padding.

use hairpin_core::flow::FlowKey;
use hairpin_core::table::{BURST, Key};

/// A key that can be laid out as a fixed number of bytes, equal exactly for equal keys.
pub trait PackedKey: Key + Send + Sync + 'static {
    /// Bytes of a packed key, at least 1.
    const LENGTH: usize;

    /// Calls `then` with the packed keys, one after the other, [`PackedKey::LENGTH`] bytes each. Takes at most
    /// [`BURST`] keys; those beyond are left out.
    fn packed<R>(keys: &[Self], then: impl FnOnce(&[u8]) -> R) -> R;
}

/// As they stand.
impl<const N: usize> PackedKey for [u8; N] {
    const LENGTH: usize = N;

    #[inline]
    fn packed<R>(keys: &[[u8; N]], then: impl FnOnce(&[u8]) -> R) -> R {
        then(keys[..keys.len().min(BURST)].as_flattened())
    }
}

/// Bytes of a flow: two addresses, two ports, the protocol.
const FLOW: usize = 16 + 16 + 2 + 2 + 1;

/// Both families alike: 16 bytes of source address, 16 of destination address, their ports, the protocol.
impl PackedKey for FlowKey {
    const LENGTH: usize = FLOW;

    #[inline]
    fn packed<R>(keys: &[FlowKey], then: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = [[0; FLOW]; BURST];
        let count = keys.len().min(BURST);
        for (bytes, key) in bytes.iter_mut().zip(keys) {
            bytes[..16].copy_from_slice(&key.source.address.0);
            bytes[16..32].copy_from_slice(&key.destination.address.0);
            bytes[32..34].copy_from_slice(&key.source.port.to_be_bytes());
            bytes[34..36].copy_from_slice(&key.destination.port.to_be_bytes());
            bytes[36] = key.protocol as u8;
        }
        then(bytes[..count].as_flattened())
    }
}
