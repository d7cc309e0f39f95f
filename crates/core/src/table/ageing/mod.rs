//! Ageing: finds the entries whose time is up, over any table, without ever stopping for it.
//!
//! KTH 2020 (section 6.3.3, figure 6.1) regrets a timer that checks the whole flow table at once: throughput fell each
//! time, from the first timeout on. Here every mechanism is
//! - *lazy*: a packet only writes when it came into its entry. When an entry's time seems to have come it is asked anew
//!   ([`Deadlines`]), and put off if it has gone on;
//! - *incremental*: a call does a bounded amount of work and goes on where it stopped;
//! - *exact* within stated limits: never early, and at most [`Ageing::late_max`] late.
//!
//! Timeouts are per entry and state, from one granularity to centuries. The product's mechanism is [`Stamps`]: a due tick of 16
//! bits, 2 and 1/16 bytes per position, work per entry and timeout in order of position. The laboratory (`lab/tables`) has
//! others to compare it with; `hairpin-bench ageing` measures them beside each other, docs/evidence/tables.md says what came out.

mod stamps;

pub use stamps::Stamps;

use super::Position;
use crate::time::{Duration, Time};
use arrayvec::ArrayVec;

/// Entries that one call of [`Ageing::due`] asks for their deadline at most.
pub const JUDGED_MAX: usize = 64;

/// Entries that are brought into the cache together before they are asked.
pub const BATCH: usize = 32;

/// When entries are over, in their own words.
pub trait Deadlines {
    /// When the entry at `position` is over if nothing more is heard of it; `None` if there is none.
    fn deadline(&self, position: Position) -> Option<Time>;

    /// Starts to bring into the cache what [`Deadlines::deadline`] will read.
    fn prefetch(&self, _position: Position) {}
}

/// A mechanism that finds the entries whose time is up.
///
/// The owner of the entries tells it when one begins, when one's deadline becomes *earlier* and when one ends; that
/// deadlines become later it finds out by itself. What it hands out, the owner either ends or starts anew.
///
/// A deadline that has passed already when it is told counts as one of that moment. *Drained* is a mechanism whose last
/// call of [`Ageing::due`] returned `false`.
pub trait Ageing {
    /// The mechanism's name in reports.
    fn name(&self) -> &'static str;

    /// Bytes it takes; all are allocated when it is made.
    fn bytes(&self) -> usize;

    /// When it is drained, everything has been handed out that was over so long ago.
    fn late_max(&self) -> Duration;

    /// The entry at `position` begins, or is over earlier than was told before: at `deadline`.
    ///
    /// # Panics
    /// If `position` is not below the mechanism's capacity.
    fn started(&mut self, position: Position, deadline: Time);

    /// There is no entry at `position` any more. To say so twice does no harm, nor to say it of one that was handed out.
    fn ended(&mut self, position: Position);

    /// Adds entries that are over at `now` to `out`, until it is full or the work of one call is done. Returns whether
    /// there is more to do at once. `now` does not go back from call to call.
    fn due<D: Deadlines, const N: usize>(&mut self, now: Time, entries: &D, out: &mut ArrayVec<Position, N>) -> bool;

    /// The earliest time at which there may be something to do (maybe past), `None` if there is no entry. It may be too
    /// early; a caller that drains the mechanism at these times has what is due in time.
    fn next(&self, now: Time) -> Option<Time>;
}

/// Asks the entries at `candidates`: those that are over go to `out`, which has room for all of them; those that have
/// gone on are told to `put_off` with their deadline.
pub fn judge<D: Deadlines, const N: usize>(
    now: Time,
    entries: &D,
    candidates: &[Position],
    out: &mut ArrayVec<Position, N>,
    mut put_off: impl FnMut(Position, Time),
) {
    candidates.iter().for_each(|&position| entries.prefetch(position));
    for &position in candidates {
        match entries.deadline(position) {
            Some(deadline) if deadline > now => put_off(position, deadline),
            Some(_) => out.push(position),
            None => {}
        }
    }
}

/// Nanoseconds of a duration, at least 1.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests;
