//! `hairpin-bench tables`: every connection table beside its peers, on the same work.
//!
//! Keys of 16 bytes, values of 8; tables of 2^17, 2^20, 2^21 and 2^23 slots ("100 k" to "8 M"), 80 percent full; keys in
//! random order from arrays that were made before; hashing inside what is timed. For each size all methods are filled
//! once; then they take turns, again and again, each with its threads pinned and all its cases in a row, so that what
//! drifts - heat, neighbours - falls on all alike. Only ratios from one run mean anything.
//!
//! The requests are the same for all methods, and every answer is counted: a method that loses a key is an error, not a
//! figure. Everybody's memory is on large pages.

mod bars;
mod case;
mod figures;
mod keys;
mod limit;
mod machine;
mod measure;
mod methods;
mod own;
mod peers;
mod results;
mod series;
mod shared;
mod soak;
mod subject;

pub(crate) use machine::name as machine_name;

use crate::suite::report;
use anyhow::{Context, Result, bail, ensure};
use case::TablesCase;
use measure::MeasureWindow;
use methods::Candidate;
use results::{BYTES, Fact, FigureKey, TableResults, size_name};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use subject::{TableSharing, TableSize, TableSubject};

/// The load of a table, in percent of its slots.
const LOAD_PERCENT: usize = 80;
/// Threads at most, unless more are asked for.
const THREADS_MAX: usize = 16;
/// Bytes that a table and its keys take per slot, about, at most.
const BYTES_PER_SLOT: usize = 64;

/// The arguments of `tables`.
#[derive(Debug, clap::Args)]
pub struct TablesArgs {
    /// A quick run: two sizes, short, twice.
    #[arg(long)]
    quick: bool,
    /// Sizes: slots of the tables, for example 100k,1M,2M,8M; each becomes the next power of two.
    #[arg(long, value_delimiter = ',', value_parser = slots, value_name = "LIST")]
    entries: Vec<usize>,
    /// Numbers of threads, for example 1,2; by default 1, 2, 4, 8, 16 and as many as there are processors, up to 16.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    threads: Vec<usize>,
    /// Methods, for example cuckoo++,rte-hash/lock-free; by default all.
    #[arg(long, value_delimiter = ',', value_name = "METHOD")]
    only: Vec<String>,
    /// Rounds of each method.
    #[arg(long, value_name = "NUMBER")]
    repetitions: Option<usize>,
    /// Also measures rte_hash tables that several threads use although their flags protect nothing: they can corrupt.
    #[arg(long)]
    r#unsafe: bool,
    /// The directory for tables.json and the directory tables (CSV, figures).
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    out: PathBuf,
}

/// A number of slots from what people write.
fn slots(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.char_indices().find(|(_, c)| !c.is_ascii_digit()) {
        Some((at, _)) => text.split_at(at),
        None => (text, ""),
    };
    let factor = match unit {
        "" => 1,
        "k" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return Err("a number, with k or M behind it if you like".to_owned()),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    match number {
        Some(number @ 4_096..=1_000_000_000) => Ok(number.next_power_of_two()),
        _ => Err("from 4096 to 1000M".to_owned()),
    }
}

/// How much is measured.
struct TablesPlan {
    sizes: Vec<usize>,
    threads: Vec<usize>,
    repetitions: usize,
    window: MeasureWindow,
    processors: Vec<usize>,
    /// Operations of the comparison with a plain map.
    soak: usize,
    /// Rounds in the series by load factor.
    load_repetitions: usize,
}

impl TablesPlan {
    fn new(arguments: &TablesArgs) -> Result<TablesPlan> {
        let processors = measure::processors()?;
        let most = processors.len().min(THREADS_MAX);
        let mut threads = arguments.threads.clone();
        if threads.is_empty() {
            threads = [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= most).chain([most]).collect();
        }
        threads.sort_unstable();
        threads.dedup();
        let (fewest, most) = (threads.first().copied().unwrap_or(0), threads.last().copied().unwrap_or(0));
        ensure!(fewest > 0 && most <= processors.len(), "--threads: from 1 to {} processors", processors.len());
        let quick = arguments.quick;
        let mut sizes = arguments.entries.clone();
        if sizes.is_empty() {
            sizes = if quick { vec![1 << 20, 1 << 23] } else { vec![1 << 17, 1 << 20, 1 << 21, 1 << 23] };
        }
        sizes.sort_unstable();
        sizes.dedup();
        let milliseconds = Duration::from_millis;
        let (settle, timed) = if quick { (1_000, 40) } else { (2_000, 80) };
        Ok(TablesPlan {
            sizes,
            threads,
            repetitions: arguments.repetitions.unwrap_or(if quick { 2 } else { 5 }).max(1),
            window: MeasureWindow { settle: milliseconds(settle), timed: milliseconds(timed) },
            processors,
            soak: if quick { 10_000_000 } else { 100_000_000 },
            load_repetitions: if quick { 1 } else { 3 },
        })
    }
}

/// A method whose tables are filled.
struct FilledMethod {
    name: String,
    subject: Box<dyn TableSubject>,
}

/// Measures, prints, and writes `tables.json`, a CSV file and figures.
///
/// # Errors
/// When a method lost a key, gave a wrong value or could not be measured; what could be is written all the same.
pub fn run(arguments: &TablesArgs) -> Result<()> {
    if cfg!(feature = "libcuckoo") {
        machine::with_large_pages()?;
    }
    let plan = TablesPlan::new(arguments)?;
    let candidates = methods::candidates(&arguments.only, arguments.r#unsafe)?;
    let (machine, pages, start) = (machine::name(), machine::pages(), Instant::now());
    println!("tables: {machine}; pages of {pages}");
    for missing in methods::missing() {
        println!("  not in this program: {missing}");
    }
    let mut results = TableResults::default();
    for &slots in &plan.sizes {
        one_size(slots, &plan, &candidates, &mut results);
        for &threads in &plan.threads {
            println!("\n{} slots, {LOAD_PERCENT} % full, {threads} thread(s)", size_name(slots));
            println!("{}", results.tables(slots, threads));
        }
    }
    let directory = arguments.out.join("tables");
    let write = |results: &TableResults, soaked: &[soak::Soaked]| {
        let rows = bars::rows(results, soaked);
        report::write(&arguments.out, "tables", &rows)?;
        std::fs::create_dir_all(&directory).with_context(|| format!("could not make {}", directory.display()))?;
        results.write_csv(&directory.join("tables.csv"), &machine, &pages)?;
        figures::draw(results, &plan.sizes, &plan.threads, &machine, &directory)?;
        Ok::<_, anyhow::Error>(rows)
    };
    // The larger part is done: should the rest go wrong, it is kept.
    write(&results, &[])?;
    series::by_load(&plan, &candidates, &mut results);
    println!("\n{}", results.refusals());
    let rows = write(&results, &soak::run(plan.soak))?;
    println!("\n{}", report::table(&rows));
    let held = rows.iter().filter(|row| row.held).count();
    println!(
        "{held} of {} bars held, {:.0} s; in {:.0} % of the figures every thread had its processor for 97 % of the time; \
         results in {} and {}",
        rows.len(),
        start.elapsed().as_secs_f64(),
        results.undisturbed() * 100.0,
        arguments.out.join("tables.json").display(),
        directory.display()
    );
    for missing in bars::missing(&rows) {
        println!("no figures for the bar \"{missing}\"");
    }
    if results.failures.is_empty() {
        Ok(())
    } else {
        bail!("not all could be measured:\n{}", results.failures.join("\n"))
    }
}

/// All methods at one size.
fn one_size(slots: usize, plan: &TablesPlan, candidates: &[Candidate], results: &mut TableResults) {
    let size = TableSize { slots, entries: slots * LOAD_PERCENT / 100, brim: false };
    let tables: usize = candidates.iter().map(|method| method.tables(&plan.threads)).sum();
    let needed = (tables + plan.threads.len() + 1) * slots * BYTES_PER_SLOT;
    if needed > machine::memory() {
        let (name, needed) = (size_name(slots), needed >> 20);
        results
            .failures
            .push(format!("{name} slots: {tables} tables take about {needed} MiB, more than there is; --only"));
        return;
    }
    let population = keys::population(size.entries, slots as u64);
    let shares: Vec<_> = plan.threads.iter().map(|&threads| keys::shares(&population, threads, slots as u64)).collect();
    let mut filled = fill(candidates, &size, &shares, plan, results);
    for repetition in 0..plan.repetitions {
        filled.retain(|method| {
            shares.iter().all(|shares| {
                let round = measure::round(&*method.subject, shares, plan.window, repetition, &plan.processors);
                let of = FigureKey::of(&method.name, &size, shares.len(), repetition);
                results.record(&of, round)
            })
        });
        filled.reverse();
    }
}

/// Tables of all methods, filled; those that cannot be had or filled are noted and left out.
fn fill(
    candidates: &[Candidate],
    size: &TableSize,
    shares: &[Vec<keys::KeyShare<'_>>],
    plan: &TablesPlan,
    results: &mut TableResults,
) -> Vec<FilledMethod> {
    let mut filled = Vec::new();
    for method in candidates {
        let of = FigureKey::of(&method.name, size, 1, 0);
        let subject = match method.make(size, &plan.threads) {
            Ok(subject) => subject,
            Err(error) => {
                // It is not there on this machine, which is no failure.
                eprintln!("  {of}: left out: {error:#}");
                continue;
            }
        };
        let rate = measure::fill(&*subject, shares, &plan.processors);
        let rates = rate.map(|rate| rate.map(|rate| (TablesCase::Fill, rate)).into_iter().collect());
        if results.record(&of, rates) {
            if subject.sharing() != TableSharing::Fixed {
                results.facts.push(Fact {
                    method: method.name.clone(),
                    what: BYTES,
                    unit: "byte",
                    slots: size.slots,
                    entries: size.entries,
                    value: subject.bytes() as f64 / size.entries as f64,
                });
            }
            filled.push(FilledMethod { name: method.name.clone(), subject });
        }
    }
    filled
}

#[cfg(test)]
mod tests;
