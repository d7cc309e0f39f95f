//! The connections that a forged packet may have made, oldest first: a list through arrays by position, so that each can leave
//! it at any time.

use crate::table::Position;
use alloc::vec;
use alloc::vec::Vec;

/// Place 0 of both arrays is the list's own: its first and its last. The place of a position is one more than it. Zero
/// pages are an empty list, touched as positions are used.
pub(super) struct HalfOpen {
    next: Vec<u32>,
    previous: Vec<u32>,
    count: u32,
}

impl HalfOpen {
    /// An empty list for positions below `capacity`.
    pub(super) fn new(capacity: usize) -> HalfOpen {
        HalfOpen { next: vec![0; capacity + 1], previous: vec![0; capacity + 1], count: 0 }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    /// The oldest.
    pub(super) fn first(&self) -> Option<Position> {
        self.next[0].checked_sub(1)
    }

    /// The one that came after `position`, which is in the list.
    pub(super) fn after(&self, position: Position) -> Option<Position> {
        self.next[place(position)].checked_sub(1)
    }

    /// Whether `position` is in the list.
    fn contains(&self, position: Position) -> bool {
        let at = place(position);
        self.previous[at] != 0 || self.next[0] == at as u32
    }

    /// Adds `position` as the youngest, also if it was in the list.
    pub(super) fn push(&mut self, position: Position) {
        self.remove(position);
        let (at, last) = (place(position), self.previous[0]);
        self.next[last as usize] = at as u32;
        self.previous[at] = last;
        self.next[at] = 0;
        self.previous[0] = at as u32;
        self.count += 1;
    }

    /// Takes `position` out, if it is in the list.
    pub(super) fn remove(&mut self, position: Position) {
        if !self.contains(position) {
            return;
        }
        let at = place(position);
        let (next, previous) = (self.next[at], self.previous[at]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
        self.next[at] = 0;
        self.previous[at] = 0;
        self.count -= 1;
    }
}

fn place(position: Position) -> usize {
    position as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_list(steps in prop::collection::vec((any::<bool>(), 0..12u32), 0..200)) {
            let (mut half_open, mut model) = (HalfOpen::new(12), Vec::new());
            for (pushes, position) in steps {
                model.retain(|&held| held != position);
                if pushes {
                    half_open.push(position);
                    model.push(position);
                } else {
                    half_open.remove(position);
                }
                let all: Vec<_> = core::iter::successors(half_open.first(), |&held| half_open.after(held)).collect();
                prop_assert_eq!(&all, &model);
                prop_assert_eq!(half_open.len() as usize, model.len());
            }
        }
    }
}
