//! Connections to backends that nobody uses now, by backend, the youngest first.

use super::entry::Back;
use super::slots::Slots;
use alloc::boxed::Box;
use alloc::vec;

/// Stands for no connection.
const NOBODY: u32 = u32::MAX;

/// The lists' heads; the lists themselves go through the entries.
pub(super) struct Idle {
    youngest: Box<[u32]>,
    counts: Box<[u16]>,
    total: u32,
}

impl Idle {
    /// For backends with numbers below `backends`.
    pub(super) fn new(backends: usize) -> Idle {
        Idle { youngest: vec![NOBODY; backends].into(), counts: vec![0; backends].into(), total: 0 }
    }

    /// How many a backend has.
    pub(super) fn count(&self, number: u16) -> u16 {
        self.counts.get(usize::from(number)).copied().unwrap_or(0)
    }

    /// How many all of them have.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// The youngest of a backend.
    pub(super) fn youngest(&self, number: u16) -> Option<u32> {
        self.youngest.get(usize::from(number)).copied().filter(|&position| position != NOBODY)
    }

    /// Adds one.
    pub(super) fn push(&mut self, backs: &mut Slots<Back>, position: u32) {
        let Some(number) = backs.get(position).map(|back| usize::from(back.number)) else { return };
        let Some(youngest) = self.youngest.get_mut(number) else { return };
        let next = Some(*youngest).filter(|&next| next != NOBODY);
        *youngest = position;
        self.counts[number] += 1;
        self.total += 1;
        if let Some(next) = next.and_then(|next| backs.get_mut(next)) {
            next.previous_idle = Some(position);
        }
        if let Some(back) = backs.get_mut(position) {
            (back.next_idle, back.previous_idle) = (next, None);
        }
    }

    /// Takes one out that is in.
    pub(super) fn remove(&mut self, backs: &mut Slots<Back>, position: u32) {
        let Some(back) = backs.get_mut(position) else { return };
        let number = usize::from(back.number);
        let (next, previous) = (back.next_idle.take(), back.previous_idle.take());
        match previous {
            Some(previous) => {
                if let Some(previous) = backs.get_mut(previous) {
                    previous.next_idle = next;
                }
            }
            None => self.youngest[number] = next.unwrap_or(NOBODY),
        }
        if let Some(next) = next.and_then(|next| backs.get_mut(next)) {
            next.previous_idle = previous;
        }
        self.counts[number] = self.counts[number].saturating_sub(1);
        self.total = self.total.saturating_sub(1);
    }
}
