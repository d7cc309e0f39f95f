//! Processes that end while the soak goes on, and others that take over: by SIGTERM and another start, by an upgrade to a
//! program that was built anew, by SIGKILL at random instants.

use super::book::SoakBook;
use super::operator::Operator;
use crate::peer::{Hairpin, rebuilt_program};
use crate::topology::Topology;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often each.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct SoakDeaths {
    /// End the process by SIGTERM and start it again so often, and reload it then, instead of giving an operator's commands.
    /// Nothing may break.
    #[arg(long, default_value_t = 0)]
    pub restarts: usize,
    /// Upgrade so often to a program with other bytes. Nothing may break.
    #[arg(long, default_value_t = 0)]
    pub upgrades: usize,
    /// Kill the process so often at a random instant, and start it again. No more operations may break than there are workers,
    /// each time.
    #[arg(long, default_value_t = 0)]
    pub kills: usize,
    /// Restart so often with another number of workers, 1 and 2 by turns. Nothing may break.
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
}

impl SoakDeaths {
    /// Whether any process ends.
    pub(super) fn is_some(&self) -> bool {
        self.restarts + self.upgrades + self.kills + self.workers > 0
    }
}

/// How long an operation that has broken may take to be noticed.
const NOTICED: Duration = Duration::from_secs(1);
/// How often a line tells how far it is.
const PROGRESS: usize = 25;
/// The time between two deaths.
const BETWEEN: std::ops::Range<u64> = 200..1200;

/// What has happened.
#[derive(Debug, Default)]
pub(super) struct DeathTally {
    done: SoakDeaths,
    /// Operations that kills may have broken.
    pub(super) excused: u64,
    /// The longest from the start of a process until it served.
    slowest: Duration,
    /// Connections adopted, and interrupted, by all processes.
    adopted: u64,
    interrupted: u64,
}

impl DeathTally {
    pub(super) fn sentence(&self) -> String {
        let SoakDeaths { restarts, upgrades, kills, workers } = self.done;
        format!(
            "{restarts} restarts, {workers} with another number of workers, {upgrades} upgrades, {kills} kills; {} connections of HTTP services adopted, {} \
             interrupted; processes served within {} ms",
            self.adopted,
            self.interrupted,
            self.slowest.as_millis()
        )
    }
}

/// Lets processes die while the clients go on.
pub(super) fn run(
    deaths: SoakDeaths,
    topology: &Topology,
    operator: &mut Operator<'_>,
    book: &Arc<SoakBook>,
) -> Result<DeathTally> {
    let mut tally = DeathTally::default();
    let mut random = fastrand::Rng::with_seed(24);
    let mut pause = || sleep(Duration::from_millis(random.u64(BETWEEN)));
    sleep(NOTICED);
    for number in 1..=deaths.restarts {
        pause();
        let hairpin = operator.hairpin();
        hairpin.end(Signal::SIGTERM)?;
        tally.begin_again(hairpin, topology).with_context(|| format!("restart {number}"))?;
        tally.done.restarts += 1;
        operator.reload_now().with_context(|| format!("after restart {number}"))?;
    }
    nothing_broke(book, "restarts")?;
    for number in 1..=deaths.workers {
        pause();
        operator.set_workers(1 + number % 2)?;
        let hairpin = operator.hairpin();
        hairpin.end(Signal::SIGTERM)?;
        tally.begin_again(hairpin, topology).with_context(|| format!("change {number} of workers"))?;
        tally.done.workers += 1;
    }
    nothing_broke(book, "changes of the number of workers")?;
    for number in 1..=deaths.upgrades {
        pause();
        let program = rebuilt_program(topology, number)?;
        let hairpin = operator.hairpin();
        hairpin.upgrade(topology, &program).with_context(|| format!("upgrade {number}"))?;
        tally.note(hairpin)?;
        tally.done.upgrades += 1;
    }
    nothing_broke(book, "upgrades")?;
    for number in 1..=deaths.kills {
        pause();
        let hairpin = operator.hairpin();
        let workers = hairpin.status()?.workers.len() as u64;
        hairpin.end(Signal::SIGKILL)?;
        tally.begin_again(hairpin, topology).with_context(|| format!("kill {number}"))?;
        tally.done.kills += 1;
        tally.excused += workers;
        if number.is_multiple_of(PROGRESS) {
            println!("{number} kills: {}; {}", super::sentence(&book.tally()), tally.sentence());
        }
    }
    sleep(NOTICED);
    Ok(tally)
}

fn nothing_broke(book: &SoakBook, by: &str) -> Result<()> {
    sleep(NOTICED);
    let tally = book.tally();
    ensure!(tally.failed + tally.closed_idle == 0, "{by} broke connections: {tally:?}");
    Ok(())
}

impl DeathTally {
    fn begin_again(&mut self, hairpin: &mut Hairpin, topology: &Topology) -> Result<()> {
        let began = Instant::now();
        hairpin.start_again(topology, &[])?;
        self.slowest = self.slowest.max(began.elapsed());
        self.note(hairpin)
    }

    fn note(&mut self, hairpin: &Hairpin) -> Result<()> {
        let status = hairpin.status()?;
        self.adopted += status.adopted_http.clients;
        self.interrupted += status.adopted_http.interrupted;
        ensure!(status.adopted_http.invalid == 0, "entries that made no sense: {:?}", status.adopted_http);
        Ok(())
    }
}
