//! Ethernet II headers and the VLAN tags behind them (IEEE 802.1Q, 802.1ad).

use super::Malformed;
use super::bytes::u16_at;

/// Bytes of the header: destination, source, EtherType.
pub const HEADER: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN_TAG: usize = 4;
/// VLAN tags accepted in a row.
pub const VLAN_TAGS_MAX: usize = 2;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of a customer tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of a service tag (802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;

/// EtherType and offset of what lies behind the header and up to [`VLAN_TAGS_MAX`] tags. A third tag comes back as the
/// EtherType: it is nothing Hairpin balances.
#[inline(always)]
pub fn network_layer(frame: &[u8]) -> Result<(u16, usize), Malformed> {
    let mut ethertype = u16_at(frame, 12).ok_or(Malformed::Truncated)?;
    let mut offset = HEADER;
    for _ in 0..VLAN_TAGS_MAX {
        if ethertype != VLAN && ethertype != SERVICE_VLAN {
            break;
        }
        ethertype = u16_at(frame, offset + 2).ok_or(Malformed::Truncated)?;
        offset += VLAN_TAG;
    }
    Ok((ethertype, offset))
}
