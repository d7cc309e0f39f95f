//! Policies beside each other on the page.

use super::super::comparison::{
    BEST_WITHIN, LOSS_WITHIN, NEAR_SHARE, NET_WITHIN, OF_BOUND, P99_WITHIN, PromiseKept, Scenario,
};
use super::super::finding::SeenRun;
use super::super::outcome::Outcome;
use super::super::results::Gathered;
use super::super::tables::with_width;
use super::{NAMED_MAX, cell, paragraph, push};
use crate::statistics::Summary;

/// The columns of each policy.
pub(in super::super) fn policy_columns() -> Vec<&'static str> {
    vec![
        "policy",
        "CPU saved, %",
        "packets saved net, %",
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
pub(in super::super) fn policy_row(scenario: &Scenario<'_>, policy: &str, seen: &SeenRun<'_>) -> Vec<String> {
    let or_none = |all: Option<Summary>, digits| all.map_or("-".to_owned(), |all| with_width(&all, digits));
    let mean = |of: fn(&Outcome) -> f64, digits| or_none(seen.summary(of), digits);
    vec![
        policy.to_owned(),
        or_none(scenario.saved(policy), 1),
        or_none(scenario.net(policy), 1),
        mean(|outcome| outcome.cpu_ns, 1),
        mean(|outcome| outcome.offloaded_packets * 100.0, 1),
        mean(|outcome| outcome.offloaded_bytes * 100.0, 1),
        mean(|outcome| outcome.rules_mean, 0),
        mean(|outcome| outcome.rules_peak, 0),
        mean(|outcome| outcome.inserted_per_s, 0),
        mean(|outcome| outcome.latency_p99 / 1e3, 2),
        mean(|outcome| outcome.loss * 100.0, 4),
    ]
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
    let above = if kept.above.is_empty() {
        "No policy is above the bound.".to_owned()
    } else {
        format!("**The bound is none**{}.", worse(&kept.above))
    };
    let near = format!(
        "`auto` saves at least {:.0} % of the packets that the upper bound allows (net of requests, within {NET_WITHIN} percent) in \
         at least {:.0} % of the scenarios: {}; so in {} of {}. {above}",
        OF_BOUND * 100.0,
        NEAR_SHARE * 100.0,
        word(kept.near_share() >= NEAR_SHARE),
        kept.bound_of - kept.not_near.len(),
        kept.bound_of,
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
    let scenarios = Scenario::all(gathered.seen(), gathered.bounds(), axis);
    if scenarios.is_empty() {
        return;
    }
    let kept = PromiseKept::of(&scenarios);
    for line in kept_lines(&kept) {
        paragraph(text, &line, "");
        text.push('\n');
    }
    let policies = policies_of(&scenarios);
    let cpu = |scenario: &Scenario<'_>, policy: &str| scenario.saved(policy);
    push(text, "Processor time saved beside `never`, in percent:\n");
    saved_table(text, &scenarios, &policies, cpu);
    let net = |scenario: &Scenario<'_>, policy: &str| match policy {
        "bound" => scenario.net_bound(),
        policy => scenario.net(policy),
    };
    push(text, "Packets saved net of requests for rules, in percent of those offered, and the upper bound:\n");
    saved_table(text, &scenarios, &policies.into_iter().chain(["bound"]).collect::<Vec<_>>(), net);
}

fn policies_of<'a>(scenarios: &[Scenario<'a>]) -> Vec<&'a str> {
    let mut policies: Vec<&str> = Vec::new();
    for (policy, _) in scenarios.iter().flat_map(|scenario| &scenario.policies) {
        if *policy != "never" && !policies.contains(policy) {
            policies.push(policy);
        }
    }
    policies
}

/// What is saved, a row for each scenario in which a policy saves any.
fn saved_table(
    text: &mut String,
    scenarios: &[Scenario<'_>],
    policies: &[&str],
    of: impl Fn(&Scenario<'_>, &str) -> Option<Summary>,
) {
    push(text, &format!("| scenario | {} |", policies.join(" | ")));
    push(text, &format!("|---|{}", "---:|".repeat(policies.len())));
    let matters = |scenario: &&Scenario<'_>| {
        policies.iter().any(|policy| of(scenario, policy).is_some_and(|saved| saved.mean > BEST_WITHIN))
    };
    for scenario in scenarios.iter().filter(matters) {
        let saved = policies.iter().map(|policy| of(scenario, policy));
        let cells: Vec<String> =
            saved.map(|saved| saved.map_or("-".to_owned(), |saved| with_width(&saved, 1))).collect();
        push(text, &format!("| {} | {} |", cell(&scenario.name()), cells.join(" | ")));
    }
    text.push('\n');
    let left_out = scenarios.iter().filter(|scenario| !matters(scenario)).count();
    if left_out > 0 {
        push(text, &format!("In {left_out} more scenarios no policy saves more than {BEST_WITHIN} percent.\n"));
    }
}
