//! Laconic's findings on real packets: docs/evidence/laconic.md.

use super::{
    CROSSING, CROSSING_BYTES, CROSSING_IS_THERE, FigureResults, HAIRPIN, HASHTABLE, LATENCY, MIX, MeasuredFinding,
    NGINX, OFFLOADED, RULES, Ratios, ResultPlace, SOFTWARE, THRESHOLD, THROUGHPUT,
};

/// Cards that take super-packets, and packets as on a wire.
const SETTINGS: [&str; 2] = ["gso", "wire"];
/// Our table that threads share, and DPDK's.
const OURS: &str = "concurrent";
const RTE_HASH: &str = "rte-hash/";
/// How many times the computed threshold may be the measured one, and the other way round.
const NEAR: f64 = 2.0;

/// Hairpin's median by nginx's, at each place, over cards that take super-packets.
pub fn beside_nginx(results: &FigureResults, part: &str, what: &str) -> Ratios {
    let ratio = |x| {
        let of = |series| results.median(ResultPlace { part, setting: "gso", series, x }, what);
        Some((x, of(HAIRPIN)? / of(NGINX)?))
    };
    results.places(part, "gso").into_iter().filter_map(ratio).collect()
}

/// Whether a response costs the balancer's core less with every body in the engine than with every body in the worker, by size.
pub fn cheaper_when_offloaded(results: &FigureResults, setting: &str) -> Vec<bool> {
    let gain = |x| {
        let of = |series| results.median(ResultPlace { part: THROUGHPUT, setting, series, x }, "core_us_per_response");
        Some(of(OFFLOADED)? < of(SOFTWARE)?)
    };
    results.places(THROUGHPUT, setting).into_iter().filter_map(gain).collect()
}

/// The size from which on bodies are offloaded, as computed, by the size from which on offloading was cheaper, of each setting in
/// which both are known.
pub fn threshold_ratios(results: &FigureResults) -> Vec<(&'static str, f64)> {
    let ratio = |setting| {
        let place = |part| ResultPlace { part, setting, series: HAIRPIN, x: 0 };
        let computed = results.median(place(THRESHOLD), "offload_bytes_min")?;
        let all = results.samples(place(CROSSING), CROSSING_IS_THERE)?.values().len();
        let measured =
            results.samples(place(CROSSING), CROSSING_BYTES).filter(|there| there.values().len() * 2 >= all)?;
        Some((setting, computed / measured.median()))
    };
    SETTINGS.into_iter().filter_map(ratio).collect()
}

/// Whether a rule costs less in the largest batch than alone: insertions and removals, with few other rules and with many.
pub fn cheaper_when_batched(results: &FigureResults) -> Vec<bool> {
    let batches = results.places(RULES, "");
    let (Some(&one), Some(&most)) = (batches.first(), batches.last()) else { return Vec::new() };
    let falls = |series: &String, what: &str| {
        let of = |x| results.median(ResultPlace { part: RULES, setting: "", series, x }, what);
        Some(of(most)? < of(one)?)
    };
    let series = results.series(RULES, "");
    series.iter().flat_map(|series| ["insert_us", "delete_us"].map(|what| falls(series, what))).flatten().collect()
}

/// Whether a busy core does more packets a second with the largest responses than with the smallest; `None`: not measured.
pub fn is_cheaper_in_larger_responses(results: &FigureResults) -> Option<bool> {
    let of =
        |x| results.median(ResultPlace { part: THROUGHPUT, setting: "gso", series: SOFTWARE, x }, "packets_per_busy_s");
    let rates: Vec<f64> = results.places(THROUGHPUT, "gso").into_iter().filter_map(of).collect();
    Some(rates.last()? > rates.first()?)
}

/// Operations of our shared table by those of each of DPDK's, for each operation and number of threads.
pub fn tables_beside_rte_hash(results: &FigureResults) -> Vec<f64> {
    let mut ratios = Vec::new();
    for case in results.settings(HASHTABLE) {
        let peers: Vec<String> =
            results.series(HASHTABLE, &case).into_iter().filter(|series| series.starts_with(RTE_HASH)).collect();
        for x in results.places(HASHTABLE, &case) {
            let of = |series| results.median(ResultPlace { part: HASHTABLE, setting: &case, series, x }, "per_s");
            ratios.extend(peers.iter().filter_map(|peer| Some(of(OURS)? / of(peer)?)));
        }
    }
    ratios
}

/// Every finding that the page answers.
pub fn judge(results: &FigureResults) -> Vec<MeasuredFinding> {
    let count = |holds: &[bool]| (holds.iter().filter(|holds| **holds).count(), holds.len());
    let ratios = |all: &Ratios, holds: fn(f64) -> bool| {
        let holds: Vec<bool> = all.iter().map(|(_, ratio)| holds(*ratio)).collect();
        count(&holds)
    };
    let goodput = ratios(&beside_nginx(results, THROUGHPUT, "gbit_per_s"), |ratio| ratio >= 1.0);
    let [mean, tail] =
        ["mean_ms", "p99_ms"].map(|what| ratios(&beside_nginx(results, LATENCY, what), |ratio| ratio <= 1.0));
    let gains: Vec<bool> = SETTINGS.iter().flat_map(|setting| cheaper_when_offloaded(results, setting)).collect();
    let thresholds = threshold_ratios(results);
    let near: Vec<bool> = thresholds.iter().map(|(_, ratio)| (1.0 / NEAR..=NEAR).contains(ratio)).collect();
    let said: Vec<String> = thresholds.iter().map(|(setting, ratio)| format!("{ratio:.1} ({setting})")).collect();
    let (batched, rates) = (cheaper_when_batched(results), is_cheaper_in_larger_responses(results));
    let mix = beside_nginx(results, MIX, "gbit_per_s");
    let tables = tables_beside_rte_hash(results);
    let ahead = count(&tables.iter().map(|ratio| *ratio >= 1.0).collect::<Vec<_>>());
    let places = |(held, all): (usize, usize)| format!("{held} of {all}");
    let finding = |id, held, why| MeasuredFinding { id, held: Some(held), why };
    vec![
        finding("laconic-goodput-16mb", goodput, format!("at least nginx's goodput at {} sizes", places(goodput))),
        finding(
            "laconic-latency-half-load",
            (mean.0 + tail.0, mean.1 + tail.1),
            format!("at most nginx's mean at {} sizes, its 99th percentile at {}", places(mean), places(tail)),
        ),
        finding(
            "laconic-offload-from-1mb",
            count(&gains),
            format!("offloading costs the core less at {} sizes", places(count(&gains))),
        ),
        finding(
            "laconic-threshold-rule",
            count(&near),
            format!("the computed threshold is {} times the measured one", said.join(" and ")),
        ),
        finding(
            "laconic-rule-updates-batched",
            count(&batched),
            format!("a rule costs less in the largest batch than alone in {} cases", places(count(&batched))),
        ),
        finding(
            "laconic-packets-by-size",
            (usize::from(rates == Some(true)), usize::from(rates.is_some())),
            "packets a second of a busy core, at the largest responses beside the smallest".to_owned(),
        ),
        MeasuredFinding {
            id: "laconic-core-utilization",
            held: None,
            why: "the paper's core has no kernel, so its operations and ours are not the same".to_owned(),
        },
        finding(
            "laconic-table-beats-rte-hash",
            ahead,
            format!("`{OURS}` is at least as fast as rte_hash in {} comparisons", places(ahead)),
        ),
        finding(
            "laconic-enterprise-mix",
            ratios(&mix, |ratio| ratio >= 1.0),
            match mix.first() {
                Some((_, ratio)) => format!("{ratio:.2} times nginx's goodput with the web-search mix"),
                None => "the mix".to_owned(),
            },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values as they would be if all findings held; `wrong` turns all of them.
    fn results(wrong: bool) -> FigureResults {
        let mut results = FigureResults::default();
        let turned = |value: f64| if wrong { 1.0 / value } else { value };
        let mut add = |part: &str, setting: &str, series: &str, x, what, value| {
            results.add(ResultPlace { part, setting, series, x }, 0, &[(what, value)]);
        };
        for x in [1024, 1 << 20] {
            for (series, goodput) in [(HAIRPIN, 2.0), (NGINX, 1.0)] {
                add(THROUGHPUT, "gso", series, x, "gbit_per_s", turned(goodput));
                add(LATENCY, "gso", series, x, "mean_ms", 1.0 / turned(goodput));
                add(LATENCY, "gso", series, x, "p99_ms", 1.0 / turned(goodput));
            }
            for (series, cost) in [(OFFLOADED, 0.5), (SOFTWARE, 1.0)] {
                add(THROUGHPUT, "wire", series, x, "core_us_per_response", turned(cost));
            }
            add(THROUGHPUT, "gso", SOFTWARE, x, "packets_per_busy_s", turned(x as f64));
            for (series, rate) in [(OURS, 2.0), ("rte-hash/lock-free", 1.0)] {
                add(HASHTABLE, "look-ups (hits)", series, x, "per_s", turned(rate));
            }
            add(RULES, "", "1 k rules", x, "insert_us", turned(1.0 / x as f64));
        }
        for (series, goodput) in [(HAIRPIN, 2.0), (NGINX, 1.0)] {
            add(MIX, "gso", series, 0, "gbit_per_s", turned(goodput));
        }
        add(THRESHOLD, "gso", HAIRPIN, 0, "offload_bytes_min", if wrong { 4e4 } else { 1e4 });
        add(CROSSING, "gso", HAIRPIN, 0, CROSSING_IS_THERE, 1.0);
        add(CROSSING, "gso", HAIRPIN, 0, CROSSING_BYTES, 1e4);
        results
    }

    #[test]
    fn planted_wrong_results_turn_every_verdict() {
        for (wrong, verdict) in [(false, "agrees"), (true, "**does not agree**")] {
            let judged = judge(&results(wrong));
            for finding in judged.iter().filter(|finding| finding.held.is_some()) {
                assert_eq!(finding.verdict(), verdict, "{finding:?}");
            }
        }
        for finding in judge(&FigureResults::default()).iter().filter(|finding| finding.held.is_some()) {
            assert_eq!(finding.verdict(), "not measured", "{finding:?}");
        }
    }

    #[test]
    fn judged_findings_are_those_of_the_list() {
        let mut judged: Vec<&str> = judge(&FigureResults::default()).iter().map(|finding| finding.id).collect();
        let listed = crate::findings::all().iter().filter(|listed| listed.by.iter().any(|by| by == "l7-figures"));
        let mut listed: Vec<&str> = listed.map(|listed| listed.id.as_str()).collect();
        judged.sort_unstable();
        listed.sort_unstable();
        assert_eq!(judged, listed);
    }
}
