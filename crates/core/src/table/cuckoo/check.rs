//! The invariants, checked over the whole table: for tests.

use super::bucket::print;
use super::{CuckooPlusPlus, Hash};
use alloc::vec::Vec;

/// The defect of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// An entry stands in the wrong bucket, or with the wrong tag.
    Astray {
        /// The bucket.
        bucket: u32,
        /// The entry's value.
        value: u32,
    },
    /// The filter of a bucket counts another number of moved entries than there are.
    Count {
        /// The bucket.
        bucket: u32,
        /// Entries counted.
        counted: usize,
        /// Entries of this bucket that live elsewhere.
        moved: usize,
    },
    /// The filter of a bucket lists a print that none of its moved entries has, or too often.
    Listed {
        /// The bucket.
        bucket: u32,
        /// The print.
        print: u8,
    },
    /// The number of entries is wrong.
    Length {
        /// The value of [`Table::len`](crate::table::Table::len).
        said: usize,
        /// Entries that there are.
        counted: usize,
    },
}

impl CuckooPlusPlus {
    /// Checks that every filter describes exactly the entries of its bucket that live elsewhere, and that the number of
    /// entries is right. Takes memory and time in proportion to the table.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), Broken> {
        let mut moved = Vec::new();
        let mut counted = 0;
        for (at, bucket) in (0..).zip(&self.buckets) {
            counted += bucket.taken().count();
            for entry in bucket.taken().map(|slot| bucket.entry(slot)).filter(|entry| entry.is_moved) {
                moved.push((self.other(at, entry.tag), print(entry.tag)));
            }
        }
        if counted != self.len {
            return Err(Broken::Length { said: self.len, counted });
        }
        moved.sort_unstable();
        let mut moved = &moved[..];
        for at in 0..self.buckets.len() as u32 {
            let (here, rest) = moved.split_at(moved.partition_point(|&(bucket, _)| bucket == at));
            self.check_filter(at, here)?;
            moved = rest;
        }
        Ok(())
    }

    /// [`CuckooPlusPlus::check`], and that each entry stands where its hash says, which `hash_of` tells of its value.
    ///
    /// # Errors
    /// The first defect.
    pub fn check_against(&self, mut hash_of: impl FnMut(u32) -> Hash) -> Result<(), Broken> {
        self.check()?;
        for (at, bucket) in (0..).zip(&self.buckets) {
            for entry in bucket.taken().map(|slot| bucket.entry(slot)) {
                let place = self.place(hash_of(entry.value));
                let its = if entry.is_moved { self.secondary(place) } else { place.primary };
                if (its, place.tag) != (at, entry.tag) {
                    return Err(Broken::Astray { bucket: at, value: entry.value });
                }
            }
        }
        Ok(())
    }

    /// Whether the filter of a bucket describes its `moved` entries.
    fn check_filter(&self, at: u32, moved: &[(u32, u8)]) -> Result<(), Broken> {
        let filter = self.bucket(at).filter;
        let counted = filter.listed().count() + usize::from(filter.unlisted());
        if counted != moved.len() {
            return Err(Broken::Count { bucket: at, counted, moved: moved.len() });
        }
        for print in filter.listed() {
            let times = filter.listed().filter(|&other| other == print).count();
            if times > moved.iter().filter(|&&(_, other)| other == print).count() {
                return Err(Broken::Listed { bucket: at, print });
            }
        }
        Ok(())
    }
}
