//! How much each backend of a service is to get.

use super::Standings;
use super::standings::SHARE_FULL;
use crate::config::{AllDown, BackendState, Service, ServiceState};
use alloc::vec::Vec;

/// Of one backend: 0 if it is not to get connections, for whatever reason. Else its weight in 1/256, so that a small part
/// of a weight of 1 is not nothing; at most 65535 * 256.
pub(super) type Weight = u32;

/// The weight of each backend of a service as it counts now.
pub(super) struct Weights {
    /// As configured: 0 for a backend that takes no connections.
    configured: Vec<u16>,
    pub(super) effective: Vec<Weight>,
    pub(super) total: u64,
    /// The backends that may be chosen, ascending.
    pub(super) open: Vec<u16>,
    all_down: AllDown,
}

impl Weights {
    /// With the full share for every backend.
    pub(super) fn new(service: &Service) -> Weights {
        let is_active = service.state == ServiceState::Active;
        let configured: Vec<u16> = service
            .backends
            .iter()
            .take(usize::from(u16::MAX))
            .map(|backend| if is_active && backend.state == BackendState::Enabled { backend.weight } else { 0 })
            .collect();
        let mut weights = Weights {
            effective: configured.iter().map(|_| 0).collect(),
            open: Vec::with_capacity(configured.len()),
            configured,
            total: 0,
            all_down: service.all_down,
        };
        weights.set_shares(|_| SHARE_FULL);
        weights
    }

    /// Takes each backend's share, by its position; says whether that changed anything.
    pub(super) fn set_shares(&mut self, share: impl Fn(usize) -> u16) -> bool {
        let shared = |index: usize, configured: u16| Weight::from(configured) * Weight::from(share(index));
        let total = |weights: &Weights| weights.effective.iter().copied().map(u64::from).sum();
        let mut changed = self.fill(shared);
        self.total = total(self);
        if self.total == 0 && self.all_down == AllDown::UseAll {
            changed |= self.fill(|_, configured| Weight::from(configured) * Weight::from(SHARE_FULL));
            self.total = total(self);
        }
        if changed {
            let Weights { open, effective, .. } = self;
            open.clear();
            open.extend((0..).zip(effective).filter(|(_, weight)| **weight > 0).map(|(index, _)| index));
        }
        changed
    }

    fn fill(&mut self, weight: impl Fn(usize, u16) -> Weight) -> bool {
        let mut changed = false;
        for (index, (effective, &configured)) in self.effective.iter_mut().zip(&self.configured).enumerate() {
            let weight = weight(index, configured);
            changed |= core::mem::replace(effective, weight) != weight;
        }
        changed
    }

    pub(super) fn len(&self) -> usize {
        self.effective.len()
    }

    /// Whether a backend may be chosen.
    #[inline]
    pub(super) fn is_open(&self, index: u16) -> bool {
        self.effective.get(usize::from(index)).is_some_and(|&weight| weight > 0)
    }

    /// Whether the configuration says the same of both.
    pub(super) fn is_like(&self, other: &Weights) -> bool {
        self.configured == other.configured
    }

    /// Index and weight of the backends that may be chosen, beginning with `start` and going round.
    pub(super) fn open_from(&self, start: usize) -> impl Iterator<Item = (usize, Weight)> + '_ {
        let (before, after) = self.effective.split_at(start.min(self.len()));
        let indexed = |first: usize| move |(i, &weight): (usize, &Weight)| (first + i, weight);
        let after = after.iter().enumerate().map(indexed(before.len()));
        let before = before.iter().enumerate().map(indexed(0));
        after.chain(before).filter(|&(_, weight)| weight > 0)
    }
}

/// The shares of the backends with these numbers.
pub(super) fn shares<'a>(standings: &'a Standings, numbers: &'a [u32]) -> impl Fn(usize) -> u16 + 'a {
    |index| numbers.get(index).map_or(0, |&number| u16::try_from(number).map_or(0, |number| standings.share(number)))
}
