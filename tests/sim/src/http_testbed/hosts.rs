//! All clients and servers, and their timers.

use super::client::{Client, Next};
use super::frames::{BedFrame, End, FrameMemory, Segment};
use super::server::{ServerConn, Then};
use super::{HostProfile, Load};
use fastrand::Rng;
use hairpin_core::wire::tcp::SYN;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The service.
pub(super) const SERVICE: End = End { address: 0xc000_0201, port: 80 };
/// The balancer's address towards servers.
pub(super) const POOL: u32 = 0xc000_020a;
/// The first server's address (RFC 2544), the next one's is one higher; their port, and how many there are.
pub(super) const SERVERS: u32 = 0xc612_0001;
pub(super) const SERVER_PORT: u16 = 8080;
pub(super) const SERVER_COUNT: u16 = 3;
/// The clients' address, and the first one's port; ports are even (`SteerBy::Port`).
const CLIENTS: u32 = 0x0a00_0001;
const CLIENT_PORT: u16 = 2048;
/// Clients there can be.
pub(super) const CLIENTS_MAX: u32 = 16_000;
/// Between the first packets of two clients, in nanoseconds.
const APART: u64 = 3000;
/// Latencies that are kept.
const LATENCIES_MAX: usize = 1 << 20;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A client connects.
    Connect,
    /// A client asks; if its request is not due, later.
    Ask,
    /// A client acknowledges.
    Acknowledge,
    /// A client has waited.
    ClientWaits,
    /// A server answers with a body of so many bytes.
    Respond(u32),
    /// A server has waited.
    ServerWaits,
}

/// What hosts have counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCounts {
    /// Bytes of bodies that clients have.
    pub(super) bytes: u64,
    pub(super) responses: u64,
    /// Segments that servers have sent again.
    pub(super) repeated: u64,
    /// Times that a server's timer ran out.
    pub(super) timeouts: u64,
}

/// All of them.
pub(super) struct Hosts {
    profile: HostProfile,
    load: Load,
    sizes: Arc<[u32]>,
    clients: Vec<Client>,
    /// By server and port.
    conns: Vec<Option<ServerConn>>,
    timers: BinaryHeap<Reverse<(u64, u32, Timer)>>,
    memory: FrameMemory,
    /// What they send, in order.
    pub(super) out: Vec<BedFrame>,
    /// Times from when a request was due until all of its response was there, in nanoseconds.
    pub(super) latencies: Vec<u32>,
    timeouts: u64,
    responses: u64,
    pub(super) failures: Vec<String>,
    random: Rng,
}

fn nanos(us: f64) -> u64 {
    (us * 1000.0) as u64
}

impl Hosts {
    pub(super) fn new(
        (profile, load, sizes): (HostProfile, Load, Arc<[u32]>),
        clients: u32,
        memory: &FrameMemory,
        mut random: Rng,
    ) -> Hosts {
        let client = |number: u32| {
            let own = End { address: CLIENTS, port: CLIENT_PORT + 2 * number as u16 };
            Client::new(own, SERVICE, random.u32(..), profile.window_bytes)
        };
        let clients: Vec<Client> = (0..clients.min(CLIENTS_MAX)).map(client).collect();
        let timers = (0..clients.len()).map(|number| Reverse((APART * number as u64, number as u32, Timer::Connect)));
        Hosts {
            timers: timers.collect(),
            clients,
            conns: (0..usize::from(SERVER_COUNT) << 16).map(|_| None).collect(),
            profile,
            load,
            sizes,
            memory: memory.clone(),
            out: Vec::new(),
            latencies: Vec::new(),
            timeouts: 0,
            responses: 0,
            failures: Vec::new(),
            random,
        }
    }

    /// When the next timer is due.
    pub(super) fn next(&self) -> u64 {
        self.timers.peek().map_or(u64::MAX, |Reverse((at, ..))| *at)
    }

    pub(super) fn counts(&self) -> HostCounts {
        HostCounts {
            bytes: self.clients.iter().map(|client| client.bytes).sum(),
            responses: self.responses,
            repeated: self.conns.iter().flatten().map(|conn| conn.repeated).sum(),
            timeouts: self.timeouts,
        }
    }

    fn later(&mut self, at: u64, number: u32, timer: Timer) {
        self.timers.push(Reverse((at, number, timer)));
    }

    /// Does what is due.
    pub(super) fn wake(&mut self, now: u64) {
        while let Some(&Reverse((at, number, timer))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            match timer {
                Timer::Connect => self.connect(now, number),
                Timer::Ask => self.ask(now, number),
                Timer::Acknowledge => self.acknowledge(number),
                Timer::ClientWaits => self.client_waits(now, number),
                Timer::Respond(body) => self.respond(now, number, body),
                Timer::ServerWaits => self.server_waits(now, number),
            }
        }
    }

    fn connect(&mut self, now: u64, number: u32) {
        let Some(client) = self.clients.get_mut(number as usize) else { return };
        client.connect(now, &self.memory, &mut self.out);
        let waits = self.profile.retransmit_us;
        self.later(now + nanos(waits), number, Timer::ClientWaits);
    }

    /// A client asks for a body, if its time has come.
    fn ask(&mut self, now: u64, number: u32) {
        let clients = self.clients.len() as f64;
        let Some(client) = self.clients.get_mut(number as usize) else { return };
        let is_first = client.due == 0;
        let due = match self.load {
            Load::Closed => {
                client.due = now;
                now
            }
            Load::Open { requests_per_s } => {
                let every = clients * 1e9 / requests_per_s.max(1e-3);
                if is_first {
                    client.due = now + (every * self.random.f64()) as u64;
                }
                let due = client.due;
                if due > now {
                    return self.later(due, number, Timer::Ask);
                }
                client.due += every as u64;
                due
            }
        };
        let size = self.sizes[self.random.usize(..self.sizes.len())];
        // Clients that have begun together do not go on in step.
        let part = if is_first && self.load == Load::Closed { self.random.f64() } else { 1.0 };
        client.ask(now, due, ((f64::from(size) * part) as u32).max(1), &self.memory, &mut self.out);
    }

    fn acknowledge(&mut self, number: u32) {
        let Some(client) = self.clients.get_mut(number as usize) else { return };
        client.has_acknowledgement_timer = false;
        if client.pending > 0 {
            client.acknowledge(0, &self.memory, &mut self.out);
        }
    }

    fn client_waits(&mut self, now: u64, number: u32) {
        let waits = nanos(self.profile.retransmit_us);
        let Some(client) = self.clients.get_mut(number as usize) else { return };
        if client.is_waiting() && now >= client.progress_at + waits {
            client.time_out(now, &self.memory, &mut self.out);
        }
        let again = if client.is_waiting() { client.progress_at + waits } else { now + waits };
        self.later(again.max(now + 1), number, Timer::ClientWaits);
    }

    fn respond(&mut self, now: u64, number: u32, body: u32) {
        let Some(conn) = self.conns.get_mut(number as usize).and_then(Option::as_mut) else { return };
        conn.respond(now, body, &self.memory, &mut self.out);
        self.watch(now, number);
    }

    /// Sees to it that a server does not wait for ever.
    fn watch(&mut self, now: u64, number: u32) {
        let waits = nanos(self.profile.retransmit_us);
        let Some(conn) = self.conns.get_mut(number as usize).and_then(Option::as_mut) else { return };
        if conn.is_waiting() && !conn.has_timer {
            conn.has_timer = true;
            let at = (conn.progress_at + waits).max(now + 1);
            self.later(at, number, Timer::ServerWaits);
        }
    }

    fn server_waits(&mut self, now: u64, number: u32) {
        let waits = nanos(self.profile.retransmit_us);
        let Some(conn) = self.conns.get_mut(number as usize).and_then(Option::as_mut) else { return };
        conn.has_timer = false;
        if conn.is_waiting() && now >= conn.progress_at + waits {
            self.timeouts += 1;
            conn.time_out(now, &self.memory, &mut self.out);
        }
        self.watch(now, number);
    }

    /// A frame has come to one of them.
    pub(super) fn arrive(&mut self, now: u64, frame: &BedFrame) {
        let Some(segment) = Segment::read(frame) else {
            return self.failures.push("a host got a frame that is no TCP segment".into());
        };
        let server = segment.destination.address.wrapping_sub(SERVERS);
        if segment.destination.address == CLIENTS {
            let number = u32::from(segment.destination.port.wrapping_sub(CLIENT_PORT) / 2);
            self.reach_client(now, number, &segment);
        } else if server < u32::from(SERVER_COUNT) && segment.source.address == POOL {
            self.reach_server(now, server << 16 | u32::from(segment.source.port), &segment);
        } else {
            self.failures.push("a frame for no host".into());
        }
    }

    fn reach_client(&mut self, now: u64, number: u32, segment: &Segment<'_>) {
        let Hosts { profile, clients, memory, out, .. } = self;
        let Some(client) = clients.get_mut(number as usize) else {
            return self.failures.push("a frame for no client".into());
        };
        let next = client.take(now, segment, memory, out);
        if client.pending >= profile.acknowledge_segments && next == Next::Nothing {
            client.acknowledge(segment.sequence, memory, out);
        } else if client.pending > 0 && !client.has_acknowledgement_timer {
            client.has_acknowledgement_timer = true;
            let at = now + nanos(profile.acknowledge_us);
            self.timers.push(Reverse((at, number, Timer::Acknowledge)));
        }
        let soon = now + nanos(self.profile.client_us);
        match next {
            Next::Nothing => {}
            Next::Ask => self.later(soon, number, Timer::Ask),
            Next::Complete(asked) => {
                self.responses += 1;
                if self.latencies.len() < LATENCIES_MAX {
                    self.latencies.push(u32::try_from(now - asked).unwrap_or(u32::MAX));
                }
                self.later(soon, number, Timer::Ask);
            }
            Next::Wrong(what) => self.failures.push(format!("client {number}: {what}")),
        }
    }

    fn reach_server(&mut self, now: u64, number: u32, segment: &Segment<'_>) {
        let Hosts { profile, conns, memory, out, random, .. } = self;
        let Some(place) = conns.get_mut(number as usize) else { return };
        let then = match place {
            Some(conn) => conn.take(now, segment, memory, out),
            None if segment.flags & SYN != 0 => Then::BeginAnew,
            None => Then::Wrong("a server got what is of no connection"),
        };
        match then {
            Then::Nothing => {}
            Then::Respond(body) => {
                let at = now + nanos(profile.server_us);
                self.timers.push(Reverse((at, number, Timer::Respond(body))));
            }
            Then::BeginAnew => {
                let first = (random.u32(..), profile.initial_segments);
                let mut conn = ServerConn::new(segment, first, memory, out);
                conn.progress_at = now;
                conn.repeated = place.as_ref().map_or(0, |before| before.repeated);
                *place = Some(conn);
            }
            Then::Wrong(what) => self.failures.push(what.into()),
        }
        self.watch(now, number);
    }
}
