//! The worker under the count, as the product makes one, with fixed seeds.

use crate::packet::Family;
use hairpin_core::balance::Loads;
use hairpin_core::config::{Backend, BackendState, Forwarding, Pool, Service, ServiceState, Snapshot};
use hairpin_core::engine::EngineCaps;
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::l7::config::{Action, Edits, Forwarded, Http, HttpLimits, Kind, Route};
use hairpin_core::l7::splice::SplicedMemory;
use hairpin_core::offload::{AnyPolicy, Choice};
use hairpin_core::record::Recorder;
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::Duration;
use hairpin_core::worker::{Worker, WorkerOptions};
use std::sync::Arc;

/// Backends of the service.
const BACKENDS: u16 = 16;
/// Connections there is room for, of each layer.
const CONNECTIONS: usize = 16_384;
/// Two runs are to do the same work.
const SEEDS: [u64; 4] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];

/// The network that backends are in ([`Family::end`]).
pub(crate) const BACKEND_NETWORK: u8 = 1;

/// The address that clients send to.
pub(crate) fn vip(family: Family) -> Endpoint {
    family.end(0, 1, 80)
}

/// The worker that is counted: the product's types.
pub(crate) type CountedWorker = Worker<AnyPolicy>;

/// The settings of a worker's service.
pub(crate) struct ServicePlan {
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
    pub(crate) kind: Kind,
    pub(crate) forwarding: Forwarding,
    /// Every connection goes to an engine that can do everything; else there is none.
    pub(crate) offloaded: bool,
    /// Records are kept, and nothing takes them out: the ring is larger than a run fills.
    pub(crate) recorded: bool,
}

/// Bytes of the ring of records.
const RING_BYTES: usize = 64 << 20;

/// A worker with one service, at [`vip`].
pub(crate) fn worker(plan: ServicePlan) -> CountedWorker {
    let ServicePlan { family, protocol, kind, forwarding, offloaded, recorded } = plan;
    let backend = |number: u16| Backend {
        number,
        name: format!("b{number}").into(),
        endpoint: family.end(BACKEND_NETWORK, 1 + number, 8080),
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    let service = Service {
        state: ServiceState::Active,
        name: "web".into(),
        endpoint: vip(family),
        protocol,
        kind,
        forwarding,
        is_recorded: recorded,
        backends: (0..BACKENDS).map(backend).collect(),
        ..Service::vacant()
    };
    let addresses = (1..=4).map(|host| family.end(2, host, 0).address).collect();
    let pool = Pool { addresses, port_first: 1024, port_last: 65_535, time_wait: Duration::from_secs(60) };
    let mut worker = make(Snapshot::new([service].into(), pool), offloaded);
    if recorded {
        let (recorder, records) = Recorder::new(RING_BYTES);
        worker.record_to(recorder);
        std::mem::forget(records);
    }
    worker
}

fn make(snapshot: Snapshot, offloaded: bool) -> CountedWorker {
    let loads = Loads::new(snapshot.backends());
    let table = AnyTable::new(2 * CONNECTIONS, Hasher::new(SEEDS));
    let caps = if offloaded { EngineCaps::full(2 * CONNECTIONS as u32) } else { EngineCaps::NONE };
    let policy = AnyPolicy::new(if offloaded { Choice::Always } else { Choice::Never }, CONNECTIONS);
    Worker::new(WorkerOptions {
        caps,
        loads,
        splices: SplicedMemory::own(CONNECTIONS as u32),
        ..WorkerOptions::new(Arc::new(snapshot), boxed(CONNECTIONS), table, policy, SEEDS)
    })
}

/// An HTTP service with one route, and what the configuration says if it says nothing.
pub(crate) fn http(reuse: bool) -> Kind {
    let route = Route {
        conditions: Default::default(),
        action: Action::Forward { groups: [(0, 1)].into(), replace_prefix: None },
        edits: Edits::default(),
        terms: Default::default(),
    };
    Kind::Http(Box::new(Http {
        answers: Default::default(),
        access: [].into(),
        routes: [route].into(),
        edits: Edits::default(),
        forwarded: Forwarded { x_for: true, x_proto: true, x_host: true, ..Forwarded::default() },
        sticky: None,
        request_id: None,
        tracing: None,
        server_timing: false,
        upgrade: true,
        connect: false,
        proxy_protocol: None,
        reuse,
        limits: HttpLimits::default(),
        offload_bytes_min: None,
        timestamps: true,
    }))
}
