//! A server: compares every request with what the seed says it must be, and answers as the seed says.

use super::exchange::{Exchange, InjectedFault, Plans};
use super::message::{BodyFraming, MessageHead, MessageReader, ReaderEvent, comparable};
use super::site::{Site, name_of};
use crate::host::Role;
use crate::stream::byte;
use fastrand::Rng;
use hairpin_core::flow::Address;
use hairpin_core::l7::config::ProxyVersion;
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use hairpin_core::time::{Duration, Time};
use smoltcp::socket::tcp::{RecvError, Socket, State};
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

/// A request being read or answered.
struct ServedRequest {
    exchange: Exchange,
    bytes: u64,
    /// When it is answered, once it is whole.
    due: Option<Time>,
}

/// A server's end of a connection.
pub struct Server {
    plans: Rc<RefCell<Plans>>,
    site: Option<Site>,
    number: usize,
    random: Rng,
    reader: MessageReader,
    /// The header that the connection begins with, until it is whole; then its client.
    preface: Vec<u8>,
    asks: Option<Address>,
    serving: Option<ServedRequest>,
    outgoing: Vec<u8>,
    sent: usize,
    resets: bool,
    closes: bool,
    /// The request says that it is the last.
    asked_to_close: bool,
    resumes: Time,
    saw_end: bool,
    closed: bool,
    /// When it last had something to do.
    busy_at: Time,
    /// Its peer has reset it, so long after that.
    reset_when_idle: Option<Duration>,
    reset: bool,
    wrong: Option<String>,
}

impl Server {
    /// An end that server `number` has accepted; `site` is what stands between it and its clients.
    pub fn new(plans: Rc<RefCell<Plans>>, site: Option<Site>, number: usize, salt: u64) -> Server {
        let random = Rng::with_seed(plans.borrow().seed ^ !salt);
        Server {
            plans,
            site,
            number,
            random,
            reader: MessageReader::default(),
            preface: Vec::new(),
            asks: None,
            serving: None,
            outgoing: Vec::new(),
            sent: 0,
            resets: false,
            closes: false,
            asked_to_close: false,
            resumes: Time::ZERO,
            saw_end: false,
            closed: false,
            busy_at: Time::ZERO,
            reset_when_idle: None,
            reset: false,
            wrong: None,
        }
    }

    fn fail(&mut self, text: String) {
        let name = self.serving.as_ref().map(|serving| serving.exchange.name).unwrap_or_default();
        self.wrong.get_or_insert(format!("server {}, exchange {name:016x}: {text}", self.number));
    }

    fn receive(&mut self, now: Time, socket: &mut Socket<'static>) {
        let mut buffer = [0; 4096];
        while now >= self.resumes || socket.state() == State::TimeWait {
            match socket.recv_slice(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.push(&buffer[..length]),
                Err(RecvError::Finished) => {
                    self.saw_end = true;
                    break;
                }
                Err(RecvError::InvalidState) => break,
            }
            if self.random.u8(..64) == 0 {
                self.resumes = now + Duration::from_millis(self.random.u64(..500));
            }
        }
        self.read(now);
    }

    /// Bytes that have come: of the preface first, if there is to be one.
    fn push(&mut self, bytes: &[u8]) {
        let Some(version) = self.site.and_then(|site| site.proxy).filter(|_| self.asks.is_none()) else {
            return self.reader.push(bytes);
        };
        self.preface.extend(bytes);
        match preface(version, &self.preface) {
            Ok(None) => {}
            Ok(Some((whose, length))) => {
                self.asks = Some(whose);
                self.reader.push(&self.preface[length..]);
            }
            Err(why) => self.fail(format!("a connection that begins with {why}")),
        }
    }

    /// Reads until the request is whole; the next one waits until it is answered.
    fn read(&mut self, now: Time) {
        while !self.resets
            && !self.closes
            && self.wrong.is_none()
            && self.serving.as_ref().is_none_or(|serving| serving.due.is_none())
        {
            match self.reader.event() {
                Ok(ReaderEvent::Nothing) => return,
                Ok(ReaderEvent::Head(head)) => self.head(&head),
                Ok(ReaderEvent::Data(data)) => self.data(&data),
                Ok(ReaderEvent::End(trailers)) => self.end_of_request(now, &trailers),
                Err(why) => self.fail(why),
            }
        }
    }

    fn head(&mut self, head: &MessageHead) {
        let plans = self.plans.clone();
        let mut plans = plans.borrow_mut();
        let Some(exchange) = name_of(head).and_then(|name| plans.exchanges.get(&name)).cloned() else {
            return self.fail(format!("a request of no client: {head:?}"));
        };
        plans.served.entry(exchange.name).or_default().push(self.number);
        let client = plans.clients.get(&exchange.name).copied().unwrap_or_default();
        let framing = match (head.values("transfer-encoding").as_slice(), head.values("content-length").as_slice()) {
            (["chunked"], []) => BodyFraming::Chunked,
            ([], [_]) => BodyFraming::Length,
            _ => BodyFraming::None,
        };
        let length = head.values("content-length").first().and_then(|value| value.parse().ok()).unwrap_or(0);
        self.reader.expect(framing, length);
        let expected = self.site.map_or_else(|| exchange.request(), |site| site.request(&exchange, &client));
        let hop = self.site.is_some();
        self.asked_to_close = head.says("close");
        let group = (exchange.host == "b.example") == (self.number >= plans.group_from);
        if exchange.waits {
            self.outgoing.extend(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.serving = Some(ServedRequest { exchange: exchange.clone(), bytes: 0, due: None });
        if self.asks.is_some_and(|asks| asks != client) {
            self.fail(format!("{client} asks, not {:?}", self.asks));
        } else if head.start != expected.start {
            self.fail(format!("{:?}, not {:?}", head.start, expected.start));
        } else if comparable(&head.fields, hop) != comparable(&expected.fields, hop) {
            self.fail(format!("fields {:?}, not {:?}", head.fields, expected.fields));
        } else if framing != exchange.content.framing {
            self.fail(format!("a body framed as {framing:?}, not {:?}", exchange.content.framing));
        } else if hop && !group {
            self.fail(format!("a request for {} is not this server's", exchange.host));
        }
    }

    fn data(&mut self, data: &[u8]) {
        let Some(serving) = &mut self.serving else { return };
        let (first, key) = (serving.bytes, serving.exchange.content.key);
        serving.bytes += data.len() as u64;
        let odd = (first..).zip(data).find(|(offset, there)| byte(key, *offset) != **there);
        if let Some((offset, there)) = odd {
            self.fail(format!("byte {offset} of the request's body is {there:#04x}"));
        }
    }

    fn end_of_request(&mut self, now: Time, trailers: &[(String, String)]) {
        let Some(serving) = &mut self.serving else { return };
        serving.due = Some(now + Duration::from_millis(serving.exchange.thinks));
        let content = serving.exchange.content.clone();
        let bytes = serving.bytes;
        if bytes != content.sent() {
            self.fail(format!("{bytes} bytes of the request's body, not {}", content.sent()));
        }
        if comparable(trailers, false) != comparable(&content.trailers, false) {
            self.fail(format!("trailers {trailers:?}, not {:?}", content.trailers));
        }
    }

    fn answer(&mut self, now: Time) {
        let Some(ServedRequest { exchange, due: Some(due), .. }) = &self.serving else { return };
        if now < *due {
            return;
        }
        for status in &exchange.interim {
            self.outgoing.extend(exchange.interim_head(*status).bytes());
        }
        let mut response = exchange.response_bytes();
        if let InjectedFault::ServerResets(after) = exchange.fault {
            response.truncate(after as usize);
            self.resets = true;
        }
        self.closes |= exchange.closes || self.asked_to_close;
        self.outgoing.extend(response);
        self.serving = None;
    }

    fn send(&mut self, socket: &mut Socket<'static>) {
        while self.sent < self.outgoing.len() && socket.can_send() {
            let most = [1, 1000, 100_000][self.random.usize(..3)];
            let end = (self.sent + most).min(self.outgoing.len());
            let Ok(taken) = socket.send_slice(&self.outgoing[self.sent..end]) else { return };
            self.sent += taken;
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    fn end(&mut self, socket: &mut Socket<'static>) {
        if self.closed || !self.outgoing.is_empty() {
            return;
        }
        if self.resets {
            // what was said before is not to be lost with it
            if socket.send_queue() > 0 {
                return;
            }
            socket.abort();
            (self.closed, self.reset) = (true, true);
            return;
        }
        let ready = match socket.state() {
            State::Established => true,
            State::CloseWait => socket.send_queue() == 0,
            _ => false,
        };
        if ready && (self.closes || self.saw_end && self.serving.is_none()) {
            socket.close();
            self.closed = true;
        }
        // a request that will never be whole
        if ready && self.saw_end && self.serving.as_ref().is_some_and(|serving| serving.due.is_none()) {
            socket.close();
            self.closed = true;
        }
    }
}

impl Role for Server {
    fn drive(&mut self, now: Time, socket: &mut Socket<'static>) -> Option<Time> {
        if socket.state() == State::Closed && !self.closed && self.reset_when_idle.is_none() {
            self.reset_when_idle = Some(now.since(self.busy_at));
        }
        loop {
            self.receive(now, socket);
            let busy = self.serving.is_some();
            if busy || !self.outgoing.is_empty() {
                self.busy_at = now;
            }
            self.answer(now);
            self.send(socket);
            if !busy || self.serving.is_some() || self.closes || self.resets {
                break;
            }
        }
        self.end(socket);
        let due = self.serving.as_ref().and_then(|serving| serving.due);
        [due, Some(self.resumes)].into_iter().flatten().filter(|at| *at > now).min()
    }

    fn close(&mut self, socket: &mut Socket<'static>) {
        while !self.saw_end && socket.recv_queue() > 0 {
            self.resumes = Time::ZERO;
            self.receive(Time::ZERO, socket);
        }
        self.resumes = Time::ZERO;
        self.receive(Time::ZERO, socket);
    }

    fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let plans = self.plans.borrow();
        let serving = self.serving.as_ref().map(|serving| serving.exchange.name);
        let disturbed = serving.is_some_and(|name| plans.disturbed.contains(&name));
        // what a client that has gone has left on the way belongs to no exchange
        let excused = self.reset || disturbed || plans.clients_reset || plans.servers_reset;
        // The balancer says FIN for so long that it waits for no more, and then RST.
        let was_given_up = self.reset_when_idle.is_some_and(|after| after >= CLOSING_TIMEOUT);
        let ended = self.saw_end && self.closed || was_given_up;
        if excused || ended && serving.is_none() && self.reader.is_clean() && self.outgoing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "server {}: serving {serving:x?}, {} bytes to send, FIN seen: {}, closed: {}, clean: {}",
            self.number,
            self.outgoing.len() - self.sent,
            self.saw_end,
            self.closed,
            self.reader.is_clean()
        ))
    }
}

/// Reads what a connection begins with: whose it is, and how long that was; `None`: it is not whole.
fn preface(version: ProxyVersion, bytes: &[u8]) -> Result<Option<(Address, usize)>, String> {
    let wrong = || format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(108)]));
    match version {
        ProxyVersion::V1 => {
            let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
                return if bytes.len() < 108 { Ok(None) } else { Err(wrong()) };
            };
            let line = str::from_utf8(&bytes[..end]).map_err(|_| wrong())?;
            let ["PROXY", "TCP4" | "TCP6", source, _, _, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                return Err(wrong());
            };
            let source: IpAddr = source.parse().map_err(|_| wrong())?;
            Ok(Some((source.into(), end + 2)))
        }
        ProxyVersion::V2 => {
            let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return Ok(None) };
            let [signature @ .., 0x21, family, high, low] = head else { return Err(wrong()) };
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            if signature != b"\r\n\r\n\0\r\nQUIT\n" {
                return Err(wrong());
            }
            let Some(ends) = rest.get(..length) else { return Ok(None) };
            let source: IpAddr = match (family, ends) {
                (0x11, [a, b, c, d, ..]) if length == 12 => [*a, *b, *c, *d].into(),
                (0x21, ends) if length == 36 => <[u8; 16]>::try_from(&ends[..16]).map_err(|_| wrong())?.into(),
                _ => return Err(wrong()),
            };
            Ok(Some((source.into(), 16 + length)))
        }
    }
}
