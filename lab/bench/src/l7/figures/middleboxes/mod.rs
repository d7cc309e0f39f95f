//! Figure 2 of KAIST 2018 on this machine: `make bench-middleboxes`. So many persistent connections ask for responses of 64 bytes to
//! 64 KB, through Hairpin's splice - in software, and with every body in the engine - and beside it through a proxy on a user-level
//! TCP stack ([`crate::user_stack`]), nginx and HAProxy.
//!
//! The network is that of `make bench-l7`, packets as on a wire: the balancer, whatever it is, has a core, client and server
//! share the other. Instructions are callgrind's, of the process alone (`instructions`); what a response costs the core, the
//! kernel's part included, is measured beside them.

mod instructions;
mod subject;

use super::page::{self, PageContext};
use super::results::{FigureResults, ResultPlace};
pub(in crate::l7) use super::results::{INSTRUCTIONS, LOAD};
use super::{CONTEXT, PageSizes, VALUES, make};
use crate::l7::peers::{BALANCER_CPU, BenchNetwork, OTHER_CPU};
use crate::l7::processor::Cores;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::load::parse_wrk;
use hairpin_e2e::topology::Cards;
use std::path::PathBuf;
use std::time::{Duration, Instant};
pub(in crate::l7) use subject::Subject;

/// Persistent connections, as in the paper.
const CONNECTIONS: usize = 8000;
/// The sizes of responses.
pub(in crate::l7) const SIZES: PageSizes =
    &[("64b", 64), ("256b", 256), ("1k", 1 << 10), ("4k", 4 << 10), ("16k", 16 << 10), ("64k", 64 << 10)];
const SIZES_QUICK: PageSizes = &[("64b", 64), ("64k", 64 << 10)];
/// How much longer than planned wrk may take: its connections are opened first.
const GRACE: Duration = Duration::from_secs(60);

/// The arguments: what to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct MiddleboxArgs {
    /// A quick run: two sizes, two seconds, once.
    #[arg(long)]
    quick: bool,
    /// Only these parts: load, instructions.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// Connections, which all stay: 1 to 12,000.
    #[arg(long, default_value_t = CONNECTIONS, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=12_000))]
    connections: usize,
    /// Seconds of each measurement.
    #[arg(long)]
    seconds: Option<u64>,
    /// Measurements of everything.
    #[arg(long)]
    repetitions: Option<usize>,
    /// The directory for results.
    #[arg(long, default_value = "target/bench/middleboxes")]
    directory: PathBuf,
    /// Also writes the page here, and its figures to `figures` beside it.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Also writes the values here, to be kept: lab/results/middleboxes.
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Measures nothing: writes the page of the values in this directory.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["quick", "only", "seconds", "repetitions", "keep"])]
    report: Option<PathBuf>,
}

impl MiddleboxArgs {
    /// Whether nothing is measured.
    pub fn is_report(&self) -> bool {
        self.report.is_some()
    }
}

/// Measures, prints as it goes, and writes the page, figures and values.
///
/// # Errors
/// When a part could not be measured; what could be is written all the same.
pub fn run(arguments: &MiddleboxArgs) -> Result<()> {
    if let Some(unknown) = arguments.only.iter().find(|part| ![LOAD, INSTRUCTIONS].contains(&part.as_str())) {
        bail!("no part \"{unknown}\"; there are {LOAD} and {INSTRUCTIONS}");
    }
    make(&arguments.directory)?;
    if let Some(from) = &arguments.report {
        let results = FigureResults::read_csv(&from.join(VALUES))?;
        let context = PageContext::read(&from.join(CONTEXT))?;
        return page::write_middleboxes(&results, &context, &arguments.directory, arguments.document.as_deref());
    }
    let repetitions = arguments.repetitions.unwrap_or(if arguments.quick { 1 } else { 3 }).max(1);
    let sizes = if arguments.quick { SIZES_QUICK } else { SIZES };
    let duration = Duration::from_secs(arguments.seconds.unwrap_or(if arguments.quick { 2 } else { 5 }).max(1));
    let mut context = PageContext::new(repetitions)?;
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    let start = Instant::now();
    let mut results = FigureResults::default();
    let net = BenchNetwork::create(Cards::Wire)?;
    if wanted(LOAD) {
        let all = Subject::ALL.len() * sizes.len() * repetitions;
        println!("{}: about {:.0} s", context.machine, all as f64 * (duration.as_secs_f64() + 3.0));
        for repetition in 0..repetitions {
            load(&net, arguments.connections, (sizes, duration), repetition, &mut results);
        }
    }
    if wanted(INSTRUCTIONS) {
        let done = instructions::measure(&net, sizes, &arguments.directory, &mut results);
        results.note(INSTRUCTIONS, done);
    }
    context.failures.clone_from(&results.failures);
    for directory in std::iter::once(&arguments.directory).chain(&arguments.keep) {
        make(directory)?;
        results.write_csv(&directory.join(VALUES))?;
        context.write(&directory.join(CONTEXT))?;
    }
    page::write_middleboxes(&results, &context, &arguments.directory, arguments.document.as_deref())?;
    println!("{:.0} s; {}", start.elapsed().as_secs_f64(), arguments.directory.join("page.md").display());
    match &results.failures[..] {
        [] => Ok(()),
        failures => bail!("not all could be measured: {}", failures.join("; ")),
    }
}

/// All subjects once. What one cannot do is noted, and the next one is measured.
fn load(
    net: &BenchNetwork,
    connections: usize,
    (sizes, duration): (PageSizes, Duration),
    repetition: usize,
    results: &mut FigureResults,
) {
    let mut subjects = Subject::ALL.to_vec();
    if repetition % 2 == 1 {
        subjects.reverse();
    }
    for subject in subjects {
        let done = by(net, subject, connections, (sizes, duration), repetition, results);
        results.note(&format!("{LOAD} through {}", subject.name()), done);
    }
}

/// One subject, started for itself, and asked for all sizes.
fn by(
    net: &BenchNetwork,
    subject: Subject,
    connections: usize,
    (sizes, duration): (PageSizes, Duration),
    repetition: usize,
    results: &mut FigureResults,
) -> Result<()> {
    let mut running = subject.start(net, connections)?;
    for &(page, bytes) in sizes {
        let values = once(net, subject, (page, bytes), connections, duration)
            .with_context(|| format!("{page} through {}", subject.name()))?;
        let place = ResultPlace { part: LOAD, setting: "wire", series: subject.name(), x: bytes as u64 };
        results.add(place, repetition, &values);
        let of = |name| values.iter().find(|(what, _)| *what == name).map_or(f64::NAN, |(_, value)| *value);
        println!(
            "  {page:>5} {:24} {:8.0} responses/s, mean {:7.1} ms, p99 {:7.1} ms, {:5.1} us of the core each, {:.0} errors",
            subject.name(),
            of("responses_per_s"),
            of("mean_ms"),
            of("p99_ms"),
            of("core_us_per_response"),
            of("errors")
        );
    }
    running.check()
}

/// One measurement: every connection asks again as soon as it has its answer.
fn once(
    net: &BenchNetwork,
    subject: Subject,
    (page, bytes): (&str, usize),
    connections: usize,
    duration: Duration,
) -> Result<Vec<(&'static str, f64)>> {
    // A file for each connection, beside some more.
    let mut wrk = net.topology.client.command("prlimit");
    wrk.arg(format!("--nofile={}", connections + 1024)).args(["taskset", "-c", OTHER_CPU, "wrk", "-t1", "--latency"]);
    wrk.args([&format!("-c{connections}"), &format!("-d{}s", duration.as_secs()), "--timeout", "30s"]);
    wrk.arg(format!("http://{}/{page}", subject.target()));
    let (cores, start) = (Cores::now()?, Instant::now());
    let mut process = net.topology.client.start(wrk, &net.topology.scratch.file("middleboxes-wrk.log"))?;
    let status = process.wait(duration + GRACE)?;
    let (cores, window) = (Cores::now()?.times_since(&cores), start.elapsed().as_secs_f64());
    ensure!(status.success(), "`{}`: {}", process.line(), process.log());
    let wrk = parse_wrk(&process.log()).with_context(|| process.log())?;
    ensure!(wrk.requests > 0, "no response: {}", process.log());
    let (balancer, other) = (cores[BALANCER_CPU.parse::<usize>()?], cores[OTHER_CPU.parse::<usize>()?]);
    let busy_s = (window - balancer.idle_s).max(0.0);
    let (responses, gbytes) = (wrk.requests as f64, wrk.requests as f64 * bytes as f64 / 1e9);
    Ok(vec![
        ("responses_per_s", wrk.requests_per_s),
        ("gbit_per_s", wrk.bits_per_s / 1e9),
        ("mean_ms", wrk.mean_ms),
        ("p99_ms", wrk.p99_ms),
        ("errors", wrk.errors as f64),
        ("balancer_busy", busy_s / window),
        ("other_busy", 1.0 - other.idle_s / window),
        ("core_us_per_response", busy_s * 1e6 / responses),
        ("core_s_per_gbyte", busy_s / gbytes),
    ])
}
