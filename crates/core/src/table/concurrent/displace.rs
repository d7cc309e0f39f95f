//! Making room: the search for a path to a hole, and the moves.

use super::bucket::{AWAY, SLOTS};
use super::{Concurrent, Full};
use crate::table::sync::fence;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Buckets that a search visits. (A model checker has four of them in all.)
const SEEN_MAX: usize = if cfg!(loom) { 20 } else { 512 };

/// A bucket that a search has come to.
#[derive(Clone, Copy, Default)]
struct SearchNode {
    bucket: u32,
    /// The node before it on the path; of the first two, themselves.
    parent: u16,
    /// The entry that stands in the parent's bucket and could stand in this one.
    slot: u8,
    tag: u16,
}

/// An entry that is to be moved: its bucket, its slot and its tag as they were when the path was found.
#[derive(Clone, Copy)]
pub(super) struct DisplacementStep {
    pub(super) bucket: u32,
    pub(super) slot: usize,
    pub(super) tag: u16,
}

/// The nodes of a search.
struct DisplacementSearch {
    nodes: [SearchNode; SEEN_MAX],
    len: usize,
}

impl Concurrent {
    /// Makes a slot free by sending an entry whose secondary bucket this is back to its primary one, if that has room
    /// by now. Otherwise entries that have left would mostly stay away for good: with entries coming and going at 80
    /// percent load, 27 percent would be away, instead of 14, and each costs a lookup another cache line.
    pub(super) fn send_home(&self, bucket: u32) -> bool {
        let tags = self.bucket(bucket).tags();
        tags.guests().any(|slot| {
            let tag = tags.at(slot);
            let home = self.other(bucket, tag);
            self.bucket(home).free().is_some() && self.displace(DisplacementStep { bucket, slot, tag }, home)
        })
    }

    /// Tries to make a slot free in one of two full buckets. That may fail because others were faster; it is an error
    /// only if there is no path to a hole.
    #[cold]
    pub(super) fn make_room(&self, primary: u32, secondary: u32) -> Result<(), Full> {
        let mut search = DisplacementSearch { nodes: [SearchNode::default(); SEEN_MAX], len: 2 };
        search.nodes[0].bucket = primary;
        search.nodes[1] = SearchNode { bucket: secondary, parent: 1, ..SearchNode::default() };
        let mut last = self.find_hole(&mut search).ok_or(Full)?;
        // From the hole backwards. The path is as it was a moment ago: if a step is not possible any more, the caller
        // begins anew, and the steps made have done no harm.
        while last >= 2 {
            let SearchNode { bucket, parent, slot, tag } = search.nodes[last];
            let from = search.nodes[usize::from(parent)].bucket;
            if !self.displace(DisplacementStep { bucket: from, slot: usize::from(slot), tag }, bucket) {
                return Ok(());
            }
            last = usize::from(parent);
        }
        Ok(())
    }

    /// The first node found whose bucket has a hole, breadth first, so that the path to it is one of the shortest.
    fn find_hole(&self, search: &mut DisplacementSearch) -> Option<usize> {
        let mut at = 0;
        while at < search.len {
            let node = search.nodes[at];
            let tags = self.bucket(node.bucket).tags();
            if tags.with(0).next().is_some() {
                return Some(at);
            }
            for slot in 0..SLOTS {
                if search.len == SEEN_MAX {
                    break;
                }
                let tag = tags.at(slot);
                let bucket = self.other(node.bucket, tag);
                self.prefetch(bucket);
                search.nodes[search.len] = SearchNode { bucket, parent: at as u16, slot: slot as u8, tag };
                search.len += 1;
            }
            at += 1;
        }
        None
    }

    /// Moves an entry into its other bucket, `to`, if it is still where it was and there is room. (Any entry with the
    /// same tag is as good: it has the same other bucket.)
    pub(super) fn displace(&self, step: DisplacementStep, to: u32) -> bool {
        let (mut source, mut target) = self.lock_both(step.bucket, to);
        let DisplacementStep { slot, tag, .. } = step;
        if tag == 0 || source.tags().at(slot) != tag {
            return false;
        }
        let Some(hole) = target.free() else { return false };
        let value = source.value(slot);
        let stamp = source.stamp(slot).load(Relaxed);
        #[cfg(loom)]
        if self.planted == super::Planted::ClearedFirst {
            source.clear(slot);
        }
        if tag & AWAY == 0 {
            // It leaves its primary bucket: a lookup that does not find it there any more must know where to look.
            source.leaves(tag);
            target.put(hole, tag | AWAY, value, stamp);
            source.clear(slot);
        } else {
            // It returns: a lookup that was too early here and is too late there must know that it has to search again.
            target.put(hole, tag & !AWAY, value, stamp);
            target.came_back();
            source.clear(slot);
            target.left(tag);
        }
        // A thread that stores a stamp checks afterwards whether the entry is still there. With a fence between the two,
        // there and here, it sees that the entry is not, or we see its stamp.
        fence(SeqCst);
        let later = source.stamp(slot).load(Relaxed);
        if later != stamp {
            // If a thread has stamped the entry in its new place meanwhile, that is as new.
            let _ = target.stamp(hole).compare_exchange(stamp, later, Relaxed, Relaxed);
        }
        true
    }
}
