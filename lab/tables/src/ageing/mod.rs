//! Mechanisms of ageing to compare [`Stamps`] with.
//!
//! | name | what it keeps | bytes per position | work |
//! |---|---|---|---|
//! | `wheel` | [`Wheel`]: lists by due tick | 16 | per entry and timeout, scattered |
//! | `stamps` | [`Stamps`]: a due tick of 16 bits | 2 and 1/16 | per entry and timeout, in order of position |
//! | `sweep` | [`SlabSweep`]: nothing | 0 | per position and period, in order |
//! | `bucket-stamps` | [`buckets`]: a due tick of 8 bits in the buckets of `cuckoo++` | (1 per slot) | per bucket and tick |
//!
//! `hairpin-bench ageing` measures them beside each other; docs/evidence/tables.md says what came out.

pub mod buckets;
mod sweep;
mod wheel;

pub use crate::wheel::Wheel;
pub use hairpin_core::table::ageing::{Ageing, Deadlines, JUDGED_MAX, Stamps};
pub use sweep::SlabSweep;

use hairpin_core::table::ageing::{BATCH, judge, nanos};

#[cfg(test)]
mod tests;
