//! The page in docs/evidence, from results alone: verdicts, what they rest on and the main figures. Tables of all runs are
//! beside it, as CSV.

mod head;
mod policies;
mod sensitivity;

pub(super) use head::about;
pub(super) use policies::{kept_lines, policy_columns, policy_row};
pub use sensitivity::sensitivity_page;

use super::finding::{CaseFinding, CaseVerdict, Judgement};
use super::results::Gathered;
use super::sensitivity::Sensitivity;
use super::write::Circumstances;
use crate::figure::Figure;

/// Exceptions and failures named at most, of each list.
const NAMED_MAX: usize = 8;
/// Columns of a line of prose at most.
const WIDTH: usize = 126;

/// The parts of a page.
pub struct DocumentParts<'a> {
    /// The results, by experiment.
    pub gathered: &'a [Gathered<'a>],
    /// Results of these experiments at another scale, if there are any.
    pub beside: Option<OtherScale<'a>>,
    /// Verdicts with the guessed constants at other values, if there are any.
    pub sensitivity: Option<&'a Sensitivity>,
    /// Under what circumstances.
    pub circumstances: &'a Circumstances,
    /// Of each experiment, the figures that the page shows.
    pub figures: &'a [Vec<Figure>],
    /// The prefix of a figure's file name.
    pub prefix: &'a str,
    /// The place of the tables of all runs, for people; empty if there are none.
    pub tables: &'a str,
}

/// Results at another scale.
pub struct OtherScale<'a> {
    /// Which part of the paper's scale.
    pub scale: f64,
    /// The results, by experiment.
    pub gathered: &'a [Gathered<'a>],
}

/// The page's text.
pub fn document(parts: &DocumentParts<'_>) -> String {
    let mut text = String::new();
    head::write(&mut text, parts);
    let verdicts = head::Verdicts::of(parts);
    for (index, one) in parts.gathered.iter().enumerate() {
        let figures = parts.figures.get(index).map_or(&[][..], Vec::as_slice);
        experiment(&mut text, parts, one, &verdicts, figures);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// A paragraph, in lines of [`WIDTH`] columns; all but the first begin with `indent`.
pub(crate) fn paragraph(text: &mut String, prose: &str, indent: &str) {
    let mut width = 0;
    for word in prose.split_whitespace() {
        if width > 0 && width + 1 + word.chars().count() > WIDTH {
            text.push('\n');
            text.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += word.chars().count();
    }
    text.push('\n');
}

/// A scale for people.
pub(super) fn scale_name(scale: f64) -> String {
    if scale == 1.0 {
        "full scale".to_owned()
    } else if scale == 0.1 {
        "a tenth".to_owned()
    } else {
        format!("scale {scale}")
    }
}

/// Why a finding is so, and why it is not where it is not, as its file says; empty where that does not apply.
#[derive(Clone, Copy)]
pub(crate) struct Reasons<'a> {
    pub(crate) so: &'a str,
    pub(crate) not_so: &'a str,
}

/// An experiment's findings, each with what came of it and the reasons.
pub(crate) fn judgements<'a>(gathered: &Gathered<'a>) -> Vec<(&'a CaseFinding, Judgement, Reasons<'a>)> {
    let seen = gathered.seen();
    let judge = |finding: &'a CaseFinding| {
        let judgement = finding.judge(&seen, &gathered.experiment.axes);
        let so = if judgement.verdict == CaseVerdict::Agrees { finding.why.as_str() } else { "" };
        let not_so = if judgement.exceptions.is_empty() { "" } else { finding.why_not.as_str() };
        (finding, judgement, Reasons { so, not_so })
    };
    gathered.experiment.findings.iter().map(judge).collect()
}

/// Text that cannot end a table's cell.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn experiment(
    text: &mut String,
    parts: &DocumentParts<'_>,
    gathered: &Gathered<'_>,
    verdicts: &head::Verdicts<'_>,
    figures: &[Figure],
) {
    let experiment = gathered.experiment;
    push(text, &format!("## {}\n", experiment.title));
    let notes = experiment.notes.split("\n\n").map(str::trim).filter(|note| !note.is_empty());
    for note in notes {
        paragraph(text, note, "");
        text.push('\n');
    }
    let failures = gathered.failures();
    if !failures.is_empty() {
        push(text, &format!("{} of {} cases have no result:\n", failures.len(), gathered.cases.len()));
        let lines = failures.iter().map(|(case, reason)| format!("{case}: {}", reason.replace('\n', " ")));
        list(text, &lines.collect::<Vec<_>>());
    }
    for figure in figures {
        push(text, &format!("![{}](figures/{}{}.svg)", figure.title, parts.prefix, figure.name));
    }
    if !figures.is_empty() {
        text.push('\n');
    }
    findings(text, parts, gathered, verdicts);
    policies::write(text, gathered);
}

/// A table of the findings, and why they are not so, each reason once, with the numbers of the findings that they are for.
fn findings(text: &mut String, parts: &DocumentParts<'_>, gathered: &Gathered<'_>, verdicts: &head::Verdicts<'_>) {
    let judgements = judgements(gathered);
    if judgements.is_empty() {
        return;
    }
    let instead = gathered.experiment.instead.as_ref();
    let heads = instead.map(|instead| instead.title.clone()).into_iter().chain(verdicts.beside.map(scale_name));
    let heads: Vec<String> = heads.map(|head| format!(" {head} |")).collect();
    push(text, &format!("| | finding | source | here |{} figures |", heads.concat()));
    push(text, &format!("|---:|---|---|---|{}---|", "---|".repeat(heads.len())));
    let seen = gathered.seen();
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for ((finding, judgement, why), number) in judgements.iter().zip(1..) {
        let here = judgement.said();
        let stands_in = instead.map(|instead| {
            let other = finding.instead(instead).map(|other| other.judge(&seen, &gathered.experiment.axes));
            format!(" {} |", other.map_or("-".to_owned(), |other| other.said()))
        });
        let beside = verdicts.beside.map(|_| verdicts.other(gathered, finding).map_or("-", CaseVerdict::text));
        let beside = beside.map_or(String::new(), |verdict| format!(" {verdict} |"));
        let (statement, source, figures) = (cell(&finding.text), cell(&finding.source), cell(&judgement.figures));
        let stands_in = stands_in.unwrap_or_default();
        push(text, &format!("| {number} | {statement} | {source} | {here} |{stands_in}{beside} {figures} |"));
        match reasons.iter_mut().find(|(other, _)| *other == why.not_so) {
            _ if why.not_so.is_empty() => {}
            Some((_, of)) => of.push(number.to_string()),
            None => reasons.push((why.not_so, vec![number.to_string()])),
        }
    }
    text.push('\n');
    if !reasons.is_empty() {
        push(text, "Why it is not so in some or all cases, by the number of the finding:\n");
        for (reason, of) in reasons {
            paragraph(text, &format!("- *{}:* {reason}", of.join(", ")), "  ");
        }
        text.push('\n');
    }
    if let Some(sensitivity) = parts.sensitivity {
        sensitivity::causes(text, sensitivity, gathered, &judgements);
    }
}

fn list(text: &mut String, lines: &[String]) {
    for line in lines.iter().take(NAMED_MAX) {
        paragraph(text, &format!("- {line}"), "  ");
    }
    if lines.len() > NAMED_MAX {
        push(text, &format!("- and {} more", lines.len() - NAMED_MAX));
    }
    text.push('\n');
}
