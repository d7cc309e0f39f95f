//! docs/evidence/reproduction.md, from results alone.

use super::comparison::{BEST_WITHIN, Kept, LOSS_WITHIN, NEAR_SHARE, OF_ORACLE, P99_WITHIN, Scenario};
use super::finding::{Finding, Judgement, Verdict};
use super::outcome::{Outcome, metric};
use super::results::Gathered;
use super::write::Circumstances;
use std::fmt::Write;

/// Exceptions and failures named at most, of each list.
const NAMED_MAX: usize = 40;

/// The document's text.
pub fn document(gathered: &[Gathered<'_>], circumstances: &Circumstances) -> String {
    let mut text = String::from("# KTH 2022 in virtual time: what is so here, and what is not\n\n");
    text.push_str(
        "This page is made by `hairpin-lab reproduce`; what it says of findings is decided by the rules beside them ",
    );
    text.push_str("in `lab/experiments/*.toml`, not by hand.\n\n");
    for paragraph in about(gathered, circumstances) {
        push(&mut text, &format!("{paragraph}\n"));
    }
    summary(&mut text, gathered);
    for one in gathered {
        experiment(&mut text, one);
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// How it came about, in paragraphs.
pub(super) fn about(gathered: &[Gathered<'_>], circumstances: &Circumstances) -> Vec<String> {
    let (packets, seconds) = gathered
        .iter()
        .map(Gathered::effort)
        .fold((0, 0.0), |(packets, seconds), one| (packets + one.0, seconds + one.1));
    let cases: usize = gathered.iter().map(|one| one.cases.len()).sum();
    let failed: usize = gathered.iter().map(|one| one.failures().len()).sum();
    let scale = circumstances.scale;
    let mut paragraphs = vec![format!(
        "Command: `{}`. Scale: {scale} of KTH 2022's (rates, flows, tables and rules alike; cores as many times slower). \
         Every figure below is scaled to the whole: rates and counts are divided by the scale, latencies multiplied by it.",
        circumstances.command
    )];
    let minutes = |seconds: f64| format!("{:.0} min {:02.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor());
    paragraphs.push(format!(
        "{cases} cases, {failed} of them without a result; {:.2} billion packets in {} of processor time ({:.2} million \
         packets per second and core); this run took {} with {} at a time and kept {} case(s) of earlier ones. \
         Machine: {}.",
        packets as f64 / 1e9,
        minutes(seconds),
        packets as f64 / seconds.max(1e-9) / 1e6,
        minutes(circumstances.elapsed.as_secs_f64()),
        circumstances.jobs,
        circumstances.kept,
        circumstances.machine
    ));
    let mut profiles: Vec<String> = gathered
        .iter()
        .flat_map(|one| &one.experiment.cases)
        .flat_map(|case| {
            [
                format!("lab/profiles/cores/{}.toml", case.settings.core),
                format!("lab/profiles/{}.toml", case.settings.card),
            ]
        })
        .collect();
    profiles.sort();
    profiles.dedup();
    paragraphs.push(format!("Profiles of cores and cards, each number with its source: {}.", profiles.join(", ")));
    paragraphs.push(match circumstances.recordings {
        Some((units, packets, flows)) => format!(
            "The trace of the paper is not public. Its place is taken by {units} recordings of {packets} packets in {flows} \
             flows (of one direction each), played again and again with fresh addresses, many at a time, until there are \
             as many flows as asked for; every frame has 1,514 bytes, as the paper pads them to 1,500 (without Ethernet)."
        ),
        None => "There were no recordings to play; cases that need them have no result.".to_owned(),
    });
    paragraphs
}

/// An experiment's findings, each with what came of it and why.
pub(super) fn judgements<'a>(gathered: &Gathered<'a>) -> Vec<(&'a Finding, Judgement, String)> {
    let seen = gathered.seen();
    let judge = |finding: &'a Finding| {
        let judgement = finding.judge(&seen, &gathered.experiment.axes);
        let why = match judgement.verdict {
            Verdict::Agrees => finding.why.clone(),
            Verdict::InPart | Verdict::Disagrees => finding.why_not.clone(),
            Verdict::NotMeasured => String::new(),
        };
        (finding, judgement, why)
    };
    gathered.experiment.findings.iter().map(judge).collect()
}

fn summary(text: &mut String, gathered: &[Gathered<'_>]) {
    let all: Vec<Verdict> = gathered.iter().flat_map(judgements).map(|(_, judgement, _)| judgement.verdict).collect();
    let count = |verdict| all.iter().filter(|other| **other == verdict).count();
    push(text, "## Findings, in short\n");
    push(
        text,
        &format!(
            "{} findings: {} agree, {} in part, {} do not, {} not measured.\n",
            all.len(),
            count(Verdict::Agrees),
            count(Verdict::InPart),
            count(Verdict::Disagrees),
            count(Verdict::NotMeasured)
        ),
    );
    push(text, "| finding | source | here |\n|---|---|---|");
    for one in gathered {
        for (finding, judgement, _) in judgements(one) {
            push(
                text,
                &format!("| {} | {} | {} |", cell(&finding.text), cell(&finding.source), judgement.verdict.text()),
            );
        }
    }
    text.push('\n');
}

/// Text that cannot end a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn experiment(text: &mut String, gathered: &Gathered<'_>) {
    let experiment = gathered.experiment;
    push(text, &format!("## {} (`lab/experiments/{}.toml`)\n", experiment.title, experiment.name));
    if !experiment.notes.trim().is_empty() {
        push(text, &format!("{}\n", experiment.notes.trim()));
    }
    let failures = gathered.failures();
    if !failures.is_empty() {
        push(text, &format!("{} of {} cases have no result:\n", failures.len(), gathered.cases.len()));
        let lines = failures.iter().map(|(case, reason)| format!("{case}: {}", reason.replace('\n', " ")));
        list(text, &lines.collect::<Vec<_>>());
    }
    for (finding, judgement, why) in judgements(gathered) {
        push(text, &format!("**{}** ({}): {}.", finding.text, finding.source, judgement.verdict.text()));
        push(text, &format!("{}.", judgement.figures));
        if !judgement.exceptions.is_empty() {
            push(text, &format!("Not so: {}.", judgement.exceptions.join("; ")));
        }
        if !why.is_empty() {
            push(text, &why);
        }
        text.push('\n');
    }
    table(text, gathered);
    comparison(text, gathered);
}

fn list(text: &mut String, lines: &[String]) {
    for line in lines.iter().take(NAMED_MAX) {
        push(text, &format!("- {line}"));
    }
    if lines.len() > NAMED_MAX {
        push(text, &format!("- and {} more", lines.len() - NAMED_MAX));
    }
    text.push('\n');
}

/// The metrics that the file wants in the document, of every run.
fn table(text: &mut String, gathered: &Gathered<'_>) {
    let metrics: Vec<_> = gathered.experiment.table.iter().filter_map(|name| metric(name)).collect();
    let seen = gathered.seen();
    if metrics.is_empty() || seen.is_empty() {
        return;
    }
    let axes: Vec<&str> = gathered.experiment.axes.iter().map(|(name, _)| name.as_str()).chain(["run"]).collect();
    let head: Vec<&str> = axes.iter().copied().chain(metrics.iter().map(|metric| metric.text)).collect();
    push(text, &format!("| {} |", head.join(" | ")));
    push(text, &format!("|{}{}", "---|".repeat(axes.len()), "---:|".repeat(metrics.len())));
    for seen in seen {
        let mut row: Vec<String> = axes.iter().map(|axis| cell(seen.on(axis).unwrap_or("-"))).collect();
        row.extend(metrics.iter().map(|metric| metric.said((metric.of)(seen.outcome))));
        push(text, &format!("| {} |", row.join(" | ")));
    }
    text.push('\n');
}

/// What is reported of each policy.
pub(super) fn policy_columns() -> Vec<&'static str> {
    vec![
        "policy",
        "CPU saved, %",
        "CPU, ns/packet",
        "packets offloaded, %",
        "bytes offloaded, %",
        "rules, mean",
        "rules, peak",
        "inserted/s",
        "p99, us",
        "loss, %",
    ]
}

/// The row of one policy, in the order of [`policy_columns`].
pub(super) fn policy_row(scenario: &Scenario<'_>, policy: &str, outcome: &Outcome) -> Vec<String> {
    let mut row = vec![policy.to_owned(), scenario.saved(policy).map_or("-".to_owned(), |saved| format!("{saved:.1}"))];
    row.push(format!("{:.1}", outcome.cpu_ns));
    row.extend([outcome.offloaded_packets, outcome.offloaded_bytes].map(|part| format!("{:.1}", part * 100.0)));
    row.extend([outcome.rules_mean, outcome.rules_peak, outcome.inserted_per_s].map(|count| format!("{count:.0}")));
    row.push(format!("{:.2}", outcome.latency_p99 / 1e3));
    row.push(format!("{:.4}", outcome.loss * 100.0));
    row
}

/// Whether `auto` keeps its promises, in sentences.
pub(super) fn kept_lines(kept: &Kept) -> Vec<String> {
    let word = |holds: bool| if holds { "holds" } else { "**does not hold**" };
    vec![
        format!(
            "`auto` saves at least as much processor time as every other policy (within {BEST_WITHIN} percent of `never`'s): \
             {}; so in {} of {} scenarios.",
            word(kept.not_best.is_empty()),
            kept.best_of - kept.not_best.len(),
            kept.best_of
        ),
        format!(
            "It saves {:.0} % of what the oracle does at least (but for those {BEST_WITHIN} percent), in {:.0} % of the scenarios \
             at least: {}; so in {} of {}.",
            OF_ORACLE * 100.0,
            NEAR_SHARE * 100.0,
            word(kept.near_share() >= NEAR_SHARE),
            kept.oracle_of - kept.not_near.len(),
            kept.oracle_of
        ),
        format!(
            "It is never worse than `never` (p99 within {:.0} %, loss within {:.3} % of packets): {}; {} exception(s) in {} \
             scenarios.",
            P99_WITHIN * 100.0,
            LOSS_WITHIN * 100.0,
            word(kept.worse.is_empty()),
            kept.worse.len(),
            kept.never_of
        ),
    ]
}

fn comparison(text: &mut String, gathered: &Gathered<'_>) {
    let Some(axis) = &gathered.experiment.comparison else { return };
    let seen = gathered.seen();
    let scenarios = Scenario::all(&seen, axis);
    if scenarios.is_empty() {
        return;
    }
    let kept = Kept::of(&scenarios);
    let lists = [
        ("Where another policy saves more:", &kept.not_best),
        ("Where it is not near the oracle:", &kept.not_near),
        ("Where it is worse than `never`:", &kept.worse),
    ];
    for (line, (head, exceptions)) in kept_lines(&kept).iter().zip(lists) {
        push(text, &format!("{line}\n"));
        if !exceptions.is_empty() {
            push(text, &format!("{head}\n"));
            list(text, exceptions);
        }
    }
    saved_table(text, &scenarios);
    push(text, "All of it:\n");
    for scenario in &scenarios {
        push(text, &format!("### {}\n", scenario.name()));
        push(text, &format!("| {} |", policy_columns().join(" | ")));
        push(text, &format!("|---|{}", "---:|".repeat(policy_columns().len() - 1)));
        for (policy, outcome) in &scenario.policies {
            push(text, &format!("| {} |", policy_row(scenario, policy, outcome).join(" | ")));
        }
        text.push('\n');
    }
}

/// Processor time saved, a row for each scenario.
fn saved_table(text: &mut String, scenarios: &[Scenario<'_>]) {
    let mut policies: Vec<&str> = Vec::new();
    for (policy, _) in scenarios.iter().flat_map(|scenario| &scenario.policies) {
        if *policy != "never" && !policies.contains(policy) {
            policies.push(policy);
        }
    }
    push(text, "Processor time saved beside `never`, in percent:\n");
    push(text, &format!("| scenario | {} |", policies.join(" | ")));
    push(text, &format!("|---|{}", "---:|".repeat(policies.len())));
    for scenario in scenarios {
        let mut row = format!("| {} |", cell(&scenario.name()));
        for policy in &policies {
            let saved = scenario.saved(policy).map_or("-".to_owned(), |saved| format!("{saved:.1}"));
            write!(row, " {saved} |").unwrap_or_default();
        }
        push(text, &row);
    }
    text.push('\n');
}
