//! A process that adopts damaged memory of spliced connections, or bytes that no process has left.
//!
//! The input is a byte that says how, a byte with how many changes there are, the changes ([`CHANGE`] bytes each), and
//! steps of three bytes as in [`splice`](crate::splice). First a worker has conversations in all states. Then the bytes
//! that they lie in are changed, another worker adopts them, the steps are played, all ends go on, and time passes. Whatever
//! was changed: nothing panics, no frame goes anywhere but to the ends that there are, no end gets bytes of another
//! conversation, and after a while nothing is left.
//!
//! All secrets follow from the input, so that a fuzzer that sees a seal compared cannot put the right one into its next
//! input.

use crate::splice::{ACK, FIN, PSH, SYN, SpliceScene, end};
use hairpin_core::flow::FlowKey;
use hairpin_core::l7::splice::limits::SIZES;
use hairpin_core::l7::splice::{AdoptedSplices, SplicedMemory};
use hairpin_core::table::region::Region;
use hairpin_core::time::Duration;
use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeSet;
use std::ptr::NonNull;

/// Connections that there is room for.
const CONNECTIONS: u32 = 12;
/// Bytes of a change: what, where (2), how many, with what (2).
pub const CHANGE: usize = 6;
/// Bytes of the memory.
const BYTES: usize = SplicedMemory::bytes(CONNECTIONS);
/// Bytes before the buffers: more than the buffers of all sizes have no room for.
const ENTRIES: usize = BYTES - 64 * SIZES[0] - 32 * SIZES[1] - 16 * SIZES[2];
/// The first port of clients that have conversations, and that of those that begin one later.
const PORTS: [u16; 2] = [1000, 1100];
/// Conversations, each in another state.
const CONVERSATIONS: usize = 9;
/// Those in the midst of whose responses the process ends.
const UNANSWERED: [usize; 4] = [0, 1, 3, 5];

/// Memory that a worker's connections lie in, as if it were shared.
struct Shared(NonNull<u8>);

impl Shared {
    /// That of this thread, all zeroes: there is one at a time.
    fn new() -> Shared {
        std::thread_local!(static MEMORY: NonNull<u8> = {
            let layout = Layout::from_size_align(BYTES, 64).expect("a size");
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory")
        });
        let mut shared = Shared(MEMORY.with(|&start| start));
        shared.bytes().fill(0);
        shared
    }

    /// Its bytes, while no worker has them.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are there for ever, written; they are borrowed with what stands for them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), BYTES) }
    }

    /// The memory of a worker.
    fn memory(&self) -> SplicedMemory {
        // SAFETY: aligned, there for ever, written; `bytes` is called only after the worker has ended.
        SplicedMemory::new(unsafe { Region::at(self.0, BYTES) }, CONNECTIONS)
    }
}

/// A number that follows from the input and a place.
fn drawn(input: &[u8], at: u64) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    input.iter().fold(mix(0x1234_5678_9abc_def1, at), |hash, &byte| mix(hash, byte.into())).wrapping_mul(0xd6e8_feb8)
}

/// A whole response.
fn small(mark: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{mark}", mark.len())
}

/// What stands in all that a conversation says.
fn mark(input: &[u8], conversation: usize) -> String {
    format!("{:016x}{conversation:x}", drawn(input, 100 + conversation as u64))
}

/// The conversations of a scene.
struct Talks<'a> {
    scene: SpliceScene,
    input: &'a [u8],
}

impl Talks<'_> {
    fn say(&mut self, is_client: bool, at: usize, text: &str) {
        let Some(end) = self.scene.end_at(is_client, at) else { return };
        let next = end.next;
        end.said.extend_from_slice(text.as_bytes());
        self.scene.says(is_client, at, (next, usize::MAX), ACK | PSH, 0);
    }

    /// An end acknowledges what it has.
    fn hear(&mut self, is_client: bool, at: usize, flags: u8) {
        let Some(next) = self.scene.end_at(is_client, at).map(|end| end.next) else { return };
        self.scene.says(is_client, at, (next, 0), ACK | flags, 0);
    }

    /// A client sends a request; the backend that is asked for a connection takes it up. Returns both.
    fn ask(&mut self, conversation: usize, request: &str) -> (usize, usize) {
        let client = self.scene.client_at(PORTS[0] + conversation as u16, conversation as u8);
        let there = self.scene.backends.len();
        self.say(true, client, request);
        if self.scene.backends.len() > there {
            let end = &self.scene.backends[there];
            let (own, peer, numbers) = (end.own, end.peer, end.numbers_of_syn());
            self.scene.begins(own, peer, numbers, SYN | ACK, true);
        }
        (client, self.scene.backends.len().saturating_sub(1))
    }

    /// Begins all conversations, each as far as it comes.
    fn begin(&mut self) {
        let marks: Vec<String> = (0..CONVERSATIONS).map(|conversation| mark(self.input, conversation)).collect();
        let get = |conversation: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", marks[conversation]);
        let large = |mark: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{mark}");
        // One is over, and closed in order; what it had in buffers is still there.
        let (client, backend) = self.ask(8, &format!("{}{}", get(8), get(8)));
        self.say(false, backend, &small(&marks[8]));
        self.hear(true, client, 0);
        self.say(false, backend, &small(&marks[8]));
        self.hear(true, client, FIN);
        self.hear(true, client, 0);
        // A response is on its way through software,
        let (client, backend) = self.ask(0, &get(0));
        self.say(false, backend, &large(&marks[0]));
        self.hear(true, client, 0);
        // and one in the engine.
        let (client, backend) = self.ask(1, &get(1));
        self.say(false, backend, &large(&marks[1]));
        self.hear(true, client, 0);
        self.scene.engine(false);
        // A request of chunks is on its way.
        let upload = format!("PUT /{} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", marks[2]);
        let (client, backend) = self.ask(2, &upload);
        self.hear(false, backend, 0);
        self.say(true, client, "11\r\n");
        self.say(true, client, &marks[2]);
        // A tunnel.
        let upgrade =
            format!("GET /{} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", marks[3]);
        let (client, backend) = self.ask(3, &upgrade);
        self.say(false, backend, "HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        self.say(false, backend, &marks[3]);
        self.hear(true, client, 0);
        // Half a head, of a request and of a response.
        let (client, _) = self.ask(4, &format!("GET /{} HTTP/1.1\r\nHo", marks[4]));
        self.hear(true, client, 0);
        let (client, backend) = self.ask(5, &get(5));
        self.say(false, backend, &format!("HTTP/1.1 200 OK\r\nX-Mark: {}\r\nConte", marks[5]));
        self.hear(true, client, 0);
        // A reply of the worker's own, which is not acknowledged.
        self.ask(6, &format!("GET /{} HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", marks[6]));
        // Both connections are idle.
        let (client, backend) = self.ask(7, &get(7));
        self.say(false, backend, &small(&marks[7]));
        self.hear(true, client, 0);
    }

    /// All ends go on, and others begin.
    fn go_on(&mut self) {
        let marks: Vec<String> = (0..CONVERSATIONS).map(|conversation| mark(self.input, conversation)).collect();
        for round in 0..3 {
            for client in 0..self.scene.clients.len() {
                let own = self.scene.clients[client].own.port.wrapping_sub(PORTS[0]);
                let Some(mark) = marks.get(usize::from(own)) else { continue };
                self.hear(true, client, 0);
                if round == 1 {
                    self.say(true, client, &format!("{mark}\r\n0\r\n\r\nGET /{mark} HTTP/1.1\r\nHost: a\r\n\r\n"));
                }
            }
            for backend in 0..self.scene.backends.len() {
                self.hear(false, backend, 0);
                let end = &self.scene.backends[backend];
                let (got, said) = (String::from_utf8_lossy(&end.got), String::from_utf8_lossy(&end.said));
                let requests: Vec<&str> = got.lines().filter(|line| line.ends_with(" HTTP/1.1")).collect();
                let answered = said.matches("HTTP/1.1 ").count();
                let mark_of = |request: &&str| marks.iter().position(|mark| request.contains(mark.as_str()));
                // It answers each request once, in order, and goes on with the response that it is at.
                match (requests.get(answered), requests.last().and_then(mark_of)) {
                    (Some(request), _) => {
                        let answer = small(mark_of(request).map_or("unmarked", |at| &marks[at]));
                        self.say(false, backend, &answer);
                    }
                    (None, Some(at)) if UNANSWERED.contains(&at) => self.say(false, backend, &marks[at]),
                    _ => {}
                }
            }
            self.scene.engine(round == 2);
            self.scene.pass(Duration::from_millis(700));
        }
        for port in 0..2 {
            let client = self.scene.client_at(PORTS[1] + port, 0);
            self.say(true, client, "GET /stranger HTTP/1.1\r\nHost: a\r\n\r\n");
        }
    }
}

/// Checks a frame: its ends are some that there are, and it has marks of one conversation at most, its own.
fn judge(marks: &[String], from: hairpin_core::flow::Endpoint, to: hairpin_core::flow::Endpoint, payload: &[u8]) {
    let to_client = from == end(1, 80) && to.address == end(10, 0).address;
    let is_known = [1000..1000 + CONVERSATIONS as u16, 1100..1102].iter().any(|ports| ports.contains(&to.port));
    let to_backend = from.address == end(50, 0).address && (1024..=1087).contains(&from.port);
    let is_backend = (100..102).any(|host| to == end(host, 8080));
    assert!(to_client && is_known || to_backend && is_backend, "a frame from {from} to {to}");
    let found = marks
        .iter()
        .enumerate()
        .filter(|(_, mark)| payload.windows(mark.len()).any(|window| window == mark.as_bytes()));
    let found: Vec<usize> = found.map(|(at, _)| at).collect();
    match to_client {
        true => assert!(
            found.iter().all(|&at| to.port == PORTS[0] + at as u16),
            "{to} gets what is of {found:?}: {:?}",
            String::from_utf8_lossy(payload)
        ),
        false => assert!(found.len() <= 1, "{from} sends what is of {found:?}"),
    }
}

/// Changes bytes.
fn damage(bytes: &mut [u8], change: &[u8; CHANGE]) {
    let [what, a, b, count, value, more] = *change;
    // All entries can be reached, and some of what is in the buffers.
    let reach = if what & 0x80 == 0 { ENTRIES } else { bytes.len() };
    let stride = if what & 0x80 == 0 { 1 } else { 61 };
    let at = usize::from(u16::from_le_bytes([a, b])) * stride % reach;
    let count = usize::from(count).min(reach - at);
    let word = u16::from_le_bytes([value, more]);
    let mut put = |put: &[u8]| {
        let length = put.len().min(reach - at);
        bytes[at..at + length].copy_from_slice(&put[..length]);
    };
    match what & 7 {
        0 => put(&[value]),
        1 => bytes[at] ^= value,
        2 => put(&u32::from(word).to_le_bytes()),
        3 => put(&(i32::from(word as i16) as u32).to_le_bytes()),
        4 => put(&u64::from(word).to_le_bytes()),
        5 => bytes[at..at + count].fill(value),
        6 => put(&word.to_le_bytes()),
        _ => {
            // What is in buffers stays where it is: nothing tells whose it is.
            let from = usize::from(word) % ENTRIES;
            let count = count.min(ENTRIES - from).min(ENTRIES.saturating_sub(at));
            bytes.copy_within(from..from + count, at);
        }
    }
}

/// Plays the input. Says whether connections were adopted.
pub fn adoption(input: &[u8]) -> bool {
    let Some((&[how, count], rest)) = input.split_first_chunk::<2>() else { return false };
    let seeds = [0, 1, 2, 3].map(|at| drawn(input, at));
    let mut shared = Shared::new();
    let scene = SpliceScene::with(how & 1 == 0, seeds, shared.memory(), |http| http.upgrade = true);
    let mut talks = Talks { scene, input };
    let marks: Vec<String> = (0..CONVERSATIONS).map(|conversation| mark(input, conversation)).collect();
    talks.scene.watch = Some(Box::new(move |from, to, payload| judge(&marks, from, to, payload)));
    talks.begin();
    let rules = talks.scene.end();
    let (changes, steps) = rest.split_at(rest.len().min(usize::from(count) * CHANGE));
    let changes = &changes[..changes.len() / CHANGE * CHANGE];
    match how & 2 {
        0 => changes.as_chunks().0.iter().for_each(|change| damage(shared.bytes(), change)),
        // Bytes that no process has left.
        _ => {
            let bytes = shared.bytes();
            bytes.fill(0);
            let entries = changes.iter().cycle().take(if changes.is_empty() { 0 } else { ENTRIES });
            bytes.iter_mut().zip(entries).for_each(|(byte, &content)| *byte = content);
        }
    }
    let adopted = begin(&mut talks.scene, &mut shared, &rules, how & 4 != 0);
    if changes.is_empty() && how & 2 == 0 {
        let found = (adopted.client_conns, adopted.forgotten(), adopted.interrupted);
        assert_eq!(found, (CONVERSATIONS as u64, 0, 0), "nothing was changed: {adopted:?}");
    }
    for step in steps.as_chunks::<3>().0 {
        talks.scene.step(step[0], step[1], step[2]);
    }
    talks.go_on();
    for _ in 0..4 {
        talks.scene.engine(false);
        // A tunnel may be silent for an hour.
        talks.scene.pass(Duration::from_secs(2000));
    }
    let scene = &mut talks.scene;
    assert_eq!(scene.worker.splices(), (0, 0, 0), "clients' connections, backends', buffers");
    assert_eq!(scene.worker.rules_known().count(), 0, "rules");
    let impossible = scene.worker.statistics().drops[hairpin_core::worker::Drop::Invariant as usize];
    assert_eq!(impossible, 0, "cases that cannot happen");
    scene.end();
    adopted.client_conns > 0
}

/// Another process begins; `twice`: and another one, at once. Returns what the first has adopted.
fn begin(scene: &mut SpliceScene, shared: &mut Shared, rules: &BTreeSet<FlowKey>, twice: bool) -> AdoptedSplices {
    let adopted = scene.begin(shared.memory(), rules);
    if twice {
        let rules = scene.end();
        let again = scene.begin(shared.memory(), &rules);
        assert_eq!((again.forgotten(), again.interrupted), (0, 0), "{adopted:?}, then {again:?}");
    }
    adopted
}
