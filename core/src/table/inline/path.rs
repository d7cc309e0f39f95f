//! Room made for an entry whose buckets are full.

use super::bucket::{Entry, SLOTS};
use super::{Found, Inline, Place};
use crate::table::{Full, Key};
use arrayvec::ArrayVec;

/// Pairs a search looks behind, at most. It looks into at most `PAIR_SLOTS` times as many for a hole. (At 95 percent
/// of the slots, of the pairs that entries lead to about one in twenty has one.)
const NODES: usize = 240;

/// Slots of the two buckets of a pair.
const PAIR_SLOTS: usize = 2 * SLOTS;

/// A full pair that the search has reached.
#[derive(Clone, Copy)]
struct Node {
    pair: u32,
    /// The node from which it was reached.
    parent: u8,
    /// The slot of the parent whose entry can move here.
    slot: u8,
}

/// A node that was not reached but is one of the entry's own pairs.
const ROOT: u8 = u8::MAX;

const _: () = assert!(NODES <= ROOT as usize);

/// A slot of a pair.
fn slot_of(pair: u32, slot: usize) -> Found {
    Found { bucket: 2 * pair + (slot / SLOTS) as u32, slot: slot % SLOTS }
}

impl<K: Key, V: Copy> Inline<K, V> {
    /// Inserts an entry whose buckets are full.
    ///
    /// A search in breadth finds a shortest chain of entries of which each can move to the other of its pairs, the last
    /// into a hole; then they move, beginning with the last. No pair stands twice in a shortest chain: what follows
    /// after the second time followed after the first already. So the moves do not get in each other's way, and the
    /// slots that the search saw are as it saw them when the entries move. A head may be that of several of them, so it
    /// needs room for a whole chain.
    #[cold]
    pub(super) fn insert_displacing(&mut self, place: Place, entry: Entry<K, V>) -> Result<(), Full> {
        let mut nodes = ArrayVec::<Node, NODES>::new();
        nodes.push(Node { pair: place.primary / 2, parent: ROOT, slot: 0 });
        if !self.may_move(place) {
            return Err(Full);
        }
        nodes.push(Node { pair: self.chosen(place, 2) / 2, parent: ROOT, slot: 0 });
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            let reached = self.reached(node.pair);
            for (slot, &pair) in reached.iter().enumerate() {
                if pair == node.pair {
                    continue;
                }
                if let Some(hole) = self.hole(pair) {
                    let found = self.shift(&nodes, Node { pair, parent: at as u8, slot: slot as u8 }, hole);
                    self.put_at(place, entry, found);
                    return Ok(());
                }
                // When there is no room, the nodes there are still lead somewhere.
                let _ = nodes.try_push(Node { pair, parent: at as u8, slot: slot as u8 });
            }
            at += 1;
        }
        Err(Full)
    }

    /// Whether the head of an entry's first bucket has room for whatever a search may move.
    #[inline]
    pub(super) fn may_move(&self, place: Place) -> bool {
        self.bucket(place.primary).head.has_room_for(NODES)
    }

    /// A free slot of a pair.
    fn hole(&self, pair: u32) -> Option<Found> {
        (2 * pair..2 * pair + 2).find_map(|bucket| {
            let slot = self.bucket(bucket).head.free()?;
            Some(Found { bucket, slot })
        })
    }

    /// The other pairs of the entries of a pair, by slot; the pair itself: nowhere.
    fn reached(&self, pair: u32) -> [u32; PAIR_SLOTS] {
        let mut reached = [pair; PAIR_SLOTS];
        for (slot, next) in reached.iter_mut().enumerate() {
            let Some(place) = self.standing(slot_of(pair, slot)) else { continue };
            if self.may_move(place) {
                let (own, other) = (place.primary / 2, self.chosen(place, 2) / 2);
                *next = if own == pair { other } else { own };
                self.prefetch(2 * *next);
                self.prefetch(2 * *next + 1);
            }
        }
        reached
    }

    /// The place of the entry in a slot.
    fn standing(&self, at: Found) -> Option<Place> {
        self.entry(at).map(|entry| self.place_of(&entry.key))
    }

    /// Moves entries along the chain that ends with `last` and its `hole`; the hole that is left in the end.
    fn shift(&mut self, nodes: &[Node], mut last: Node, mut hole: Found) -> Found {
        while last.parent != ROOT {
            let parent = nodes[last.parent as usize];
            let from = slot_of(parent.pair, last.slot as usize);
            self.shift_one(from, hole);
            (last, hole) = (parent, from);
        }
        hole
    }

    /// Moves one entry to a hole in another of its buckets.
    pub(super) fn shift_one(&mut self, from: Found, to: Found) {
        let Some(&entry) = self.entry(from) else { return };
        let place = self.place_of(&entry.key);
        self.clear_at(place, from);
        self.put_at(place, entry, to);
    }
}
