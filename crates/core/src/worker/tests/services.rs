//! Services that change while a worker serves them, and what must hold of it at every instant all the same.

use super::one_worker::{OneWorker, end};
use crate::balance::SHARE_FULL;
use crate::config::{Algorithm, AllDown, Backend, BackendState, Service, ServiceState, Snapshot};
use crate::flow::{Endpoint, FlowKey, Protocol};
use crate::l4::connection::{Connection, Flags, State};
use crate::time::Time;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use proptest::prelude::*;

/// A change of the configuration. Services, backends: whichever is there at that place, going round.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    State(u8, u8, BackendState),
    Weight(u8, u8, u16),
    Algorithm(u8, Algorithm),
    Service(u8, ServiceState),
    AllDown(u8, AllDown),
    /// A backend with a number that is free, or has become so.
    Add(u8),
    /// A backend goes from the configuration: at once if it has no connections, else it is said to be removed.
    Drop(u8, u8),
    /// The pool's number of ports.
    Pool(u16),
    /// Nothing changes.
    Same,
}

pub(super) fn edit() -> impl Strategy<Value = Edit> {
    let states = prop_oneof![
        3 => Just(BackendState::Enabled),
        1 => Just(BackendState::Draining),
        1 => Just(BackendState::Disabled),
        1 => Just(BackendState::Removed),
    ];
    let algorithms = prop_oneof![
        Just(Algorithm::RoundRobin),
        Just(Algorithm::WeightedRoundRobin),
        Just(Algorithm::LeastConnections),
        Just(Algorithm::PowerOfTwo),
    ];
    let services = prop_oneof![2 => Just(ServiceState::Active), 1 => Just(ServiceState::Removed)];
    prop_oneof![
        4 => (any::<u8>(), any::<u8>(), states).prop_map(|(service, backend, state)| Edit::State(service, backend, state)),
        2 => (any::<u8>(), any::<u8>(), 0..4u16).prop_map(|(service, backend, weight)| Edit::Weight(service, backend, weight)),
        1 => (any::<u8>(), algorithms).prop_map(|(service, algorithm)| Edit::Algorithm(service, algorithm)),
        2 => (any::<u8>(), services).prop_map(|(service, state)| Edit::Service(service, state)),
        1 => (any::<u8>(), prop_oneof![Just(AllDown::Refuse), Just(AllDown::UseAll)])
            .prop_map(|(service, all_down)| Edit::AllDown(service, all_down)),
        2 => any::<u8>().prop_map(Edit::Add),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(service, backend)| Edit::Drop(service, backend)),
        1 => (8..40u16).prop_map(Edit::Pool),
        1 => Just(Edit::Same),
    ]
}

/// The identity of a connection.
type Name = (FlowKey, Time);

/// The drawn services, with the backend of each connection at the last look.
#[derive(Default)]
pub(super) struct DrawnServices {
    backends: BTreeMap<Name, Endpoint>,
    added: u8,
}

impl DrawnServices {
    /// Applies a change to what the fixture's worker has, and hands it over.
    pub(super) fn change(&mut self, fixture: &mut OneWorker, ipv6: bool, edit: &Edit) {
        let mut services = fixture.snapshot().services.to_vec();
        let mut pool = fixture.snapshot().pool.clone();
        let mut fresh = Vec::new();
        let at = |which: u8, count: usize| usize::from(which) % count.max(1);
        match *edit {
            Edit::State(service, backend, state) => {
                let count = services.len();
                let service = &mut services[at(service, count)];
                let backend = at(backend, service.backends.len());
                service.backends[backend].state = state;
            }
            Edit::Weight(service, backend, weight) => {
                let count = services.len();
                let service = &mut services[at(service, count)];
                let backend = at(backend, service.backends.len());
                service.backends[backend].weight = weight;
            }
            Edit::Algorithm(service, algorithm) => services[usize::from(service) % 3].algorithm = algorithm,
            Edit::Service(service, state) => services[usize::from(service) % 3].state = state,
            Edit::AllDown(service, all_down) => services[usize::from(service) % 3].all_down = all_down,
            Edit::Add(service) => fresh.extend(self.add(fixture, ipv6, &mut services[usize::from(service) % 3])),
            Edit::Drop(service, backend) => drop_backend(fixture, &mut services[usize::from(service) % 3], backend),
            Edit::Pool(ports) => pool.port_last = pool.port_first + ports,
            Edit::Same => {}
        }
        fixture.reload(Snapshot::new(services.into(), pool), |update| update.fresh = fresh);
    }

    /// Adds a backend whose number no backend has, and whose end no backend ever had.
    fn add(&mut self, fixture: &OneWorker, ipv6: bool, service: &mut Service) -> Option<u16> {
        let statistics = &fixture.worker().statistics().backends;
        let is_free = |&number: &u16| {
            let held = statistics.get(usize::from(number)).is_some_and(|backend| backend.connections_now > 0);
            fixture.snapshot().backend(number).is_none() && !held
        };
        let number = (0..16).find(is_free)?;
        self.added += 1;
        let backend = Backend {
            number,
            name: "new".into(),
            endpoint: end(ipv6, 104 + self.added % 32, 8000),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        };
        fixture.effective_weights.set(number, SHARE_FULL);
        service.backends = service.backends.iter().cloned().chain([backend]).collect();
        Some(number)
    }

    /// The invariants after every step.
    pub(super) fn check(&mut self, fixture: &OneWorker) {
        let connections: Vec<&Connection> = fixture.worker().connections().collect();
        let real = || connections.iter().filter(|connection| connection.state != State::Pass);
        let statistics = fixture.worker().statistics();
        assert_eq!(statistics.connections_now, real().count() as u64);
        assert_eq!(statistics.open_now, statistics.backends.iter().map(|backend| backend.open_now).sum::<u64>());
        // One that is severed does not give way to others: its ends have to be told.
        let none_of = Flags::PROVEN | Flags::PENDING_REMOVAL | Flags::SEVERED;
        let half_open = |connection: &&&Connection| connection.flags.0 & none_of == 0;
        assert_eq!(statistics.half_open_now, real().filter(half_open).count() as u64);
        for (number, backend) in statistics.backends.iter().enumerate() {
            let held = || real().filter(|connection| usize::from(connection.backend_number) == number);
            assert_eq!(backend.connections_now, held().count() as u64, "connections of backend {number}");
            let counted = held().filter(|connection| connection.flags.has(Flags::COUNTED)).count();
            assert_eq!(fixture.load(number as u16), counted as u32, "load of backend {number}");
            assert_eq!(backend.open_now, counted as u64, "open connections of backend {number}");
            assert!(backend.established + backend.failed <= backend.connections, "backend {number} counted twice");
        }
        let name = |connection: &Connection| {
            let key = FlowKey { source: connection.client, destination: connection.vip, protocol: connection.protocol };
            (key, connection.created)
        };
        for connection in real() {
            let backend = self.backends.get(&name(connection)).copied().unwrap_or(connection.backend);
            assert_eq!(connection.backend, backend, "a connection has changed its backend");
            if connection.created == fixture.now {
                let takes = takes_connections(fixture, connection.backend_number);
                assert!(takes, "backend {} got a new connection", connection.backend_number);
            }
        }
        self.backends = real().map(|connection| (name(connection), connection.backend)).collect();
        check_ports(fixture, real().copied());
    }

    /// The invariants once the engine has answered and a second has passed.
    pub(super) fn check_settled(&self, fixture: &OneWorker) {
        assert_eq!(fixture.rules_known(), fixture.engine_keys());
        for connection in fixture.worker().connections().filter(|connection| connection.state != State::Pass) {
            let backend = fixture.snapshot().backend(connection.backend_number);
            let disabled = backend.is_some_and(|(_, backend)| backend.state == BackendState::Disabled);
            let severed = connection.flags.has(Flags::SEVERED);
            assert!(!disabled || severed, "a disabled backend has a connection whose ends are not told");
        }
    }
}

/// The backend at a place goes, if nothing is left of it, or is said to be removed. One stays, so that there are places.
fn drop_backend(fixture: &OneWorker, service: &mut Service, which: u8) {
    let place = usize::from(which) % service.backends.len();
    let number = usize::from(service.backends[place].number);
    let held = fixture.worker().statistics().backends.get(number).is_some_and(|backend| backend.connections_now > 0);
    if held || service.backends.len() == 1 {
        service.backends[place].state = BackendState::Removed;
    } else {
        let others = service.backends.iter().filter(|backend| usize::from(backend.number) != number);
        service.backends = others.cloned().collect();
    }
}

/// Whether the configuration and the checks let a backend have new connections.
fn takes_connections(fixture: &OneWorker, number: u16) -> bool {
    let Some((service, backend)) = fixture.snapshot().backend(number) else { return false };
    let is_enabled = |backend: &Backend| backend.state == BackendState::Enabled && backend.weight > 0;
    let is_up = |backend: &Backend| fixture.effective_weights.of(backend.number).share > 0;
    let all_down = !service.backends.iter().any(|backend| is_enabled(backend) && is_up(backend));
    let counts_as_up = is_up(backend) || all_down && service.all_down == AllDown::UseAll;
    service.state == ServiceState::Active && is_enabled(backend) && counts_as_up
}

/// As many pairs of the pool are in use with each end as connections have them, and none twice.
fn check_ports<'a>(fixture: &OneWorker, connections: impl Iterator<Item = &'a Connection> + Clone) {
    let pool = &fixture.snapshot().pool;
    let services = fixture.snapshot().services.iter();
    let ends = services.flat_map(|service| {
        service.backends.iter().map(|backend| (backend.number, backend.endpoint, service.protocol))
    });
    for (number, backend, protocol) in ends {
        let is_its = |connection: &&Connection| {
            let its: (Endpoint, Protocol) = (connection.backend, connection.protocol);
            let in_pool = pool.addresses.contains(&connection.source.address)
                && (pool.port_first..=pool.port_last).contains(&connection.source.port);
            its == (backend, protocol) && connection.flags.has(Flags::FULL_NAT) && in_pool
        };
        let sources: Vec<Endpoint> = connections.clone().filter(is_its).map(|connection| connection.source).collect();
        let distinct: BTreeSet<Endpoint> = sources.iter().copied().collect();
        assert_eq!(distinct.len(), sources.len(), "a source is used twice");
        assert_eq!(fixture.worker().ports.in_use(number.into()) as usize, sources.len(), "pairs in use with {backend}");
    }
}
