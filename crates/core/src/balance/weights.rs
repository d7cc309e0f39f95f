//! The share of each backend of a service.

use super::EffectiveWeights;
use super::effective_weights::{EffectiveWeight, SHARE_FULL};
use crate::config::{AllDown, BackendState, Service, ServiceState};
use alloc::vec::Vec;

/// A backend's weight: 0 if it is not to get connections, for any reason. Else its weight in 1/256, so that a small part
/// of a weight of 1 is not nothing; at most 65535 * 256.
pub(super) type Weight = u32;

/// The weight of each backend of a service as it counts now.
pub(super) struct Weights {
    /// As configured: 0 for a backend that takes no connections.
    configured: Vec<u16>,
    pub(super) effective: Vec<Weight>,
    pub(super) total: u64,
    /// The share for connections that may have begun elsewhere: above 0 also while it is not settled whether a backend is
    /// up.
    pub(super) members: Vec<Weight>,
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
            members: configured.iter().map(|_| 0).collect(),
            open: Vec::with_capacity(configured.len()),
            configured,
            total: 0,
            all_down: service.all_down,
        };
        weights.follow(|_| EffectiveWeight::FULL);
        weights
    }

    /// Takes what is known of each backend, by its position; says whether that changed anything.
    pub(super) fn follow(&mut self, effective_weight: impl Fn(usize) -> EffectiveWeight) -> bool {
        let full = |configured: u16| Weight::from(configured) * Weight::from(SHARE_FULL);
        let shared = |index, configured: u16| Weight::from(configured) * Weight::from(effective_weight(index).share);
        let unsettled = |index, configured| if effective_weight(index).settled { 0 } else { full(configured) };
        let mut changed = self.fill(shared);
        if self.total == 0 {
            changed |= self.fill(unsettled);
        }
        if self.total == 0 && self.all_down == AllDown::UseAll {
            changed |= self.fill(|_, configured| full(configured));
        }
        if changed {
            let Weights { open, effective, .. } = self;
            open.clear();
            open.extend((0..).zip(effective).filter(|(_, weight)| **weight > 0).map(|(index, _)| index));
        }
        let own = self.members.iter_mut().zip(&self.effective).zip(&self.configured).enumerate();
        for (index, ((member, &effective), &configured)) in own {
            let weight = effective.max(unsettled(index, configured));
            changed |= core::mem::replace(member, weight) != weight;
        }
        changed
    }

    fn fill(&mut self, weight: impl Fn(usize, u16) -> Weight) -> bool {
        let mut changed = false;
        for (index, (effective, &configured)) in self.effective.iter_mut().zip(&self.configured).enumerate() {
            let weight = weight(index, configured);
            changed |= core::mem::replace(effective, weight) != weight;
        }
        self.total = self.effective.iter().copied().map(u64::from).sum();
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

    /// Whether both have the same configured weights.
    pub(super) fn is_like(&self, other: &Weights) -> bool {
        self.configured == other.configured
    }

    /// Index and weight of the backends that may be chosen, beginning with `start` and going round.
    pub(super) fn open_from(&self, start: usize) -> impl Iterator<Item = (usize, Weight)> + '_ {
        open_from(&self.effective, start)
    }
}

/// Index and weight of those with a weight above 0, beginning with `start` and going round.
pub(super) fn open_from(weights: &[Weight], start: usize) -> impl Iterator<Item = (usize, Weight)> + '_ {
    let (before, after) = weights.split_at(start.min(weights.len()));
    let indexed = |first: usize| move |(i, &weight): (usize, &Weight)| (first + i, weight);
    let after = after.iter().enumerate().map(indexed(before.len()));
    let before = before.iter().enumerate().map(indexed(0));
    after.chain(before).filter(|&(_, weight)| weight > 0)
}

/// The states of the backends with these numbers.
pub(super) fn of<'a>(
    effective_weights: &'a EffectiveWeights,
    numbers: &'a [u32],
) -> impl Fn(usize) -> EffectiveWeight + 'a {
    let vacant = EffectiveWeight { share: 0, settled: true };
    move |index| {
        let number = numbers.get(index).and_then(|&number| u16::try_from(number).ok());
        number.map_or(vacant, |number| effective_weights.of(number))
    }
}
