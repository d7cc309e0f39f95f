//! For the model checker (`--cfg loom`) only: bugs to be planted, and single steps to be taken.

use super::displace::DisplacementStep;
use super::{AWAY, Concurrent};
use crate::table::Key;

/// A bug that the model checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// None.
    Nothing,
    /// An entry that moves is cleared before it is copied.
    ClearedFirst,
    /// A lookup that found nothing does not check whether an entry came back meanwhile.
    MissesUnchecked,
}

impl Concurrent {
    /// Plants a bug.
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// The primary and the secondary bucket of a key.
    pub fn buckets_of<K: Key>(&self, key: &K) -> (u32, u32) {
        let place = self.place_of(key);
        (place.primary, self.other(place.primary, place.tag))
    }

    /// Moves the entry of a key and value into its other bucket, if it is there and there is room.
    pub fn move_over<K: Key>(&self, key: &K, value: u32) -> bool {
        let place = self.place_of(key);
        let both = [(place.primary, place.tag), (self.other(place.primary, place.tag), place.tag | AWAY)];
        both.into_iter().any(|(bucket, tag)| {
            let slot = self.bucket(bucket).position(tag, value);
            slot.is_some_and(|slot| self.displace(DisplacementStep { bucket, slot, tag }, self.other(bucket, tag)))
        })
    }
}
