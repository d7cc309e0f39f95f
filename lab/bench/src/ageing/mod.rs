//! `hairpin-bench ageing`: what finding the entries whose time is up costs, and whether it ever shows as a dip
//! (KTH 2020, figure 6.1).
//!
//! Every mechanism gets an index, a slab of connections and the traffic of one worker of its own: bursts of 32, 99 % of
//! the packets find their flow, and all flows but the few that never end are exchanged within one timeout, for two
//! timeouts at least. All of them take turns, one window (100 ms of traffic) each, beside one *without* ageing, where
//! the traffic generator tells which flows are over; and beside the sweep of the papers, which scans
//! everything at once.
//!
//! The effects of neighbours and of ageing are told apart in three ways: throughput is by the thread's processor
//! time, each window is compared with that of the one without ageing beside it, and the time spent on ageing is
//! measured in each window.

mod figure;
mod frames;
mod mechanism_bench;
mod mechanisms;
mod report;
mod traffic;

use anyhow::Result;
use hairpin_core::time::{Duration, Time};
use mechanism_bench::{MechanismBench, WorkWindow};
use std::path::PathBuf;
use traffic::AgeingTraffic;

/// The time of a packet: ten million a second.
const PACKET: Duration = Duration::from_nanos(100);
/// The traffic of a window.
const WINDOW: Duration = Duration::from_millis(100);

/// Silence that is borne of an established connection: a million connections, with so many packets.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The values of a quick run.
const QUICK_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeouts that are measured, after the table has been filled.
const PERIODS: u32 = 2;

/// The arguments of the benchmark.
#[derive(clap::Args, Debug)]
pub struct AgeingArgs {
    /// A quick run: a timeout of two seconds instead of ten, a fifth of the connections.
    #[arg(long)]
    quick: bool,
    /// The whole balancer: frames are read, and sent on with new ends, around table and connections.
    #[arg(long)]
    whole: bool,
    /// Also keep all windows in this file, for the page on flow classification (lab/results/classification-ageing.csv).
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// The directory for the files: ageing.json, ageing/windows.csv, ageing/throughput.svg.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// All windows of one mechanism.
pub(crate) struct Course {
    name: &'static str,
    /// Beside index and slab.
    bytes_per_connection: f64,
    late_max: Option<Duration>,
    windows: Vec<WorkWindow>,
}

/// Measures all mechanisms, prints a table and writes what [`AgeingArgs`] says. A missed bar is no failure.
///
/// # Errors
/// If a file cannot be written, and if a mechanism lost an entry or took one away early.
pub fn run(arguments: &AgeingArgs) -> Result<()> {
    let timeout = if arguments.quick { QUICK_TIMEOUT } else { TIMEOUT };
    let traffic = || AgeingTraffic::new(PACKET, timeout, traffic::ETERNAL);
    let active = traffic::active(timeout);
    let mut benches = Vec::new();
    let mut courses = Vec::new();
    let capacity = |life: Duration| traffic::ETERNAL as usize + traffic().begun_in(life);
    let living = capacity(timeout + active + 10 * WINDOW);
    for mechanism in mechanisms::all(living, timeout) {
        let capacity = match mechanism.stops_the_world() {
            true => capacity(2 * timeout + active + 10 * WINDOW),
            false => living,
        };
        courses.push(Course {
            name: mechanism.name(),
            bytes_per_connection: mechanism.bytes() as f64 / capacity as f64,
            late_max: mechanism.late_max(),
            windows: Vec::new(),
        });
        let mut bench = MechanismBench::new(mechanism, traffic(), capacity, timeout)?;
        if arguments.whole {
            bench.forward_frames();
        }
        // A life, and a bit.
        bench.fill(Time::ZERO + timeout + active + 10 * WINDOW)?;
        benches.push(bench);
    }
    let bursts = traffic().bursts_in(WINDOW);
    let rounds = (timeout * PERIODS).as_nanos().div_ceil(WINDOW.as_nanos()) as usize;
    let packets = bursts * traffic::BURST;
    println!("ageing: up to {living} connections, two index entries each; {rounds} windows of {packets} packets");
    for round in 0..rounds {
        for number in 0..benches.len() {
            // In turn, and each of them first now and then.
            let which = (number + round) % benches.len();
            courses[which].windows.push(benches[which].window(bursts)?);
        }
        if round % 20 == 0 {
            eprintln!("window {round} of {rounds}");
        }
    }
    if let Some(keep) = &arguments.keep {
        report::keep(keep, &courses, packets)?;
    }
    report::write(&arguments.out, &courses, packets)
}
