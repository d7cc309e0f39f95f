//! `hairpin-bench instructions`: instructions of core's worker for each packet, connection and request, counted by
//! callgrind: `make bench-instructions`.
//!
//! `hairpin-instructions` (`lab/instructions`) plays so many rounds of a case to a worker, without I/O. Callgrind counts it
//! with N rounds and with 2 N; the difference divided by N is what a round costs, without what comes before and after. The
//! same with no worker between is what the plane in memory costs, and is taken off. Nothing is timed: the machine may do
//! other things meanwhile, and a second run counts the same.
//!
//! A case whose exchanges are recorded, as for an access log, is compared with a second program, `target/without-records`, which is
//! compiled without all that is noted of exchanges: records, marks and histograms (`--cfg without_records`). Bytes that these take
//! in a connection's memory it has too. What the histograms alone cost, the case without an access log says.
//!
//! The count beside it is an earlier commit's count, in `lab/bench/instructions.json`. Counts of two compilers do not
//! compare: after a change of `rustc` the baseline is counted anew, with both (`--record`). Nor do those of two processors
//! in full: the C library picks its `memcpy` by what a processor can do, so the variants for AVX and later are ruled out.
//!
//! Callgrind's files stay in `target/bench/callgrind`: `callgrind_annotate` says there which function costs what.

use crate::suite::report::{self, Bar, ReportRow};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use hairpin_lab::measured::InstructionCounts;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// How much more than the baseline's a count may be.
const MORE_AT_MOST: f64 = 1.01;
/// How much more than without records, marks and histograms a request may cost of which a record is kept.
const RECORDED_AT_MOST: f64 = 1.03;
/// Keeps the C library to what every x86-64 processor has.
pub(crate) const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM";

/// The cases to count.
#[derive(Debug, clap::Args)]
pub struct InstructionsArgs {
    /// Cases whose names contain one of these, separated by commas; all if none is given.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds: of 64 packets or connections, or of 32 requests.
    #[arg(long, default_value_t = 32)]
    rounds: usize,
    /// The program to count; by default the `hairpin-instructions` beside this one. One of another commit, for a baseline.
    #[arg(long)]
    driver: Option<PathBuf>,
    /// The program that notes nothing of exchanges, which cases with records are compared with.
    #[arg(long, default_value = "target/without-records/release/hairpin-instructions")]
    without_records: PathBuf,
    /// The earlier counts.
    #[arg(long, default_value = "lab/bench/instructions.json")]
    baseline: PathBuf,
    /// Makes these counts the baseline, under this name: a commit's.
    #[arg(long, value_name = "COMMIT")]
    record: Option<String>,
    /// The directory for instructions.json and callgrind's files.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

/// A case as the driver lists it.
#[derive(Debug)]
struct ListedCase {
    name: String,
    /// The unit of a count: a packet, a connection, a request.
    of: String,
    per_round: usize,
}

impl ListedCase {
    fn parse(line: &str) -> Result<ListedCase> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [name, of, per_round] = parts[..] else { anyhow::bail!("the driver lists \"{line}\"") };
        Ok(ListedCase { name: name.to_owned(), of: of.to_owned(), per_round: per_round.parse()? })
    }

    fn unit(&self) -> &'static str {
        match self.of.as_str() {
            "packet" => "instructions/packet",
            "connection" => "instructions/connection",
            _ => "instructions/request",
        }
    }

    /// The case without records that this one with records is compared with; `None`: this one has none.
    fn unrecorded(&self) -> Option<ListedCase> {
        let name = self.name.strip_suffix(", recorded")?.to_owned();
        Some(ListedCase { name, of: self.of.clone(), per_round: self.per_round })
    }

    /// Instructions for each of what is counted.
    fn count(&self, driver: &Path, rounds: usize, directory: &Path) -> Result<f64> {
        let run = |subject, rounds, of| move || callgrind(driver, self, (subject, rounds, of), directory);
        let counts: Result<Vec<u64>> = thread::scope(|scope| {
            let runs = [("worker", 2), ("worker", 1), ("plane", 2), ("plane", 1)]
                .map(|(subject, times)| scope.spawn(run(subject, times * rounds, 2 * rounds)));
            runs.into_iter().map(|run| run.join().expect("a thread that only waits for a process")).collect()
        });
        let counts = counts?;
        let [worker, plane] = [counts[0].abs_diff(counts[1]), counts[2].abs_diff(counts[3])];
        ensure!(worker > plane, "{}: {worker} instructions with a worker, {plane} without one", self.name);
        Ok((worker - plane) as f64 / (rounds * self.per_round) as f64)
    }
}

/// Instructions of one whole run of the driver.
fn callgrind(
    driver: &Path,
    case: &ListedCase,
    (subject, rounds, of): (&str, usize, usize),
    directory: &Path,
) -> Result<u64> {
    let name = case.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let file = directory.join(format!("{name}.{subject}.{rounds}"));
    let mut command = Command::new("valgrind");
    command.env_clear().env("PATH", "/usr/bin:/bin").env("GLIBC_TUNABLES", TUNABLES);
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", file.display()));
    command.arg(driver).args([&case.name, subject, &rounds.to_string(), &of.to_string()]);
    let output = command.output().context("could not start valgrind; scripts/install-deps installs it")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    let profile = std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    total(&profile).with_context(|| format!("no total in {}", file.display()))
}

/// The instructions that a file of callgrind's adds up to.
pub(crate) fn total(profile: &str) -> Option<u64> {
    profile.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

fn said_by(program: &str) -> Result<String> {
    let output = Command::new(program).arg("--version").output().with_context(|| format!("could not run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn cases(driver: &Path, only: &[String]) -> Result<Vec<ListedCase>> {
    let output = Command::new(driver).output().with_context(|| format!("could not run {}", driver.display()))?;
    let listed: Result<Vec<ListedCase>> =
        String::from_utf8_lossy(&output.stdout).lines().map(ListedCase::parse).collect();
    let wanted = |case: &ListedCase| only.is_empty() || only.iter().any(|part| case.name.contains(part));
    let cases: Vec<ListedCase> = listed?.into_iter().filter(wanted).collect();
    ensure!(!cases.is_empty(), "no case is called so; {} lists them", driver.display());
    Ok(cases)
}

/// Counts, prints a table and writes `instructions.json`.
///
/// # Errors
/// If something cannot be counted, and if a count is more than the baseline's by more than the bar: counts have no spread,
/// so a missed bar is a failure.
pub fn run(arguments: &InstructionsArgs) -> Result<()> {
    let driver = match &arguments.driver {
        Some(driver) => driver.clone(),
        None => std::env::current_exe()?.with_file_name("hairpin-instructions"),
    };
    let directory = arguments.out.join("callgrind");
    let all = directory.join("without-records");
    std::fs::create_dir_all(&all).with_context(|| format!("could not make {}", all.display()))?;
    let (rustc, valgrind) = (said_by("rustc")?, said_by("valgrind")?);
    println!("instructions: {rustc}, {valgrind}");
    let mut counts = BTreeMap::new();
    let cases = cases(&driver, &arguments.only)?;
    let mut bare_counts = BTreeMap::new();
    for case in &cases {
        let count = case.count(&driver, arguments.rounds, &directory)?;
        println!("  {:48} {count:10.1} instructions/{}", case.name, case.of);
        counts.insert(case.name.clone(), count);
        if let Some(bare) = case.unrecorded() {
            let directory = directory.join("without-records");
            let count = bare.count(&arguments.without_records, arguments.rounds, &directory)?;
            println!("  {:48} {count:10.1} instructions/{}", format!("{}, {NOTHING_NOTED}", bare.name), case.of);
            bare_counts.insert(case.name.clone(), count);
        }
    }
    if let Some(commit) = &arguments.record {
        let counts = counts.into_iter().map(|(name, count)| (name, (count * 10.0).round() / 10.0)).collect();
        return InstructionCounts { commit: commit.clone(), rustc, valgrind, counts }.write(&arguments.baseline);
    }
    let baseline = InstructionCounts::read(&arguments.baseline)?;
    if (&baseline.rustc, &baseline.valgrind) != (&rustc, &valgrind) {
        println!("the baseline was counted with {}, {}: it does not compare", baseline.rustc, baseline.valgrind);
    }
    let rows = rows(&cases, (&counts, &bare_counts), &baseline);
    report::write(&arguments.out, "instructions", &rows)?;
    println!("\n{}", report::table(&rows));
    let missed = |row: &ReportRow| format!("{} ({:+.2} %)", row.case, (row.ratio - 1.0) * 100.0);
    let missed: Vec<String> = rows.iter().filter(|row| !row.held).map(missed).collect();
    ensure!(
        missed.is_empty(),
        "more than the bar beside {} or the program without records: {}",
        baseline.commit,
        missed.join(", ")
    );
    Ok(())
}

/// What a case with records stands beside: the same case without, whose histograms are filled.
const NOT_RECORDED: &str = "not recorded";
/// What it is compared with: the program that notes nothing.
const NOTHING_NOTED: &str = "no records, marks or histograms";

/// `counts`: by case; of the program that notes nothing, by the case that is compared with it.
fn rows(
    cases: &[ListedCase],
    (counts, bare_counts): (&BTreeMap<String, f64>, &BTreeMap<String, f64>),
    baseline: &InstructionCounts,
) -> Vec<ReportRow> {
    let row = |case: &ListedCase| {
        let ours = RepeatedValues::from(vec![counts[&case.name]]);
        if let (Some(other), Some(bare)) = (case.unrecorded(), bare_counts.get(&case.name)) {
            let unrecorded = counts.get(&other.name).map(|count| (NOT_RECORDED.to_owned(), *count));
            let beside = unrecorded.into_iter().chain([(NOTHING_NOTED.to_owned(), *bare)]).collect();
            let bar = Bar::AtMost(RECORDED_AT_MOST);
            return ReportRow::new(&case.name, case.unit(), &ours, &beside, NOTHING_NOTED, bar);
        }
        // The earlier commit offered no timestamps: a client that has some cost it what another one did.
        let of_all = case.name.strip_suffix(", timestamps").unwrap_or(&case.name);
        let count = baseline.counts.get(&case.name).or_else(|| baseline.counts.get(of_all));
        let earlier = count.map(|count| (baseline.commit.clone(), *count));
        let beside: BTreeMap<String, f64> = earlier.into_iter().collect();
        ReportRow::new(&case.name, case.unit(), &ours, &beside, &baseline.commit, Bar::AtMost(MORE_AT_MOST))
    };
    cases.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_more_than_one_percent_above_baseline_misses_the_bar() {
        let case = |name: &str| ListedCase { name: name.to_owned(), of: "packet".to_owned(), per_round: 64 };
        let earlier = BTreeMap::from([("a".to_owned(), 1000.0), ("b".to_owned(), 1000.0)]);
        let baseline = InstructionCounts {
            commit: "c".to_owned(),
            rustc: String::new(),
            valgrind: String::new(),
            counts: earlier,
        };
        let counts = BTreeMap::from([("a", 1010.0), ("b", 1011.0), ("c", 1.0), ("b, timestamps", 1009.0)]);
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let cases = ["a", "b", "c", "b, timestamps"].map(case);
        let rows = rows(&cases, (&counts, &BTreeMap::new()), &baseline);
        let held: Vec<bool> = rows.iter().map(|row| row.held).collect();
        assert_eq!(held, [true, false, false, true], "the third is not in the baseline");
    }

    #[test]
    fn recorded_case_stands_beside_the_program_that_notes_nothing() {
        let case = |name: &str| ListedCase { name: name.to_owned(), of: "request".to_owned(), per_round: 32 };
        let baseline = InstructionCounts {
            commit: "c".to_owned(),
            rustc: String::new(),
            valgrind: String::new(),
            counts: BTreeMap::from([("a".to_owned(), 1020.0)]),
        };
        let counts = |counts: &[(&str, f64)]| counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        for (recorded, is_held) in [(1030.0, true), (1031.0, false)] {
            let counted = counts(&[("a", 1020.0), ("a, recorded", recorded)]);
            let bare = counts(&[("a, recorded", 1000.0)]);
            let rows = rows(&["a", "a, recorded"].map(case), (&counted, &bare), &baseline);
            assert_eq!((rows[1].held, rows[1].limit, rows[1].bar), (is_held, 1000.0, Bar::AtMost(RECORDED_AT_MOST)));
            assert_eq!(rows[1].beside.get(NOT_RECORDED), Some(&1020.0));
        }
    }

    #[test]
    fn profile_total_is_read() {
        assert_eq!(total("version: 1\nsummary: 7\n\ntotals: 42\n"), Some(42));
        assert_eq!(total("version: 1\n"), None);
    }

    #[test]
    fn listed_case_is_read() {
        let case = ListedCase::parse("nat IPv4 TCP new\tconnection\t64").unwrap();
        assert_eq!(
            (case.name.as_str(), case.unit(), case.per_round),
            ("nat IPv4 TCP new", "instructions/connection", 64)
        );
        assert!(ListedCase::parse("nat").is_err());
    }
}
