//! The page of KAIST 2018's figure 2.

use super::super::middleboxes::{INSTRUCTIONS, LOAD, Subject};
use super::super::results::{FigureResults, ResponseCounts, SOFTWARE, ahead};
use super::{FigureSpec, FiguresPage, PageContext, finish, goodput, size, verdict};
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;

/// The findings, by section.
const RESPONSE_TIME: &str = "kaist2018-splice-response-time";
const THROUGHPUT: &str = "kaist2018-splice-throughput";
const COST: &str = "kaist2018-splice-cost";
/// The paper's response times at 64 bytes, in microseconds: spliced on the card, and by the proxy on mTCP with eight cores.
const PAPER_US: (f64, f64) = (835.0, 5324.0);
const WIRE: &str = "wire";

/// Draws the figures and writes the page, to `document` as well if there is one.
pub(in crate::l7::figures) fn write(
    results: &FigureResults,
    context: &PageContext,
    directory: &Path,
    document: Option<&Path>,
) -> Result<()> {
    let counts = ResponseCounts::of_processes(results.clone())?;
    let mut page = FiguresPage { results, counts: &counts, text: String::new(), directory };
    page.middlebox_head(context)?;
    page.response_time()?;
    page.splice_throughput()?;
    page.cost()?;
    finish(page, document)
}

/// Of ratios that are to be above 1: what they say together, and each.
fn judged(ratios: &[(u64, f64)]) -> (&'static str, usize, String) {
    let held = ratios.iter().filter(|(_, ratio)| *ratio > 1.0).count();
    let each: Vec<String> = ratios.iter().map(|(x, ratio)| format!("{ratio:.2} at {}", size(*x))).collect();
    (verdict(held, ratios.len()), held, each.join(", "))
}

fn names() -> [&'static str; 5] {
    Subject::ALL.map(Subject::name)
}

impl FiguresPage<'_> {
    fn middlebox_head(&mut self, context: &PageContext) -> Result<()> {
        let PageContext { machine, date, load, repetitions, line, version, note, failures, .. } = context;
        writeln!(self.text, "# Splicing beside a proxy on a user-level TCP stack\n")?;
        self.paragraph(
            "Figure 2 of KAIST 2018 ([references](../references.md)), beside the same question asked of Hairpin. \
             `make bench-middleboxes` measures it. `lab/results/middleboxes/measurements.csv` has every value of every \
             repetition, and [findings.toml](findings.toml) lists the paper's findings with what counts as reproduced.",
        )?;
        self.paragraph(&format!(
            "Measured {date} on {machine}, {version}, by `{line}`: {repetitions} repetition(s), forwards and backwards in \
             turn. Numbers are medians, with the smallest and the largest in brackets. Load average before the run: {load} \
             (one minute, five minutes). Above some tenths, other programs were using the machine; then only the instructions \
             are to be quoted."
        ))?;
        if !note.is_empty() {
            self.paragraph(&format!("**Note:** {note}"))?;
        }
        self.paragraph(
            "**What is different.** The paper's card is a Netronome Agilio CX with static rules, beside a proxy on mTCP that has \
             eight cores of a Xeon, on links of 40 Gbit/s. Here each has one core, Hairpin's engine is the kernel (BPF), its rules \
             are put in for each response, and client (wrk) and server (nginx) share the other core over virtual cards, with \
             packets as on a wire. Each of 8,000 connections asks again as soon as it has its answer, so a response time is that of \
             a full queue: 8,000 divided by the rate. mTCP is not at hand. Its place has a proxy that was written for this \
             page on smoltcp (`lab/bench/src/user_stack`). It copies bytes between two connections and reads no HTTP, so it does \
             less than Hairpin, nginx and HAProxy; it copies once, batches, and finds its sockets by a table. It has no congestion \
             control and segments of 1,460 bytes, as all have here.",
        )?;
        if !failures.is_empty() {
            self.paragraph(&format!("**Not measured:** {}.", failures.join("; ")))?;
        }
        Ok(())
    }

    /// A table with a column for each subject, unless there is nothing.
    fn by_subject(&mut self, (part, setting): (&'static str, &str), what: &str, digits: usize) -> Result<()> {
        let header: Vec<&str> = std::iter::once("response").chain(names()).collect();
        let rows = self.by_series(part, setting, what, &names(), digits);
        self.table(&header, rows)
    }

    fn response_time(&mut self) -> Result<()> {
        self.section("Response time", RESPONSE_TIME)?;
        let ratios = ahead(self.results, "mean_ms", false);
        if ratios.is_empty() {
            return self.not_measured();
        }
        self.paragraph("*Here,* mean time of a response, in ms:")?;
        self.by_subject((LOAD, WIRE), "mean_ms", 1)?;
        self.paragraph("99th percentile:")?;
        self.by_subject((LOAD, WIRE), "p99_ms", 1)?;
        let title = "mean time of a response, 8,000 connections";
        let figure = FigureSpec { part: LOAD, what: "mean_ms", title, y_title: "ms", ..goodput(WIRE) };
        self.figure("figure-2-time.svg", figure, size)?;
        let (said, held, each) = judged(&ratios);
        let (card, proxy) = PAPER_US;
        self.paragraph(&format!(
            "*Verdict:* {said}. The proxy's mean is the longer one at {held} of {} sizes: times {each}. The paper's factor at 64 B \
             is {:.1} ({proxy:.0} us by {card:.0} us); its other numbers are in its figure only.",
            ratios.len(),
            proxy / card
        ))
    }

    fn splice_throughput(&mut self) -> Result<()> {
        self.section("Throughput", THROUGHPUT)?;
        let ratios = ahead(self.results, "responses_per_s", true);
        if ratios.is_empty() {
            return self.not_measured();
        }
        self.paragraph("*Here,* responses a second:")?;
        self.by_subject((LOAD, WIRE), "responses_per_s", 0)?;
        self.paragraph("Goodput in Gbit/s:")?;
        self.by_subject((LOAD, WIRE), "gbit_per_s", 2)?;
        let title = "goodput by size of response, 8,000 connections";
        self.figure("figure-2-goodput.svg", FigureSpec { part: LOAD, title, ..goodput(WIRE) }, size)?;
        let (said, held, each) = judged(&ratios);
        self.paragraph(&format!(
            "*Verdict:* {said}. Hairpin with every body in the engine answers more requests than the proxy at {held} of {} sizes: \
             times {each}.",
            ratios.len()
        ))
    }

    fn cost(&mut self) -> Result<()> {
        self.section("What a response costs", COST)?;
        let ratios = ahead(self.results, "core_us_per_response", false);
        if !ratios.is_empty() {
            self.paragraph(
                "*Here,* microseconds of the balancer's core for each response, all that the kernel does there included (there is \
                 no counter of energy or of cycles in a virtual machine):",
            )?;
            self.by_subject((LOAD, WIRE), "core_us_per_response", 1)?;
            self.paragraph("Seconds of that core for each GB:")?;
            self.by_subject((LOAD, WIRE), "core_s_per_gbyte", 2)?;
            let title = "time of the balancer's core for a response, 8,000 connections";
            let figure = FigureSpec { part: LOAD, what: "core_us_per_response", title, y_title: "us", ..goodput(WIRE) };
            self.figure("figure-2-cost.svg", figure, size)?;
        }
        self.instructions()?;
        if ratios.is_empty() {
            return self.paragraph("*Verdict:* the time of the core was not measured in this run.");
        }
        let (said, held, each) = judged(&ratios);
        self.paragraph(&format!(
            "*Verdict:* {said}. A response costs the core more through the proxy than through the engine at {held} of {} sizes: \
             times {each}.",
            ratios.len()
        ))
    }

    fn instructions(&mut self) -> Result<()> {
        if self.results.places(INSTRUCTIONS, "").is_empty() {
            return self.paragraph("Instructions were not counted in this run.");
        }
        self.paragraph(&format!(
            "Instructions for each response, by callgrind, whatever else the machine does meanwhile, and thousand millions of them \
             for each GB. Of Hairpin the worker in memory ({}), of the others the process, over 16 connections. The kernel's are not among \
             them: nginx and HAProxy leave TCP to it, the proxy and Hairpin do not. What the engine's BPF programs execute \
             is not counted, so there is no column of offloaded responses.",
            self.counts.worker.origin()
        ))?;
        let processes = self.results.series(INSTRUCTIONS, "");
        let series: Vec<&str> = std::iter::once(SOFTWARE).chain(processes.iter().map(String::as_str)).collect();
        let places = self.results.places(INSTRUCTIONS, "");
        let (heads, counted) = self.counted(&series, &places);
        let header: Vec<&str> = std::iter::once("response").chain(heads.iter().map(String::as_str)).collect();
        let row = |(x, counted): (&u64, Vec<String>)| std::iter::once(size(*x)).chain(counted).collect();
        let rows: Vec<Vec<String>> = places.iter().zip(counted).map(row).collect();
        self.table(&header, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::results::{ResultPlace, judge_middleboxes};
    use super::*;

    /// Values as they would be if all of the paper's findings held here, but for those at `wrong` sizes.
    fn results(wrong: &[u64]) -> FigureResults {
        let mut results = FigureResults::default();
        for x in [64, 1024, 65_536] {
            for (subject, cost) in [(Subject::Offloaded, 1.0), (Subject::UserStack, 2.0)] {
                let cost = if wrong.contains(&x) { 3.0 - cost } else { cost };
                let place = ResultPlace { part: LOAD, setting: WIRE, series: subject.name(), x };
                let values = [
                    ("mean_ms", cost),
                    ("p99_ms", cost),
                    ("responses_per_s", 1e4 / cost),
                    ("gbit_per_s", 1.0 / cost),
                    ("core_us_per_response", cost),
                    ("core_s_per_gbyte", cost),
                ];
                results.add(place, 0, &values);
            }
        }
        results
    }

    /// The verdicts of the page, in its order.
    fn verdicts(results: &FigureResults) -> Vec<String> {
        let scratch = std::env::temp_dir().join(format!("hb-middleboxes-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        write(results, &PageContext::default(), &scratch, None).unwrap();
        let page = std::fs::read_to_string(scratch.join("page.md")).unwrap();
        std::fs::remove_dir_all(&scratch).unwrap();
        let verdicts = page.lines().filter_map(|line| line.strip_prefix("*Verdict:* ")?.split_once('.'));
        verdicts.map(|(verdict, _)| verdict.to_owned()).collect()
    }

    #[test]
    fn planted_wrong_result_turns_its_verdict() {
        assert_eq!(verdicts(&results(&[])), ["agrees"; 3]);
        assert_eq!(verdicts(&results(&[64])), ["in part"; 3]);
        assert_eq!(verdicts(&results(&[64, 1024, 65_536])), ["**does not agree**"; 3]);
        assert!(verdicts(&FigureResults::default()).iter().all(|verdict| !verdict.contains("agree")));
    }

    #[test]
    fn middlebox_page_has_the_findings_that_are_judged() {
        let judged: Vec<&str> = judge_middleboxes(&FigureResults::default()).iter().map(|finding| finding.id).collect();
        assert_eq!(judged, [RESPONSE_TIME, THROUGHPUT, COST]);
    }
}
