//! `hairpin-bench user-stack`: a proxy on a user-level TCP stack, smoltcp, for the figure of KAIST 2018 that sets splicing in
//! the engine beside such a proxy (the paper's is mTCP's).
//!
//! It was written to be as fast as that stack lets it be, on one core:
//!
//! - a TUN device, so that there is no ARP and no Ethernet header; bursts of up to `BURST` packets, one system call each, as
//!   Hairpin's workers have on their TAP devices; it sleeps when there is nothing to do;
//! - checksums of what arrives are taken for right, as with a card that has checked them;
//! - smoltcp searches all its sockets for that of a packet, and for those with something to send, which 16,000 of them do not bear.
//!   Here each client has a set of its own with two sockets (its own and its backend's), found by a hash table or by the port;
//! - payload is copied once, from one socket's buffer into the other's.
//!
//! It reads no HTTP: what comes from a client goes to one backend, chosen in turn when the client connects, and back. So it does less
//! than an HTTP proxy. It has no congestion control (the way is one without loss), no IPv6, no health checks and no TLS.

mod pair;
mod tun;

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pair::{Pair, PairState};
use smoltcp::iface::{Config, Interface, PollResult};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::time::Duration;
use tun::TunDevice;

/// Packets read before any is answered, at most.
const BURST: usize = 64;
/// Clients at a time. Each place has some ports towards the backends, from [`PORT_FIRST`] on, which its clients have in turn: so a
/// port rests before it is used again.
const PAIRS_MAX: usize = 13_000;
const PORT_FIRST: u16 = 10_000;
const PORTS_EACH: usize = 4;
/// How often timers are looked at.
const TIMERS_EVERY: Duration = Duration::from_millis(10);

/// What the proxy is told.
#[derive(Clone, Debug, clap::Args)]
pub struct UserStackArgs {
    /// The TUN device, which is made.
    #[arg(long, default_value = "user-stack")]
    device: String,
    /// The address and port that clients connect to. The address is routed to the device, and is the one that backends see.
    #[arg(long)]
    listen: SocketAddrV4,
    /// Backends, in turn.
    #[arg(long, required = true)]
    backend: Vec<SocketAddrV4>,
    /// The MTU of the device, in bytes.
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(576..=9000))]
    mtu: u16,
}

/// The flow of a packet, as far as it tells which pair has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketEnds {
    source: (Ipv4Addr, u16),
    port: u16,
    is_first: bool,
}

/// Reads them; `None` for what is no whole TCP packet of IPv4.
fn ends(packet: &[u8]) -> Option<PacketEnds> {
    let header = usize::from(packet.first()? & 15) * 4;
    let tcp = packet.get(header..)?;
    if packet[0] >> 4 != 4 || *packet.get(9)? != 6 || header < 20 || tcp.len() < 20 {
        return None;
    }
    let address: [u8; 4] = *packet[12..].first_chunk()?;
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let is_first = tcp[13] & (SYN | ACK) == SYN;
    Some(PacketEnds { source: (address.into(), port(0)), port: port(2), is_first })
}

/// The proxy.
struct UserStack {
    interface: Interface,
    device: TunDevice,
    listen: SocketAddrV4,
    backends: Vec<SocketAddrV4>,
    next_backend: usize,
    pairs: Vec<Pair>,
    by_client: HashMap<(Ipv4Addr, u16), usize>,
    free: Vec<usize>,
    /// Pairs that had a packet in this burst.
    touched: Vec<usize>,
}

impl UserStack {
    fn new(arguments: &UserStackArgs) -> Result<UserStack> {
        let mut device = TunDevice::create(&arguments.device, usize::from(arguments.mtu))?;
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = fastrand::u64(..);
        let mut interface = Interface::new(config, &mut device, Instant::now());
        let address: Ipv4Address = *arguments.listen.ip();
        interface.update_ip_addrs(|addresses| {
            // The list is empty, and has room for one.
            let _ = addresses.push(IpCidr::new(address.into(), 32));
        });
        interface.routes_mut().add_default_ipv4_route(address).context("no room for a route")?;
        Ok(UserStack {
            interface,
            device,
            listen: arguments.listen,
            backends: arguments.backend.clone(),
            next_backend: 0,
            pairs: Vec::new(),
            by_client: HashMap::with_capacity(PAIRS_MAX),
            free: Vec::new(),
            touched: Vec::with_capacity(BURST),
        })
    }

    /// Reads a burst and answers it; whether there was anything.
    fn work(&mut self) -> Result<bool> {
        let now = Instant::now();
        let mut count = 0;
        while count < BURST && self.device.read()? {
            count += 1;
            let Some(place) = ends(self.device.arrived()).and_then(|ends| self.place(ends)) else {
                self.device.drop_arrived();
                continue;
            };
            let pair = &mut self.pairs[place];
            self.interface.poll_ingress_single(now, &mut self.device, &mut pair.sockets);
            if !std::mem::replace(&mut pair.is_touched, true) {
                self.touched.push(place);
            }
        }
        for place in std::mem::take(&mut self.touched) {
            self.advance(place, now);
        }
        Ok(count > 0)
    }

    /// The pair that a packet is for: a new one, if it begins a connection.
    fn place(&mut self, ends: PacketEnds) -> Option<usize> {
        if ends.port != self.listen.port() {
            let place = usize::from(ends.port.checked_sub(PORT_FIRST)?) % PAIRS_MAX;
            return (self.pairs.get(place)?.port == ends.port).then_some(place);
        }
        if let Some(place) = self.by_client.get(&ends.source) {
            return Some(*place);
        }
        if !ends.is_first {
            return None;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.pairs.len() < PAIRS_MAX => {
                self.pairs.push(Pair::new());
                self.pairs.len() - 1
            }
            None => return None,
        };
        self.pairs[place].open(ends.source, self.listen.port());
        self.by_client.insert(ends.source, place);
        Some(place)
    }

    /// Copies what a pair's ends have received, and sends what they have to send.
    fn advance(&mut self, place: usize, now: Instant) {
        let pair = &mut self.pairs[place];
        pair.is_touched = false;
        if pair.wants_backend() {
            let backend = self.backends[self.next_backend % self.backends.len()];
            self.next_backend += 1;
            let turn = (usize::from(pair.port.saturating_sub(PORT_FIRST)) / PAIRS_MAX + 1) % PORTS_EACH;
            pair.port = PORT_FIRST + (place + turn * PAIRS_MAX) as u16;
            pair.connect(self.interface.context(), backend);
        }
        // What is sent makes no room in a socket's buffer until it is acknowledged: one turn copies all that there is room for.
        let state = pair.copy();
        while self.interface.poll_egress(now, &mut self.device, &mut pair.sockets) == PollResult::SocketStateChanged {}
        pair.due = self.interface.poll_at(now, &pair.sockets);
        if state == PairState::Ended {
            self.by_client.remove(&pair.client);
            pair.close();
            self.free.push(place);
        }
    }

    /// Pairs whose timers have run out.
    fn run_timers(&mut self) {
        let now = Instant::now();
        for place in 0..self.pairs.len() {
            if self.pairs[place].due.is_some_and(|due| due <= now) {
                self.advance(place, now);
            }
        }
    }
}

/// Runs the proxy until it is killed.
///
/// # Errors
/// The device cannot be made, read or written: no rights, or it is gone.
pub fn run(arguments: &UserStackArgs) -> Result<()> {
    ensure!(arguments.listen.port() < PORT_FIRST, "the port to listen on must be below {PORT_FIRST}");
    let mut stack = UserStack::new(arguments)?;
    let mut timers = std::time::Instant::now();
    println!("ready");
    loop {
        let busy = stack.work()?;
        if timers.elapsed() >= TIMERS_EVERY {
            stack.run_timers();
            timers = std::time::Instant::now();
        }
        if busy {
            continue;
        }
        let mut waits = [PollFd::new(stack.device.as_fd(), PollFlags::POLLIN)];
        poll(&mut waits, PollTimeout::try_from(TIMERS_EVERY)?).context("cannot wait for packets")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_whole_tcp_packets_are_read() {
        let mut packet = [0u8; 40];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[12..16].copy_from_slice(&[10, 0, 0, 2]);
        packet[20..24].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        packet[33] = 2;
        let expected = PacketEnds { source: (Ipv4Addr::new(10, 0, 0, 2), 40_000), port: 80, is_first: true };
        assert_eq!(ends(&packet), Some(expected));
        packet[33] = 18;
        assert_eq!(ends(&packet), Some(PacketEnds { is_first: false, ..expected }));
        assert_eq!(ends(&packet[..39]), None);
        assert_eq!(ends(&[]), None);
        packet[0] = 0x44;
        assert_eq!(ends(&packet), None, "a header of 16 bytes");
        packet[0] = 0x65;
        assert_eq!(ends(&packet), None, "IPv6");
    }
}
