//! The benchmarks of `make bench`.
//!
//! Everything is measured side by side in one run: each peer in turn, several times, on the same hosts and cores. What
//! is pinned: iperf3's clients to core 0 and its servers to core 1, the sending threads of the UDP and flood benchmarks
//! one to each core, Hairpin's workers one to each core. nginx, wrk, HAProxy and nginx stream run where the kernel puts
//! them, HAProxy and nginx stream with as many threads or processes as there are cores.

mod http;
mod machine;
mod many;
pub mod report;
pub mod samples;
mod scrape;
mod tcp;
mod udp;

use anyhow::{Context, Result, bail};
use report::ReportRow;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct SuitePlan {
    /// Time of each measurement.
    pub duration: Duration,
    /// Measurements of each peer.
    pub repetitions: usize,
    /// Whether the longest cases are left out or cut.
    pub quick: bool,
}

impl SuitePlan {
    /// The full plan: five seconds, five times.
    pub fn full() -> SuitePlan {
        SuitePlan { duration: Duration::from_secs(5), repetitions: 5, quick: false }
    }

    /// A quick run: two seconds, once.
    pub fn quick() -> SuitePlan {
        SuitePlan { duration: Duration::from_secs(2), repetitions: 1, quick: true }
    }
}

struct Benchmark {
    name: &'static str,
    about: &'static str,
    run: fn(&SuitePlan) -> Result<Vec<ReportRow>>,
}

const BENCHMARKS: [Benchmark; 10] = [
    Benchmark { name: "tcp", about: "iperf3 TCP, 1 and 8 streams, beside plain routing", run: tcp::bulk },
    Benchmark { name: "wrk", about: "keep-alive requests of 1 KB, beside plain routing", run: http::keep_alive },
    Benchmark { name: "connections", about: "new connections, beside proxies and DNAT", run: http::connections },
    Benchmark { name: "udp", about: "small UDP packets over 1 k and 100 k flows", run: udp::small_packets },
    Benchmark { name: "flood", about: "TCP goodput under a flood of unknown packets", run: tcp::under_flood },
    Benchmark { name: "synflood", about: "TCP goodput under SYNs from more sources than fit", run: tcp::under_syns },
    Benchmark { name: "million", about: "memory and time that a million connections take", run: many::connections },
    Benchmark { name: "scrape", about: "what reading the metrics costs the packets", run: scrape::scrapes },
    Benchmark { name: "bpf", about: "the BPF program's cost, and rule installation", run: machine::bpf },
    Benchmark { name: "idle", about: "processor time when nothing happens", run: machine::idle },
];

/// Names of the benchmarks, and what each measures.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    BENCHMARKS.iter().map(|benchmark| (benchmark.name, benchmark.about))
}

/// Runs the named benchmarks (all, if none is named), prints progress and a table, and writes
/// `directory/NAME.json`. Fails if one could not be measured; a missed bar is no failure.
pub fn run(chosen: &[String], plan: &SuitePlan, directory: &Path) -> Result<()> {
    if let Some(unknown) = chosen.iter().find(|name| names().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = names().map(|(name, _)| name).collect();
        bail!("no benchmark \"{unknown}\"; there are {}", known.join(", "));
    }
    let start = Instant::now();
    let mut all = Vec::new();
    let mut failed = Vec::new();
    for benchmark in BENCHMARKS.iter().filter(|b| chosen.is_empty() || chosen.iter().any(|name| name == b.name)) {
        println!("\n{}: {}", benchmark.name, benchmark.about);
        match (benchmark.run)(plan).with_context(|| format!("benchmark {}", benchmark.name)) {
            Ok(rows) => {
                report::write(directory, benchmark.name, &rows)?;
                all.extend(rows);
            }
            Err(error) => {
                println!("  could not be measured: {error:#}");
                failed.push(benchmark.name);
            }
        }
    }
    let held = all.iter().filter(|row| row.held).count();
    println!("\n{}", report::table(&all));
    println!(
        "{held} of {} bars held, {:.0} s; results in {}",
        all.len(),
        start.elapsed().as_secs_f64(),
        directory.display()
    );
    if failed.is_empty() { Ok(()) } else { bail!("could not measure {}", failed.join(", ")) }
}

/// One line of progress.
fn progress(case: &str, peer: &str, value: f64, unit: &str, rest: &str) {
    println!("  {case:28} {peer:13} {:>9}{unit} {rest}", report::metric(value));
}
