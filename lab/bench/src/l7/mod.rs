//! HTTP services beside other proxies, on two cores: `make bench-l7`.
//!
//! The balancer has core 1 to itself: its process runs there, and packets that reach its interfaces are handed to that
//! core by receive packet steering before any of its work is done on them (BPF programs at ingress, TCP of a proxy, the
//! kernel's routing where there is no balancer). Client and server share core 0, which also gets what arrives at their
//! interfaces. So the softirq time of core 1 is the balancer's, and is printed with its user and system time. Without a
//! balancer core 1 routes.
//!
//! Every peer is started for each measurement and ended after it, in turn, on a port of its own (so that no peer is met
//! by connections in TIME_WAIT that another has left). One server: nginx. Cards as elsewhere: `gso` and `wire`.

mod cases;
pub mod figures;
mod pages;
pub(crate) mod peers;
pub(crate) mod processor;
mod resent;

use crate::suite::report::{self, ReportRow};
use anyhow::{Result, bail};
use cases::L7Case;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The arguments of the benchmark: what to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct L7Args {
    /// A quick run: two sizes, one second, once.
    #[arg(long)]
    quick: bool,
    /// Only cases whose name contains one of these, as `gso 1m`, `wire`, `mix`, `latency`.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each measurement; 1 or, of responses of 1 MB and more, the mix and latencies, 2.
    #[arg(long)]
    seconds: Option<u64>,
    /// Measurements of each peer; 3, of 8 and 256 connections with responses of 1 MB and more 2, of latencies 5.
    #[arg(long)]
    repetitions: Option<usize>,
    /// Lists the cases.
    #[arg(long)]
    list: bool,
    /// The directory for `l7.json`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct L7Effort {
    duration: Duration,
    repetitions: usize,
}

/// Measures the cases asked for, prints as it goes and a table at the end, and writes `l7.json`. Fails if a case could
/// not be measured; a missed bar is no failure.
pub fn run(arguments: &L7Args) -> Result<()> {
    let wanted = |case: &&L7Case| {
        let name = case.name();
        let asked = arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(part.as_str()));
        asked && (!arguments.quick || !arguments.only.is_empty() || case.is_quick())
    };
    let all = cases::all();
    let cases: Vec<&L7Case> = all.iter().filter(wanted).collect();
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.name()));
        return Ok(());
    }
    if cases.is_empty() {
        bail!("no case is called so; --list names them");
    }
    let effort = |case: &L7Case| {
        let L7Effort { duration, repetitions } = case.effort();
        let seconds = arguments.seconds.or(arguments.quick.then_some(1));
        L7Effort {
            duration: seconds.map_or(duration, |seconds| Duration::from_secs(seconds.max(1))),
            repetitions: arguments.repetitions.or(arguments.quick.then_some(1)).unwrap_or(repetitions).max(1),
        }
    };
    let planned: f64 = cases.iter().map(|case| case.seconds(effort(case))).sum();
    let mut done = 0.0;
    let start = Instant::now();
    let (mut rows, mut failed): (Vec<ReportRow>, Vec<String>) = (Vec::new(), Vec::new());
    println!("balancer on core 1 with all that arrives at its interfaces, client and server on core 0");
    println!("{} cases, about {:.0} minutes", cases.len(), (planned / 60.0).ceil());
    for cards in [hairpin_e2e::topology::Cards::Gso, hairpin_e2e::topology::Cards::Wire] {
        let mut here = cases.iter().filter(|case| case.cards == cards).peekable();
        if here.peek().is_none() {
            continue;
        }
        let net = peers::BenchNetwork::create(cards)?;
        for case in here {
            match cases::measure(&net, case, effort(case)) {
                Ok(more) => rows.extend(more),
                Err(error) => {
                    println!("  {} could not be measured: {error:#}", case.name());
                    failed.push(case.name());
                }
            }
            // The results so far are kept, should the rest be broken off.
            report::write(&arguments.directory, "l7", &rows)?;
            done += case.seconds(effort(case));
            let took = start.elapsed().as_secs_f64();
            println!("[{took:.0} s, about {:.0} s left]", (planned - done).max(0.0) * took / done);
        }
    }
    let held = rows.iter().filter(|row| row.held).count();
    println!("\n{}", report::table(&rows));
    println!("{held} of {} bars held, {:.0} s", rows.len(), start.elapsed().as_secs_f64());
    if failed.is_empty() { Ok(()) } else { bail!("could not measure {}", failed.join(", ")) }
}
