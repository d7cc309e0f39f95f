//! Room made for an entry whose two buckets are full.

use super::bucket::{BucketEntry, SLOTS, print};
use super::{CuckooPlusPlus, HashPlace};
use crate::table::Full;
use arrayvec::ArrayVec;

/// Buckets a search goes behind, at most. It reads at most `SLOTS` times as many for a hole.
const NODES: usize = 64;

/// A full bucket that the search has reached.
#[derive(Clone, Copy)]
struct SearchNode {
    bucket: u32,
    /// The node from which it was reached.
    parent: u8,
    /// The slot of the parent whose entry can move here.
    slot: u8,
}

/// A node that was not reached but is one of the entry's own buckets.
const ROOT: u8 = u8::MAX;

const _: () = assert!(NODES <= ROOT as usize);

impl CuckooPlusPlus {
    /// Inserts an entry whose two buckets are full.
    ///
    /// A search in breadth finds a shortest chain of entries that can each move to the other of its buckets, the
    /// last into a hole; then they move, beginning with the last, so that each entry is always in the table. No bucket
    /// stands twice in a shortest chain: what follows after the second time followed after the first already, and the
    /// search would have found that before. So the moves do not get in each other's way, and what was true of a bucket
    /// when the search saw it is true when the entry moves.
    #[cold]
    pub(super) fn insert_displacing(&mut self, place: HashPlace, value: u32, stamp: u8) -> Result<(), Full> {
        let mut nodes = ArrayVec::<SearchNode, NODES>::new();
        nodes.push(SearchNode { bucket: place.primary, parent: ROOT, slot: 0 });
        if self.bucket(place.primary).filter.has_room() {
            nodes.push(SearchNode { bucket: self.other(place.primary, place.tag), parent: ROOT, slot: 0 });
        }
        let mut at = 0;
        while let Some(&node) = nodes.get(at) {
            let reached = self.reached(node);
            for (slot, &next) in reached.iter().enumerate() {
                if next == node.bucket {
                    continue;
                }
                if let Some(hole) = self.bucket(next).free().first() {
                    let (bucket, slot) = self.shift(&nodes, at, slot, (next, hole));
                    self.put_at(place, value, stamp, bucket, slot);
                    return Ok(());
                }
                // When there is no room, the nodes there are still lead somewhere.
                let _ = nodes.try_push(SearchNode { bucket: next, parent: at as u8, slot: slot as u8 });
            }
            at += 1;
        }
        Err(Full)
    }

    /// The targets to which the entries of a full bucket can move, by slot; the bucket itself: none.
    fn reached(&self, node: SearchNode) -> [u32; SLOTS] {
        let bucket = self.bucket(node.bucket);
        let has_room = bucket.filter.has_room();
        let mut reached = [node.bucket; SLOTS];
        for (slot, next) in reached.iter_mut().enumerate() {
            let entry = bucket.entry(slot);
            if has_room || entry.is_moved {
                *next = self.other(node.bucket, entry.tag);
                self.prefetch(*next);
            }
        }
        reached
    }

    /// Moves the entry of `slot` in the node `at` into the hole, the one before it into the hole that this leaves, and
    /// so on; the hole that is left in the end.
    fn shift(&mut self, nodes: &[SearchNode], mut at: usize, mut slot: usize, mut hole: (u32, usize)) -> (u32, usize) {
        loop {
            let node = nodes[at];
            self.shift_one((node.bucket, slot), hole);
            hole = (node.bucket, slot);
            if node.parent == ROOT {
                return hole;
            }
            (at, slot) = (node.parent as usize, node.slot as usize);
        }
    }

    /// Moves one entry to its other bucket.
    pub(super) fn shift_one(&mut self, from: (u32, usize), to: (u32, usize)) {
        let entry = self.bucket_mut(from.0).take(from.1);
        debug_assert_eq!(self.other(from.0, entry.tag), to.0, "an entry is moved to a bucket that is not its own");
        if entry.is_moved {
            self.bucket_mut(to.0).filter.remove(print(entry.tag));
        } else {
            self.bucket_mut(from.0).filter.add(print(entry.tag));
        }
        self.bucket_mut(to.0).put(to.1, BucketEntry { is_moved: !entry.is_moved, ..entry });
    }
}
