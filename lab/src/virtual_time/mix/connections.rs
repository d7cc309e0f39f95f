//! Whole connections, both directions: they come by a Poisson process, have a size each, and send at a rate of their own.
//!
//! SYN, SYN-ACK a round trip later, the request another one later; then the response in full frames, evenly apart, with an
//! acknowledgement half-way after every second one (RFC 9293, 3.8.6.3); at the end the backend's FIN and the client's.

use super::agenda::Agenda;
use super::{FLOWS_MAX, key};
use crate::traffic::sizes::FlowSizes;
use fastrand::Rng;
use hairpin_core::flow::Direction;
use hairpin_core::flow::{FlowKey, Protocol};
use hairpin_core::time::Time;
use hairpin_sim::testbed::{FlowPart, ModelTraffic, OfferedPacket};
use std::sync::Arc;

/// Bytes of payload in a full frame, and of what is around them (Ethernet, IPv4, TCP with timestamps).
const SEGMENT: u64 = 1448;
const HEADERS: u16 = 66;
/// Bytes of a request's frame.
const REQUEST: u16 = 400;
/// Connections drawn to find out how many packets one has on average.
const DRAWN: u32 = 20_000;

/// How large a response is.
#[derive(Clone, Debug)]
pub enum ResponseSize {
    /// Bytes by a measured distribution, cut at so many.
    Measured(Arc<FlowSizes>, u64),
    /// Full frames, exponentially distributed around this mean, one at least.
    Frames(f64),
}

impl ResponseSize {
    /// Draws one, in bytes.
    fn draw(&self, random: &mut Rng) -> u64 {
        match self {
            ResponseSize::Measured(sizes, most) => sizes.draw(random).min(*most),
            ResponseSize::Frames(mean) => {
                let frames = -(1.0 - random.f64()).ln() * mean;
                (frames.round().max(1.0) as u64).saturating_mul(SEGMENT)
            }
        }
    }
}

/// The kind of connections.
#[derive(Clone, Debug)]
pub struct ConnectionsOptions {
    /// How large.
    pub size: ResponseSize,
    /// How fast a connection's response comes, in Mbit/s: between these, evenly in the logarithm.
    pub mbit_s: (f64, f64),
    /// Packets per second of all together, both directions, on average over the run.
    pub packets_per_s: f64,
    /// How long the run is.
    pub seconds: f64,
    /// A round trip, in nanoseconds.
    pub round_trip: u64,
    /// Whether connections end with FINs, or fall silent.
    pub ends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStep {
    Syn,
    SynAck,
    Request,
    Data,
    Ack,
    FinBackend,
    FinClient,
}

#[derive(Clone, Copy, Debug)]
struct MixConnection {
    number: u32,
    step: ConnectionStep,
    /// Bytes of the response that are left.
    left: u64,
    /// Whether the next full frame is the second since the last acknowledgement.
    is_second: bool,
    /// Nanoseconds between frames.
    gap: u64,
}

/// Connections as they come and go.
pub struct Connections {
    options: ConnectionsOptions,
    /// When each place sends again.
    events: Agenda,
    places: Vec<MixConnection>,
    free: Vec<u32>,
    /// When the next one comes, in nanoseconds, and how many came.
    arrival: f64,
    arrived: u32,
    flows: u32,
    /// Nanoseconds between two on average.
    between: f64,
    end: u64,
    random: Rng,
}

impl Connections {
    /// A mix by its numbers.
    pub fn new(options: ConnectionsOptions, seed: u64) -> Connections {
        let mut random = Rng::with_seed(seed);
        let end = (options.seconds * 1e9) as u64;
        let each = packets_each(&options, &mut random);
        let expected = (options.packets_per_s * options.seconds / each).max(1.0);
        // More than six deviations above the mean do not come.
        let flows = (expected + 6.0 * expected.sqrt() + 10.0).min(f64::from(FLOWS_MAX)) as u32;
        let between = end as f64 / expected;
        let events = Agenda::new(1e9 / options.packets_per_s.max(1e-3));
        let mut connections = Connections {
            options,
            events,
            places: Vec::new(),
            free: Vec::new(),
            arrival: 0.0,
            arrived: 0,
            flows,
            between,
            end,
            random,
        };
        connections.arrival = connections.until_next();
        connections
    }

    /// How many have come so far.
    pub fn arrived(&self) -> u32 {
        self.arrived
    }

    fn until_next(&mut self) -> f64 {
        -(1.0 - self.random.f64()).ln() * self.between
    }

    /// A new one comes at `self.arrival`.
    fn arrive(&mut self) {
        let (left, gap) = drawn(&self.options, &mut self.random);
        let connection = MixConnection { number: self.arrived, step: ConnectionStep::Syn, left, is_second: false, gap };
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
        self.events.enter(self.arrival as u64, place);
        self.arrival += self.until_next();
    }
}

impl ModelTraffic for Connections {
    #[inline]
    fn next(&mut self) -> Option<OfferedPacket> {
        while self.arrived < self.flows
            && self.arrival < self.end as f64
            && self.events.next_at().is_none_or(|at| self.arrival <= at as f64)
        {
            self.arrive();
        }
        let (at, place) = self.events.take()?;
        if at >= self.end {
            return None;
        }
        let connection = self.places.get_mut(place as usize)?;
        let flow = connection.number;
        let (length, direction, part, next) = step(connection, &self.options);
        match next {
            Some(after) => self.events.enter(at + after, place),
            None => self.free.push(place),
        }
        Some(OfferedPacket { at: Time::from_nanos(at), flow, length, direction, part })
    }

    fn key(&self, flow: u32) -> FlowKey {
        key(flow, Protocol::Tcp)
    }

    fn flows(&self) -> u32 {
        self.flows
    }
}

/// A response's bytes, and the nanoseconds between its frames.
fn drawn(options: &ConnectionsOptions, random: &mut Rng) -> (u64, u64) {
    let left = options.size.draw(random);
    let (least, most) = options.mbit_s;
    let mbit_s = (least.ln() + random.f64() * (most.ln() - least.ln())).exp();
    (left, ((SEGMENT + u64::from(HEADERS)) as f64 * 8e3 / mbit_s).max(1.0) as u64)
}

/// Packets of a connection within the run, on average over when it comes.
fn packets_each(options: &ConnectionsOptions, random: &mut Rng) -> f64 {
    let mut all = 0.0;
    for _ in 0..DRAWN {
        let (bytes, gap) = drawn(options, random);
        let frames = bytes.div_ceil(SEGMENT) as f64;
        let left = options.seconds * 1e9 * random.f64() - 2.0 * options.round_trip as f64;
        let frames = frames.min((left / gap as f64).max(0.0));
        all += 3.0 + 1.5 * frames + if options.ends { 2.0 } else { 0.0 };
    }
    all / f64::from(DRAWN)
}

/// The next packet of a connection, and the nanoseconds until the one after it.
#[inline]
fn step(connection: &mut MixConnection, options: &ConnectionsOptions) -> (u16, Direction, FlowPart, Option<u64>) {
    let round_trip = options.round_trip;
    let (from_client, from_backend) = (Direction::FromClient, Direction::FromBackend);
    let at_end = |after: u64| {
        if options.ends { (ConnectionStep::FinBackend, Some(after)) } else { (ConnectionStep::FinBackend, None) }
    };
    let (length, direction, part, (next, after)) = match connection.step {
        ConnectionStep::Syn => (HEADERS, from_client, FlowPart::First, (ConnectionStep::SynAck, Some(round_trip))),
        ConnectionStep::SynAck => (HEADERS, from_backend, FlowPart::First, (ConnectionStep::Request, Some(round_trip))),
        ConnectionStep::Request => (REQUEST, from_client, FlowPart::Middle, (ConnectionStep::Data, Some(round_trip))),
        ConnectionStep::Data => {
            let sent = connection.left.min(SEGMENT);
            connection.left -= sent;
            let acknowledged = connection.is_second || connection.left == 0;
            connection.is_second = !acknowledged;
            let next = if acknowledged {
                (ConnectionStep::Ack, Some(connection.gap / 2))
            } else {
                (ConnectionStep::Data, Some(connection.gap))
            };
            (sent as u16 + HEADERS, from_backend, FlowPart::Middle, next)
        }
        ConnectionStep::Ack => {
            let rest = connection.gap - connection.gap / 2;
            let next = if connection.left > 0 { (ConnectionStep::Data, Some(rest)) } else { at_end(rest) };
            (HEADERS, from_client, FlowPart::Middle, next)
        }
        ConnectionStep::FinBackend => {
            (HEADERS, from_backend, FlowPart::Last, (ConnectionStep::FinClient, Some(round_trip)))
        }
        ConnectionStep::FinClient => (HEADERS, from_client, FlowPart::Last, (ConnectionStep::FinClient, None)),
    };
    connection.step = next;
    (length, direction, part, after)
}
