//! The head of the page: what was done, where and when, and how verdicts differ between scales.

use super::super::finding::{CaseFinding, CaseVerdict};
use super::super::results::Gathered;
use super::super::store::{CaseOutcome, CaseRecord};
use super::super::write::Circumstances;
use super::{DocumentParts, cell, judgements, paragraph, push, scale_name};
use crate::records::Provenance;
use std::collections::BTreeMap;

/// Verdicts at another scale, to stand beside the page's own.
pub(super) struct Verdicts<'a> {
    /// The other scale, if there are results of it.
    pub(super) beside: Option<f64>,
    /// Experiment, finding, verdict there.
    others: Vec<(&'a str, &'a CaseFinding, CaseVerdict)>,
}

impl<'a> Verdicts<'a> {
    /// Judges everything at the other scale.
    pub(super) fn of(parts: &DocumentParts<'a>) -> Verdicts<'a> {
        let Some(beside) = &parts.beside else { return Verdicts { beside: None, others: Vec::new() } };
        let of_one = |one: &Gathered<'a>| {
            let name = one.experiment.name.as_str();
            judgements(one).into_iter().map(move |(finding, judgement, _)| (name, finding, judgement.verdict))
        };
        Verdicts { beside: Some(beside.scale), others: beside.gathered.iter().flat_map(of_one).collect() }
    }

    /// The verdict on a finding there.
    pub(super) fn other(&self, gathered: &Gathered<'_>, finding: &CaseFinding) -> Option<CaseVerdict> {
        let is_it = |(name, other, _): &&(&str, &CaseFinding, CaseVerdict)| {
            *name == gathered.experiment.name && other.id == finding.id && other.text == finding.text
        };
        self.others.iter().find(is_it).map(|(_, _, verdict)| *verdict)
    }
}

pub(super) fn write(text: &mut String, parts: &DocumentParts<'_>) {
    let scale = parts.circumstances.scale;
    push(text, &format!("# KTH 2022 in virtual time, {}\n", at(scale)));
    for prose in about(parts.gathered, parts.circumstances) {
        paragraph(text, &prose, "");
        text.push('\n');
    }
    if !parts.tables.is_empty() {
        let prose = format!(
            "[findings.toml](findings.toml) lists the findings with what counts as reproduced. `{0}/findings.csv` has the pairs \
             that contradict a finding and the reasons for what agrees; `{0}/EXPERIMENT.csv` has every run.",
            parts.tables
        );
        paragraph(text, &prose, "");
        text.push('\n');
    }
    machines(text, parts.gathered);
    push(text, "## Verdicts\n");
    counts(text, parts);
    differences(text, parts);
}

fn at(scale: f64) -> String {
    match scale_name(scale).as_str() {
        "a tenth" => "at a tenth of its scale".to_owned(),
        name => format!("at {name}"),
    }
}

/// How it came about, in paragraphs.
pub(in super::super) fn about(gathered: &[Gathered<'_>], circumstances: &Circumstances) -> Vec<String> {
    let efforts = gathered.iter().map(Gathered::effort);
    let (packets, seconds) = efforts.fold((0, 0.0), |(packets, seconds), one| (packets + one.0, seconds + one.1));
    let cases: usize = gathered.iter().map(|one| one.cases.len()).sum();
    let failed: usize = gathered.iter().map(|one| one.failures().len()).sum();
    let mut profiles: Vec<String> = gathered
        .iter()
        .flat_map(|one| &one.experiment.cases)
        .flat_map(|case| {
            [
                format!("`lab/profiles/cores/{}.toml`", case.settings.core),
                format!("`lab/profiles/{}.toml`", case.settings.card),
            ]
        })
        .collect();
    profiles.sort();
    profiles.dedup();
    let mut paragraphs = vec![
        format!(
            "`{}` writes this page. The rules beside the findings in `lab/experiments/*.toml` decide the verdicts. {}",
            circumstances.command,
            scaled(circumstances.scale)
        ),
        format!(
            "{cases} cases, {failed} of them without a result; {:.2} billion packets in {} of processor time. The profiles of cores \
             and cards name the source of each number: {}.",
            packets as f64 / 1e9,
            minutes(seconds),
            profiles.join(", ")
        ),
    ];
    paragraphs.push(seeds(gathered));
    let records = gathered.iter().flat_map(|one| &one.cases).filter_map(|(_, record)| *record);
    let recordings = records.filter_map(|record| record.recordings).next();
    paragraphs.push(match recordings {
        Some(played) => format!(
            "The paper's trace is not public. {} recordings of {} packets in {} flows (of one direction each) take its place. \
             They are replayed with fresh addresses, many at a time, until there are as many flows as asked for. Every frame \
             has 1,514 bytes, as the paper pads its packets to 1,500 bytes.",
            played.units, played.packets, played.flows
        ),
        None => "No case replayed a recording; those that need one have no result.".to_owned(),
    });
    paragraphs
}

/// With how many seeds, and what intervals are.
fn seeds(gathered: &[Gathered<'_>]) -> String {
    let counts: Vec<(&str, (usize, usize))> =
        gathered.iter().map(|one| (one.experiment.name.as_str(), one.seeds())).collect();
    let least = counts.iter().map(|(_, (least, _))| *least).min().unwrap_or(0);
    let most = counts.iter().map(|(_, (_, most))| *most).max().unwrap_or(0);
    if most <= 1 {
        return "Each case has one seed, so there are no intervals, and no verdict is called open.".to_owned();
    }
    let said = if least == most {
        format!("Each case has {most} seeds")
    } else {
        let each = counts.iter().map(|(name, (least, most))| {
            if least == most { format!("`{name}` {most}") } else { format!("`{name}` {least} to {most}") }
        });
        format!("Seeds of each case: {}", each.collect::<Vec<_>>().join(", "))
    };
    format!(
        "{said}, which draw the packets and whatever else is drawn; compared cases of one seed have the same packets. Figures \
         are means over seeds; ± and error bars are 95 % confidence intervals (Student's t). A pair is open if the interval \
         of its difference allows both answers, and a verdict if the open pairs could turn it."
    )
}

fn scaled(scale: f64) -> String {
    if scale == 1.0 {
        return "Rates, flows, tables and rules are those of KTH 2022.".to_owned();
    }
    format!(
        "Rates, flows, tables and rules are {scale} times KTH 2022's, and modelled cores are as much slower. Figures are \
         converted to the paper's scale: rates and counts are divided by {scale}, latencies multiplied by it."
    )
}

fn minutes(seconds: f64) -> String {
    format!("{:.0} min {:02.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor())
}

/// Which machine simulated what, and when.
fn machines(text: &mut String, gathered: &[Gathered<'_>]) {
    // Cases, packets, seconds of processor time.
    let mut all: BTreeMap<Option<&Provenance>, (usize, u64, f64)> = BTreeMap::new();
    for record in gathered.iter().flat_map(|one| &one.cases).filter_map(|(_, record)| *record) {
        let of = all.entry(record.made.as_ref()).or_default();
        of.0 += 1;
        of.1 += packets(record);
        of.2 += record.worked.unwrap_or(record.took);
    }
    if all.is_empty() {
        return;
    }
    push(text, "| machine | date | program | cases | packets, billions | processor time |");
    push(text, "|---|---|---|---:|---:|---:|");
    for (made, (cases, packets, seconds)) in all {
        let (machine, date, program) =
            made.map_or(("not recorded", "-", "-"), |made| (&made.machine, &made.date, &made.program));
        let (packets, time) = (packets as f64 / 1e9, minutes(seconds));
        push(text, &format!("| {machine} | {date} | {program} | {cases} | {packets:.2} | {time} |"));
    }
    text.push('\n');
}

fn packets(record: &CaseRecord) -> u64 {
    match &record.came {
        CaseOutcome::Runs(runs) => runs.iter().map(|run| run.simulated).sum(),
        CaseOutcome::Failed(_) => 0,
    }
}

fn counts(text: &mut String, parts: &DocumentParts<'_>) {
    let verdicts = |gathered: &[Gathered<'_>]| -> Vec<CaseVerdict> {
        gathered.iter().flat_map(judgements).map(|(_, judgement, _)| judgement.verdict).collect()
    };
    let line = |scale: f64, all: &[CaseVerdict]| {
        let count = |verdict| all.iter().filter(|other| **other == verdict).count();
        format!(
            "| {} | {} | {} | {} | {} | {} |",
            scale_name(scale),
            all.len(),
            count(CaseVerdict::Agrees),
            count(CaseVerdict::InPart),
            count(CaseVerdict::Disagrees),
            count(CaseVerdict::NotMeasured)
        )
    };
    push(text, "| scale | findings | agree | in part | do not agree | not measured |\n|---|---:|---:|---:|---:|---:|");
    push(text, &line(parts.circumstances.scale, &verdicts(parts.gathered)));
    if let Some(beside) = &parts.beside {
        push(text, &line(beside.scale, &verdicts(beside.gathered)));
    }
    text.push('\n');
}

/// Findings on which the two scales differ.
fn differences(text: &mut String, parts: &DocumentParts<'_>) {
    let all = Verdicts::of(parts);
    let Some(scale) = all.beside else { return };
    let mut rows = Vec::new();
    let mut judged = 0;
    for one in parts.gathered {
        for (finding, judgement, _) in judgements(one) {
            let Some(other) = all.other(one, finding) else { continue };
            judged += 1;
            if other != judgement.verdict {
                rows.push(format!("| {} | {} | {} |", cell(&finding.text), judgement.said(), other.text()));
            }
        }
    }
    let (here, there) = (scale_name(parts.circumstances.scale), scale_name(scale));
    if rows.is_empty() {
        push(text, &format!("All {judged} verdicts are the same at {here} and at {there}.\n"));
        return;
    }
    push(text, &format!("{} of {judged} verdicts differ between {here} and {there}:\n", rows.len()));
    push(text, &format!("| finding | {here} | {there} |\n|---|---|---|"));
    rows.iter().for_each(|row| push(text, row));
    text.push('\n');
}
