//! The soak: mixed HTTP traffic of many clients, every byte of it compared, while the operator reloads, drains, enables and
//! disables: `make soak`, and for half a minute among the end-to-end tests.
//!
//! Clients fetch 1 B to 50 MB, with a length and in chunks, have 1 B to 5 MB sent back, and talk over WebSockets, on kept
//! connections and on new ones, over IPv4 and IPv6. Every two seconds the configuration is reloaded with other weights, and
//! every third time with one backend more or fewer; in between a backend is drained, enabled, disabled and enabled. No byte
//! may be wrong, and no operation may fail but those that a backend had when it was disabled, whose clients have to be told
//! at once.

mod book;
mod bytes;
mod client;
mod deaths;
mod operator;
mod server;
mod socket;
mod talk;

pub use book::SoakTally;
pub use deaths::SoakDeaths;
pub use talk::WebSocketTalk;

use crate::namespace::Namespace;
use crate::peer::{Hairpin, HairpinOptions, PeerService};
use crate::tool::inside;
use crate::topology::{Cards, Family, Topology, TopologyOptions, vip};
use anyhow::{Context, Result, ensure};
use book::{OperationKind, SoakBook};
use client::SoakClient;
use deaths::DeathTally;
use operator::Operator;
use server::SoakServer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The services, by family.
const SERVICES: [(&str, Family); 2] = [("soak4", Family::V4), ("soak6", Family::V6)];
/// Their port, and the servers'.
const PORT: u16 = 80;
/// How often a line tells how far it is.
const PROGRESS: Duration = Duration::from_secs(10);
/// An operation that lasts longer when all clients come to their end is looked at.
const SLOW: Duration = Duration::from_secs(20);
/// Between two reloads.
const RELOADS: Duration = Duration::from_secs(2);

/// How long, and how much.
#[derive(Clone, Debug, clap::Args)]
pub struct SoakArgs {
    /// Minutes; fractions are allowed.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Clients at the same time.
    #[arg(long, default_value_t = 120)]
    clients: usize,
    /// The seed of all choices that clients make.
    #[arg(long, default_value_t = 22)]
    seed: u64,
    /// Packets as on a wire: no segmentation or checksum offload on the virtual cards.
    #[arg(long)]
    wire: bool,
    #[command(flatten)]
    deaths: SoakDeaths,
}

impl SoakArgs {
    /// For so long with so many clients, the rest as usual.
    pub fn of(duration: Duration, clients: usize) -> SoakArgs {
        let deaths = SoakDeaths::default();
        SoakArgs { minutes: duration.as_secs_f64() / 60.0, clients, seed: 22, wire: false, deaths }
    }

    /// With so many clients while processes end, on such cards.
    pub fn of_deaths(deaths: SoakDeaths, clients: usize, cards: Cards) -> SoakArgs {
        SoakArgs { deaths, wire: cards == Cards::Wire, ..SoakArgs::of(Duration::ZERO, clients) }
    }
}

/// Soaks, prints a line every ten seconds and one at the end. Fails if a byte was wrong, or if an operation failed that
/// no disabled backend explains.
pub fn run(arguments: &SoakArgs) -> Result<()> {
    let cards = if arguments.wire { Cards::Wire } else { Cards::Gso };
    let topology = Topology::create(TopologyOptions { cards, routers: false })?;
    let book = Arc::new(SoakBook::default());
    let servers = (1..).zip(&topology.servers);
    let _servers: Vec<SoakServer> =
        servers.map(|(number, namespace)| SoakServer::start(namespace, PORT, number, &book)).collect::<Result<_>>()?;
    let hairpin = Hairpin::start(&topology, &services(), &HairpinOptions::default())?;
    let mut operator = Operator::new(&topology, hairpin, Arc::clone(&book));
    let clients = SoakClients::start(&topology.client, arguments, &book);
    let result = match arguments.deaths.is_some() {
        true => deaths::run(arguments.deaths, &topology, &mut operator, &book),
        false => soak(arguments, &mut operator, &book).map(|()| DeathTally::default()),
    };
    let ended = clients.stop(|| {
        book.slow(SLOW).iter().for_each(|(operation, met)| println!("{}", operator.examine(operation, met)));
    });
    let tally = book.tally();
    println!("soak: {}; {}", sentence(&tally), operator.sentence());
    let dead = result.as_ref().ok().filter(|_| arguments.deaths.is_some());
    dead.iter().for_each(|dead| println!("  {}", dead.sentence()));
    tally.reasons.iter().for_each(|(reason, count)| println!("  {count} times: {reason}"));
    tally.faults.iter().for_each(|fault| println!("  {fault}"));
    let verdict = result.and_then(|dead| ended.map(|()| dead)).and_then(|dead| {
        ensure!(tally.wrong == 0, "bytes were wrong in {} operations", tally.wrong);
        ensure!(tally.hung == 0, "{} operations hung", tally.hung);
        // A connection of which a client had no operation is broken, too.
        let broken = tally.failed + if arguments.deaths.is_some() { tally.closed_idle } else { 0 };
        ensure!(
            broken <= dead.excused,
            "{broken} operations failed that no disabled backend explains; kills explain {} at most",
            dead.excused
        );
        ensure!(
            OperationKind::ALL.iter().all(|kind| tally.done[*kind as usize] > 0),
            "not all was done: {:?}",
            tally.done
        );
        operator.check()
    });
    verdict.with_context(|| operator.state())
}

fn services() -> Vec<PeerService> {
    let service =
        |(name, family)| PeerService { family, balance: "weighted-round-robin", ..PeerService::http(name, PORT) };
    SERVICES.map(service).to_vec()
}

fn soak(arguments: &SoakArgs, operator: &mut Operator<'_>, book: &SoakBook) -> Result<()> {
    let (begun, duration) = (Instant::now(), Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0));
    let mut told = begun;
    while begun.elapsed() < duration {
        let began = Instant::now();
        operator.iterate(RELOADS)?;
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            println!("{:4.0} s: {}", begun.elapsed().as_secs_f64(), sentence(&book.tally()));
        }
        std::thread::sleep(RELOADS.saturating_sub(began.elapsed()));
    }
    Ok(())
}

fn sentence(tally: &SoakTally) -> String {
    let kinds = OperationKind::ALL.map(|kind| format!("{} {}", kind.name(), tally.done[kind as usize])).join(", ");
    format!(
        "{} operations ({kinds}, {} messages) on {} connections, {:.1} GB; wrong bytes {}, failed {}, on disabled backends {} \
         (told within {} ms), closed while idle {}",
        tally.operations(),
        tally.messages,
        tally.connections,
        tally.bytes as f64 / 1e9,
        tally.wrong,
        tally.failed,
        tally.disabled,
        tally.told.as_millis(),
        tally.closed_idle,
    )
}

/// All clients, on one thread in the clients' namespace. They end when dropped.
struct SoakClients {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl SoakClients {
    fn start(namespace: &Namespace, arguments: &SoakArgs, book: &Arc<SoakBook>) -> SoakClients {
        let stop = Arc::new(AtomicBool::new(false));
        let mut random = fastrand::Rng::with_seed(arguments.seed);
        let client = |number: usize| {
            let (service, family) = SERVICES[number % SERVICES.len()];
            let to = SocketAddr::new(vip(family), PORT);
            SoakClient { service, to, book: Arc::clone(book), random: random.fork(), stop: Arc::clone(&stop) }
        };
        let clients: Vec<SoakClient> = (0..arguments.clients.max(1)).map(client).collect();
        let thread = inside::spawn(namespace, None, move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let tasks: Vec<_> = clients.into_iter().map(|client| tokio::spawn(client.run())).collect();
                for task in tasks {
                    task.await.context("a client panicked")?;
                }
                Ok(())
            })
        });
        SoakClients { stop, thread: Some(thread) }
    }

    /// Lets what is under way come to its end.
    fn stop(mut self, mut meanwhile: impl FnMut()) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            meanwhile();
        }
        self.thread.take().map_or(Ok(()), inside::join)
    }
}

impl Drop for SoakClients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
