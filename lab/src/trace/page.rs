//! Traces beside each other: a table, and the page `docs/evidence/traces.md`.

use super::generator::DrawnSizes;
use super::statistics::{TraceStatistics, grouped};
use crate::virtual_time::document::{cell, paragraph};
use crate::virtual_time::verdicts::ValueVerdicts;
use std::collections::BTreeMap;

/// A column: a trace, or recordings.
pub struct ComparedTrace {
    /// Its name.
    pub name: String,
    /// What it is like.
    pub statistics: TraceStatistics,
    /// Of what is made: where it is from.
    pub made: Option<MadeTrace>,
}

/// What is known of a trace that was made.
pub struct MadeTrace {
    /// Its title.
    pub title: String,
    /// Where its sizes are from.
    pub source: String,
    /// What else is to be known.
    pub notes: String,
    /// What was published of the trace that it follows, by metric.
    pub published: BTreeMap<String, String>,
    /// The sizes that were drawn.
    pub drawn: Vec<DrawnSizes>,
    /// Connections, and how many of them had not ended when the trace did.
    pub connections: u32,
    /// See `connections`.
    pub open: usize,
}

/// What is beside the table on the page.
pub struct TracePage<'a> {
    /// The command that writes the page.
    pub command: &'a str,
    /// The day.
    pub date: &'a str,
    /// The seed.
    pub seed: u64,
    /// The traces.
    pub traces: &'a [ComparedTrace],
    /// Verdicts by trace, if there are results.
    pub verdicts: Option<ValueVerdicts>,
    /// Of the simulation: how it was run, for people.
    pub simulated: &'a str,
}

/// The columns' names.
pub fn head(traces: &[ComparedTrace]) -> Vec<String> {
    let mut head = vec![String::new()];
    for trace in traces {
        head.push(trace.name.clone());
        if trace.made.as_ref().is_some_and(|made| !made.published.is_empty()) {
            head.push(format!("{}, published", trace.name));
        }
    }
    head
}

/// A row for each metric.
pub fn rows(traces: &[ComparedTrace]) -> Vec<Vec<String>> {
    let columns: Vec<[String; 23]> = traces.iter().map(|trace| trace.statistics.rows()).collect();
    let row = |(index, (id, text)): (usize, &(&str, &str))| {
        let mut row = vec![(*text).to_owned()];
        for (trace, column) in traces.iter().zip(&columns) {
            row.push(column[index].clone());
            match &trace.made {
                Some(made) if !made.published.is_empty() => {
                    row.push(made.published.get(*id).cloned().unwrap_or_default());
                }
                _ => {}
            }
        }
        row
    };
    TraceStatistics::METRICS.iter().enumerate().map(row).collect()
}

/// The columns of [`distances`].
pub const DISTANCES: [&str; 5] = ["trace", "connections", "drawn", "distance", "allowed"];

/// How far drawn sizes are from what was published.
pub fn distances(traces: &[ComparedTrace]) -> Vec<Vec<String>> {
    let made = traces.iter().filter_map(|trace| trace.made.as_ref().map(|made| (trace, made)));
    let row = |trace: &ComparedTrace, drawn: &DrawnSizes| {
        vec![
            trace.name.clone(),
            drawn.kind.clone(),
            grouped(drawn.sizes.len() as u64),
            format!("{:.4}", drawn.distance),
            format!("{:.4}", drawn.distance_allowed()),
        ]
    };
    made.flat_map(|(trace, made)| made.drawn.iter().map(move |drawn| row(trace, drawn))).collect()
}

/// The page.
pub fn document(page: &TracePage<'_>) -> String {
    let mut text = String::from("# Traces: made and recorded\n\n");
    prose(
        &format!(
            "`{}` wrote this page on {}, with seed {}; the same seed gives the same packets on every machine. How a trace is made \
             is in [the laboratory's guide](../guide/lab.md#traces-from-published-distributions).",
            page.command, page.date, page.seed
        ),
        &mut text,
    );
    prose(
        "KTH 2022 (1.5, 3.2, 6.1) replays traces of CAIDA from public routers, IP packets only, with 2 or 8 million flows by masks \
         and all frames padded to 1,500 bytes. It states neither how long flows are nor how they come, and names other traces as an \
         open question. KTH 2020 (3.4.2) sends packets that TRex makes, and has no trace. So there is no figure of theirs to stand \
         in the table. The recordings are those of nDPI's tests, each a capture of one application; a pause of more than a minute counts as a \
         minute.",
        &mut text,
    );
    text.push_str("## What they are like\n\n");
    table(&mut text, &head(page.traces), &rows(page.traces));
    prose(
        "A capture ends with its last arrival, so connections that are under way are cut off, as in any capture, and the largest flows \
         are shorter than those of a capture of 30 days. Arrivals and open connections are counted capture by capture, and their \
         figures taken together.",
        &mut text,
    );
    sources(&mut text, page);
    if let Some(verdicts) = &page.verdicts {
        text.push_str("## Whether KTH 2022's findings depend on the trace\n\n");
        prose(page.simulated, &mut text);
        text.push_str(&verdict_table(verdicts));
        for sentence in verdicts.sentences() {
            prose(&sentence, &mut text);
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Findings, and the verdict on each for every trace.
pub fn verdict_table(verdicts: &ValueVerdicts) -> String {
    let mut head = vec!["finding".to_owned()];
    head.extend(verdicts.values.iter().cloned());
    let mut text = String::new();
    table(&mut text, &head, &verdicts.rows);
    text
}

/// A paragraph, and an empty line.
fn prose(words: &str, text: &mut String) {
    paragraph(text, words, "");
    text.push('\n');
}

/// Where the numbers of traces are from, and how near drawn sizes are to them.
fn sources(text: &mut String, page: &TracePage<'_>) {
    text.push_str("## Where they are from\n\n");
    for trace in page.traces {
        let Some(made) = &trace.made else { continue };
        let cut = 100.0 * made.open as f64 / f64::from(made.connections.max(1));
        let all = format!(
            "- *{}*: {}. {} {} ({} connections, {cut:.1} % of them cut off.)",
            trace.name,
            made.title,
            made.source.trim(),
            made.notes.trim(),
            grouped(made.connections.into()),
        );
        paragraph(text, &all, "  ");
    }
    text.push('\n');
    prose(
        "The distance is Kolmogorov and Smirnov's, between the sizes drawn and the distribution (where that is cut, the cut one). If \
         sizes follow it, the distance exceeds what is allowed once in a thousand times.",
        text,
    );
    let head: Vec<String> = DISTANCES.iter().map(|column| (*column).to_owned()).collect();
    table(text, &head, &distances(page.traces));
}

/// A table, its first column of words, the others of numbers.
fn table(text: &mut String, head: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    text.push_str(&line(head));
    text.push_str(&format!("|---|{}\n", "---:|".repeat(head.len().saturating_sub(1))));
    for row in rows {
        text.push_str(&line(row));
    }
    text.push('\n');
}
