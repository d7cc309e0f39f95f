//! UDP echo (RFC 862) and a client that asks it, one datagram at a time per flow.

use crate::namespace::Namespace;
use crate::tool::inside;
use anyhow::{Context, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a thread that waits checks whether it should end.
const POLL: Duration = Duration::from_millis(100);

/// Answers every datagram with itself, preceded by nothing; ended when dropped.
#[derive(Debug)]
pub struct UdpEcho {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl UdpEcho {
    /// Starts it on `port`, both families.
    pub fn start(namespace: &Namespace, port: u16) -> Result<UdpEcho> {
        let socket = inside::run(namespace, move || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))
                .with_context(|| format!("could not listen on UDP port {port}"))?;
            socket.set_read_timeout(Some(POLL))?;
            Ok(socket)
        })?;
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (stop, answered) = (stop.clone(), answered.clone());
            move || {
                let mut datagram = vec![0; 65_536];
                while !stop.load(Ordering::Relaxed) {
                    // An error here is the timeout, or an ICMP error an earlier answer brought back.
                    if let Ok((length, from)) = socket.recv_from(&mut datagram)
                        && socket.send_to(&datagram[..length], from).is_ok()
                    {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(())
            }
        });
        Ok(UdpEcho { stop, answered, thread: Some(thread) })
    }

    /// Datagrams answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The client's findings.
#[derive(Clone, Debug, Default)]
pub struct EchoResult {
    /// Datagrams answered with the bytes that were sent.
    pub answered: u64,
    /// Datagrams not answered within a second.
    pub lost: u64,
    /// Answers with other bytes.
    pub wrong: u64,
    /// Answers per second.
    pub rate: f64,
    /// 99th percentile of the time until the answer, in microseconds.
    pub p99_us: f64,
}

/// Asks the echoes at `to` for `duration`, over `flows` sockets in turn (socket i asks echo i modulo their number), with
/// datagrams of `length` bytes. The sockets' own ports go up from `port_first`; 0: the kernel chooses.
pub fn ask(
    client: &Namespace,
    to: &[SocketAddr],
    port_first: u16,
    flows: usize,
    length: usize,
    duration: Duration,
) -> Result<EchoResult> {
    let ends: Vec<SocketAddr> = to.iter().cycle().take(flows).copied().collect();
    inside::run(client, move || {
        let sockets: Vec<UdpSocket> =
            (ends.into_iter().zip(0..)).map(|(to, n)| connected(to, port_first, n)).collect::<Result<_>>()?;
        let mut result = EchoResult::default();
        let mut times = Vec::new();
        let mut random = fastrand::Rng::with_seed(flows as u64);
        let (mut sent, mut back) = (vec![0; length], vec![0; 65_536]);
        let start = Instant::now();
        for socket in sockets.iter().cycle() {
            if start.elapsed() >= duration {
                break;
            }
            random.fill(&mut sent);
            let asked = Instant::now();
            // Refused sends (an ICMP error came back) are lost datagrams like any other.
            match socket.send(&sent).and_then(|_| socket.recv(&mut back)) {
                Ok(received) if back[..received] == sent[..] => {
                    result.answered += 1;
                    times.push(asked.elapsed());
                }
                Ok(_) => result.wrong += 1,
                Err(_) => result.lost += 1,
            }
        }
        result.rate = result.answered as f64 / start.elapsed().as_secs_f64();
        times.sort_unstable();
        result.p99_us = times.get(times.len() * 99 / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
        Ok(result)
    })
}

fn connected(to: SocketAddr, port_first: u16, number: u16) -> Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let port = if port_first == 0 { 0 } else { port_first + number };
    let socket = bound((any, port).into())?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.connect(to).with_context(|| format!("no route to {to}"))?;
    Ok(socket)
}

/// A socket at an address. A process that another thread is about to start holds copies of all our descriptors from fork to
/// exec, so a port that was just closed here may be in use for a moment.
fn bound(address: SocketAddr) -> std::io::Result<UdpSocket> {
    const TRIES: usize = 200;
    for _ in 0..TRIES {
        match UdpSocket::bind(address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => std::thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
    UdpSocket::bind(address)
}
