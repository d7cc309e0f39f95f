//! `hairpin-bench l4`: packets a second through one core, beside `dpdk-testpmd` over the same source: `make bench-l4`.
//!
//! # The source
//! DPDK's `net_pcap` with `infinite_rx`: packets of 64 bytes (with the frame's checksum) stand in mbufs, and are copied
//! into fresh ones for the receiver, on its core; what is sent is counted and freed. So neither a generator nor a wire
//! limits anything, both sides have the same source and sink, and `io` says what those cost alone. The replay is a million
//! packets and more whatever the number of flows, so that the packets are cold and the source costs the same for few flows
//! as for many; one more source has its few packets in the cache.
//!
//! # What counts
//! Packets by processor time of the forwarding thread, which the scheduler tells: on a machine that others use the rate is
//! what the thread does while it runs. Everybody has a process of its own, bursts of 64 frames, mbufs of the same size, on
//! hugepages if the kernel gives some (else on what each takes: noted in the output), and alternates with the others. What
//! is compared is measured within a few seconds of each other, and what counts is the median of the rounds' ratios:
//! machines in a cloud are fast for a minute and slow for the next.

#[cfg(feature = "dpdk")]
mod cases;
#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod huge;
mod memory;
mod subject;
#[cfg(feature = "dpdk")]
mod testpmd;
mod traffic;

use anyhow::Result;

/// The measurements; all of `make bench-l4` by default.
#[derive(Debug, clap::Args)]
pub struct L4Args {
    #[command(subcommand)]
    part: Option<BenchPart>,
    #[cfg(feature = "dpdk")]
    #[command(flatten)]
    all: All,
}

#[derive(Debug, clap::Subcommand)]
enum BenchPart {
    /// The worker by itself, between frames in memory: processor time per packet.
    Memory(memory::MemoryArgs),
    /// The device under test, for `l4` itself.
    #[cfg(feature = "dpdk")]
    #[command(hide = true)]
    Device(device::DeviceArgs),
}

/// The kind of pages that DPDK's memory is on.
#[cfg(feature = "dpdk")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Pages {
    /// Reserved hugepages.
    Huge,
    /// Ordinary pages.
    Ordinary,
}

#[cfg(feature = "dpdk")]
impl Pages {
    fn name(self) -> &'static str {
        match self {
            Pages::Huge => "huge",
            Pages::Ordinary => "ordinary",
        }
    }
}

/// The whole benchmark.
#[cfg(feature = "dpdk")]
#[derive(Debug, clap::Args)]
struct All {
    /// A quick run: UDP, 1 k and 1 M flows, once.
    #[arg(long)]
    quick: bool,
    /// Flows, in thousands.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    flows: Vec<usize>,
    /// Only these parts: sources, flood, workers.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    only: Vec<String>,
    /// Seconds of each measurement; 1.
    #[arg(long)]
    seconds: Option<f64>,
    /// Measurements of each; 5.
    #[arg(long)]
    repetitions: Option<usize>,
    /// The directory for `l4.json`.
    #[arg(long, default_value = "target/bench")]
    directory: std::path::PathBuf,
}

/// Measures.
///
/// # Errors
/// When something could not be measured; a missed bar is no failure.
pub fn run(arguments: &L4Args) -> Result<()> {
    match &arguments.part {
        Some(BenchPart::Memory(arguments)) => memory::run(arguments),
        #[cfg(feature = "dpdk")]
        Some(BenchPart::Device(arguments)) => device::run(arguments),
        #[cfg(feature = "dpdk")]
        None => all(&arguments.all),
        #[cfg(not(feature = "dpdk"))]
        None => anyhow::bail!("this program was built without DPDK: make bench-l4"),
    }
}

#[cfg(feature = "dpdk")]
fn all(arguments: &All) -> Result<()> {
    use crate::suite::report;
    use anyhow::Context;
    use cases::{BenchSource, L4Plan};
    use traffic::Sort;
    /// Bytes that an mbuf takes, about.
    const MBUF: usize = 640;
    let quick = arguments.quick;
    let mut flows: Vec<usize> = arguments.flows.iter().map(|thousands| (thousands * 1000).max(1000)).collect();
    if flows.is_empty() {
        flows = if quick { vec![1_000, 1_000_000] } else { vec![1_000, 100_000, 1_000_000, 4_000_000] };
    }
    let sorts: &[Sort] = if quick { &[Sort::Udp] } else { &[Sort::Udp, Sort::Tcp] };
    let mut sources: Vec<BenchSource> = Vec::new();
    for &sort in sorts {
        sources.extend(flows.iter().map(|&flows| BenchSource::new(sort, flows)));
    }
    sources.extend(flows.iter().min().map(|&flows| BenchSource { hot: true, ..BenchSource::new(Sort::Udp, flows) }));
    let most = sources.iter().map(BenchSource::packets).max().unwrap_or(0).max(4 << 20);
    let reserved = huge::Reserved::take((most + 8 * device::MBUFS_SPARE) * MBUF)?;
    let pages = if reserved.is_some() { Pages::Huge } else { Pages::Ordinary };
    let available = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let cores = (0..nix::sched::CpuSet::count()).filter(|&core| available.is_set(core).unwrap_or(false)).collect();
    std::fs::create_dir_all(&arguments.directory).context("the directory")?;
    let plan = L4Plan {
        seconds: arguments.seconds.unwrap_or(1.0),
        repetitions: arguments.repetitions.unwrap_or(if quick { 1 } else { 5 }).max(1),
        pages,
        cores,
        directory: arguments.directory.clone(),
    };
    println!("l4: {}; buffers on {} pages", crate::tables::machine_name(), pages.name());
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let mut add = |what: String, measured: Result<Vec<report::ReportRow>>| -> Result<()> {
        match measured {
            Ok(more) => rows.extend(more),
            Err(error) => {
                println!("  {what} could not be measured: {error:#}");
                failed.push(what);
            }
        }
        // The results so far are kept, should the rest be broken off.
        report::write(&arguments.directory, "l4", &rows)
    };
    for source in sources.iter().filter(|_| wanted("sources")) {
        add(source.name(), plan.source(*source))?;
    }
    for sort in [Sort::Udp, Sort::Syn].into_iter().filter(|_| wanted("flood")) {
        add(format!("{} flood", sort.name()), plan.flood(sort))?;
    }
    if wanted("workers") {
        add("workers".to_owned(), plan.workers())?;
    }
    drop(reserved);
    println!("\n{}", report::table(&rows));
    let held = rows.iter().filter(|row| row.held).count();
    println!("{held} of {} bars held", rows.len());
    if failed.is_empty() { Ok(()) } else { anyhow::bail!("could not measure {}", failed.join(", ")) }
}
