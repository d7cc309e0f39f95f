//! Recordings played with fresh addresses, as KTH 2022 (section 3.2) sets the number of flows by a mask.
//!
//! Many recordings are under way at a time, and which of them has the next packet is drawn: as on a backbone, packets of a
//! flow are apart, and far more of them are small than large. One that ends makes room for the next, whose flows are new
//! ones, until there are as many as asked for; then the first ones come again. All packets are taken for TCP segments of
//! connections whose beginning was not seen, whatever was recorded: a datagram flow without answers would be
//! established from its eighth packet on only, and KTH 2022's balancer made no such difference.

use super::structure::Structure;
use super::{EvenPace, key};
use fastrand::Rng;
use hairpin_core::flow::Direction;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::time::Time;
use hairpin_sim::testbed::{FlowPart, ModelTraffic, OfferedPacket};
use std::sync::Arc;

/// Recordings under way at a time at most.
const LANES_MAX: u64 = 4096;

/// A recording under way.
#[derive(Clone, Copy, Debug)]
struct ReplayLane {
    unit: u32,
    at: u32,
    /// The number of its first flow.
    first: u32,
}

/// The next recording to play.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    unit: usize,
    first: u32,
}

/// A replay.
pub struct ReplayMix {
    structure: Arc<Structure>,
    lanes: Vec<ReplayLane>,
    cursor: Cursor,
    flows: u32,
    length: Option<u16>,
    pace: EvenPace,
    random: Rng,
}

impl ReplayMix {
    /// `flows` flows at `packets_per_s` for `seconds`; frames of `length` bytes, or as recorded.
    pub fn new(
        structure: Arc<Structure>,
        flows: u32,
        packets_per_s: f64,
        seconds: f64,
        length: Option<u16>,
        seed: u64,
    ) -> ReplayMix {
        // A quarter of all recordings that there will be is under way at a time.
        let copies = u64::from(flows) * structure.units.len() as u64 / structure.flows().max(1);
        let lanes = (copies / 4).clamp(1, LANES_MAX);
        let random = Rng::with_seed(seed);
        let pace = EvenPace::new(packets_per_s, seconds);
        let mut replay =
            ReplayMix { structure, lanes: Vec::new(), cursor: Cursor::default(), flows, length, pace, random };
        for _ in 0..lanes {
            let lane = replay.begin();
            replay.lanes.push(lane);
        }
        replay
    }

    /// How long it takes until each flow has had all its packets once, in seconds.
    pub fn pass_seconds(structure: &Structure, flows: u32, packets_per_s: f64) -> f64 {
        f64::from(flows) * structure.packets() as f64 / structure.flows().max(1) as f64 / packets_per_s.max(1e-3)
    }

    /// The next recording. The order of recordings begins anew with the flows, so that a flow is the same each time.
    fn begin(&mut self) -> ReplayLane {
        let lane = ReplayLane { unit: self.cursor.unit as u32, at: 0, first: self.cursor.first };
        let flows = self.structure.units.get(self.cursor.unit).map_or(1, |unit| unit.flows);
        self.cursor.first = self.cursor.first.saturating_add(flows);
        self.cursor.unit = (self.cursor.unit + 1) % self.structure.units.len().max(1);
        if self.cursor.first >= self.flows {
            self.cursor = Cursor::default();
        }
        lane
    }

    /// The next packet's flow and length.
    #[inline]
    fn draw(&mut self) -> Option<(u32, u16)> {
        // The last recording has more flows than are left: those packets are left out. Each has its first flow, at least.
        loop {
            let index = self.random.usize(..self.lanes.len());
            let lane = self.lanes.get_mut(index)?;
            let unit = self.structure.units.get(lane.unit as usize)?;
            let at = lane.at as usize;
            let (flow, length) = (lane.first + *unit.order.get(at)?, *unit.lengths.get(at)?);
            lane.at += 1;
            if at + 1 >= unit.order.len() {
                let next = self.begin();
                *self.lanes.get_mut(index)? = next;
            }
            if flow < self.flows {
                return Some((flow, self.length.unwrap_or(length)));
            }
        }
    }
}

impl ModelTraffic for ReplayMix {
    #[inline]
    fn next(&mut self) -> Option<OfferedPacket> {
        let at = self.pace.next()?;
        let (flow, length) = self.draw()?;
        let at = Time::from_nanos(at);
        Some(OfferedPacket { at, flow, length, direction: Direction::FromClient, part: FlowPart::Middle })
    }

    fn key(&self, flow: u32) -> FlowKey {
        key(flow, Protocol::Tcp)
    }

    fn flows(&self) -> u32 {
        self.flows
    }
}
