//! Policies beside each other on the page.

use super::super::comparison::{BEST_WITHIN, LOSS_WITHIN, NEAR_SHARE, OF_YARDSTICK, P99_WITHIN, PromiseKept, Scenario};
use super::super::outcome::Outcome;
use super::super::results::Gathered;
use super::{NAMED_MAX, cell, paragraph, push};

/// The columns of each policy.
pub(in super::super) fn policy_columns() -> Vec<&'static str> {
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
pub(in super::super) fn policy_row(scenario: &Scenario<'_>, policy: &str, outcome: &Outcome) -> Vec<String> {
    let mut row = vec![policy.to_owned(), scenario.saved(policy).map_or("-".to_owned(), |saved| format!("{saved:.1}"))];
    row.push(format!("{:.1}", outcome.cpu_ns));
    row.extend([outcome.offloaded_packets, outcome.offloaded_bytes].map(|part| format!("{:.1}", part * 100.0)));
    row.extend([outcome.rules_mean, outcome.rules_peak, outcome.inserted_per_s].map(|count| format!("{count:.0}")));
    row.push(format!("{:.2}", outcome.latency_p99 / 1e3));
    row.push(format!("{:.4}", outcome.loss * 100.0));
    row
}

/// Whether `auto` keeps its promises, in sentences. The table of what is saved shows where it does not.
pub(in super::super) fn kept_lines(kept: &PromiseKept) -> [String; 3] {
    let word = |holds: bool| if holds { "holds" } else { "**does not hold**" };
    let best = format!(
        "`auto` saves at least as much processor time as every other policy (within {BEST_WITHIN} percent of `never`'s): {}; \
         so in {} of {} scenarios.",
        word(kept.not_best.is_empty()),
        kept.best_of - kept.not_best.len(),
        kept.best_of
    );
    let near = format!(
        "`auto` saves at least {:.0} % of what the greedy yardstick saves (within {BEST_WITHIN} percent) in at least {:.0} % of \
         the scenarios: {}; so in {} of {}. In {} it saves more than the yardstick, which is no upper bound.",
        OF_YARDSTICK * 100.0,
        NEAR_SHARE * 100.0,
        word(kept.near_share() >= NEAR_SHARE),
        kept.yardstick_of - kept.not_near.len(),
        kept.yardstick_of,
        kept.beyond.len()
    );
    let never = format!(
        "`auto` is never worse than `never` (p99 within {:.0} %, loss within {:.3} % of packets): {}; {} exception(s) in {} \
         scenarios{}.",
        P99_WITHIN * 100.0,
        LOSS_WITHIN * 100.0,
        word(kept.worse.is_empty()),
        kept.worse.len(),
        kept.never_of,
        worse(&kept.worse)
    );
    [best, near, never]
}

/// Exceptions, some of them, for the end of a sentence.
fn worse(exceptions: &[String]) -> String {
    let named = exceptions.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = if exceptions.len() > NAMED_MAX { "; and others" } else { "" };
    if named.is_empty() { String::new() } else { format!(": {named}{more}") }
}

pub(super) fn write(text: &mut String, gathered: &Gathered<'_>) {
    let Some(axis) = &gathered.experiment.comparison else { return };
    let seen = gathered.seen();
    let scenarios = Scenario::all(&seen, axis);
    if scenarios.is_empty() {
        return;
    }
    let kept = PromiseKept::of(&scenarios);
    for line in kept_lines(&kept) {
        paragraph(text, &line, "");
        text.push('\n');
    }
    saved_table(text, &scenarios);
}

/// Processor time saved, a row for each scenario in which a policy saves any.
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
    let matters = |scenario: &&Scenario<'_>| policies.iter().any(|policy| scenario.saved(policy) > Some(BEST_WITHIN));
    for scenario in scenarios.iter().filter(matters) {
        let saved = policies.iter().map(|policy| scenario.saved(policy));
        let cells: Vec<String> =
            saved.map(|saved| saved.map_or("-".to_owned(), |saved| format!("{saved:.1}"))).collect();
        push(text, &format!("| {} | {} |", cell(&scenario.name()), cells.join(" | ")));
    }
    text.push('\n');
    let left_out = scenarios.iter().filter(|scenario| !matters(scenario)).count();
    if left_out > 0 {
        push(text, &format!("In {left_out} more scenarios no policy saves more than {BEST_WITHIN} percent.\n"));
    }
}
