//! KAIST 2018's findings on real packets.

use super::{FigureResults, LOAD, MeasuredFinding, OFFLOADED, Ratios, ResultPlace, USER_STACK};

/// The setting of the cards.
const WIRE: &str = "wire";

/// How many times the splice with every body in the engine is ahead of the proxy on a user-level stack, by size; `greater`:
/// the greater value is the better one.
pub fn ahead(results: &FigureResults, what: &str, greater: bool) -> Ratios {
    let ratio = |x| {
        let of = |series| results.median(ResultPlace { part: LOAD, setting: WIRE, series, x }, what);
        let ratio = of(OFFLOADED)? / of(USER_STACK)?;
        Some((x, if greater { ratio } else { 1.0 / ratio }))
    };
    results.places(LOAD, WIRE).into_iter().filter_map(ratio).collect()
}

/// Every finding that the page answers, in its order.
pub fn judge(results: &FigureResults) -> Vec<MeasuredFinding> {
    let finding = |id, what, greater, said: &str| {
        let ratios = ahead(results, what, greater);
        let held = ratios.iter().filter(|(_, ratio)| *ratio > 1.0).count();
        let why = format!("{said} at {held} of {} sizes", ratios.len());
        MeasuredFinding { id, held: Some((held, ratios.len())), why }
    };
    vec![
        finding("kaist2018-splice-response-time", "mean_ms", false, "a response takes longer through the proxy"),
        finding("kaist2018-splice-throughput", "responses_per_s", true, "more requests are answered than by the proxy"),
        finding(
            "kaist2018-splice-cost",
            "core_us_per_response",
            false,
            "a response costs the core more through the proxy",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judged_findings_are_those_of_the_list() {
        let judged: Vec<&str> = judge(&FigureResults::default()).iter().map(|finding| finding.id).collect();
        let listed =
            crate::findings::all().iter().filter(|listed| listed.by.iter().any(|by| by == "middlebox-figures"));
        assert_eq!(judged, listed.map(|listed| listed.id.as_str()).collect::<Vec<_>>());
    }
}
