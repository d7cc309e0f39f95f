//! What the page tells beside the model: measurements, as far as their results are there.

use super::figure::{Whiskers, whiskers};
use super::packets::PacketResults;
use crate::calibrate::marks::{Classification, MarkBench};
use crate::calibrate::pairs::{BOUND, RAN_ENOUGH};
use crate::measured::InstructionCounts;
use crate::statistics::Summary;
use crate::virtual_time::document::paragraph;
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Results of marks beside look-ups, in the directory of results.
pub const MARKS: &str = "classification-marks.csv";
/// Results of two real cores beside two modelled ones: `two-cores.csv` of `make bench-calibrate`.
pub const TWO_CORES: &str = "classification-two-cores.csv";
/// The part of the cases that are to be within the bound.
const WITHIN: f64 = 0.9;
/// The end of the names of cases of known flows.
const KNOWN_FLOWS: &str = " established";
/// Bytes of frames that a GB is made of: small ones, and those of the modelled device.
const FRAMES: [u32; 2] = [64, 1000];
/// Numbers of flows of marks beside look-ups.
const FLOWS: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// A measurement of [`MARKS`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MarksRow {
    /// Flows.
    pub flows: u32,
    /// By hash, by mark, or by hash on a worker that looks for marks.
    pub how: String,
    /// From 0.
    pub repetition: u32,
    /// Nanoseconds of processor time for a packet.
    pub ns: f64,
    /// Where.
    pub machine: String,
    /// When.
    pub date: String,
}

/// A measurement of [`TWO_CORES`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TwoCoresRow {
    /// The case.
    pub case: String,
    /// From 0.
    pub repetition: u32,
    /// Operations of one thread in a second.
    pub one: f64,
    /// Of two.
    pub two: f64,
    /// Of two modelled cores.
    pub model: f64,
    /// The least share of a processor that a thread had.
    pub ran: f64,
    /// Where.
    pub machine: String,
    /// When.
    pub date: String,
}

/// Measures marks beside look-ups, each number of flows in turn.
///
/// # Errors
/// Something could not be measured.
pub fn measure_marks(repetitions: u32, progress: &mut dyn FnMut(&str)) -> Result<Vec<MarksRow>> {
    let (machine, date) = (crate::report::machine().name, today());
    let mut rows = Vec::new();
    for flows in FLOWS {
        let bench = |how| Ok((how, MarkBench::new("cuckoo++", flows, how)?));
        let mut benches = Classification::ALL.into_iter().map(bench).collect::<Result<Vec<_>>>()?;
        for repetition in 0..repetitions {
            progress(&format!("{flows} flows, repetition {}", repetition + 1));
            for (how, bench) in &mut benches {
                let ns = (bench.measure(*how)? * 100.0).round() / 100.0;
                let (machine, date) = (machine.clone(), date.clone());
                rows.push(MarksRow { flows, how: how.name().to_owned(), repetition, ns, machine, date });
            }
            benches.reverse();
        }
        benches.into_iter().for_each(|(_, bench)| bench.retire());
    }
    Ok(rows)
}

/// Today, as in 2026-01-31.
pub fn today() -> String {
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    now.get(..10).unwrap_or_default().to_owned()
}

/// Writes rows to a file of results.
///
/// # Errors
/// It cannot be written.
pub fn write_measured<R: Serialize>(path: &Path, rows: &[R]) -> Result<()> {
    let named = || format!("could not write {}", path.display());
    let mut lines = csv::Writer::from_path(path).with_context(named)?;
    rows.iter().try_for_each(|row| lines.serialize(row)).with_context(named)?;
    lines.flush().with_context(named)
}

/// The rows of a file; none, if it is not there.
pub(super) fn read<R: DeserializeOwned>(path: &Path) -> Result<Vec<R>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let named = || path.display().to_string();
    let mut lines = csv::Reader::from_path(path).with_context(named)?;
    lines.deserialize().collect::<Result<_, _>>().with_context(named)
}

/// A section of the page, and its figures by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sections {
    /// In Markdown.
    pub text: String,
    /// Name, title, drawing.
    pub figures: Vec<(String, String, String)>,
}

/// All sections whose results are in this directory.
///
/// # Errors
/// Results cannot be read.
pub fn sections(results: &Path) -> Result<Sections> {
    let mut all = Sections::default();
    PacketResults::read(results)?.section(&mut all)?;
    marks(&mut all, &read(&results.join(MARKS))?)?;
    super::ageing::section(&mut all, results)?;
    two_cores(&mut all, &read(&results.join(TWO_CORES))?);
    instructions(&mut all, &InstructionCounts::kept()?);
    Ok(all)
}

/// What a packet of a known flow costs our own worker, and what is not counted.
fn instructions(all: &mut Sections, counts: &InstructionCounts) {
    all.text.push_str("## Instructions of a packet\n\n");
    let about = format!(
        "Instructions stand for energy, of which a virtual machine has no counter. `make bench-instructions` has counted those of Hairpin's \
         worker for a packet of a known flow, with the table `per-core/cuckoo++` and all of the worker's work in them, by callgrind ({}). \
         The kernel's and a card's are not among them. Not counted: the other methods of this page, for which there is no case in \
         `lab/instructions`; the modelled devices, which have times and no instructions; `rte_hash`.",
        counts.origin()
    );
    paragraph(&mut all.text, &about, "");
    let sizes = FRAMES.map(|bytes| format!("10^9 instructions/GB, frames of {bytes} bytes"));
    all.text.push_str(&format!("\n| case | instructions/packet | {} |\n|---|---:|---:|---:|\n", sizes.join(" | ")));
    for (case, count) in counts.counts.iter().filter(|(case, _)| case.ends_with(KNOWN_FLOWS)) {
        let by_gb = FRAMES.map(|bytes| format!("{:.2}", count / f64::from(bytes)));
        all.text.push_str(&format!("| {case} | {count:.0} | {} |\n", by_gb.join(" | ")));
    }
    all.text.push('\n');
}

fn marks(all: &mut Sections, rows: &[MarksRow]) -> Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    all.text.push_str("## Marks beside look-ups, in software\n\n");
    all.text.push_str(&format!(
        "`hairpin-lab classify --marks`, {}, {}: the worker takes packets of 64 bytes from memory and finds their\n\
         connections by hash and look-up in `cuckoo++`, or by the mark that each packet has, as from a card (`rte_flow`'s MARK).\n\
         Nanoseconds of processor time for a packet, all of the worker's work in it; median of repetitions that take turns\n\
         (least to most).\n\n",
        first.date, first.machine
    ));
    all.text.push_str(
        "| flows | hash | marks | saved | hash on a worker that looks for marks |\n|---:|---:|---:|---:|---:|\n",
    );
    let mut drawn = Vec::new();
    for flows in FLOWS {
        let of = |how: Classification| {
            let values: Vec<f64> =
                rows.iter().filter(|row| row.flows == flows && row.how == how.name()).map(|row| row.ns).collect();
            Some((Summary::of(&values)?, Whiskers::of(&format!("{flows} flows, {}", how.name()), &values)?))
        };
        let [Some(hash), Some(marks), Some(none)] = Classification::ALL.map(of) else { continue };
        let said = |(summary, _): &(Summary, Whiskers)| {
            format!("{:.1} ({:.1} to {:.1})", summary.median, summary.least, summary.most)
        };
        let saved = 100.0 * (1.0 - marks.0.median / hash.0.median);
        let (by_hash, by_mark, without) = (said(&hash), said(&marks), said(&none));
        all.text.push_str(&format!("| {flows} | {by_hash} | {by_mark} | {saved:.0} % | {without} |\n"));
        drawn.extend([hash.1, marks.1]);
    }
    all.text.push('\n');
    let title = "A packet by hash and by mark";
    if let Some(svg) = whiskers(title, "ns of processor time for a packet, by repetition", &drawn)? {
        all.text.push_str(&format!("![{title}](figures/classification-marks.svg)\n\n"));
        all.figures.push(("marks".to_owned(), title.to_owned(), svg));
    }
    Ok(())
}

fn two_cores(all: &mut Sections, rows: &[TwoCoresRow]) {
    let Some(first) = rows.first() else { return };
    all.text.push_str("## Two real cores beside two modelled ones\n\n");
    all.text.push_str(&format!(
        "`make bench-calibrate`, {}, {}: the same work on one thread, on two, and on two modelled cores\n\
         with what the work costs one thread and what a cache line takes from core to core, all measured within a second. Millions\n\
         a second, of the repetition whose ratio is in the middle. Repetitions in which a thread had less than {:.0} % of its\n\
         processor are left out.\n\n",
        first.date,
        first.machine,
        100.0 * RAN_ENOUGH
    ));
    all.text.push_str(
        "| case | one thread | two | modelled | modelled / measured | within 15 % |\n|---|---:|---:|---:|---:|---|\n",
    );
    let mut cases: Vec<&str> = Vec::new();
    rows.iter().for_each(|row| {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case)
        }
    });
    let (mut held, mut judged) = (0, 0);
    for case in cases {
        let mut came: Vec<&TwoCoresRow> = rows.iter().filter(|row| row.case == case && row.ran >= RAN_ENOUGH).collect();
        came.sort_by(|one, other| (one.model / one.two).total_cmp(&(other.model / other.two)));
        let Some(middle) = came.get(came.len() / 2) else {
            all.text.push_str(&format!("| {case} | - | - | - | - | starved |\n"));
            continue;
        };
        let ratio = middle.model / middle.two;
        let is_within = (ratio - 1.0).abs() <= BOUND;
        (held, judged) = (held + usize::from(is_within), judged + 1);
        let [one, two, model] = [middle.one, middle.two, middle.model].map(|rate| rate / 1e6);
        let verdict = if is_within { "yes" } else { "**no**" };
        all.text.push_str(&format!("| {case} | {one:.2} | {two:.2} | {model:.2} | {ratio:.2} | {verdict} |\n"));
    }
    let enough = held as f64 >= WITHIN * f64::from(judged as u32);
    let verdict = if enough { "agrees" } else { "**does not agree**" };
    all.text.push_str(&format!("\n{held} of {judged} cases are within 15 %; nine of ten are wanted: {verdict}.\n\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, two: f64, model: f64, ran: f64) -> TwoCoresRow {
        let (machine, date) = ("a machine".to_owned(), "2026-01-31".to_owned());
        TwoCoresRow { case: case.to_owned(), repetition: 0, one: 1e6, two, model, ran, machine, date }
    }

    fn verdict(rows: &[TwoCoresRow]) -> String {
        let mut all = Sections::default();
        two_cores(&mut all, rows);
        all.text.trim().lines().last().unwrap_or_default().to_owned()
    }

    #[test]
    fn planted_case_turns_the_verdict() {
        let mut rows: Vec<TwoCoresRow> = (0..10).map(|at| row(&format!("case {at}"), 2e6, 2.1e6, 1.0)).collect();
        rows[0].model = 3e6;
        assert_eq!(verdict(&rows), "9 of 10 cases are within 15 %; nine of ten are wanted: agrees.");
        rows[1].model = 1e6;
        assert_eq!(verdict(&rows), "8 of 10 cases are within 15 %; nine of ten are wanted: **does not agree**.");
    }

    #[test]
    fn starved_repetitions_do_not_count() {
        let rows = [row("a", 2e6, 9e6, 0.5), row("a", 2e6, 2e6, 1.0), row("b", 2e6, 9e6, 0.5)];
        assert_eq!(verdict(&rows), "1 of 1 cases are within 15 %; nine of ten are wanted: agrees.");
        assert_eq!(verdict(&[]), "");
    }
}
