//! How full the engine is, as far as the workers know that share it: each of them says how many rules it has there.

use crate::engine::EngineCaps;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

/// Rules by address family: IPv4, IPv6.
pub(crate) type ByFamily = [u32; 2];

/// Rules that all workers of an engine have in it or have asked it for, by address family. Clones share the numbers.
///
/// The numbers guide decisions and nothing else: reads may be a moment old, so that each worker may ask for a pair more than
/// there is room for. The engine refuses that.
#[derive(Clone, Debug, Default)]
pub struct Occupancy(Arc<[AtomicU32; 2]>);

impl Occupancy {
    /// All workers' rules, of IPv4 and of IPv6.
    pub fn rules(&self) -> [u32; 2] {
        [0, 1].map(|family: usize| self.0[family].load(Ordering::Relaxed))
    }
}

/// A worker's part of it. Ends with the worker.
pub(super) struct OccupancyShare {
    all: Occupancy,
    /// Of connections, by family.
    own: ByFamily,
    /// Of splices, by family, as they said last.
    spliced: ByFamily,
    /// All workers', when last looked at.
    seen: ByFamily,
    /// [`EngineCaps::families_apart`]
    apart: bool,
}

impl OccupancyShare {
    pub(super) fn new(all: Occupancy, caps: &EngineCaps) -> OccupancyShare {
        OccupancyShare { seen: all.rules(), all, own: [0; 2], spliced: [0; 2], apart: caps.families_apart }
    }

    fn add_to_all(&mut self, family: usize, rules: u32) {
        self.seen[family] = self.all.0[family].fetch_add(rules, Ordering::Relaxed).saturating_add(rules);
    }

    fn take_from_all(&mut self, family: usize, rules: u32) {
        self.seen[family] = self.all.0[family].fetch_sub(rules, Ordering::Relaxed).saturating_sub(rules);
    }

    /// So many more rules of connections.
    pub(super) fn add(&mut self, ipv4: bool, rules: u32) {
        let family = usize::from(!ipv4);
        self.own[family] += rules;
        self.add_to_all(family, rules);
    }

    /// So many fewer.
    pub(super) fn take(&mut self, ipv4: bool, rules: u32) {
        let family = usize::from(!ipv4);
        debug_assert!(rules <= self.own[family], "more rules are gone than there were");
        let rules = rules.min(self.own[family]);
        self.own[family] -= rules;
        self.take_from_all(family, rules);
    }

    /// Splices have so many now; and what others have is looked at again.
    pub(super) fn refresh(&mut self, spliced: ByFamily) {
        for (family, now) in spliced.into_iter().enumerate() {
            let before = core::mem::replace(&mut self.spliced[family], now);
            if now > before {
                self.add_to_all(family, now - before);
            } else if now < before {
                self.take_from_all(family, before - now);
            }
        }
        self.seen = self.all.rules();
    }

    /// Rules of this worker, splices' among them.
    pub(super) fn own(&self) -> u32 {
        self.of_connections() + self.spliced.iter().sum::<u32>()
    }

    /// Rules of this worker's connections.
    pub(super) fn of_connections(&self) -> u32 {
        self.own.iter().sum()
    }

    /// Rules of all workers, as far as known, that take room from those of a family.
    pub(super) fn all(&self, ipv4: bool) -> u32 {
        if self.apart { self.seen[usize::from(!ipv4)] } else { self.seen[0].saturating_add(self.seen[1]) }
    }
}

impl Drop for OccupancyShare {
    fn drop(&mut self) {
        for family in [0, 1] {
            self.take_from_all(family, self.own[family] + self.spliced[family]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(all: &Occupancy, families_apart: bool) -> OccupancyShare {
        OccupancyShare::new(all.clone(), &EngineCaps { families_apart, ..EngineCaps::NONE })
    }

    #[test]
    fn occupancy_is_shared_and_withdrawn_on_drop() {
        let all = Occupancy::default();
        let (mut one, mut other) = (share(&all, false), share(&all, false));
        one.add(true, 4);
        other.add(true, 2);
        assert_eq!((one.all(true), other.all(true)), (4, 6), "as of when each last looked");
        one.refresh([1, 2]);
        assert_eq!((one.all(true), one.own(), one.of_connections()), (9, 7, 4));
        one.refresh([0, 3]);
        one.take(true, 1);
        assert_eq!(all.rules(), [5, 3]);
        drop(one);
        assert_eq!(all.rules(), [2, 0]);
        other.refresh([0, 0]);
        assert_eq!(other.all(true), 2);
    }

    #[test]
    fn where_families_have_room_of_their_own_each_counts_by_itself() {
        let all = Occupancy::default();
        let (mut one, mut other) = (share(&all, true), share(&all, true));
        one.add(true, 4);
        other.add(false, 2);
        one.refresh([0, 0]);
        assert_eq!((one.all(true), one.all(false)), (4, 2));
    }
}
