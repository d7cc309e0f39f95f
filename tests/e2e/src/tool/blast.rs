//! Small UDP packets over many flows at the highest rate one socket per core can make.
//!
//! First every flow is opened at a rate that lets it be answered, so that whatever keeps state has it; then the same
//! frames are sent flow after flow, again and again. What arrives is counted by the receivers' cards.

use crate::namespace::Namespace;
use crate::tool::frames::{self, LinkEnds};
use crate::tool::inside;
use crate::tool::packet_socket::{BURST_MAX, PacketSocket};
use anyhow::Result;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Payload bytes of each packet: with the headers, 60 bytes of Ethernet frame.
const PAYLOAD: usize = 18;
/// Flows per source address.
pub(super) const PORTS: usize = 20_000;
/// First source port.
pub(super) const FIRST_PORT: usize = 10_000;

/// The frames of a blast, shared out over the sending threads.
#[derive(Clone, Debug)]
pub struct Blast {
    frames: Vec<Arc<Vec<Vec<u8>>>>,
}

/// The network the sources of a blast are from; it must be routed to the sender.
pub const SOURCES: &str = "10.1.0.0/16";

impl Blast {
    /// `flows` IPv4 flows, flow i to `destinations[i % n]`, for as many threads as there are cores.
    pub fn new(link: LinkEnds, flows: usize, destinations: &[SocketAddr]) -> Blast {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let mut frames = vec![Vec::new(); threads];
        for flow in 0..flows {
            let host = flow / PORTS;
            let address = IpAddr::V4(Ipv4Addr::new(10, 1, (host >> 8) as u8, host as u8));
            let source = SocketAddr::new(address, (FIRST_PORT + flow % PORTS) as u16);
            // Threads take blocks of as many flows as there are destinations, so that each sends to all of them.
            let thread = flow / destinations.len() % threads;
            let destination = destinations[flow % destinations.len()];
            frames[thread].push(frames::udp(link, source, destination, &[0x55; PAYLOAD]));
        }
        Blast { frames: frames.into_iter().map(Arc::new).collect() }
    }

    /// Sends every flow's packet once, at most `per_second`.
    pub fn open(&self, sender: &Namespace, interface: &'static str, per_second: u32) -> Result<()> {
        let all = self.frames.clone();
        inside::run(sender, move || {
            let socket = PacketSocket::open(interface)?;
            let start = Instant::now();
            let mut sent = 0_u32;
            for frame in all.iter().flat_map(|frames| frames.iter()) {
                // A frame the device has no room for is offered again: every flow has to be opened.
                while socket.send(&[frame]) == 0 {
                    std::thread::yield_now();
                }
                sent += 1;
                let due = Duration::from_secs(1) * sent / per_second;
                std::thread::sleep(due.saturating_sub(start.elapsed()));
            }
            Ok(())
        })
    }

    /// Sends as fast as it goes, one thread on each core, until the result is stopped.
    pub fn fire(&self, sender: &Namespace, interface: &'static str) -> Sending {
        let shares = self.frames.iter().cloned().enumerate().collect();
        Sending::start(sender, interface, shares, BlastPace::default())
    }
}

/// How frames are sent again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlastPace {
    /// Frames per second and thread at most; as many as go, if none.
    pub per_second: Option<u32>,
    /// Another source port each time, so that no flow is seen twice.
    pub fresh: bool,
}

/// Threads that send frames as fast as they can, ended when dropped.
#[derive(Debug)]
pub struct Sending {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<u64>>>,
    start: Instant,
}

impl Sending {
    /// Starts one thread for each (core, frames), in `sender`, out of `interface`; each sends at
    /// `pace`.
    pub fn start(
        sender: &Namespace,
        interface: &'static str,
        shares: Vec<(usize, Arc<Vec<Vec<u8>>>)>,
        pace: BlastPace,
    ) -> Sending {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = shares.into_iter().map(|(cpu, frames)| {
            let stop = stop.clone();
            inside::spawn(sender, Some(cpu), move || send_in_turn(interface, &frames, pace, &stop))
        });
        Sending { threads: threads.collect(), stop, start: Instant::now() }
    }

    /// Ends it; returns the frames sent per second.
    pub fn stop(mut self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sent = 0;
        for thread in self.threads.drain(..) {
            sent += inside::join(thread)?;
        }
        Ok(sent as f64 / self.start.elapsed().as_secs_f64())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends the frames in turn until told to stop; returns how many the device took.
fn send_in_turn(interface: &str, frames: &[Vec<u8>], pace: BlastPace, stop: &AtomicBool) -> Result<u64> {
    let mut frames = frames.to_vec();
    let socket = PacketSocket::open(interface)?;
    let start = Instant::now();
    let mut sent = 0;
    let mut position = 0;
    while !stop.load(Ordering::Relaxed) && !frames.is_empty() {
        let all = frames.len();
        let end = all.min(position + BURST_MAX);
        let next = &mut frames[position..end];
        if pace.fresh {
            next.iter_mut().for_each(|frame| frames::next_source_port(frame));
        }
        let burst: Vec<&[u8]> = next.iter().map(Vec::as_slice).collect();
        position = if end == all { 0 } else { end };
        sent += socket.send(&burst) as u64;
        if let Some(per_second) = pace.per_second {
            let due = Duration::from_secs_f64(sent as f64 / f64::from(per_second));
            std::thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(sent)
}
