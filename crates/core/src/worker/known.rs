//! Cells through which an engine recognises packets of connections that have no rule (or not yet), without a system
//! call for each: a counting filter with one hash, in memory shared with the engine.

use core::sync::atomic::{AtomicU8, Ordering};

/// A shared array of 8-bit counters; its length is a power of two, or zero (then nothing is noted).
#[derive(Clone, Copy, Default)]
pub struct Known(&'static [AtomicU8]);

impl Known {
    /// Over `cells`, of which the largest power of two is used.
    pub fn new(cells: &'static [AtomicU8]) -> Known {
        let usable = if cells.is_empty() { 0 } else { 1 << cells.len().ilog2() };
        Known(&cells[..usable])
    }

    fn cell(&self, hash: u64) -> Option<&'static AtomicU8> {
        self.0.get(hash as usize & self.0.len().wrapping_sub(1))
    }

    /// Notes a connection with this steering hash. A full counter (255) stays full for ever.
    pub fn add(&self, hash: u64) {
        if let Some(cell) = self.cell(hash) {
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        }
    }

    /// Takes one off.
    pub fn remove(&self, hash: u64) {
        if let Some(cell) = self.cell(hash) {
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| match n {
                0 | u8::MAX => None,
                n => Some(n - 1),
            });
        }
    }
}
