//! The page: one HTML file that needs nothing else.

use super::machine::Machine;
use crate::experiment::{FindingMetric, FindingVerdict, MatrixCell, PlanResults, is_starved, latency, summary};
use crate::figure::{Figure, count};
use crate::profile::by_stage;
use crate::rate::SearchResult;
use crate::statistics::Summary;
use crate::testbed::offload::Offloaded;
use crate::testbed::{Measurement, Ran};
use std::fmt::Write;

/// Functions shown of a profile.
const FUNCTIONS: usize = 12;
/// Cells named for each reason why they were left out.
const CELLS_NAMED: usize = 8;
/// The style of the page.
pub(crate) const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:64rem;margin:1rem auto;padding:0 1rem;color:#222}\
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #bbb}table{border-collapse:collapse;\
font-size:13px;margin:.6rem 0}th,td{border:1px solid #ccc;padding:.15rem .5rem;text-align:left}td.n{text-align:right}\
pre{background:#f4f4f4;padding:.6rem;overflow:auto;font-size:12px}svg{max-width:100%;height:auto}summary{cursor:pointer}\
.yes{background:#dcefd9}.no{background:#f6d7d3}.open{background:#f5eecb}";

/// The page's text.
pub(super) fn page(
    results: &PlanResults<'_>,
    machine: &Machine,
    figures: &[Figure],
    more: usize,
    has_fonts: bool,
) -> String {
    let experiment = results.experiment;
    let title = if experiment.title.is_empty() { &experiment.name } else { &experiment.title };
    let mut page = HtmlPage(String::new());
    page.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
    page.text(title);
    page.raw("</title><style>");
    page.raw(STYLE);
    page.raw("</style></head><body><h1>");
    page.text(title);
    page.raw("</h1>\n");
    about(&mut page, results, machine);
    findings(&mut page, results);
    means(&mut page, results);
    cards(&mut page, results);
    searches(&mut page, results);
    drawings(&mut page, figures, more, has_fonts);
    profiles(&mut page, results);
    left_out(&mut page, results);
    page.raw("<h2>The file</h2><pre>");
    page.text(&experiment.text);
    page.raw("</pre></body></html>\n");
    page.0
}

/// HTML that grows; [`HtmlPage::text`] is plain text.
pub(crate) struct HtmlPage(pub(crate) String);

impl HtmlPage {
    pub(crate) fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    pub(crate) fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.raw("&amp;"),
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                c => self.0.push(c),
            }
        }
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.raw("<p>");
        self.text(text);
        self.raw("</p>\n");
    }

    pub(crate) fn heading(&mut self, text: &str) {
        self.raw("<h2>");
        self.text(text);
        self.raw("</h2>\n");
    }

    pub(crate) fn head(&mut self, columns: &[&str]) {
        self.raw("<table><tr>");
        for column in columns {
            self.raw("<th>");
            self.text(column);
            self.raw("</th>");
        }
        self.raw("</tr>\n");
    }

    pub(crate) fn cells(&mut self, texts: &[&str], numbers: &[String]) {
        self.row("", texts, numbers);
    }

    /// Cells of a row with these attributes, which begin with a space.
    fn row(&mut self, attributes: &str, texts: &[&str], numbers: &[String]) {
        self.raw(&format!("<tr{attributes}>"));
        for text in texts {
            self.raw("<td>");
            self.text(text);
            self.raw("</td>");
        }
        for number in numbers {
            self.raw("<td class=\"n\">");
            self.text(number);
            self.raw("</td>");
        }
        self.raw("</tr>\n");
    }
}

fn about(page: &mut HtmlPage, results: &PlanResults<'_>, machine: &Machine) {
    let experiment = results.experiment;
    let (total, there) = (results.plan.tasks.len(), results.records.len());
    let failed = results.failures().count();
    let mut state = format!("{} of {total} measurements are there", there - failed);
    if failed > 0 {
        write!(state, ", {failed} failed").unwrap_or_default();
    }
    let first = results.records.iter().map(|record| record.at).min();
    let last = results.records.iter().map(|record| record.at).max();
    if let (Some(first), Some(last)) = (first, last) {
        let time = |seconds| {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            humantime::format_rfc3339_seconds(at).to_string()
        };
        write!(state, "; taken from {} to {}", time(first), time(last)).unwrap_or_default();
    }
    page.paragraph(&format!("{state}."));
    page.paragraph(&format!("Machine: {}.", machine.name));
    page.raw("<ul>");
    for note in &machine.notes {
        page.raw("<li>");
        page.text(note);
        page.raw("</li>");
    }
    page.raw("</ul>\n");
    page.paragraph(&format!(
        "Each of {} repetition(s) takes {} s of packets; repetitions of all cells are interleaved. Error bars and ± are \
         95 % confidence intervals of the mean (Student's t). Latencies include the queues in front of the device.",
        experiment.repetitions,
        experiment.duration.as_secs_f64()
    ));
    if !experiment.otherwise.is_empty() {
        page.paragraph(&format!("Otherwise than the file says: {}.", experiment.otherwise.join(", ")));
    }
    starved(page, results);
    for paragraph in experiment.notes.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()) {
        page.paragraph(paragraph);
    }
}

/// Names the measurements that are invalid, or were left out, because other processes had the processors.
fn starved(page: &mut HtmlPage, results: &PlanResults<'_>) {
    let least = 100.0 * Ran::ENOUGH;
    if results.starved > 0 {
        page.paragraph(&format!(
            "{} repetition(s) in which a thread of the device, the generator or the sink had less than {least} % of its \
             processor are in results.csv and nowhere else.",
            results.starved
        ));
    }
    let cells = results.starved_cells();
    if cells > 0 {
        page.paragraph(&format!(
            "In {cells} of {} cells that is so of all repetitions. Their rates, latencies and losses show other work on this \
             machine, not the device: they are marked in the table below, stand in the figures all the same, and decide \
             about no finding.",
            results.cells.len()
        ));
    }
}

fn findings(page: &mut HtmlPage, results: &PlanResults<'_>) {
    if results.experiment.findings.is_empty() {
        return;
    }
    page.heading("Findings of the papers");
    page.head(&["finding", "here", "figures"]);
    for finding in &results.experiment.findings {
        let (class, word, figures) = match results.judge(finding) {
            FindingVerdict::Confirmed(figures) => ("yes", "confirmed", figures),
            FindingVerdict::Refuted(figures) => ("no", "not so", figures),
            FindingVerdict::Undecided(figures) => ("open", "cannot be told", figures),
            FindingVerdict::NotMeasured(figures) => ("open", "not measured here", figures),
        };
        page.raw(&format!("<tr class=\"{class}\">"));
        for text in [finding.text.as_str(), word, &figures] {
            page.raw("<td>");
            page.text(text);
            page.raw("</td>");
        }
        page.raw("</tr>\n");
    }
    page.raw("</table>\n");
}

/// Mean and half width, in another unit.
fn plus_minus(summary: Option<Summary>, scale: f64, digits: usize) -> String {
    summary.map_or("-".to_owned(), |summary| {
        let half = summary.half_width.map_or(String::new(), |half| format!(" ± {:.digits$}", half / scale));
        format!("{:.digits$}{half}", summary.mean / scale)
    })
}

/// The cell's coordinates as columns.
fn place(cell: &MatrixCell) -> [String; 7] {
    [
        cell.subject.name.clone(),
        cell.cores.to_string(),
        if cell.table_entries == 0 { "-".to_owned() } else { count(cell.table_entries) },
        count(cell.flows),
        cell.packet_size.to_string(),
        cell.asked.to_string(),
        cell.run.to_string(),
    ]
}

/// The title of [`place`].
const PLACE: [&str; 7] = ["device", "cores", "entries", "flows", "bytes", "rate", "run"];

fn means(page: &mut HtmlPage, results: &PlanResults<'_>) {
    page.heading("Results");
    let columns =
        ["received, Mpps", "Gbit/s", "loss, %", "latency, us", "p99, us", "moved flows", "reordered, %", "ran, %"];
    page.paragraph(
        "\"Ran\" is the share of their processors that the device's threads and those of generator and sink had, the \
         least of any of them.",
    );
    page.head(&PLACE.into_iter().chain(columns).collect::<Vec<_>>());
    for (cell, all) in &results.cells {
        let mean = |of: &dyn Fn(&Measurement) -> f64| {
            Summary::of(&all.iter().map(|measured| of(measured)).collect::<Vec<_>>())
        };
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let reordered = mean(&|measured| share(measured.reordered, measured.received));
        let numbers = [
            plus_minus(summary(FindingMetric::Throughput, all), 1e6, 3),
            plus_minus(mean(&|measured| measured.rx_bps), 1e9, 2),
            plus_minus(summary(FindingMetric::Loss, all), 0.01, 3),
            plus_minus(summary(FindingMetric::Latency, all), 1e3, 1),
            plus_minus(latency(all, |latency| latency.p99 as f64), 1e3, 1),
            moved(all),
            plus_minus(reordered, 0.01, 3),
            ran(all),
        ];
        let place = place(cell);
        let class = if is_starved(all) { " class=\"no\"" } else { "" };
        page.row(class, &place.each_ref().map(String::as_str), &numbers);
    }
    page.raw("</table>\n");
}

/// Flows that went to more than one backend, and packets that were not checked.
fn moved(all: &[&Measurement]) -> String {
    let sum = |of: fn(&Measurement) -> u64| all.iter().map(|measured| of(measured)).sum::<u64>();
    let moved = sum(|measured| measured.inconsistent_flows);
    match sum(|measured| measured.unchecked) {
        0 => moved.to_string(),
        unchecked => format!("{moved}, {unchecked} packets not checked"),
    }
}

/// The totals of cards, if there were any.
fn cards(page: &mut HtmlPage, results: &PlanResults<'_>) {
    let cells = || results.cells.iter().filter(|(_, all)| all.iter().any(|measured| measured.offloaded.is_some()));
    if cells().next().is_none() {
        return;
    }
    page.heading("Cards");
    page.paragraph(
        "Of devices behind a modelled card. \"Worker\" is the part of the time in which the worker was at work, \"card\" that \
         in which the device's thread received and did what a card would do beside it: what a policy saves is of the first.",
    );
    let columns = [
        "offloaded, %",
        "rules, most",
        "put in",
        "taken out",
        "refused",
        "no room",
        "until in force, us",
        "worker, %",
        "card, %",
    ];
    page.head(&PLACE.into_iter().chain(columns).collect::<Vec<_>>());
    for (cell, all) in cells() {
        let mean = |of: &dyn Fn(&Offloaded, f64) -> Option<f64>| {
            let of = |measured: &&Measurement| of(measured.offloaded.as_ref()?, measured.seconds.max(1e-9));
            Summary::of(&all.iter().filter_map(of).collect::<Vec<_>>())
        };
        let count = |of: fn(&Offloaded) -> u64| plus_minus(mean(&|card, _| Some(of(card) as f64)), 1.0, 0);
        let numbers = [
            plus_minus(mean(&|card, _| Some(card.share())), 0.01, 2),
            count(|card| card.rules_peak),
            count(|card| card.installed),
            count(|card| card.removed),
            count(Offloaded::refused),
            count(|card| card.no_room),
            plus_minus(mean(&|card, _| card.mean_wait_ns()), 1e3, 1),
            plus_minus(mean(&|card, seconds| Some(card.worker_ns as f64 / 1e9 / seconds)), 0.01, 1),
            plus_minus(mean(&|card, seconds| Some(card.card_ns as f64 / 1e9 / seconds)), 0.01, 1),
        ];
        let class = if is_starved(all) { " class=\"no\"" } else { "" };
        page.row(class, &place(cell).each_ref().map(String::as_str), &numbers);
    }
    page.raw("</table>\n");
}

/// The least share of a processor that a thread of either side had in any of these.
fn ran(all: &[&Measurement]) -> String {
    let least = |of: fn(&Ran) -> f64| all.iter().filter_map(|measured| measured.ran.as_ref().map(of)).reduce(f64::min);
    match (least(|ran| ran.device), least(|ran| ran.testers)) {
        (Some(device), Some(testers)) => format!("{:.1}, {:.1}", 100.0 * device, 100.0 * testers),
        _ => "-".to_owned(),
    }
}

fn searches(page: &mut HtmlPage, results: &PlanResults<'_>) {
    if results.searches.is_empty() {
        return;
    }
    page.heading("Highest rates");
    page.paragraph(
        "Loads are judged by the majority of several trials (MLRsearch's way). \"At least\": the source was the limit.",
    );
    page.head(&PLACE.into_iter().chain(["loss allowed, %", "Mpps", "searches", "what was found"]).collect::<Vec<_>>());
    for (cell, repeated) in &results.searches {
        let of = |is: fn(&SearchResult) -> bool| repeated.outcomes.iter().filter(|outcome| is(&outcome.found)).count();
        let (at_least, below) = (
            of(|found| matches!(found, SearchResult::AtLeast(_))),
            of(|found| matches!(found, SearchResult::Below(_))),
        );
        let unsettled = repeated.outcomes.iter().filter(|outcome| !outcome.settled).count();
        let starved = repeated.outcomes.iter().map(|outcome| outcome.starved as usize).sum::<usize>();
        let mut said = Vec::new();
        for (count, what) in [
            (at_least, "at least"),
            (below, "below the lowest"),
            (unsettled, "not settled"),
            (starved, "trials made again"),
        ] {
            if count > 0 {
                said.push(format!("{count} {what}"));
            }
        }
        let numbers = [
            (repeated.goal * 100.0).to_string(),
            plus_minus(repeated.rate, 1e6, 3),
            repeated.outcomes.len().to_string(),
            if said.is_empty() { "between bounds".to_owned() } else { said.join(", ") },
        ];
        let place = place(cell);
        page.cells(&place.each_ref().map(String::as_str), &numbers);
    }
    page.raw("</table>\n");
}

fn drawings(page: &mut HtmlPage, figures: &[Figure], more: usize, has_fonts: bool) {
    let mut heading = "";
    for figure in figures {
        if figure.heading != heading {
            if !heading.is_empty() {
                page.raw("</details>\n");
            }
            heading = figure.heading;
            page.heading(heading);
            page.raw("<details open><summary>Figures</summary>\n");
        }
        page.raw("<p>");
        page.raw(&figure.svg);
        page.raw("</p>\n");
    }
    if !heading.is_empty() {
        page.raw("</details>\n");
    }
    if more > 0 {
        page.paragraph(&format!("{more} more figures are left out: measure fewer combinations at once."));
    }
    if !has_fonts {
        page.paragraph("This machine has no fonts: the PNG files have no text (the SVG files do).");
    }
}

fn profiles(page: &mut HtmlPage, results: &PlanResults<'_>) {
    if results.profiles.is_empty() {
        return;
    }
    page.heading("Where time goes");
    for (cell, profile) in &results.profiles {
        page.raw("<details><summary>");
        page.text(&cell.to_string());
        page.raw("</summary>");
        page.paragraph(&profile.by);
        page.head(&["stage", "percent"]);
        for (stage, share) in by_stage(profile) {
            page.cells(&[stage.name()], &[format!("{:.1}", share * 100.0)]);
        }
        page.raw("</table>");
        page.head(&["function", "percent"]);
        for (function, share) in profile.shares.iter().take(FUNCTIONS) {
            page.cells(&[function], &[format!("{:.1}", share * 100.0)]);
        }
        page.raw("</table></details>\n");
    }
}

fn left_out(page: &mut HtmlPage, results: &PlanResults<'_>) {
    page.heading("What was left out, and why");
    let failures = results.failures().map(|(record, reason)| (&record.cell, format!("failed: {reason}")));
    let skipped = results.plan.skipped.iter().map(|skipped| (&skipped.cell, skipped.reason.clone()));
    let mut reasons: Vec<(String, Vec<&MatrixCell>)> = Vec::new();
    for (cell, reason) in skipped.chain(failures) {
        match reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, cells)) => cells.push(cell),
            None => reasons.push((reason, vec![cell])),
        }
    }
    if reasons.is_empty() {
        page.paragraph("Nothing.");
        return;
    }
    page.head(&["reason", "cells", "which"]);
    for (reason, cells) in reasons {
        let mut named = cells.iter().take(CELLS_NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if cells.len() > CELLS_NAMED {
            named.push_str("; and so on (skipped.csv has all)");
        }
        page.cells(&[&reason, &cells.len().to_string(), &named], &[]);
    }
    page.raw("</table>\n");
}
