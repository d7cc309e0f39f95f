//! The share of each backend of a service.

use super::EffectiveWeights;
use super::effective_weights::{EffectiveWeight, SHARE_FULL};
use crate::config::{AllDown, Backend, BackendState, Service, ServiceState};
use alloc::vec::Vec;

/// A backend's weight: 0 if it is not to get connections, for any reason. Else its weight in 1/256, so that a small part
/// of a weight of 1 is not nothing; at most 65535 * 256.
pub(super) type Weight = u32;

/// The weight of each backend of a service as it counts now.
pub(super) struct Weights {
    /// As configured.
    configured: Vec<Configured>,
    pub(super) effective: Vec<Weight>,
    pub(super) total: u64,
    /// The share for connections that may have begun elsewhere: above 0 also while it is not settled whether a backend is
    /// up. Of a backup it is the effective weight.
    pub(super) members: Vec<Weight>,
    /// The backends that may be chosen, ascending.
    pub(super) open: Vec<u16>,
    all_down: AllDown,
}

/// What the configuration says of a backend.
#[derive(Clone, Copy, PartialEq)]
struct Configured {
    /// 0 if it takes no connections.
    weight: u16,
    is_backup: bool,
}

impl Configured {
    fn full(self) -> Weight {
        Weight::from(self.weight) * Weight::from(SHARE_FULL)
    }
}

/// Which part of its weight a backend may have.
#[derive(Clone, Copy)]
enum Part {
    /// The one that its health says.
    Share,
    /// All of it, as long as nothing is settled.
    Unsettled,
    /// All of it, whatever the checks say.
    Full,
}

impl Part {
    fn of(self, configured: Configured, known: EffectiveWeight) -> Weight {
        match self {
            Part::Share => Weight::from(configured.weight) * Weight::from(known.share),
            Part::Unsettled if known.settled => 0,
            Part::Unsettled | Part::Full => configured.full(),
        }
    }
}

impl Weights {
    /// With the full share for every backend.
    pub(super) fn new(service: &Service) -> Weights {
        let is_active = service.state == ServiceState::Active;
        let configured = |backend: &Backend| {
            let takes = is_active && backend.state == BackendState::Enabled;
            Configured { weight: if takes { backend.weight } else { 0 }, is_backup: backend.is_backup }
        };
        let configured: Vec<Configured> = service.backends.iter().take(usize::from(u16::MAX)).map(configured).collect();
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
        let parts = match self.all_down {
            AllDown::Refuse => &[Part::Share, Part::Unsettled][..],
            AllDown::UseAll => &[Part::Share, Part::Unsettled, Part::Full],
        };
        // Of backends that have any part, those that are no backups.
        let mut tiers = parts.iter().flat_map(|part| [false, true].map(|is_backup| (*part, is_backup)));
        let has_weight = |&(part, is_backup): &(Part, bool)| {
            let of_tier = self.configured.iter().enumerate().filter(|(_, one)| one.is_backup == is_backup);
            of_tier.into_iter().any(|(index, one)| part.of(*one, effective_weight(index)) > 0)
        };
        let tier = tiers.find(has_weight);
        let mut changed = false;
        let own = self.effective.iter_mut().zip(&mut self.members).zip(&self.configured).enumerate();
        for (index, ((effective, member), &configured)) in own {
            let known = effective_weight(index);
            let weight = match tier {
                Some((part, is_backup)) if configured.is_backup == is_backup => part.of(configured, known),
                _ => 0,
            };
            changed |= core::mem::replace(effective, weight) != weight;
            let may_have_begun = if configured.is_backup { 0 } else { Part::Unsettled.of(configured, known) };
            let weight = weight.max(may_have_begun);
            changed |= core::mem::replace(member, weight) != weight;
        }
        if changed {
            let Weights { open, effective, total, .. } = self;
            *total = effective.iter().copied().map(u64::from).sum();
            open.clear();
            open.extend((0..).zip(effective).filter(|(_, weight)| **weight > 0).map(|(index, _)| index));
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

    /// Whether both have the same configured weights, of the same backups.
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
