//! The monitor's programs: which packets are counted, in which flow, as how many, and what they show of a connection.

use crate::packet::{ACK, FIN, Packet, RST, SYN, v4, v6};
use crate::rig::{Buffer, CLIENT, LOOPBACK, OK, Rig, VIP, attach_modes, command, devices, in_namespace, run};
use crate::wire::{Link, Vnet};
use hairpin_core::flow::{Address, FlowKey, Protocol};
use hairpin_core::l7::config::Network;
use hairpin_linux::monitor::{FlowCount, FlowEnds, FlowEvent, FlowFilter, FlowHalf, FlowMonitor, clean};
use hairpin_linux::programs::AttachMode;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

const IPV4_TCP: u64 = 20 + 20;
const PAYLOAD: u64 = 7;

fn all() -> FlowFilter {
    FlowFilter { networks: Vec::new(), ports: Vec::new(), protocols: Vec::new(), handshake: true, resent: true }
}

fn monitor() -> FlowMonitor {
    FlowMonitor::load(&all(), 64).unwrap()
}

fn key() -> FlowKey {
    v4(CLIENT, 40_000, VIP, 80, Protocol::Tcp)
}

fn reply(key: &FlowKey) -> FlowKey {
    FlowKey { source: key.destination, destination: key.source, protocol: key.protocol }
}

/// Runs the program for what comes in, or for what leaves, on a frame; it must be let on as it is.
fn pass_as(monitor: &FlowMonitor, out: bool, frame: &[u8], buffer: Buffer) {
    let program = monitor.programs()[usize::from(out)];
    let result = run(program.as_fd(), frame, LOOPBACK, Buffer { mark: 7, ..buffer }).unwrap();
    assert_eq!((result.verdict, &result.frame[..], result.mark), (OK, frame, 7));
}

fn pass(monitor: &FlowMonitor, out: bool, packet: &Packet) {
    pass_as(monitor, out, &packet.frame(), Buffer::default());
}

/// All flows there are.
fn flows(monitor: &FlowMonitor) -> Vec<(FlowEnds, FlowCount)> {
    let mut flows = Vec::new();
    monitor.each(|ends, count| flows.push((*ends, *count))).unwrap();
    flows
}

fn only(monitor: &FlowMonitor) -> (FlowEnds, FlowCount) {
    let flows = flows(monitor);
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows[0]
}

fn counts(half: &FlowHalf) -> (u64, u64) {
    (half.packets, half.bytes)
}

#[test]
fn both_directions_of_a_connection_are_one_flow() {
    in_namespace(|| {
        let monitor = monitor();
        pass(&monitor, false, &Packet::new(key()));
        pass(&monitor, false, &Packet { sequence: 1007, ..Packet::new(key()) });
        pass(&monitor, true, &Packet { payload: vec![1; 100], ..Packet::new(reply(&key())) });
        let (ends, count) = only(&monitor);
        assert_eq!((ends.far(), ends.far_port()), (Address::from_ipv4(CLIENT), 40_000));
        assert_eq!((ends.near(), ends.near_port()), (Address::from_ipv4(VIP), 80));
        assert_eq!((ends.ifindex, ends.protocol), (LOOPBACK, 6));
        assert_eq!(counts(&count.inward), (2, 2 * (IPV4_TCP + PAYLOAD)));
        assert_eq!(counts(&count.outward), (1, IPV4_TCP + 100));
        assert!(count.inward.first > 0 && count.inward.first < count.inward.last);
        assert!(count.outward.first >= count.inward.last);
        assert_eq!((count.inward.tcp_flags(), count.is_opened_inward()), (ACK, None));
        // The same ends, sent out by this interface: what a one-armed balancer does is another flow.
        pass(&monitor, true, &Packet::new(key()));
        assert_eq!(flows(&monitor).len(), 2);
    });
}

#[test]
fn super_packets_count_as_the_wire_has_them() {
    in_namespace(|| {
        let monitor = monitor();
        let packet = Packet { payload: vec![9; 420], ..Packet::new(key()) };
        let gso = |gso_segs| Buffer { gso_size: 140, gso_segs, ..Buffer::default() };
        pass_as(&monitor, false, &packet.frame(), gso(3));
        assert_eq!(counts(&only(&monitor).1.inward), (3, 420 + 3 * IPV4_TCP));
        // A virtual machine need not say how many.
        pass_as(&monitor, false, &Packet { sequence: 1420, ..packet }.frame(), gso(0));
        assert_eq!(counts(&only(&monitor).1.inward), (6, 2 * (420 + 3 * IPV4_TCP)));
        let udp = v6("fd01::2", 5000, "fd02::2", 53, Protocol::Udp);
        let packet = Packet { payload: vec![1; 250], ..Packet::new(udp) };
        pass_as(&monitor, true, &packet.frame(), Buffer { gso_size: 100, gso_segs: 3, ..Buffer::default() });
        let found = flows(&monitor).into_iter().find(|(ends, _)| ends.protocol == 17).unwrap().1;
        assert_eq!(counts(&found.outward), (3, 250 + 3 * 48));
    });
}

#[test]
fn tags_options_and_extension_headers_are_seen_through() {
    in_namespace(|| {
        for tags in [vec![], vec![[0x81, 0, 0, 7]], vec![[0x88, 0xa8, 0, 9], [0x81, 0, 0, 7]]] {
            let monitor = monitor();
            let packet = Packet { tags, ip_options: vec![1; 8], tcp_options: vec![1; 12], ..Packet::new(key()) };
            pass(&monitor, false, &packet);
            let (ends, count) = only(&monitor);
            assert_eq!((ends.near_port(), count.inward.bytes), (80, IPV4_TCP + 20 + PAYLOAD));
        }
        let monitor = monitor();
        let key6 = v6("fd01::2", 40_000, "2001:db8::10", 443, Protocol::Tcp);
        let extension = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let extensions = [extension(60), extension(60), extension(6)].concat();
        pass(&monitor, false, &Packet { extensions, ..Packet::new(key6) });
        pass(&monitor, false, &Packet::new(key6));
        let (ends, count) = only(&monitor);
        assert_eq!((ends.far_port(), ends.near_port(), ends.protocol), (40_000, 443, 6));
        assert_eq!(counts(&count.inward), (2, 2 * (60 + PAYLOAD) + 24));
    });
}

#[test]
fn fragments_icmp_and_other_protocols_have_flows() {
    in_namespace(|| {
        let monitor = monitor();
        let key = v4(CLIENT, 5000, VIP, 53, Protocol::Udp);
        let mut first = Packet { payload: vec![0; 100], ..Packet::new(key) }.frame();
        first[20] = 0x20; // more fragments
        pass_as(&monitor, false, &first, Buffer::default());
        let mut second = first.clone();
        (second[20], second[21]) = (0, 16);
        pass_as(&monitor, false, &second, Buffer::default());
        let ports: Vec<(u16, u16)> =
            flows(&monitor).iter().map(|(ends, _)| (ends.far_port(), ends.near_port())).collect();
        assert!(ports.len() == 2 && ports.contains(&(5000, 53)) && ports.contains(&(0, 0)), "{ports:?}");

        let mut other = Packet::new(key).frame();
        for (protocol, near) in [(1, 8 << 8), (47, 0), (132, 0)] {
            let monitor = FlowMonitor::load(&all(), 16).unwrap();
            other[23] = protocol;
            (other[34], other[35]) = (8, 0);
            pass_as(&monitor, false, &other, Buffer::default());
            let (ends, _) = only(&monitor);
            assert_eq!((ends.protocol, ends.far_port(), ends.near_port()), (protocol, 0, near));
        }
    });
}

#[test]
fn what_is_no_packet_is_let_on_and_not_counted() {
    in_namespace(|| {
        let monitor = monitor();
        let whole = Packet::new(key()).frame();
        let mut arp = whole.clone();
        arp[13] = 6;
        pass_as(&monitor, false, &arp, Buffer::default());
        assert_eq!(monitor.incidents().unwrap().malformed, 0);
        // Too short for its headers, or for what they say; bytes of impossible values.
        pass_as(&monitor, false, &whole[..45], Buffer::default());
        pass_as(&monitor, true, &whole[..whole.len() - 1], Buffer::default());
        for (at, value) in [(14, 0x41), (14, 0x65), (46, 0x10), (46, 0xf0), (17, 10)] {
            let mut broken = whole.clone();
            broken[at] = value;
            pass_as(&monitor, false, &broken, Buffer::default());
        }
        assert_eq!((flows(&monitor).len(), monitor.incidents().unwrap().malformed), (0, 7));
    });
}

#[test]
fn filter_admits_by_network_port_and_protocol() {
    in_namespace(|| {
        let network = |text: &str, prefix| Network { address: text.parse::<IpAddr>().unwrap().into(), prefix };
        let admits = |filter: FlowFilter, key: FlowKey| {
            let monitor = FlowMonitor::load(&filter, 16).unwrap();
            pass(&monitor, false, &Packet::new(key));
            let inward = flows(&monitor).len();
            pass(&monitor, true, &Packet::new(reply(&key)));
            assert_eq!(flows(&monitor).len(), inward, "the other direction");
            inward == 1
        };
        let udp = v4(CLIENT, 5000, VIP, 53, Protocol::Udp);
        let key6 = v6("fd01::2", 40_000, "2001:db8::10", 443, Protocol::Tcp);
        let networks = |networks: &[Network]| FlowFilter { networks: networks.to_vec(), ..all() };
        for (inside, filter) in [
            (true, networks(&[network("10.1.0.0", 112)])),
            (true, networks(&[network("192.0.2.10", 128)])),
            (false, networks(&[network("192.0.2.11", 128), network("2001:db8::", 32)])),
        ] {
            assert_eq!(admits(filter, key()), inside);
        }
        assert!(admits(networks(&[network("2001:db8::", 32)]), key6));
        let ports = |ports: &[(u16, u16)]| FlowFilter { ports: ports.iter().map(|(a, b)| *a..=*b).collect(), ..all() };
        assert!(admits(ports(&[(80, 80)]), key()) && admits(ports(&[(1, 2), (39_999, 40_001)]), key()));
        assert!(!admits(ports(&[(81, 39_999), (0, 79)]), key()) && admits(ports(&[(0, 65_535)]), key6));
        let protocols = |protocols: &[u8]| FlowFilter { protocols: protocols.to_vec(), ..all() };
        assert!(admits(protocols(&[17]), udp) && !admits(protocols(&[17]), key()));
        assert!(admits(protocols(&[6, 58, 255]), key()));
        // All of them together.
        let both = FlowFilter { ports: vec![53..=53], ..networks(&[network("10.1.0.0", 112)]) };
        assert!(admits(both.clone(), udp) && !admits(both, key()));
    });
}

#[test]
fn handshake_is_timed_unless_a_segment_was_repeated() {
    in_namespace(|| {
        let handshake = |again: Option<usize>, inward: bool| {
            let monitor = monitor();
            let (client, server) = (key(), reply(&key()));
            let segments = [
                Packet { flags: SYN, payload: vec![], ..Packet::new(client) },
                Packet { flags: SYN | ACK, payload: vec![], ..Packet::new(server) },
                Packet { sequence: 1001, payload: vec![], ..Packet::new(client) },
            ];
            for (number, segment) in segments.iter().enumerate() {
                let out = (number == 1) == inward;
                pass(&monitor, out, segment);
                if again == Some(number) {
                    pass(&monitor, out, segment);
                }
            }
            only(&monitor).1
        };
        for inward in [true, false] {
            let count = handshake(None, inward);
            assert_eq!(count.is_opened_inward(), Some(inward));
            assert!(count.server_round_trip().unwrap() > 0 && count.client_round_trip().unwrap() > 0);
            let again = handshake(Some(0), inward);
            assert!(again.server_round_trip().is_none() && again.client_round_trip().is_some());
            let again = handshake(Some(1), inward);
            assert!(again.server_round_trip().is_some() && again.client_round_trip().is_none());
        }
        let monitor = FlowMonitor::load(&FlowFilter { handshake: false, ..all() }, 16).unwrap();
        pass(&monitor, false, &Packet { flags: SYN, ..Packet::new(key()) });
        assert_eq!(only(&monitor).1.is_opened_inward(), None);
    });
}

#[test]
fn packets_with_nothing_new_are_counted_as_resent() {
    in_namespace(|| {
        let monitor = monitor();
        let resent = |monitor: &FlowMonitor| only(monitor).1.inward.resent;
        let segment = |sequence: u32, bytes: usize| Packet { sequence, payload: vec![0; bytes], ..Packet::new(key()) };
        let start = u32::MAX - 500;
        // Sequence numbers wrap, and a pure acknowledgement has none of its own.
        for sequence in [start, start.wrapping_add(300), start.wrapping_add(600)] {
            pass(&monitor, false, &segment(sequence, 300));
            pass(&monitor, false, &segment(sequence, 0));
        }
        assert_eq!(resent(&monitor), 0);
        pass(&monitor, false, &segment(start.wrapping_add(300), 300));
        assert_eq!(resent(&monitor), 1);
        // Of a super-packet, as many segments as are old.
        let gso = Buffer { gso_size: 300, gso_segs: 4, ..Buffer::default() };
        pass_as(&monitor, false, &segment(start.wrapping_add(300), 1200).frame(), gso);
        assert_eq!(resent(&monitor), 3);
        // A probe of an idle connection carries nothing, a reset may be numbered in any way.
        pass(&monitor, false, &segment(start.wrapping_add(1499), 0));
        pass(&monitor, false, &Packet { flags: RST, ..segment(0, 0) });
        pass(&monitor, false, &segment(start.wrapping_add(1500), 10));
        assert_eq!(resent(&monitor), 3);
        let monitor = FlowMonitor::load(&FlowFilter { resent: false, ..all() }, 16).unwrap();
        (0..3).for_each(|_| pass(&monitor, false, &segment(1, 100)));
        assert_eq!((resent(&monitor), only(&monitor).1.inward.packets), (0, 3));
    });
}

#[test]
fn ends_are_told_and_a_new_connection_is_kept_apart() {
    in_namespace(|| {
        let monitor = monitor();
        let mut news = monitor.news().unwrap();
        let (client, server) = (key(), reply(&key()));
        let open = Packet { flags: SYN, payload: vec![], ..Packet::new(client) };
        pass(&monitor, false, &open);
        pass(&monitor, false, &Packet { flags: FIN | ACK, ..Packet::new(client) });
        assert!(news.take().unwrap().is_empty() && !only(&monitor).1.is_ended(), "one end goes on");
        pass(&monitor, true, &Packet { flags: FIN | ACK, ..Packet::new(server) });
        let (ends, count) = only(&monitor);
        assert!(count.is_ended());
        assert_eq!(news.take().unwrap(), [FlowEvent::Ended(ends)]);
        // Last packets belong to it, and it does not end twice.
        pass(&monitor, false, &Packet::new(client));
        pass(&monitor, false, &Packet { flags: RST, ..Packet::new(client) });
        assert!(news.take().unwrap().is_empty());
        pass(&monitor, false, &open);
        let heard = news.take().unwrap();
        let [FlowEvent::Former(of, former)] = heard[..] else { panic!("{heard:?}") };
        assert_eq!((of, former.inward.packets, former.outward.packets), (ends, 4, 1));
        assert_eq!(former.inward.bytes, 4 * IPV4_TCP + 3 * PAYLOAD);
        assert_eq!(former.inward.tcp_flags(), SYN | FIN | ACK | RST);
        let (_, count) = only(&monitor);
        assert_eq!((counts(&count.inward), count.outward.packets), ((1, IPV4_TCP), 0));
        assert!(!count.is_ended() && count.inward.first > former.inward.last);
        // A reset ends it at once.
        pass(&monitor, true, &Packet { flags: RST | ACK, ..Packet::new(server) });
        assert_eq!(news.take().unwrap(), [FlowEvent::Ended(ends)]);
        assert_eq!(monitor.take(&ends).unwrap().map(|count| count.outward.packets), Some(1));
        assert!(monitor.take(&ends).unwrap().is_none() && flows(&monitor).is_empty());
    });
}

#[test]
fn flows_beyond_the_room_are_counted_together_and_others_go_on() {
    in_namespace(|| {
        let room = 8;
        let monitor = FlowMonitor::load(&all(), room).unwrap();
        let packet = |port: u16| Packet::new(v4(CLIENT, port, VIP, 80, Protocol::Udp));
        (0..20).for_each(|port| pass(&monitor, false, &packet(1000 + port)));
        pass(&monitor, false, &packet(1000));
        let incidents = monitor.incidents().unwrap();
        assert_eq!(flows(&monitor).len(), room as usize);
        assert_eq!((incidents.no_room_packets, incidents.no_room_bytes), (12, 12 * (28 + PAYLOAD)));
        let sum: u64 = flows(&monitor).iter().map(|(_, count)| count.inward.packets).sum();
        assert_eq!(sum + incidents.no_room_packets, 21);
    });
}

/// Sends a packet to the interface `left`; whether the monitor there has counted it.
fn sees(monitor: &FlowMonitor, near: &Link, frame: &[u8]) -> bool {
    let count = |monitor: &FlowMonitor| flows(monitor).iter().map(|(_, count)| count.inward.packets).sum::<u64>();
    let before = count(monitor);
    near.send(&Vnet::default(), frame);
    count(monitor) > before
}

#[test]
fn monitor_sees_what_is_redirected_and_leaves_nothing_behind() {
    for mode in attach_modes() {
        in_namespace(move || {
            let rig = Rig::new(1, |options| options.attach = mode);
            let notes = rig.plane.monitors_path();
            let near = Link::open("left-peer");
            let frame = Packet { flags: SYN, ..Packet::new(key()) }.to(rig.left.mac).frame();
            let filters = || command("tc", &["filter", "show", "dev", "left", "ingress"]);
            let before = filters();
            let mut monitor = monitor();
            assert!(!sees(&monitor, &near, &frame));
            monitor.attach(rig.left.index, mode, &notes).unwrap();
            assert!(sees(&monitor, &near, &frame), "{mode:?}: a miss, which goes to a worker's device");
            // The programs of balancing are attached anew behind it.
            let mut rig = rig;
            rig.plane.attach(0, rig.left.index, rig.left.mac).unwrap();
            assert!(sees(&monitor, &near, &frame));
            monitor.detach().unwrap();
            assert!(!sees(&monitor, &near, &frame));
            assert_eq!(filters(), before);
            assert!(std::fs::read_dir(&notes).map_or(0, Iterator::count) == 0, "{mode:?}");
            rig.plane.detach().unwrap();
        });
    }
}

#[test]
fn filters_of_a_killed_process_are_found_and_removed() {
    in_namespace(|| {
        let (left, _) = devices();
        command("mount", &["-t", "bpf", "bpf", "/sys/fs/bpf"]);
        let notes = Path::new("/sys/fs/bpf/notes");
        let near = Link::open("left-peer");
        let frame = Packet::new(key()).to(left.mac).frame();
        let mut killed = monitor();
        killed.attach(left.index, AttachMode::Clsact, notes).unwrap();
        assert!(sees(&killed, &near, &frame));
        // The next one takes its place, and it does not take the next one away.
        let mut next = monitor();
        next.attach(left.index, AttachMode::Clsact, notes).unwrap();
        killed.detach().unwrap();
        assert!(sees(&next, &near, &frame) && !sees(&killed, &near, &frame));
        clean(notes).unwrap();
        assert!(!sees(&next, &near, &frame));
        assert!(!command("tc", &["qdisc", "show", "dev", "left"]).contains("clsact"));
        next.detach().unwrap();
        clean(Path::new("/sys/fs/bpf/none")).unwrap();
    });
}
