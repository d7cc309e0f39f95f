//! Packets made up: a set of flows in turn, or flows that come by a process, carry as much as a distribution says, and go.
//!
//! TCP is what a balancer sees of it: a SYN first, segments, a FIN last; there are no answers and no retransmissions.
//! Packets of open flows are sent in turn, one of each.
//!
//! Of flows that come and go each open one has a number that no other open one has, of any lane, in its lowest bits: a flow
//! that ends leaves them to its successor, whose number is a power of two higher. So a sink that has a
//! place for each open flow never has two for the same place ([`SinkFlows`](crate::sink::flows::SinkFlows)).

use super::flows::{FlowLane, FlowSet, Rounds, client};
use super::sizes::FlowSizes;
use super::template::{LinkAddresses, PacketEnds, PacketKind, PacketTemplate};
use super::{FilledBurst, Numbering, TrafficSource, introductions};
use crate::testbed::{Arrivals, FrameSize, TransportProtocol};
use anyhow::{Result, ensure};
use fastrand::Rng;
use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Batch, Frame};
use hairpin_core::wire::tcp::{ACK, FIN, PSH, SYN};
use std::collections::VecDeque;

/// Bytes of the longest frame where sizes are natural: an IP packet of 1,500 bytes.
pub const LONGEST: u16 = 1514;
/// New flows that one burst begins at most; what a process has due beyond that is begun by the next ones.
const NEW_MAX: usize = 1024;

/// The parameters of a synthetic source.
#[derive(Clone, Debug)]
pub struct SyntheticOptions {
    /// TCP or UDP.
    pub transport: TransportProtocol,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// How flows come and go.
    pub arrivals: Arrivals,
    /// The payload of a flow; `None`: one packet, as long as frames are (but for [`Arrivals::Fixed`], whose flows do not end).
    pub sizes: Option<FlowSizes>,
    /// How long frames are.
    pub length: FrameSize,
    /// Flows there are, over all lanes; of those that come and go, open at a time at most.
    pub flows: u32,
    /// The flows have been introduced: no SYN begins them.
    pub known: bool,
    /// Ethernet addresses.
    pub link: LinkAddresses,
}

/// An open flow.
#[derive(Clone, Copy, Debug)]
struct OpenFlow {
    ends: PacketEnds,
    id: u32,
    /// Bytes of payload still to be sent.
    left: u64,
    begun: bool,
}

/// The source of its flows.
enum FlowPopulation {
    /// They are there all the time.
    Fixed { set: FlowSet, rounds: Rounds, introduced: usize },
    /// They come and go.
    Moving(Box<Moving>),
}

/// Flows that come and go.
struct Moving {
    open: Vec<OpenFlow>,
    open_max: usize,
    cursor: usize,
    sizes: Option<FlowSizes>,
    /// Bytes of payload of a packet, which is what a flow carries without sizes.
    payload: u64,
    /// New flows per nanosecond; `None`: one for each that ends.
    per_nanosecond: Option<f64>,
    next_arrival: f64,
    lane: FlowLane,
    ipv6: bool,
    /// The next client's number.
    client: u32,
    /// The numbers of the next flows: those of the flows that have ended, each a stride higher.
    ids: VecDeque<u32>,
    stride: u32,
    refused: u64,
    random: Rng,
}

/// A source of made up packets. See the module.
pub struct Synthetic {
    store: Vec<u8>,
    first: PacketTemplate,
    data: PacketTemplate,
    last: PacketTemplate,
    tcp: bool,
    known: bool,
    population: FlowPopulation,
    numbering: Numbering,
    too_long: u64,
}

impl Synthetic {
    /// A lane's source. Its flows are numbered from `first_id` on, as many as it has at a time ([`TrafficSource::flows`]).
    ///
    /// # Errors
    /// An arrival rate that is none, or no flow at all.
    pub fn new(
        options: SyntheticOptions,
        lane: FlowLane,
        numbering: Numbering,
        first_id: u32,
        seed: u64,
    ) -> Result<Synthetic> {
        let SyntheticOptions { transport, ipv6, arrivals, sizes, length, flows, known, link } = options;
        let protocol = match transport {
            TransportProtocol::Tcp => Protocol::Tcp,
            TransportProtocol::Udp => Protocol::Udp,
        };
        ensure!(flows > 0, "no flow is to be sent");
        let lanes = u32::from(lane.steering.workers.max(1));
        let random = Rng::with_seed(seed);
        let fixed = |random| {
            let set = FlowSet::clients(0, flows, ipv6, &lane, first_id);
            ensure!(!set.is_empty(), "lane {} has none of the {flows} flows", lane.number);
            Ok(FlowPopulation::Fixed { rounds: Rounds::new(set.len(), random), set, introduced: 0 })
        };
        let mut store = Vec::new();
        let (small, large) = match length {
            FrameSize::Fixed(bytes) => (bytes, bytes),
            FrameSize::Natural => (64, LONGEST),
        };
        let mut template = |tcp_flags, length| {
            PacketTemplate::new(&mut store, PacketKind { protocol, ipv6, tcp_flags }, &link, &[], length)
        };
        let first = template(SYN, small);
        let (data, last) = (template(ACK | PSH, large), template(ACK | PSH | FIN, small));
        let moving = |per_second: Option<f64>, random: Rng| {
            let rate = per_second.unwrap_or(1.0);
            ensure!(rate.is_finite() && rate > 0.0, "{rate} new flows a second");
            let open_max = (flows / lanes).max(1) as usize;
            let per_nanosecond = per_second.map(|rate| rate / f64::from(lanes) / 1e9);
            let mut moving = Moving {
                open: Vec::with_capacity(open_max),
                open_max,
                cursor: 0,
                sizes,
                payload: (data.length() - data.kind().headers()) as u64,
                per_nanosecond,
                next_arrival: f64::NAN,
                lane,
                ipv6,
                client: 0,
                ids: (0..open_max as u32).map(|number| first_id.wrapping_add(number)).collect(),
                stride: flows.max(lanes).min(1 << 31).next_power_of_two(),
                refused: 0,
                random,
            };
            if per_nanosecond.is_none() {
                while moving.open.len() < open_max {
                    moving.begin();
                }
            }
            Ok(FlowPopulation::Moving(Box::new(moving)))
        };
        let population = match arrivals {
            Arrivals::Fixed => fixed(random)?,
            Arrivals::Closed => moving(None, random)?,
            Arrivals::Poisson(per_second) => moving(Some(per_second), random)?,
        };
        let tcp = protocol == Protocol::Tcp;
        Ok(Synthetic { store, first, data, last, tcp, known, population, numbering, too_long: 0 })
    }
}

impl Moving {
    /// Begins a flow; there are fewer than may be open.
    fn begin(&mut self) {
        let Some(id) = self.ids.pop_front() else { return };
        // On average as many tries as lanes.
        let ends = loop {
            let ends = client(self.client);
            self.client = self.client.wrapping_add(1);
            if self.lane.has(&ends, self.ipv6) {
                break ends;
            }
        };
        let left = match &self.sizes {
            Some(sizes) => sizes.draw(&mut self.random),
            None => self.payload,
        };
        self.open.push(OpenFlow { ends, id, left, begun: false });
    }

    /// Begins the flows whose time has come.
    fn arrive(&mut self, now: u64) {
        let Some(rate) = self.per_nanosecond else { return };
        if self.next_arrival.is_nan() {
            self.next_arrival = now as f64;
        }
        for _ in 0..NEW_MAX {
            if self.next_arrival > now as f64 {
                return;
            }
            self.next_arrival -= (1.0 - self.random.f64()).ln() / rate;
            if self.open.len() < self.open_max {
                self.begin();
            } else {
                self.refused += 1;
            }
        }
    }

    /// The flow at the cursor has ended.
    fn end(&mut self) {
        let ended = self.open.swap_remove(self.cursor);
        self.ids.push_back(ended.id.wrapping_add(self.stride));
        if self.per_nanosecond.is_none() {
            self.begin();
            let last = self.open.len() - 1;
            self.open.swap(self.cursor, last);
        }
    }
}

/// One packet to be made: template, length and flow.
struct NextPacket<'a> {
    template: &'a PacketTemplate,
    length: usize,
    ends: PacketEnds,
    id: u32,
}

impl Synthetic {
    /// The next packet, if there is one now.
    #[inline]
    fn next(&mut self) -> Option<NextPacket<'_>> {
        let (first, data, last) = (&self.first, &self.data, &self.last);
        match &mut self.population {
            FlowPopulation::Fixed { set, rounds, .. } => {
                let at = rounds.step();
                let template = if self.tcp && !self.known && rounds.round() == 0 { first } else { data };
                Some(NextPacket { template, length: template.length(), ends: set.ends[at], id: set.first + at as u32 })
            }
            FlowPopulation::Moving(moving) => {
                if moving.cursor >= moving.open.len() {
                    moving.cursor = 0;
                }
                let flow = moving.open.get_mut(moving.cursor)?;
                let (ends, id) = (flow.ends, flow.id);
                let headers = data.kind().headers();
                let (template, length) = match (flow.begun, flow.left) {
                    (false, _) if self.tcp => (first, first.length()),
                    (true, 0) if self.tcp => (last, last.length()),
                    (_, left) => {
                        let length = data.length().min(headers.saturating_add(left.min(65_535) as usize));
                        let length = length.max(data.kind().shortest());
                        (data, length)
                    }
                };
                let has_data = std::ptr::eq(template, data);
                if has_data {
                    flow.left = flow.left.saturating_sub((length - headers) as u64);
                }
                flow.begun = true;
                let ends_here = if self.tcp { std::ptr::eq(template, last) } else { flow.left == 0 };
                if ends_here {
                    moving.end();
                }
                moving.cursor += 1;
                Some(NextPacket { template, length, ends, id })
            }
        }
    }
}

impl TrafficSource for Synthetic {
    fn fill<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst {
        if let FlowPopulation::Moving(moving) = &mut self.population {
            moving.arrive(now);
        }
        let mut filled = FilledBurst::default();
        for frame in frames.iter_mut() {
            // The longest there can be must fit, before a packet is taken off its flow.
            if !frame.resize(self.data.length()) {
                self.too_long += 1;
                break;
            }
            let Some(NextPacket { template, length, ends, id }) = self.next() else { break };
            let template = *template;
            frame.resize(length);
            let stamp = self.numbering.stamp(id, now);
            template.make(&self.store, frame.bytes_mut(), &ends, &stamp);
            filled.packets += 1;
            filled.bytes += length;
        }
        filled
    }

    fn introduce<F: Frame>(&mut self, _: u64, frames: &mut Batch<F>) -> FilledBurst {
        let mut filled = FilledBurst::default();
        let FlowPopulation::Fixed { set, introduced, .. } = &mut self.population else { return filled };
        let times = introductions(self.data.kind().protocol);
        for frame in frames.iter_mut() {
            let at = *introduced / times;
            let Some(ends) = set.ends.get(at) else { break };
            if !frame.resize(self.data.length()) {
                self.too_long += 1;
                break;
            }
            let stamp = self.numbering.unnumbered(set.first + at as u32);
            self.data.make(&self.store, frame.bytes_mut(), ends, &stamp);
            *introduced += 1;
            filled.packets += 1;
            filled.bytes += self.data.length();
        }
        filled
    }

    fn made(&self) -> u64 {
        self.numbering.next
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        let flows = match &self.population {
            FlowPopulation::Fixed { .. } => 0,
            FlowPopulation::Moving(moving) => moving.refused,
        };
        let all = [("flows not begun: as many open as there may be", flows), ("frames too short", self.too_long)];
        all.into_iter().filter(|&(_, count)| count > 0).collect()
    }

    fn flows(&self) -> usize {
        match &self.population {
            FlowPopulation::Fixed { set, .. } => set.len(),
            FlowPopulation::Moving(moving) => moving.open_max,
        }
    }

    fn mean_length(&self) -> usize {
        self.data.length()
    }
}
