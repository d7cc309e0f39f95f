//! Exact bytes in both directions of a connection: what each end sends is a function of the seed, the connection and the
//! offset, so each end knows what must arrive.

use crate::host::Role;
use fastrand::Rng;
use hairpin_core::time::{Duration, Time};
use smoltcp::socket::tcp::{RecvError, Socket, State};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A client's first bytes name its connection.
const NAME: usize = 8;

/// The byte at `offset` of the stream that `key` names.
pub fn byte(key: u64, offset: u64) -> u8 {
    let word = (offset / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ key;
    let word = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (word >> (8 * (offset % 8))) as u8
}

/// The end that closes a connection, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client closes when it has sent all; the server when it has sent all and seen that.
    Client,
    /// The other way round.
    Server,
    /// Each closes as soon as it has sent all.
    Both,
    /// The client resets it after so many bytes sent.
    ClientResets(u64),
    /// The server does.
    ServerResets(u64),
}

/// The events of a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    /// Bytes from the client, at least 8, and from the server.
    pub bytes: [u64; 2],
    /// How it ends.
    pub ending: Ending,
    /// Whether ends at times stop reading or sending for a while.
    pub pauses: bool,
}

impl StreamPlan {
    /// Draws one.
    pub fn draw(random: &mut Rng, resets: bool) -> StreamPlan {
        let mut size = || match random.u8(..8) {
            0 => 0,
            1..=4 => random.u64(1..5_000),
            5..=6 => random.u64(1..60_000),
            _ => random.u64(1..400_000),
        };
        let bytes = [size() + NAME as u64, size()];
        let kind = if resets { random.u8(..5) } else { random.u8(..3) };
        let ending = match kind {
            0 => Ending::Client,
            1 => Ending::Server,
            2 => Ending::Both,
            3 => Ending::ClientResets(random.u64(NAME as u64..=bytes[0])),
            _ => Ending::ServerResets(random.u64(..=bytes[1])),
        };
        StreamPlan { bytes, ending, pauses: random.bool() }
    }
}

/// All connections of a run, and what has come of them: what both ends share.
#[derive(Debug, Default)]
pub struct Book {
    /// The run's seed.
    pub seed: u64,
    /// The expected events, by name.
    pub plans: BTreeMap<u64, StreamPlan>,
    /// Which server accepted each.
    pub accepted: BTreeMap<u64, Vec<usize>>,
}

/// One end of a stream.
pub struct Stream {
    book: Rc<RefCell<Book>>,
    /// The connection's name; a server learns it from the first bytes.
    name: Option<u64>,
    /// The server's number; `None`: the client.
    server: Option<usize>,
    random: Rng,
    sent: u64,
    received: u64,
    first: Vec<u8>,
    resumes: [Time; 2],
    saw_end: bool,
    closed: bool,
    reset: bool,
    wrong: Option<String>,
}

impl Stream {
    /// The client's end of the connection of this name.
    pub fn client(book: Rc<RefCell<Book>>, name: u64) -> Stream {
        Stream::new(book, Some(name), None, name)
    }

    /// An end that a server has accepted.
    pub fn server(book: Rc<RefCell<Book>>, server: usize, number: u64) -> Stream {
        Stream::new(book, None, Some(server), !number)
    }

    fn new(book: Rc<RefCell<Book>>, name: Option<u64>, server: Option<usize>, salt: u64) -> Stream {
        let seed = book.borrow().seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Stream {
            book,
            name,
            server,
            random: Rng::with_seed(seed),
            sent: 0,
            received: 0,
            first: Vec::new(),
            resumes: [Time::ZERO; 2],
            saw_end: false,
            closed: false,
            reset: false,
            wrong: None,
        }
    }

    fn key(&self, name: u64, from_client: bool) -> u64 {
        self.book.borrow().seed ^ name.rotate_left(17) ^ if from_client { 0x5555 } else { 0xaaaa_0000 }
    }

    fn plan(&self) -> Option<StreamPlan> {
        self.book.borrow().plans.get(&self.name?).copied()
    }

    fn expected(&self, plan: &StreamPlan) -> u64 {
        plan.bytes[usize::from(self.server.is_none())]
    }

    fn total(&self, plan: &StreamPlan) -> u64 {
        plan.bytes[usize::from(self.server.is_some())]
    }

    fn receive(&mut self, now: Time, socket: &mut Socket<'static>) {
        let mut buffer = [0; 4096];
        // smoltcp throws away what has not been read when TIME-WAIT is over
        let hurries = socket.state() == State::TimeWait;
        while hurries || now >= self.resumes[0] {
            match socket.recv_slice(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.take(&buffer[..length]),
                Err(RecvError::Finished) => {
                    self.saw_end = true;
                    break;
                }
                Err(RecvError::InvalidState) => break,
            }
            if self.pauses() {
                self.resumes[0] = now + self.pause();
            }
        }
    }

    fn pauses(&mut self) -> bool {
        self.plan().is_some_and(|plan| plan.pauses) && self.random.u8(..24) == 0
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(if self.random.u8(..8) == 0 { self.random.u64(..8_000) } else { self.random.u64(..300) })
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.name.is_none() {
            let take = (NAME - self.first.len()).min(bytes.len());
            self.first.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            self.received += take as u64;
            let Ok(name) = self.first.as_slice().try_into().map(u64::from_be_bytes) else { return };
            self.accept(name);
        }
        let Some(name) = self.name else { return };
        let key = self.key(name, self.server.is_some());
        for (index, &there) in bytes.iter().enumerate() {
            let offset = self.received + index as u64;
            if there != byte(key, offset) && self.wrong.is_none() {
                self.wrong = Some(format!("byte {offset} is {there:#04x}, not {:#04x}", byte(key, offset)));
            }
        }
        self.received += bytes.len() as u64;
    }

    fn accept(&mut self, name: u64) {
        let mut book = self.book.borrow_mut();
        if !book.plans.contains_key(&name) {
            self.wrong = Some(format!("a connection {name:#x} that no client opened"));
            return;
        }
        self.name = Some(name);
        book.accepted.entry(name).or_default().extend(self.server);
    }

    fn send(&mut self, now: Time, socket: &mut Socket<'static>, plan: &StreamPlan) {
        let Some(name) = self.name else { return };
        let (total, key) = (self.total(plan), self.key(name, self.server.is_none()));
        let stops = self.stops(plan).unwrap_or(total);
        let mut buffer = [0; 4096];
        while now >= self.resumes[1] && self.sent < stops && socket.can_send() {
            let room = ((stops - self.sent) as usize).min(buffer.len());
            for (index, byte_out) in buffer[..room].iter_mut().enumerate() {
                let offset = self.sent + index as u64;
                let named = self.server.is_none() && offset < NAME as u64;
                *byte_out = if named { name.to_be_bytes()[offset as usize] } else { byte(key, offset) };
            }
            let Ok(taken) = socket.send_slice(&buffer[..room]) else { break };
            self.sent += taken as u64;
            if taken < room || self.pauses() {
                self.resumes[1] = if taken < room { now } else { now + self.pause() };
                break;
            }
        }
    }

    /// After how many bytes this end resets the connection.
    fn stops(&self, plan: &StreamPlan) -> Option<u64> {
        match (plan.ending, self.server) {
            (Ending::ClientResets(after), None) | (Ending::ServerResets(after), Some(_)) => Some(after),
            _ => None,
        }
    }

    fn end(&mut self, socket: &mut Socket<'static>, plan: &StreamPlan) {
        // smoltcp stops listening to windows once it is in LAST-ACK, so it goes there with everything acknowledged.
        let ready = match socket.state() {
            State::Established => true,
            State::CloseWait => socket.send_queue() == 0,
            _ => false,
        };
        if !ready || self.closed {
            return;
        }
        let waits = match plan.ending {
            Ending::Client => self.server.is_some(),
            Ending::Server => self.server.is_none(),
            _ => false,
        };
        if let Some(after) = self.stops(plan) {
            if self.sent >= after && socket.send_queue() == 0 {
                socket.abort();
                (self.reset, self.closed) = (true, true);
            }
        } else if self.sent == self.total(plan) && (!waits || self.saw_end) {
            socket.close();
            self.closed = true;
        }
    }
}

impl Role for Stream {
    fn drive(&mut self, now: Time, socket: &mut Socket<'static>) -> Option<Time> {
        self.receive(now, socket);
        if let Some(plan) = self.plan() {
            self.send(now, socket, &plan);
            self.end(socket, &plan);
        }
        self.resumes.into_iter().filter(|at| *at > now).min()
    }

    fn close(&mut self, socket: &mut Socket<'static>) {
        while !self.saw_end && socket.may_recv() | (socket.recv_queue() > 0) {
            self.resumes[0] = Time::ZERO;
            self.receive(Time::ZERO, socket);
        }
        self.saw_end |= matches!(socket.recv_slice(&mut []), Err(RecvError::Finished));
    }

    fn judge(&self) -> Result<(), String> {
        let name = self.name.map_or("an unnamed connection".into(), |name| format!("connection {name:#x}"));
        let side = if self.server.is_some() { "server" } else { "client" };
        let what = |text: String| Err(format!("{name}, {side}: {text}"));
        if let Some(wrong) = &self.wrong {
            return what(wrong.clone());
        }
        let Some(plan) = self.plan() else {
            // only one that is reset may end before it has said its name
            let resets = |plan: &StreamPlan| matches!(plan.ending, Ending::ClientResets(_) | Ending::ServerResets(_));
            let excused = self.book.borrow().plans.values().any(resets);
            return if excused { Ok(()) } else { what("ended before it said its name".into()) };
        };
        let resets = matches!(plan.ending, Ending::ClientResets(_) | Ending::ServerResets(_));
        if resets || self.saw_end && self.received == self.expected(&plan) && self.closed {
            return Ok(());
        }
        let (received, expected) = (self.received, self.expected(&plan));
        let (sent, total) = (self.sent, self.total(&plan));
        what(format!("{received} of {expected} bytes, {sent} of {total} sent, FIN seen: {}", self.saw_end))
    }
}
