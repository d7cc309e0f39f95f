//! Marks: a flow engine that cannot turn packets round may still say whose they are, and spare the worker hash and lookup
//! (KTH 2020, FlowIPManagerHW).
//!
//! A mark is one more than the lower half of a rule's id, which is the value that the index has for the flow. It is only a
//! hint: it may be of a rule whose connection has ended meanwhile and whose place another has now, or of another worker.
//! So a packet found by a mark must have the connection's key, and the connection must be one that the index has too
//! (present and not pending removal); every other packet is looked up as ever. A worker that takes marks does, frame by frame,
//! what one that does not take them does (`tests/marks.rs`).

use super::{ConnectionFlows, Worker, parts};
use crate::flow::FlowKey;
use crate::frame::{Arrival, BATCH_MAX, Batch, Frame, Meta};
use crate::l4::connection::Flags;
use crate::offload::OffloadPolicy;
use crate::table::{Entries, Table};
use arrayvec::ArrayVec;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// From now on frames' tickets are marks ([`Frame::MARKS`]), 0 being none. Off until this is called.
    pub fn go_by_marks(&mut self) {
        self.marks = true;
    }

    /// Whose frames they are: by their marks, and by the index where that is not enough.
    #[inline(never)]
    pub(super) fn find_marked<F: Frame>(&mut self, rx: &Batch<F>, keys: &[FlowKey], found: &mut [Option<u32>]) {
        let mut others: ArrayVec<FlowKey, BATCH_MAX> = ArrayVec::new();
        let mut places: ArrayVec<usize, BATCH_MAX> = ArrayVec::new();
        for (place, (frame, key)) in rx.iter().zip(keys).enumerate() {
            let marked = self.marked(frame.meta(), key);
            match marked {
                Some(_) => found[place] = marked,
                None => {
                    others.push(*key);
                    places.push(place);
                }
            }
        }
        let mut sought = [None; BATCH_MAX];
        let sought = &mut sought[..others.len()];
        self.table.find_burst(&others, &ConnectionFlows(&self.slab), sought);
        for (place, value) in places.into_iter().zip(sought) {
            found[place] = *value;
        }
    }

    /// The index's value for `key`, by a frame's mark.
    fn marked(&mut self, meta: &Meta, key: &FlowKey) -> Option<u32> {
        let value = meta.ticket.checked_sub(1).filter(|_| meta.arrival == Arrival::Received)?;
        let (position, _) = parts(value);
        let known =
            ConnectionFlows(&self.slab).is(value, key) && !self.slab.at(position).flags.has(Flags::PENDING_REMOVAL);
        let counted = if known { &mut self.statistics.marked } else { &mut self.statistics.mismarked };
        *counted += 1;
        known.then_some(value)
    }
}
