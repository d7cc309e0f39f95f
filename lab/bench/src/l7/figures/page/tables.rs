//! The section on hash tables: figure 11.

use super::super::results::{FigureResults, ResultPlace, shown, tables_beside_rte_hash};
use super::super::{hashtable, paper};
use super::{FigureSpec, FiguresPage, goodput, verdict};
use anyhow::Result;

impl FiguresPage<'_> {
    pub(super) fn hashtable(&mut self) -> Result<()> {
        self.section("Figure 11: concurrent hash table", paper::TABLE)?;
        if hashtable::CASES.iter().all(|(_, case)| self.results.places(hashtable::PART, case).is_empty()) {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* million operations a second, 2^20 slots 80 % full, in bursts of 32; [tables](tables.md) has the rest.",
        )?;
        for (file, case) in hashtable::CASES {
            let threads = self.results.places(hashtable::PART, case);
            let header: Vec<String> = std::iter::once(case.to_owned())
                .chain(threads.iter().map(|threads| format!("{threads} thread(s)")))
                .collect();
            let rows: Vec<Vec<String>> =
                hashtable::METHODS.iter().map(|method| row(self.results, case, method, &threads)).collect();
            self.table(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows)?;
            let title = format!("hash table, {case}");
            let figure = FigureSpec {
                part: hashtable::PART,
                what: "per_s",
                divisor: 1e6,
                title: &title,
                x_title: "threads",
                y_title: "million a second",
                logarithmic: false,
                ..goodput(case)
            };
            self.figure(&format!("figure-11-{file}.svg"), figure, |threads| threads.to_string())?;
        }
        let ratios = tables_beside_rte_hash(self.results);
        let shared = "Workers share no table (`per-core/cuckoo++`); `concurrent` is the one that threads share, as Laconic's is.";
        if ratios.is_empty() {
            return self.paragraph(&format!("*Verdict:* not measured: rte_hash was not part of this run. {shared}"));
        }
        let held = ratios.iter().filter(|ratio| **ratio >= 1.0).count();
        self.paragraph(&format!(
            "*Verdict:* {}. `concurrent` is at least as fast as rte_hash in {held} of {} comparisons. {shared}",
            verdict(held, ratios.len()),
            ratios.len()
        ))
    }
}

/// A method's operations by threads; a method without any says so.
fn row(results: &FigureResults, case: &str, method: &str, threads: &[u64]) -> Vec<String> {
    let of = |&x: &u64| {
        let place = ResultPlace { part: hashtable::PART, setting: case, series: method, x };
        let samples = results.samples(place, "per_s");
        samples.map_or_else(|| "not measured".to_owned(), |samples| shown(Some(&samples.divided_by(1e6)), 1))
    };
    std::iter::once(method.to_owned()).chain(threads.iter().map(of)).collect()
}
