//! A worker behind its link layer: what comes in on a port, what goes out on which, down to the Ethernet addresses. The
//! errors and answers that a worker makes find their way like everything else.

use etherparse::PacketBuilder;
use hairpin_core::balance::Loads;
use hairpin_core::config::{Backend, BackendState, Forwarding, Pool, Service, Snapshot, UnknownPacket};
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::frame::{Batch, Frame, FrameIo, VecFrame};
use hairpin_core::l7::config::Kind;
use hairpin_core::link::{Link, LinkDrop, LinkOptions, LinkPlan, Neighbours, PortAddresses};
use hairpin_core::offload::Never;
use hairpin_core::table::slab::boxed;
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::{ErrorKind, Parsed, parse};
use hairpin_core::worker::{Worker, WorkerOptions};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

const OURS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const ROUTER: [u8; 6] = [2, 0, 0, 0, 1, 1];
const BACKEND: [u8; 6] = [2, 0, 0, 0, 1, 2];
const CLIENT: [u8; 4] = [198, 51, 100, 7];
const VIP: [u8; 4] = [192, 0, 2, 80];
const SERVER: [u8; 4] = [10, 1, 0, 9];

#[derive(Default)]
struct Wire {
    arriving: VecDeque<VecFrame>,
    sent: Vec<VecFrame>,
}

impl FrameIo for Wire {
    type Frame = VecFrame;
    fn receive(&mut self, out: &mut Batch<VecFrame>) {
        while !out.is_full()
            && let Some(frame) = self.arriving.pop_front()
        {
            out.push(frame);
        }
    }
    fn transmit(&mut self, batch: &mut Batch<VecFrame>) {
        self.sent.extend(batch.drain(..));
    }
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
}

/// Clients are behind a router at port 0, the backend is at port 1, whose MTU is 1400.
struct RoutedWorker {
    worker: Worker<Never>,
    link: Link<Wire>,
    now: Time,
}

fn snapshot() -> Arc<Snapshot> {
    let service = Service {
        state: Default::default(),
        name: "udp".into(),
        endpoint: Endpoint::new(Address::from_ipv4(VIP), 53),
        protocol: Protocol::Udp,
        kind: Kind::Forward,
        forwarding: Forwarding::Nat,
        algorithm: Default::default(),
        unknown: UnknownPacket::Drop,
        timeouts: Default::default(),
        access: None,
        limits: Default::default(),
        drain_limit: Duration::ZERO,
        all_down: Default::default(),
        backends: [Backend {
            number: 0,
            name: "one".into(),
            endpoint: Endpoint::new(Address::from_ipv4(SERVER), 5353),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        }]
        .into(),
        ..Service::vacant()
    };
    let pool = Pool { addresses: [].into(), port_first: 1024, port_last: 1031, time_wait: Duration::ZERO };
    Arc::new(Snapshot::new([service].into(), pool))
}

impl RoutedWorker {
    fn new() -> RoutedWorker {
        let ip = |octets: [u8; 4]| IpAddr::from(octets);
        let port = |number: usize, network, mtu, gateways: &[[u8; 4]]| PortAddresses {
            mac: OURS[number],
            mtu,
            networks: vec![(ip(network), 24)],
            gateways: gateways.iter().copied().map(ip).collect(),
        };
        let options = LinkOptions {
            ports: vec![port(0, [10, 0, 0, 1], 1500, &[[10, 0, 0, 254]]), port(1, [10, 1, 0, 1], 1400, &[])],
            local: vec![ip(VIP)],
            kept: vec![ip(SERVER)],
            ..LinkOptions::default()
        };
        let neighbours = Arc::new(Neighbours::new(64, [1, 2, 3, 4]));
        let link = Link::new(Arc::new(LinkPlan::new(&options).unwrap()), neighbours, Wire::default());
        let snapshot = snapshot();
        let worker = Worker::new(WorkerOptions {
            loads: Loads::new(snapshot.backends()),
            splices: hairpin_core::l7::splice::SplicedMemory::own(0),
            ..WorkerOptions::new(
                snapshot,
                boxed(64),
                AnyTable::new(128, Hasher::new([7, 2, 3, 4])),
                Never,
                [1, 2, 3, 4],
            )
        });
        let mut routed = RoutedWorker { worker, link, now: Time::from_nanos(1_000_000_000_000) };
        routed.iterate();
        routed.arp(0, ROUTER, [10, 0, 0, 254]);
        routed.arp(1, BACKEND, SERVER);
        routed.iterate();
        routed.link.io_mut().sent.clear();
        routed
    }

    /// As a main loop does.
    fn iterate(&mut self) {
        self.link.advance(self.now);
        let (mut received, mut to_send) = (Batch::new(), Batch::new());
        self.link.receive(&mut received);
        self.worker.handle_batch(self.now, &mut self.link, &mut received, &mut to_send);
        self.link.transmit(&mut to_send);
        assert!(to_send.is_empty());
        let statistics = self.link.statistics();
        assert_eq!(statistics.balance(), self.link.waiting() as u64, "{statistics:?}");
    }

    fn arp(&mut self, port: u16, from: [u8; 6], address: [u8; 4]) {
        let to = OURS[usize::from(port)];
        let bytes = [&to[..], &from, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &from, &address, &to, &[0; 4]].concat();
        self.arrives(port, bytes);
    }

    fn arrives(&mut self, port: u16, bytes: Vec<u8>) {
        let mut frame = VecFrame::new(&bytes);
        frame.meta.port = port;
        self.link.io_mut().arriving.push_back(frame);
    }

    /// A datagram at a port, and what is sent because of it within two iterations.
    fn datagram(&mut self, port: u16, ends: [([u8; 4], u16); 2], hops: u8, length: usize, dont: bool) -> Vec<VecFrame> {
        let [(source, source_port), (destination, port_to)] = ends;
        let from = if port == 0 { ROUTER } else { BACKEND };
        let mut ip = etherparse::Ipv4Header::new(0, hops, etherparse::IpNumber::UDP, source, destination).unwrap();
        ip.dont_fragment = dont;
        let builder = PacketBuilder::ethernet2(from, OURS[usize::from(port)])
            .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
            .udp(source_port, port_to);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &vec![7; length - 28]).unwrap();
        self.arrives(port, bytes);
        self.iterate();
        self.iterate();
        std::mem::take(&mut self.link.io_mut().sent)
    }
}

/// Port, Ethernet addresses (to, from).
fn hop(frame: &VecFrame) -> (u16, [u8; 6], [u8; 6]) {
    let bytes = frame.bytes();
    (frame.meta().port, bytes[..6].try_into().unwrap(), bytes[6..12].try_into().unwrap())
}

const ASK: [([u8; 4], u16); 2] = [(CLIENT, 5000), (VIP, 53)];
const ANSWER: [([u8; 4], u16); 2] = [(SERVER, 5353), (CLIENT, 5000)];

#[test]
fn both_directions_find_their_way() {
    let mut routed = RoutedWorker::new();
    let sent = routed.datagram(0, ASK, 64, 100, false);
    assert_eq!(hop(&sent[0]), (1, BACKEND, OURS[1]));
    let Ok(Parsed::Transport(at)) = parse(sent[0].bytes()) else { panic!() };
    assert_eq!(at.key.destination, Endpoint::new(Address::from_ipv4(SERVER), 5353));
    assert_eq!(at.ttl, 63);
    let sent = routed.datagram(1, ANSWER, 64, 100, false);
    assert_eq!(hop(&sent[0]), (0, ROUTER, OURS[0]));
    let Ok(Parsed::Transport(at)) = parse(sent[0].bytes()) else { panic!() };
    assert_eq!(at.key.source, Endpoint::new(Address::from_ipv4(VIP), 53));
}

#[test]
fn who_has_no_hops_left_is_told() {
    let mut routed = RoutedWorker::new();
    routed.datagram(0, ASK, 64, 100, false);
    let sent = routed.datagram(0, ASK, 1, 100, false);
    assert_eq!(hop(&sent[0]), (0, ROUTER, OURS[0]));
    let Ok(Parsed::IcmpError(error)) = parse(sent[0].bytes()) else { panic!() };
    assert_eq!((error.kind, error.source), (ErrorKind::TimeExceeded, Address::from_ipv4(VIP)));
    assert_eq!(error.destination, Address::from_ipv4(CLIENT));
}

#[test]
fn what_is_too_big_is_cut_up_or_its_sender_told() {
    let mut routed = RoutedWorker::new();
    routed.datagram(0, ASK, 64, 100, false);
    let sent = routed.datagram(0, ASK, 64, 1450, false);
    assert_eq!(sent.len(), 2);
    for piece in &sent {
        assert_eq!(hop(piece), (1, BACKEND, OURS[1]));
        assert_eq!(parse(piece.bytes()), Ok(Parsed::Fragment));
    }
    let sent = routed.datagram(0, ASK, 64, 1450, true);
    assert_eq!(sent.len(), 1);
    assert_eq!(hop(&sent[0]), (0, ROUTER, OURS[0]));
    let Ok(Parsed::IcmpError(error)) = parse(sent[0].bytes()) else { panic!() };
    assert_eq!(error.kind, ErrorKind::TooBig { mtu: 1400 });
    // about the packet as the client knows it
    assert_eq!(error.quoted.destination, Endpoint::new(Address::from_ipv4(VIP), 53));
    assert_eq!(error.quoted.source, Endpoint::new(Address::from_ipv4(CLIENT), 5000));
}

#[test]
fn packets_of_no_service_end_here() {
    let mut routed = RoutedWorker::new();
    let other = [(CLIENT, 5000), ([203, 0, 113, 9], 53)];
    assert!(routed.datagram(0, other, 64, 100, false).is_empty());
    assert_eq!(routed.link.statistics().dropped(LinkDrop::NotOurs), 1);
}
