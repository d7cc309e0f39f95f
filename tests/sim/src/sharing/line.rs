//! A cache line that cores share: who has it, and who gets it next.
//!
//! Requests for a line are served one after the other, in the order in which they come, as a directory does it. A core that
//! has the line in the state that it needs pays [`LineCosts::held_ns`]; one that needs what another core has changed waits for
//! [`LineCosts::transfer_ns`], during which no other core gets the line; one that reads what no core has changed since the last
//! read takes [`LineCosts::clean_ns`], and several do so at a time.

use serde::Deserialize;

/// The cost of a cache line, in nanoseconds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LineCosts {
    /// An atomic change of a line that the core has already.
    pub held_ns: f64,
    /// A line that another core has changed, or has and must give up, until this core may change it.
    pub transfer_ns: f64,
    /// Reading a line that others have read and no core has changed since.
    pub clean_ns: f64,
    /// What a core waits before it reads a reader-writer lock again that it may not take (`rte_pause`).
    #[serde(default)]
    pub pause_ns: f64,
    /// The source of the numbers.
    pub source: String,
}

/// A line, with one number in it: a lock's word, a counter.
#[derive(Default)]
pub(super) struct Line {
    /// When the last accepted request is done: the next one begins then.
    free_at: u64,
    /// The core that may change it.
    owner: Option<usize>,
    /// A bit for each core that may read it.
    readers: u64,
    pub(super) value: i32,
    /// Cores that read it again and again until it changes.
    watchers: Vec<usize>,
}

/// When a request is done, and when it took the line away from others.
pub(super) struct Access {
    pub(super) done: u64,
    pub(super) begins: u64,
}

impl Line {
    /// A core reads it.
    pub(super) fn read(&mut self, core: usize, now: u64, costs: &LineCosts) -> u64 {
        if self.may_read(core) {
            return now.max(self.owned_until(core)) + 1;
        }
        let begins = now.max(self.free_at);
        self.readers |= 1 << core;
        match self.owner.take() {
            Some(other) => {
                self.readers |= 1 << other;
                self.free_at = begins + ns(costs.transfer_ns);
                self.free_at
            }
            None => begins + ns(costs.clean_ns),
        }
    }

    /// A core changes it. Cores that watch it notice: [`Line::leave`].
    pub(super) fn change(&mut self, core: usize, now: u64, costs: &LineCosts) -> Access {
        let begins = now.max(self.free_at);
        let alone = self.owner == Some(core) || self.owner.is_none() && self.readers & !(1 << core) == 0;
        let takes = if alone { costs.held_ns } else { costs.transfer_ns.max(costs.held_ns) };
        (self.owner, self.readers) = (Some(core), 0);
        self.free_at = begins + ns(takes);
        Access { done: self.free_at, begins }
    }

    /// Whether a core would notice a change of the line: if not, the line has changed hands since it was read.
    pub(super) fn may_read(&self, core: usize) -> bool {
        self.owner == Some(core) || self.readers & (1 << core) != 0
    }

    pub(super) fn watch(&mut self, core: usize) {
        self.watchers.push(core);
    }

    /// Those that have been watching, who read it again.
    pub(super) fn leave(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.watchers)
    }

    fn owned_until(&self, core: usize) -> u64 {
        if self.owner == Some(core) { self.free_at } else { 0 }
    }
}

/// Whole nanoseconds, at least one.
pub(super) fn ns(time: f64) -> u64 {
    (time.round() as u64).max(1)
}
