//! The page: one HTML file that needs nothing else, with all findings, tables and figures.

use super::comparison::{PromiseKept, Scenario};
use super::document::{about, judgements, kept_lines, policy_columns, policy_row};
use super::finding::CaseVerdict;
use super::outcome::{METRICS, OutcomeMetric};
use super::results::Gathered;
use super::tables::with_width;
use super::write::Circumstances;
use crate::figure::Figure;
use crate::report::page::{HtmlPage, STYLE};

/// Failed cases named at most, of each experiment.
const FAILED_MAX: usize = 20;

/// The page's text.
pub(super) fn page(
    gathered: &[Gathered<'_>],
    figures: &[Vec<Figure>],
    circumstances: &Circumstances,
    notes: &[String],
) -> String {
    let mut page = HtmlPage(String::new());
    page.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>");
    page.text("KTH 2022 in virtual time");
    page.raw("</title><style>");
    page.raw(STYLE);
    page.raw("</style></head><body><h1>");
    page.text("KTH 2022 in virtual time");
    page.raw("</h1>\n");
    for paragraph in about(gathered, circumstances) {
        page.paragraph(&paragraph);
    }
    if !circumstances.run.is_empty() {
        page.paragraph(&circumstances.run);
    }
    for note in notes {
        page.paragraph(note);
    }
    for (one, figures) in gathered.iter().zip(figures) {
        experiment(&mut page, one, figures);
    }
    page.raw("</body></html>\n");
    page.0
}

fn experiment(page: &mut HtmlPage, gathered: &Gathered<'_>, figures: &[Figure]) {
    page.heading(&format!("{}: {}", gathered.experiment.name, gathered.experiment.title));
    let notes = gathered.experiment.notes.split("\n\n").map(str::trim);
    for paragraph in notes.filter(|paragraph| !paragraph.is_empty()) {
        page.paragraph(paragraph);
    }
    failures(page, gathered);
    findings(page, gathered);
    comparison(page, gathered);
    cases(page, gathered);
    if figures.is_empty() {
        return;
    }
    page.raw("<details open><summary>Figures</summary>\n");
    for figure in figures {
        page.raw("<p>");
        page.raw(&figure.svg);
        page.raw("</p>\n");
    }
    page.raw("</details>\n");
}

fn failures(page: &mut HtmlPage, gathered: &Gathered<'_>) {
    let failures = gathered.failures();
    if failures.is_empty() {
        return;
    }
    page.paragraph(&format!("{} of {} cases did not come:", failures.len(), gathered.cases.len()));
    page.head(&["case", "why"]);
    for (case, reason) in failures.iter().take(FAILED_MAX) {
        page.cells(&[case, reason], &[]);
    }
    page.raw("</table>\n");
}

fn findings(page: &mut HtmlPage, gathered: &Gathered<'_>) {
    let judgements = judgements(gathered);
    if judgements.is_empty() {
        return;
    }
    page.head(&["finding", "source", "here", "figures", "but for", "why"]);
    for (finding, judgement, why) in judgements {
        let class = match judgement.verdict {
            CaseVerdict::Agrees => "yes",
            CaseVerdict::Disagrees => "no",
            CaseVerdict::InPart | CaseVerdict::NotMeasured => "open",
        };
        page.raw(&format!("<tr class=\"{class}\">"));
        let verdict = judgement.said().replace("**", "");
        let exceptions = judgement.exceptions.join("; ");
        let why = format!("{} {}", why.so, why.not_so);
        for text in [&finding.text, &finding.source, &verdict, &judgement.figures, &exceptions, &why] {
            page.raw("<td>");
            page.text(text);
            page.raw("</td>");
        }
        page.raw("</tr>\n");
    }
    page.raw("</table>\n");
}

fn comparison(page: &mut HtmlPage, gathered: &Gathered<'_>) {
    let Some(axis) = &gathered.experiment.comparison else { return };
    let scenarios = Scenario::all(gathered.seen(), gathered.bounds(), axis);
    for line in kept_lines(&PromiseKept::of(&scenarios)) {
        page.paragraph(&line.replace("**", ""));
    }
    for scenario in &scenarios {
        page.paragraph(&scenario.name());
        page.head(&policy_columns());
        for (policy, seen) in &scenario.policies {
            let row = policy_row(scenario, policy, seen);
            let (name, numbers) = row.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
            page.cells(&[name], numbers);
        }
        page.raw("</table>\n");
    }
}

/// Every run, folded away: there may be hundreds.
fn cases(page: &mut HtmlPage, gathered: &Gathered<'_>) {
    let axes: Vec<&str> = gathered.experiment.axes.iter().map(|(name, _)| name.as_str()).collect();
    page.raw("<details><summary>All runs</summary>\n");
    let head: Vec<&str> = axes.iter().copied().chain(["run"]).chain(METRICS.iter().map(|metric| metric.text)).collect();
    page.head(&head);
    for seen in gathered.seen() {
        let run = seen.run.to_string();
        let place: Vec<&str> = axes.iter().map(|axis| seen.on(axis).unwrap_or("-")).chain([run.as_str()]).collect();
        let said = |metric: &OutcomeMetric| {
            seen.summary(metric.of).map_or(String::new(), |all| with_width(&all, metric.digits))
        };
        let numbers: Vec<String> = METRICS.iter().map(said).collect();
        page.cells(&place, &numbers);
    }
    page.raw("</table></details>\n");
}
