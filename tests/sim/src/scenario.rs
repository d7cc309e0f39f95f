//! A scenario: a network drawn from a seed, run to its end and checked.

mod set_up;

pub use set_up::set_up;

use crate::balancer::{BalancerHost, BalancerHostOptions, Bug};
use crate::carrier::Carrier;
use crate::engine::{EngineOptions, SetUpTally};
use crate::host::{Host, SocketOptions};
use crate::link::Faults;
use crate::network::{Middle, VirtualNetwork};
use crate::nic::CardProfile;
use crate::stream::{Book, Ending, Stream, StreamPlan};
use crate::trace::Trace;
use fastrand::Rng;
use hairpin_core::config::{
    Algorithm, AllDown, Backend, BackendState, Forwarding, Pool, Service, ServiceState, Snapshot, Timeouts,
    UnknownPacket,
};
use hairpin_core::engine::{EngineCaps, FlowEngine};
use hairpin_core::flow::{Address, Endpoint, Protocol};
use hairpin_core::l7::config::Kind;
use hairpin_core::time::{Duration, Time};
use std::cell::RefCell;
use std::fmt;
use std::net::Ipv6Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Connections must be over by then.
const OVER_BY: Duration = Duration::from_secs(3_000);
/// And Hairpin must have forgotten them so much later.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1_000);
/// Cards.
const CARDS: [&str; 5] = [
    include_str!("../../../lab/profiles/agilio.toml"),
    include_str!("../../../lab/profiles/bluefield-2.toml"),
    include_str!("../../../lab/profiles/connectx-5.toml"),
    include_str!("../../../lab/profiles/connectx-6.toml"),
    include_str!("../../../lab/profiles/liquidio3.toml"),
];
/// Connections that a server takes at a time.
const BACKLOG: usize = 12;
/// The port servers listen at.
pub const SERVER_PORT: u16 = 8000;

/// Why a run failed.
#[derive(Debug)]
pub struct RunFailure {
    /// Its seed.
    pub seed: u64,
    /// The failure.
    pub wrong: Vec<String>,
    /// The last events.
    pub trace: String,
}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}:", self.seed)?;
        for wrong in &self.wrong {
            writeln!(f, "  {wrong}")?;
        }
        write!(f, "{}", self.trace)
    }
}

/// The summary of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunSummary {
    /// Events.
    pub events: u64,
    /// Connections.
    pub connections: u64,
    /// Frames that the engine forwarded.
    pub offloaded: u64,
    /// Those of them that a card forwarded.
    pub by_cards: u64,
    /// Processes that were killed.
    pub killed: u64,
    /// Of those forwarded, by engines that check no guards.
    pub unguarded: u64,
    /// Frames that a guard kept for software.
    pub guarded: u64,
    /// Frames that the worker took.
    pub frames: u64,
    /// What an engine that sets connections up has done.
    pub set_up: SetUpTally,
    /// How long it lasted, in virtual time.
    pub lasted: Duration,
}

impl std::ops::AddAssign for RunSummary {
    fn add_assign(&mut self, other: RunSummary) {
        self.events += other.events;
        self.connections += other.connections;
        self.offloaded += other.offloaded;
        self.by_cards += other.by_cards;
        self.killed += other.killed;
        self.unguarded += other.unguarded;
        self.guarded += other.guarded;
        self.frames += other.frames;
        self.set_up += other.set_up;
        self.lasted += other.lasted;
    }
}

/// The node in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// A router: proves peers and checkers.
    Nothing,
    /// A layer-4 service.
    Layer4(Forwarding),
    /// An HTTP service ([`crate::http`] only; streams of bytes go over a router instead).
    Layer7,
}

/// Runs `run` for seeds from `first` on; how many `HAIRPIN_SIM_SEEDS` says, else `count`. Panics with the first failure.
pub fn seeds(first: u64, count: u64, run: impl Fn(u64) -> Result<RunSummary, RunFailure>) -> RunSummary {
    let count = std::env::var("HAIRPIN_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(count);
    let first = std::env::var("HAIRPIN_SIM_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(first);
    let mut all = RunSummary::default();
    for seed in first..first + count {
        match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(summary)) => all += summary,
            Ok(Err(failure)) => panic!("{failure}"),
            Err(panic) => {
                eprintln!("seed {seed} panicked");
                std::panic::resume_unwind(panic);
            }
        }
    }
    all
}

/// An end in the simulated network.
pub fn end(ipv6: bool, net: u8, host: u8, port: u16) -> Endpoint {
    let address = if ipv6 {
        Address(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, u16::from(net), u16::from(host)).octets())
    } else {
        Address::from_ipv4([10, 0, net, host])
    };
    Endpoint { address, port }
}

/// A service of `backends` servers, each with its number, at `vip`.
pub fn service(name: &str, vip: Endpoint, first: u16, backends: &[Endpoint]) -> Service {
    let backend = |(index, endpoint): (usize, &Endpoint)| Backend {
        number: first + index as u16,
        name: format!("{name}-{index}").into(),
        endpoint: *endpoint,
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    Service {
        state: ServiceState::Active,
        name: name.into(),
        endpoint: vip,
        protocol: Protocol::Tcp,
        kind: Kind::Forward,
        forwarding: Forwarding::Nat,
        algorithm: Algorithm::RoundRobin,
        unknown: UnknownPacket::Drop,
        // Beyond the longest pause of a TCP that has lost several segments in a row (RFC 6298: 60 s).
        timeouts: Timeouts {
            tcp_handshake: Duration::from_secs(150),
            tcp_half_closed: Duration::from_secs(300),
            tcp_closed: Duration::from_secs(150),
            tcp_reset: Duration::from_secs(150),
            ..Timeouts::default()
        },
        drain_limit: Duration::ZERO,
        all_down: AllDown::Refuse,
        backends: backends.iter().enumerate().map(backend).collect(),
        ..Service::vacant()
    }
}

/// The full-NAT pool of the simulated network.
pub fn pool(ipv6: bool) -> Pool {
    Pool {
        addresses: [end(ipv6, 3, 1, 0).address].into(),
        port_first: 20_000,
        port_last: 20_499,
        time_wait: Duration::from_secs(60),
    }
}

/// An engine drawn from a seed's generator; half of them can do everything.
pub fn engine(random: &mut Rng) -> EngineOptions {
    let mut can = || random.u8(..4) > 0;
    let (numbers, sack, window, guards) = (can(), can(), can(), can());
    let all = random.bool();
    let rules_max = if random.u8(..4) == 0 { random.u32(1..8) } else { 1000 };
    EngineOptions {
        caps: EngineCaps {
            rules_max,
            families_apart: false,
            ops_in_flight_max: random.u32(1..32),
            rewrites_sequence: all || numbers,
            rewrites_sack: all || sack,
            rewrites_window: all || window,
            rewrites_timestamps: all || window,
            checks_guards: all || guards,
            counts: true,
            judges_access: false,
        },
        latency: Duration::from_micros(random.u64(1..2_000)),
        refused: if random.u8(..4) == 0 { 200_000 } else { 0 },
        fence: random.u8(..4) > 0,
        bug: None,
    }
}

/// A card of those there are profiles of, drawn; some of them with hardly any room, and insertions that fail.
pub fn card(random: &mut Rng) -> CardProfile {
    let text = random.choice(CARDS).unwrap_or(CARDS[0]);
    let mut profile = CardProfile::parse(text).expect("the profiles that come along are right");
    if random.u8(..4) == 0 {
        profile.tables.rules_max = random.u32(2..8);
    }
    if random.u8(..4) == 0 {
        profile.updates.failing_ppm = 200_000;
    }
    profile
}

/// A balancer's options, drawn, but for its snapshot. One in four has a card in place of the kernel's engine.
pub fn balancer(random: &mut Rng, snapshot: Snapshot, bug: Option<Bug>) -> BalancerHostOptions {
    // Of its own, so that the other seeds mean what they meant before there were cards.
    let mut chance = Rng::with_seed(random.get_seed());
    let card = (bug.is_none() && chance.u8(..4) == 0).then(|| card(&mut chance));
    let mut options = BalancerHostOptions {
        snapshot,
        card: None,
        set_up: None,
        engine: engine(random),
        offload_after: (random.u8(..4) > 0).then(|| random.u64(..20)),
        coalesce: random.bool().then(|| Duration::from_micros(random.u64(10..2_000))),
        iteration: Duration::from_micros(random.u64(1..300)),
        blocks: random.u8(..4) == 0,
        capacity: 128,
        process_lasts: None,
        bug,
    };
    if card.is_some() {
        // Cards see packets one by one.
        (options.card, options.coalesce) = (card, None);
    }
    options
}

/// Runs a network to its end and checks what every run must show; `more` adds what else is wrong.
pub fn conclude(
    seed: u64,
    mut network: VirtualNetwork,
    more: impl FnOnce() -> Vec<String>,
) -> Result<RunSummary, RunFailure> {
    let started = network.now;
    let done = network.run(started + OVER_BY);
    let mut wrong: Vec<String> = Vec::new();
    for host in &mut network.hosts {
        wrong.append(&mut host.failures);
        if !done {
            wrong.extend(host.open().into_iter().map(|open| format!("not over: {open}")));
        }
    }
    let mut summary = RunSummary { lasted: network.now.since(started), ..RunSummary::default() };
    if wrong.is_empty() {
        let until = network.now + FORGOTTEN_AFTER;
        wrong.extend(network.drain(until));
    }
    wrong.extend(more());
    summary.events = network.events;
    summary.connections = network.hosts.iter().map(|host| host.ended as u64).sum::<u64>() / 2;
    if let Middle::Balancer(balancer) = &mut network.middle {
        wrong.append(&mut balancer.failures);
        (summary.offloaded, summary.guarded) = balancer.event_loop.engine.carried();
        summary.unguarded = if balancer.event_loop.engine.caps().checks_guards { 0 } else { summary.offloaded };
        summary.by_cards = if matches!(balancer.event_loop.engine, Carrier::Card(_)) { summary.offloaded } else { 0 };
        summary.frames = balancer.event_loop.worker.statistics().frames;
        summary.killed = balancer.killed;
        summary.set_up = balancer.event_loop.engine.set_up();
        if !wrong.is_empty() {
            wrong.push(format!("{:?}", balancer.tally()));
        }
    }
    match wrong.is_empty() {
        true => Ok(summary),
        false => Err(RunFailure { seed, wrong, trace: network.trace.lines() }),
    }
}

/// Streams of exact bytes between clients and servers.
pub fn streams(seed: u64, between: Between, bug: Option<Bug>) -> Result<RunSummary, RunFailure> {
    let mut random = Rng::with_seed(seed);
    let ipv6 = random.bool();
    let vip = end(ipv6, 1, 1, 80);
    let servers: Vec<Endpoint> = (0..random.u8(1..4)).map(|n| end(ipv6, 2, 10 + n, SERVER_PORT)).collect();
    let clients: Vec<Endpoint> = (0..random.u8(1..4)).map(|n| end(ipv6, 4, 10 + n, 0)).collect();
    let mut draw_balancer = random.fork();
    let (middle, target) = match between {
        Between::Nothing | Between::Layer7 => (Middle::Router, servers[0]),
        Between::Layer4(forwarding) => {
            let mut service = service("stream", vip, 0, &servers);
            service.forwarding = forwarding;
            let draw = &mut draw_balancer;
            service.unknown = if draw.bool() { UnknownPacket::Drop } else { UnknownPacket::Reset };
            service.algorithm = if draw.bool() { Algorithm::RoundRobin } else { Algorithm::PowerOfTwo };
            let options = balancer(draw, Snapshot::new([service].into(), pool(ipv6)), bug);
            (Middle::Balancer(Box::new(BalancerHost::new(options, draw))), vip)
        }
    };
    let name = format!("streams-{seed}");
    let mut network = VirtualNetwork::new(middle, Trace::new(&name), random.fork());
    let resets = random.u8(..4) == 0;
    let book = Rc::new(RefCell::new(Book { seed, ..Book::default() }));
    let sockets = sockets(&mut random, resets);
    let population = Population {
        servers: &servers,
        clients: &clients,
        target,
        sockets,
        servers_give_up: sockets.timeout,
        resets,
        forged: 0,
    };
    population.attach(&mut network, &mut random, &book);
    conclude(seed, network, || served_once(&book.borrow()))
}

/// Sockets' options, drawn.
fn sockets(random: &mut Rng, resets: bool) -> SocketOptions {
    let mut sockets = SocketOptions::draw(random);
    if resets {
        // a lost RST is not sent again: only a peer that sends finds out
        sockets.keep_alive = Some(Duration::from_secs(10));
        sockets.timeout = Some(Duration::from_secs(200));
    }
    sockets
}

/// Every connection was accepted by one server once, but for those that are reset.
fn served_once(book: &Book) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, plan) in &book.plans {
        let servers = book.accepted.get(name).map_or(0, Vec::len);
        let resets = matches!(plan.ending, Ending::ClientResets(_) | Ending::ServerResets(_));
        if servers > 1 || servers == 0 && !resets {
            wrong.push(format!("connection {name:#x} was served {servers} times"));
        }
    }
    wrong
}

/// Servers, and clients that connect to `target`.
struct Population<'a> {
    servers: &'a [Endpoint],
    clients: &'a [Endpoint],
    target: Endpoint,
    sockets: SocketOptions,
    /// [`SocketOptions::timeout`] of servers.
    servers_give_up: Option<Duration>,
    /// Whether connections may be reset.
    resets: bool,
    /// Connections that others may open at a server, and never end.
    forged: usize,
}

impl Population<'_> {
    /// Attaches them to a network. The client's ends, and when each connects.
    fn attach(
        &self,
        network: &mut VirtualNetwork,
        random: &mut Rng,
        book: &Rc<RefCell<Book>>,
    ) -> Vec<(usize, Endpoint, Time)> {
        let sockets = SocketOptions { timeout: self.servers_give_up, ..self.sockets };
        for (number, server) in self.servers.iter().enumerate() {
            let mut host = Host::new(server.address, 1500, random.u64(..), sockets);
            let (book, mut accepted) = (book.clone(), (number as u64) << 32);
            let accept = move || -> Box<dyn crate::host::Role> {
                accepted += 1;
                Box::new(Stream::server(book.clone(), number, accepted))
            };
            host.listen(SERVER_PORT, BACKLOG + self.forged, Box::new(accept));
            network.attach(host, [Faults::draw(random, 1500), Faults::draw(random, 1500)]);
        }
        let mut connecting = Vec::new();
        for client in self.clients {
            let mtu = if random.bool() { 1500 } else { random.usize(1300..1500) };
            let mut host = Host::new(client.address, mtu, random.u64(..), self.sockets);
            for index in 0..random.u16(1..5) {
                let name = random.u64(..);
                book.borrow_mut().plans.insert(name, StreamPlan::draw(random, self.resets));
                let at = network.now + Duration::from_micros(random.u64(..2_000_000));
                let port = 40_000 + index;
                host.connect(at, port, self.target, Box::new(Stream::client(book.clone(), name)));
                connecting.push((network.hosts.len(), Endpoint { port, ..*client }, at));
            }
            network.attach(host, [Faults::draw(random, 1500), Faults::draw(random, mtu)]);
        }
        connecting
    }
}

/// Time zero of virtual clocks, for who needs one.
pub const START: Time = Time::from_nanos(1_000_000_000);
