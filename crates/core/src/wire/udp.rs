//! The UDP header (RFC 768).

/// Bytes of the header.
pub const HEADER: usize = 8;
/// Offset of the length field in the header.
pub const LENGTH: usize = 4;
/// Offset of the checksum in the header.
pub const CHECKSUM: usize = 6;

/// `checksum` as it is sent: 0 means "none", so a computed 0 is sent as its other form, 0xffff.
#[inline(always)]
pub fn mangled(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}
