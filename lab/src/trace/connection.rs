//! The packets of one connection, and when a balancer between client and server sees them.
//!
//! TCP opens with three packets. The side with the data sends it in windows: the first of 10 segments (RFC 6928), each twice as
//! large as the one before, up to what the rate fills in a round trip or the file allows. The packets of a window follow one
//! another at the connection's rate, windows begin a round trip apart. Every second segment is acknowledged, and the last one
//! (RFC 9293, 3.8.6.3). The side with the data closes first; the client may reset instead.

use crate::traffic::template::PacketEnds;
use hairpin_core::flow::Protocol;
use hairpin_core::wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Segments of the first window (RFC 6928).
pub(super) const WINDOW_FIRST: u32 = 10;
/// Bytes of the acknowledgement of datagrams: a short header and an ACK frame of QUIC (RFC 9000), about.
const DATAGRAM_ACK: u16 = 30;

/// A packet of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePacket {
    /// Nanoseconds since the trace began.
    pub at: u64,
    /// Its connection's number, from 0, in the order in which they begin.
    pub connection: u32,
    /// Whether its sender is the client.
    pub from_client: bool,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its ends.
    pub ends: PacketEnds,
    /// Bytes behind the headers of TCP or UDP.
    pub payload: u16,
    /// TCP's flags; of UDP 0.
    pub flags: u8,
    /// TCP's sequence number, and what it acknowledges; of UDP 0.
    pub numbers: (u32, u32),
}

/// How a TCP connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// FIN, FIN, ACK.
    Closed,
    /// The client sends RST where it would have sent its FIN.
    Reset,
    /// The server answers the SYN with RST.
    Refused,
    /// Nothing follows the handshake.
    Silent,
}

/// What is drawn for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionPlan {
    pub(super) protocol: Protocol,
    /// From the client to the server.
    pub(super) ends: PacketEnds,
    /// Bytes of the request, or of the answer to an upload.
    pub(super) request: u16,
    /// Packets with data, and bytes of each, and of the last one.
    pub(super) segments: u32,
    pub(super) payload: u16,
    pub(super) last: u16,
    /// The client has the data.
    pub(super) is_upload: bool,
    /// Whether datagrams are acknowledged.
    pub(super) is_acknowledged: bool,
    pub(super) ending: Ending,
    /// Nanoseconds from the balancer to the client and back, and to the server and back.
    pub(super) client_trip: u64,
    pub(super) server_trip: u64,
    /// Nanoseconds between two packets at its rate.
    pub(super) gap: u64,
    /// Segments of a window at most.
    pub(super) window_max: u32,
    /// The first sequence numbers of client and server.
    pub(super) numbers: [u32; 2],
}

/// A place in the schedule of the packets with data.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// The packet at hand, from 0, and when the balancer sees it.
    packet: u32,
    at: u64,
    /// Its place in its window, the window, and when that began.
    in_window: u32,
    window: u32,
    began: u64,
}

impl Cursor {
    fn at(at: u64, plan: &ConnectionPlan) -> Cursor {
        let window = WINDOW_FIRST.min(plan.window_max);
        Cursor { packet: 0, at, in_window: 0, window, began: at }
    }

    fn advance(&mut self, plan: &ConnectionPlan) {
        self.packet += 1;
        self.in_window += 1;
        if self.in_window < self.window {
            self.at += plan.gap;
            return;
        }
        let round = (plan.client_trip + plan.server_trip).max(u64::from(self.window) * plan.gap);
        self.began += round;
        self.at = self.began;
        self.in_window = 0;
        self.window = self.window.saturating_mul(2).min(plan.window_max);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Syn,
    Refusal,
    SynAck,
    Ack,
    Request,
    Transfer,
    Answer,
    Fin,
    FinAck,
    LastAck,
    Reset,
    Done,
}

/// A connection under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    plan: ConnectionPlan,
    number: u32,
    step: Step,
    at: u64,
    data: Cursor,
    /// The packet that is acknowledged next.
    acks: Cursor,
    /// The next sequence numbers of client and server.
    next: [u32; 2],
    /// The sequence number of the first byte of data.
    first_byte: u32,
}

impl Connection {
    pub(super) fn new(plan: ConnectionPlan, number: u32, at: u64) -> Connection {
        let cursor = Cursor::at(at, &plan);
        let (step, next) = (Step::Syn, plan.numbers);
        let mut connection = Connection { plan, number, step, at, data: cursor, acks: cursor, next, first_byte: 0 };
        if plan.protocol == Protocol::Udp {
            match plan.is_upload {
                true => connection.begin_transfer(at),
                false => connection.step = Step::Request,
            }
        }
        connection
    }

    /// When its next packet comes; `None`: it has ended.
    pub(super) fn next_at(&self) -> Option<u64> {
        match self.step {
            Step::Done => None,
            Step::Transfer => match self.data_left() {
                true => Some(self.data.at.min(self.ack_at())),
                false => Some(self.ack_at()),
            },
            _ => Some(self.at),
        }
    }

    /// Its next packet; there is one.
    pub(super) fn next(&mut self) -> TracePacket {
        let plan = self.plan;
        let at = self.next_at().unwrap_or(self.at);
        let sender_trip = if plan.is_upload { plan.client_trip } else { plan.server_trip };
        match self.step {
            Step::Syn => {
                let next = if plan.ending == Ending::Refused { Step::Refusal } else { Step::SynAck };
                self.go(next, at + plan.server_trip, true, SYN, 0)
            }
            Step::Refusal => self.go(Step::Done, at, false, RST | ACK, 0),
            Step::SynAck => self.go(Step::Ack, at + plan.client_trip, false, SYN | ACK, 0),
            Step::Ack => {
                let next = match plan.ending {
                    Ending::Silent => Step::Done,
                    _ if plan.segments > 0 && !plan.is_upload => Step::Request,
                    _ => Step::Transfer,
                };
                let packet = self.go(next, at + plan.gap, true, ACK, 0);
                if next == Step::Transfer {
                    self.begin_transfer(at + plan.gap);
                }
                packet
            }
            Step::Request => {
                let packet = self.go(Step::Transfer, at, true, ACK | PSH, plan.request);
                self.begin_transfer(at + plan.server_trip);
                packet
            }
            Step::Transfer => self.transfer(at),
            Step::Answer => {
                let next = if plan.ending == Ending::Reset { Step::Reset } else { Step::Fin };
                self.go(next, at + plan.client_trip, false, ACK | PSH, plan.request)
            }
            Step::Fin => {
                let trip = if plan.is_upload { plan.server_trip } else { plan.client_trip };
                let next = if plan.ending == Ending::Reset { Step::Reset } else { Step::FinAck };
                self.go(next, at + trip, plan.is_upload, FIN | ACK, 0)
            }
            Step::FinAck => self.go(Step::LastAck, at + sender_trip, !plan.is_upload, FIN | ACK, 0),
            Step::LastAck => self.go(Step::Done, at, plan.is_upload, ACK, 0),
            Step::Reset | Step::Done => self.go(Step::Done, at, true, RST | ACK, 0),
        }
    }

    /// A packet of this step, and the next one.
    fn go(&mut self, step: Step, at: u64, from_client: bool, flags: u8, payload: u16) -> TracePacket {
        let [mine, other] = if from_client { [0, 1] } else { [1, 0] };
        let acknowledged = if flags & ACK == 0 { 0 } else { self.next[other] };
        let packet = self.packet(from_client, flags, payload, (self.next[mine], acknowledged));
        let consumed = u32::from(payload) + u32::from(flags & (SYN | FIN) != 0);
        self.next[mine] = self.next[mine].wrapping_add(consumed);
        (self.step, self.at) = (step, at);
        packet
    }

    fn packet(&self, from_client: bool, flags: u8, payload: u16, numbers: (u32, u32)) -> TracePacket {
        let ends = self.plan.ends;
        let is_tcp = self.plan.protocol == Protocol::Tcp;
        TracePacket {
            at: self.next_at().unwrap_or(self.at),
            connection: self.number,
            from_client,
            protocol: self.plan.protocol,
            ends: match from_client {
                true => ends,
                false => PacketEnds {
                    source: ends.destination,
                    destination: ends.source,
                    source_port: ends.destination_port,
                    destination_port: ends.source_port,
                },
            },
            payload,
            flags: if is_tcp { flags } else { 0 },
            numbers: if is_tcp { numbers } else { (0, 0) },
        }
    }

    fn begin_transfer(&mut self, at: u64) {
        self.step = Step::Transfer;
        self.data = Cursor::at(at, &self.plan);
        self.acks = self.data;
        self.first_byte = self.next[usize::from(!self.plan.is_upload)];
        if self.plan.segments > 1 {
            self.acks.advance(&self.plan);
        }
        if self.plan.segments == 0 {
            self.end_transfer(at);
        }
    }

    fn data_left(&self) -> bool {
        self.data.packet < self.plan.segments
    }

    /// When the balancer sees the next acknowledgement.
    fn ack_at(&self) -> u64 {
        if self.plan.protocol == Protocol::Udp && !self.plan.is_acknowledged {
            return u64::MAX;
        }
        self.acks.at + if self.plan.is_upload { self.plan.server_trip } else { self.plan.client_trip }
    }

    /// Bytes of data up to the end of a packet.
    fn bytes_to(&self, packet: u32) -> u32 {
        match packet + 1 == self.plan.segments {
            true => packet.wrapping_mul(u32::from(self.plan.payload)).wrapping_add(u32::from(self.plan.last)),
            false => (packet + 1).wrapping_mul(u32::from(self.plan.payload)),
        }
    }

    fn transfer(&mut self, at: u64) -> TracePacket {
        let plan = self.plan;
        let [mine, other] = if plan.is_upload { [0, 1] } else { [1, 0] };
        if self.data_left() && self.data.at <= self.ack_at() {
            let is_last = self.data.packet + 1 == plan.segments;
            let payload = if is_last { plan.last } else { plan.payload };
            let flags = if is_last { ACK | PSH } else { ACK };
            let packet = self.packet(plan.is_upload, flags, payload, (self.next[mine], self.next[other]));
            self.next[mine] = self.next[mine].wrapping_add(u32::from(payload));
            self.data.advance(&plan);
            if !self.data_left() && self.ack_at() == u64::MAX {
                self.end_transfer(at);
            }
            return packet;
        }
        let acknowledged = self.first_byte.wrapping_add(self.bytes_to(self.acks.packet));
        let payload = if plan.protocol == Protocol::Udp { DATAGRAM_ACK } else { 0 };
        let packet = self.packet(!plan.is_upload, ACK, payload, (self.next[other], acknowledged));
        if self.acks.packet + 1 >= plan.segments {
            self.end_transfer(at);
            return packet;
        }
        self.acks.advance(&plan);
        if self.acks.packet + 1 < plan.segments {
            self.acks.advance(&plan);
        }
        packet
    }

    /// All has been sent and acknowledged.
    fn end_transfer(&mut self, at: u64) {
        let plan = &self.plan;
        self.at = at + plan.gap;
        self.step = match plan.protocol {
            Protocol::Udp => Step::Done,
            Protocol::Tcp if plan.is_upload && plan.segments > 0 => Step::Answer,
            Protocol::Tcp if plan.is_upload && plan.ending == Ending::Reset => Step::Reset,
            Protocol::Tcp => Step::Fin,
        };
    }
}
