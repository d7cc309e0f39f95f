//! Top talkers in bounded memory: the space-saving algorithm (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and
//! Top-k Elements in Data Streams, ICDT 2005).
//!
//! With `m` counters, whatever has more than a share of 1/m of all bytes has a counter; a count is too high by no more than its
//! `error`, and that by no more than all bytes divided by m. Nothing is counted too low.

use hairpin_core::flow::Address;
use std::collections::{BTreeSet, HashMap};

/// Counters for each talker that is shown.
pub(super) const COUNTERS_PER_SHOWN: usize = 16;

/// A talker's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Talker {
    pub(crate) address: Address,
    /// Bytes of IP packets from and to it, at most.
    pub(crate) bytes: u64,
    /// By how much `bytes` may be too high.
    pub(crate) error: u64,
}

/// The counters.
#[derive(Debug)]
pub(super) struct SpaceSaving {
    room: usize,
    counters: Vec<Talker>,
    places: HashMap<Address, usize>,
    /// Counters by their bytes.
    order: BTreeSet<(u64, usize)>,
}

impl SpaceSaving {
    /// With so many counters at most.
    pub(super) fn new(room: usize) -> SpaceSaving {
        SpaceSaving { room, counters: Vec::new(), places: HashMap::new(), order: BTreeSet::new() }
    }

    /// Counts bytes of `address`.
    pub(super) fn add(&mut self, address: Address, bytes: u64) {
        let place = match self.places.get(&address) {
            Some(&place) => place,
            None if self.counters.len() < self.room => {
                self.counters.push(Talker { address, bytes: 0, error: 0 });
                self.order.insert((0, self.counters.len() - 1));
                self.counters.len() - 1
            }
            None => {
                // It takes the smallest counter over, with what is in it.
                let Some(&(least, place)) = self.order.first() else { return };
                self.places.remove(&self.counters[place].address);
                self.counters[place] = Talker { address, bytes: least, error: least };
                place
            }
        };
        self.places.insert(address, place);
        let counter = &mut self.counters[place];
        self.order.remove(&(counter.bytes, place));
        counter.bytes = counter.bytes.saturating_add(bytes);
        self.order.insert((counter.bytes, place));
    }

    /// The first `count`, the largest first.
    pub(super) fn top(&self, count: usize) -> Vec<Talker> {
        self.order.iter().rev().take(count).map(|(_, place)| self.counters[*place]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(number: u32) -> Address {
        Address::from_ipv4(number.to_be_bytes())
    }

    #[test]
    fn talkers_that_have_room_are_counted_exactly() {
        let mut top = SpaceSaving::new(4);
        for (number, bytes) in [(1, 10), (2, 500), (3, 70), (1, 100), (3, 1)] {
            top.add(address(number), bytes);
        }
        let told: Vec<(u64, u64)> = top.top(2).iter().map(|talker| (talker.bytes, talker.error)).collect();
        assert_eq!((told, top.top(9).len()), (vec![(500, 0), (110, 0)], 3));
        SpaceSaving::new(0).add(address(1), 1);
    }

    proptest! {
        /// The bounds that the paper proves, for any order of any bytes.
        #[test]
        fn counts_keep_their_bounds(room in 1usize..20, all in proptest::collection::vec((0u32..60, 0u64..2000), 1..400)) {
            let (mut top, mut exact) = (SpaceSaving::new(room), HashMap::<u32, u64>::new());
            for &(number, bytes) in &all {
                top.add(address(number), bytes);
                *exact.entry(number).or_default() += bytes;
            }
            let total: u64 = exact.values().sum();
            let shown = top.top(usize::MAX);
            prop_assert!(shown.len() <= room && shown.is_sorted_by(|a, b| a.bytes >= b.bytes));
            prop_assert_eq!(shown.iter().map(|talker| talker.bytes).sum::<u64>(), total);
            for (&number, &bytes) in &exact {
                match shown.iter().find(|talker| talker.address == address(number)) {
                    Some(found) => {
                        prop_assert!(found.bytes >= bytes && found.bytes - found.error <= bytes);
                        prop_assert!(found.error <= total / room as u64);
                    }
                    None => prop_assert!(bytes <= total / room as u64),
                }
            }
        }
    }
}
