//! The invariants, checked over the whole table: for tests.

use super::Inline;
use super::bucket::{SLOTS, mark};
use hairpin_core::table::Key;
use std::vec::Vec;

/// The defect of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// An entry stands in the wrong bucket, or with the wrong tag.
    Astray {
        /// The bucket.
        bucket: u32,
        /// The slot.
        slot: usize,
    },
    /// The head of a bucket counts another number of moved entries than there are.
    Count {
        /// The bucket.
        bucket: u32,
        /// Entries counted.
        counted: usize,
        /// Entries of this bucket that live elsewhere.
        moved: usize,
    },
    /// The head of a bucket lists a mark that none of its moved entries has, or too often.
    Listed {
        /// The bucket.
        bucket: u32,
        /// The mark: tag and choice.
        mark: u16,
    },
    /// The screen of a bucket is not what its head says.
    Screen {
        /// The bucket.
        bucket: u32,
    },
    /// The number of entries is wrong.
    Length {
        /// The table's own value.
        said: usize,
        /// Entries that there are.
        counted: usize,
    },
}

impl<K: Key, V: Copy + Default> Inline<K, V> {
    /// Checks that each entry stands where its key's hash says, that every head describes exactly the entries of its
    /// bucket that live elsewhere, and that the number of entries is right. Takes memory and time in proportion to the
    /// table.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), Broken> {
        let mut moved = Vec::new();
        let mut counted = 0;
        for (at, bucket) in (0..).zip(&self.buckets) {
            for slot in 0..SLOTS {
                let Some(entry) = bucket.entry(slot) else { continue };
                counted += 1;
                let place = self.place_of(&entry.key);
                let choice = bucket.head.choice(slot).unwrap_or(0);
                if (self.chosen(place, choice), mark(place.tag(), choice)) != (at, bucket.head.marks[slot]) {
                    return Err(Broken::Astray { bucket: at, slot });
                }
                if choice != 0 {
                    moved.push((place.primary, mark(place.tag(), choice)));
                }
            }
        }
        if counted != self.len {
            return Err(Broken::Length { said: self.len, counted });
        }
        moved.sort_unstable();
        let mut moved = &moved[..];
        for at in 0..self.buckets.len() as u32 {
            let (here, rest) = moved.split_at(moved.partition_point(|&(bucket, _)| bucket == at));
            self.check_head(at, here)?;
            moved = rest;
        }
        Ok(())
    }

    /// Whether the head of a bucket describes its `moved` entries.
    fn check_head(&self, at: u32, moved: &[(u32, u16)]) -> Result<(), Broken> {
        let head = &self.bucket(at).head;
        let counted = head.listed().count() + usize::from(head.unlisted);
        if counted != moved.len() {
            return Err(Broken::Count { bucket: at, counted, moved: moved.len() });
        }
        for cell in head.listed() {
            let times = head.listed().filter(|&other| other == cell).count();
            if times > moved.iter().filter(|&&(_, other)| other == cell).count() {
                return Err(Broken::Listed { bucket: at, mark: cell });
            }
        }
        if self.screens[at as usize] != head.screen() {
            return Err(Broken::Screen { bucket: at });
        }
        Ok(())
    }
}
