//! The configuration as the data plane sees it: an immutable snapshot, validated before it gets here.

use crate::access::AccessList;
use crate::flow::{Address, Endpoint, Protocol};
use crate::keys::Keys;
use crate::l7::config::{Kind, ServerErrors};
use crate::limit::Limit;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

/// How packets of a service are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// Only the destination changes; the backend sees the client's address and routes back through Hairpin.
    #[default]
    Nat,
    /// The source too: an address and port from the pool.
    FullNat,
    /// Direct server return: nothing changes but the next hop, which is the backend's. It has the VIP, and answers the
    /// client without Hairpin.
    Direct,
}

/// What a packet to a backend of direct server return is wrapped in, so that the backend may be any number of hops away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// Nothing: the backend is on a link of this host.
    #[default]
    None,
    /// An IP header (RFC 2003, RFC 2473).
    Ipip,
    /// IP and UDP: variant 1 of GUE (draft-ietf-intarea-gue-09, section 4).
    Gue,
}

/// The outer headers of packets to backends of direct server return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    /// Which there are.
    pub encapsulation: Encapsulation,
    /// The destination port of [`Encapsulation::Gue`].
    pub port: u16,
    /// The source address for backends of its family. `None`, and for other backends: the one that the kernel, or the dpdk
    /// plane, has for the backend's route.
    pub source: Option<Address>,
}

impl Outer {
    /// The configured source address for packets to `backend`.
    pub fn source_for(&self, backend: &Address) -> Option<Address> {
        self.source.filter(|source| source.is_ipv4() == backend.is_ipv4())
    }

    /// How many bytes they take if they are of this family: of the backend's, whatever is inside.
    pub fn bytes(&self, is_ipv4: bool) -> u8 {
        let ip = if is_ipv4 { 20 } else { 40 };
        match self.encapsulation {
            Encapsulation::None => 0,
            Encapsulation::Ipip => ip,
            Encapsulation::Gue => ip + 8,
        }
    }
}

/// How a backend is chosen for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// One after the other; weights are ignored.
    #[default]
    RoundRobin,
    /// In proportion to weights, smoothly interleaved.
    WeightedRoundRobin,
    /// The fewest connections per weight.
    LeastConnections,
    /// The less loaded (connections per weight) of two drawn at random by weight (Mitzenmacher 2001).
    PowerOfTwo,
    /// Maglev consistent hashing of the 5-tuple, with weights (Eisenbud et al., NSDI 2016).
    Maglev,
    /// Maglev's table indexed by a hash of the client's address alone: one client, one backend.
    SourceHash,
    /// Maglev's table indexed by a hash of a field of each request, [`Service::hash_name`]; without that field by the client's
    /// address.
    HeaderHash,
    /// Likewise by a hash of the cookie [`Service::hash_name`] of each request.
    CookieHash,
    /// Likewise by a hash of the path of each request, without its query.
    PathHash,
    /// The one of two drawn at random by weight whose latency times requests, per weight, is less: peak EWMA
    /// ([`Latencies`](crate::balance::Latencies)).
    LeastLatency,
}

impl Algorithm {
    /// Whether it goes by requests, so that only services that have some can have it.
    pub fn is_of_requests(self) -> bool {
        self.hashes_requests() || self == Algorithm::LeastLatency
    }

    /// Whether a part of each request chooses.
    pub fn hashes_requests(self) -> bool {
        matches!(self, Algorithm::HeaderHash | Algorithm::CookieHash | Algorithm::PathHash)
    }

    /// Whether it needs [`Service::hash_name`].
    pub fn has_hash_name(self) -> bool {
        matches!(self, Algorithm::HeaderHash | Algorithm::CookieHash)
    }

    /// Whether backends are chosen by Maglev's table.
    pub fn is_hash(self) -> bool {
        matches!(self, Algorithm::Maglev | Algorithm::SourceHash) || self.hashes_requests()
    }

    /// Whether all connections, or requests, of one key belong to one backend.
    pub fn has_affinity(self) -> bool {
        self == Algorithm::SourceHash || self.hashes_requests()
    }
}

/// Numbers of backends there can be: 0 to one less than this.
pub const BACKENDS_MAX: u32 = 16_384;

/// Whether a backend takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendState {
    /// It takes new connections.
    #[default]
    Enabled,
    /// It keeps the connections it has and takes no new ones.
    Draining,
    /// It has no connections.
    Disabled,
    /// The configuration has it no longer: it keeps the connections it has, for a while, and takes no new ones.
    Removed,
}

/// A server of a service.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its number among all backends of the instance, 0 to 16,383. It stays the same from snapshot to snapshot as long as
    /// it has connections, so connections, counters and rules go by it.
    pub number: u16,
    /// Its name, for people.
    pub name: Box<str>,
    /// The address that it listens on; of the same family as the service.
    pub endpoint: Endpoint,
    /// Its share of new connections, 0 to 65535; with 0 it gets none.
    pub weight: u16,
    /// Whether it takes connections.
    pub state: BackendState,
    /// Whether it takes new connections only while no backend of its service that is no backup does.
    pub is_backup: bool,
    /// Connections that it may have at a time, of all workers together, before it gets no new ones; of HTTP services requests.
    /// 0: any number. As many more as there are workers may come at one moment.
    pub connections_max: u32,
}

/// The policy for a TCP packet, not a SYN, to a service that belongs to no known connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownPacket {
    /// Dropped, counted.
    #[default]
    Drop,
    /// Answered with RST (RFC 9293, 3.5.2), counted.
    Reset,
    /// Taken as a packet of an established connection of the backend Maglev names, so that another balancer's
    /// connections can be taken over. With full NAT it is dropped: the other balancer's source port is not known.
    PickUp,
}

/// The policy for the first packet of a connection for which there is no room in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Dropped: its client sends it again, and there may be room then.
    #[default]
    Drop,
    /// Answered with RST (TCP) or ICMP port unreachable (UDP): its client goes elsewhere, or gives up.
    Reset,
}

/// How long a silent connection is remembered, by state.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// TCP, from the first SYN until the handshake is complete.
    pub tcp_handshake: Duration,
    /// TCP, established.
    pub tcp_established: Duration,
    /// TCP, one side has sent FIN.
    pub tcp_half_closed: Duration,
    /// TCP, both sides have sent FIN.
    pub tcp_closed: Duration,
    /// TCP, after a RST; traffic in this time brings the connection back (a forged RST kills nothing).
    pub tcp_reset: Duration,
    /// UDP, until the backend has answered and the client spoken again: one question and its answer end here.
    pub udp_new: Duration,
    /// UDP, both sides have spoken.
    pub udp_established: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            tcp_handshake: Duration::from_secs(30),
            tcp_established: Duration::from_secs(3600),
            tcp_half_closed: Duration::from_secs(120),
            tcp_closed: Duration::from_secs(5),
            tcp_reset: Duration::from_secs(5),
            udp_new: Duration::from_secs(30),
            udp_established: Duration::from_secs(180),
        }
    }
}

/// Whether a service takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceState {
    /// It is configured.
    #[default]
    Active,
    /// The configuration has it no longer; the connections it has go on for a while.
    Removed,
    /// A number that no service has.
    Vacant,
}

/// The policy for new connections when a service has backends enabled, but all of them are down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllDown {
    /// They are refused (RST, ICMP port unreachable), as with no backend at all.
    #[default]
    Refuse,
    /// They are spread over the enabled backends as if all were up: checks may be wrong, and nothing is lost by trying.
    UseAll,
}

/// A service: what clients connect to, and who serves it.
#[derive(Clone, Debug)]
pub struct Service {
    /// Whether it takes connections.
    pub state: ServiceState,
    /// Its name, for people.
    pub name: Box<str>,
    /// The VIP and port.
    pub endpoint: Endpoint,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The protocol and its settings.
    pub kind: Kind,
    /// How packets of connections to its backends are translated. Of a terminated service: whether spliced services lead to
    /// its backends, too (full NAT).
    pub forwarding: Forwarding,
    /// The outer headers of what its backends get, if it is [`Forwarding::Direct`].
    pub outer: Outer,
    /// How backends are chosen.
    pub algorithm: Algorithm,
    /// The field, in small letters, or the cookie that [`Algorithm::HeaderHash`] or [`Algorithm::CookieHash`] goes by; empty
    /// for others.
    pub hash_name: Box<[u8]>,
    /// The policy for packets of unknown connections.
    pub unknown: UnknownPacket,
    /// Which clients' connections may begin, of a service without requests; `None`: all.
    pub access: Option<Arc<AccessList>>,
    /// How much each of its clients may ask for, [`LIMITS_MAX`](crate::limit::LIMITS_MAX) at most.
    pub limits: Box<[Limit]>,
    /// How long silence is borne.
    pub timeouts: Timeouts,
    /// How long connections go on whose backend drains or was removed; zero: until they end.
    pub drain_limit: Duration,
    /// The policy for new connections when no enabled backend is up.
    pub all_down: AllDown,
    /// HTTP services and groups: the statuses with which a response speaks against its backend (passive checks).
    pub faulty: ServerErrors,
    /// Records are kept of its exchanges and connections (`crate::record`).
    pub is_recorded: bool,
    /// Its servers, those that were removed and still have connections among them.
    pub backends: Box<[Backend]>,
}

/// Source addresses and ports for full NAT.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The addresses, of either family.
    pub addresses: Box<[Address]>,
    /// First port.
    pub port_first: u16,
    /// Last port, not below the first.
    pub port_last: u16,
    /// How long a port rests after a connection whose TIME_WAIT is (or may be) at the backend (RFC 9293, 3.6.1).
    pub time_wait: Duration,
}

/// All a worker needs to know.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The services; their position is their number, which stays the same from snapshot to snapshot as long as the
    /// service has connections. A number that no service has is [`ServiceState::Vacant`].
    pub services: Box<[Service]>,
    /// The full-NAT pool; empty addresses if no service needs it.
    pub pool: Pool,
    /// The policy for new connections while the table is full.
    pub when_full: WhenFull,
    /// Secrets that this balancer shares with others.
    pub keys: Keys,
    /// Which configuration it is: another number for each other one, the same from process to process. 0: that is not
    /// known, and it counts as another one in every process.
    pub id: u64,
    /// By backend number: service and position in it.
    places: Box<[Option<(u16, u16)>]>,
}

impl Service {
    /// Whether clients' connections are limited, not only requests.
    pub fn limits_connections(&self) -> bool {
        self.limits.iter().any(Limit::is_of_connections)
    }

    /// Whether packets to `backend` are wrapped in outer headers of another family than their own.
    pub fn is_mixed(&self, backend: &Backend) -> bool {
        self.forwarding == Forwarding::Direct
            && self.outer.encapsulation != Encapsulation::None
            && backend.endpoint.address.is_ipv4() != self.endpoint.address.is_ipv4()
    }
}

impl Snapshot {
    /// A snapshot of services whose backends have numbers, each its own.
    pub fn new(services: Box<[Service]>, pool: Pool) -> Snapshot {
        let numbers = services.iter().flat_map(|service| service.backends.iter().map(|backend| backend.number));
        let count = numbers.max().map_or(0, |highest| usize::from(highest) + 1);
        let mut places = vec![None; count];
        for (number, service) in services.iter().enumerate() {
            for (index, backend) in service.backends.iter().enumerate() {
                places[usize::from(backend.number)] = Some((number as u16, index as u16));
            }
        }
        Snapshot { services, pool, when_full: WhenFull::Drop, keys: Keys::default(), id: 0, places: places.into() }
    }

    /// One more than the highest number of a backend: how long arrays by number are.
    pub fn backends(&self) -> u32 {
        self.places.len() as u32
    }

    /// The backend with this number: its service's number, and its position in that.
    pub fn place(&self, number: u16) -> Option<(u16, u16)> {
        *self.places.get(usize::from(number))?
    }

    /// The backend with this number, and its service.
    pub fn backend(&self, number: u16) -> Option<(&Service, &Backend)> {
        let (service, index) = self.place(number)?;
        let service = self.services.get(usize::from(service))?;
        Some((service, service.backends.get(usize::from(index))?))
    }
}

impl Service {
    /// The entry at a number that no service has.
    pub fn vacant() -> Service {
        Service {
            state: ServiceState::Vacant,
            name: Box::from(""),
            endpoint: Endpoint::default(),
            protocol: Protocol::Tcp,
            kind: Kind::default(),
            forwarding: Forwarding::default(),
            outer: Outer::default(),
            algorithm: Algorithm::default(),
            hash_name: Box::default(),
            unknown: UnknownPacket::default(),
            access: None,
            limits: Box::default(),
            timeouts: Timeouts::default(),
            drain_limit: Duration::ZERO,
            all_down: AllDown::default(),
            faulty: ServerErrors::default(),
            is_recorded: false,
            backends: Box::default(),
        }
    }
}
