//! ICMP (RFC 792) and ICMPv6 (RFC 4443), as far as their error messages go.

/// Bytes before the quoted packet: type, code, checksum and four bytes that depend on the type.
pub const HEADER: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM: usize = 2;
/// Protocol number of ICMP.
pub const PROTOCOL_V4: u8 = 1;
/// Next header number of ICMPv6.
pub const PROTOCOL_V6: u8 = 58;

/// ICMP type: destination unreachable.
pub const V4_UNREACHABLE: u8 = 3;
/// ICMP type: time exceeded.
pub const V4_TIME_EXCEEDED: u8 = 11;
/// ICMP type: parameter problem.
pub const V4_PARAMETER_PROBLEM: u8 = 12;
/// Code of [`V4_UNREACHABLE`]: fragmentation needed and DF set (RFC 1191).
pub const V4_FRAGMENTATION_NEEDED: u8 = 4;

/// ICMPv6 type: destination unreachable.
pub const V6_UNREACHABLE: u8 = 1;
/// ICMPv6 type: packet too big.
pub const V6_TOO_BIG: u8 = 2;
/// ICMPv6 type: time exceeded.
pub const V6_TIME_EXCEEDED: u8 = 3;
/// ICMPv6 type: parameter problem.
pub const V6_PARAMETER_PROBLEM: u8 = 4;

/// The kind of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Destination unreachable, for any reason but size.
    Unreachable,
    /// The packet was too big for a link.
    TooBig {
        /// Largest IP packet the link takes, in bytes; more than 65535 is said as that, 0: the sender does not know
        /// (before RFC 1191).
        mtu: u16,
    },
    /// Its hops ran out, or a fragment of it got lost.
    TimeExceeded,
    /// A header was refused.
    ParameterProblem,
}

/// The kind of an ICMP message with this header; `None` if it is no error that Hairpin passes on (source quench and
/// redirects are not, RFC 6633 and because they are for the next router only).
pub(crate) fn error_kind_v4(header: &[u8; HEADER]) -> Option<ErrorKind> {
    match (header[0], header[1]) {
        (V4_UNREACHABLE, V4_FRAGMENTATION_NEEDED) => {
            Some(ErrorKind::TooBig { mtu: u16::from_be_bytes([header[6], header[7]]) })
        }
        (V4_UNREACHABLE, _) => Some(ErrorKind::Unreachable),
        (V4_TIME_EXCEEDED, _) => Some(ErrorKind::TimeExceeded),
        (V4_PARAMETER_PROBLEM, _) => Some(ErrorKind::ParameterProblem),
        _ => None,
    }
}

/// The kind of an ICMPv6 message with this header; `None` if it is no error.
pub(crate) fn error_kind_v6(header: &[u8; HEADER]) -> Option<ErrorKind> {
    match header[0] {
        V6_UNREACHABLE => Some(ErrorKind::Unreachable),
        V6_TOO_BIG => {
            let mtu = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            Some(ErrorKind::TooBig { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) })
        }
        V6_TIME_EXCEEDED => Some(ErrorKind::TimeExceeded),
        V6_PARAMETER_PROBLEM => Some(ErrorKind::ParameterProblem),
        _ => None,
    }
}
