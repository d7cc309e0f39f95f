//! The sections on requests: figures 8, 9 and 12.

use super::super::load::{LATENCY, MIX, PACED, THROUGHPUT, Variant, distribution};
use super::super::results::{NGINX, ResultPlace, SOFTWARE, beside_nginx, shown};
use super::super::{draw, paper};
use super::{FigureSpec, FiguresPage, goodput, size, verdict};
use anyhow::Result;

/// Series whose instructions stand beside goodput.
const COUNTED: [&str; 2] = [SOFTWARE, NGINX];

impl FiguresPage<'_> {
    pub(super) fn throughput(&mut self) -> Result<()> {
        self.section("Figure 8: throughput by size of response", paper::GOODPUT)?;
        let variants = Variant::ALL.map(Variant::name);
        let header: Vec<&str> = std::iter::once("response").chain(variants).collect();
        for (setting, about) in [("gso", "cards that take super-packets"), ("wire", "packets as on a wire")] {
            if self.results.places(THROUGHPUT, setting).is_empty() {
                continue;
            }
            self.paragraph(&format!("*Here,* {about} (`{setting}`), goodput in Gbit/s:"))?;
            let mut rows = self.by_series(THROUGHPUT, setting, "gbit_per_s", &variants, 2);
            let (heads, counted) = self.counted(&COUNTED, &self.results.places(THROUGHPUT, setting));
            rows.iter_mut().zip(counted).for_each(|(row, counted)| row.extend(counted));
            self.table(&header.iter().copied().chain(heads.iter().map(String::as_str)).collect::<Vec<_>>(), rows)?;
            let title = format!("goodput by size of response, {setting}");
            let figure = FigureSpec { title: &title, ..goodput(setting) };
            self.figure(&format!("figure-8-{setting}.svg"), figure, size)?;
        }
        let ratios = beside_nginx(self.results, THROUGHPUT, "gbit_per_s");
        if ratios.is_empty() {
            return self.not_measured();
        }
        self.about_counts()?;
        let held = ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).count();
        let busy = self.results.places(THROUGHPUT, "gso").into_iter().filter_map(|x| {
            Some(format!(
                "{:.0} at {}",
                100.0 * self.median(THROUGHPUT, "gso", Variant::Auto, x, "balancer_busy")?,
                size(x)
            ))
        });
        let busy = busy.collect::<Vec<_>>().join(", ");
        self.paragraph(&format!(
            "*Verdict:* {}. Hairpin has at least nginx's goodput at {held} of {} sizes (`gso`): times {}. The factor is not \
             comparable. nginx's limit here is a core that also copies; ours is mostly the core that client and server share, \
             since the balancer's core is busy for {busy} percent of the time.",
            verdict(held, ratios.len()),
            ratios.len(),
            listed(&ratios)
        ))
    }

    /// What instructions are of, and which are not counted.
    fn about_counts(&mut self) -> Result<()> {
        self.paragraph(&format!(
            "*Instructions* stand for energy, of which a virtual machine has no counter. They are callgrind's and not of this run: of \
             Hairpin's worker in memory for a request over a kept connection (`make bench-instructions`; {}), of nginx the whole \
             process (`make bench-middleboxes`), without what the kernel does for either. nginx leaves TCP to the kernel, the worker \
             does not. `-` is not counted: of the worker sizes for which `lab/instructions` has no case; of nginx sizes that [KAIST \
             2018](README.md#kaist-2018)'s page does not have, or all, where `lab/results/middleboxes` is not there. What the \
             engine's BPF programs execute is not counted either, so there is no column of offloaded responses.",
            self.counts.worker.origin()
        ))
    }

    pub(super) fn latency(&mut self) -> Result<()> {
        self.section("Figure 9: latency", paper::LATENCY)?;
        let variants = PACED.map(Variant::name);
        if self.results.places(LATENCY, "gso").is_empty() {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* requests at half of the rate that nginx reached in this run, the same rate for all; times from when a \
             request was due, in ms, mean:",
        )?;
        let header: Vec<&str> = std::iter::once("response").chain(variants).collect();
        let rows = self.by_series(LATENCY, "gso", "mean_ms", &variants, 2);
        self.table(&header, rows)?;
        self.paragraph("99th percentile:")?;
        let rows = self.by_series(LATENCY, "gso", "p99_ms", &variants, 2);
        self.table(&header, rows)?;
        let base = FigureSpec {
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
            let (x_title, y_title) = ("ms", "percent of the requests");
            let figure = FigureSpec { part, what: "ms", title: &title, x_title, y_title, logarithmic: false, ..base };
            self.forget(file);
            draw::distribution(self.results, &figure, &self.directory.join(file))?;
            self.show(file, &title)?;
        }
        let [means, tails] = ["mean_ms", "p99_ms"].map(|what| beside_nginx(self.results, LATENCY, what));
        let held = |ratios: &[(u64, f64)]| ratios.iter().filter(|(_, ratio)| *ratio <= 1.0).count();
        self.paragraph(&format!(
            "*Verdict:* {}. Hairpin's mean is at most nginx's at {} of {} sizes (times {}), its 99th percentile at {} (times {}). \
             The client shares its core with the server, so what is above \"no balancer\" is what a balancer adds.",
            verdict(held(&means) + held(&tails), means.len() + tails.len()),
            held(&means),
            means.len(),
            listed(&means),
            held(&tails),
            listed(&tails)
        ))
    }

    pub(super) fn mix(&mut self) -> Result<()> {
        self.section("Figure 12: real-world sizes", paper::MIX)?;
        let variants = Variant::ALL.map(Variant::name);
        let of = |way: &str, what: &str| {
            self.results.samples(ResultPlace { part: MIX, setting: "gso", series: way, x: 0 }, what)
        };
        if variants.iter().all(|way| of(way, "gbit_per_s").is_none()) {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* the web-search mix (DCTCP; mean 1.7 MB; `lab/flow-sizes`), not CONGA's enterprise mix, which \
             [modelled cards](laconic-cards.md) have.",
        )?;
        let rows: Vec<Vec<String>> = variants
            .iter()
            .map(|way| {
                let percent = |what| shown(of(way, what).map(|samples| samples.divided_by(0.01)).as_ref(), 0);
                vec![
                    (*way).to_owned(),
                    shown(of(way, "gbit_per_s").as_ref(), 2),
                    percent("balancer_busy"),
                    percent("offloaded_byte_share"),
                ]
            })
            .collect();
        self.table(&["", "Gbit/s", "balancer's core busy, %", "bytes past the worker, %"], rows)?;
        let ratios = beside_nginx(self.results, MIX, "gbit_per_s");
        let held = ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).count();
        let ratio = ratios.first().map_or(f64::NAN, |(_, ratio)| *ratio);
        self.paragraph(&format!(
            "*Verdict:* {}. Hairpin has {ratio:.2} times nginx's goodput. The paper's factor is against nginx on the same weak \
             core, where a body costs nginx what it costs a core without an engine.",
            verdict(held, ratios.len())
        ))
    }
}

/// Ratios by size, for people.
fn listed(ratios: &[(u64, f64)]) -> String {
    let said = ratios.iter().map(|(x, ratio)| format!("{ratio:.1} at {}", size(*x)));
    said.collect::<Vec<_>>().join(", ")
}
