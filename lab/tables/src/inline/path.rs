//! Room made for an entry whose buckets are full.

use super::bucket::{CHOICES, InlineEntry, SLOTS};
use super::{FoundEntry, HashPlace, Inline};
use arrayvec::ArrayVec;
use hairpin_core::table::{Full, Key};

/// Buckets a search goes behind, at most. It reads at most `REACHED` times as many for a hole. (When 98 percent of
/// the slots are taken, about one in a hundred has one; with a third as many nodes, one search in 50,000 finds none.)
const NODES: usize = 720;

/// The number of targets to which the entries of a bucket can move, at most.
const REACHED: usize = SLOTS * CHOICES as usize;

/// A full bucket that the search has reached.
#[derive(Clone, Copy)]
struct SearchNode {
    bucket: u32,
    /// The node from which it was reached.
    parent: u16,
    /// The slot of the parent whose entry can move here.
    slot: u8,
}

/// A node that was not reached but is one of the entry's own buckets.
const ROOT: u16 = u16::MAX;

const _: () = assert!(NODES <= ROOT as usize);

impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// Inserts an entry whose buckets are full.
    ///
    /// A search in breadth finds a shortest chain of entries that can each move to another of its buckets, the last
    /// into a hole; then they move, beginning with the last. No bucket stands twice in a shortest chain: what follows
    /// after the second time followed after the first already. So the moves do not get in each other's way, and the
    /// slots that the search saw are as it saw them when the entries move. A head may be that of several of them, so it
    /// needs room for a whole chain.
    #[cold]
    pub(super) fn insert_displacing(&mut self, place: HashPlace, entry: InlineEntry<K, V>) -> Result<(), Full> {
        let mut nodes = ArrayVec::<SearchNode, NODES>::new();
        let choices = if self.may_move(place) { CHOICES } else { 1 };
        for choice in 0..choices {
            nodes.push(SearchNode { bucket: self.chosen(place, choice), parent: ROOT, slot: 0 });
        }
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            let reached = self.reached(node.bucket);
            for (i, &bucket) in reached.iter().enumerate() {
                if bucket == node.bucket {
                    continue;
                }
                let slot = (i / CHOICES as usize) as u8;
                if let Some(hole) = self.bucket(bucket).head.free() {
                    let last = SearchNode { bucket, parent: at as u16, slot };
                    let found = self.shift(&nodes, last, FoundEntry { bucket, slot: hole });
                    self.put_at(place, entry, found);
                    return Ok(());
                }
                // When there is no room, the nodes there are still lead somewhere.
                let _ = nodes.try_push(SearchNode { bucket, parent: at as u16, slot });
            }
            at += 1;
        }
        Err(Full)
    }

    /// Whether the head of an entry's first bucket has room for whatever a search may move.
    #[inline]
    pub(super) fn may_move(&self, place: HashPlace) -> bool {
        self.bucket(place.primary).head.has_room_for(NODES)
    }

    /// All buckets of the entries of a bucket, slot by slot; the bucket itself: nowhere.
    fn reached(&self, bucket: u32) -> [u32; REACHED] {
        let mut reached = [bucket; REACHED];
        for (slot, next) in reached.chunks_exact_mut(CHOICES as usize).enumerate() {
            let Some(place) = self.standing(FoundEntry { bucket, slot }) else { continue };
            if self.may_move(place) {
                for (choice, next) in (0..).zip(next) {
                    *next = self.chosen(place, choice);
                    self.prefetch(*next);
                }
            }
        }
        reached
    }

    /// The place of the entry in a slot.
    fn standing(&self, at: FoundEntry) -> Option<HashPlace> {
        self.entry(at).map(|entry| self.place_of(&entry.key))
    }

    /// Moves entries along the chain that ends with `last` and its `hole`; the hole that is left in the end.
    fn shift(&mut self, nodes: &[SearchNode], mut last: SearchNode, mut hole: FoundEntry) -> FoundEntry {
        while last.parent != ROOT {
            let parent = nodes[last.parent as usize];
            let from = FoundEntry { bucket: parent.bucket, slot: last.slot as usize };
            self.shift_one(from, hole);
            (last, hole) = (parent, from);
        }
        hole
    }

    /// Moves one entry to a hole in another of its buckets.
    pub(super) fn shift_one(&mut self, from: FoundEntry, to: FoundEntry) {
        let Some(entry) = self.entry(from) else { return };
        let place = self.place_of(&entry.key);
        self.clear_at(place, from);
        self.put_at(place, entry, to);
    }
}
