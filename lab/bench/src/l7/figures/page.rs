//! The page: what Laconic found, what was found here, and which of these findings can be compared.

mod engine;

use super::draw::{self, Figure};
use super::hashtable;
use super::load::{CONNECTIONS, LATENCY, MIX, PACED, THROUGHPUT, Variant, distribution};
use super::results::{Place, Results, shown};
use anyhow::{Context as _, Result};
use hairpin_e2e::command;
use hairpin_e2e::peer::hairpin_program;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Where and when it was measured.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) machine: String,
    date: String,
    load: String,
    repetitions: usize,
    line: String,
}

impl Context {
    /// Reads it, before anything is measured.
    pub(super) fn new(repetitions: usize) -> Result<Context> {
        let load = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg")?;
        let date = command::output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?;
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Ok(Context {
            machine: crate::tables::machine_name(),
            date: date.trim().to_owned(),
            load: load.split(' ').take(2).collect::<Vec<_>>().join(", "),
            repetitions,
            line: format!("hairpin-bench {}", arguments.join(" ")),
        })
    }
}

/// Draws the figures and writes the page, to `document` as well if there is one.
pub(super) fn write(results: &Results, context: &Context, directory: &Path, document: Option<&Path>) -> Result<()> {
    let mut page = Page { results, text: String::new(), directory };
    page.head(context)?;
    page.throughput()?;
    page.latency()?;
    page.offloading()?;
    page.rules()?;
    page.packets()?;
    page.utilization()?;
    page.hashtable()?;
    page.mix()?;
    let path = directory.join("page.md");
    std::fs::write(&path, &page.text).with_context(|| format!("could not write {}", path.display()))?;
    if let Some(document) = document {
        // A document has no figures beside it.
        let lines =
            page.text.lines().map(|line| match line.strip_prefix("![").and_then(|line| line.split_once("](")) {
                Some((title, file)) => {
                    format!("(Figure: {title}: `{}`)\n", directory.join(file.trim_end_matches(')')).display())
                }
                None => format!("{line}\n"),
            });
        let text: String = lines.collect();
        std::fs::write(document, text).with_context(|| format!("could not write {}", document.display()))?;
    }
    Ok(())
}

struct Page<'a> {
    results: &'a Results,
    text: String,
    directory: &'a Path,
}

/// A size as people write it.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KB", bytes >> 10),
        _ => format!("{} MB", bytes >> 20),
    }
}

impl Page<'_> {
    fn head(&mut self, context: &Context) -> Result<()> {
        let Context { machine, date, load, repetitions, line } = context;
        writeln!(self.text, "# The evaluation of Laconic, here\n")?;
        self.paragraph(
            "Section 4 of \"Laconic: Streamlined Load Balancers for SmartNICs\", figures 8 to 12 and tables 2 to 4, beside \
             the same questions asked of Hairpin. Written by `make bench-papers002`; every value of every repetition is in \
             `measurements.csv` beside the figures.",
        )?;
        let program = hairpin_program()?;
        let version = command::output(Command::new(&program).arg("--version")).unwrap_or_default();
        self.paragraph(&format!(
            "`{line}`, {date}, {machine}, {}; {repetitions} repetition(s), forwards and backwards in turn; numbers are \
             medians, in brackets the smallest and the largest. Load average before the run (5 min: second): {load}; above \
             some tenths, others were using the machine: then only table 2, by the thread's own time, is to be quoted.",
            version.trim()
        ))?;
        self.paragraph(&format!(
            "**What is different, everywhere.** The paper's balancer is a BlueField-2 or LiquidIO 3 beside five servers on \
             links of 100 Gbit/s, and its flow processing engine is hardware; ours is one core of this machine, whose engine \
             is the kernel (BPF programs at the cards), and client and server share the other core, over virtual cards. So \
             the paper's engine costs its cores nothing per packet, ours something; the paper's links end at 100 Gbit/s, ours \
             where client and server are out of breath (\"no balancer\" is that limit). There is one balancer core, so nothing \
             here answers figures 8 (b), 8 (d), 9 (d) and the axes of cores in 10. Clients: wrk, {CONNECTIONS} connections that stay; \
             server: nginx with static files, as in the paper. nginx as a balancer runs on the balancer's core. Congestion \
             control is CUBIC (Reno where that is not allowed), set in the namespaces."
        ))?;
        if !self.results.failures.is_empty() {
            self.paragraph(&format!("**Not measured:** {}.", self.results.failures.join("; ")))?;
        }
        Ok(())
    }

    fn paragraph(&mut self, text: &str) -> Result<()> {
        // As wide as the other documents.
        let mut width = 0;
        for word in text.split_whitespace() {
            if width > 0 && width + 1 + word.len() > 120 {
                self.text.push('\n');
                width = 0;
            } else if width > 0 {
                self.text.push(' ');
                width += 1;
            }
            self.text.push_str(word);
            width += word.len();
        }
        self.text.push_str("\n\n");
        Ok(())
    }

    fn section(&mut self, title: &str, paper: &str) -> Result<()> {
        writeln!(self.text, "## {title}\n")?;
        self.paragraph(&format!("*Paper:* {paper}"))
    }

    fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        writeln!(self.text, "| {} |\n|{}", header.join(" | "), "---|".repeat(header.len()))?;
        for row in rows {
            writeln!(self.text, "| {} |", row.join(" | "))?;
        }
        self.text.push('\n');
        Ok(())
    }

    fn not_measured(&mut self) -> Result<()> {
        self.paragraph("*Here:* not measured in this run.")
    }

    /// Draws a figure, if there is anything to draw, and shows it.
    fn figure(&mut self, file: &str, figure: Figure<'_>, label: fn(u64) -> String) -> Result<()> {
        let path = self.directory.join(file);
        self.forget(file);
        draw::by_place(self.results, &figure, label, &path)?;
        self.show(file, figure.title)
    }

    /// What an earlier run has drawn does not stand beside this one's values.
    fn forget(&self, file: &str) {
        let _ = std::fs::remove_file(self.directory.join(file));
    }

    fn show(&mut self, file: &str, title: &str) -> Result<()> {
        if self.directory.join(file).exists() {
            writeln!(self.text, "![{title}]({file})\n")?;
        }
        Ok(())
    }

    /// Rows of a table: a place each, and a series each in the columns.
    fn by_series(
        &self,
        part: &'static str,
        setting: &str,
        what: &str,
        series: &[&str],
        digits: usize,
    ) -> Vec<Vec<String>> {
        let places = self.results.places(part, setting).into_iter();
        let row = |x: u64| {
            let of =
                |series: &&str| shown(self.results.samples(Place { part, setting, series, x }, what).as_ref(), digits);
            std::iter::once(size(x)).chain(series.iter().map(of)).collect()
        };
        places.map(row).collect()
    }

    fn median(&self, part: &'static str, setting: &str, variant: Variant, x: u64, what: &str) -> Option<f64> {
        self.results.median(Place { part, setting, series: variant.name(), x }, what)
    }

    fn throughput(&mut self) -> Result<()> {
        self.section(
            "Figure 8: throughput by size of response",
            "one ARM core of a BlueField-2 outperforms nginx on one x86 core, 8.7 times at 16 MB, with bodies from 1 MB on \
             offloaded; LiquidIO 3, without an engine, 4.5 times (section 4.2).",
        )?;
        let variants = Variant::ALL.map(Variant::name);
        let header = |unit| std::iter::once(unit).chain(variants).collect::<Vec<&str>>();
        for (setting, about) in [("gso", "cards that take super-packets"), ("wire", "packets as on a wire")] {
            if self.results.places(THROUGHPUT, setting).is_empty() {
                continue;
            }
            self.paragraph(&format!("*Here,* {about} (`{setting}`), goodput in Gbit/s:"))?;
            let rows = self.by_series(THROUGHPUT, setting, "gbit_per_s", &variants, 2);
            self.table(&header("response"), rows)?;
            let title = format!("goodput by size of response, {setting}");
            let figure = Figure { title: &title, ..goodput(setting) };
            self.figure(&format!("figure-8-{setting}.svg"), figure, size)?;
            self.paragraph("How busy the balancer's core was meanwhile, in percent:")?;
            let rows = self.percent(setting, "balancer_busy", &variants);
            self.table(&header("response"), rows)?;
        }
        let ratio = |variant, x| {
            let of = |variant| self.median(THROUGHPUT, "gso", variant, x, "gbit_per_s");
            Some(of(variant)? / of(Variant::Nginx)?)
        };
        let ratios: Vec<String> = self
            .results
            .places(THROUGHPUT, "gso")
            .into_iter()
            .filter_map(|x| Some(format!("{:.1} at {}", ratio(Variant::Auto, x)?, size(x))))
            .collect();
        if ratios.is_empty() {
            return self.not_measured();
        }
        self.paragraph(&format!(
            "*Comparable:* the order and how it grows with the size; Hairpin is nginx times {} (`gso`). The factor itself is \
             not comparable: here nginx's own limit is a core that also copies, and ours mostly the other core, which client and server \
             share: where the balancer's core is far from 100 % busy, the balancer is not what limits.",
            ratios.join(", ")
        ))
    }

    fn percent(&self, setting: &str, what: &str, series: &[&str]) -> Vec<Vec<String>> {
        let row = |x: u64| {
            let of = |series: &&str| {
                let samples = self.results.samples(Place { part: THROUGHPUT, setting, series, x }, what);
                shown(samples.map(|samples| samples.divided_by(0.01)).as_ref(), 0)
            };
            std::iter::once(size(x)).chain(series.iter().map(of)).collect()
        };
        self.results.places(THROUGHPUT, setting).into_iter().map(row).collect()
    }

    fn latency(&mut self) -> Result<()> {
        self.section(
            "Figure 9: latency",
            "at half of the peak throughput (wrk2), one core: comparable to nginx on x86, lower for large responses; the \
             distributions at 1 KB and 4 MB lie left of nginx's (section 4.3).",
        )?;
        let variants = PACED.map(Variant::name);
        if self.results.places(LATENCY, "gso").is_empty() {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* requests at half of the rate nginx reached in this run, the same rate for all; times from when a request \
             was due, in ms, mean:",
        )?;
        let header: Vec<&str> = std::iter::once("response").chain(variants).collect();
        let rows = self.by_series(LATENCY, "gso", "mean_ms", &variants, 2);
        self.table(&header, rows)?;
        self.paragraph("99th percentile:")?;
        let rows = self.by_series(LATENCY, "gso", "p99_ms", &variants, 2);
        self.table(&header, rows)?;
        let base = Figure {
            part: LATENCY,
            what: "mean_ms",
            title: "mean latency at half of nginx's rate",
            y_title: "ms",
            logarithmic: true,
            ..goodput("gso")
        };
        self.figure("figure-9a.svg", base, size)?;
        for (page, file) in [("1k", "figure-9b.svg"), ("4m", "figure-9c.svg")] {
            let Some(part) = distribution(page) else { continue };
            let title = format!("distribution of latencies, {page}");
            let figure = Figure {
                part,
                what: "ms",
                title: &title,
                x_title: "ms",
                y_title: "percent of the requests",
                logarithmic: false,
                ..base
            };
            self.forget(file);
            draw::distribution(self.results, &figure, &self.directory.join(file))?;
            self.show(file, &title)?;
        }
        self.paragraph(
            "*Comparable:* who is ahead of whom at one rate. The client shares its core with the server, so what is beside \
             \"no balancer\" is what a balancer adds.",
        )
    }

    fn hashtable(&mut self) -> Result<()> {
        self.section(
            "Figure 11: concurrent hash table",
            "Laconic's table is ahead of DPDK's in insertions and look-ups and grows with cores (section 4.4).",
        )?;
        if hashtable::CASES.iter().all(|(_, case)| self.results.places(hashtable::PART, case).is_empty()) {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* million operations a second, 2^20 slots 80 % full, in bursts of 32 (docs/evidence/tables.md has the rest):",
        )?;
        for (file, case) in hashtable::CASES {
            let threads = self.results.places(hashtable::PART, case);
            let header: Vec<String> = std::iter::once(case.to_owned())
                .chain(threads.iter().map(|threads| format!("{threads} thread(s)")))
                .collect();
            let rows: Vec<Vec<String>> = self
                .results
                .series(hashtable::PART, case)
                .into_iter()
                .map(|series| {
                    let of = |&x: &u64| {
                        let place = Place { part: hashtable::PART, setting: case, series: &series, x };
                        let samples = self.results.samples(place, "per_s");
                        shown(samples.map(|samples| samples.divided_by(1e6)).as_ref(), 1)
                    };
                    std::iter::once(series.clone()).chain(threads.iter().map(of)).collect()
                })
                .collect();
            self.table(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows)?;
            let title = format!("hash table, {case}");
            let figure = Figure {
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
        self.paragraph(
            "*Comparable:* the whole figure, for two threads: these are tables in memory, without packets. Hairpin's workers \
             share no table (`per-core/cuckoo++`); `concurrent` is the one that threads share, as Laconic's is.",
        )
    }

    fn mix(&mut self) -> Result<()> {
        self.section(
            "Figure 12: real-world sizes",
            "CONGA's enterprise mix: 13.3 times nginx on the BlueField-2's own ARM core, 75 Gbit/s with few cores; on \
             LiquidIO 3 two cores reach 50 Gbit/s (section 4.5).",
        )?;
        let variants = Variant::ALL.map(Variant::name);
        let of = |variant: &str, what: &str| {
            self.results.samples(Place { part: MIX, setting: "gso", series: variant, x: 0 }, what)
        };
        if variants.iter().all(|variant| of(variant, "gbit_per_s").is_none()) {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* the web-search mix (DCTCP; mean 1.7 MB; `lab/flow-sizes`): the enterprise mix is not at hand.",
        )?;
        let rows: Vec<Vec<String>> = variants
            .iter()
            .map(|variant| {
                let percent = |what| shown(of(variant, what).map(|samples| samples.divided_by(0.01)).as_ref(), 0);
                vec![
                    (*variant).to_owned(),
                    shown(of(variant, "gbit_per_s").as_ref(), 2),
                    percent("balancer_busy"),
                    percent("offloaded_byte_share"),
                ]
            })
            .collect();
        self.table(&["", "Gbit/s", "balancer's core busy, %", "bytes past the worker, %"], rows)?;
        self.paragraph(
            "*Comparable:* the order. Not the factor: the paper's 13.3 is against nginx on the same weak core, where a body \
             costs nginx what it costs a core without an engine.",
        )
    }
}

/// What most figures have in common.
fn goodput(setting: &str) -> Figure<'_> {
    Figure {
        part: THROUGHPUT,
        setting,
        what: "gbit_per_s",
        divisor: 1.0,
        title: "",
        x_title: "size of response",
        y_title: "Gbit/s",
        logarithmic: true,
        only: &[],
    }
}
