//! A client: asks what its conversation says, and compares every response with what the seed says it must be.

use super::exchange::{AnswerKind, Conversation, Exchange, HOP, InjectedFault, Plans};
use super::message::{BodyFraming, MessageHead, MessageReader, ReaderEvent, comparable};
use super::site::{Site, name_of};
use crate::host::Role;
use crate::stream::byte;
use fastrand::Rng;
use hairpin_core::time::{Duration, Time};
use smoltcp::socket::tcp::{RecvError, Socket, State};
use std::cell::RefCell;
use std::rc::Rc;

/// How long a client waits to be told that its body is wanted, before it sends it all the same (RFC 9110, 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(20);

/// A response that is coming in.
struct Incoming {
    head: MessageHead,
    framing: BodyFraming,
    bytes: u64,
    /// It is not the response that was planned but one that says what went wrong.
    excuse: bool,
}

/// A client's end of a connection.
pub struct Client {
    plans: Rc<RefCell<Plans>>,
    site: Option<Site>,
    conversation: Conversation,
    random: Rng,
    reader: MessageReader,
    outgoing: Vec<u8>,
    sent: usize,
    asked: usize,
    answered: usize,
    incoming: Option<Incoming>,
    interim: Vec<u16>,
    /// A body that waits for leave, and until when.
    held: Option<(Vec<u8>, Time)>,
    /// Bytes of the current response, head and framing included.
    bytes: u64,
    resumes: [Time; 2],
    stopped: bool,
    saw_end: bool,
    closed: bool,
    reset: bool,
    wrong: Option<String>,
}

impl Client {
    /// The client's end of a connection on which `conversation` is held.
    pub fn new(plans: Rc<RefCell<Plans>>, site: Option<Site>, conversation: Conversation) -> Client {
        let salt = conversation.exchanges.first().copied().unwrap_or_default();
        let random = Rng::with_seed(plans.borrow().seed ^ salt);
        Client {
            plans,
            site,
            conversation,
            random,
            reader: MessageReader::default(),
            outgoing: Vec::new(),
            sent: 0,
            asked: 0,
            answered: 0,
            incoming: None,
            interim: Vec::new(),
            held: None,
            bytes: 0,
            resumes: [Time::ZERO; 2],
            stopped: false,
            saw_end: false,
            closed: false,
            reset: false,
            wrong: None,
        }
    }

    fn exchange(&self, number: usize) -> Option<Exchange> {
        let name = self.conversation.exchanges.get(number)?;
        self.plans.borrow().exchanges.get(name).cloned()
    }

    fn fail(&mut self, text: String) {
        if self.wrong.is_none() {
            let name = self.conversation.exchanges.get(self.answered).copied().unwrap_or_default();
            self.wrong = Some(format!("exchange {name:016x}: {text}"));
        }
    }

    fn receive(&mut self, now: Time, socket: &mut Socket<'static>) {
        let mut buffer = [0; 4096];
        let hurries = socket.state() == State::TimeWait;
        while hurries || now >= self.resumes[0] {
            match socket.recv_slice(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.take(now, &buffer[..length]),
                Err(RecvError::Finished) => {
                    if !self.saw_end {
                        self.saw_end = true;
                        self.end_of_stream();
                    }
                    break;
                }
                Err(RecvError::InvalidState) => break,
            }
            if self.conversation.pauses && self.random.u8(..24) == 0 {
                self.resumes[0] = now + Duration::from_millis(self.random.u64(..2_000));
            }
        }
    }

    fn take(&mut self, now: Time, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.reader.push(bytes);
        while self.wrong.is_none() {
            match self.reader.event() {
                Ok(ReaderEvent::Nothing) => return,
                Ok(ReaderEvent::Head(head)) => self.head(now, head),
                Ok(ReaderEvent::Data(data)) => self.data(&data),
                Ok(ReaderEvent::End(trailers)) => self.end_of_response(trailers),
                Err(why) => self.fail(why),
            }
        }
    }

    fn head(&mut self, now: Time, head: MessageHead) {
        let Some(exchange) = self.exchange(self.answered) else {
            return self.fail(format!("a response to nothing: {head:?}"));
        };
        if self.answered >= self.asked {
            return self.fail(format!("a response before its request: {head:?}"));
        }
        let status = head.status();
        if (100..200).contains(&status) {
            if self.site.is_some() && !head.values(HOP).is_empty() {
                self.fail(format!("what is for one hop in {head:?}"));
            }
            if status != 100 {
                self.interim.push(status);
            } else if !exchange.waits {
                self.fail("100 that was not asked for".into());
            }
            if let Some((_, until)) = &mut self.held {
                *until = now;
            }
            return self.reader.expect(BodyFraming::None, 0);
        }
        let framing = framing(&head, &exchange);
        let length = head.values("content-length").first().and_then(|value| value.parse().ok()).unwrap_or(0);
        let excuse = self.check_head(&exchange, &head, framing);
        self.reader.expect(framing, length);
        self.incoming = Some(Incoming { head, framing, bytes: 0, excuse });
    }

    /// Compares a response's head; whether it is an excuse.
    fn check_head(&mut self, exchange: &Exchange, head: &MessageHead, framing: BodyFraming) -> bool {
        let status = head.status();
        let disturbed = self.plans.borrow().servers_reset || self.plans.borrow().disturbed.contains(&exchange.name);
        if self.site.is_some() && disturbed && matches!(status, 502..=504) {
            return true;
        }
        if let AnswerKind::Balancer(expected, location) = &exchange.answer {
            let there = head.values("location").first().map(|value| value.to_string());
            if status != *expected || there != *location {
                self.fail(format!("{head:?}, not {expected} to {location:?}"));
            }
            return false;
        }
        let expected = self.site.map_or_else(|| exchange.response_head(), |site| site.response(exchange));
        let hop = self.site.is_some();
        let mut head = head.clone();
        if let Some(Err(why)) = self.site.map(|site| site.take_own(&mut head)) {
            self.fail(why);
        }
        if status != exchange.status {
            self.fail(format!("status {status}, not {}", exchange.status));
        } else if comparable(&head.fields, hop) != comparable(&expected.fields, hop) {
            self.fail(format!("fields {:?}, not {:?}", head.fields, expected.fields));
        } else if framing != exchange.response.framing {
            self.fail(format!("a body framed as {framing:?}, not {:?}", exchange.response.framing));
        } else if self.interim != exchange.interim {
            self.fail(format!("interim responses {:?}, not {:?}", self.interim, exchange.interim));
        } else if name_of(&head) != Some(exchange.name) {
            self.fail("another exchange's response".into());
        }
        false
    }

    fn data(&mut self, data: &[u8]) {
        let Some(exchange) = self.exchange(self.answered) else { return };
        let own = self.site.and_then(|site| site.own_body(&exchange)).map(str::as_bytes);
        let planned = exchange.answer == AnswerKind::Server;
        let Some(incoming) = &mut self.incoming else { return };
        let first = incoming.bytes;
        incoming.bytes += data.len() as u64;
        if incoming.excuse || !planned && own.is_none() {
            return;
        }
        let expected = |offset: u64| match own {
            Some(text) => text.get(offset as usize).copied(),
            None => (offset < exchange.response.sent()).then(|| byte(exchange.response.key, offset)),
        };
        let odd = (first..).zip(data).find(|(offset, there)| expected(*offset) != Some(**there));
        if let Some((offset, there)) = odd {
            self.fail(format!("byte {offset} is {there:#04x}, not {:?}", expected(offset)));
        }
    }

    fn end_of_response(&mut self, trailers: Vec<(String, String)>) {
        let Some(incoming) = self.incoming.take() else { return };
        let Some(exchange) = self.exchange(self.answered) else { return };
        let planned = exchange.answer == AnswerKind::Server && !incoming.excuse;
        if planned && incoming.bytes != exchange.response.sent() {
            self.fail(format!("{} bytes of body, not {}", incoming.bytes, exchange.response.sent()));
        }
        if planned && comparable(&trailers, false) != comparable(&exchange.response.trailers, false) {
            self.fail(format!("trailers {trailers:?}, not {:?}", exchange.response.trailers));
        }
        if !incoming.excuse {
            self.plans.borrow_mut().answered.insert(exchange.name);
        }
        if incoming.head.says("close") || incoming.framing == BodyFraming::Close {
            self.stopped = true;
            let limited = self.site.is_some_and(|site| site.requests_max > 0);
            let may = incoming.excuse || exchange.closes || exchange.last || exchange.minor == 0 || limited;
            // what comes behind a client's FIN is not known
            if !may && self.answered + 1 < self.conversation.exchanges.len() && !self.conversation.half_closes {
                self.fail("the connection is closed though neither side asked for that".into());
            }
        }
        self.answered += 1;
        (self.interim, self.bytes) = (Vec::new(), 0);
    }

    fn end_of_stream(&mut self) {
        let Some(incoming) = &self.incoming else { return };
        let Some(exchange) = self.exchange(self.answered) else { return };
        if incoming.framing == BodyFraming::Close {
            // also if it was cut short on purpose: a FIN says that it is whole
            self.end_of_response(Vec::new());
        } else if !self.plans.borrow().disturbed.contains(&exchange.name) {
            self.fail("the connection ended within a response".into());
        }
    }

    fn ask(&mut self, now: Time) {
        if let Some((_, until)) = &self.held
            && now >= *until
            && let Some((body, _)) = self.held.take()
        {
            self.outgoing.extend(body);
        }
        while self.held.is_none() && !self.stopped && self.asked < self.answered + self.conversation.depth {
            let Some(exchange) = self.exchange(self.asked) else { return };
            self.outgoing.extend(exchange.request().bytes());
            if exchange.waits {
                self.held = Some((exchange.content.wire(), now + CONTINUE_WAIT));
            } else {
                self.outgoing.extend(exchange.content.wire());
            }
            self.asked += 1;
        }
    }

    fn send(&mut self, now: Time, socket: &mut Socket<'static>) {
        while now >= self.resumes[1] && self.sent < self.outgoing.len() && socket.can_send() {
            // at times a byte, at times a piece, at times all
            let most = [1, 700, 100_000][self.random.usize(..3)];
            let end = (self.sent + most).min(self.outgoing.len());
            let Ok(taken) = socket.send_slice(&self.outgoing[self.sent..end]) else { return };
            self.sent += taken;
            if self.random.u8(..16) == 0 {
                self.resumes[1] = now + Duration::from_millis(self.random.u64(..200));
            }
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    fn end(&mut self, socket: &mut Socket<'static>) {
        let quiet = self.outgoing.is_empty() && self.held.is_none();
        if let Some(Exchange { fault: InjectedFault::ClientResets(after), .. }) = self.exchange(self.answered)
            && !self.closed
            && self.asked > self.answered
            && (after > 0 || quiet)
            && self.bytes >= after
        {
            socket.abort();
            (self.closed, self.reset) = (true, true);
        }
        let all = self.conversation.exchanges.len();
        let done = self.answered == all || self.stopped || self.saw_end;
        let early = self.conversation.half_closes && self.asked == all && quiet;
        let ready = match socket.state() {
            State::Established => true,
            State::CloseWait => socket.send_queue() == 0,
            _ => false,
        };
        if ready && !self.closed && (done || early) {
            socket.close();
            self.closed = true;
        }
    }
}

impl Role for Client {
    fn drive(&mut self, now: Time, socket: &mut Socket<'static>) -> Option<Time> {
        self.receive(now, socket);
        if socket.may_send() {
            self.ask(now);
            self.send(now, socket);
        }
        self.end(socket);
        let held = self.held.as_ref().map(|(_, until)| *until);
        self.resumes.into_iter().chain(held).filter(|at| *at > now).min()
    }

    fn close(&mut self, socket: &mut Socket<'static>) {
        while !self.saw_end && socket.recv_queue() > 0 {
            self.resumes[0] = Time::ZERO;
            self.receive(Time::ZERO, socket);
        }
        self.resumes[0] = Time::ZERO;
        self.receive(Time::ZERO, socket);
    }

    fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let all = self.conversation.exchanges.len();
        let plans = self.plans.borrow();
        let current = self.conversation.exchanges.get(self.answered);
        let disturbed = current.is_some_and(|name| plans.disturbed.contains(name));
        let whole = self.answered == all || self.stopped;
        if self.reset || disturbed || whole && (self.saw_end || plans.servers_reset) {
            return Ok(());
        }
        if plans.servers_reset && self.site.is_some() && self.incoming.is_none() {
            return Ok(());
        }
        let incoming = self.incoming.as_ref().map(|incoming| incoming.bytes);
        let names: Vec<String> = self.conversation.exchanges.iter().map(|name| format!("{name:016x}")).collect();
        Err(format!(
            "{} of {all} exchanges of {names:?}, {} asked, {incoming:?} bytes of the next, FIN seen: {}",
            self.answered, self.asked, self.saw_end
        ))
    }
}

/// How the body behind a response's head is framed (RFC 9112, 6.3).
fn framing(head: &MessageHead, exchange: &Exchange) -> BodyFraming {
    let status = head.status();
    let told = !head.values("content-length").is_empty();
    if exchange.method == "HEAD" || status == 204 || status == 304 {
        return if told || !head.values("transfer-encoding").is_empty() {
            BodyFraming::Told
        } else {
            BodyFraming::None
        };
    }
    match head.values("transfer-encoding")[..] {
        ["chunked"] => BodyFraming::Chunked,
        [] if told => BodyFraming::Length,
        _ => BodyFraming::Close,
    }
}
