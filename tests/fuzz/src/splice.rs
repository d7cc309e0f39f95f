//! A worker with an HTTP service between clients and backends that say anything at any time.
//!
//! The input is a list of steps of three bytes: what, who, how much. Clients say pieces of requests, backends pieces of
//! responses, in any order, again, too early, and as something else than before; they acknowledge, close, reset, agree to
//! options or to none; what the worker sends is lost; time passes; the engine answers or refuses. Whatever happens: no frame
//! is lost, a backend sees nothing but requests that were read and edited, one behind another, and after a while nothing is
//! left.

use hairpin_core::config::{Backend, BackendState, Forwarding, Pool, Service, Snapshot};
use hairpin_core::engine::{Completion, EngineCaps, Refusal, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::frame::{Batch, Checksum, Frame, FrameIo, VecFrame};
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::{Action, Edits, Field, Forwarded, HeadEdits, Http, HttpLimits, Kind, Route};
use hairpin_core::l7::head::{Bounds, ParseStatus, request};
use hairpin_core::l7::splice::{AdoptedSplices, SplicedMemory};
use hairpin_core::l7::trace::{Parents, RequestId, SAMPLE_ALL, Tracing};
use hairpin_core::offload::Always;
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire;
use hairpin_core::worker::{Which, Worker, WorkerOptions};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;
/// Of who can all there is: an MSS of 1460, SACK, windows shifted by 7.
const OPTIONS: [u8; 12] = [2, 4, 5, 180, 4, 2, 1, 3, 3, 7, 1, 1];
/// Connections that the input plays at a time.
const PLAYED_MAX: usize = 8;

const REQUESTS: [&str; 8] = [
    "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n012345678901234567890123456789",
    "PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
    "HEAD /d HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /e HTTP/1.0\r\n\r\n",
    "POST /f HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
    "GET /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET /bad HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
];

const RESPONSES: [&str; 8] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100000\r\n\r\nbegin",
    "nonsense\r\n\r\n",
];

struct NullPort;

impl FrameIo for NullPort {
    type Frame = VecFrame;
    fn receive(&mut self, _: &mut Batch<VecFrame>) {}
    fn transmit(&mut self, _: &mut Batch<VecFrame>) {}
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
}

/// One end of a connection, as the other side of the worker plays it.
pub(crate) struct PlayedEnd {
    pub(crate) own: Endpoint,
    pub(crate) peer: Endpoint,
    /// The number of the first byte of `said`.
    first: u32,
    /// All it sends; `next` bytes were sent.
    pub(crate) said: Vec<u8>,
    pub(crate) next: usize,
    expected: u32,
    window: u16,
    /// The bytes received, in order.
    pub(crate) got: Vec<u8>,
}

/// Judges a frame that the worker sends: its ends, and its payload.
pub(crate) type Watch = Box<dyn Fn(Endpoint, Endpoint, &[u8])>;

pub(crate) struct SpliceScene {
    pub(crate) worker: Worker<Always>,
    pub(crate) now: Time,
    pub(crate) clients: Vec<PlayedEnd>,
    pub(crate) backends: VecDeque<PlayedEnd>,
    asked: VecDeque<RuleOp>,
    /// So many of the worker's next frames with data are lost.
    losses: u8,
    reached: bool,
    /// Judges frames in place of [`was_read`].
    pub(crate) watch: Option<Watch>,
    able: bool,
    seeds: [u64; 4],
    snapshot: Arc<Snapshot>,
}

pub(crate) fn end(host: u8, port: u16) -> Endpoint {
    Endpoint::new(Address::from_ipv4([10, 0, 0, host]), port)
}

/// The parts of a worker.
fn options(able: bool, seeds: [u64; 4], snapshot: &Arc<Snapshot>, splices: SplicedMemory) -> WorkerOptions<Always> {
    let table = AnyTable::new(16, Hasher::new([7, 2, 3, 4]));
    let caps = EngineCaps {
        rewrites_sack: able,
        rewrites_window: able,
        rewrites_timestamps: able,
        checks_guards: able,
        ..EngineCaps::full(1000)
    };
    WorkerOptions { caps, splices, ..WorkerOptions::new(snapshot.clone(), boxed(8), table, Always, seeds) }
}

fn http() -> Http {
    let via = Field::parse("X-Via", "hairpin").expect("a field");
    let request = HeadEdits { add: [via].into(), ..HeadEdits::default() };
    let set = Field::parse_response("X-Set", "by the service").expect("a field");
    let response = HeadEdits { set: [set].into(), ..HeadEdits::default() };
    Http {
        answers: Default::default(),
        access: [].into(),
        routes: [Route {
            conditions: Default::default(),
            action: Action::Forward { groups: [(0, 1)].into(), replace_prefix: None },
            edits: Edits { request, response },
            terms: Default::default(),
        }]
        .into(),
        edits: Edits::default(),
        forwarded: Forwarded::default(),
        sticky: None,
        request_id: Some(RequestId { name: (*b"X-Id").into(), lower_name: (*b"x-id").into() }),
        tracing: Some(Tracing { parents: Parents::All, sample: SAMPLE_ALL / 2 }),
        server_timing: false,
        upgrade: false,
        connect: false,
        proxy_protocol: None,
        reuse: true,
        limits: HttpLimits::default(),
        offload_bytes_min: Some(50_000),
        timestamps: true,
    }
}

impl PlayedEnd {
    /// The numbers of its SYN-ACK.
    pub(crate) fn numbers_of_syn(&self) -> [u32; 2] {
        [self.first.wrapping_sub(1), self.expected]
    }
}

impl SpliceScene {
    /// Before an engine that can do all, or before one like a card.
    fn new(able: bool) -> SpliceScene {
        SpliceScene::with(able, [1, 2, 3, 4], SplicedMemory::own(8), |_| {})
    }

    /// As [`SpliceScene::new`], with these secrets, in this memory, of which nothing is adopted.
    pub(crate) fn with(
        able: bool,
        seeds: [u64; 4],
        splices: SplicedMemory,
        change: impl FnOnce(&mut Http),
    ) -> SpliceScene {
        let mut http = http();
        change(&mut http);
        let backend = |number: u16| Backend {
            number,
            name: "".into(),
            endpoint: end(100 + number as u8, 8080),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        };
        let service = Service {
            endpoint: end(1, 80),
            protocol: Protocol::Tcp,
            kind: Kind::Http(http.into()),
            forwarding: Forwarding::FullNat,
            backends: (0..2).map(backend).collect(),
            state: Default::default(),
            name: "web".into(),
            ..Service::vacant()
        };
        let time_wait = Duration::from_secs(60);
        let pool = Pool { addresses: [end(50, 0).address].into(), port_first: 1024, port_last: 1087, time_wait };
        let snapshot = Arc::new(Snapshot::new([service].into(), pool));
        let worker = Worker::new(options(able, seeds, &snapshot, splices));
        let now = Time::from_nanos(1_000_000_000_000);
        SpliceScene {
            worker,
            now,
            clients: Vec::new(),
            backends: VecDeque::new(),
            asked: VecDeque::new(),
            losses: 0,
            reached: false,
            watch: None,
            able,
            seeds,
            snapshot,
        }
    }

    /// The process ends without a word, and nothing of it is in use any more.
    pub(crate) fn end(&mut self) -> BTreeSet<FlowKey> {
        let rules = self.worker.rules_known().collect();
        let none = options(self.able, self.seeds, &self.snapshot, SplicedMemory::own(0));
        self.worker = Worker::new(none);
        self.asked.clear();
        rules
    }

    /// Another process begins, which adopts this memory; the engine holds these rules.
    pub(crate) fn begin(&mut self, splices: SplicedMemory, rules: &BTreeSet<FlowKey>) -> AdoptedSplices {
        let options = options(self.able, self.seeds, &self.snapshot, splices);
        let (worker, adopted) = Worker::adopt(options, self.now, &|key| rules.contains(key));
        self.worker = worker;
        adopted.splices
    }

    fn frame(&mut self, from: Endpoint, to: Endpoint, numbers: [u32; 2], flags: u8, window: u16, bytes: &[u8]) {
        self.frame_with(from, to, numbers, flags, window, (&[], bytes));
    }

    /// A SYN or SYN-ACK: of an end that can all there is, or nothing.
    pub(crate) fn begins(&mut self, from: Endpoint, to: Endpoint, numbers: [u32; 2], flags: u8, able: bool) {
        self.frame_with(from, to, numbers, flags, 500, (if able { &OPTIONS } else { &[] }, b""));
    }

    fn frame_with(
        &mut self,
        from: Endpoint,
        to: Endpoint,
        numbers: [u32; 2],
        flags: u8,
        window: u16,
        (options, bytes): (&[u8], &[u8]),
    ) {
        let mut frame = vec![0; 54];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&((40 + options.len() + bytes.len()) as u16).to_be_bytes());
        (frame[22], frame[23]) = (64, 6);
        frame[26..30].copy_from_slice(&from.address.ipv4_octets());
        frame[30..34].copy_from_slice(&to.address.ipv4_octets());
        let sum = wire::checksum::Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame[34..36].copy_from_slice(&from.port.to_be_bytes());
        frame[36..38].copy_from_slice(&to.port.to_be_bytes());
        frame[38..42].copy_from_slice(&numbers[0].to_be_bytes());
        frame[42..46].copy_from_slice(&numbers[1].to_be_bytes());
        (frame[46], frame[47]) = (0x50 + (options.len() << 2) as u8, flags);
        frame[48..50].copy_from_slice(&window.to_be_bytes());
        frame.extend_from_slice(options);
        frame.extend_from_slice(bytes);
        let mut frame = VecFrame::new(&frame);
        frame.meta.checksum = Checksum::Partial;
        let mut rx: Batch<VecFrame> = [frame].into_iter().collect();
        let mut tx = Batch::new();
        self.worker.handle_batch(self.now, &mut NullPort, &mut rx, &mut tx);
        self.sent(&tx);
    }

    /// Peers to which the worker sends get it, if they are simulated and it is the next in order.
    fn sent(&mut self, tx: &Batch<VecFrame>) {
        for frame in tx.iter() {
            let bytes = frame.bytes();
            let at = match wire::parse(bytes) {
                Ok(wire::Parsed::Transport(at)) => at,
                // The sender of a segment that met no process is told.
                Ok(wire::Parsed::IcmpError(_)) => continue,
                other => panic!("sent what is no packet: {other:?}"),
            };
            let number = |offset| u32::from_be_bytes(bytes[at.l4 + offset..at.l4 + offset + 4].try_into().unwrap());
            let (from, to) = (at.key.source, at.key.destination);
            let payload = &bytes[at.payload..at.end];
            self.watch.iter().for_each(|watch| watch(from, to, payload));
            if at.tcp_flags == SYN {
                let first = 0xffff_ff00u32.wrapping_add(u32::from(from.port));
                let expected = number(4).wrapping_add(1);
                if self.backends.iter().any(|end| (end.own, end.peer, end.expected) == (to, from, expected)) {
                    continue;
                }
                self.backends.retain(|end| (end.own, end.peer) != (to, from));
                let end = PlayedEnd {
                    own: to,
                    peer: from,
                    first,
                    said: Vec::new(),
                    next: 0,
                    expected,
                    window: 500,
                    got: Vec::new(),
                };
                self.backends.push_back(end);
                self.backends.truncate(4 * PLAYED_MAX);
                continue;
            }
            if !payload.is_empty() && self.losses > 0 {
                self.losses -= 1;
                continue;
            }
            let ends = self.clients.iter_mut().chain(&mut self.backends);
            for end in ends.filter(|end| (end.own, end.peer) == (to, from)) {
                if at.tcp_flags & (SYN | ACK) == SYN | ACK {
                    end.expected = number(4).wrapping_add(1);
                }
                let had = end.expected.wrapping_sub(number(4)) as usize;
                if had <= payload.len() && at.tcp_flags & (SYN | RST) == 0 {
                    end.got.extend_from_slice(&payload[had..]);
                    end.expected = end.expected.wrapping_add((payload.len() - had) as u32);
                    if at.tcp_flags & FIN != 0 {
                        end.expected = end.expected.wrapping_add(1);
                    }
                }
            }
        }
        self.reached |= self.backends.iter().any(|end| !end.got.is_empty());
        if self.watch.is_none() {
            self.backends.iter().for_each(|end| was_read(&end.got));
        }
    }

    fn client(&mut self, who: u8) -> usize {
        self.client_at(1000 + u16::from(who) % PLAYED_MAX as u16, who)
    }

    /// A client at this port, which begins its connection now if it has not; `who` says what it can, and its numbers.
    pub(crate) fn client_at(&mut self, port: u16, who: u8) -> usize {
        let (own, peer) = (end(10, port), end(1, 80));
        if let Some(at) = self.clients.iter().position(|end| end.own == own) {
            return at;
        }
        let first = (u32::MAX - 200).wrapping_add(who.into());
        self.clients.push(PlayedEnd {
            own,
            peer,
            first,
            said: Vec::new(),
            next: 0,
            expected: 0,
            window: 500,
            got: Vec::new(),
        });
        self.begins(own, peer, [first.wrapping_sub(1), 0], SYN, who & 0x80 == 0);
        self.clients.len() - 1
    }

    pub(crate) fn end_at(&mut self, is_client: bool, at: usize) -> Option<&mut PlayedEnd> {
        if is_client { self.clients.get_mut(at) } else { self.backends.get_mut(at) }
    }

    /// An end says `length` bytes from `from` bytes behind what it says first, with these flags.
    pub(crate) fn says(
        &mut self,
        is_client: bool,
        at: usize,
        (from, length): (usize, usize),
        flags: u8,
        acknowledged: i8,
    ) {
        let Some(end) = self.end_at(is_client, at) else { return };
        let from = from.min(end.said.len());
        let bytes = end.said[from..from.saturating_add(length).min(end.said.len())].to_vec();
        end.next = end.next.max(from + bytes.len());
        let numbers = [end.first.wrapping_add(from as u32), end.expected.wrapping_add_signed(acknowledged.into())];
        let (own, peer, window) = (end.own, end.peer, end.window);
        self.frame(own, peer, numbers, flags, window, &bytes);
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.worker.poll_timeout(self.now).unwrap_or(end).max(self.now + Duration::from_millis(20));
            self.now = next.min(end);
            self.worker.handle_timeout(self.now);
            let mut tx = Batch::new();
            self.worker.handle_splices(self.now, &mut NullPort, &mut tx);
            self.sent(&tx);
        }
    }

    /// The engine answers; refuses what is to be installed if `refuses`.
    pub(crate) fn engine(&mut self, refuses: bool) {
        while let Some(op) = self.worker.poll_op() {
            self.asked.push_back(op);
        }
        while let Some(op) = self.asked.pop_front() {
            let answer = match op {
                RuleOp::Install(rule) if refuses => Completion::Rejected(rule.id, Refusal::Full),
                RuleOp::Install(rule) => Completion::Installed(rule.id),
                RuleOp::Remove { id, .. } => Completion::Removed(id, None),
            };
            self.worker.handle_completion(self.now, &answer);
        }
    }

    pub(crate) fn step(&mut self, what: u8, who: u8, much: u8) {
        let is_client = what & 1 == 0;
        let at = if is_client { self.client(who) } else { usize::from(who) % (4 * PLAYED_MAX) };
        let Some(end) = self.end_at(is_client, at) else { return };
        let next = end.next;
        let length = usize::from(much);
        match what >> 1 & 15 {
            // All of a message; the first part of one; a part of what was said; what comes too early.
            0..=2 => {
                let texts = if is_client { REQUESTS } else { RESPONSES };
                end.said.extend_from_slice(texts[length % 8].as_bytes());
                let limit = if what >> 1 & 15 == 2 { length / 8 } else { usize::MAX };
                self.says(is_client, at, (next, limit), ACK | PSH, 0);
            }
            3 => self.says(is_client, at, (next, length), ACK, 0),
            4 => self.says(is_client, at, (next.saturating_sub(length), length / 2 + 1), ACK, 0),
            5 => self.says(is_client, at, (next + length, 40), ACK, 0),
            6 => self.says(is_client, at, (next, 0), ACK, 0),
            7 => self.says(is_client, at, (next, 0), ACK, much as i8),
            8 => self.says(is_client, at, (next, length), ACK | FIN, 0),
            9 => self.says(is_client, at, (next, 0), RST | ACK, 0),
            10 => end.window = u16::from(much) * 4,
            11 if !is_client => {
                let (own, peer, numbers) = (end.own, end.peer, end.numbers_of_syn());
                self.begins(own, peer, numbers, SYN | ACK, much & 1 == 0);
            }
            12 => self.pass(Duration::from_millis(u64::from(much) * 20)),
            13 => self.engine(much & 1 != 0),
            14 if much & 7 == 0 => self.worker.end_backend(self.now, u16::from(who & 1), Which::All),
            14 if much & 7 == 1 => {
                // The end of its last message becomes the beginning of another one.
                let from = next.saturating_sub(usize::from(much >> 3) + 1);
                let texts = if is_client { REQUESTS } else { RESPONSES };
                end.said.truncate(from);
                end.said.extend_from_slice(texts[usize::from(who >> 3) % 8].as_bytes());
                self.says(is_client, at, (from, usize::MAX), ACK | PSH, 0);
            }
            14 if much & 7 == 2 => self.losses = much >> 3,
            15 => (0..3).for_each(|_| self.says(is_client, at, (next, 0), ACK, 0)),
            _ => {}
        }
    }
}

/// A backend has received requests that were read and edited; the last may be incomplete.
fn was_read(mut got: &[u8]) {
    let bounds = Bounds { bytes_max: 65_535, fields_max: 200, target_bytes_max: 8192 };
    while !got.is_empty() {
        let head = match request(got, &bounds) {
            Ok(ParseStatus::Partial) => return,
            Ok(ParseStatus::Complete(head)) => head,
            Err(refusal) => panic!("{refusal:?}: {:?}", String::from_utf8_lossy(got)),
        };
        assert!(head.fields.find(b"x-via").eq([&b"hairpin"[..]]), "unread: {:?}", String::from_utf8_lossy(got));
        let rest = &got[head.bytes.len()..];
        let body = match head.body {
            Length::Bytes(length) => (length as usize).min(rest.len()),
            Length::Chunked => Chunks::default().feed(rest).expect("chunks that were read"),
            _ => 0,
        };
        got = &rest[body..];
    }
}

/// Plays the input's steps before two kinds of engines; ends with silence, after which nothing may be left. Says whether a
/// backend got anything.
pub fn splice(input: &[u8]) -> bool {
    [true, false].map(|able| play(input, able)) != [false; 2]
}

fn play(input: &[u8], able: bool) -> bool {
    let mut scene = SpliceScene::new(able);
    for step in input.as_chunks::<3>().0 {
        scene.step(step[0], step[1], step[2]);
    }
    for _ in 0..4 {
        scene.engine(false);
        scene.pass(Duration::from_secs(150));
    }
    assert_eq!(scene.worker.splices(), (0, 0, 0), "clients' connections, backends', buffers");
    assert_eq!(scene.worker.rules_known().count(), 0, "rules");
    let impossible = scene.worker.statistics().drops[hairpin_core::worker::Drop::Invariant as usize];
    assert_eq!(impossible, 0, "cases that cannot happen");
    scene.reached
}
