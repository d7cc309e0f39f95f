//! Connections in a capture file, as a balancer in front of their servers would track them.
//!
//! The life cycle is the balancer's own where it is a function by itself (TCP's states); UDP's rules are
//! `worker/packets.rs` over again. Left out: TCP connections whose handshake is not in the file, since their first packets
//! are unknown; what goes to a group of hosts; what never gets so far that the policy is asked. Who sends the first
//! datagram is the client.

use super::TrainingFlow;
use crate::traffic::recording;
use anyhow::{Context, Result, ensure};
use hairpin_core::config::Timeouts;
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::l4::connection::State;
use hairpin_core::l4::tcp;
use hairpin_core::wire::Transport;
use hairpin_core::wire::tcp::{ACK, RST, SYN};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// Connections of a file at most; the packets of others are left out.
const FLOWS_MAX: usize = 1 << 22;
/// Unanswered datagrams of a client until it counts as one that has something to say.
const UDP_ONE_WAY_PACKETS: u64 = 8;

/// A connection while its packets are read.
struct TraceConnection {
    flow: TrainingFlow,
    state: State,
    began: Duration,
    last: Duration,
    /// Packets from the client and from the backend.
    forwarded: [u64; 2],
}

/// Everything of a file so far.
#[derive(Default)]
struct TraceReading {
    connections: Vec<TraceConnection>,
    /// The connection of each client's flow.
    open: BTreeMap<FlowKey, usize>,
    timeouts: Timeouts,
}

/// Connections that a policy would be shown something of; what was left out, by reason.
pub type TraceFlows = (Vec<TrainingFlow>, BTreeMap<&'static str, u64>);

/// Reads a pcap or pcapng file.
///
/// # Errors
/// It cannot be read, is neither, or has no connection that a policy would be asked about.
pub fn read(path: &Path) -> Result<TraceFlows> {
    let mut reading = TraceReading::default();
    let mut left_out = recording::frames(path, &mut |time, _, at| reading.packet(time, at))?;
    let all = reading.connections.len();
    let flows: Vec<TrainingFlow> =
        reading.connections.into_iter().map(|connection| connection.flow).filter(|flow| flow.seen > 0).collect();
    ensure!(!flows.is_empty(), "{} has no connection that is established, with its beginning", path.display());
    left_out.insert("connections that were never established", (all - flows.len()) as u64);
    Ok((flows, left_out))
}

/// Capture files among what is named: files themselves, and those in folders, by name.
///
/// # Errors
/// One cannot be read, or a folder has none.
pub fn files(named: &[std::path::PathBuf]) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).with_context(|| format!("cannot look into {}", path.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<_> =
            paths.filter(|path| path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")).collect();
        ensure!(!found.is_empty(), "{} has no *.pcap or *.pcapng", path.display());
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

impl TraceReading {
    /// Takes a packet; why it is left out, if it is.
    fn packet(&mut self, time: Duration, at: &Transport) -> Option<&'static str> {
        if !is_one_host(at.key.destination.address.into()) {
            return Some("to a group of hosts");
        }
        let (key, direction) = match self.open.contains_key(&at.key.reversed()) {
            true => (at.key.reversed(), Direction::FromBackend),
            false => (at.key, Direction::FromClient),
        };
        let known = self.open.get(&key).copied().filter(|&known| !self.has_ended(known, time, direction, at));
        let known = match known {
            Some(known) => known,
            None => match self.begin(time, at) {
                Ok(new) => new,
                Err(reason) => return Some(reason),
            },
        };
        // One that began anew may have begun at the other end.
        let direction = if self.open.get(&at.key) == Some(&known) { Direction::FromClient } else { direction };
        if let Some(connection) = self.connections.get_mut(known) {
            connection.take(time, direction, at);
        }
        None
    }

    /// Whether the packet is not of this connection any more.
    fn has_ended(&self, known: usize, time: Duration, direction: Direction, at: &Transport) -> bool {
        let Some(connection) = self.connections.get(known) else { return true };
        let silence = match connection.state {
            State::UdpNew => self.timeouts.udp_new,
            State::UdpEstablished => self.timeouts.udp_established,
            _ => self.timeouts.tcp_established,
        };
        let anew = at.key.protocol == Protocol::Tcp && at.tcp_flags & (SYN | ACK | RST) == SYN;
        let anew = anew && direction == Direction::FromClient && connection.state.is_over();
        anew || time.saturating_sub(connection.last) > silence
    }

    fn begin(&mut self, time: Duration, at: &Transport) -> Result<usize, &'static str> {
        let tcp = at.key.protocol == Protocol::Tcp;
        if tcp && at.tcp_flags & (SYN | ACK | RST) != SYN {
            return Err("of connections that began before");
        }
        if self.connections.len() >= FLOWS_MAX {
            return Err("beyond what is loaded");
        }
        let number = self.connections.len();
        self.open.remove(&at.key.reversed());
        self.open.insert(at.key, number);
        self.connections.push(TraceConnection {
            flow: TrainingFlow::new(at.key.protocol, at.key.destination.port),
            state: if tcp { State::SynSent } else { State::UdpNew },
            began: time,
            last: time,
            forwarded: [0; 2],
        });
        Ok(number)
    }
}

impl TraceConnection {
    fn take(&mut self, time: Duration, direction: Direction, at: &Transport) {
        self.last = self.last.max(time);
        self.state = match self.flow.protocol {
            Protocol::Tcp => tcp::next(self.state, direction, at.tcp_flags),
            Protocol::Udp => {
                let [sent, answered] = self.forwarded;
                let proven = answered > 0 || sent + 1 >= UDP_ONE_WAY_PACKETS;
                match (self.state, direction) {
                    (State::UdpNew, Direction::FromClient) if proven => State::UdpEstablished,
                    (state, _) => state,
                }
            }
        };
        self.forwarded[direction as usize] += 1;
        if !matches!(self.state, State::Established | State::UdpEstablished) {
            self.flow.before += u64::from(self.flow.seen == 0);
            return;
        }
        let length = u32::try_from(at.end - at.l3).unwrap_or(u32::MAX);
        self.flow.first.add(length, direction, time.saturating_sub(self.began));
        self.flow.seen += 1;
    }
}

/// Whether the address is one host's.
fn is_one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_multicast() && !v4.is_broadcast() && v4.octets()[3] != 255,
        IpAddr::V6(v6) => !v6.is_multicast(),
    }
}
