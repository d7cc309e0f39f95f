//! The page in docs/evidence, from results alone.

use super::case::{CardBench, LaconicCase};
use super::drawing::figures;
use super::finding::{CardFinding, CardJudgement, SeenCase};
use super::outcome::CardOutcome;
use super::store::CardStore;
use crate::figure::Figure;
use crate::report::replace;
use crate::statistics::Summary;
use crate::virtual_time::document::paragraph;
use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Context, Result};
use hairpin_sim::http_testbed::Work;
use std::collections::BTreeSet;
use std::path::Path;

/// Places of a finding that are named, at most.
const PLACES_MAX: usize = 8;
/// The prefix of figures' files.
const PREFIX: &str = "laconic-cards-";
/// Table 3: one core of a BlueField-2, responses and Mpps.
pub const TABLE_3: [(&str, f64); 6] =
    [("1 KB", 0.72), ("4 KB", 1.10), ("16 KB", 2.06), ("1 MB", 3.04), ("4 MB", 3.01), ("16 MB", 3.00)];
/// Table 4: kinds of work and percent; the rest, 28.9, is "others".
pub const TABLE_4: [(Work, f64); 5] = [
    (Work::Receive, 40.55),
    (Work::ParseHead, 11.60),
    (Work::InsertField, 8.01),
    (Work::Reassemble, 7.36),
    (Work::LookUp, 3.56),
];

/// All that the page is made of.
pub struct CardsPage<'a> {
    pub(super) bench: &'a CardBench,
    store: &'a CardStore,
    cases: Vec<LaconicCase>,
    varied: Vec<LaconicCase>,
}

impl<'a> CardsPage<'a> {
    /// The results in a store.
    pub fn new(bench: &'a CardBench, store: &'a CardStore) -> CardsPage<'a> {
        CardsPage { bench, store, cases: bench.experiment.cases(), varied: bench.experiment.varied() }
    }

    fn outcome(&self, case: &LaconicCase) -> Option<&'a CardOutcome> {
        self.store.find(&case.name(), &self.bench.fingerprint(case))?.came.as_ref().ok()
    }

    fn seen_of<'b>(&self, cases: &'b [LaconicCase]) -> Vec<SeenCase<'b>>
    where
        'a: 'b,
    {
        cases.iter().filter_map(|case| Some(SeenCase { case, outcome: self.outcome(case)? })).collect()
    }

    /// What came of cases as everything is guessed to be.
    pub(super) fn seen(&self) -> Vec<SeenCase<'_>> {
        self.seen_of(&self.cases)
    }

    /// Each finding and its verdict.
    pub fn judgements(&self) -> Vec<(&CardFinding, CardJudgement)> {
        let seen = self.seen();
        self.bench.experiment.finding.iter().map(|finding| (finding, finding.judge(&seen, self.bench))).collect()
    }

    /// Cases without a result, and why.
    pub fn failures(&self) -> Vec<(String, String)> {
        let failure = |case: &LaconicCase| match self.store.find(&case.name(), &self.bench.fingerprint(case)) {
            None => Some((case.name(), "not performed".to_owned())),
            Some(record) => record.came.as_ref().err().map(|reason| (case.name(), reason.clone())),
        };
        self.cases.iter().chain(&self.varied).filter_map(failure).collect()
    }

    /// The verdicts, counted, for people.
    pub fn summary(&self) -> String {
        let judgements = self.judgements();
        let count = |verdict| judgements.iter().filter(|(_, judgement)| judgement.verdict == verdict).count();
        format!(
            "{} findings: {} agree, {} in part, {} do not agree, {} not measured",
            judgements.len(),
            count(CaseVerdict::Agrees),
            count(CaseVerdict::InPart),
            count(CaseVerdict::Disagrees),
            count(CaseVerdict::NotMeasured)
        )
    }
}

/// Writes the page, and its figures into `figures` beside it.
///
/// # Errors
/// A figure cannot be drawn, or a file cannot be written.
pub fn write_page(page: &CardsPage<'_>, file: &Path) -> Result<()> {
    let into = file.parent().unwrap_or(Path::new("")).join("figures");
    std::fs::create_dir_all(&into).with_context(|| format!("could not make {}", into.display()))?;
    let figures = figures(page)?;
    for figure in &figures {
        replace(&into.join(format!("{PREFIX}{}.svg", figure.name)), figure.svg.as_bytes())?;
    }
    replace(file, document(page, &figures).as_bytes())
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

const ABOUT: [&str; 4] = [
    "Laconic ([references](../references.md)) ran on a BlueField-2 and a LiquidIO3. Here the same balancer's questions are asked of \
     Hairpin in virtual time on models of both cards. [laconic.md](laconic.md) asks them on real packets, on one core of a machine \
     without such a card.",
    "**What runs the product's code:** on each modelled core the event loop and the worker of the data plane, with its splice, heads, \
     SYN cookies, offload rules and steering by port, on real frames; the card rewrites frames by those rules. **What is \
     modelled:** how long a core takes for what its worker did, the L2 cache that two cores share, memory, ports, the flow engine with \
     table 2's latencies by batch, and the hosts, a light TCP (slow start, SACK recovery, acknowledgements of coalesced segments). \
     `tests/sim/src/http_testbed` has the model, `lab/profiles/smart-nics` the cards, each number with its source.",
    "**Calibrated** on what the paper says of the parts only: a core's packets (table 3), the parts of its work (table 4), latencies of \
     rules (table 2); LiquidIO3's cores by table 1's ratios of nginx. None of figures 8 to 12 and of the headlines was used. \
     **nginx** was not run: its numbers are the paper's table 1, with responses of 1 MB for larger ones and for the mix; its latency at \
     half load is computed from them (twice the time that a response takes alone: M/G/1 with processor sharing). The paper's figures \
     have no numbers in the text, so what they show is judged by what the text says of them. Figure 11, the hash table, needs no \
     card: it is measured on real cores in [laconic.md](laconic.md#figure-11-concurrent-hash-table).",
    "One port in use where the paper has one (4.1), two where it looks at all cores (A.1, figures 8 (b) and 10). Each case ran \
     with each seed; values are means, with the smallest and the largest in brackets. A verdict follows from the rule in \
     `lab/laconic/cards.toml`; [findings.toml](findings.toml) lists the findings.",
];

fn document(page: &CardsPage<'_>, figures: &[Figure]) -> String {
    let mut text = String::from("# Laconic on its cards, in virtual time\n\n");
    for prose in ABOUT {
        paragraph(&mut text, prose, "");
        text.push('\n');
    }
    origin(&mut text, page);
    verdicts(&mut text, page);
    calibration(&mut text, page);
    push(&mut text, "## Figures\n");
    for figure in figures {
        push(&mut text, &format!("![{}](figures/{PREFIX}{}.svg)", figure.title, figure.name));
    }
    text.push('\n');
    limits(&mut text, page);
    sensitivity(&mut text, page);
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The command, machines, days and the time it took.
fn origin(text: &mut String, page: &CardsPage<'_>) {
    let all = || page.cases.iter().chain(&page.varied);
    let records: Vec<_> =
        all().filter_map(|case| page.store.find(&case.name(), &page.bench.fingerprint(case))).collect();
    let machines: BTreeSet<String> = records
        .iter()
        .map(|record| format!("{}, {}, {}", record.made.date, record.made.machine, record.made.program))
        .collect();
    let machines: Vec<String> = machines.into_iter().collect();
    let minutes = records.iter().map(|record| record.worked).sum::<f64>() / 60.0;
    let prose = format!(
        "By `hairpin-lab reproduce-laconic` (`make reproduce-laconic`): {} cases and {} with other guesses, {minutes:.0} minutes of \
         processor time; {}. Results: `lab/results/laconic-cards.jsonl.gz`.",
        page.cases.len(),
        page.varied.len(),
        machines.join("; ")
    );
    paragraph(text, &prose, "");
    text.push('\n');
    let failures = page.failures();
    if !failures.is_empty() {
        push(text, &format!("{} cases have no result:\n", failures.len()));
        for (case, reason) in failures.iter().take(8) {
            paragraph(text, &format!("- {case}: {}", reason.replace('\n', " ")), "  ");
        }
        text.push('\n');
    }
}

/// A number with as many digits as it needs.
fn said(value: f64) -> String {
    match value.abs() {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn spread(summary: &Summary) -> String {
    match summary.count {
        1 => said(summary.mean),
        _ => format!("{} ({}-{})", said(summary.mean), said(summary.least), said(summary.most)),
    }
}

/// Ours, each place; of many the smallest and the largest.
fn ours(judgement: &CardJudgement) -> String {
    let one = |(place, summary): &(String, Summary)| match place.as_str() {
        "" => spread(summary),
        place => format!("{place}: {}", spread(summary)),
    };
    if judgement.values.len() > PLACES_MAX {
        let by_mean = |a: &&(String, Summary), b: &&(String, Summary)| a.1.mean.total_cmp(&b.1.mean);
        let ends = [judgement.values.iter().min_by(by_mean), judgement.values.iter().max_by(by_mean)];
        let ends: Vec<String> = ends.into_iter().flatten().map(one).collect();
        return format!("{} places: {}", judgement.values.len(), ends.join(" to "));
    }
    judgement.values.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The value that the rule wants.
pub(crate) fn wanted(finding: &CardFinding) -> String {
    use super::finding::CardRule;
    let value = said(finding.value);
    let by = format!("{:.0} %", finding.by * 100.0);
    match finding.rule {
        CardRule::AtLeast if finding.by == 0.0 => format!("at least {value}"),
        CardRule::AtMost if finding.by == 0.0 => format!("at most {value}"),
        CardRule::AtLeast => format!("at least {value}, less {by}"),
        CardRule::AtMost => format!("at most {value} and {by}"),
        CardRule::Near => format!("{value}, within {by}"),
    }
}

fn verdicts(text: &mut String, page: &CardsPage<'_>) {
    push(text, "## Verdicts\n");
    push(text, &format!("{}.\n", page.summary()));
    push(text, "| | finding | source | wanted | ours | verdict | busiest there |");
    push(text, "|---:|---|---|---|---|---|---|");
    let judgements = page.judgements();
    for ((finding, judgement), number) in judgements.iter().zip(1..) {
        let statement = if finding.part.is_empty() { &finding.text } else { &finding.part };
        let (source, wanted, ours) = (&finding.source, wanted(finding), ours(judgement));
        let (verdict, limit) = (judgement.verdict.text(), &judgement.limit);
        push(text, &format!("| {number} | {statement} | {source} | {wanted} | {ours} | {verdict} | {limit} |"));
    }
    text.push('\n');
    let mut has_reasons = false;
    for ((finding, judgement), number) in judgements.iter().zip(1..) {
        let why = if judgement.verdict == CaseVerdict::Agrees { &finding.why } else { &finding.why_not };
        if !why.is_empty() {
            if !has_reasons {
                push(text, "Why, by the number of the finding:\n");
            }
            has_reasons = true;
            paragraph(text, &format!("- *{number}:* {why}"), "  ");
        }
    }
    if has_reasons {
        text.push('\n');
    }
}

/// The calibrated points: table 3 and table 4.
fn calibration(text: &mut String, page: &CardsPage<'_>) {
    push(text, "## Calibration\n");
    paragraph(
        text,
        "One core of the modelled BlueField-2, nothing offloaded. A packet is one that the core receives. `work.packet_ns` follows from 1 \
         MB, `work.request_ns` from 1 to 16 KB. Table 4 does not say for which responses it is; its parts are the profile's, so what is \
         compared is how they mix.",
        "",
    );
    text.push('\n');
    push(
        text,
        "| response | table 3, Mpps | ours | off by | receive | parse | insert | reassemble | look up | others |",
    );
    push(text, "|---|---|---|---|---|---|---|---|---|---|");
    let columns: Vec<String> = TABLE_4.iter().map(|(_, percent)| format!("{percent:.2}")).collect();
    push(text, &format!("| *table 4, %* | | | | {} | 28.90 |", columns.join(" | ")));
    for (size, paper, summary, work) in calibrated(page) {
        let off = (summary.mean / paper - 1.0) * 100.0;
        let parts: Vec<String> =
            TABLE_4.iter().map(|(kind, _)| format!("{:.1}", work[*kind as usize] * 100.0)).collect();
        let others = work[Work::Other as usize] * 100.0;
        let row = format!(
            "| {size} | {paper:.2} | {} | {off:+.1} % | {} | {others:.1} |",
            spread(&summary),
            parts.join(" | ")
        );
        push(text, &row);
    }
    text.push('\n');
}

/// Of each row of table 3: size, the paper's Mpps, ours, and the parts of work.
pub fn calibrated(page: &CardsPage<'_>) -> Vec<(&'static str, f64, Summary, [f64; Work::COUNT])> {
    let seen = page.seen();
    let of = |(size, paper): (&'static str, f64)| {
        let is_it = |case: &LaconicCase| {
            (case.nic.as_str(), case.ports, case.cores, case.size.as_str()) == ("bluefield-2", 1, 1, size)
                && case.offload == "none"
        };
        let here: Vec<&SeenCase<'_>> = seen.iter().filter(|one| is_it(one.case)).collect();
        let mpps: Vec<f64> = here.iter().map(|one| one.outcome.core_mpps).collect();
        let work = here.first()?.outcome.work;
        Some((size, paper, Summary::of(&mpps)?, work))
    };
    TABLE_3.into_iter().filter_map(of).collect()
}

/// What was busy, and how busy, where figures 8 and 10 have their ends.
fn limits(text: &mut String, page: &CardsPage<'_>) {
    push(text, "## What is the limit\n");
    paragraph(
        text,
        "The first seed, under full load: percent of the time in which each was busy. *Lost*: packets that found a queue full; *again*: \
         segments that servers sent again.",
        "",
    );
    text.push('\n');
    push(text, "| case | Gbit/s | cores | memory | ports | rules change | offloaded bytes | lost | again |");
    push(text, "|---|---|---|---|---|---|---|---|---|");
    let seed = page.bench.experiment.seeds[0];
    let seen = page.seen();
    let most = |case: &LaconicCase| match case.nic.as_str() {
        "bluefield-2" => case.ports == 2 && (case.cores == 7 || case.cores == 1),
        _ => case.cores == 1 || case.cores == 8,
    };
    let sizes = ["1 KB", "16 KB", "1 MB", "16 MB"];
    for one in
        seen.iter().filter(|one| one.case.seed == seed && most(one.case) && sizes.contains(&one.case.size.as_str()))
    {
        let LaconicCase { nic, cores, size, offload, .. } = one.case;
        let o = one.outcome;
        let percent = |part: f64| format!("{:.0}", part * 100.0);
        let fine = |part: f64| format!("{:.2}", part * 100.0);
        let parts = [percent(o.busy), percent(o.memory), percent(o.ports), percent(o.changing), percent(o.offloaded)];
        let row = format!(
            "| {nic}, {cores} core(s), {size}, offload {offload} | {} | {} | {} | {} |",
            said(o.goodput),
            parts.join(" | "),
            fine(o.lost),
            fine(o.repeated)
        );
        push(text, &row);
    }
    text.push('\n');
}

/// The main findings with other guesses.
fn sensitivity(text: &mut String, page: &CardsPage<'_>) {
    push(text, "## If the guesses are wrong\n");
    let main: Vec<(usize, &CardFinding)> =
        page.bench.experiment.finding.iter().enumerate().filter(|(_, finding)| finding.main).collect();
    paragraph(
        text,
        "The main findings, by their numbers above, with each guessed number at other values, first seed. A verdict that is another \
         than above is bold; an empty cell: the guess is of another card, or has no part in it.",
        "",
    );
    text.push('\n');
    let heads: Vec<String> = main.iter().map(|(index, _)| (index + 1).to_string()).collect();
    push(text, &format!("| guess | value | {} |", heads.join(" | ")));
    push(text, &format!("|---|---|{}", "---|".repeat(main.len())));
    let judged = page.judgements();
    let usual: Vec<CaseVerdict> = main.iter().map(|(index, _)| judged[*index].1.verdict).collect();
    let seen = page.seen_of(&page.varied);
    let first = page.bench.experiment.seeds[0];
    let row = |judged: Vec<CardJudgement>| -> Vec<String> {
        let cell = |(judgement, usual): (&CardJudgement, &CaseVerdict)| {
            let mut values: Vec<String> = judgement.values.iter().map(|(_, summary)| said(summary.mean)).collect();
            if values.len() > PLACES_MAX {
                let least = judgement.values.iter().map(|(_, summary)| summary.mean).fold(f64::INFINITY, f64::min);
                values = vec![format!("from {}", said(least))];
            }
            match judgement.verdict {
                CaseVerdict::NotMeasured => String::new(),
                verdict if verdict == *usual => values.join(", "),
                verdict => format!("{}: **{}**", values.join(", "), verdict.text().trim_matches('*')),
            }
        };
        judged.iter().zip(&usual).map(cell).collect()
    };
    let as_guessed: Vec<SeenCase<'_>> = page.seen().into_iter().filter(|one| one.case.seed == first).collect();
    let judged = main.iter().map(|(_, finding)| finding.judge(&as_guessed, page.bench)).collect();
    push(text, &format!("| as guessed | | {} |", row(judged).join(" | ")));
    for guess in &page.bench.experiment.guess {
        for value in &guess.values {
            let is_it = |one: &&SeenCase<'_>| {
                one.case.vary.as_ref().is_some_and(|(name, other)| *name == guess.name && other == value)
            };
            let here: Vec<SeenCase<'_>> = seen.iter().filter(is_it).copied().collect();
            let judged = main.iter().map(|(_, finding)| finding.judge(&here, page.bench)).collect();
            push(text, &format!("| {} | {value} | {} |", guess.name, row(judged).join(" | ")));
        }
    }
    text.push('\n');
    for guess in page.bench.experiment.guess.iter().filter(|guess| !guess.note.is_empty()) {
        paragraph(text, &format!("- *{}:* {}", guess.name, guess.note), "  ");
    }
    text.push('\n');
}
