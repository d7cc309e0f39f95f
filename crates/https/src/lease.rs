//! A request's part of the load of its backend, from when that was chosen until the request is over.

use crate::local::{Counts, Local};
use crate::queue::Queues;
use hairpin_core::l7::config::Group;
use std::rc::Rc;

/// Counts a request towards its backend's load for as long as this exists.
pub(crate) struct Lease {
    /// The backend's number.
    number: u16,
    group: Group,
    counts: Rc<Counts>,
    queues: Rc<Queues>,
}

impl Lease {
    pub(crate) fn new(local: &Local, group: Group, number: u16) -> Lease {
        local.counts.load(number, true);
        Lease { number, group, counts: Rc::clone(&local.counts), queues: Rc::clone(&local.queues) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.counts.load(self.number, false);
        self.queues.wake(self.group);
    }
}
