//! The page: every finding with its verdict, ours beside theirs, why, and figures.

use super::figure::{self, Whiskers};
use super::file::{ClassificationExperiment, ClassificationFinding};
use super::perform::CaseRow;
use super::rule::{ClassificationVerdict, Sharing, SharingMetric};
use super::sections::Sections;
use crate::findings;
use crate::report::replace;
use crate::virtual_time::document;
use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Context, Result};
use hairpin_sim::sharing::SharingMethod;
use std::path::Path;

/// Claims of a finding that are shown, those that do not hold first.
const CLAIMS_MAX: usize = 3;
/// Numbers of cores of which whiskers are drawn, as in the paper's figures 5.26 to 5.29.
const WHISKER_CORES: [u16; 4] = [1, 3, 6, 8];
/// Devices beside the first that have figures of their own.
const BESIDE_MAX: usize = 1;

/// What the page is made of.
#[derive(Clone, Copy, Debug)]
pub struct PageParts<'a> {
    /// The experiment.
    pub experiment: &'a ClassificationExperiment,
    /// All its results.
    pub rows: &'a [CaseRow],
    /// Measurements beside the model.
    pub more: &'a Sections,
}

/// Writes the page, and its figures into `figures` beside it.
///
/// # Errors
/// A file cannot be written, or a figure cannot be drawn.
pub fn write(parts: &PageParts<'_>, page: &Path) -> Result<()> {
    let figures = page.parent().unwrap_or(Path::new("")).join("figures");
    std::fs::create_dir_all(&figures).with_context(|| format!("could not make {}", figures.display()))?;
    let drawn = drawings(parts)?;
    for (name, _, svg) in drawn.iter().chain(&parts.more.figures) {
        replace(&figures.join(format!("classification-{name}.svg")), svg.as_bytes())?;
    }
    replace(page, text(parts, &drawn).as_bytes())
}

/// A finding, judged: at the lines' costs as they are, and at the other factors.
struct Judged<'a> {
    finding: &'a ClassificationFinding,
    came: ClassificationVerdict,
    others: Vec<(f64, CaseVerdict)>,
}

fn judged<'a>(parts: &PageParts<'a>) -> Vec<Judged<'a>> {
    let experiment = parts.experiment;
    let judge = |finding: &'a ClassificationFinding| {
        let at = |line| experiment.judge(finding, parts.rows, line);
        let others = experiment.line.iter().filter(|line| **line != 1.0);
        Judged { finding, came: at(1.0), others: others.map(|&line| (line, at(line).verdict)).collect() }
    };
    experiment.finding.iter().map(judge).collect()
}

/// Name, title and drawing of each figure.
type Drawn = Vec<(String, String, String)>;

fn drawings(parts: &PageParts<'_>) -> Result<Drawn> {
    let experiment = parts.experiment;
    let mut drawn = Vec::new();
    let mut keep = |name: String, title: String, svg: Option<String>| {
        if let Some(svg) = svg {
            drawn.push((name, title, svg));
        }
    };
    for device in experiment.devices.iter().take(1 + BESIDE_MAX) {
        let seen = Sharing::of(parts.rows, device, 1.0);
        for (word, metric, beside) in [
            ("throughput", SharingMetric::Gbit, "Gbit/s of frames"),
            ("waiting", SharingMetric::Waiting, "percent of the cores' time in waiting for a lock"),
        ] {
            let title = format!("{device}: {word} by cores");
            let svg = figure::by_cores(experiment, &seen, metric, title.clone(), beside)?;
            keep(format!("{word}-{device}"), title, svg);
        }
    }
    let device = &experiment.devices[0];
    let seen = Sharing::of(parts.rows, device, 1.0);
    for cores in WHISKER_CORES.into_iter().filter(|cores| experiment.cores.contains(cores)) {
        let of = |method: &SharingMethod| {
            Whiskers::of(method.name(), &seen.cell(*method, cores).map(|row| row.gbit).collect::<Vec<_>>())
        };
        let title = format!("{device}: throughput on {cores} core(s)");
        let all: Vec<Whiskers> = experiment.methods.iter().filter_map(of).collect();
        keep(format!("whiskers-{cores}"), title.clone(), figure::whiskers(&title, "Gbit/s of frames, by seed", &all)?);
        let of = |method: &SharingMethod| Whiskers::of_round_trips(method.name(), seen.cell(*method, cores));
        let title = format!("{device}: round trips on {cores} core(s)");
        let all: Vec<Whiskers> = experiment.methods.iter().filter_map(of).collect();
        let below = "us: a quarter, half, three quarters, 99 of 100 of the packets";
        keep(format!("round-trips-{cores}"), title.clone(), figure::whiskers(&title, below, &all)?);
    }
    Ok(drawn)
}

fn text(parts: &PageParts<'_>, drawn: &Drawn) -> String {
    let experiment = parts.experiment;
    let mut text = format!("# {}\n\n", experiment.title);
    let profiles: Vec<String> =
        experiment.devices.iter().map(|device| format!("`lab/profiles/sharing/{device}.toml`")).collect();
    let made = format!(
        "`hairpin-lab classify` simulates {} runs and writes this page; `hairpin-lab classify --report` writes it from \
         `lab/results/classification.csv`. It is virtual time, and the same on every machine. The rules beside the findings in \
         `lab/classification.toml` decide the verdicts. The profiles name the source of each number: {}.",
        parts.rows.len(),
        profiles.join(", ")
    );
    paragraph(&mut text, &made);
    for note in experiment.notes.split("\n\n").map(str::trim).filter(|note| !note.is_empty()) {
        paragraph(&mut text, note);
    }
    verdicts(&mut text, parts);
    for (name, title, _) in drawn {
        text.push_str(&format!("![{title}](figures/classification-{name}.svg)\n"));
    }
    text.push('\n');
    table(&mut text, parts);
    text.push_str(parts.more.text.trim());
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn verdicts(text: &mut String, parts: &PageParts<'_>) {
    let all = judged(parts);
    let count = |verdict| all.iter().filter(|one| one.came.verdict == verdict).count();
    text.push_str("## Verdicts\n\n");
    text.push_str(&format!(
        "{} findings: {} agree, {} in part, {} do not agree.\n\n",
        all.len(),
        count(CaseVerdict::Agrees),
        count(CaseVerdict::InPart),
        count(CaseVerdict::Disagrees)
    ));
    let factors = parts.experiment.line.iter().filter(|line| **line != 1.0);
    let heads: Vec<String> = factors.map(|line| format!("lines {line} times")).collect();
    text.push_str(&format!("| | finding | source | theirs | here | {} |\n", heads.join(" | ")));
    text.push_str(&format!("|---:|---|---|---|---|{}\n", "---|".repeat(heads.len())));
    for (one, number) in all.iter().zip(1..) {
        let Some(listed) = findings::find(&one.finding.id) else { continue };
        let beside = |(_, verdict): &(f64, CaseVerdict)| match verdict {
            CaseVerdict::NotMeasured => "-",
            verdict => verdict.text(),
        };
        let others: Vec<&str> = one.others.iter().map(beside).collect();
        text.push_str(&format!(
            "| {number} | {} | {} | {} | {} | {} |\n",
            cell(&listed.statement),
            cell(&listed.source()),
            cell(&one.finding.theirs),
            one.came.verdict.text(),
            others.join(" | ")
        ));
    }
    text.push_str(
        "\nWhat each verdict rests on, by the number of the finding; **not so** marks what contradicts it:\n\n",
    );
    for (one, number) in all.iter().zip(1..) {
        let mut claims: Vec<_> = one.came.claims.iter().collect();
        claims.sort_by_key(|claim| claim.holds);
        let shown: Vec<String> = claims
            .iter()
            .take(CLAIMS_MAX)
            .map(|claim| if claim.holds { claim.text.clone() } else { format!("**not so:** {}", claim.text) })
            .collect();
        let held = claims.iter().filter(|claim| claim.holds).count();
        let why = match one.came.verdict {
            CaseVerdict::Agrees => &one.finding.why,
            _ => &one.finding.why_not,
        };
        let line = format!("- *{number}:* {held} of {}. {}. {why}", claims.len(), shown.join("; "));
        document::paragraph(text, line.trim(), "  ");
    }
    text.push('\n');
}

/// Throughput, waiting and round trips of the first device.
fn table(text: &mut String, parts: &PageParts<'_>) {
    let experiment = parts.experiment;
    for device in &experiment.devices {
        let seen = Sharing::of(parts.rows, device, 1.0);
        text.push_str(&format!(
            "## {device} by cores\n\nGbit/s, percent of the time in waiting, mean round trip in us; mean "
        ));
        text.push_str(&format!("of {} seeds, ± half of the 95 % interval.\n\n", experiment.seeds.len()));
        let heads: Vec<String> = experiment.cores.iter().map(u16::to_string).collect();
        text.push_str(&format!("| method | {} |\n|---|{}\n", heads.join(" | "), "---:|".repeat(heads.len())));
        for &method in &experiment.methods {
            let of = |&cores: &u16| {
                let value = |metric| seen.summary(metric, method, cores);
                let gbit = value(SharingMetric::Gbit)?;
                let (waiting, trip) = (value(SharingMetric::Waiting)?.mean, value(SharingMetric::RoundTrip)?.mean);
                let half = gbit.half_width.unwrap_or(0.0);
                Some(format!("{:.1} ± {half:.1}, {waiting:.0} %, {trip:.0}", gbit.mean))
            };
            let cells: Vec<String> =
                experiment.cores.iter().map(|cores| of(cores).unwrap_or_else(|| "-".to_owned())).collect();
            text.push_str(&format!("| `{method}` | {} |\n", cells.join(" | ")));
        }
        text.push('\n');
    }
}

fn paragraph(text: &mut String, prose: &str) {
    document::paragraph(text, prose, "");
    text.push('\n');
}

/// Text that cannot end a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
