//! The page.

use super::checks::{Check, EvidenceSources, kind, of_finding, place};
use crate::findings::{self, Listed, ListedFigure};
use crate::virtual_time::document::{cell, paragraph};
use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Papers in the page's order, and our own claims.
const PAPERS: [&str; 6] = ["KTH 2022", "Laconic", "KTH 2020", "KAIST 2018", "HPSR 2021", OWN];
const OWN: &str = "Hairpin";

/// A drawing's page, by the drawing's name.
type DrawnOn = BTreeMap<String, String>;

/// The page's text.
///
/// # Errors
/// Experiments, results or pages cannot be read.
pub fn document(sources: &EvidenceSources<'_>) -> Result<String> {
    let checks = sources.checks()?;
    let drawn = drawings(sources)?;
    let mut text = String::from("# Evidence\n\n");
    prose(
        &mut text,
        "`hairpin-lab evidence` (`make evidence`) writes this page from [findings.toml](findings.toml) and the results in `lab/results`. \
         Rules decide the verdicts, the same as on the pages; what has no results is not measured. `make reproduce` does the four \
         papers at a tenth of their scale ([the laboratory's guide](../guide/lab.md#all-four-papers)).",
    );
    prose(
        &mut text,
        "*agrees*: the rule holds at every place that it is asked of, or at the part of them that the rule wants; *in part*: at half of \
         them; *open*: the seeds' intervals allow another verdict. A finding has a row for each of its checks.",
    );
    counts(&mut text, &checks);
    for paper in PAPERS {
        section(&mut text, sources, paper, &checks, &drawn);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    Ok(text)
}

fn prose(text: &mut String, words: &str) {
    paragraph(text, words, "");
    text.push('\n');
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn of_paper(paper: &str) -> impl Iterator<Item = &'static Listed> {
    findings::all().iter().filter(move |listed| listed.paper == paper)
}

/// How many verdicts there are of each kind, by paper.
fn counts(text: &mut String, checks: &[Check]) {
    push(
        text,
        "| paper | findings | verdicts | agree | in part | do not agree | no rule | not measured | not checked |",
    );
    push(text, "|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    for paper in PAPERS {
        let listed: Vec<&Listed> = of_paper(paper).collect();
        let verdicts: Vec<Option<CaseVerdict>> =
            listed.iter().flat_map(|listed| of_finding(listed, checks)).map(|check| check.verdict).collect();
        let count = |verdict: Option<CaseVerdict>| verdicts.iter().filter(|other| **other == verdict).count();
        let not_checked = listed.iter().filter(|listed| listed.by.is_empty()).count();
        push(
            text,
            &format!(
                "| {paper} | {} | {} | {} | {} | {} | {} | {} | {not_checked} |",
                listed.len(),
                verdicts.len(),
                count(Some(CaseVerdict::Agrees)),
                count(Some(CaseVerdict::InPart)),
                count(Some(CaseVerdict::Disagrees)),
                count(None),
                count(Some(CaseVerdict::NotMeasured)),
            ),
        );
    }
    text.push('\n');
}

fn section(text: &mut String, sources: &EvidenceSources<'_>, paper: &str, checks: &[Check], drawn: &DrawnOn) {
    push(text, &format!("## {}\n", if paper == OWN { "Claims of our own" } else { paper }));
    push(text, "| finding | source | checked by | verdict | why | page | command |");
    push(text, "|---|---|---|---|---|---|---|");
    for listed in of_paper(paper) {
        let (statement, source) = (cell(&listed.statement), cell(&listed.section));
        if listed.by.is_empty() {
            push(
                text,
                &format!("| {statement} | {source} | - | not checked | {} | - | - |", cell(&listed.not_checked)),
            );
        }
        for check in of_finding(listed, checks) {
            let (page, command) = place(&check.by);
            let is_there = !page.is_empty() && sources.root.join("docs/evidence").join(page).exists();
            let page = if is_there { format!("[{page}]({page})") } else { "-".to_owned() };
            let part = if check.part.is_empty() { String::new() } else { format!(". *{}*", cell(&check.part)) };
            let (kind, by, said, why) = (kind(&check.by), &check.by, &check.said, cell(&check.why));
            push(
                text,
                &format!("| {statement}{part} | {source} | {kind}: `{by}` | {said} | {why} | {page} | `{command}` |"),
            );
        }
    }
    text.push('\n');
    figures(text, paper, drawn);
}

fn figures(text: &mut String, paper: &str, drawn: &DrawnOn) {
    let all: Vec<&ListedFigure> = findings::figures().iter().filter(|figure| figure.paper == paper).collect();
    if all.is_empty() {
        return;
    }
    push(text, &format!("Figures of {paper}'s evaluation:\n"));
    push(text, "| figure | about | drawn on | elsewhere |\n|---|---|---|---|");
    for figure in all {
        let link = |name: &String| Some(format!("[{0}]({0}): [drawing](figures/{name}.svg)", drawn.get(name)?));
        let links: Vec<String> = figure.drawn.iter().filter_map(link).collect();
        let missing = figure.drawn.iter().filter(|name| !drawn.contains_key(*name));
        let missing: Vec<String> = missing.map(|name| format!("`{name}`: not measured")).collect();
        let shown = match (links.is_empty(), missing.is_empty()) {
            (true, true) => "-".to_owned(),
            (true, false) => "not measured".to_owned(),
            _ => links.into_iter().chain(missing).collect::<Vec<_>>().join("; "),
        };
        let elsewhere = if figure.elsewhere.is_empty() { "-" } else { &figure.elsewhere };
        push(text, &format!("| {} | {} | {shown} | {elsewhere} |", figure.number, cell(&figure.about)));
    }
    text.push('\n');
}

/// The drawings that the pages show.
fn drawings(sources: &EvidenceSources<'_>) -> Result<DrawnOn> {
    let directory = sources.root.join("docs/evidence");
    let named = || format!("could not read {}", directory.display());
    let mut pages: Vec<_> = std::fs::read_dir(&directory)
        .with_context(named)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .with_context(named)?;
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md") && !page.ends_with("README.md"));
    pages.sort();
    let mut drawn = DrawnOn::new();
    for page in pages {
        let text = std::fs::read_to_string(&page).with_context(|| format!("could not read {}", page.display()))?;
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (_, rest) in text.match_indices("](figures/").map(|(at, found)| text.split_at(at + found.len())) {
            if let Some((drawing, _)) = rest.split_once(".svg)") {
                drawn.insert(drawing.to_owned(), name.clone());
            }
        }
    }
    Ok(drawn)
}
