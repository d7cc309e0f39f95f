//! The connection table of each worker: its own, made on its thread, or its view of one that all share.

use hairpin_core::flow::Steering;
use hairpin_core::table::{AnyTable, Hasher, LookupMethod};
use hairpin_core::worker::StatelessMethod;
/// A worker's table, or how to make it.
pub(crate) enum Index {
    /// It is there: a view of a table that all workers share.
    Made(AnyTable),
    /// A table of its own: for so many entries, hashed so. Made where it is used, so that its memory is near.
    Own(LookupMethod, usize, Hasher),
}

impl Index {
    /// Those of `workers` workers, each for `capacity_each` entries.
    pub(crate) fn of(method: LookupMethod, workers: usize, capacity_each: usize, secret: [u64; 4]) -> Vec<Index> {
        let hasher = Hasher::new(secret);
        if method.is_shared() {
            let views = AnyTable::for_workers(method, workers, capacity_each, hasher);
            return views.into_iter().map(Index::Made).collect();
        }
        (0..workers).map(|_| Index::Own(method, capacity_each, hasher.clone())).collect()
    }

    /// The table itself.
    pub(crate) fn table(self) -> AnyTable {
        match self {
            Index::Made(table) => table,
            Index::Own(method, capacity, hasher) => AnyTable::of(method, capacity, hasher),
        }
    }
}

/// How packets find their backends where connections are not tracked. The secret of the hash is made of the instance's
/// steering key, which outlives processes, so that connections keep their backends across a restart and whatever the
/// number of workers.
pub(crate) fn stateless(method: LookupMethod, steering: &Steering) -> Option<StatelessMethod> {
    let [a, b] = steering.key;
    match method {
        LookupMethod::Stateless => Some(StatelessMethod::Hash(Hasher::new([a, b, a.rotate_left(32), !b]))),
        LookupMethod::Maglev => Some(StatelessMethod::Maglev),
        LookupMethod::CuckooPlusPlus | LookupMethod::Concurrent => None,
    }
}
