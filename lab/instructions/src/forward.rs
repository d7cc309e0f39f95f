//! Layer 4: established connections, and connections from their beginning to their end.

use crate::packet::{self, Family, ReadPacket, TcpFields};
use crate::script::{CaseRecording, ScriptedWorker};
use crate::worker::{self, CountedWorker, ServicePlan};
use hairpin_core::config::Forwarding;
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::l7::config::Kind;
use hairpin_core::wire::tcp::{ACK, FIN, PSH, SYN};

/// Connections whose packets arrive together.
const TOGETHER: usize = 64;
/// Bytes of payload of an established connection's packets: a frame has the least that Ethernet carries, or more.
const SMALL: usize = 18;
/// Bytes of a client's data and of a backend's.
const PAYLOAD: [usize; 2] = [100, 1000];

/// A case of layer 4.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward {
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
    pub(crate) forwarding: Forwarding,
    /// Each connection from its beginning to its end; else packets of established ones.
    pub(crate) new: bool,
    /// Connections get rules of an engine, which are there as soon as they are asked for.
    pub(crate) offloaded: bool,
}

/// One end of a connection: where it is, where its peer seems to be, and the numbers of TCP.
#[derive(Clone, Copy, Debug)]
struct ForwardEnd {
    own: Endpoint,
    peer: Endpoint,
    next: u32,
    expected: u32,
}

impl ForwardEnd {
    fn sends(&mut self, protocol: Protocol, flags: u8, payload: &[u8]) -> Vec<u8> {
        if protocol == Protocol::Udp {
            return packet::udp(self.own, self.peer, payload);
        }
        let numbers = TcpFields { flags, sequence: self.next, acknowledgement: self.expected, timestamps: None };
        let phantom = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        self.next = self.next.wrapping_add(payload.len() as u32 + phantom);
        packet::tcp(self.own, self.peer, numbers, payload)
    }
}

/// The client's end and the backend's of one connection.
type ForwardEnds = [ForwardEnd; 2];
const CLIENT: usize = 0;
const BACKEND: usize = 1;

impl Forward {
    pub(crate) fn name(&self) -> String {
        let forwarding = match self.forwarding {
            Forwarding::Nat => "nat",
            Forwarding::FullNat => "full-nat",
            Forwarding::Direct => "dsr",
        };
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        let what = if self.new { "new" } else { "established" };
        let offloaded = if self.offloaded { ", offloaded" } else { "" };
        format!("{forwarding} {} {protocol} {what}{offloaded}", self.family.name())
    }

    pub(crate) fn worker(&self) -> CountedWorker {
        worker::worker(ServicePlan {
            family: self.family,
            protocol: self.protocol,
            kind: Kind::Forward,
            forwarding: self.forwarding,
            offloaded: self.offloaded,
            recorded: false,
        })
    }

    /// The number of packets or connections in one round.
    pub(crate) fn per_round(&self) -> usize {
        TOGETHER
    }

    pub(crate) fn record(&self, rounds: usize) -> CaseRecording {
        let mut stage = ScriptedWorker::new(self.worker());
        let mut connections = if self.new { Vec::new() } else { self.established(&mut stage) };
        stage.mark();
        for round in 0..rounds {
            match (self.new, self.protocol) {
                (true, Protocol::Tcp) => self.tcp_connections(&mut stage, round),
                (true, Protocol::Udp) => drop(self.begin(&mut stage, round)),
                (false, _) => self.packets(&mut stage, &mut connections),
            }
            stage.mark();
        }
        stage.into_recording()
    }

    fn established(&self, stage: &mut ScriptedWorker) -> Vec<ForwardEnds> {
        let mut connections = self.begin(stage, 0);
        self.exchange(stage, &mut connections, CLIENT, ACK, 0);
        self.exchange(stage, &mut connections, BACKEND, ACK | PSH, 1);
        self.exchange(stage, &mut connections, CLIENT, ACK | PSH, 1);
        connections
    }

    /// One packet of each connection, of half of them the client's, of half the backend's.
    fn packets(&self, stage: &mut ScriptedWorker, connections: &mut [ForwardEnds]) {
        let send = |(index, ends): (usize, &mut ForwardEnds)| ends[index % 2].sends(self.protocol, ACK, &[0x5a; SMALL]);
        let frames = connections.iter_mut().enumerate().map(send).collect();
        let sent = stage.arrive(frames);
        assert_eq!(sent.len(), TOGETHER, "every packet goes on");
        connections.reverse();
    }

    /// Connections that have begun: a SYN and its answer, or a question and its answer.
    fn begin(&self, stage: &mut ScriptedWorker, round: usize) -> Vec<ForwardEnds> {
        let vip = worker::vip(self.family);
        let first = 1000 * round as u32;
        let mut clients: Vec<ForwardEnd> = (0..TOGETHER)
            .map(|index| {
                let number = round * TOGETHER + index;
                let own = self.family.end(3, 1 + (number / 50_000) as u16, 1024 + (number % 50_000) as u16);
                ForwardEnd { own, peer: vip, next: first, expected: 0 }
            })
            .collect();
        let payload = self.question();
        let sent = stage.arrive(clients.iter_mut().map(|client| client.sends(self.protocol, SYN, payload)).collect());
        assert_eq!(sent.len(), TOGETHER, "every connection begins");
        let backend = |frame: &Vec<u8>| {
            let read = ReadPacket::of(frame);
            ForwardEnd { own: read.key.destination, peer: read.key.source, next: 70_000 + first, expected: read.next() }
        };
        let mut connections: Vec<ForwardEnds> =
            clients.into_iter().zip(&sent).map(|(client, frame)| [client, backend(frame)]).collect();
        self.exchange(stage, &mut connections, BACKEND, SYN | ACK, payload.len());
        connections
    }

    fn question(&self) -> &'static [u8] {
        if self.protocol == Protocol::Udp { &[0x5a; PAYLOAD[CLIENT]] } else { &[] }
    }

    /// A packet of one end of each connection, which reaches the other; with its payload, or without any.
    fn exchange(
        &self,
        stage: &mut ScriptedWorker,
        connections: &mut [ForwardEnds],
        from: usize,
        flags: u8,
        payload: usize,
    ) {
        let payload = &vec![0x5a; PAYLOAD[from] * payload.min(1)];
        let sent =
            stage.arrive(connections.iter_mut().map(|ends| ends[from].sends(self.protocol, flags, payload)).collect());
        assert_eq!(sent.len(), connections.len(), "every packet goes on");
        for (ends, frame) in connections.iter_mut().zip(&sent) {
            let read = ReadPacket::of(frame);
            let other = &mut ends[1 - from];
            assert_eq!((read.key.source, read.key.destination), (other.peer, other.own));
            other.expected = read.next();
        }
    }

    /// Connections from SYN to the last ACK: a request and a response, then the client closes.
    fn tcp_connections(&self, stage: &mut ScriptedWorker, round: usize) {
        let mut connections = self.begin(stage, round);
        for (from, flags, payload) in [
            (CLIENT, ACK, 0),
            (CLIENT, ACK | PSH, 1),
            (BACKEND, ACK | PSH, 1),
            (CLIENT, ACK | FIN, 0),
            (BACKEND, ACK | FIN, 0),
            (CLIENT, ACK, 0),
        ] {
            self.exchange(stage, &mut connections, from, flags, payload);
        }
    }
}
