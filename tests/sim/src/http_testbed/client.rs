//! Clients: each asks for one body after the other on a connection that stays. It takes what comes in order, keeps the rest,
//! and acknowledges as receivers do that coalesce segments (GRO): at so many, or after so long, or with the next request.

use super::frames::{BedFrame, End, FrameMemory, SCALE, Segment};
use super::ranges::{Ranges, before};
use hairpin_core::wire::tcp::{ACK, FIN, OPTION_PADDING, OPTION_SACK, PSH, RST, SYN};

/// The options of a SYN: segments of 1,460 bytes, windows of [`SCALE`], SACK.
pub(super) const SYN_OPTIONS: [u8; 12] = [2, 4, 5, 0xb4, 1, 3, 3, SCALE, 4, 2, 1, 1];
/// Blocks of SACK in a segment at most.
const BLOCKS_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    /// It has all that it has asked for.
    Idle,
    Waiting,
}

/// What a client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    /// It may ask for something.
    Ask,
    /// It has all of the response that it asked for at that time, and may ask for something.
    Complete(u64),
    /// What came is wrong.
    Wrong(&'static str),
}

/// A client's connection.
pub(super) struct Client {
    own: End,
    service: End,
    phase: Phase,
    /// The next number to be sent, and the next that is expected.
    next: u32,
    expected: u32,
    /// Of the window, in bytes.
    window: u32,
    ahead: Ranges,
    /// The request that is under way, and its first number.
    request: Vec<u8>,
    request_from: u32,
    asked: u32,
    asked_at: u64,
    /// The response's first number, and one past its last, once its head has come.
    response_from: u32,
    response_end: Option<u32>,
    /// Segments that are not acknowledged.
    pub(super) pending: u32,
    pub(super) has_acknowledgement_timer: bool,
    /// When something last came.
    pub(super) progress_at: u64,
    /// Bytes of bodies that have come in order.
    pub(super) bytes: u64,
    /// When the next request is due, if requests come by the clock.
    pub(super) due: u64,
}

impl Client {
    /// A client that begins a connection.
    pub(super) fn new(own: End, service: End, first: u32, window: u32) -> Client {
        Client {
            own,
            service,
            phase: Phase::Connecting,
            next: first.wrapping_add(1),
            expected: 0,
            window,
            ahead: Ranges::default(),
            request: Vec::new(),
            request_from: first,
            asked: 0,
            asked_at: 0,
            response_from: 0,
            response_end: None,
            pending: 0,
            has_acknowledgement_timer: false,
            progress_at: 0,
            bytes: 0,
            due: 0,
        }
    }

    pub(super) fn connect(&mut self, now: u64, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.progress_at = now;
        let syn = Segment {
            source: self.own,
            destination: self.service,
            sequence: self.next.wrapping_sub(1),
            flags: SYN,
            window: u16::MAX,
            options: &SYN_OPTIONS,
            ..Segment::default()
        };
        out.push(syn.frame(memory));
    }

    /// Whether it waits for something from the balancer.
    pub(super) fn is_waiting(&self) -> bool {
        self.phase != Phase::Idle
    }

    fn segment(&self) -> Segment<'_> {
        Segment {
            source: self.own,
            destination: self.service,
            sequence: self.next,
            acknowledgement: self.expected,
            flags: ACK,
            window: (self.window >> SCALE).min(u32::from(u16::MAX)) as u16,
            ..Segment::default()
        }
    }

    /// Asks for a body.
    pub(super) fn ask(&mut self, now: u64, due: u64, body: u32, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.request.clear();
        self.request.extend(format!("GET /{body} HTTP/1.1\r\nHost: site.example\r\n\r\n").as_bytes());
        self.request_from = self.next;
        (self.asked, self.asked_at) = (body, due);
        (self.response_from, self.response_end) = (self.expected, None);
        (self.phase, self.progress_at) = (Phase::Waiting, now);
        self.send_request(memory, out);
        self.next = self.next.wrapping_add(self.request.len() as u32);
    }

    fn send_request(&mut self, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.pending = 0;
        let payload = self.request.len() as u32;
        let from = self.request_from;
        let segment = Segment { sequence: from, flags: ACK | PSH, written: &self.request, payload, ..self.segment() };
        out.push(segment.frame(memory));
    }

    /// Acknowledges all that has come in order, and says what has come beyond it, the segment at `latest` first.
    pub(super) fn acknowledge(&mut self, latest: u32, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.pending = 0;
        let mut options = [OPTION_PADDING; 4 + 8 * BLOCKS_MAX];
        let mut length = 0;
        for (start, end) in self.ahead.from(latest).take(BLOCKS_MAX) {
            length = length.max(4);
            options[length..length + 4].copy_from_slice(&start.to_be_bytes());
            options[length + 4..length + 8].copy_from_slice(&end.to_be_bytes());
            length += 8;
        }
        if length > 0 {
            (options[2], options[3]) = (OPTION_SACK, (length - 2) as u8);
        }
        out.push(Segment { options: &options[..length], ..self.segment() }.frame(memory));
    }

    /// Nothing has come for long.
    pub(super) fn time_out(&mut self, now: u64, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.progress_at = now;
        match self.phase {
            Phase::Connecting => self.connect(now, memory, out),
            Phase::Waiting if self.expected == self.response_from => self.send_request(memory, out),
            Phase::Waiting => self.acknowledge(self.expected, memory, out),
            Phase::Idle => {}
        }
    }

    /// Takes a segment of the balancer's.
    pub(super) fn take(
        &mut self,
        now: u64,
        segment: &Segment<'_>,
        memory: &FrameMemory,
        out: &mut Vec<BedFrame>,
    ) -> Next {
        if segment.flags & RST != 0 {
            return Next::Wrong("a client's connection was reset");
        }
        if segment.flags & FIN != 0 {
            return Next::Wrong("a client's connection was closed");
        }
        self.progress_at = now;
        if segment.flags & SYN != 0 {
            if self.phase != Phase::Connecting {
                return Next::Nothing;
            }
            self.expected = segment.sequence.wrapping_add(1);
            self.phase = Phase::Idle;
            return Next::Ask;
        }
        if segment.payload == 0 {
            return Next::Nothing;
        }
        if segment.sequence != self.expected {
            if before(self.expected, segment.sequence) {
                self.ahead.insert(segment.sequence, segment.sequence.wrapping_add(segment.payload));
            }
            self.acknowledge(segment.sequence, memory, out);
            return Next::Nothing;
        }
        self.take_in_order(segment, memory, out)
    }

    fn take_in_order(&mut self, segment: &Segment<'_>, memory: &FrameMemory, out: &mut Vec<BedFrame>) -> Next {
        if self.phase != Phase::Waiting {
            return Next::Wrong("a client got what it had not asked for");
        }
        if self.response_end.is_none() {
            let Some((head, body)) = head(segment.written) else { return Next::Wrong("a response without a head") };
            if body != self.asked {
                return Next::Wrong("a response to another request");
            }
            self.response_end = Some(self.response_from.wrapping_add(head + body));
            // The head is no body.
            self.bytes = self.bytes.wrapping_sub(u64::from(head));
        }
        let from = self.expected;
        self.expected = self.expected.wrapping_add(segment.payload);
        if let Some(end) = self.ahead.take_from(self.expected) {
            self.expected = end;
            self.pending += 1;
            self.acknowledge(self.expected, memory, out);
        }
        self.bytes = self.bytes.wrapping_add(u64::from(self.expected.wrapping_sub(from)));
        self.pending += 1;
        let Some(end) = self.response_end else { return Next::Nothing };
        if before(end, self.expected) {
            return Next::Wrong("a response of more bytes than it said");
        }
        if end == self.expected {
            self.phase = Phase::Idle;
            return Next::Complete(self.asked_at);
        }
        Next::Nothing
    }
}

/// The bytes of a response's head, and those of its body that it promises.
fn head(response: &[u8]) -> Option<(u32, u32)> {
    let length = response.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&response[..length]).ok()?;
    let body = text.strip_prefix("HTTP/1.1 200 ")?.split_once("Content-Length: ")?.1.split_once('\r')?.0;
    Some((length as u32, body.parse().ok()?))
}
