//! What has been seen of each flow: its last packet, and the backend it went to.
//!
//! A table indexed by the flow's number, of as many places as there are flows (the next power of two): flows that are there
//! all the time have one each. Of flows that come and go, a newer one takes the place of one that is as many numbers
//! older; what then still comes of the older is not checked, and counted.

/// Places at least: what comes and goes may overlap.
const PLACES_MIN: usize = 1 << 12;
/// Places at most.
const PLACES_MAX: usize = 1 << 27;

/// What is known of a flow.
#[derive(Clone, Copy, Default)]
struct Place {
    /// One more than the sequence number of its latest packet; 0: nothing is here.
    latest: u64,
    flow: u32,
    backend: u16,
    moved: bool,
}

/// What a packet of a flow says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// All is well.
    Right,
    /// It came after one that was sent later.
    Reordered,
    /// Its flow's place is another's.
    Unchecked,
}

/// The flows.
pub struct Flows {
    places: Box<[Place]>,
    /// Flows seen.
    seen: u64,
    /// Flows that went to more than one backend.
    moved: u64,
    /// Packets of flows that are not remembered.
    unchecked: u64,
}

impl Flows {
    /// Room for `flows` flows.
    pub fn new(flows: usize) -> Flows {
        let places = flows.clamp(PLACES_MIN, PLACES_MAX).next_power_of_two();
        Flows { places: vec![Place::default(); places].into(), seen: 0, moved: 0, unchecked: 0 }
    }

    /// A packet of `flow` has come, at `backend`.
    #[inline]
    pub fn tell(&mut self, flow: u32, sequence: u64, backend: u16) -> Told {
        let index = flow as usize & (self.places.len() - 1);
        let Some(place) = self.places.get_mut(index) else { return Told::Unchecked };
        if place.latest == 0 || place.flow != flow {
            let newer = flow.wrapping_sub(place.flow) < 1 << 31;
            if place.latest != 0 && !newer {
                self.unchecked += 1;
                return Told::Unchecked;
            }
            self.seen += 1;
            *place = Place { latest: sequence + 1, flow, backend, moved: false };
            return Told::Right;
        }
        if place.backend != backend && !place.moved {
            place.moved = true;
            self.moved += 1;
        }
        if sequence + 1 < place.latest {
            return Told::Reordered;
        }
        place.latest = sequence + 1;
        Told::Right
    }

    /// Flows seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Flows of which packets came at more than one backend.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Packets of flows that had been forgotten for newer ones.
    pub fn unchecked(&self) -> u64 {
        self.unchecked
    }

    /// Adds the counts of another table, of other flows.
    pub(super) fn merge(&mut self, other: &Flows) {
        self.seen += other.seen;
        self.moved += other.moved;
        self.unchecked += other.unchecked;
    }
}
