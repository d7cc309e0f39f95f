//! Which clients a query is about.

use std::net::{IpAddr, SocketAddr};

/// The meaning of [`Query::client`](super::Query::client).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientFilter {
    /// The address; of a prefix, any in it.
    pub(crate) address: IpAddr,
    /// How many of its leading bits count.
    pub(crate) prefix: u8,
    /// The port, if it counts.
    pub(crate) port: Option<u16>,
}

impl ClientFilter {
    /// Reads one; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<ClientFilter> {
        let whole = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Some(ClientFilter { address: end.ip(), prefix: whole(end.ip()), port: Some(end.port()) });
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let prefix = match prefix {
            // "+8" would be read as a number.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            Some(_) => return None,
            None => whole(address),
        };
        (prefix <= whole(address)).then_some(ClientFilter { address, prefix, port: None })
    }

    /// Whether it is one address.
    pub(crate) fn is_host(&self) -> bool {
        self.prefix == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether an end fits.
    pub(crate) fn fits(&self, end: SocketAddr) -> bool {
        let same = match (self.address, end.ip()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                leading(u128::from(ours.to_bits() ^ theirs.to_bits()) << 96, self.prefix)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => leading(ours.to_bits() ^ theirs.to_bits(), self.prefix),
            _ => false,
        };
        same && self.port.is_none_or(|port| port == end.port())
    }
}

/// Whether the `bits` leading bits of `difference` are zero.
fn leading(difference: u128, bits: u8) -> bool {
    difference.leading_zeros() >= u32::from(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_addresses_prefixes_or_ends() {
        let fits = |filter: &str, end: &str| ClientFilter::parse(filter).map(|f| f.fits(end.parse().unwrap()));
        assert_eq!(fits("203.0.113.7", "203.0.113.7:9"), Some(true));
        assert_eq!(fits("203.0.113.7", "203.0.113.8:9"), Some(false));
        assert_eq!(fits("203.0.113.7:9", "203.0.113.7:9"), Some(true));
        assert_eq!(fits("203.0.113.7:9", "203.0.113.7:10"), Some(false));
        assert_eq!(fits("203.0.113.0/24", "203.0.113.255:1"), Some(true));
        assert_eq!(fits("203.0.113.0/24", "203.0.114.0:1"), Some(false));
        assert_eq!(fits("203.0.113.9/31", "203.0.113.8:1"), Some(true));
        assert_eq!(fits("0.0.0.0/0", "203.0.113.7:9"), Some(true));
        assert_eq!(fits("0.0.0.0/0", "[2001:db8::7]:9"), Some(false));
        assert_eq!(fits("2001:db8::/32", "[2001:db8:ffff::1]:9"), Some(true));
        assert_eq!(fits("2001:db8::/32", "[2001:db9::1]:9"), Some(false));
        assert_eq!(fits("::/0", "[2001:db9::1]:9"), Some(true));
        assert_eq!(fits("[2001:db8::7]:9", "[2001:db8::7]:9"), Some(true));
        for wrong in ["", "web", "203.0.113", "203.0.113.0/33", "203.0.113.0/", "203.0.113.0/+8", "::/129", "::1:x"] {
            assert_eq!(ClientFilter::parse(wrong), None, "{wrong}");
        }
    }
}
