//! The stored entries of services and backends, as it is written to the file.

use crate::config::words::Worded;
use hairpin_core::config::{
    Algorithm, AllDown, Backend, BackendState, Encapsulation, Forwarding, Outer, Service, ServiceState, Timeouts,
    UnknownPacket,
};
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::l7::config::{Kind, ServerErrors, Terminated};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::time::Duration;

/// A service that has a number: all that it takes to serve its connections when the configuration has it no longer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServiceEntry {
    pub(super) name: String,
    #[serde(with = "endpoint")]
    pub(super) address: Endpoint,
    pub(super) protocol: Worded<Protocol>,
    /// Whether it is a group: backends that routes of other services lead to.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) group: bool,
    /// Whether its connections end at sockets of this host.
    #[serde(default, skip_serializing_if = "is_false")]
    terminated: bool,
    /// Whether the configuration has it no longer.
    pub(super) removed: bool,
    pub(super) mode: Worded<Forwarding>,
    /// With direct server return: the outer headers of packets to backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outer: Option<OuterEntry>,
    balance: Worded<Algorithm>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    hash_name: String,
    unknown: Worded<UnknownPacket>,
    all_down: Worded<AllDown>,
    #[serde(with = "TimeoutsEntry")]
    timeouts: Timeouts,
    pub(super) drain_limit: Duration,
}

impl ServiceEntry {
    /// The stored entry of a service of the configuration.
    pub(super) fn of(service: &Service) -> ServiceEntry {
        ServiceEntry {
            name: service.name.to_string(),
            address: service.endpoint,
            protocol: Worded(service.protocol),
            group: service.kind.is_group(),
            terminated: service.kind.is_terminated(),
            removed: false,
            mode: Worded(service.forwarding),
            outer: OuterEntry::of(&service.outer),
            balance: Worded(service.algorithm),
            hash_name: String::from_utf8_lossy(&service.hash_name).into_owned(),
            unknown: Worded(service.unknown),
            all_down: Worded(service.all_down),
            timeouts: service.timeouts,
            drain_limit: service.drain_limit,
        }
    }

    /// The fields that identify a service across configurations.
    pub(super) fn identity(&self) -> Identity<'_> {
        Identity { end: (self.address, self.protocol.0), group: self.group.then_some(&*self.name) }
    }

    /// The service for the workers. What it does with its connections is known of a service that the configuration has.
    /// Without that, it is one that takes none: what it forwarded goes on to be forwarded, what it spliced has ended, and
    /// what it terminated goes on at its sockets.
    pub(super) fn service(&self, kind: Option<Kind>, backends: Box<[Backend]>) -> Service {
        let without = || match (self.group, self.terminated) {
            (true, _) => Kind::Group,
            (false, true) => Kind::Terminated(Box::new(Terminated { tls: true, ..Terminated::default() })),
            (false, false) => Kind::Forward,
        };
        Service {
            state: if self.removed { ServiceState::Removed } else { ServiceState::Active },
            name: self.name.as_str().into(),
            endpoint: self.address,
            protocol: self.protocol.0,
            kind: kind.unwrap_or_else(without),
            forwarding: self.mode.0,
            outer: self.outer.as_ref().map_or_else(Outer::default, OuterEntry::outer),
            algorithm: self.balance.0,
            hash_name: self.hash_name.as_bytes().into(),
            unknown: self.unknown.0,
            access: None,
            limits: Box::default(),
            all_down: self.all_down.0,
            timeouts: self.timeouts,
            drain_limit: self.drain_limit,
            faulty: ServerErrors::default(),
            is_recorded: false,
            backends,
        }
    }
}

/// The outer headers that a service has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OuterEntry {
    encapsulation: Worded<Encapsulation>,
    port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
}

impl OuterEntry {
    fn of(outer: &Outer) -> Option<OuterEntry> {
        let source = outer.source.map(IpAddr::from);
        (outer.encapsulation != Encapsulation::None).then_some(OuterEntry {
            encapsulation: Worded(outer.encapsulation),
            port: outer.port,
            source,
        })
    }

    fn outer(&self) -> Outer {
        Outer { encapsulation: self.encapsulation.0, port: self.port, source: self.source.map(Address::from) }
    }
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The identity of a service across configurations: the address that it listens on. A group listens nowhere: its name
/// (with its service's in front), the address of its service's VIP and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity<'a> {
    pub(super) end: (Endpoint, Protocol),
    group: Option<&'a str>,
}

impl Identity<'_> {
    /// That of a service of the configuration.
    pub(crate) fn of(service: &Service) -> Identity<'_> {
        let group = service.kind.is_group().then_some(&*service.name);
        Identity { end: (service.endpoint, service.protocol), group }
    }
}

/// A backend that has a number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BackendEntry {
    /// Its service's number.
    pub(super) service: u16,
    pub(super) name: String,
    #[serde(with = "endpoint")]
    pub(super) address: Endpoint,
    /// The weight in force, an override included.
    pub(super) weight: u16,
    /// The state in force, an override included.
    pub(super) state: Worded<BackendState>,
    #[serde(default, skip_serializing_if = "is_false")]
    backup: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    connections_max: u32,
    /// Since when it has taken no new connections, in seconds since 1970; `None` while it takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since_unix_s: Option<u64>,
    /// A registry of 0.1 calls it `by_hand`.
    #[serde(default, alias = "by_hand", skip_serializing_if = "Option::is_none")]
    pub(super) overridden: Option<Override>,
}

impl BackendEntry {
    /// A backend that the configuration has just now.
    pub(super) fn new(service: u16, backend: &Backend) -> BackendEntry {
        BackendEntry {
            service,
            name: backend.name.to_string(),
            address: backend.endpoint,
            weight: backend.weight,
            state: Worded(backend.state),
            backup: backend.is_backup,
            connections_max: backend.connections_max,
            since_unix_s: None,
            overridden: None,
        }
    }

    /// Takes over what the configuration says. Returns whether that has ended an override.
    pub(super) fn configure(&mut self, backend: &Backend, now_unix_s: u64) -> bool {
        let configured = Configured::of(backend);
        let ended = self.overridden.take_if(|overridden| overridden.was != configured).is_some();
        let overridden = self.overridden.as_ref();
        self.name = backend.name.to_string();
        self.backup = backend.is_backup;
        self.connections_max = backend.connections_max;
        self.weight = overridden.and_then(|overridden| overridden.weight).unwrap_or(backend.weight);
        self.state = overridden.and_then(|overridden| overridden.state).unwrap_or(Worded(backend.state));
        if self.state.0 == BackendState::Enabled {
            self.since_unix_s = None;
        } else {
            self.since_unix_s.get_or_insert(now_unix_s);
        }
        ended
    }

    /// The configuration has it no longer.
    pub(super) fn remove(&mut self, now_unix_s: u64) {
        self.state = Worded(BackendState::Removed);
        self.since_unix_s.get_or_insert(now_unix_s);
        self.overridden = None;
    }

    /// The backend for the workers.
    pub(super) fn backend(&self, number: u16) -> Backend {
        Backend {
            number,
            name: self.name.as_str().into(),
            endpoint: self.address,
            weight: self.weight,
            state: self.state.0,
            is_backup: self.backup,
            connections_max: self.connections_max,
        }
    }
}

/// An override, and what the configuration said when it was made: it holds as long as that says the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Override {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<Worded<BackendState>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) weight: Option<u16>,
    pub(super) was: Configured,
}

/// The configured values of settings that can be overridden.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Configured {
    pub(super) state: Worded<BackendState>,
    pub(super) weight: u16,
}

impl Configured {
    pub(super) fn of(backend: &Backend) -> Configured {
        Configured { state: Worded(backend.state), weight: backend.weight }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Timeouts")]
struct TimeoutsEntry {
    tcp_handshake: Duration,
    tcp_established: Duration,
    tcp_half_closed: Duration,
    tcp_closed: Duration,
    tcp_reset: Duration,
    udp_new: Duration,
    udp_established: Duration,
}

/// Ends as `address:port`.
mod endpoint {
    use hairpin_core::flow::Endpoint;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::net::SocketAddr;

    pub(super) fn serialize<S: Serializer>(end: &Endpoint, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(end)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Endpoint, D::Error> {
        let end = SocketAddr::deserialize(deserializer)?;
        Ok(Endpoint::new(end.ip(), end.port()))
    }
}
