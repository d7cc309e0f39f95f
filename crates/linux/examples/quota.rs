//! A function other than balancing, on the balancer's seams: each client of one server has a quota of payload bytes, up and down
//! together, and is cut off at its end. The flow engine carries what is below it. docs/internals/functions.md explains it.

use anyhow::{Context, Result, bail};
use hairpin_core::engine::{Completion, Guard, Rule, RuleId, RuleOp};
use hairpin_core::event_loop::FlowFunction;
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::frame::{Arrival, Batch, Egress, Frame, FrameIo};
use hairpin_core::table::{AnyTable, Entries, Hasher, Lookup, Table};
use hairpin_core::wire::{self, Parsed, Transport, tcp};
use hairpin_core::{rewrite::Rewrite, time::Time};
use hairpin_linux::one_worker::OneWorker;
use std::{collections::VecDeque, hash::BuildHasher, hash::RandomState, io, net::SocketAddr};

/// Clients at most; packets of others are dropped. The least lease that is worth a rule, and payload of the packet that asks.
const CLIENTS_MAX: usize = 65_536;
const LEASE_MIN: [u32; 2] = [256 << 10, 1024];

/// A client. It has one lease at most, payload of a flow that the engine carries: `used` and `leased` together fit the quota.
/// `rule` is the lease's; its guard is taken away when it is to end.
#[derive(Default)]
struct Client {
    address: Address,
    used: u64,
    leased: u64,
    by_engine: u64,
    is_cut: bool,
    rule: Rule,
}

/// The function, with all memory that it will ever need.
struct Quota {
    server: Endpoint,
    bytes: u64,
    clients: Vec<Client>,
    index: AnyTable,
    ops: VecDeque<RuleOp>,
}

impl Entries<[u8; 16]> for Quota {
    fn is(&self, value: u32, address: &[u8; 16]) -> bool {
        self.clients.get(value as usize).is_some_and(|client| client.address.0 == *address)
    }
}

impl Quota {
    /// The client with this address, which may be a new one.
    fn client(&mut self, address: Address) -> Option<&mut Client> {
        let place = self.index.find(&address.0, self).map_or(self.clients.len(), |place| place as usize);
        if place == self.clients.len() && place < CLIENTS_MAX {
            self.index.insert(&address.0, place as u32).ok()?;
            let rule = Rule { id: RuleId(place as u64), ..Rule::default() };
            self.clients.push(Client { address, rule, ..Client::default() });
        }
        self.clients.get_mut(place)
    }

    /// Whether a frame goes on, and how.
    fn admits(&mut self, frame: &mut impl Frame) -> Option<()> {
        let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else {
            frame.meta_mut().egress = Egress::Kernel;
            return Some(());
        };
        let (quota, is_up) = (self.bytes, at.key.destination == self.server);
        let client = self.client(if is_up { at.key.source.address } else { at.key.destination.address })?;
        // Of a packet with no hop left, or longer than its link takes, a router tells the sender; this example does not.
        if client.is_cut || at.ttl <= 1 || frame.meta().arrival != Arrival::Received {
            return None;
        }
        let rewrite = Rewrite { source: at.key.source, destination: at.key.destination, ..Rewrite::default() };
        let payload = (at.end - at.payload) as u64;
        let fits = client.used + client.leased + payload <= quota;
        // What does not fit ends a lease first: what the engine has not carried of it is the client's again.
        let op = if fits { client.lease(&at, frame.bytes(), rewrite, quota) } else { client.end() };
        client.is_cut = client.used + payload > quota;
        client.used += u64::from(fits) * payload;
        self.ops.extend(op);
        let checksum = frame.meta().checksum;
        rewrite.apply(frame.bytes_mut(), &at, checksum);
        fits.then_some(())
    }
}

impl Client {
    /// Leases half of what is left to the flow of a packet, or ends its lease where the packet shows that it is used up.
    fn lease(&mut self, at: &Transport, frame: &[u8], rewrite: Rewrite, quota: u64) -> Option<RuleOp> {
        let payload = (at.end - at.payload) as u32;
        let is_control = at.tcp_flags & (tcp::SYN | tcp::FIN | tcp::RST) != 0;
        if self.leased > 0 {
            let is_outside = is_control || !self.rule.guard?.admits_packet(frame, at);
            return if self.rule.key == at.key && is_outside { self.end() } else { None };
        }
        let lease = ((quota - self.used - u64::from(payload)) / 2).min(1 << 30) as u32;
        if at.key.protocol != Protocol::Tcp || is_control || lease < LEASE_MIN[0] || payload < LEASE_MIN[1] {
            return None;
        }
        let number = |field| frame[at.l4 + field..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let (sequence, acknowledgement) = (number(tcp::SEQUENCE).wrapping_add(payload), number(tcp::ACKNOWLEDGEMENT));
        let guard = Some(Guard { sequence, sequence_length: lease, acknowledgement, acknowledgement_length: 1 << 30 });
        // Below, the client's place; above, how many leases it has had: a rule's name is used once.
        let id = RuleId(self.rule.id.0 + (1 << 32));
        self.rule = Rule { id, key: at.key, rewrite, guard, ..Rule::default() };
        self.leased = lease.into();
        Some(RuleOp::Install(self.rule))
    }

    fn end(&mut self) -> Option<RuleOp> {
        self.rule.guard.take().map(|_| RuleOp::Remove { id: self.rule.id, key: self.rule.key })
    }
}

impl FlowFunction for Quota {
    fn handle_batch<I: FrameIo>(&mut self, _: Time, _: &mut I, from: &mut Batch<I::Frame>, to: &mut Batch<I::Frame>) {
        to.extend(from.drain(..).filter_map(|mut frame| self.admits(&mut frame).map(|()| frame)));
    }

    fn poll_op(&mut self) -> Option<RuleOp> {
        self.ops.pop_front()
    }

    fn return_op(&mut self, op: RuleOp) {
        self.ops.push_front(op);
    }

    fn handle_completion(&mut self, _: Time, completion: &Completion) {
        let Some((id, counters)) = completion.ended() else { return };
        let client = &mut self.clients[id.0 as u32 as usize];
        if client.rule.id == id && client.leased > 0 {
            let carried = counters.bytes.min(client.leased); // Headers, too; but never more than was leased.
            (client.used, client.by_engine, client.leased) = (client.used + carried, client.by_engine + carried, 0);
        }
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [interfaces, server, bytes] = &arguments[..] else { bail!("usage: quota INTERFACE,... SERVER:PORT BYTES") };
    let end: SocketAddr = server.parse().context("SERVER:PORT")?;
    let server = Endpoint::new(end.ip(), end.port());
    let (bytes, ops) = (bytes.parse().context("BYTES")?, VecDeque::with_capacity(2 * CLIENTS_MAX));
    let index = AnyTable::new(CLIENTS_MAX, Hasher::new([(); 4].map(|()| RandomState::new().hash_one(0))));
    let worker = OneWorker::start("quota", interfaces.split(','), &[(server, Protocol::Tcp)])?;
    println!("ready");
    let all =
        worker.run(Quota { server, bytes, clients: Vec::with_capacity(CLIENTS_MAX), index, ops }, &io::stdin())?;
    for Client { address, used, by_engine, is_cut, .. } in &all.clients {
        println!("{address}: {used} bytes, {by_engine} of them by the engine; cut off: {is_cut}");
    }
    Ok(())
}
