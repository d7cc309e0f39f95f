//! Virtual devices, with the kernel at their other ends.

use super::packets::{self, MACS};
use super::{Case, Whole, command, device, frame, in_namespace, send};
use crate::eal;
use hairpin_core::frame::{Batch, Checksum, Frame};
use hairpin_core::wire::{self, Parsed};
use hairpin_dpdk::{Error, Mbuf, Port, PortOptions, PortSpread, Rss, SpreadAbilities};
use std::net::UdpSocket;
use std::time::Duration;

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("what cannot be opened is told with what the driver said", refused),
        ("a null device", null),
        ("a null device spreads flows, as it says", null_rss),
        ("a null device that gives more than there is", null_exhausts),
        ("a device that is gone can be opened again", again),
        ("captures are written and read", pcap),
        ("a veth by af_packet, with several queues", af_packet),
        ("a veth by af_xdp", af_xdp),
        ("a tap, which fills in checksums", tap),
        ("the MTU is that of the interface beneath", mtu),
        ("a device is opened once", twice),
        ("what comes in several mbufs and fits none is dropped and counted", chained),
    ]
}

fn options(device: String) -> PortOptions {
    PortOptions { device, ..PortOptions::default() }
}

fn open(options: &PortOptions, whole: &Whole) -> Port {
    Port::open(eal(), options, &whole.0).unwrap_or_else(|error| panic!("{error}"))
}

fn refused() {
    let whole = Whole::new(5000, 2048);
    let said = |options: &PortOptions| match Port::open(eal(), options, &whole.0) {
        Err(error @ Error::Device { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let error = said(&options("net_nothing0".into()));
    assert!(error.starts_with("cannot open net_nothing0: finding the device"), "{error}");
    let error = said(&options(device("net_af_packet", "iface=nowhere0")));
    assert!(error.contains("nowhere0") && error.lines().count() > 1, "{error}");
    let mut two = options(device("net_pcap", "rx_pcap=/nowhere.pcap,tx_pcap=/nowhere.pcap"));
    let error = said(&two);
    assert!(error.contains("/nowhere.pcap"), "{error}");
    two = PortOptions { queues: 2000, ..options(device("net_null", "copy=0")) };
    let error = said(&two);
    assert!(error.contains("queues"), "{error}");
    let error = said(&options("a\0b".into()));
    assert!(error.contains("NUL"), "{error}");
}

fn null() {
    let whole = Whole::new(5000, 2048);
    let port = open(&options(device("net_null", "size=60")), &whole);
    assert_eq!((port.driver(), port.queues(), port.rss()), ("net_null", 1, PortSpread::OneQueue));
    assert!(port.name().starts_with("net_null") && !port.name().contains(','), "{}", port.name());
    let mut queue = port.queue(0).expect("a queue");
    let mut batch = Batch::new();
    assert_eq!(queue.receive(&mut batch), 64);
    assert!(batch.iter().all(|frame| frame.bytes().len() == 60));
    assert_eq!(queue.transmit(&mut batch), 64);
    let statistics = port.statistics();
    assert_eq!((statistics.received, statistics.transmitted), (64, 64));
}

fn null_rss() {
    let whole = Whole::new(20_000, 2048);
    for (rss, spread) in [
        (Rss::None, PortSpread::Unknown),
        (Rss::Device, PortSpread::Hash),
        (Rss::Symmetric, PortSpread::Symmetric),
        // It cannot, and says so.
        (Rss::Source, PortSpread::Hash),
        (Rss::Destination, PortSpread::Hash),
    ] {
        let port = open(&PortOptions { rss, queues: 4, ..options(device("net_null", "copy=0")) }, &whole);
        assert_eq!((port.queues(), port.rss()), (4, spread), "{rss:?}");
        let can = port.rss_abilities();
        assert!(can.addresses && can.ports && !can.one_address, "{can:?}");
    }
}

fn null_exhausts() {
    let whole = Whole::new(100, 2048);
    let port = open(&options(device("net_null", "copy=1")), &whole);
    let mut queue = port.queue(0).expect("a queue");
    let mut held: Vec<Batch<Mbuf>> = Vec::new();
    for _ in 0..10 {
        let mut batch = Batch::new();
        queue.receive(&mut batch);
        held.push(batch);
    }
    assert!(whole.0.in_use() >= 64 && whole.0.in_use() <= 100);
    held.clear();
    assert_eq!(whole.0.in_use(), 0);
    let mut batch = Batch::new();
    assert_eq!(queue.receive(&mut batch), 64, "it goes on");
}

fn again() {
    let whole = Whole::new(5000, 2048);
    let same = options(device("net_null", "size=64"));
    for _ in 0..3 {
        let port = open(&same, &whole);
        assert_eq!(port.queue(0).expect("a queue").receive(&mut Batch::new()), 64);
    }
}

fn pcap() {
    let whole = Whole::new(5000, 2048);
    let directory = std::env::temp_dir().join(format!("hairpin-ports-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("frames.pcap");
    let written: Vec<Vec<u8>> = (0..100).map(|i| packets::udp(&vec![i; usize::from(i) + 18])).collect();
    let port = open(&options(device("net_pcap", &format!("tx_pcap={}", file.display()))), &whole);
    let mut queue = port.queue(0).expect("a queue");
    for some in written.chunks(50) {
        let mut batch = some.iter().map(|bytes| frame(&whole.0, bytes)).collect();
        send(&mut queue, &mut batch);
    }
    drop((port, queue));
    let port = open(&options(device("net_pcap", &format!("rx_pcap={}", file.display()))), &whole);
    let mut queue = port.queue(0).expect("a queue");
    let mut read = Vec::new();
    let mut batch = Batch::new();
    while queue.receive(&mut batch) > 0 {
        read.extend(batch.drain(..).map(|frame| frame.bytes().to_vec()));
    }
    assert!(read == written, "{} frames", read.len());
    std::fs::remove_dir_all(directory).expect("it is there");
}

/// A wire between the kernel, which is 10.9.0.1, and `far`, which is for us.
fn veth() {
    command("ip link add near address 02:00:00:00:09:01 type veth peer name far address 02:00:00:00:09:02");
    for end in ["near", "far"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").ok();
        command(&format!("ip link set {end} up"));
        // The kernel leaves checksums to a device that is none.
        command(&format!("ethtool -K {end} tx off"));
    }
    command("ip address add 10.9.0.1/24 dev near");
    command("ip neighbour add 10.9.0.2 lladdr 02:00:00:00:09:02 dev near nud permanent");
}

/// Datagrams from the kernel to the port and back; the kernel takes those only whose checksums are right.
fn talk(port: &Port, whole: &Whole) {
    let socket = UdpSocket::bind("10.9.0.1:1000").expect("the kernel's end");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut queues: Vec<_> = (0..port.queues()).map(|index| port.queue(index).expect("a queue")).collect();
    for length in [1, 18, 19, 1000, 1472] {
        let payload: Vec<u8> = (0..length).map(|i| i as u8).collect();
        socket.send_to(&payload, "10.9.0.2:2000").expect("it is sent");
        let ours = |frame: &Mbuf| {
            matches!(wire::parse(frame.bytes()), Ok(Parsed::Transport(at)) if at.key.destination.port == 2000
                && frame.bytes()[at.payload..at.end] == payload)
        };
        let mut came = Batch::new();
        let start = std::time::Instant::now();
        while came.is_empty() {
            assert!(start.elapsed() < super::PATIENCE, "{length} bytes have not come: {:?}", port.statistics());
            for queue in &mut queues {
                let mut batch = Batch::new();
                queue.receive(&mut batch);
                came.extend(batch.drain(..).filter(|frame| ours(frame)));
            }
        }
        assert!(packets::is_right(came[0].bytes()));
        assert_eq!((came[0].bytes()[..6].as_ref(), came[0].bytes()[6..12].as_ref()), (&MACS[1][..], &MACS[0][..]));
        drop(came);

        for queue in &mut queues {
            let answer = packets::udp(&payload);
            let mut batch = Batch::new();
            batch.push(frame(&whole.0, &answer));
            batch.push(frame(&whole.0, &packets::unfinished(answer)));
            batch[1].meta_mut().checksum = Checksum::Partial;
            send(queue, &mut batch);
            // Drivers may take mbufs back only when they are called.
            queue.transmit(&mut Batch::new());
            for _ in 0..2 {
                let mut buffer = [0; 2000];
                let (received, from) = socket.recv_from(&mut buffer).expect("an answer");
                assert_eq!((&buffer[..received], from.to_string().as_str()), (&payload[..], "10.9.0.2:2000"));
            }
        }
    }
    let statistics = port.statistics();
    assert!(statistics.received >= 5 && statistics.transmitted >= 10, "{statistics:?}");
}

fn af_packet() {
    in_namespace(|| {
        veth();
        for queues in [1, 3] {
            let whole = Whole::new(10_000, 2048);
            let mut how = options(device("net_af_packet", &format!("iface=far,qpairs={queues}")));
            how.queues = queues;
            let port = open(&how, &whole);
            assert_eq!((port.mac(), port.mtu(), port.is_up()), (MACS[1], 1500, true));
            assert_eq!(port.rss_abilities(), SpreadAbilities::default(), "the driver knows of none");
            talk(&port, &whole);
        }
    });
}

fn af_xdp() {
    in_namespace(|| {
        veth();
        // The driver of 22.11 does not give the mbufs of its fill queue back when it is closed.
        let whole = Whole::new(16_383, 2048).but(2048);
        let port = open(&options(device("net_af_xdp", "iface=far")), &whole);
        assert_eq!((port.mac(), port.driver()), (MACS[1], "net_af_xdp"));
        talk(&port, &whole);
    });
}

fn tap() {
    in_namespace(|| {
        let whole = Whole::new(10_000, 2048);
        // The address is the kernel's end's.
        let port = open(&options(device("net_tap", "iface=near,mac=02:00:00:00:09:01")), &whole);
        assert!(port.fills_checksums(), "the driver does");
        std::fs::write("/proc/sys/net/ipv6/conf/near/disable_ipv6", "1").ok();
        command("ip link set near up");
        command("ip address add 10.9.0.1/24 dev near");
        command("ip neighbour add 10.9.0.2 lladdr 02:00:00:00:09:02 dev near nud permanent");
        talk(&port, &whole);
    });
}

fn mtu() {
    in_namespace(|| {
        veth();
        command("ip link set far mtu 1400");
        let whole = Whole::new(10_000, 2048);
        let mut how = options(device("net_af_packet", "iface=far"));
        assert_eq!(open(&how, &whole).mtu(), 1400, "the interface's");
        how.mtu = 1300;
        assert_eq!(open(&how, &whole).mtu(), 1300);
        how.mtu = 2048;
        let error = Port::open(eal(), &how, &whole.0).expect_err("mbufs are too small").to_string();
        assert!(error.contains("MTU") && error.contains("room"), "{error}");
    });
}

fn twice() {
    let whole = Whole::new(5000, 2048);
    let how = options(device("net_null", "size=60"));
    let port = open(&how, &whole);
    let error = Port::open(eal(), &how, &whole.0).expect_err("it is open").to_string();
    assert!(error.contains("open already"), "{error}");
    assert_eq!(port.queue(0).expect("a queue").receive(&mut Batch::new()), 64, "it works still");
}

/// Frames longer than an mbuf come from a capture in several.
fn chained() {
    let long = Whole::new(1000, 9018);
    let whole = Whole::new(5000, 2048);
    let directory = std::env::temp_dir().join(format!("hairpin-chained-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("frames.pcap");
    let port = open(&options(device("net_pcap", &format!("tx_pcap={}", file.display()))), &long);
    let sizes = [100, 3000, 200, 9000];
    let mut batch = sizes.iter().map(|&size| frame(&long.0, &vec![size as u8; size])).collect();
    send(&mut port.queue(0).expect("a queue"), &mut batch);
    drop(port);
    let port = open(&options(device("net_pcap", &format!("rx_pcap={}", file.display()))), &whole);
    let mut queue = port.queue(0).expect("a queue");
    while queue.receive(&mut batch) > 0 {}
    let lengths: Vec<_> = batch.iter().map(|frame| frame.bytes().len()).collect();
    assert_eq!((lengths, queue.chained().dropped), (vec![100, 200], 2));
    std::fs::remove_dir_all(directory).expect("it is there");
}
