use super::chosen::{CaptureVerdict, flow};
use super::source::SeenPacket;
use super::*;
use crate::control::{ConnectionView, Page, serve};
use crate::status::{BackendStatus, ServiceStatus};
use etherparse::PacketBuilder;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;

const CLIENT: &str = "203.0.113.7:40112";
const OTHER: &str = "203.0.113.8:40112";
const VIP: &str = "192.0.2.10:80";
const BACKEND: &str = "10.0.2.11:8080";
const POOL: &str = "10.0.2.1:16384";

/// A frame with `payload` bytes of a TCP packet.
fn frame(from: &str, to: &str, payload: usize) -> Vec<u8> {
    let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => ethernet.ipv4(from.ip().octets(), to.ip().octets(), 64),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => ethernet.ipv6(from.ip().octets(), to.ip().octets(), 64),
        _ => panic!("two families"),
    };
    let mut bytes = Vec::new();
    ip.tcp(from.port(), to.port(), 1, 1000).write(&mut bytes, &vec![0x55; payload]).unwrap();
    bytes
}

fn seen(interface: u32, milliseconds: u64, from: &str, to: &str) -> CaptureMessage {
    let bytes = frame(from, to, 100);
    let timestamp = Duration::from_millis(milliseconds);
    let length_on_wire = bytes.len() as u32;
    CaptureMessage::Seen(SeenPacket { interface, timestamp, bytes, length_on_wire, outgoing: interface == 1 })
}

fn services(mode: &str) -> Vec<ServiceStatus> {
    let backend = BackendStatus { name: "web-1".into(), address: BACKEND.into(), ..BackendStatus::default() };
    let service = ServiceStatus {
        name: "web".into(),
        listen: format!("{VIP}/tcp"),
        mode: mode.into(),
        backends: vec![backend],
        ..ServiceStatus::default()
    };
    let other =
        ServiceStatus { name: "dns".into(), listen: "192.0.2.10:53/udp".into(), mode: "nat".into(), ..service.clone() };
    vec![service, other]
}

fn connection(source: Option<&str>) -> ConnectionView {
    ConnectionView {
        protocol: "tcp".into(),
        client: CLIENT.into(),
        vip: VIP.into(),
        backend_end: BACKEND.into(),
        source: source.map(str::to_string),
        ..ConnectionView::default()
    }
}

fn query(client: Option<&str>, service: Option<&str>, backend: Option<&str>) -> Query {
    let owned = |text: Option<&str>| text.map(str::to_string);
    Query { client: owned(client), service: owned(service), backend: owned(backend), ..Query::default() }
}

/// The verdict about a packet, before and after the connection from `CLIENT` is known.
fn verdicts(query: &Query, mode: &str, source: Option<&str>, from: &str, to: &str) -> (CaptureVerdict, CaptureVerdict) {
    let mut chosen = Chosen::new(query, &services(mode)).unwrap();
    let flow = flow(&frame(from, to, 10)).unwrap();
    let before = chosen.judge(&flow);
    chosen.begin_round();
    assert!(chosen.learn(&connection(source)));
    (before, chosen.judge(&flow))
}

#[test]
fn capture_without_filters_takes_all_services() {
    let all = query(None, None, None);
    for (from, to) in [(CLIENT, VIP), (VIP, OTHER), (OTHER, BACKEND), (BACKEND, POOL)] {
        assert_eq!(verdicts(&all, "nat", None, from, to).0, CaptureVerdict::Yes, "{from} {to}");
    }
    for (from, to) in [(CLIENT, "192.0.2.10:81"), (CLIENT, "10.0.2.11:22"), ("[2001:db8::1]:1", "[2001:db8::2]:80")] {
        assert_eq!(verdicts(&all, "nat", None, from, to).0, CaptureVerdict::No, "{from} {to}");
    }
    assert!(!Chosen::new(&all, &services("nat")).unwrap().asks());
    let mut https = services("terminated");
    https[0].listen = format!("{VIP}/https");
    let judged = Chosen::new(&all, &https).unwrap().judge(&flow(&frame(CLIENT, VIP, 10)).unwrap());
    assert_eq!(judged, CaptureVerdict::Yes);
}

#[test]
fn a_client_is_caught_from_the_first_packet() {
    let one = query(Some("203.0.113.7"), None, None);
    for (from, to) in [(CLIENT, VIP), (VIP, CLIENT), (CLIENT, BACKEND), (BACKEND, CLIENT)] {
        assert_eq!(verdicts(&one, "nat", None, from, to).0, CaptureVerdict::Yes, "{from} {to}");
    }
    assert_eq!(verdicts(&one, "nat", None, OTHER, VIP), (CaptureVerdict::No, CaptureVerdict::No));
    // Behind full NAT its packets are recognised when the connection is known.
    let behind = verdicts(&one, "full-nat", Some(POOL), BACKEND, POOL);
    assert_eq!(behind, (CaptureVerdict::Perhaps, CaptureVerdict::Yes));
    let another = verdicts(&one, "full-nat", Some(POOL), BACKEND, "10.0.2.1:16385");
    assert_eq!(another, (CaptureVerdict::Perhaps, CaptureVerdict::Perhaps));
}

#[test]
fn what_packets_do_not_show_is_asked_for() {
    let service = query(None, Some("web"), None);
    assert_eq!(verdicts(&service, "nat", None, OTHER, VIP).0, CaptureVerdict::Yes);
    assert_eq!(verdicts(&service, "nat", None, CLIENT, BACKEND), (CaptureVerdict::Perhaps, CaptureVerdict::Yes));
    let backend = query(None, None, Some("web-1"));
    assert_eq!(verdicts(&backend, "nat", None, CLIENT, VIP), (CaptureVerdict::Perhaps, CaptureVerdict::Yes));
    assert_eq!(verdicts(&backend, "nat", None, OTHER, VIP), (CaptureVerdict::Perhaps, CaptureVerdict::Perhaps));
    let state = Query { state: Some("established".into()), ..query(Some("203.0.113.7"), None, None) };
    assert_eq!(verdicts(&state, "nat", None, CLIENT, VIP), (CaptureVerdict::Perhaps, CaptureVerdict::Yes));
    assert_eq!(verdicts(&state, "nat", None, OTHER, VIP).0, CaptureVerdict::No);
}

#[test]
fn spliced_connection_matches_by_existing_side() {
    let backend = query(None, None, Some("web-1"));
    let judged = |connection: &ConnectionView| {
        let mut chosen = Chosen::new(&backend, &services("full-nat")).unwrap();
        chosen.begin_round();
        assert!(chosen.learn(connection));
        [(CLIENT, VIP), (POOL, BACKEND)].map(|(from, to)| chosen.judge(&flow(&frame(from, to, 10)).unwrap()))
    };
    let both = connection(Some(POOL));
    assert_eq!(judged(&both), [CaptureVerdict::Yes, CaptureVerdict::Yes]);
    let no_backend = ConnectionView { backend_end: String::new(), source: None, ..both.clone() };
    assert_eq!(judged(&no_backend), [CaptureVerdict::Yes, CaptureVerdict::Perhaps]);
    let no_client = ConnectionView { client: String::new(), vip: String::new(), ..both };
    assert_eq!(judged(&no_client), [CaptureVerdict::Perhaps, CaptureVerdict::Yes]);
}

#[test]
fn unknown_names_are_errors() {
    let error = |query: Query| Chosen::new(&query, &services("nat")).unwrap_err().to_string();
    assert!(error(query(None, Some("wbe"), None)).starts_with("there is no service \"wbe\""));
    assert!(error(query(None, Some("web"), Some("web-9"))).starts_with("there is no backend \"web-9\""));
    assert!(Chosen::new(&query(None, None, Some(BACKEND)), &services("nat")).is_ok());
}

#[test]
fn the_kernel_filters_by_host_where_it_can() {
    let hosts = |client: Option<&str>, mode: &str| {
        let chosen = Chosen::new(&query(client, Some("web"), None), &services(mode)).unwrap();
        chosen.hosts().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(hosts(Some("203.0.113.7:9"), "nat"), ["203.0.113.7"]);
    assert_eq!(hosts(Some("203.0.113.7"), "full-nat"), ["10.0.2.11", "203.0.113.7"]);
    assert_eq!(hosts(Some("203.0.113.0/24"), "nat"), ["10.0.2.11", "192.0.2.10"]);
    let mut many = services("nat");
    let backend = |n: u8| BackendStatus { address: format!("10.0.3.{n}:80"), ..BackendStatus::default() };
    many[0].backends.extend((0..40).map(backend));
    assert!(Chosen::new(&query(None, None, None), &many).unwrap().hosts().is_empty());
}

#[test]
fn ended_connections_are_remembered_for_a_while() {
    let mut chosen = Chosen::new(&query(None, None, Some("web-1")), &services("nat")).unwrap();
    let flow = flow(&frame(VIP, CLIENT, 0)).unwrap();
    chosen.begin_round();
    chosen.learn(&connection(None));
    for _ in 0..9 {
        chosen.begin_round();
        assert_eq!(chosen.judge(&flow), CaptureVerdict::Yes);
    }
    chosen.begin_round();
    assert_eq!(chosen.judge(&flow), CaptureVerdict::Perhaps);
}

/// An instance with the connection from `CLIENT`, on two pages.
struct Instance(PathBuf);

impl Instance {
    fn new(name: &str) -> Instance {
        let directory = std::env::temp_dir().join(format!("hairpin-capture-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let handle = |request| match request {
            ControlRequest::Connections(Query { cursor: None, .. }) => {
                ControlAnswer::Connections(Page { next: Some(7), ..Page::default() })
            }
            ControlRequest::Connections(_) => {
                ControlAnswer::Connections(Page { connections: vec![connection(None)], matched: 1, next: None })
            }
            other => ControlAnswer::Error(format!("{other:?} is not for tests")),
        };
        serve(&directory.join("s"), handle).unwrap();
        Instance(directory)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Captures `messages` into a file; the file and the report.
fn captured(name: &str, query: &Query, messages: Vec<CaptureMessage>, count: Option<u64>) -> (Vec<u8>, String) {
    let instance = Instance::new(name);
    let socket = instance.0.join("s");
    let interfaces = ["eth0".to_string(), "eth1".to_string()];
    let mut out = Vec::new();
    let file = CaptureFile::begin(&mut out, &interfaces, 64, "instance edge, client 203.0.113.7").unwrap();
    let chosen = Chosen::new(query, &services("nat")).unwrap();
    let mut session = CaptureSession { chosen, queue: CaptureQueue::default(), file, count, short_of: false };
    let (sender, receiver) = sync_channel(messages.len().max(1));
    messages.into_iter().for_each(|message| sender.send(message).unwrap());
    let mut asker = Asker { socket: &socket, query, client: None, silent: false };
    // Over at once: what has been seen is still judged.
    session.run(&receiver, &mut asker, None, &AtomicBool::new(true)).unwrap();
    let report = session.end(&interfaces, &[3, 0]).unwrap();
    (out, report)
}

/// The packets of a file: interface, time in milliseconds, bytes kept and bytes there were.
fn packets(file: &[u8]) -> Vec<(u32, u128, usize, u32)> {
    let mut reader = PcapNgReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            packets.push((packet.interface_id, packet.timestamp.as_millis(), packet.data.len(), packet.original_len));
        }
    }
    packets
}

#[test]
fn packets_come_in_order_cut_and_only_if_chosen() {
    let messages = vec![
        seen(0, 1000, CLIENT, VIP),
        seen(0, 1002, OTHER, VIP),
        seen(0, 1004, VIP, CLIENT),
        seen(1, 1001, CLIENT, BACKEND),
        seen(1, 1003, BACKEND, CLIENT),
        seen(1, 1005, OTHER, BACKEND),
    ];
    let (file, report) = captured("order", &query(None, None, Some("web-1")), messages, None);
    assert_eq!(packets(&file), [(0, 1000, 64, 154), (1, 1001, 64, 154), (1, 1003, 64, 154), (0, 1004, 64, 154)]);
    assert_eq!(report, "4 packets captured on eth0, eth1, 3 lost by the kernel");
}

#[test]
fn the_count_is_kept() {
    let messages = (0..9).map(|n| seen(0, 1000 + n, CLIENT, VIP)).collect();
    let (file, report) = captured("count", &query(Some("203.0.113.7"), None, None), messages, Some(5));
    assert_eq!(packets(&file).len(), 5);
    assert!(report.starts_with("5 packets captured"), "{report}");
}

#[test]
fn the_file_says_what_it_is() {
    let (file, _) = captured("says", &query(None, None, None), vec![seen(0, 1, CLIENT, VIP)], None);
    let text = String::from_utf8_lossy(&file);
    for part in ["instance edge, client 203.0.113.7", "eth0", "eth1", "hairpin "] {
        assert!(text.contains(part), "{part}");
    }
    // The statistics at the end: type 5, time in halves, the upper first, and isb_osdrop (7) of eth0.
    let block = [0, 0, 0, 5, 0, 0, 0, 40, 0, 0, 0, 0];
    let at = file.windows(block.len()).position(|window| window == block).expect("statistics of eth0");
    let now = u64::from_be_bytes(file[at + 12..at + 20].try_into().unwrap());
    assert!(u128::from(now).abs_diff(since_1970().as_nanos()) < 3600 * 1_000_000_000, "{now}");
    assert_eq!(file[at + 20..at + 32], [0, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0, 3]);
}

#[test]
fn a_failing_interface_ends_the_capture() {
    let interfaces = ["eth0".to_string()];
    let mut out = Vec::new();
    let file = CaptureFile::begin(&mut out, &interfaces, 64, "").unwrap();
    let all = query(None, None, None);
    let chosen = Chosen::new(&all, &services("nat")).unwrap();
    let mut session = CaptureSession { chosen, queue: CaptureQueue::default(), file, count: None, short_of: false };
    let (sender, receiver) = sync_channel(1);
    sender.send(CaptureMessage::Failed(anyhow::anyhow!("eth0 is gone"))).unwrap();
    let mut asker = Asker { socket: Path::new("/nonexistent"), query: &all, client: None, silent: false };
    let error = session.run(&receiver, &mut asker, None, &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.to_string(), "eth0 is gone");
}

#[test]
fn full_capture_queue_counts_lost_packets() {
    let chosen = Chosen::new(&query(None, None, Some("web-1")), &services("nat")).unwrap();
    let mut queue = CaptureQueue::default();
    let CaptureMessage::Seen(small) = seen(0, 1, CLIENT, VIP) else { unreachable!() };
    let key = flow(&small.bytes).unwrap();
    let large = SeenPacket { bytes: vec![0; 1 << 20], ..small };
    let room = (0..100).take_while(|_| queue.push(key, large.clone())).count();
    assert_eq!(room, 63);
    assert!(queue.settle(Duration::MAX, &chosen).is_empty());
    assert_eq!(queue.given_up(), 64);
    assert!(queue.push(key, large));
}
