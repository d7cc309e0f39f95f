//! An HTTP service: requests for 1 KB, over connections that are kept and over one each.

use crate::packet::{self, Family, ReadPacket, TcpFields};
use crate::script::{CaseRecording, ScriptedWorker};
use crate::worker::{self, CountedWorker, ServicePlan};
use hairpin_core::config::Forwarding;
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::wire::tcp::{ACK, FIN, PSH, SYN};
use std::collections::{BTreeMap, VecDeque};

/// Clients that ask at the same time.
const TOGETHER: usize = 32;
/// Frames that arrive at once at most.
const BURST: usize = 64;
/// Bytes of a response's body.
const BODY: usize = 1024;

const REQUEST: &str = "GET /1k HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
    Accept: text/html,application/xhtml+xml\r\nAccept-Language: en\r\nAccept-Encoding: gzip, deflate\r\n";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
    Content-Type: application/octet-stream\r\nContent-Length: 1024\r\nConnection: keep-alive\r\n\
    Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"65920080-400\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// A case of an HTTP service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) family: Family,
    /// Each request over a connection of its own; else over kept ones.
    pub(crate) new: bool,
    /// Connections to backends are kept for other clients' requests.
    pub(crate) reuse: bool,
    /// Clients offer timestamps, and backends take them.
    pub(crate) timestamps: bool,
    /// Records are kept, as for an access log.
    pub(crate) recorded: bool,
}

/// An end of a TCP connection. It answers what it gets at once.
#[derive(Debug)]
struct HttpEnd {
    own: Endpoint,
    peer: Endpoint,
    next: u32,
    expected: u32,
    role: EndRole,
    /// It has sent its FIN.
    closed: bool,
    /// Its clock, which goes on with each segment, and the last value of its peer's, if it has timestamps.
    clocks: Option<[u32; 2]>,
}

#[derive(Debug)]
enum EndRole {
    /// With what it asks for when its connection is there, and the bytes of bodies and heads that it has received.
    Client {
        request: String,
        received: usize,
    },
    Backend,
}

impl HttpEnd {
    fn sends(&mut self, flags: u8, payload: &[u8]) -> Vec<u8> {
        let timestamps = self.clocks;
        let numbers = TcpFields { flags, sequence: self.next, acknowledgement: self.expected, timestamps };
        self.clocks.iter_mut().for_each(|[own, _]| *own += 1);
        let phantom = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        self.next = self.next.wrapping_add(payload.len() as u32 + phantom);
        packet::tcp(self.own, self.peer, numbers, payload)
    }

    /// Its answer to received data.
    fn gets(&mut self, read: &ReadPacket) -> Vec<Vec<u8>> {
        assert!(read.flags & hairpin_core::wire::tcp::RST == 0, "reset: {self:?}");
        if read.next() == self.expected && read.flags & SYN == 0 {
            return Vec::new();
        }
        self.expected = read.next();
        self.clocks = self.clocks.zip(read.timestamp).map(|([own, _], peer)| [own, peer]);
        let mut answers = Vec::new();
        if read.flags & SYN != 0 {
            match &self.role {
                EndRole::Client { request, .. } => {
                    let request = request.clone();
                    answers.push(self.sends(ACK, b""));
                    answers.push(self.sends(ACK | PSH, request.as_bytes()));
                }
                EndRole::Backend => answers.push(self.sends(SYN | ACK, b"")),
            }
        } else if !read.payload.is_empty() {
            match &mut self.role {
                EndRole::Client { received, .. } => *received += read.payload.len(),
                EndRole::Backend => {
                    assert!(read.payload.ends_with(b"\r\n\r\n"), "a whole request");
                    let response = [RESPONSE.as_bytes(), &[b'x'; BODY]].concat();
                    answers.push(self.sends(ACK | PSH, &response));
                }
            }
        }
        if read.flags & FIN != 0 && !self.closed {
            self.closed = true;
            answers.push(self.sends(ACK | FIN, b""));
        }
        answers
    }
}

/// All ends, by the flow that reaches them: (their end, their peer's).
#[derive(Default)]
struct Hosts {
    ends: BTreeMap<(Endpoint, Endpoint), HttpEnd>,
    /// The packets that they have sent and that have not arrived.
    on_the_way: VecDeque<Vec<u8>>,
}

impl Hosts {
    /// Lets packets go to and fro until no end has anything to say.
    fn settle(&mut self, stage: &mut ScriptedWorker) {
        while !self.on_the_way.is_empty() {
            let burst = self.on_the_way.drain(..BURST.min(self.on_the_way.len())).collect();
            for frame in stage.arrive(burst) {
                let read = ReadPacket::of(&frame);
                let (own, peer) = (read.key.destination, read.key.source);
                let clocks = read.timestamp.map(|value| [80_000, value]);
                let role = EndRole::Backend;
                let backend = || HttpEnd { own, peer, next: 9000, expected: 0, role, closed: false, clocks };
                if read.flags & (SYN | ACK) == SYN {
                    self.ends.insert((own, peer), backend());
                }
                let end = self.ends.get_mut(&(own, peer)).expect("an end that there is");
                self.on_the_way.extend(end.gets(&read));
            }
        }
    }
}

impl Requests {
    pub(crate) fn name(&self) -> String {
        let (family, backend) = (self.family.name(), if self.reuse { "" } else { ", backend's too" });
        let timestamps = if self.timestamps { ", timestamps" } else { "" };
        let connections = if self.new { format!("new{backend}") } else { "kept".to_owned() };
        let recorded = if self.recorded { ", recorded" } else { "" };
        format!("HTTP 1 KB {family} {connections}{timestamps}{recorded}")
    }

    pub(crate) fn worker(&self) -> CountedWorker {
        worker::worker(ServicePlan {
            family: self.family,
            protocol: Protocol::Tcp,
            kind: worker::http(self.reuse),
            forwarding: Forwarding::FullNat,
            offloaded: false,
            recorded: self.recorded,
        })
    }

    /// The number of requests in one round.
    pub(crate) fn per_round(&self) -> usize {
        TOGETHER
    }

    pub(crate) fn record(&self, rounds: usize) -> CaseRecording {
        let (mut stage, mut hosts) = (ScriptedWorker::new(self.worker()), Hosts::default());
        let mut clients = self.connect(&mut stage, &mut hosts, 0);
        stage.mark();
        for round in 0..rounds {
            if self.new {
                clients = self.connect(&mut stage, &mut hosts, 1 + round);
            } else {
                for client in &clients {
                    let end = hosts.ends.get_mut(client).expect("a client that there is");
                    hosts.on_the_way.push_back(end.sends(ACK | PSH, self.request().as_bytes()));
                }
                hosts.settle(&mut stage);
            }
            let answered = if self.new { 1 } else { 2 + round };
            for client in &clients {
                hosts.ends[client].check(answered, self.new);
            }
            stage.mark();
        }
        stage.into_recording()
    }

    /// New clients, each with its first request.
    fn connect(&self, stage: &mut ScriptedWorker, hosts: &mut Hosts, round: usize) -> Vec<(Endpoint, Endpoint)> {
        let vip = worker::vip(self.family);
        let mut names = Vec::new();
        for number in round * TOGETHER..(round + 1) * TOGETHER {
            let own = self.family.end(3, 1 + (number / 50_000) as u16, 1024 + (number % 50_000) as u16);
            let role = EndRole::Client { request: self.request(), received: 0 };
            let clocks = self.timestamps.then_some([40_000, 0]);
            let mut client = HttpEnd { own, peer: vip, next: 5000, expected: 0, role, closed: false, clocks };
            hosts.on_the_way.push_back(client.sends(SYN, b""));
            hosts.ends.insert((own, vip), client);
            names.push((own, vip));
        }
        hosts.settle(stage);
        names
    }

    fn request(&self) -> String {
        format!("{REQUEST}{}\r\n", if self.new { "Connection: close\r\n" } else { "" })
    }
}

impl HttpEnd {
    /// # Panics
    /// When a client has not received so many responses, or not all has ended that was to end.
    fn check(&self, responses: usize, ended: bool) {
        let EndRole::Client { received, .. } = &self.role else { return };
        // How long the head has become is the worker's to say.
        let each = received / responses;
        assert!((BODY..BODY + 400).contains(&each), "{received} bytes for {responses} responses");
        assert_eq!(self.closed, ended, "{self:?}");
    }
}
