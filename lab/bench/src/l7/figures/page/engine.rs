//! The sections on the flow engine and on what the balancer's core does: figure 10 and tables 2 to 4.

use super::super::crossing::{self, Crossing};
use super::super::load::{THRESHOLD, THROUGHPUT, Variant};
use super::super::results::{
    HAIRPIN, ResultPlace, cheaper_when_batched, cheaper_when_offloaded, is_cheaper_in_larger_responses, judge_laconic,
    shown,
};
use super::super::{paper, profile, rules};
use super::{FigureSpec, FiguresPage, goodput, size, verdict};
use crate::suite::samples::RepeatedValues;
use anyhow::Result;

impl FiguresPage<'_> {
    pub(super) fn offloading(&mut self) -> Result<()> {
        self.section("Figure 10: what offloading is good for, and from which size on", paper::OFFLOADING)?;
        let rule = paper::finding(paper::THRESHOLD)?;
        self.paragraph(&format!("*Paper* ({}): {}.", rule.section, rule.statement))?;
        if ["gso", "wire"].iter().all(|setting| self.results.places(THROUGHPUT, setting).is_empty()) {
            return self.not_measured();
        }
        let variants = [Variant::Software, Variant::Offloaded, Variant::Auto].map(Variant::name);
        for setting in ["gso", "wire"] {
            if self.results.places(THROUGHPUT, setting).is_empty() {
                continue;
            }
            let gains = cheaper_when_offloaded(self.results, setting);
            self.paragraph(&format!(
                "*Here* (`{setting}`): offloading every response costs the balancer's core less, softirq included, at {} of {} \
                 sizes.",
                gains.iter().filter(|gain| **gain).count(),
                gains.len()
            ))?;
            let title = format!("what a response costs the balancer's core, {setting}");
            let figure = FigureSpec {
                what: "core_us_per_response",
                title: &title,
                y_title: "us",
                logarithmic: true,
                only: &variants,
                ..goodput(setting)
            };
            self.figure(&format!("figure-10-{setting}.svg"), figure, size)?;
            let file = format!("figure-10-share-{setting}.svg");
            let title = format!("share of the bytes past the worker, {setting}");
            let share = FigureSpec {
                what: "offloaded_byte_share",
                divisor: 0.01,
                title: &title,
                y_title: "percent",
                logarithmic: false,
                ..figure
            };
            self.figure(&file, share, size)?;
            self.threshold(setting)?;
        }
        let all: Vec<bool> =
            ["gso", "wire"].iter().flat_map(|setting| cheaper_when_offloaded(self.results, setting)).collect();
        let held = all.iter().filter(|gain| **gain).count();
        self.paragraph(&format!(
            "*Verdict:* {}: offloading pays at {held} of {} sizes. The size from which it pays is not comparable with the \
             paper's 1 MB: updates of the kernel's rules cost less (table 2), and our T is that of a frame of up to 64 KB where \
             cards coalesce. Latency with and without offloading is in figure 9.",
            verdict(held, all.len()),
            all.len()
        ))?;
        self.threshold_verdict()
    }

    /// The verdict on the rule by which thresholds are computed, if one was compared.
    fn threshold_verdict(&mut self) -> Result<()> {
        let judged = judge_laconic(self.results).into_iter().find(|judged| judged.id == paper::THRESHOLD);
        match judged {
            Some(judged) if judged.held.is_some_and(|(_, all)| all > 0) => self.paragraph(&format!(
                "*Verdict* on the rule: {}: {}; up to twice as large or as small counts as near.",
                judged.verdict(),
                judged.why
            )),
            _ => Ok(()),
        }
    }

    fn threshold(&mut self, setting: &str) -> Result<()> {
        let of = |what| self.results.samples(ResultPlace { part: THRESHOLD, setting, series: HAIRPIN, x: 0 }, what);
        let (Some(bytes), Some(pair)) = (of("offload_bytes_min"), of("rule_pair_us")) else { return Ok(()) };
        let (frame, length) = (of("body_frame_us"), of("body_frame_bytes"));
        let kb = |samples: Option<RepeatedValues>| shown(samples.map(|s| s.divided_by(1024.0)).as_ref(), 0);
        let measured = match crossing::of(self.results, setting) {
            None => "not compared".to_owned(),
            Some(Crossing::Everywhere) => "offloading was the cheaper one at every size measured".to_owned(),
            Some(Crossing::Nowhere) => "offloading was the cheaper one at no size measured".to_owned(),
            Some(Crossing::At { bytes, low, high }) => {
                format!(
                    "offloading became the cheaper one at {:.0} KB ({:.0}-{:.0})",
                    bytes / 1024.0,
                    low / 1024.0,
                    high / 1024.0
                )
            }
        };
        self.paragraph(&format!(
            "**Threshold** (`{setting}`), **computed:** P = {} us, T = {} us for a frame of {} KB on average, so bodies from {} KB \
             on (never below 16 KB or above 4 MB). **Measured,** by what a response costs the balancer's core: {measured}. The \
             computed one counts the worker's time only, the measured one all of the core's.",
            shown(Some(&pair), 1),
            shown(frame.as_ref(), 1),
            kb(length),
            kb(Some(bytes))
        ))
    }

    pub(super) fn rules(&mut self) -> Result<()> {
        self.section("Table 2: time to update flow rules, by batch", paper::UPDATES)?;
        if self.results.places(rules::PART, "").is_empty() {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* the kernel engine of the workers (maps, and the programs `rules_put` and `rules_take` of `crates/linux`), with \
             rules as the splice asks for them (sequence numbers translated, guarded) and so many other rules in force. \
             Microseconds of the processor's time for each rule, of 8192 in a row:",
        )?;
        let mut header = vec!["batch".to_owned(), "paper: insert".to_owned(), "delete".to_owned()];
        for (_, name) in rules::PRESENT {
            header.extend([format!("{name}: insert"), "delete".to_owned()]);
        }
        let rows: Vec<Vec<String>> = rules::BATCHES
            .iter()
            .map(|&batch| {
                let paper = paper::RULES.iter().find(|(size, ..)| *size == batch as u64);
                let mut row = vec![batch.to_string()];
                row.extend(paper.map_or(["".to_owned(), String::new()], |(_, insert, delete)| {
                    [format!("{insert:.2}"), format!("{delete:.2}")]
                }));
                for (_, series) in rules::PRESENT {
                    let place = ResultPlace { part: rules::PART, setting: "", series, x: batch as u64 };
                    row.extend(
                        [rules::INSERT, rules::DELETE].map(|what| shown(self.results.samples(place, what).as_ref(), 2)),
                    );
                }
                row
            })
            .collect();
        self.table(&header.iter().map(String::as_str).collect::<Vec<_>>(), rows)?;
        for (what, name) in [(rules::INSERT, "insert"), (rules::DELETE, "delete")] {
            let title = format!("time to {name} a rule, by batch");
            let figure = FigureSpec {
                part: rules::PART,
                what,
                title: &title,
                x_title: "rules of a batch",
                y_title: "us a rule",
                logarithmic: false,
                ..goodput("")
            };
            self.figure(&format!("table-2-{name}.svg"), figure, |batch| batch.to_string())?;
        }
        let falls = cheaper_when_batched(self.results);
        self.paragraph(&format!(
            "*Verdict:* {}: a rule costs less in a large batch than alone. Both engines are asked without waiting for each rule; \
             ours has answered when the call returns. A rule of ours is then still checked against packets on their way \
             (hand-over), until the last of them has left the worker.",
            verdict(falls.iter().filter(|falls| **falls).count(), falls.len())
        ))
    }

    pub(super) fn packets(&mut self) -> Result<()> {
        self.section("Table 3: packets a second by size of response", paper::PACKET_RATES)?;
        let places: Vec<u64> = self.results.places(THROUGHPUT, "gso");
        if places.is_empty() {
            return self.not_measured();
        }
        let of = |setting: &str, x, what| {
            let place = ResultPlace { part: THROUGHPUT, setting, series: Variant::Software.name(), x };
            shown(self.results.samples(place, what).map(|samples| samples.divided_by(1e6)).as_ref(), 2)
        };
        let rows: Vec<Vec<String>> = places
            .into_iter()
            .map(|x| {
                let paper = paper::PACKETS.iter().find(|(bytes, _)| *bytes == x);
                let paper = paper.map_or_else(String::new, |(_, rate)| format!("{rate:.2}"));
                let mut row = vec![size(x), paper];
                for setting in ["gso", "wire"] {
                    row.extend(["packets_per_s", "packets_per_busy_s"].map(|what| of(setting, x, what)));
                }
                row.insert(3, of("gso", x, "frames_per_s"));
                row
            })
            .collect();
        self.paragraph(
            "*Here,* Hairpin with software only, million packets a second, both directions. A super-packet counts as the packets \
             it stands for; frames are what the balancer's cards received. *At full load* is the rate divided by the share of \
             time in which the balancer's core was busy: what that core would do if clients and servers could keep up and the \
             cost of a packet stayed the same.",
        )?;
        let header = ["response", "paper", "gso", "gso, frames", "gso, at full load", "wire", "wire, at full load"];
        self.table(&header, rows)?;
        if !self.results.places(THROUGHPUT, "wire").is_empty() {
            let figure = FigureSpec {
                what: "frames_per_s",
                divisor: 1e6,
                title: "packets a second by size of response, wire",
                y_title: "million packets a second",
                logarithmic: false,
                ..goodput("wire")
            };
            self.figure("table-3-wire.svg", figure, size)?;
        }
        let figure = FigureSpec {
            what: "packets_per_s",
            divisor: 1e6,
            title: "packets a second by size of response, software only beside offloaded",
            y_title: "million packets a second",
            logarithmic: false,
            only: &[Variant::Auto.name(), Variant::Software.name(), Variant::Offloaded.name()],
            ..goodput("gso")
        };
        self.figure("table-3-gso.svg", figure, size)?;
        let rises = is_cheaper_in_larger_responses(self.results) == Some(true);
        self.paragraph(&format!(
            "*Verdict:* {}: packets get cheaper as responses grow, because heads are rarer. In `wire` a packet is one packet, as in \
             the paper. Each crosses the kernel twice there (card to TAP, TAP to card), where DPDK hands the worker the card's \
             own buffers.",
            verdict(usize::from(rises), 1)
        ))
    }

    pub(super) fn utilization(&mut self) -> Result<()> {
        self.section("Table 4: where the time goes", paper::CORE)?;
        self.table(
            &["operation", "percent"],
            paper::UTILIZATION.map(|(name, share)| vec![name.to_owned(), format!("{share:.2}")]),
        )?;
        let measured = profile::SCENES.iter().any(|scene| !self.results.places(profile::PART, scene.name).is_empty());
        if !measured {
            return self.not_measured();
        }
        self.paragraph(
            "*Here,* percent of the work of the balancer's core (idle time left out), sampled by `perf record` at the processor's \
             clock and sorted by the functions on the stack:",
        )?;
        let header: Vec<&str> =
            ["stage", "in the paper"].into_iter().chain(profile::SCENES.iter().map(|scene| scene.name)).collect();
        let rows: Vec<Vec<String>> = profile::Stages::ALL
            .into_iter()
            .map(|stage| {
                let of = |scene: &profile::ProfileScene| {
                    let x = self.results.places(profile::PART, scene.name).first().copied().unwrap_or_default();
                    let place = ResultPlace { part: profile::PART, setting: scene.name, series: stage.name(), x };
                    shown(self.results.samples(place, profile::SHARE).as_ref(), 1)
                };
                [stage.name().to_owned(), stage.of_the_paper().to_owned()]
                    .into_iter()
                    .chain(profile::SCENES.iter().map(of))
                    .collect()
            })
            .collect();
        self.table(&header, rows)?;
        self.paragraph(
            "*Verdict:* not comparable as a whole. The paper's core has the card's own buffers and no kernel; ours has the kernel \
             between card and worker, twice, and wakes the other core. While interrupts are off, the clock is late, so such \
             stretches show at their ends.",
        )
    }
}
