//! Servers: TCP as far as a response needs it. Slow start and congestion avoidance (RFC 5681), recovery by SACK with forward
//! acknowledgement, and a timer. Only the balancer ends connections: those whose server had to send something again.

use super::frames::{BedFrame, End, FrameMemory, MSS, SCALE, Segment};
use super::ranges::{Ranges, before};
use hairpin_core::wire::tcp::{ACK, FIN, OPTION_SACK, OPTION_WINDOW_SCALE, Options, PSH, RST, SYN};

/// The part of the window that is left after a loss, as CUBIC's.
const AFTER_LOSS: f64 = 0.7;

/// What a server does next, beside what it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// It has a request for a response with a body of so many bytes.
    Respond(u32),
    /// The balancer begins another connection in place of one that has ended.
    BeginAnew,
    /// What came is wrong.
    Wrong(&'static str),
}

/// A server's end of a connection.
pub(super) struct ServerConn {
    own: End,
    peer: End,
    /// Numbers: the next expected, the first unacknowledged, the next to be sent, one past the last there is.
    expected: u32,
    unacknowledged: u32,
    next: u32,
    end: u32,
    /// The head of the response, and its number.
    head: Vec<u8>,
    head_from: u32,
    /// The peer's window, in bytes, and its scale.
    window: u32,
    scale: u8,
    is_established: bool,
    is_closed: bool,
    /// In bytes.
    congestion_window: f64,
    threshold: f64,
    initial_window: f64,
    duplicates: u32,
    acknowledged: Ranges,
    /// While something lost is sent again: up to where that is, and how far it has come.
    recovery: Option<(u32, u32)>,
    /// When the peer last acknowledged something.
    pub(super) progress_at: u64,
    pub(super) has_timer: bool,
    /// Segments sent again.
    pub(super) repeated: u64,
}

impl ServerConn {
    /// A connection that a SYN has begun; its answer is in `out`.
    pub(super) fn new(
        syn: &Segment<'_>,
        (first, initial_segments): (u32, u32),
        memory: &FrameMemory,
        out: &mut Vec<BedFrame>,
    ) -> ServerConn {
        let scale = Options::new(syn.options).find(|option| option.kind == OPTION_WINDOW_SCALE);
        let scale = scale.and_then(|option| syn.options.get(option.offset).copied()).unwrap_or(0);
        let initial_window = f64::from(initial_segments * MSS);
        let conn = ServerConn {
            own: syn.destination,
            peer: syn.source,
            expected: syn.sequence.wrapping_add(1),
            unacknowledged: first,
            next: first.wrapping_add(1),
            end: first.wrapping_add(1),
            head: Vec::new(),
            head_from: first,
            window: u32::from(syn.window),
            scale,
            is_established: false,
            is_closed: false,
            congestion_window: initial_window,
            threshold: f64::INFINITY,
            initial_window,
            duplicates: 0,
            acknowledged: Ranges::default(),
            recovery: None,
            progress_at: 0,
            has_timer: false,
            repeated: 0,
        };
        conn.greet(memory, out);
        conn
    }

    fn greet(&self, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        let segment = Segment {
            sequence: self.unacknowledged,
            flags: SYN | ACK,
            window: u16::MAX,
            options: &super::client::SYN_OPTIONS,
            ..self.segment()
        };
        out.push(segment.frame(memory));
    }

    fn segment(&self) -> Segment<'_> {
        Segment {
            source: self.own,
            destination: self.peer,
            sequence: self.next,
            acknowledgement: self.expected,
            flags: ACK,
            // A server's window is never the limit: requests are short.
            window: (1 << 20 >> SCALE) as u16,
            ..Segment::default()
        }
    }

    /// Takes a segment of the balancer's.
    pub(super) fn take(
        &mut self,
        now: u64,
        segment: &Segment<'_>,
        memory: &FrameMemory,
        out: &mut Vec<BedFrame>,
    ) -> Then {
        if segment.flags & RST != 0 {
            return Then::Wrong("a server's connection was reset");
        }
        if segment.flags & SYN != 0 {
            if self.is_closed {
                return Then::BeginAnew;
            }
            self.greet(memory, out);
            return Then::Nothing;
        }
        if segment.flags & FIN != 0 {
            // It has nothing to say beyond that.
            self.is_closed = true;
            self.expected = segment.sequence.wrapping_add(segment.payload + 1);
            out.push(Segment { flags: ACK | FIN, ..self.segment() }.frame(memory));
        }
        if self.is_closed {
            return Then::Nothing;
        }
        self.is_established = true;
        self.acknowledge(now, segment);
        let mut then = Then::Nothing;
        if segment.payload > 0 && segment.sequence == self.expected {
            self.expected = self.expected.wrapping_add(segment.payload);
            then = body_asked(segment.written).map_or(Then::Wrong("a request that is none"), Then::Respond);
        } else if segment.payload > 0 {
            out.push(self.segment().frame(memory));
        }
        self.pump(memory, out);
        then
    }

    /// Sends a response.
    pub(super) fn respond(&mut self, now: u64, body: u32, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.head.clear();
        let head = format!(
            "HTTP/1.1 200 OK\r\nServer: nginx/1.20.1\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {body}\r\n\
             Last-Modified: Sun, 29 Nov 2026 12:00:00 GMT\r\nETag: \"692d8a40-{body:x}\"\r\nAccept-Ranges: bytes\r\n\r\n"
        );
        self.head.extend(head.as_bytes());
        self.head_from = self.end;
        self.end = self.end.wrapping_add(self.head.len() as u32 + body);
        self.progress_at = now;
        self.pump(memory, out);
    }

    /// Whether it waits for acknowledgements.
    pub(super) fn is_waiting(&self) -> bool {
        self.unacknowledged != self.next && !self.is_closed
    }

    /// Nothing was acknowledged for long: all that is not acknowledged counts as lost.
    pub(super) fn time_out(&mut self, now: u64, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        self.progress_at = now;
        if !self.is_established {
            return self.greet(memory, out);
        }
        self.threshold = (self.congestion_window * AFTER_LOSS).max(self.initial_window);
        self.congestion_window = self.initial_window;
        (self.duplicates, self.recovery) = (0, None);
        self.acknowledged.clear();
        self.next = self.unacknowledged;
        self.pump(memory, out);
    }

    fn acknowledge(&mut self, now: u64, segment: &Segment<'_>) {
        let number = segment.acknowledgement;
        if before(self.end, number) || before(number, self.unacknowledged) {
            return;
        }
        self.window = u32::from(segment.window) << self.scale;
        for option in Options::new(segment.options).filter(|option| option.kind == OPTION_SACK) {
            for block in segment.options[option.offset..option.offset + option.length].chunks_exact(8) {
                let edge = |at: usize| block[at..at + 4].try_into().map_or(0, u32::from_be_bytes);
                if !before(edge(0), number) && !before(self.end, edge(4)) {
                    self.acknowledged.insert(edge(0), edge(4));
                }
            }
        }
        let advance = number.wrapping_sub(self.unacknowledged);
        if advance > 0 {
            self.progress_at = now;
            self.unacknowledged = number;
            self.duplicates = 0;
            if before(self.next, number) {
                self.next = number;
            }
            self.acknowledged.forget_before(number);
            match self.recovery {
                Some((until, _)) if before(number, until) => {}
                Some(_) => self.recovery = None,
                None => self.grow(f64::from(advance)),
            }
        } else if segment.payload == 0 && self.is_waiting() {
            self.duplicates += 1;
        }
        let ahead = self.acknowledged.end().map_or(0, |end| end.wrapping_sub(self.unacknowledged));
        if self.recovery.is_none() && (ahead > 3 * MSS || self.duplicates >= 3) && self.is_waiting() {
            self.threshold = (self.congestion_window * AFTER_LOSS).max(f64::from(2 * MSS));
            self.congestion_window = self.threshold;
            self.recovery = Some((self.next, self.unacknowledged));
        }
    }

    /// Bytes were acknowledged. What the peer's window does not let go out says nothing of the path.
    fn grow(&mut self, bytes: f64) {
        if self.congestion_window >= f64::from(self.window) {
            return;
        }
        let slow_start = self.congestion_window < self.threshold;
        self.congestion_window += if slow_start { bytes } else { f64::from(MSS) * bytes / self.congestion_window };
    }

    /// Sends what may be sent.
    fn pump(&mut self, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        let edge = self.unacknowledged.wrapping_add(self.window);
        loop {
            let on_the_way = self.on_the_way();
            if f64::from(on_the_way) + 1.0 > self.congestion_window {
                return;
            }
            if let Some((until, at)) = self.recovery
                && let Some((from, to)) = self.lost(at)
            {
                let length = to.wrapping_sub(from).min(MSS);
                self.send(from, length, memory, out);
                self.repeated += 1;
                self.recovery = Some((until, from.wrapping_add(length)));
                continue;
            }
            let there = self.end.wrapping_sub(self.next).min(MSS);
            let room = if before(self.next, edge) { edge.wrapping_sub(self.next) } else { 0 };
            // No short segments while the window is what is short (RFC 9293, 3.8.6.2.1).
            if there == 0 || room < there && on_the_way > 0 || room == 0 {
                return;
            }
            let length = there.min(room);
            self.send(self.next, length, memory, out);
            self.next = self.next.wrapping_add(length);
        }
    }

    /// Bytes that are on the way, as far as the server can know.
    fn on_the_way(&self) -> u32 {
        match self.recovery {
            None => self.next.wrapping_sub(self.unacknowledged),
            Some((_, at)) => {
                let high = self.acknowledged.end().unwrap_or(self.unacknowledged);
                // After a timeout what is acknowledged may lie beyond what is sent again.
                let beyond = if before(high, self.next) { self.next.wrapping_sub(high) } else { 0 };
                beyond + self.acknowledged.missing(self.unacknowledged, at)
            }
        }
    }

    /// What is lost and was not yet sent again, from `at` on.
    fn lost(&self, at: u32) -> Option<(u32, u32)> {
        let from = if before(at, self.unacknowledged) { self.unacknowledged } else { at };
        if self.acknowledged.is_empty() {
            // Duplicates without blocks: the first segment alone.
            let to = self.unacknowledged.wrapping_add(self.next.wrapping_sub(self.unacknowledged).min(MSS));
            return (from == self.unacknowledged && before(from, to)).then_some((from, to));
        }
        self.acknowledged.gap(from)
    }

    fn send(&self, from: u32, length: u32, memory: &FrameMemory, out: &mut Vec<BedFrame>) {
        let offset = from.wrapping_sub(self.head_from);
        let written = self.head.get(offset as usize..).unwrap_or_default();
        let is_last = from.wrapping_add(length) == self.end;
        let flags = if is_last { ACK | PSH } else { ACK };
        let written = &written[..written.len().min(length as usize)];
        out.push(Segment { sequence: from, flags, written, payload: length, ..self.segment() }.frame(memory));
    }
}

/// The body that a request asks for: the number that is its path.
fn body_asked(request: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(request).ok()?;
    let path = text.strip_prefix("GET /")?.split_once(' ')?.0;
    text.ends_with("\r\n\r\n").then(|| path.parse().ok())?
}
