//! Packets to terminated services, whose connections end at sockets of this host.

use crate::misses::{icmp, offer, packet_with, untouched};
use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed, v4, v6};
use crate::rig::{BACKEND, CLIENT, OK, REDIRECT, Rig, SHOT, VIP, command, in_namespace, snapshot};
use crate::wire::{Link, Vnet};
use hairpin_core::config::{ServiceState, Snapshot};
use hairpin_core::flow::{Endpoint, FlowKey, Protocol};
use hairpin_core::l7::config::{Edits, Forwarded, Http, HttpLimits, Kind, Terminated, Tls};
use hairpin_core::time::Duration;
use hairpin_core::wire::{Parsed, parse};
use hairpin_linux::network::local_route;
use hairpin_linux::programs::Absent;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

const VIP6: &str = "2001:db8::10";
/// The service of this port is spliced; it shares the IPv4 VIP.
const SPLICED: u16 = 81;

fn kind() -> Kind {
    Kind::Terminated(Box::new(Terminated {
        http: Http {
            answers: Default::default(),
            access: [].into(),
            routes: [].into(),
            edits: Edits::default(),
            forwarded: Forwarded::default(),
            sticky: None,
            request_id: None,
            tracing: None,
            server_timing: false,
            upgrade: false,
            connect: false,
            proxy_protocol: None,
            reuse: true,
            limits: HttpLimits::default(),
            offload_bytes_min: None,
            timestamps: true,
        },
        tls: true,
        http2: true,
    }))
}

/// TCP port 80 of both VIPs is terminated.
fn configuration() -> Snapshot {
    let mut terminated = snapshot();
    for service in [0, 2] {
        terminated.services[service].kind = kind();
    }
    terminated.services[3].kind = Kind::Tls(Box::new(Tls {
        routes: [].into(),
        proxy_protocol: None,
        is_plain: false,
        hello_bytes_max: 512,
        hello_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(1),
        connect_tries: 1,
        offload_bytes_min: None,
        timestamps: true,
    }));
    terminated
}

fn rig(absent: Absent) -> Rig {
    let rig = Rig::new(1, |options| options.when_absent = absent);
    rig.plane.configure(&configuration()).unwrap();
    rig
}

fn client(ipv4: bool, port: u16) -> FlowKey {
    match ipv4 {
        true => v4(CLIENT, port, VIP, 80, Protocol::Tcp),
        false => v6("fd01::2", port, VIP6, 80, Protocol::Tcp),
    }
}

fn vip(ipv4: bool) -> SocketAddr {
    let address = if ipv4 { IpAddr::from(VIP) } else { VIP6.parse::<Ipv6Addr>().unwrap().into() };
    (address, 80).into()
}

/// Gives the VIPs to this host.
fn own_vips() {
    for vip in ["192.0.2.10/32", "2001:db8::10/128"] {
        command("ip", &["addr", "add", vip, "dev", "lo", "nodad"]);
    }
    // The kernel makes the route of an IPv6 address on a work queue of its own.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !local_route::is_local("2001:db8::10".parse().unwrap()).unwrap() {
        assert!(std::time::Instant::now() < deadline, "2001:db8::10 gets no route");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn segment(rig: &Rig, key: FlowKey, flags: u8) -> Vec<u8> {
    Packet { flags, payload: Vec::new(), ..Packet::new(key) }.to(rig.left.mac).frame()
}

#[test]
fn a_syn_passes_if_a_process_listens() {
    for absent in [Absent::Drop, Absent::DropAll, Absent::Pass] {
        in_namespace(move || {
            own_vips();
            let rig = rig(absent);
            for ipv4 in [true, false] {
                let syn = segment(&rig, client(ipv4, 1000), SYN);
                let meets_no_listener = || {
                    let (run, worker, counted) = offer(&rig, &syn);
                    assert_eq!((run.frame, worker), (syn.clone(), None));
                    match absent {
                        Absent::Pass => assert_eq!((run.verdict, counted), (OK, [].into())),
                        _ => assert_eq!((run.verdict, counted), (SHOT, [("absent-syn", 1)].into())),
                    }
                };
                meets_no_listener();
                let _other_port = TcpListener::bind((vip(ipv4).ip(), 79)).unwrap();
                let _other_address = TcpListener::bind("127.0.0.1:80").unwrap();
                meets_no_listener();
                let listener = TcpListener::bind(vip(ipv4)).unwrap();
                untouched(&rig, &syn);
                // The heartbeat says nothing of listeners.
                rig.stop_beating();
                untouched(&rig, &syn);
                drop(listener);
                meets_no_listener();
                rig.heartbeat();
            }
        });
    }
}

#[test]
fn packets_of_connections_pass_with_and_without_a_socket() {
    in_namespace(|| {
        own_vips();
        let rig = rig(Absent::Drop);
        for ipv4 in [true, false] {
            let listener = TcpListener::bind(vip(ipv4)).unwrap();
            let socket = TcpStream::connect(vip(ipv4)).unwrap();
            let (accepted, from) = listener.accept().unwrap();
            drop(listener);
            let peer = Endpoint::new(from.ip(), from.port());
            let key = FlowKey { source: peer, ..client(ipv4, 0) };
            for flags in [ACK, ACK | FIN, RST, SYN | ACK, SYN] {
                untouched(&rig, &segment(&rig, key, flags));
            }
            drop((socket, accepted));
            for flags in [ACK, ACK | FIN, RST | ACK, SYN | ACK, 0] {
                untouched(&rig, &segment(&rig, client(ipv4, 2000), flags));
            }
        }
    });
}

#[test]
fn other_services_of_the_vip_are_as_they_were() {
    in_namespace(|| {
        let rig = rig(Absent::Drop);
        let spliced = segment(&rig, v4(CLIENT, 9, VIP, SPLICED, Protocol::Tcp), SYN);
        let (run, _, counted) = offer(&rig, &spliced);
        assert_eq!((run.verdict, counted), (REDIRECT, [("cookie-sent", 1)].into()));
        let datagram = Packet::new(v4(CLIENT, 9, VIP, 80, Protocol::Udp)).to(rig.left.mac).frame();
        assert_eq!(offer(&rig, &datagram).1, Some(0));
        // Of the terminated services' backends, the one that another service has too is known.
        let own = v6("fd02::2", 8080, "fd01::2", 9, Protocol::Tcp);
        untouched(&rig, &segment(&rig, own, ACK));
        let shared = Packet::new(v4(BACKEND, 8080, CLIENT, 9, Protocol::Udp)).to(rig.left.mac).frame();
        assert_eq!(offer(&rig, &shared).1, Some(0));
    });
}

#[test]
fn icmp_errors_about_its_packets_are_the_kernels() {
    in_namespace(|| {
        let rig = rig(Absent::Drop);
        let quoted = |ipv4: bool| client(ipv4, 4000).reversed();
        for (kind, quoted) in [(3, quoted(true)), (11, quoted(true)), (2, quoted(false)), (1, quoted(false))] {
            untouched(&rig, &icmp(&rig, kind, quoted));
        }
        // Also if the client has the address and the port of a backend.
        untouched(&rig, &icmp(&rig, 3, v4(VIP, 80, BACKEND, 8081, Protocol::Tcp)));
        let spliced = icmp(&rig, 3, v4(VIP, SPLICED, CLIENT, 4000, Protocol::Tcp));
        assert_eq!(offer(&rig, &spliced).1, Some(0));
    });
}

#[test]
fn fragments_are_the_kernels_unless_the_vip_is_shared() {
    in_namespace(|| {
        let rig = rig(Absent::Drop);
        let fragment4 = |to: [u8; 4]| {
            let mut frame = segment(&rig, v4(CLIENT, 1, to, 80, Protocol::Tcp), ACK);
            frame[20..22].copy_from_slice(&[0x20, 0]);
            frame
        };
        let fragment6 = packet_with(
            &Packet::new(client(false, 1)).to(rig.left.mac),
            44,
            &[6, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 80, 0, 0, 0, 0],
        );
        untouched(&rig, &fragment6);
        let truncated = segment(&rig, client(false, 1), ACK);
        untouched(&rig, &truncated[..60]);
        let (run, _, counted) = offer(&rig, &fragment4(VIP));
        assert_eq!((run.verdict, counted), (SHOT, [("fragment", 1)].into()), "it may be for port 81");
    });
}

#[test]
fn a_removed_service_refuses_its_clients() {
    in_namespace(|| {
        let rig = rig(Absent::Drop);
        let mut removed = configuration();
        removed.services[0].state = ServiceState::Removed;
        rig.plane.configure(&removed).unwrap();
        untouched(&rig, &segment(&rig, client(true, 1), SYN));
        assert_eq!(offer(&rig, &segment(&rig, client(false, 1), SYN)).0.verdict, SHOT);
    });
}

/// The flags of the kernel's answer to a SYN that really comes in.
fn answer(rig: &Rig, near: &Link, key: FlowKey) -> Option<u8> {
    near.send(&Vnet::default(), &segment(rig, key, SYN));
    let is_answer = |frame: &[u8]| matches!(parse(frame), Ok(Parsed::Transport(at)) if at.key == key.reversed());
    let frame = std::iter::from_fn(|| near.receive()).find(|(_, frame)| is_answer(frame))?.1;
    Some(frame[parsed(&frame).l4 + 13])
}

#[test]
fn a_client_is_served_or_not_answered_but_never_refused() {
    in_namespace(|| {
        own_vips();
        let rig = rig(Absent::Drop);
        let near = Link::open("left-peer");
        for ipv4 in [true, false] {
            assert_eq!(answer(&rig, &near, client(ipv4, 3000)), None);
            let listener = TcpListener::bind(vip(ipv4)).unwrap();
            assert_eq!(answer(&rig, &near, client(ipv4, 3001)), Some(SYN | ACK));
            drop(listener);
            assert_eq!(answer(&rig, &near, client(ipv4, 3002)), None);
        }
        let (_, counted) = rig.counted(|| answer(&rig, &near, client(true, 3003)));
        assert_eq!(counted, [("absent-syn", 1)].into());
    });
}

#[test]
fn a_vip_that_is_only_routed_needs_a_local_route() {
    in_namespace(|| {
        let rig = rig(Absent::Drop);
        let near = Link::open("left-peer");
        for family in ["ipv4", "ipv6"] {
            std::fs::write(format!("/proc/sys/net/{family}/ip_nonlocal_bind"), "1").unwrap();
        }
        for ipv4 in [true, false] {
            let address = vip(ipv4).ip();
            assert!(!local_route::is_local(address).unwrap());
            let _listener = TcpListener::bind(vip(ipv4)).unwrap();
            assert_eq!(answer(&rig, &near, client(ipv4, 2999)), None);
            (0..2).for_each(|_| local_route::add(address).unwrap());
            assert!(local_route::is_local(address).unwrap());
            assert_eq!(answer(&rig, &near, client(ipv4, 3000)), Some(SYN | ACK));
            (0..2).for_each(|_| local_route::remove(address).unwrap());
            assert!(!local_route::is_local(address).unwrap());
        }
    });
}

#[test]
fn local_routes_of_others_stay() {
    in_namespace(|| {
        own_vips();
        command("ip", &["route", "add", "local", "198.51.100.0/24", "dev", "lo"]);
        command("ip", &["route", "add", "blackhole", "203.0.113.1"]);
        for own in ["192.0.2.10", "2001:db8::10", "198.51.100.7"] {
            let own = own.parse().unwrap();
            assert!(local_route::is_local(own).unwrap());
            local_route::remove(own).unwrap();
            assert!(local_route::is_local(own).unwrap());
            // Beside the route of an address that an interface has, another one is neither an error nor harm.
            local_route::add(own).unwrap();
            local_route::remove(own).unwrap();
            assert!(local_route::is_local(own).unwrap());
        }
        assert!(!local_route::is_local("203.0.113.1".parse().unwrap()).unwrap());
    });
}
