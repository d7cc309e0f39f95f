//! Which connections are wanted.

use super::terminated;
use crate::control::{ClientFilter, Query};
use hairpin_core::config::{Service, Snapshot};
use hairpin_core::flow::Endpoint;
use hairpin_core::l4::connection::{Connection, State};
use hairpin_core::l7::splice::{SplicedConnection, SplicedPath, SplicedState};
use hairpin_core::offload::OffloadState;
use hairpin_https::ListedConnection;
use std::net::SocketAddr;

/// Names that an error lists at most.
const LISTED_MAX: usize = 20;

/// Which connections are wanted.
#[derive(Debug, Default)]
pub(super) struct ConnectionFilter {
    client: Option<ClientFilter>,
    /// The service or group, and behind a service its groups.
    services: Option<Vec<u16>>,
    backends: Option<Vec<u16>>,
    state: Option<AskedState>,
    offloaded: Option<bool>,
}

/// A state by name: connections that are forwarded and those that are spliced have different ones.
#[derive(Clone, Copy, Debug)]
struct AskedState {
    forwarded: Option<State>,
    spliced: Option<&'static str>,
    terminated: Option<&'static str>,
}

impl ConnectionFilter {
    pub(super) fn of(query: &Query, snapshot: &Snapshot) -> Result<ConnectionFilter, String> {
        let services = query.service.as_ref().map(|name| {
            let Some(first) = snapshot.services.iter().position(|service| *service.name == **name) else {
                let names: Vec<&str> = snapshot.services.iter().map(|service| &*service.name).collect();
                return Err(unknown("service", name, &names));
            };
            let of = snapshot.services[first].endpoint.address;
            let is_group = |(_, service): &(u16, &Service)| {
                let its = service.name.rsplit_once('/').is_some_and(|(service, _)| *service == **name);
                service.kind.is_group() && its && service.endpoint.address == of
            };
            let groups = (0..).zip(&snapshot.services).filter(is_group).map(|(number, _)| number);
            Ok([first as u16].into_iter().chain(groups).collect())
        });
        let backends = query.backend.as_ref().map(|name| {
            let all = snapshot.services.iter().flat_map(|service| &service.backends);
            let fit = all.clone().filter(|backend| *backend.name == **name || backend.endpoint.to_string() == *name);
            let numbers: Vec<u16> = fit.map(|backend| backend.number).collect();
            let names: Vec<&str> = all.map(|backend| &*backend.name).collect();
            if numbers.is_empty() { Err(unknown("backend", name, &names)) } else { Ok(numbers) }
        });
        let state = query.state.as_ref().map(|name| {
            let forwarded = State::ALL.into_iter().find(|state| state.name() == name);
            let spliced = SplicedState::NAMES.into_iter().find(|state| state == name);
            let terminated = terminated::STATES.into_iter().find(|state| state == name);
            if forwarded.is_none() && spliced.is_none() && terminated.is_none() {
                let names = State::ALL.iter().map(|state| state.name()).chain(SplicedState::NAMES);
                let names = names.chain(terminated::STATES.into_iter().filter(|state| *state != "reading"));
                return Err(unknown("state", name, &names.collect::<Vec<&str>>()));
            }
            Ok(AskedState { forwarded, spliced, terminated })
        });
        Ok(ConnectionFilter {
            client: query.client.as_deref().map(client).transpose()?,
            services: services.transpose()?,
            backends: backends.transpose()?,
            state: state.transpose()?,
            offloaded: query.offloaded,
        })
    }

    /// Whether a connection of the table is.
    pub(super) fn fits(&self, connection: &Connection) -> bool {
        let client = self.client.is_none_or(|client| client.fits(address(connection.client)));
        // Pass entries are no connections; they are shown only if that state is asked for.
        let state = match self.state {
            Some(state) => state.forwarded == Some(connection.state),
            None => connection.state != State::Pass,
        };
        client
            && state
            && self.services.as_ref().is_none_or(|services| services.contains(&connection.service))
            && self.backends.as_ref().is_none_or(|backends| backends.contains(&connection.backend_number))
            && self.offloaded.is_none_or(|offloaded| (connection.pair.state() == OffloadState::Offloaded) == offloaded)
    }

    /// Whether one of an HTTP or TLS service is.
    pub(super) fn fits_spliced(&self, connection: &SplicedConnection) -> bool {
        let client = |filter: ClientFilter| connection.client.is_some_and(|(client, _)| filter.fits(address(client)));
        let group = connection.exchange.map(|exchange| exchange.group);
        let of = [Some(connection.service), group];
        let backend = connection.backend.map(|backend| backend.number);
        self.client.is_none_or(client)
            && self.state.is_none_or(|state| state.spliced == Some(connection.state.name()))
            && self.services.as_ref().is_none_or(|them| of.into_iter().flatten().any(|number| them.contains(&number)))
            && self.backends.as_ref().is_none_or(|them| backend.is_some_and(|number| them.contains(&number)))
            && self.offloaded.is_none_or(|offloaded| (connection.path == SplicedPath::Offloaded) == offloaded)
    }

    /// Whether one of a service that ends here is.
    pub(super) fn fits_terminated(&self, connection: &ListedConnection) -> bool {
        self.client.is_none_or(|filter| filter.fits(address(connection.client)))
            && self.state.is_none_or(|state| state.terminated == Some(terminated::state(connection)))
            && self.services.as_ref().is_none_or(|them| them.contains(&connection.service))
            && self.backends.as_ref().is_none_or(|them| connection.backend.is_some_and(|one| them.contains(&one)))
            && self.offloaded != Some(true)
    }
}

fn address(end: Endpoint) -> SocketAddr {
    SocketAddr::new(end.address.into(), end.port)
}

fn unknown(what: &str, name: &str, names: &[&str]) -> String {
    match crate::config::nearest(name, names) {
        Some(near) => format!("there is no {what} \"{name}\"; did you mean \"{near}\"?"),
        None if names.is_empty() => format!("there is no {what} \"{name}\"; there is none"),
        None => {
            let more = if names.len() > LISTED_MAX { ", ..." } else { "" };
            format!(
                "there is no {what} \"{name}\"; there are: {}{more}",
                names[..names.len().min(LISTED_MAX)].join(", ")
            )
        }
    }
}

fn client(text: &str) -> Result<ClientFilter, String> {
    ClientFilter::parse(text).ok_or_else(|| {
        format!("\"{text}\" is no client; write 192.0.2.1, 192.0.2.0/24, 192.0.2.1:4000 or [2001:db8::1]:4000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::flow::Protocol;
    use hairpin_core::time::Time;

    fn connection(client: &str, state: State) -> Connection {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().unwrap();
            Endpoint::new(end.ip(), end.port())
        };
        let ends = [end(client), end("192.0.2.1:80"), end("10.0.0.1:8080"), end(client)];
        Connection::new(Time::ZERO, Protocol::Tcp, state, ends)
    }

    #[test]
    fn clients_are_named_by_address_net_or_end() {
        let fits = |text: &str, who: &str| {
            let filter = ConnectionFilter { client: Some(client(text).unwrap()), ..ConnectionFilter::default() };
            filter.fits(&connection(who, State::Established))
        };
        assert!(fits("198.51.100.7", "198.51.100.7:1"));
        assert!(!fits("198.51.100.7", "198.51.100.8:1"));
        assert!(fits("198.51.100.0/24", "198.51.100.8:1"));
        assert!(!fits("198.51.101.0/24", "198.51.100.8:1"));
        assert!(fits("0.0.0.0/0", "198.51.100.8:1"));
        assert!(!fits("0.0.0.0/0", "[2001:db8::1]:1"));
        assert!(fits("198.51.100.8:1", "198.51.100.8:1"));
        assert!(!fits("198.51.100.8:2", "198.51.100.8:1"));
        assert!(fits("2001:db8::/32", "[2001:db8:1::1]:1"));
        assert!(fits("::/0", "[2001:db8:1::1]:1"));
        assert!(fits("[2001:db8::1]:9", "[2001:db8::1]:9"));
        for wrong in ["", "x", "198.51.100.0/33", "::/129", "1.2.3.4:99999"] {
            assert!(client(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_by_the_near_or_all() {
        assert_eq!(unknown("state", "opne", &["open", "shut"]), "there is no state \"opne\"; did you mean \"open\"?");
        assert_eq!(unknown("state", "x-y-z", &["open", "shut"]), "there is no state \"x-y-z\"; there are: open, shut");
        let names = ["web"; LISTED_MAX + 1];
        let listed = unknown("service", "something", &names);
        assert_eq!((listed.matches("web").count(), listed.ends_with(", ...")), (LISTED_MAX, true), "{listed}");
        assert_eq!(unknown("service", "x", &[]), "there is no service \"x\"; there is none");
    }

    #[test]
    fn pass_entries_are_shown_only_on_request() {
        let all = ConnectionFilter::default();
        assert!(!all.fits(&connection("198.51.100.7:1", State::Pass)));
        let passes = ConnectionFilter {
            state: Some(AskedState { forwarded: Some(State::Pass), spliced: None, terminated: None }),
            ..ConnectionFilter::default()
        };
        assert!(passes.fits(&connection("198.51.100.7:1", State::Pass)));
        assert!(!passes.fits(&connection("198.51.100.7:1", State::Established)));
    }
}
