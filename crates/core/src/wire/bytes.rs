//! Reading fixed-size fields at offsets that have not been checked yet.

/// The `N` bytes at `offset`, if they are all there.
#[inline(always)]
pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// The `N` bytes at `offset`, to change, if they are all there.
#[inline(always)]
pub(crate) fn array_at_mut<const N: usize>(bytes: &mut [u8], offset: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(offset..)?.first_chunk_mut()
}

/// The big-endian 16-bit number at `offset`.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_be_bytes)
}

/// The big-endian 32-bit number at `offset`.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_be_bytes)
}
