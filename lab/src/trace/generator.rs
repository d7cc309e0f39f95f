//! All connections' packets, in the order of their times.

use super::arrivals::ArrivalTimes;
use super::connection::{Connection, ConnectionPlan, Ending, TracePacket, WINDOW_FIRST};
use super::model::{KindModel, PathModel, SizeUnit, TraceModel};
use crate::traffic::flows::CLIENTS;
use crate::traffic::template::PacketEnds;
use crate::virtual_time::mix::Zipf;
use fastrand::Rng;
use hairpin_core::flow::Protocol;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Connections of a trace at most.
pub(super) const CONNECTIONS_MAX: u32 = 1 << 26;
/// The first server: 198.18.0.1, of the addresses for benchmarks (RFC 2544); the next one's is one higher.
const SERVERS: u32 = 0xc612_0001;
/// A prime above all numbers of clients, so that every client gets its turn before one comes again.
const STEP: u64 = 2_654_435_761;
const PORT_FIRST: u32 = 1024;
const PORTS: u32 = 65_536 - PORT_FIRST;
/// Bits of a full frame.
const FRAME_BITS: f64 = 1514.0 * 8.0;

/// Where a trace ends: at what comes first. It ends with the last arrival, as a capture that is stopped: connections that are
/// still under way are cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Connections.
    pub connections: u32,
    /// Packets.
    pub packets: u64,
    /// Seconds.
    pub seconds: f64,
}

impl Bounds {
    /// So many connections.
    pub fn connections(connections: u32) -> Bounds {
        Bounds { connections, packets: u64::MAX, seconds: f64::INFINITY }
    }

    /// So many packets, of however many connections.
    pub fn packets(packets: u64) -> Bounds {
        Bounds { connections: CONNECTIONS_MAX, packets, seconds: f64::INFINITY }
    }
}

/// What was drawn for the connections of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawnSizes {
    /// The kind.
    pub kind: String,
    /// Bytes or packets, in the order of arrival.
    pub sizes: Vec<u64>,
    /// Kolmogorov and Smirnov's distance to the published distribution.
    pub distance: f64,
}

impl DrawnSizes {
    /// The distance that is exceeded once in a thousand times if the sizes follow the distribution.
    pub fn distance_allowed(&self) -> f64 {
        1.95 / (self.sizes.len().max(1) as f64).sqrt()
    }
}

/// A trace's packets, one after the other.
pub struct Generator {
    kinds: Vec<KindModel>,
    /// Cumulative shares of the kinds.
    shares: Vec<f64>,
    path: PathModel,
    servers: Zipf,
    clients: u32,
    bounds: Bounds,
    arrivals: ArrivalTimes,
    next_arrival: u64,
    arrived: u32,
    made: u64,
    /// Time, order among packets at that time, and place.
    agenda: BinaryHeap<Reverse<(u64, u64, u32)>>,
    serial: u64,
    places: Vec<Connection>,
    free: Vec<u32>,
    drawn: Vec<Vec<u64>>,
    random: Rng,
}

impl Generator {
    /// A trace of `model`; the same seed gives the same packets.
    pub fn new(model: &TraceModel, bounds: Bounds, seed: u64) -> Generator {
        let mut random = Rng::with_seed(seed);
        let mut arrivals = ArrivalTimes::new(&model.arrivals, model.connections_per_s, random.fork());
        let all: f64 = model.kinds.iter().map(|kind| kind.share).sum();
        let mut reached = 0.0;
        let shares = model.kinds.iter().map(|kind| {
            reached += kind.share / all;
            reached
        });
        Generator {
            shares: shares.collect(),
            kinds: model.kinds.clone(),
            path: model.path.clone(),
            servers: Zipf::new(model.servers, model.zipf),
            clients: model.clients,
            bounds: Bounds { connections: bounds.connections.min(CONNECTIONS_MAX), ..bounds },
            next_arrival: arrivals.next(),
            arrivals,
            arrived: 0,
            made: 0,
            agenda: BinaryHeap::new(),
            serial: 0,
            places: Vec::new(),
            free: Vec::new(),
            drawn: vec![Vec::new(); model.kinds.len()],
            random,
        }
    }

    /// Connections that have begun.
    pub fn connections(&self) -> u32 {
        self.arrived
    }

    /// Connections that have not ended.
    pub fn open(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// What was drawn so far, by kind.
    pub fn drawn(&self) -> Vec<DrawnSizes> {
        let kinds = self.kinds.iter().zip(&self.drawn);
        let of = |(kind, sizes): (&KindModel, &Vec<u64>)| DrawnSizes {
            kind: kind.name.clone(),
            sizes: sizes.clone(),
            distance: distance(kind, sizes),
        };
        kinds.map(of).collect()
    }

    /// Pretends that these were drawn for the first kind.
    #[cfg(test)]
    pub(super) fn replace_drawn(&mut self, sizes: Vec<u64>) {
        self.drawn[0] = sizes;
    }

    fn arrive(&mut self) {
        let plan = self.plan(self.arrived);
        let connection = Connection::new(plan, self.arrived, self.next_arrival);
        self.arrived += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = connection;
                place
            }
            None => {
                self.places.push(connection);
                self.places.len() as u32 - 1
            }
        };
        self.enter(self.next_arrival, place);
        self.next_arrival = self.arrivals.next();
    }

    fn enter(&mut self, at: u64, place: u32) {
        self.agenda.push(Reverse((at, self.serial, place)));
        self.serial += 1;
    }

    fn plan(&mut self, number: u32) -> ConnectionPlan {
        let random = &mut self.random;
        let at = random.f64();
        let index = self.shares.partition_point(|reached| *reached < at).min(self.kinds.len() - 1);
        let kind = &self.kinds[index];
        let round_trip = self.path.round_trip_ms.draw(random) * 1e6;
        let gap = (FRAME_BITS * 1e3 / self.path.mbit_s.draw(random)).max(1.0);
        let carried = Carried::draw(kind, random);
        self.drawn[index].push(carried.size);
        let (client, turn) = (number % self.clients, number / self.clients);
        let client = (u64::from(client) * STEP % u64::from(self.clients)) as u32;
        let server_trip = (round_trip * self.path.server_part) as u64;
        let window_max = (round_trip / gap).ceil().max(f64::from(WINDOW_FIRST)) as u32;
        let by_bytes = self.path.window_bytes / u32::from(carried.payload).max(1);
        ConnectionPlan {
            protocol: kind.protocol,
            ends: PacketEnds {
                source: CLIENTS + 1 + client,
                destination: SERVERS + self.servers.draw(random) - 1,
                source_port: (PORT_FIRST + turn % PORTS) as u16,
                destination_port: kind.port,
            },
            request: carried.request,
            segments: carried.segments,
            payload: carried.payload,
            last: carried.last,
            is_upload: carried.is_upload,
            is_acknowledged: kind.is_acknowledged,
            ending: carried.ending,
            client_trip: round_trip as u64 - server_trip,
            server_trip,
            gap: gap as u64,
            window_max: window_max.min(by_bytes).max(1),
            numbers: [random.u32(..), random.u32(..)],
        }
    }
}

impl Iterator for Generator {
    type Item = TracePacket;

    fn next(&mut self) -> Option<TracePacket> {
        while self.arrived < self.bounds.connections
            && self.agenda.peek().is_none_or(|Reverse((at, ..))| self.next_arrival <= *at)
        {
            self.arrive();
        }
        let Reverse((at, _, place)) = *self.agenda.peek()?;
        // When all have arrived, the next arrival is where the capture is stopped.
        let is_stopped = self.arrived >= self.bounds.connections && at > self.next_arrival;
        if is_stopped || self.made >= self.bounds.packets || at as f64 >= self.bounds.seconds * 1e9 {
            return None;
        }
        self.agenda.pop();
        self.made += 1;
        let connection = self.places.get_mut(place as usize)?;
        let packet = connection.next();
        match connection.next_at() {
            Some(at) => self.enter(at, place),
            None => self.free.push(place),
        }
        Some(packet)
    }
}

/// What a connection carries.
struct Carried {
    size: u64,
    request: u16,
    segments: u32,
    payload: u16,
    last: u16,
    is_upload: bool,
    ending: Ending,
}

impl Carried {
    fn draw(kind: &KindModel, random: &mut Rng) -> Carried {
        let drawn = kind.size.draw(random);
        let is_upload = random.f64() < kind.upload;
        let is_reset = random.f64() < kind.reset;
        let bytes = |value: f64| value.round().clamp(1.0, 1460.0) as u16;
        let request = bytes(kind.request.draw(random));
        if kind.unit == SizeUnit::Bytes {
            let size = drawn.round().max(1.0) as u64;
            let payload = bytes(kind.payload.draw(random));
            let segments = size.div_ceil(u64::from(payload));
            let last = (size - (segments - 1) * u64::from(payload)) as u16;
            let ending = if is_reset { Ending::Reset } else { Ending::Closed };
            return Carried { size, request, segments: segments as u32, payload, last, is_upload, ending };
        }
        let size = drawn.ceil().clamp(1.0, f64::from(u32::MAX)) as u32;
        let (ending, segments) = match kind.protocol {
            Protocol::Udp => (Ending::Closed, size),
            Protocol::Tcp => ending(size, is_upload, is_reset),
        };
        let short = kind.short.as_ref().filter(|(packets, _)| size <= *packets);
        let payload = bytes(short.map_or(&kind.payload, |(_, payload)| payload).draw(random));
        let last = random.u16(1..=payload);
        Carried { size: size.into(), request, segments, payload, last, is_upload, ending }
    }
}

/// How a TCP connection ends, and how many packets with data it has, whose side with the data sends so many packets in all.
fn ending(packets: u32, is_upload: bool, is_reset: bool) -> (Ending, u32) {
    match (is_upload, packets) {
        // A SYN that is refused: one packet of either side.
        (_, 0 | 1) => (Ending::Refused, 0),
        // SYN and ACK.
        (true, 2) => (Ending::Silent, 0),
        // SYN, ACK, RST; without a reset FIN and the last ACK.
        (true, 3) => (Ending::Reset, 0),
        (true, _) if is_reset => (Ending::Reset, packets - 3),
        (true, _) => (Ending::Closed, packets - 4),
        // SYN-ACK and FIN, which the client resets; without a reset the last ACK.
        (false, 2) => (Ending::Reset, 0),
        (false, _) if is_reset => (Ending::Reset, packets - 2),
        (false, _) => (Ending::Closed, packets - 3),
    }
}

/// Kolmogorov and Smirnov's distance between drawn sizes, which are whole numbers, and the distribution of the kind.
fn distance(kind: &KindModel, sizes: &[u64]) -> f64 {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    // Bytes are rounded, packets rounded up.
    let offset = if kind.unit == SizeUnit::Bytes { 0.5 } else { 0.0 };
    let below = |size: u64| if size == 0 { 0.0 } else { kind.size.below(size as f64 + offset) };
    let all = sorted.len().max(1) as f64;
    let (mut worst, mut seen) = (0.0_f64, 0);
    for same in sorted.chunk_by(|one, other| one == other) {
        let size = same[0];
        worst = worst.max((below(size - 1) - f64::from(seen) / all).abs());
        seen += same.len() as u32;
        worst = worst.max((below(size) - f64::from(seen) / all).abs());
    }
    worst
}
