//! The device under test: core's worker as a plane makes it, with one service of layer 4.

use super::traffic::{self, Sort};
use hairpin_core::balance::{EffectiveWeights, Loads};
use hairpin_core::config::{
    Algorithm, Backend, BackendState, Forwarding, Pool, Service, Snapshot, Timeouts, UnknownPacket,
};
use hairpin_core::flow::{Address, Endpoint, Steering};
use hairpin_core::offload::Never;
use hairpin_core::table::Hasher;
use hairpin_core::table::slab::boxed_touched;
use hairpin_core::worker::{Known, Occupancy, StatelessMethod, Worker, WorkerOptions};
use hairpin_tables::{OwnMethod, OwnTable};
use std::sync::Arc;
use std::time::Duration;

/// Backends of the service.
const BACKENDS: u16 = 64;
/// Secret seeds are fixed here: figures of two runs are to be of the same work.
const SEEDS: [u64; 4] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];

/// The work on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketWork {
    /// Nothing: it goes back as it came.
    Nothing,
    /// Its backend follows from a hash of its 5-tuple.
    Stateless,
    /// Its backend follows from Maglev's table.
    Maglev,
    /// Its connection is tracked; its destination is rewritten.
    Nat(OwnMethod),
    /// Its connection is tracked; both its ends are rewritten.
    FullNat(OwnMethod),
}

impl PacketWork {
    /// All kinds, tables by the default method.
    pub(super) const ALL: [PacketWork; 5] = [
        PacketWork::Nothing,
        PacketWork::Stateless,
        PacketWork::Maglev,
        PacketWork::Nat(OwnMethod::DEFAULT),
        PacketWork::FullNat(OwnMethod::DEFAULT),
    ];

    /// NAT with keys in the table, which the connection is not asked for.
    pub(super) const NAT_INLINE: PacketWork = PacketWork::Nat(OwnMethod::Inline);

    pub(super) fn name(self) -> &'static str {
        match self {
            PacketWork::Nothing => "nothing",
            PacketWork::Stateless => "stateless",
            PacketWork::Maglev => "maglev",
            PacketWork::Nat(OwnMethod::Inline) => "nat-inline",
            PacketWork::Nat(_) => "nat",
            PacketWork::FullNat(_) => "full-nat",
        }
    }

    fn forwarding(self) -> Forwarding {
        if matches!(self, PacketWork::FullNat(_)) { Forwarding::FullNat } else { Forwarding::Nat }
    }

    fn stateless(self) -> Option<StatelessMethod> {
        match self {
            PacketWork::Stateless => Some(StatelessMethod::Hash(Hasher::new(SEEDS))),
            PacketWork::Maglev => Some(StatelessMethod::Maglev),
            PacketWork::Nothing | PacketWork::Nat(_) | PacketWork::FullNat(_) => None,
        }
    }

    fn method(self) -> OwnMethod {
        match self {
            PacketWork::Nat(method) | PacketWork::FullNat(method) => method,
            PacketWork::Nothing | PacketWork::Stateless | PacketWork::Maglev => OwnMethod::Stateless,
        }
    }
}

/// A worker on any of our tables.
pub(super) type BenchWorker = Worker<Never, OwnTable>;

/// Workers `0..workers`, their connections' memory touched beforehand, that do `work`, each for `connections` connections of packets of `sort`.
pub(super) fn workers(work: PacketWork, sort: Sort, connections: usize, workers: u16) -> Vec<BenchWorker> {
    let snapshot = Arc::new(snapshot(work, sort));
    let (loads, effective_weights) = (Loads::new(snapshot.backends()), EffectiveWeights::new());
    let occupancy = Occupancy::default();
    let connections = if work.method().tracks_connections() { connections } else { 64 };
    let tables =
        OwnTable::for_workers(work.method(), usize::from(workers), 2 * connections, Hasher::new(SEEDS)).into_iter();
    let make = |(worker, table)| {
        Worker::new(WorkerOptions {
            steering: Steering::by_hash([SEEDS[0], SEEDS[1]], workers),
            worker,
            stateless: work.stateless(),
            loads: loads.clone(),
            effective_weights: effective_weights.clone(),
            occupancy: occupancy.clone(),
            known: Known::new(&[]),
            ..WorkerOptions::new(Arc::clone(&snapshot), boxed_touched(connections), table, Never, SEEDS)
        })
    };
    (0..workers).zip(tables).map(make).collect()
}

fn snapshot(work: PacketWork, sort: Sort) -> Snapshot {
    let backend = |number: u16| Backend {
        number,
        name: format!("b{number}").into(),
        endpoint: Endpoint { address: Address::from_ipv4([10, 1, 0, 1 + number as u8]), port: 8080 },
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    // Established connections whose beginning was not seen are picked up.
    let unknown = if sort == Sort::Udp { UnknownPacket::Drop } else { UnknownPacket::PickUp };
    let long = Duration::from_secs(3600);
    let service = Service {
        state: Default::default(),
        name: "bench".into(),
        endpoint: traffic::service(),
        protocol: sort.protocol(),
        forwarding: work.forwarding(),
        algorithm: if work == PacketWork::Maglev { Algorithm::Maglev } else { Algorithm::RoundRobin },
        unknown,
        timeouts: Timeouts { udp_new: long, tcp_handshake: long, ..Timeouts::default() },
        backends: (0..BACKENDS).map(backend).collect(),
        ..Service::vacant()
    };
    let addresses = match work {
        PacketWork::FullNat(_) => (1..=4).map(|last| Address::from_ipv4([10, 2, 0, last])).collect(),
        _ => Box::default(),
    };
    let pool = Pool { addresses, port_first: 1024, port_last: 65_535, time_wait: Duration::from_secs(60) };
    Snapshot::new(Box::new([service]), pool)
}
