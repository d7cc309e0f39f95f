//! TCP handshakes by the million, without TCP stacks: the client's SYN and ACK, the servers' SYN and ACK, all real
//! packets, made from nothing but what arrives.
//!
//! Hosts of both ends drop what arrives (the packet sockets see it before that), so that no kernel answers with a RST.

use crate::namespace::Namespace;
use crate::tool::blast::{FIRST_PORT, PORTS};
use crate::tool::frames::{self, ACK, LinkEnds, SYN};
use crate::tool::inside;
use crate::tool::packet_socket::{BURST_MAX, PacketSocket, SNAP};
use anyhow::{Result, bail};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How often a thread that waits checks whether it should end.
const POLL: Duration = Duration::from_millis(50);
/// Connections that are not established are tried again, this often in all.
const ROUNDS: usize = 30;

/// Which connections are established, a bit each.
#[derive(Debug)]
struct EstablishedSet {
    bits: Vec<AtomicU64>,
    count: AtomicU64,
}

impl EstablishedSet {
    fn new(connections: usize) -> EstablishedSet {
        EstablishedSet {
            bits: (0..connections.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
        }
    }

    fn has(&self, connection: usize) -> bool {
        self.bits.get(connection / 64).is_some_and(|bits| bits.load(Ordering::Relaxed) >> (connection % 64) & 1 == 1)
    }

    fn add(&self, connection: usize) {
        let (Some(bits), bit) = (self.bits.get(connection / 64), 1 << (connection % 64)) else { return };
        if bits.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Servers that shake hands with every client and know whose handshakes are complete; they end when dropped.
#[derive(Debug)]
pub struct Responders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    done: Arc<EstablishedSet>,
}

impl Responders {
    /// Starts one in each namespace, on its interface `eth0`, for `connections` of [`establish`].
    pub fn start(servers: &[Namespace], connections: usize) -> Responders {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(EstablishedSet::new(connections)));
        let threads = servers.iter().map(|server| {
            let (stop, done) = (stop.clone(), done.clone());
            inside::spawn(server, None, move || {
                let (listening, sending) = (PacketSocket::listen("eth0", POLL)?, PacketSocket::open("eth0")?);
                answer(&listening, &sending, &stop, |segment| match segment.flags & (SYN | ACK) {
                    SYN => Some(segment.reply(SYN | ACK, !segment.sequence)),
                    ACK => {
                        number(segment.source).into_iter().for_each(|connection| done.add(connection));
                        None
                    }
                    _ => None,
                });
                Ok(())
            })
        });
        Responders { threads: threads.collect(), stop, done }
    }
}

impl Drop for Responders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Receives, and sends what `reply` makes of each segment, burst by burst.
fn answer(
    listening: &PacketSocket,
    sending: &PacketSocket,
    stop: &AtomicBool,
    mut reply: impl FnMut(&SegmentHeaders) -> Option<Vec<u8>>,
) {
    let mut frames = [[0; SNAP]; BURST_MAX];
    let mut replies = Vec::with_capacity(BURST_MAX);
    while !stop.load(Ordering::Relaxed) {
        replies.clear();
        listening.receive(&mut frames, |frame| replies.extend(SegmentHeaders::parse(frame).and_then(|s| reply(&s))));
        let bytes: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
        let mut sent = 0;
        while sent < bytes.len() {
            // Frames that the device has no room for are offered again.
            sent += sending.send(&bytes[sent..]);
        }
    }
}

/// The headers of a TCP segment over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentHeaders {
    link: LinkEnds,
    source: SocketAddr,
    destination: SocketAddr,
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
}

impl SegmentHeaders {
    fn parse(frame: &[u8]) -> Option<SegmentHeaders> {
        if frame.get(12..15)? != [0x08, 0x00, 0x45] || *frame.get(23)? != 6 {
            return None;
        }
        let long = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let port = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let end = |address: usize, at: usize| Some(SocketAddr::new(Ipv4Addr::from(long(address)?).into(), port(at)?));
        Some(SegmentHeaders {
            link: LinkEnds { to: frame[..6].try_into().ok()?, from: frame[6..12].try_into().ok()? },
            source: end(26, 34)?,
            destination: end(30, 36)?,
            sequence: long(38)?,
            acknowledgement: long(42)?,
            flags: *frame.get(47)?,
        })
    }

    /// The segment that acknowledges this one's SYN.
    fn reply(&self, flags: u8, sequence: u32) -> Vec<u8> {
        let link = LinkEnds { to: self.link.from, from: self.link.to };
        let numbers = (sequence, self.sequence.wrapping_add(1));
        frames::tcp(link, self.destination, self.source, flags, numbers, &[])
    }
}

/// The result of [`establish`].
#[derive(Clone, Copy, Debug)]
pub struct Established {
    /// Connections established.
    pub connections: u64,
    /// How long that took.
    pub took: Duration,
    /// SYNs that were sent.
    pub syns: u64,
}

/// How connections are established.
#[derive(Clone, Copy, Debug)]
pub struct HandshakePlan {
    /// From the client to the balancer.
    pub link: LinkEnds,
    /// The service.
    pub target: SocketAddr,
    /// How many.
    pub count: usize,
    /// SYNs per second at most.
    pub per_second: u32,
}

/// Establishes connections from the network [`SOURCES`](crate::tool::blast::SOURCES) through `interface` of `client`,
/// until the ACK of every one of them has reached a server.
///
/// # Errors
/// After thirty rounds some are still not established.
pub fn establish(
    client: &Namespace,
    interface: &'static str,
    plan: HandshakePlan,
    responders: &Responders,
) -> Result<Established> {
    let (stop, done) = (Arc::new(AtomicBool::new(false)), responders.done.clone());
    let listening = inside::run(client, move || PacketSocket::listen(interface, POLL))?;
    let answering = inside::spawn(client, None, {
        let stop = stop.clone();
        move || {
            let sending = PacketSocket::open(interface)?;
            answer(&listening, &sending, &stop, |segment| {
                let ours = segment.source == plan.target && segment.flags & (SYN | ACK) == SYN | ACK;
                ours.then(|| segment.reply(ACK, segment.acknowledgement))
            });
            Ok(())
        }
    });
    let start = Instant::now();
    let syns = inside::run(client, {
        let done = done.clone();
        move || rounds(&PacketSocket::open(interface)?, plan, &done)
    });
    let took = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    inside::join(answering)?;
    let (connections, syns) = (done.count(), syns?);
    if connections < plan.count as u64 {
        bail!("of {} connections {connections} are established after {syns} SYNs", plan.count);
    }
    Ok(Established { connections, took, syns })
}

/// Sends a SYN for every connection that is not established, again and again.
fn rounds(socket: &PacketSocket, plan: HandshakePlan, done: &EstablishedSet) -> Result<u64> {
    let mut syns = 0;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for first in (0..plan.count).step_by(BURST_MAX) {
            let missing = (first..plan.count.min(first + BURST_MAX)).filter(|connection| !done.has(*connection));
            let frames: Vec<Vec<u8>> = missing
                .map(|connection| {
                    let sequence = (connection as u32).wrapping_mul(0x9e37_79b9);
                    frames::tcp(plan.link, source(connection), plan.target, SYN, (sequence, 0), &[])
                })
                .collect();
            let bytes: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            syns += socket.send(&bytes) as u64;
            let due = Duration::from_secs_f64(syns as f64 / f64::from(plan.per_second));
            sleep(due.saturating_sub(start.elapsed()));
        }
        // The last answers are on their way.
        sleep(Duration::from_millis(300));
        if done.count() >= plan.count as u64 {
            break;
        }
    }
    Ok(syns)
}

/// The client's end of a connection.
fn source(connection: usize) -> SocketAddr {
    let host = connection / PORTS;
    let address = IpAddr::V4(Ipv4Addr::new(10, 1, (host >> 8) as u8, host as u8));
    SocketAddr::new(address, (FIRST_PORT + connection % PORTS) as u16)
}

/// Which connection has this client's end.
fn number(end: SocketAddr) -> Option<usize> {
    let IpAddr::V4(address) = end.ip() else { return None };
    let [10, 1, high, low] = address.octets() else { return None };
    let port = usize::from(end.port()).checked_sub(FIRST_PORT).filter(|port| *port < PORTS)?;
    Some((usize::from(high) << 8 | usize::from(low)) * PORTS + port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_numbers() {
        for connection in [0, 1, PORTS - 1, PORTS, 999_999, 256 * PORTS + 17] {
            assert_eq!(number(source(connection)), Some(connection));
        }
        assert_eq!(number("10.2.0.0:10000".parse().unwrap()), None);
        assert_eq!(number("10.1.0.0:9999".parse().unwrap()), None);
    }

    #[test]
    fn each_connection_counts_once() {
        let done = EstablishedSet::new(100);
        for connection in [0, 64, 99, 64, 1000] {
            done.add(connection);
        }
        assert_eq!(done.count(), 3);
        assert!(done.has(99) && !done.has(98) && !done.has(1000));
    }

    #[test]
    fn a_segment_and_its_reply() {
        let link = LinkEnds { to: [2; 6], from: [4; 6] };
        let (client, server) = (source(5), "10.0.1.2:80".parse().unwrap());
        let syn = SegmentHeaders::parse(&frames::tcp(link, client, server, SYN, (u32::MAX, 0), &[])).unwrap();
        assert_eq!((syn.source, syn.destination, syn.flags, syn.sequence), (client, server, SYN, u32::MAX));
        let reply = SegmentHeaders::parse(&syn.reply(SYN | ACK, 7)).unwrap();
        assert_eq!((reply.source, reply.destination, reply.flags), (server, client, SYN | ACK));
        assert_eq!((reply.sequence, reply.acknowledgement), (7, 0));
        assert_eq!(reply.link, LinkEnds { to: [4; 6], from: [2; 6] });
        assert_eq!(SegmentHeaders::parse(&[0; 54]), None);
        assert_eq!(SegmentHeaders::parse(&[]), None);
    }
}
