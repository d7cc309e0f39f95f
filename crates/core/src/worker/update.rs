//! Another snapshot for a running worker: made elsewhere, taken over between two bursts, what it replaces handed back.
//!
//! Taking over takes time in proportion to services and backends, never to connections, with two exceptions. When the
//! full-NAT pool has other addresses or ports, every connection that has its source from the pool is marked in the new one
//! (some 20 ns each). When a limit of connections at a time is new, it counts all connections of its service.
//!
//! # What goes on as it was
//! Connections, whatever the new snapshot says about their service: they keep their backend, their translation and, until
//! they are next judged, their timeout. Balancers of services that have not changed. Source ports in use or at rest.
//! Counters of every number that is not said to be another's now.
//!
//! # What ends
//! Connections of a backend that is [`Disabled`](BackendState::Disabled); UDP connections of one that goes down; and what
//! the update says. All of that by `sweep`, in small pieces.

use super::ends::Ends;
use super::statistics::{BackendStatistics, ServiceStatistics};
use super::{Which, Worker};
use crate::balance::{Balancer, Loads, Tables};
use crate::config::{BackendState, Forwarding, ServiceState, Snapshot};
use crate::flow::{Endpoint, FlowKey, Protocol, Steering};
use crate::l4::connection::Flags;
use crate::l4::ports::PortPool;
use crate::offload::OffloadPolicy;
use crate::table::Table;
use crate::time::Time;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::mem::swap;

/// A snapshot and all that a worker needs with it. Making it may take long (tables, allocations): not in the worker's
/// thread.
pub struct Update {
    pub(super) snapshot: Arc<Snapshot>,
    /// The services that take connections.
    pub(super) services: Ends,
    /// The ends of all backends whose answers pass here, with the number of one that has it.
    pub(super) backends: Ends,
    /// The ends of backends that serve one service only, which picks up.
    pub(super) guessed: Ends,
    pub(super) balancers: Vec<Balancer>,
    pub(super) ports: PortPool,
    service_statistics: Box<[ServiceStatistics]>,
    backend_statistics: Box<[BackendStatistics]>,
    /// Numbers that backends have who are not those of before: their counters start anew.
    pub fresh: Vec<u16>,
    /// Numbers that services have that are not those of before: their counters start anew.
    pub fresh_services: Vec<u16>,
    /// Connections to end, beside those of disabled backends, by backend number.
    pub ended: Vec<(u16, Which)>,
}

/// The state that an update has replaced; to be dropped outside the worker's thread.
#[expect(dead_code, reason = "it is there to be dropped")]
pub struct Retired(Update, Option<Arc<Snapshot>>);

impl Update {
    /// For worker `worker`. `tables` are those made for `snapshot`; `seed` is for draws and need not be secret.
    pub fn new(
        snapshot: Arc<Snapshot>,
        tables: &Tables,
        loads: &Loads,
        steering: &Steering,
        worker: u16,
        seed: u64,
    ) -> Update {
        let mut services: BTreeMap<(Endpoint, Protocol), u16> = BTreeMap::new();
        let mut backends: BTreeMap<(Endpoint, Protocol), u16> = BTreeMap::new();
        let mut balancers = Vec::with_capacity(snapshot.services.len());
        for (number, service) in (0..).zip(&snapshot.services) {
            if service.state == ServiceState::Active && !service.kind.is_group() && !service.kind.is_terminated() {
                services.insert((service.endpoint, service.protocol), number);
            }
            // Nothing that backends of direct server return send is a service's from their own end.
            let answers_pass = service.forwarding != Forwarding::Direct;
            for backend in service.backends.iter().filter(|_| answers_pass) {
                let end = (backend.endpoint, service.protocol);
                let number = backends.entry(end).or_insert(backend.number);
                // One that the configuration has says more than one that it has no longer.
                if backend.state != BackendState::Removed {
                    *number = backend.number;
                }
            }
            let share = (worker, steering.workers);
            let seed = seed.wrapping_add(u64::from(number));
            balancers.push(Balancer::with_table(service, (tables, number), loads.clone(), share, seed));
        }
        Update {
            services: Ends::from(&services),
            backends: Ends::from(&backends),
            guessed: super::guess::ends(&snapshot),
            balancers,
            ports: PortPool::for_snapshot(&snapshot, steering, worker, seed),
            service_statistics: vec![ServiceStatistics::default(); snapshot.services.len()].into(),
            backend_statistics: vec![BackendStatistics::default(); snapshot.backends() as usize].into(),
            snapshot,
            fresh: Vec::new(),
            fresh_services: Vec::new(),
            ended: Vec::new(),
        }
    }
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Takes another snapshot over. Between two bursts; see the documentation of this module for what it means for
    /// connections. Numbers must mean what they meant before, but for those that the update calls fresh, and those have no
    /// connections.
    pub fn reconfigure(&mut self, now: Time, mut update: Update) -> Retired {
        for (next, before) in update.balancers.iter_mut().zip(&mut self.balancers) {
            next.follow(before);
        }
        let forgotten = self.splices.reconfigured(Arc::clone(&self.snapshot), update.snapshot.id);
        let has_followed = update.ports.follow(&mut self.ports);
        self.carry_statistics(&mut update);
        swap(&mut self.snapshot, &mut update.snapshot);
        self.count_for_new_limits(&update.snapshot);
        swap(&mut self.services, &mut update.services);
        swap(&mut self.backends, &mut update.backends);
        swap(&mut self.guessed, &mut update.guessed);
        swap(&mut self.balancers, &mut update.balancers);
        swap(&mut self.ports, &mut update.ports);
        if !has_followed {
            self.mark_ports();
        }
        self.learn_set_up();
        for &number in &update.fresh {
            if let Some(down) = self.down.get_mut(usize::from(number)) {
                *down = self.effective_weights.of(number).is_down();
            }
        }
        self.follow_effective_weights(now);
        self.end_disabled(now);
        self.splices.end_idle(now, &self.snapshot);
        for &(number, which) in &update.ended {
            self.end_backend(now, number, which);
        }
        Retired(update, forgotten)
    }

    /// Counters go on, but for fresh numbers. The arrays never get shorter: a connection's numbers always are within.
    fn carry_statistics(&mut self, update: &mut Update) {
        let statistics = &mut self.statistics;
        if update.service_statistics.len() > statistics.services.len() {
            update.service_statistics[..statistics.services.len()].copy_from_slice(&statistics.services);
            swap(&mut update.service_statistics, &mut statistics.services);
        }
        if update.backend_statistics.len() > statistics.backends.len() {
            update.backend_statistics[..statistics.backends.len()].copy_from_slice(&statistics.backends);
            swap(&mut update.backend_statistics, &mut statistics.backends);
        }
        for &number in &update.fresh_services {
            if let Some(service) = statistics.services.get_mut(usize::from(number)) {
                let client_conns_now = service.client_conns_now;
                *service = ServiceStatistics { client_conns_now, ..ServiceStatistics::default() };
            }
        }
        for &number in &update.fresh {
            if let Some(backend) = statistics.backends.get_mut(usize::from(number)) {
                let BackendStatistics { connections_now, open_now, .. } = *backend;
                *backend = BackendStatistics { connections_now, open_now, ..BackendStatistics::default() };
            }
        }
    }

    /// Marks the sources of all connections in a pool that is new.
    fn mark_ports(&mut self) {
        for position in self.slab.positions() {
            let connection = self.slab.at(position);
            if connection.flags.has(Flags::FULL_NAT) {
                self.ports.mark(u32::from(connection.backend_number), connection.source);
            }
        }
        self.splices.mark_ports(&mut self.ports);
    }

    /// Ends what disabled backends still have.
    fn end_disabled(&mut self, now: Time) {
        let snapshot = self.snapshot.clone();
        for backend in snapshot.services.iter().flat_map(|service| &service.backends) {
            let held = self.statistics.backends.get(usize::from(backend.number));
            if backend.state == BackendState::Disabled && held.is_some_and(|held| held.connections_now > 0) {
                self.end_backend(now, backend.number, Which::All);
            }
        }
    }

    /// Whether [`Worker::follow_effective_weights`] has something to do.
    pub(super) fn effective_weights_have_changed(&self) -> bool {
        self.effective_weights.version() != self.effective_weights_seen
    }

    /// Takes over what part of their weight backends have now. UDP connections of one that has gone down are ended.
    pub(super) fn follow_effective_weights(&mut self, now: Time) {
        self.effective_weights_seen = self.effective_weights.version();
        for number in 0..self.snapshot.backends() as u16 {
            let is_down = self.effective_weights.of(number).is_down();
            let Some(down) = self.down.get_mut(usize::from(number)) else { break };
            let went_down = !core::mem::replace(down, is_down) && is_down;
            let is_datagrams = |protocol| protocol == Protocol::Udp;
            if went_down && self.snapshot.backend(number).is_some_and(|(service, _)| is_datagrams(service.protocol)) {
                self.end_backend(now, number, Which::Datagrams);
            }
        }
        for balancer in &mut self.balancers {
            balancer.refresh(&self.effective_weights);
        }
    }
}
