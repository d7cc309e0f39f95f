//! The state of each flow: its last packet, and the backend it went to.
//!
//! A table indexed by the flow's number, of as many places as there are flows at a time (the next power of two): each of
//! them has one, and leaves it to the flow that a [source](crate::traffic::synthetic) begins when it has ended. Where there
//! are more flows than room was taken for, the one with the higher number takes the place; what comes of the other is not
//! checked, and counted. So is what is overtaken by the flow that follows its own.

/// Places at least: what comes and goes may overlap.
const PLACES_MIN: usize = 1 << 12;
/// Places at most.
const PLACES_MAX: usize = 1 << 27;

/// The state of a flow.
#[derive(Clone, Copy, Default)]
struct FlowState {
    /// One more than the sequence number of its latest packet; 0: nothing is here.
    latest: u64,
    flow: u32,
    backend: u16,
    moved: bool,
}

/// The verdict on a packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketNotice {
    /// All is well.
    Right,
    /// It came after one that was sent later.
    Reordered,
    /// Its flow's place is another's, and nothing is known of it.
    Unchecked,
}

/// The flows.
pub struct SinkFlows {
    places: Box<[FlowState]>,
    /// Flows seen.
    seen: u64,
    /// Flows that went to more than one backend.
    moved: u64,
    /// Packets of flows whose place is another's.
    unchecked: u64,
}

impl SinkFlows {
    /// Room for `flows` flows.
    pub fn new(flows: usize) -> SinkFlows {
        let places = flows.clamp(PLACES_MIN, PLACES_MAX).next_power_of_two();
        SinkFlows { places: vec![FlowState::default(); places].into(), seen: 0, moved: 0, unchecked: 0 }
    }

    /// A packet of `flow` has come, at `backend`.
    #[inline]
    pub fn tell(&mut self, flow: u32, sequence: u64, backend: u16) -> PacketNotice {
        let index = flow as usize & (self.places.len() - 1);
        let Some(place) = self.places.get_mut(index) else { return PacketNotice::Unchecked };
        if place.latest == 0 || place.flow != flow {
            let newer = flow.wrapping_sub(place.flow) < 1 << 31;
            if place.latest != 0 && !newer {
                self.unchecked += 1;
                return PacketNotice::Unchecked;
            }
            self.seen += 1;
            *place = FlowState { latest: sequence + 1, flow, backend, moved: false };
            return PacketNotice::Right;
        }
        if place.backend != backend && !place.moved {
            place.moved = true;
            self.moved += 1;
        }
        if sequence + 1 < place.latest {
            return PacketNotice::Reordered;
        }
        place.latest = sequence + 1;
        PacketNotice::Right
    }

    /// Flows seen, except those with only unchecked packets.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Flows whose packets came at more than one backend.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Packets of flows that had to give way to others: where they went is not known to be right or wrong.
    pub fn unchecked(&self) -> u64 {
        self.unchecked
    }

    /// Adds the counts of another table, of other flows.
    pub(super) fn merge(&mut self, other: &SinkFlows) {
        self.seen += other.seen;
        self.moved += other.moved;
        self.unchecked += other.unchecked;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_flows_are_counted_as_unknown() {
        let mut flows = SinkFlows::new(10);
        let other = 5 + PLACES_MIN as u32;
        assert_eq!(flows.tell(5, 0, 1), PacketNotice::Right);
        assert_eq!(flows.tell(other, 1, 2), PacketNotice::Right);
        assert_eq!([flows.tell(5, 2, 3), flows.tell(5, 3, 1)], [PacketNotice::Unchecked; 2]);
        assert_eq!(flows.tell(other, 4, 2), PacketNotice::Right);
        assert_eq!((flows.seen(), flows.moved(), flows.unchecked()), (2, 0, 2));
        let mut all = SinkFlows::new(0);
        all.merge(&flows);
        all.merge(&flows);
        assert_eq!((all.seen(), all.unchecked()), (4, 4));
    }

    #[test]
    fn wrapped_sequence_numbers_are_newer() {
        let mut flows = SinkFlows::new(10);
        let last = u32::MAX - 5;
        let next = last.wrapping_add(PLACES_MIN as u32);
        assert!(next < last);
        assert_eq!([(last, 0), (next, 1)].map(|(flow, at)| flows.tell(flow, at, 0)), [PacketNotice::Right; 2]);
        assert_eq!((flows.tell(last, 2, 0), flows.seen()), (PacketNotice::Unchecked, 2));
    }
}
