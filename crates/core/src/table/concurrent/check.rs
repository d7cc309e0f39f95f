//! The invariants of a table that no thread is changing.

use super::Concurrent;
use super::bucket::{AWAY, Bucket, CELL_MAX, cell_number};
use alloc::vec;

/// The defect of a table; only a defect of this program, or a thread that died, can have brought it about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The bucket of this number is locked.
    Locked(usize),
    /// The filter of the bucket of this number does not count what stands in secondary buckets.
    Filter(usize),
    /// The bucket of this number has an entry with tag 0 that says it is in its secondary bucket.
    Tag(usize),
    /// So many entries are counted, and so many there are.
    Count(usize, usize),
}

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Broken::Locked(bucket) => write!(f, "bucket {bucket} is locked"),
            Broken::Filter(bucket) => write!(f, "the filter of bucket {bucket} is wrong"),
            Broken::Tag(bucket) => write!(f, "bucket {bucket} has an impossible tag"),
            Broken::Count(counted, there) => write!(f, "{counted} entries are counted, {there} are there"),
        }
    }
}

impl core::error::Error for Broken {}

impl Concurrent {
    /// Looks at every bucket: nothing is locked, every filter counts exactly the entries of its bucket that stand in
    /// their secondary one, and the entries are as many as were counted. Allocates; for tests.
    ///
    /// # Errors
    /// The defect.
    pub fn check(&mut self) -> Result<(), Broken> {
        let mut away = vec![self.buckets[0].cells().map(|_| 0u32); self.buckets.len()];
        let mut entries = 0;
        for (number, bucket) in self.buckets.iter().enumerate() {
            if bucket.is_locked() {
                return Err(Broken::Locked(number));
            }
            let tags = bucket.tags();
            for slot in tags.taken() {
                entries += 1;
                let tag = tags.at(slot);
                if tag & !AWAY == 0 {
                    return Err(Broken::Tag(number));
                }
                if tag & AWAY != 0 {
                    away[self.other(number as u32, tag) as usize][cell_number(tag) as usize] += 1;
                }
            }
        }
        let agrees = |(&count, &away): (&u32, &u32)| count == away || count == CELL_MAX;
        for (number, (bucket, away)) in self.buckets.iter().zip(&away).enumerate() {
            if !Bucket::cells(bucket).iter().zip(away).all(agrees) {
                return Err(Broken::Filter(number));
            }
        }
        match self.entries() {
            counted if counted == entries => Ok(()),
            counted => Err(Broken::Count(counted, entries)),
        }
    }
}
