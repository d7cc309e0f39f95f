//! Which connections a command is about.

use crate::control::{ClientFilter, Query};
use anyhow::{Result, bail};
use clap::Args;

/// The connections to show: those that match all filters given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(super) struct FilterArgs {
    /// Only connections of this client, these clients, or this client's port.
    #[arg(long, value_name = "ADDRESS|PREFIX|ADDRESS:PORT")]
    client: Option<String>,
    /// Only connections of this service and its groups, or of this group.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only connections to this backend, by name or address.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Only connections in this state, such as established or syn-sent; HTTP and TLS services: spliced, reading, idle or
    /// others.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only connections that the kernel forwards.
    #[arg(long, conflicts_with = "software")]
    offloaded: bool,
    /// Only connections that the workers forward.
    #[arg(long)]
    software: bool,
}

impl FilterArgs {
    /// Whether it says anything.
    pub(super) fn is_empty(&self) -> bool {
        *self == FilterArgs::default()
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

    /// The filter as a query, without a limit.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_client_error_shows_the_forms() {
        let filter = FilterArgs { client: Some("203.0.113".into()), ..FilterArgs::default() };
        let error = filter.check().unwrap_err().to_string();
        assert!(error.contains("203.0.113.0/24") && error.contains("[2001:db8::7]:40112"), "{error}");
        assert!(FilterArgs::default().check().is_ok() && FilterArgs::default().is_empty() && !filter.is_empty());
    }
}
