//! Which connections a command is about.

use crate::control::Query;
use anyhow::{Result, bail};
use clap::Args;
use std::net::{IpAddr, SocketAddr};

/// Which connections are meant: those that fit everything that is given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(super) struct Filter {
    /// Those of this client, these clients, or this client's port.
    #[arg(long, value_name = "ADDRESS|PREFIX|ADDRESS:PORT")]
    client: Option<String>,
    /// Those of this service.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Those to this backend, by name or address.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Those in this state, such as established or syn-sent.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Those that the kernel carries by itself.
    #[arg(long, conflicts_with = "software")]
    offloaded: bool,
    /// Those that the workers carry.
    #[arg(long)]
    software: bool,
}

impl Filter {
    /// Whether it says anything.
    pub(super) fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether the client is one, so that a mistyped one is not taken for one without connections.
    pub(super) fn check(&self) -> Result<()> {
        let Some(client) = &self.client else { return Ok(()) };
        if ClientFilter::parse(client).is_none() {
            bail!(
                "--client {client:?} is neither an address (203.0.113.7), nor a prefix (203.0.113.0/24), nor an address \
                 and port (203.0.113.7:40112, [2001:db8::7]:40112)"
            );
        }
        Ok(())
    }

    /// The same as a query, without a limit.
    pub(super) fn query(&self) -> Query {
        Query {
            client: self.client.clone(),
            service: self.service.clone(),
            backend: self.backend.clone(),
            state: self.state.clone(),
            offloaded: match (self.offloaded, self.software) {
                (true, _) => Some(true),
                (false, true) => Some(false),
                (false, false) => None,
            },
            cursor: None,
            limit: 0,
        }
    }
}

/// What `--client` means.
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

    #[test]
    fn a_mistyped_client_is_an_error_that_shows_the_forms() {
        let filter = Filter { client: Some("203.0.113".into()), ..Filter::default() };
        let error = filter.check().unwrap_err().to_string();
        assert!(error.contains("203.0.113.0/24") && error.contains("[2001:db8::7]:40112"), "{error}");
        assert!(Filter::default().check().is_ok() && Filter::default().is_empty() && !filter.is_empty());
    }
}
