//! Bytes inserted into or removed from a stream, and how that translates sequence numbers and SACK blocks (Laconic, 3.3.3).
//!
//! A direction of a splice maps *input* sequence numbers, those of the peer that sends, to *output* sequence numbers, those
//! of the peer that receives. A [`SequenceMap`] says how: by one difference, and by at most [`EDITS_MAX`] edits that the
//! receiver has not acknowledged yet. Each replaces input bytes by others. Hairpin keeps inserted bytes and sends them
//! again until they are acknowledged; the sender does so for bytes that pass.
//!
//! Two rules decide all answers:
//!
//! - Bytes that were taken out count as delivered once all that was put in their place is: then, and not before, the
//!   sender may hear of an acknowledgement or a SACK block that covers them. (The caller that makes an edit holds
//!   the bytes that it takes out, so the sender need not send them again, but its idea of what is on its way is right.)
//! - An edit that is acknowledged is folded into the difference ([`SequenceMap::settle`]). From then on older numbers are
//!   off by what the edit changed, which does no harm: whatever lies before the edit maps to numbers before the
//!   acknowledged one, where everything is a duplicate; a segment that reaches beyond the edit maps right from there on.
//!
//! Numbers wrap. They are compared within half the space, so all numbers of one question, and all edits, must lie within
//! 2^31 of each other, as those of a connection do: no window is larger than 2^30 (RFC 7323, 2.3).

mod options;
#[cfg(test)]
mod tests;

pub use options::{strip_sack, translate_sack};

use crate::stored::stored;
use core::ops::Range;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Edits that can wait for their acknowledgement at once. An exchange makes one in each direction; a second comes
/// before the first is acknowledged when an interim response, or a short exchange and its successor, meet a receiver
/// that acknowledges late.
pub const EDITS_MAX: usize = 4;

/// Bytes one edit can take out or put in, and how far apart outstanding edits can be.
const SPAN_MAX: u32 = 1 << 30;

/// A place in the stream where bytes were taken out, others put in, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Edit {
    /// Input number of the first byte taken out; where none was, of the byte that follows what was put in.
    pub at: u32,
    /// Bytes taken out.
    pub taken: u32,
    /// Bytes put in.
    pub put: u32,
    /// Output number of the first byte put in; where none was, of the byte that follows what was taken out.
    pub output: u32,
}

impl Edit {
    /// The input numbers taken out. May wrap: its end may be the smaller number.
    pub fn input_range(&self) -> Range<u32> {
        self.at..self.input_end()
    }

    /// The output numbers put in. May wrap.
    pub fn output_range(&self) -> Range<u32> {
        self.output..self.output_end()
    }

    fn input_end(&self) -> u32 {
        self.at.wrapping_add(self.taken)
    }

    fn output_end(&self) -> u32 {
        self.output.wrapping_add(self.put)
    }

    /// Output minus input numbers of the bytes before it.
    fn delta_before(&self) -> u32 {
        self.output.wrapping_sub(self.at)
    }

    /// Output minus input numbers of the bytes behind it.
    fn delta_after(&self) -> u32 {
        self.output_end().wrapping_sub(self.input_end())
    }
}

/// The output position of an input number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To this output number.
    Through(u32),
    /// Nowhere: the byte was taken out. Both ranges may wrap, and `output` may be empty.
    Inside {
        /// The input numbers taken out.
        input: Range<u32>,
        /// The output numbers put in their place.
        output: Range<u32>,
    },
}

/// A run of bytes of a segment that go through together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its start, in bytes from the start of the segment's payload.
    pub offset: u32,
    /// Its bytes, at least 1.
    pub length: u32,
    /// Output number of its first byte.
    pub output: u32,
}

/// Translates the sender's sequence numbers to the receiver's, and back. Plain data: it lies in connection entries.
#[derive(Clone, Copy, Debug, Default, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SequenceMap {
    /// Output minus input numbers behind all edits.
    delta: u32,
    /// Edits that are not acknowledged, at most [`EDITS_MAX`].
    count: u32,
    /// In order; those from `count` on mean nothing.
    edits: [Edit; EDITS_MAX],
}

stored!(Edit: at, taken, put, output);
stored!(SequenceMap: delta, count, edits);

/// Whether `a` is before `b`.
#[inline(always)]
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl SequenceMap {
    /// Without edits: output numbers are input numbers plus `delta`, modulo 2^32.
    pub fn new(delta: u32) -> SequenceMap {
        SequenceMap { delta, ..SequenceMap::default() }
    }

    /// Whether calls of these functions can have led to it.
    pub fn is_plausible(&self) -> bool {
        let is_short = |edit: &Edit| edit.taken < SPAN_MAX && edit.put < SPAN_MAX;
        self.count as usize <= EDITS_MAX && self.edits().iter().all(is_short)
    }

    /// The edits that are not acknowledged yet, in order.
    #[inline]
    pub fn edits(&self) -> &[Edit] {
        &self.edits[..(self.count as usize).min(EDITS_MAX)]
    }

    /// Takes `taken` bytes out from input number `at` on and puts `put` bytes in their place; says the output number of
    /// the first byte put in (where `put` is 0: of the byte that follows). Neither: nothing is remembered.
    ///
    /// Nothing at or behind `at` may have gone through before. `None`, and no change: [`EDITS_MAX`] edits wait already,
    /// `at` is not behind what the last of them took out, or lengths or distances are 2^30 or more. The caller waits for
    /// acknowledgements, or gives the connection up.
    pub fn edit(&mut self, at: u32, taken: u32, put: u32) -> Option<u32> {
        let edits = self.edits();
        let (count, first) = (edits.len(), edits.first());
        let ascends = edits.last().is_none_or(|last| !before(at, last.input_end()));
        let is_near = first.is_none_or(|first| at.wrapping_sub(first.at) < SPAN_MAX);
        if !ascends || !is_near || taken >= SPAN_MAX || put >= SPAN_MAX {
            return None;
        }
        let edit = Edit { at, taken, put, output: at.wrapping_add(self.delta) };
        if taken > 0 || put > 0 {
            *self.edits.get_mut(count)? = edit;
            self.count = count as u32 + 1;
            self.delta = edit.delta_after();
        }
        Some(edit.output)
    }

    /// Edits as [`SequenceMap::edit`] does where no further edit may wait, if the bytes follow at once on what the last
    /// edit took out: that edit is made longer. It counts as delivered when all of it is.
    pub fn extend(&mut self, at: u32, taken: u32, put: u32) -> Option<u32> {
        let (edits, output) = (self.edits(), at.wrapping_add(self.delta));
        let index = edits.len().checked_sub(1).filter(|&last| edits[last].input_end() == at)?;
        let edit = self.edits.get_mut(index)?;
        let (taken, put) = (edit.taken.checked_add(taken)?, edit.put.checked_add(put)?);
        if taken >= SPAN_MAX || put >= SPAN_MAX {
            return None;
        }
        (edit.taken, edit.put) = (taken, put);
        self.delta = edit.delta_after();
        Some(output)
    }

    /// The output position of input number `input`. At a pure insertion: behind what was put in, data as well as a FIN.
    #[inline]
    pub fn sequence(&self, input: u32) -> Place {
        let mut delta = self.delta;
        for edit in self.edits().iter().rev() {
            if !before(input, edit.input_end()) {
                break;
            }
            if !before(input, edit.at) {
                return Place::Inside { input: edit.input_range(), output: edit.output_range() };
            }
            delta = edit.delta_before();
        }
        Place::Through(input.wrapping_add(delta))
    }

    /// The runs of a segment's `length` bytes from input number `input` on that go through together, in order: the
    /// segment is cut where something was put in, and what was taken out is left out. A segment without data has none;
    /// ask [`SequenceMap::sequence`] for it, as for a FIN behind the data.
    pub fn pieces(&self, input: u32, length: u32) -> impl Iterator<Item = Piece> + '_ {
        let mut offset = 0;
        core::iter::from_fn(move || {
            while offset < length {
                let at = input.wrapping_add(offset);
                match self.sequence(at) {
                    Place::Inside { input, .. } => offset += input.end.wrapping_sub(at).min(length - offset),
                    Place::Through(output) => {
                        let next = self.edits().iter().find(|edit| before(at, edit.at));
                        let run = next.map_or(u32::MAX, |edit| edit.at.wrapping_sub(at)).min(length - offset);
                        let piece = Piece { offset, length: run, output };
                        offset += run;
                        return Some(piece);
                    }
                }
            }
            None
        })
    }

    /// Output minus input numbers, modulo 2^32, of bytes behind all edits.
    #[inline]
    pub fn delta_at_end(&self) -> u32 {
        self.delta
    }

    /// The acknowledgement the sender hears when the receiver says `output`: the largest input number before which
    /// everything is delivered. Held at an edit's start while `output` is inside what was put in.
    #[inline]
    pub fn acknowledgement(&self, output: u32) -> u32 {
        let mut delta = self.delta;
        for edit in self.edits().iter().rev() {
            if !before(output, edit.output_end()) {
                break;
            }
            if before(edit.output, output) {
                return edit.at;
            }
            delta = edit.delta_before();
        }
        output.wrapping_sub(delta)
    }

    /// The edit that put in the byte of output number `output`; `None` if that is the sender's. An acknowledgement of
    /// such a number says that this byte is missing: who put it in sends it again.
    pub fn inside(&self, output: u32) -> Option<Edit> {
        self.edits().iter().find(|edit| !before(output, edit.output) && before(output, edit.output_end())).copied()
    }

    /// The bytes to subtract from the window that goes to the sender beside an acknowledgement of `output`: what was put in
    /// beyond what was taken out behind that number. With it, nothing the sender may send lies beyond what the receiver
    /// allows. Never below 0: where more was taken out, the sender gets the receiver's window and no more.
    #[inline]
    pub fn window_excess(&self, output: u32) -> u32 {
        if self.count == 0 {
            return 0;
        }
        let acknowledged = self.acknowledgement(output);
        // The most that any byte behind is moved, not only the last: edits that take out follow edits that put in.
        let ahead = self.edits().iter().filter(|edit| before(output, edit.output_end()));
        let excess = ahead.map(|edit| acknowledged.wrapping_add(edit.delta_after()).wrapping_sub(output) as i32).max();
        excess.map_or(0, |excess| excess.max(0) as u32)
    }

    /// The block of input numbers the sender hears of when the receiver says that it has output numbers `left` to before
    /// `right`: the bytes that went through, and those that were taken out where all that was put in their place is in
    /// the block. `None` if that is none.
    ///
    /// The block may start at the number acknowledged beside it, when all the receiver lacks was put in: senders ignore
    /// such a block (Linux, FreeBSD), as they must, for there is nothing they could send.
    #[inline]
    pub fn sack(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let input = (self.block_start(left), self.acknowledgement(right));
        (before(left, right) && before(input.0, input.1)).then_some(input)
    }

    /// The smallest input number from which on nothing was delivered by output before `left`.
    fn block_start(&self, left: u32) -> u32 {
        for edit in self.edits() {
            if !before(edit.output, left) {
                return left.wrapping_sub(edit.delta_before());
            }
            if before(left, edit.output_end()) {
                return edit.input_end();
            }
        }
        left.wrapping_sub(self.delta)
    }

    /// The receiver has acknowledged everything before `acknowledged`, an output number that the caller has checked: not
    /// beyond what was sent. Edits before it are folded into the difference, and what they put in is not needed any
    /// more. A pure removal has nothing to be acknowledged: it is folded as soon as everything before it is.
    pub fn settle(&mut self, acknowledged: u32) {
        let edits = self.edits();
        let settled = edits.iter().take_while(|edit| !before(acknowledged, edit.output_end())).count();
        if settled > 0 {
            let left = edits.len() - settled;
            self.edits.copy_within(settled.., 0);
            self.count = left as u32;
        }
    }

    /// Whether no edit waits for its acknowledgement: one difference holds for all numbers.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.count == 0
    }
}
