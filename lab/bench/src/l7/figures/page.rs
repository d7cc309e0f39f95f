//! The page: what Laconic found, what was found here, and which of these findings can be compared. Only what decides stands
//! on it: `measurements.csv` has every value.

mod engine;
mod middleboxes;
mod requests;
mod tables;

use super::draw::{self, FigureSpec};
use super::load::{CONNECTIONS, THROUGHPUT, Variant};
use super::paper;
use super::results::{FigureResults, ResponseCounts, ResultPlace, shown};
use anyhow::{Context as _, Result};
use hairpin_e2e::command;
use hairpin_e2e::peer::hairpin_program;
use hairpin_lab::virtual_time::finding::CaseVerdict;
pub(super) use middleboxes::write as write_middleboxes;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The results that instructions of the processes beside Hairpin are counted in.
const MIDDLEBOXES: &str = "lab/results/middleboxes";

/// The machine and date of the measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PageContext {
    pub(super) machine: String,
    date: String,
    /// Load averages of the last minute and the last five minutes, before the run.
    load: String,
    repetitions: usize,
    /// The command line.
    line: String,
    /// Hairpin's version, and its commit where that is known.
    version: String,
    /// Further notes on the values.
    #[serde(default)]
    note: String,
    /// Parts that could not be measured, and why.
    #[serde(default)]
    pub(super) failures: Vec<String>,
    /// Instructions for a response, as far as they are kept.
    #[serde(skip)]
    counts: ResponseCounts,
}

impl PageContext {
    /// Reads it, before anything is measured.
    pub(super) fn new(repetitions: usize) -> Result<PageContext> {
        let load = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
        let date = command::output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?;
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let version = command::output(Command::new(hairpin_program()?).arg("--version")).unwrap_or_default();
        let commit = command::output(Command::new("git").args(["rev-parse", "--short", "HEAD"])).unwrap_or_default();
        let commit = if commit.trim().is_empty() { String::new() } else { format!(", commit {}", commit.trim()) };
        Ok(PageContext {
            machine: crate::tables::machine_name(),
            date: date.trim().to_owned(),
            load: load.split(' ').take(2).collect::<Vec<_>>().join(", "),
            repetitions,
            line: format!("hairpin-bench {}", arguments.join(" ")),
            version: format!("{}{commit}", version.trim()),
            note: String::new(),
            failures: Vec::new(),
            counts: ResponseCounts::kept(Path::new(MIDDLEBOXES))?,
        })
    }

    /// Reads what [`PageContext::write`] has written; counts are those beside its directory.
    pub(super) fn read(path: &Path) -> Result<PageContext> {
        let named = || format!("could not read {}", path.display());
        let context: PageContext =
            serde_json::from_slice(&std::fs::read(path).with_context(named)?).with_context(named)?;
        let results = path.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        let middleboxes = results.join(Path::new(MIDDLEBOXES).file_name().unwrap_or_default());
        Ok(PageContext { counts: ResponseCounts::kept(&middleboxes)?, ..context })
    }

    /// Keeps it beside the values.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("the circumstances")? + "\n";
        std::fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
    }
}

/// Draws the figures and writes the page, to `document` as well if there is one.
pub(super) fn write(
    results: &FigureResults,
    context: &PageContext,
    directory: &Path,
    document: Option<&Path>,
) -> Result<()> {
    let mut page = FiguresPage { results, counts: &context.counts, text: String::new(), directory };
    page.head(context)?;
    page.throughput()?;
    page.latency()?;
    page.offloading()?;
    page.rules()?;
    page.packets()?;
    page.utilization()?;
    page.hashtable()?;
    page.mix()?;
    finish(page, document)
}

/// Writes a page that is complete, to `document` as well if there is one.
fn finish(mut page: FiguresPage<'_>, document: Option<&Path>) -> Result<()> {
    let directory = page.directory;
    page.text.truncate(page.text.trim_end().len());
    page.text.push('\n');
    let path = directory.join("page.md");
    std::fs::write(&path, &page.text).with_context(|| format!("could not write {}", path.display()))?;
    println!("{}", path.display());
    document.map_or(Ok(()), |document| keep(&page.text, directory, document))
}

/// Writes the page to `file`, and the figures that it shows to `figures` beside it.
fn keep(text: &str, directory: &Path, file: &Path) -> Result<()> {
    let stem = file.file_stem().context("the page needs a file name")?.to_string_lossy().into_owned();
    let figures = file.parent().unwrap_or(Path::new("")).join("figures");
    std::fs::create_dir_all(&figures).with_context(|| format!("could not make {}", figures.display()))?;
    let mut kept = String::new();
    for line in text.lines() {
        match line.strip_prefix("![").and_then(|line| line.strip_suffix(')')?.split_once("](")) {
            Some((title, name)) => {
                let into = figures.join(format!("{stem}-{name}"));
                let drawn = directory.join(name);
                std::fs::copy(&drawn, &into).with_context(|| format!("could not copy {}", drawn.display()))?;
                writeln!(kept, "![{title}](figures/{stem}-{name})")?;
            }
            None => writeln!(kept, "{line}")?,
        }
    }
    std::fs::write(file, kept).with_context(|| format!("could not write {}", file.display()))
}

struct FiguresPage<'a> {
    results: &'a FigureResults,
    counts: &'a ResponseCounts,
    text: String,
    directory: &'a Path,
}

/// A size as people write it.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KB", bytes >> 10),
        _ => format!("{} MB", bytes >> 20),
    }
}

/// Says, for people, that a claim holds in `held` of `all` places.
fn verdict(held: usize, all: usize) -> &'static str {
    CaseVerdict::of_places(held, all).text()
}

impl FiguresPage<'_> {
    fn head(&mut self, context: &PageContext) -> Result<()> {
        let PageContext { machine, date, load, repetitions, line, version, note, failures, .. } = context;
        writeln!(self.text, "# The evaluation of Laconic, here\n")?;
        self.paragraph(
            "Section 4 of Laconic ([references](../references.md)), figures 8 to 12 and tables 2 to 4, beside the same \
             questions asked of Hairpin. `make bench-laconic` measures it. `lab/results/laconic/measurements.csv` has every \
             value of every repetition, and [findings.toml](findings.toml) lists the paper's findings with what counts as \
             reproduced.",
        )?;
        self.paragraph(&format!(
            "Measured {date} on {machine}, {version}, by `{line}`: {repetitions} repetition(s), forwards and backwards in \
             turn. Numbers are medians, with the smallest and the largest in brackets. Load average before the run: {load} \
             (one minute, five minutes). Above some tenths, other programs were using the machine; then only table 2, which \
             goes by the thread's own time, is to be quoted."
        ))?;
        if !note.is_empty() {
            self.paragraph(&format!("**Note:** {note}"))?;
        }
        self.paragraph(&format!(
            "**What is different, everywhere.** The paper's balancer is a BlueField-2 or LiquidIO 3 beside five servers on \
             links of 100 Gbit/s, and its flow engine is hardware. Here the balancer is one core of this machine, its engine \
             is the kernel (BPF programs at the cards), and client and server share the other core, over virtual cards. So \
             the engine costs our core something for each packet, and client and server are the limit (\"no balancer\" shows \
             it). There is one balancer core, so nothing here answers figures 8 (b), 8 (d), 9 (d) and the axes of cores in \
             10. Clients: wrk, {CONNECTIONS} connections that stay. Server: nginx with static files, as in the paper. nginx as a \
             balancer runs on the balancer's core. Congestion control is CUBIC, or Reno where that is not allowed."
        ))?;
        if !failures.is_empty() {
            self.paragraph(&format!("**Not measured:** {}.", failures.join("; ")))?;
        }
        Ok(())
    }

    fn paragraph(&mut self, text: &str) -> Result<()> {
        // As wide as the other documents.
        let mut width = 0;
        for word in text.split_whitespace() {
            if width > 0 && width + 1 + word.len() > 120 {
                self.text.push('\n');
                width = 0;
            } else if width > 0 {
                self.text.push(' ');
                width += 1;
            }
            self.text.push_str(word);
            width += word.len();
        }
        self.text.push_str("\n\n");
        Ok(())
    }

    /// A section about a finding of the paper.
    fn section(&mut self, title: &str, id: &str) -> Result<()> {
        let listed = paper::finding(id)?;
        writeln!(self.text, "## {title}\n")?;
        self.paragraph(&format!("*Paper* ({}): {}.", listed.section, listed.statement))
    }

    fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        writeln!(self.text, "| {} |\n|{}", header.join(" | "), "---|".repeat(header.len()))?;
        for row in rows {
            writeln!(self.text, "| {} |", row.join(" | "))?;
        }
        self.text.push('\n');
        Ok(())
    }

    fn not_measured(&mut self) -> Result<()> {
        self.paragraph("*Here:* not measured in this run.")
    }

    /// Draws a figure, if there is anything to draw, and shows it.
    fn figure(&mut self, file: &str, figure: FigureSpec<'_>, label: fn(u64) -> String) -> Result<()> {
        let path = self.directory.join(file);
        self.forget(file);
        draw::by_place(self.results, &figure, label, &path)?;
        self.show(file, figure.title)
    }

    /// Removes figures of an earlier run, so that none stands beside this run's values.
    fn forget(&self, file: &str) {
        let _ = std::fs::remove_file(self.directory.join(file));
    }

    fn show(&mut self, file: &str, title: &str) -> Result<()> {
        if self.directory.join(file).exists() {
            writeln!(self.text, "![{title}]({file})\n")?;
        }
        Ok(())
    }

    /// Rows of a table: a place each, and a series each in the columns.
    fn by_series(
        &self,
        part: &'static str,
        setting: &str,
        what: &str,
        series: &[&str],
        digits: usize,
    ) -> Vec<Vec<String>> {
        let places = self.results.places(part, setting).into_iter();
        let row = |x: u64| {
            let of = |series: &&str| {
                shown(self.results.samples(ResultPlace { part, setting, series, x }, what).as_ref(), digits)
            };
            std::iter::once(size(x)).chain(series.iter().map(of)).collect()
        };
        places.map(row).collect()
    }

    /// Two columns for each series, of instructions for a response and of thousand millions for each GB, and their heads.
    fn counted(&self, series: &[&str], places: &[u64]) -> (Vec<String>, Vec<Vec<String>>) {
        let heads = series.iter().map(|series| format!("{series}: instructions/response"));
        let heads = heads.chain(series.iter().map(|series| format!("{series}: 10^9 instructions/GB")));
        let row = |&bytes: &u64| {
            let each = || series.iter().map(move |series| self.counts.of(series, bytes));
            let responses = each().map(|count| count.map_or("-".to_owned(), |count| format!("{count:.0}")));
            let by_byte = |count: f64| format!("{:.2}", count / bytes as f64);
            responses.chain(each().map(|count| count.map_or("-".to_owned(), by_byte))).collect()
        };
        (heads.collect(), places.iter().map(row).collect())
    }

    fn median(&self, part: &str, setting: &str, way: Variant, x: u64, what: &str) -> Option<f64> {
        self.results.median(ResultPlace { part, setting, series: way.name(), x }, what)
    }
}

/// The common part of most figures.
fn goodput(setting: &str) -> FigureSpec<'_> {
    FigureSpec {
        part: THROUGHPUT,
        setting,
        what: "gbit_per_s",
        divisor: 1.0,
        title: "",
        x_title: "size of response",
        y_title: "Gbit/s",
        logarithmic: true,
        only: &[],
    }
}
