//! The evaluation of Laconic, figure by figure and table by table, on this machine: `make bench-laconic`.
//!
//! The paper measures one core of a SmartNIC whose flow processing engine is hardware; here the balancer has one core of
//! an ordinary machine, and the flow engine is the kernel's (BPF). So what is compared is shape - what grows with what,
//! which side is ahead, from where on offloading pays - and not height. The network is that of `make bench-l7`.
//!
//! Everything is measured in one run, several times, forwards and backwards. What comes out: `measurements.csv` with
//! every value of every repetition, `context.json` with where and when, figures as SVG, and a page that says what the paper
//! found and what was found here. The page can be written again from the first two.

mod crossing;
mod draw;
mod hashtable;
mod load;
pub mod middleboxes;
mod page;
mod paper;
mod profile;
mod rules;

use super::peers::BenchNetwork;
use anyhow::{Context, Result, bail};
use hairpin_e2e::topology::Cards;
use hairpin_lab::measured::{self as results, CONTEXT, FigureResults, VALUES};
use load::{LoadPlan, Variant};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The arguments of the figures: what to measure, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct FiguresArgs {
    /// A quick run: fewer sizes, once.
    #[arg(long)]
    quick: bool,
    /// Only these parts: rules, throughput, latency, profile, hashtable.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    only: Vec<String>,
    /// Seconds of each measurement (of responses of 1 MB or more 2 times that; of latencies 5 and 15 times).
    #[arg(long)]
    seconds: Option<u64>,
    /// Measurements of everything.
    #[arg(long)]
    repetitions: Option<usize>,
    /// The directory for results.
    #[arg(long, default_value = "target/bench/laconic")]
    directory: PathBuf,
    /// Also writes the page here, and its figures to `figures` beside it: docs/evidence/laconic.md.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Also writes the values here, to be kept: lab/results/laconic.
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Measures nothing: writes the page of the values in this directory.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["quick", "only", "seconds", "repetitions", "keep"])]
    report: Option<PathBuf>,
}

impl FiguresArgs {
    /// Whether nothing is measured.
    pub fn is_report(&self) -> bool {
        self.report.is_some()
    }
}

/// Pages: names and lengths in bytes.
type PageSizes = &'static [(&'static str, usize)];

/// Those of figures 8 and 10, of table 3 on cards as on a wire, and of the latencies.
const SIZES: PageSizes = &[
    ("1k", 1 << 10),
    ("4k", 4 << 10),
    ("16k", 16 << 10),
    ("64k", 64 << 10),
    ("256k", 256 << 10),
    ("1m", 1 << 20),
    ("4m", 4 << 20),
    ("16m", 16 << 20),
];
const SIZES_WIRE: PageSizes = &[("1k", 1 << 10), ("16k", 16 << 10), ("1m", 1 << 20), ("16m", 16 << 20)];
const SIZES_PACED: PageSizes = &[("1k", 1 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("4m", 4 << 20)];
/// Those of a quick run.
const SIZES_QUICK: PageSizes = &[("1k", 1 << 10), ("64k", 64 << 10), ("4m", 4 << 20)];
const SIZES_PACED_QUICK: PageSizes = &[("1k", 1 << 10), ("4m", 4 << 20)];

/// The parts there are.
const PARTS: [&str; 5] = [rules::PART, load::THROUGHPUT, load::LATENCY, profile::PART, hashtable::PART];
/// How long tables and rules take, about, in seconds.
const TABLES_S: f64 = 55.0;
const RULES_S: f64 = 4.0;
/// The overhead of a paced measurement and of a profile, in seconds.
const AROUND_S: f64 = 0.7;
const AROUND_PROFILE_S: f64 = 2.5;

/// Lines of progress, with the time that is left.
#[derive(Debug)]
struct ProgressLines {
    start: Instant,
    /// Seconds that all of it takes, about; and those of what is done.
    planned_s: f64,
    done_s: Cell<f64>,
}

impl ProgressLines {
    fn new(planned_s: f64) -> ProgressLines {
        ProgressLines { start: Instant::now(), planned_s, done_s: Cell::new(0.0) }
    }

    /// Something was measured.
    fn line(&self, text: &str) {
        println!("  {text}");
    }

    /// A piece is done that was planned to take so long.
    fn done(&self, seconds: f64) {
        self.done_s.set(self.done_s.get() + seconds);
        let (took, done) = (self.start.elapsed().as_secs_f64(), self.done_s.get().max(1.0));
        let left = (self.planned_s - done).max(0.0) * (took / done).clamp(0.5, 4.0);
        println!("[{took:.0} s, about {left:.0} s left]");
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct FiguresEffort {
    quick: bool,
    duration: Duration,
    repetitions: usize,
}

/// Measures, prints as it goes, and writes the page, figures and values.
///
/// # Errors
/// When a part could not be measured; what could be is written all the same.
pub fn run(arguments: &FiguresArgs) -> Result<()> {
    if let Some(unknown) = arguments.only.iter().find(|part| !PARTS.contains(&part.as_str())) {
        bail!("no part \"{unknown}\"; there are {}", PARTS.join(", "));
    }
    let wanted = |part: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == part);
    let effort = FiguresEffort {
        quick: arguments.quick,
        duration: Duration::from_secs(arguments.seconds.unwrap_or(1).max(1)),
        repetitions: arguments.repetitions.unwrap_or(if arguments.quick { 1 } else { 3 }).max(1),
    };
    make(&arguments.directory)?;
    if let Some(from) = &arguments.report {
        let results = FigureResults::read_csv(&from.join(VALUES))?;
        let context = page::PageContext::read(&from.join(CONTEXT))?;
        return page::write(&results, &context, &arguments.directory, arguments.document.as_deref());
    }
    let mut context = page::PageContext::new(effort.repetitions)?;
    // Latencies are measured at half of the rate that nginx reaches.
    let loaded = wanted(load::THROUGHPUT) || wanted(load::LATENCY);
    let progress = ProgressLines::new(planned(effort, wanted));
    println!("about {:.0} s: {}", progress.planned_s, context.machine);
    let mut results = FigureResults::default();
    if wanted(rules::PART) {
        let done = rules::measure(&mut results, effort.repetitions);
        results.note(rules::PART, done);
        progress.done(RULES_S);
    }
    if loaded || wanted(profile::PART) {
        let done = gso(effort, loaded, &wanted, &mut results, &progress);
        results.note("HTTP over cards that take super-packets", done);
    }
    if wanted(load::THROUGHPUT) && !effort.quick {
        let done = wire(effort, &mut results, &progress);
        results.note("HTTP over cards as on a wire", done);
    }
    if wanted(hashtable::PART) {
        println!("  connection tables: hairpin-bench tables");
        let done = hashtable::measure(&mut results, effort.repetitions.min(2), &arguments.directory);
        results.note(hashtable::PART, done);
        progress.done(TABLES_S);
    }
    for setting in ["gso", "wire"] {
        crossing::record(&mut results, setting);
    }
    context.failures.clone_from(&results.failures);
    for directory in std::iter::once(&arguments.directory).chain(&arguments.keep) {
        make(directory)?;
        results.write_csv(&directory.join(VALUES))?;
        context.write(&directory.join(CONTEXT))?;
    }
    page::write(&results, &context, &arguments.directory, arguments.document.as_deref())?;
    println!("{:.0} s; {}", progress.start.elapsed().as_secs_f64(), arguments.directory.join("page.md").display());
    if results.failures.is_empty() {
        Ok(())
    } else {
        bail!("not all could be measured: {}", results.failures.join("; "))
    }
}

fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))
}

fn plan_gso(effort: FiguresEffort) -> LoadPlan<'static> {
    let sizes = if effort.quick { SIZES_QUICK } else { SIZES };
    LoadPlan { variants: &Variant::ALL, sizes, mix: true, duration: effort.duration }
}

fn plan_wire(effort: FiguresEffort) -> LoadPlan<'static> {
    LoadPlan { variants: &Variant::ALL, sizes: SIZES_WIRE, mix: false, duration: effort.duration }
}

fn plan_paced(effort: FiguresEffort) -> LoadPlan<'static> {
    let sizes = if effort.quick { SIZES_PACED_QUICK } else { SIZES_PACED };
    LoadPlan { variants: &load::PACED, sizes, mix: false, duration: effort.duration }
}

fn paced_seconds(plan: LoadPlan<'_>) -> f64 {
    let each = |bytes| (load::paced_duration(plan.duration, bytes) + load::WARM_UP).as_secs_f64() + AROUND_S;
    plan.variants.len() as f64 * plan.sizes.iter().map(|&(_, bytes)| each(bytes)).sum::<f64>() + 2.0
}

fn profile_seconds(effort: FiguresEffort) -> f64 {
    profile::SCENES.len() as f64 * (effort.duration.as_secs_f64() + AROUND_PROFILE_S) + 2.0
}

/// Seconds that all of it takes, about.
fn planned(effort: FiguresEffort, wanted: impl Fn(&str) -> bool) -> f64 {
    let loaded = wanted(load::THROUGHPUT) || wanted(load::LATENCY);
    let of = |is_wanted: bool, seconds: f64| if is_wanted { seconds } else { 0.0 };
    let repeated = of(loaded, plan_gso(effort).seconds())
        + of(wanted(load::THROUGHPUT) && !effort.quick, plan_wire(effort).seconds())
        + of(wanted(load::LATENCY), paced_seconds(plan_paced(effort)))
        + of(wanted(profile::PART), profile_seconds(effort));
    repeated * effort.repetitions as f64 + of(wanted(hashtable::PART), TABLES_S) + of(wanted(rules::PART), RULES_S)
}

/// All that is measured on cards that take super-packets.
fn gso(
    effort: FiguresEffort,
    loaded: bool,
    wanted: &impl Fn(&str) -> bool,
    results: &mut FigureResults,
    progress: &ProgressLines,
) -> Result<()> {
    let net = BenchNetwork::create(Cards::Gso)?;
    for repetition in 0..effort.repetitions {
        if loaded {
            let plan = plan_gso(effort);
            load::throughput(&net, plan, repetition, results, progress)?;
            progress.done(plan.seconds());
        }
        if wanted(load::LATENCY) && !results.has_failed(load::LATENCY) {
            let plan = plan_paced(effort);
            let done = load::latency(&net, plan, repetition, results, progress);
            results.note(load::LATENCY, done);
            progress.done(paced_seconds(plan));
        }
        if wanted(profile::PART) && !results.has_failed(profile::PART) {
            let done = profile::measure(&net, SIZES, effort.duration, repetition, results, progress);
            // Without perf there is all the rest.
            results.note(profile::PART, done);
            progress.done(profile_seconds(effort));
        }
    }
    Ok(())
}

/// Throughput on cards as on a wire.
fn wire(effort: FiguresEffort, results: &mut FigureResults, progress: &ProgressLines) -> Result<()> {
    let net = BenchNetwork::create(Cards::Wire)?;
    for repetition in 0..effort.repetitions {
        let plan = plan_wire(effort);
        load::throughput(&net, plan, repetition, results, progress)?;
        progress.done(plan.seconds());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    type WritePage = fn(&FigureResults, &page::PageContext, &Path, Option<&Path>) -> Result<()>;

    #[test]
    fn evidence_pages_are_what_kept_values_say() {
        is_page_of_kept_values("laconic", page::write);
        is_page_of_kept_values("middleboxes", page::write_middleboxes);
    }

    fn is_page_of_kept_values(name: &str, write: WritePage) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let kept = root.join("lab/results").join(name);
        let is_shown = root.join(format!("docs/evidence/{name}.md")).exists();
        assert_eq!(kept.exists(), is_shown, "the page of {name} has values, or neither is there yet");
        if !is_shown {
            return;
        }
        let scratch = std::env::temp_dir().join(format!("hb-{name}-{}", std::process::id()));
        fs::create_dir_all(&scratch).unwrap();
        let results = FigureResults::read_csv(&kept.join(VALUES)).unwrap();
        let context = page::PageContext::read(&kept.join(CONTEXT)).unwrap();
        let page = format!("{name}.md");
        write(&results, &context, &scratch, Some(&scratch.join(&page))).unwrap();
        let figures = fs::read_dir(scratch.join("figures")).unwrap();
        let figures = figures.map(|entry| Path::new("figures").join(entry.unwrap().file_name()));
        for file in figures.chain([PathBuf::from(page)]) {
            let there = fs::read(root.join("docs/evidence").join(&file)).ok();
            let is_same = there.is_some_and(|there| there == fs::read(scratch.join(&file)).unwrap());
            assert!(is_same, "{}: run `make {name}-page`", file.display());
        }
        fs::remove_dir_all(&scratch).unwrap();
    }
}
