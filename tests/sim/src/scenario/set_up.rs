//! Connections that the engine sets up: what may be lost, forged, in the way, full or dead meanwhile.

use super::{Population, SERVER_PORT, balancer, conclude, end, pool, served_once, service, sockets};
use super::{RunFailure, RunSummary};
use crate::balancer::{BalancerHost, Bug};
use crate::engine::SetUpOptions;
use crate::network::{Middle, VirtualNetwork};
use crate::segments::tcp_segment;
use crate::stream::{Book, Stream, StreamPlan};
use crate::trace::Trace;
use fastrand::Rng;
use hairpin_core::config::{Algorithm, Forwarding, Snapshot, UnknownPacket};
use hairpin_core::flow::Endpoint;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use std::cell::RefCell;
use std::rc::Rc;

/// Forged frames of a kind at most.
const FORGED_MAX: usize = 8;
/// Half-open connections that the engine keeps: more than there ever are, since one that gives way is a handshake lost.
const PENDING_MAX: usize = 64;

fn options(random: &mut Rng) -> SetUpOptions {
    let serves = match random.u8(..3) {
        0 => 0,
        1 => random.u64(..2_000),
        _ => 100_000,
    };
    SetUpOptions {
        pending_max: PENDING_MAX,
        reports_max: if random.u8(..3) == 0 { random.usize(1..4) } else { 4096 },
        known_cells: if random.u8(..4) == 0 { 4 } else { 1024 },
        admitted: (random.u8(..3) == 0).then(|| random.u32(5..50)),
        heartbeat_timeout: Duration::from_millis(random.u64(1..200)),
        serves: Duration::from_millis(serves),
        away_max: Duration::from_millis(if random.bool() { random.u64(1..100) } else { random.u64(100..5_000) }),
    }
}

/// Streams of exact bytes whose connections the engine sets up, of which some begin anew between the same ends; with forged
/// packets among them, through processes that last so long on average.
pub fn set_up(seed: u64, bug: Option<Bug>, process_lasts: Option<Duration>) -> Result<RunSummary, RunFailure> {
    let mut random = Rng::with_seed(seed);
    let ipv6 = random.bool();
    let vip = end(ipv6, 1, 1, 80);
    let servers: Vec<Endpoint> = (0..random.u8(1..4)).map(|n| end(ipv6, 2, 10 + n, SERVER_PORT)).collect();
    let clients: Vec<Endpoint> = (0..random.u8(1..4)).map(|n| end(ipv6, 4, 10 + n, 0)).collect();
    let mut draw = random.fork();
    let mut service = service("stream", vip, 0, &servers);
    service.forwarding = Forwarding::Nat;
    let drops = draw.bool();
    service.unknown = if drops { UnknownPacket::Drop } else { UnknownPacket::Reset };
    service.algorithm = match draw.u8(..8) {
        0 => Algorithm::Maglev,
        1 => Algorithm::SourceHash,
        2..=4 => Algorithm::WeightedRoundRobin,
        _ => Algorithm::RoundRobin,
    };
    // One whose end was not told, since no process was there, is forgotten after that.
    service.timeouts.tcp_established = Duration::from_secs(400);
    let mut middle = balancer(&mut draw, Snapshot::new([service].into(), pool(ipv6)), bug);
    middle.card = None;
    middle.set_up = Some(options(&mut draw));
    middle.process_lasts = process_lasts;
    // Where there is no room, a client whose SYN has passed may be told so by RST.
    if draw.u8(..4) == 0 && drops {
        middle.capacity = draw.usize(8..32);
    }
    let middle = Middle::Balancer(Box::new(BalancerHost::new(middle, &mut draw)));
    let mut network = VirtualNetwork::new(middle, Trace::new(&format!("set-up-{seed}")), random.fork());
    let resets = random.u8(..4) == 0;
    let book = Rc::new(RefCell::new(Book { seed, ..Book::default() }));
    let mut sockets = sockets(&mut random, resets);
    if resets {
        // A client may find no process for minutes.
        sockets.timeout = Some(Duration::from_secs(1_000));
    }
    let population = Population {
        servers: &servers,
        clients: &clients,
        target: vip,
        sockets,
        // A server would send its SYN-ACK for ever to who is not there.
        servers_give_up: Some(Duration::from_secs(200)),
        resets,
        forged: FORGED_MAX,
    };
    let connecting = population.attach(&mut network, &mut random, &book);
    if !resets {
        again(&mut network, &mut random, &book, &connecting, vip);
    }
    let connecting: Vec<(Endpoint, Time)> = connecting.into_iter().map(|(_, client, at)| (client, at)).collect();
    let forger = Forger { vip, servers: &servers, connecting: &connecting, fins: !sockets.timestamps };
    forger.forge(&mut network, &mut random, ipv6);
    conclude(seed, network, || served_once(&book.borrow()))
}

/// Half of the clients' ends connect once more, as soon as they can.
fn again(
    network: &mut VirtualNetwork,
    random: &mut Rng,
    book: &Rc<RefCell<Book>>,
    connecting: &[(usize, Endpoint, Time)],
    target: Endpoint,
) {
    for (host, client, at) in connecting {
        if random.bool() {
            let name = random.u64(..);
            book.borrow_mut().plans.insert(name, StreamPlan::draw(random, false));
            let at = *at + Duration::from_millis(random.u64(1..60_000));
            network.hosts[*host].connect(at, client.port, target, Box::new(Stream::client(book.clone(), name)));
        }
    }
}

/// Sends what no end has sent, with numbers that it guesses.
struct Forger<'a> {
    vip: Endpoint,
    servers: &'a [Endpoint],
    /// Clients' ends, and when they first connect.
    connecting: &'a [(Endpoint, Time)],
    /// Whether among it are FINs: they have no timestamps.
    fins: bool,
}

impl Forger<'_> {
    fn forge(&self, network: &mut VirtualNetwork, random: &mut Rng, ipv6: bool) {
        let ms = |random: &mut Rng, range: std::ops::Range<u64>| Duration::from_millis(random.u64(range));
        let start = network.now;
        for number in 0..random.usize(..FORGED_MAX) {
            // Of a client that there is not: a SYN, and the acknowledgement of what it never got.
            let (absent, at) = (end(ipv6, 9, number as u8, random.u16(1..)), start + ms(random, 0..5_000));
            let numbers = [random.u32(..), random.u32(..)];
            network.forge(at, tcp_segment([absent, self.vip], SYN, numbers, b""));
            let at = at + ms(random, 1..300);
            network.forge(at, tcp_segment([absent, self.vip], ACK, numbers, b""));
        }
        for _ in 0..random.usize(..FORGED_MAX) {
            let (Some(&(client, began)), Some(&server)) = (random.choice(self.connecting), random.choice(self.servers))
            else {
                return;
            };
            let numbers = [random.u32(..), random.u32(..)];
            let at = began + ms(random, 200..30_000);
            let (at, ends, flags) = match random.u8(..6) {
                // Of a backend, before its end connects: a flow of the kernel's, in the way of the connection.
                0 => (start + began.since(start) * random.u32(..100) / 100, [server, client], ACK),
                1 => (at, [server, client], RST),
                2 if self.fins => (at, [client, self.vip], FIN),
                2 | 3 => (at, [client, self.vip], SYN),
                _ => (at, [client, self.vip], RST),
            };
            network.forge(at, tcp_segment(ends, flags, numbers, if flags == ACK { b"data" } else { b"" }));
        }
    }
}
