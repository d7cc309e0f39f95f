//! Connections of direct server return that the programs set up without a worker.

use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed, v4, v6};
use crate::rig::{BACKEND_MAC, Buffer, CLIENT, KEY, REDIRECT, Rig, SHOT, VIP, XDP_PASS, command, in_namespace};
use crate::setup::{SetUpRig, balanced, same_rule, schedules};
use hairpin_core::balance::SCHEDULE_NONE;
use hairpin_core::config::{Algorithm, Encapsulation, Forwarding, Outer, Snapshot};
use hairpin_core::engine::{Begun, Fate, Report, Rule, SetUp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::rewrite::{Rewrite, lower_hops};
use hairpin_linux::abi::RULE_DIRECT;
use hairpin_linux::programs::SetUpRoom;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The client's first sequence number.
const FIRST: u32 = u32::MAX - 1;
const PACKETS: usize = 8;

/// The rig's services, with direct server return; wrapped, to backends behind a router.
fn direct(encapsulation: Encapsulation) -> Snapshot {
    let mut all = balanced(Algorithm::Maglev);
    for service in &mut all.services {
        service.forwarding = Forwarding::Direct;
        service.outer = Outer { encapsulation, port: 6080, source: None };
        for backend in &mut service.backends {
            let is_ipv4 = service.endpoint.address.is_ipv4();
            if encapsulation != Encapsulation::None {
                let far: IpAddr = if is_ipv4 { "10.3.0.2" } else { "fd03::2" }.parse().unwrap();
                backend.endpoint.address = Address::from(far);
            }
        }
    }
    Snapshot::new(all.services, all.pool)
}

fn with(encapsulation: Encapsulation, serve_for: Duration) -> SetUpRig {
    let mut rig = Rig::new(1, |options| {
        options.set_up = Some(SetUpRoom { pending: 2048, workers: 1 });
        options.serve_for = serve_for;
    });
    command("ip", &["route", "add", "10.3.0.0/24", "via", "10.2.0.2"]);
    command("ip", &["route", "add", "fd03::/64", "via", "fd02::2"]);
    assert!(rig.plane.allow_set_up(1).unwrap());
    SetUpRig::over(rig, 1, direct(encapsulation))
}

fn near() -> SetUpRig {
    with(Encapsulation::None, Duration::ZERO)
}

fn tcp(port: u16) -> FlowKey {
    v4(CLIENT, port, VIP, 80, Protocol::Tcp)
}

fn tcp6(port: u16) -> FlowKey {
    v6("fd01::2", port, "2001:db8::10", 80, Protocol::Tcp)
}

impl SetUpRig {
    /// A packet of a client, so far `ahead` of its first number.
    fn says(&self, key: FlowKey, flags: u8, ahead: u32) -> Packet {
        Packet { sequence: FIRST.wrapping_add(ahead), ..self.client(key, flags, 1) }
    }

    /// SYN and ACK pass, and the worker is told.
    fn begins(&mut self, key: FlowKey) -> u16 {
        self.passes(&self.says(key, SYN, 0));
        assert_eq!(self.told(0), []);
        self.passes(&self.says(key, ACK, 1));
        let backend = self.chosen(&key);
        let begun = Begun { backend, answered: true, proof: FIRST.wrapping_add(1), sent: 1 };
        assert_eq!(self.told(0), [Report::Begun { key, begun }]);
        backend
    }

    /// The cell of the client is that of a connection in the worker's table.
    fn know(&self, key: &FlowKey) {
        let known = self.rig.plane.control().known();
        known[Steering::by_hash(KEY, 1).hash(&key.source) as usize & (known.len() - 1)].store(1, Ordering::Relaxed);
    }
}

#[test]
fn setup_direct_rule_comes_with_the_eighth_packet() {
    in_namespace(|| {
        let mut all = near();
        for key in [tcp(1000), tcp6(1000), v4(CLIENT, 1000, VIP, 80, Protocol::Udp)] {
            let before = all.installed();
            let is_tcp = key.protocol == Protocol::Tcp;
            let backend = if is_tcp { all.begins(key) } else { all.chosen(&key) };
            for _ in if is_tcp { 2 } else { 0 }..PACKETS - 1 {
                all.passes(&all.says(key, ACK, 1));
            }
            assert_eq!((all.installed(), all.told(0)), (before, vec![]));
            all.passes(&all.says(key, ACK, 1));
            let set_up = SetUp { key, backend, answered: is_tcp };
            assert_eq!((all.installed(), all.told(0)), (before + 1, vec![Report::SetUp(set_up)]));
            let destination = all.snapshot.backend(backend).unwrap().1.endpoint;
            let rewrite = Rewrite { source: key.source, destination, ..Rewrite::default() };
            let total = u32::from(backend) * 2;
            let rule = Rule { key, rewrite, fate: Fate::Direct, total, at_once: true, ..Rule::default() };
            same_rule(&all.rig, &rule, 0);
            assert_eq!(all.workers[0].take(&key), None, "no longer half-open");
            // The next hop is known: the frame has its MACs.
            let frame = all.send(&all.says(key, ACK, 1)).0.unwrap();
            assert_eq!(frame[..12], [BACKEND_MAC, all.rig.right.mac].concat());
        }
    });
}

#[test]
fn setup_direct_packets_are_wrapped() {
    for encapsulation in [Encapsulation::Ipip, Encapsulation::Gue] {
        in_namespace(move || {
            let mut all = with(encapsulation, Duration::ZERO);
            for (key, ip) in [(tcp(1000), 20), (tcp6(1000), 40)] {
                let overhead = if encapsulation == Encapsulation::Gue { ip + 8 } else { ip };
                for number in 0..PACKETS + 2 {
                    let packet = all.says(key, if number == 0 { SYN } else { ACK }, u32::from(number > 0));
                    let mut expected = packet.clone().to(all.rig.left.mac).frame();
                    let at = parsed(&expected);
                    lower_hops(&mut expected, &at);
                    let (sent, events) = all.send(&packet);
                    let sent = sent.unwrap_or_else(|worker| panic!("{number} at {worker:?}: {events:?}"));
                    assert_eq!(sent[14 + overhead..], expected[14..], "{number}");
                }
                let told = all.told(0);
                assert!(matches!(told[..], [Report::Begun { .. }, Report::SetUp(_)]), "{told:?}");
                let head = all.rig.head(&key);
                assert_eq!(head.flags & RULE_DIRECT, RULE_DIRECT);
                assert_eq!(all.rig.next_hop(&head).map(|next_hop| next_hop.wrapped), Some(1));
            }
            // One that has no room for the outer headers is the worker's.
            let key = tcp(1001);
            let overhead = if encapsulation == Encapsulation::Gue { 28 } else { 20 };
            all.begins_wrapped(key);
            let long = |length: usize| Packet { payload: vec![1; length - 40], ..all.says(key, ACK, 1) };
            assert!(all.send(&long(1500 - overhead)).0.is_ok());
            assert_eq!(all.deferred(&long(1501 - overhead)), ["set-up-deferred", "to-worker"]);
            // And so are those that follow.
            assert_eq!(all.deferred(&all.says(key, ACK, 1)), ["to-worker"]);
        });
    }
}

impl SetUpRig {
    fn begins_wrapped(&mut self, key: FlowKey) {
        assert!(self.send(&self.says(key, SYN, 0)).0.is_ok());
        assert!(self.send(&self.says(key, ACK, 1)).0.is_ok());
        self.told(0);
    }
}

#[test]
fn setup_direct_flood_of_handshakes_makes_no_rule() {
    in_namespace(|| {
        let mut all = near();
        all.workers[0].grant(1000);
        for n in 0..500u16 {
            let key = v4([10, 1, (n >> 8) as u8, n as u8], 9999, VIP, 80, Protocol::Tcp);
            all.passes(&all.says(key, SYN, 0));
            all.passes(&all.says(key, ACK, 1));
        }
        assert_eq!((all.installed(), all.told(0).len()), (0, 500));
        // Where the worker has no room, it has the ACK and the next SYN itself.
        all.workers[0].grant(1);
        all.passes(&all.says(tcp(1), SYN, 0));
        all.passes(&all.says(tcp(2), SYN, 0));
        all.passes(&all.says(tcp(1), ACK, 1));
        let refused = ["set-up-deferred", "set-up-no-room", "to-worker"];
        assert_eq!(all.deferred(&all.says(tcp(2), ACK, 1)), refused);
        assert_eq!(all.deferred(&all.says(tcp(3), SYN, 0)), refused);
        assert!(all.workers[0].take(&tcp(2)).is_some_and(|begun| !begun.answered), "the worker goes on with it");
        // SYNs of what has not gone on turn over what is half-open alone, and the policer holds them back.
        all.rig.plane.control().set_client_rate(0, 0);
        std::thread::sleep(Duration::from_millis(5));
        let syn = all.says(tcp(30_000), SYN, 0).to(all.rig.left.mac).frame();
        assert!((0..200).any(|_| all.rig.ingress(&syn).verdict == SHOT));
    });
}

#[test]
fn setup_direct_numbers_out_of_place_are_the_workers() {
    in_namespace(|| {
        let mut all = near();
        let deferred = ["set-up-deferred", "to-worker"];
        // Before the client has gone on: it stays with what has begun, for the worker to take.
        all.passes(&all.says(tcp(1), SYN, 0));
        for (flags, ahead) in [(ACK, 0), (ACK, 1 | 1 << 16), (RST, 1), (FIN | ACK, 1), (SYN | ACK, 0), (0, 1)] {
            assert_eq!(all.deferred(&all.says(tcp(1), flags, ahead)), deferred, "{flags:#x} at {ahead}");
        }
        // Another SYN has another number.
        all.passes(&all.says(tcp(1), SYN, 77));
        let begun = Begun { backend: all.chosen(&tcp(1)), answered: false, proof: FIRST.wrapping_add(78), sent: 2 };
        assert_eq!(all.workers[0].take(&tcp(1)), Some(begun));
        // After that the worker has it, and nothing may overtake.
        for (port, (flags, ahead)) in (2..).zip([(RST, 1 << 21), (FIN | ACK, 1 << 31), (SYN, 9), (SYN | RST, 1)]) {
            all.begins(tcp(port));
            assert_eq!(all.deferred(&all.says(tcp(port), flags, ahead)), deferred, "{flags:#x} at {ahead}");
            assert_eq!(all.deferred(&all.says(tcp(port), ACK, 1)), ["to-worker"]);
        }
        // Hops used up, and a tag in band.
        all.begins(tcp(100));
        assert_eq!(all.deferred(&Packet { ttl: 1, ..all.says(tcp(100), ACK, 1) }), deferred);
        let tagged = Packet { tags: vec![[0x81, 0, 0, 7]], ..all.says(tcp(101), SYN, 0) };
        assert_eq!(all.deferred(&tagged), deferred);
        assert_eq!((all.installed(), all.told(0)), (0, vec![]));
    });
}

#[test]
fn setup_direct_ends_are_told_and_clients_begin_anew() {
    in_namespace(|| {
        let mut all = near();
        let segment = |key, flags| Report::Segment { key, flags };
        for (key, flags) in [(tcp(1000), FIN | ACK), (tcp(1001), RST), (tcp6(1000), FIN | ACK)] {
            let backend = all.begins(key);
            all.know(&key);
            let (sent, events) = all.send(&all.says(key, flags, 1));
            assert_eq!((sent.is_ok(), events), (true, vec!["followed"]));
            assert_eq!(all.told(0), [segment(key, flags)]);
            // The last ACKs pass, however many, and make no rule.
            for _ in 0..20 {
                all.passes(&all.says(key, ACK, 2));
            }
            assert_eq!((all.installed(), all.told(0)), (0, vec![]));
            // The worker may remember it: the SYN goes to the same backend, and it hears the number.
            all.passes(&all.says(key, SYN, 5000));
            let anew = Begun { backend, answered: false, proof: FIRST.wrapping_add(5001), sent: 1 };
            assert_eq!(all.told(0), [Report::Begun { key, begun: anew }]);
            all.passes(&all.says(key, ACK, 5001));
            assert_eq!(all.told(0), [Report::Begun { key, begun: Begun { answered: true, ..anew } }]);
        }
        // One whose backend takes no connections begins with the worker.
        let key = tcp(1002);
        let backend = all.begins(key);
        all.know(&key);
        all.passes(&all.says(key, FIN | ACK, 1));
        all.told(0);
        let mut drained = schedules(&all.snapshot);
        drained[0].1.iter_mut().for_each(|entry| *entry = if *entry == backend { SCHEDULE_NONE } else { *entry });
        all.rig.plane.schedule(&drained).unwrap();
        assert_eq!(all.deferred(&all.says(key, SYN, 5000)), ["to-worker"]);
        assert_eq!(all.deferred(&all.says(key, ACK, 5001)), ["to-worker"], "nothing is left of it");
    });
}

#[test]
fn setup_direct_rules_take_ends_and_syns() {
    in_namespace(|| {
        let mut all = near();
        let key = tcp(1000);
        all.begins(key);
        (2..PACKETS).for_each(|_| assert_eq!(all.passes(&all.says(key, ACK, 1)), key));
        all.told(0);
        for flags in [FIN | ACK, RST, SYN] {
            let (sent, events) = all.send(&all.says(key, flags, 1));
            assert_eq!((sent.is_ok(), events), (true, vec!["followed"]));
            assert_eq!(all.told(0), [Report::Segment { key, flags }]);
        }
        assert_eq!(all.deferred(&all.says(key, SYN | ACK, 1)), ["rule-flags", "to-worker"]);
        all.rig.plane.suspend_set_up();
        assert_eq!(all.deferred(&all.says(key, SYN, 1)), ["rule-flags", "to-worker"]);
        assert_eq!(all.rig.xdp(&all.says(key, FIN | ACK, 1).to(all.rig.left.mac).frame(), true).verdict, XDP_PASS);
    });
}

#[test]
fn setup_direct_segments_of_super_packets_count() {
    in_namespace(|| {
        let mut all = near();
        let key = tcp(1000);
        all.begins(key);
        let packet = Packet { payload: vec![1; 2800], ..all.says(key, ACK, 1) };
        let frame = packet.to(all.rig.left.mac).frame();
        let buffer = Buffer { gso_size: 1400, gso_segs: 2, ..Buffer::default() };
        let mut expected = frame.clone();
        let at = parsed(&expected);
        lower_hops(&mut expected, &at);
        for _ in 0..2 {
            let run = all.rig.ingress_as(&frame, buffer).unwrap();
            assert_eq!((run.verdict, &run.frame[12..], all.installed()), (REDIRECT, &expected[12..], 0));
        }
        // The seventh and the eighth.
        assert_eq!(all.rig.ingress_as(&frame, buffer).unwrap().verdict, REDIRECT);
        assert_eq!((all.installed(), all.rig.head(&key).packets), (1, 2));
        let total = all.rig.plane.totals(40).unwrap()[2 * usize::from(all.chosen(&key))];
        assert_eq!(total.packets, 8);
    });
}

#[test]
fn setup_direct_leads_to_no_router() {
    in_namespace(|| {
        let mut all = near();
        let mut snapshot = direct(Encapsulation::None);
        let far: IpAddr = "10.3.0.2".parse().unwrap();
        snapshot.services[0].backends.iter_mut().for_each(|backend| backend.endpoint.address = Address::from(far));
        all.rig.plane.configure_backends(&snapshot).unwrap();
        all.rig.plane.configure(&snapshot).unwrap();
        all.rig.plane.schedule(&schedules(&snapshot)).unwrap();
        assert_eq!(all.deferred(&all.says(tcp(1), SYN, 0)), ["set-up-deferred", "to-worker"]);
        assert_eq!(all.told(0), []);
    });
}

#[test]
fn setup_direct_goes_on_without_a_process() {
    in_namespace(|| {
        // The last sign of life counts as one at the machine's start.
        let mut all = with(Encapsulation::None, Duration::from_secs(40 * 86_400));
        all.begins(tcp(1));
        all.rig.stop_beating();
        // What has begun gets its rule; other connections begin, end, and begin anew; the next process is told.
        (2..PACKETS).for_each(|_| assert_eq!(all.passes(&all.says(tcp(1), ACK, 1)), tcp(1)));
        assert_eq!(all.installed(), 1);
        all.told(0);
        all.begins(tcp(2));
        all.passes(&all.says(tcp(2), SYN, 99));
        all.know(&tcp(2));
        all.passes(&all.says(tcp(2), FIN | ACK, 1));
        all.passes(&all.says(tcp(2), SYN, 100));
        let told = all.told(0);
        assert!(matches!(told[..], [Report::Segment { .. }, Report::Begun { .. }]), "{told:?}");
        // A full queue delays no end.
        all.begins(tcp(3));
        while all.send(&all.says(tcp(3), FIN | ACK, 1)).1 == ["followed"] {}
        let (sent, events) = all.send(&all.says(tcp(3), FIN | ACK, 1));
        assert_eq!((sent.is_ok(), events), (true, vec!["reports-full"]));
    });
}

#[test]
fn setup_direct_and_nat_stand_beside_each_other() {
    in_namespace(|| {
        let mut all = near();
        let mut snapshot = balanced(Algorithm::Maglev);
        snapshot.services[0].forwarding = Forwarding::Direct;
        // Its first backend is another service's, too.
        let of_direct = snapshot.services[0].backends[0].endpoint;
        snapshot.services[3].forwarding = Forwarding::Nat;
        snapshot.services[3].backends[0].endpoint = of_direct;
        all.rig.plane.configure_backends(&snapshot).unwrap();
        all.rig.plane.configure(&snapshot).unwrap();
        all.rig.plane.schedule(&schedules(&snapshot)).unwrap();
        all.begins(tcp(1));
        let other = v4(CLIENT, 2, VIP, 81, Protocol::Tcp);
        let backend: Endpoint = all.passes(&all.client(other, SYN, 0)).destination;
        assert_eq!(backend, of_direct);
        let back = FlowKey { source: backend, destination: other.source, protocol: Protocol::Tcp };
        assert_eq!(all.passes(&all.client(back, SYN | ACK, 1001)).source, other.destination);
        assert_eq!(all.passes(&all.client(other, ACK, 1001)).destination, backend);
        assert_eq!(all.installed(), 2);
    });
}
