//! Ageing in the whole balancer over time, as `hairpin-bench ageing --whole` has measured it (KTH 2020, figure 6.1).

use super::sections::{Sections, read};
use crate::figure::chart::{Curve, Curves};
use crate::statistics::Summary;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Windows, in the directory of results.
pub const AGEING: &str = "classification-ageing.csv";
/// The mechanism that looks through everything at once, as the paper's timer wheel in effect does.
const AT_ONCE: &str = "stop-the-world";
/// A window below this part of the median is a dip.
const DIP: f64 = 0.9;
/// Seconds of traffic in a window.
const WINDOW: f64 = 0.1;

/// A window of a mechanism.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgeingRow {
    /// The mechanism.
    pub mechanism: String,
    /// From 0; each has 100 ms of traffic.
    pub window: u32,
    /// Packets in a second of processor time, in millions.
    pub mpps: f64,
    /// Percent of the processor time spent on ageing: finding what is over and taking it away.
    pub ageing: f64,
    /// The longest that packets had to wait for ageing, in microseconds.
    pub longest: f64,
    /// Connections at its end.
    pub connections: usize,
    /// Where.
    pub machine: String,
    /// When.
    pub date: String,
}

/// A mechanism's windows.
struct Course<'a> {
    name: &'a str,
    windows: Vec<&'a AgeingRow>,
}

impl Course<'_> {
    /// The least part of the median throughput that a window would have had if nothing but ageing took time.
    fn worst_by_time(&self) -> Option<f64> {
        let left: Vec<f64> = self.windows.iter().map(|row| 100.0 - row.ageing).collect();
        let summary = Summary::of(&left)?;
        Some(summary.least / summary.median)
    }
}

/// The section of the page.
///
/// # Errors
/// Results cannot be read, or the figure cannot be drawn.
pub(super) fn section(all: &mut Sections, results: &Path) -> Result<()> {
    let rows: Vec<AgeingRow> = read(&results.join(AGEING))?;
    write(all, &rows)
}

fn write(all: &mut Sections, rows: &[AgeingRow]) -> Result<()> {
    let Some(first) = rows.first() else { return Ok(()) };
    let mut courses: Vec<Course<'_>> = Vec::new();
    for row in rows {
        match courses.iter_mut().find(|course| course.name == row.mechanism) {
            Some(course) => course.windows.push(row),
            None => courses.push(Course { name: &row.mechanism, windows: vec![row] }),
        }
    }
    all.text.push_str("## Ageing in the whole balancer, over time\n\n");
    all.text.push_str(&format!(
        "`hairpin-bench ageing --whole --keep lab/results/{AGEING}`, {}, {}: each\n\
         mechanism serves a balancer of its own, which reads frames, finds, counts and rewrites them, while all its flows are\n\
         exchanged once per timeout; windows of 100 ms of traffic, all mechanisms in turn. *By time* is the throughput that the\n\
         time not spent on ageing would have allowed: a neighbour on the machine is not in it. `{AT_ONCE}` looks through all\n\
         connections at once, once per timeout, and `none` is told by the generator what is over.\n\n",
        first.date, first.machine
    ));
    all.text.push_str("| mechanism | Mpps of processor time, median | worst window by time | ageing, % of the time | longest wait, us |\n");
    all.text.push_str("|---|---:|---:|---:|---:|\n");
    let mut curves = Vec::new();
    let (mut smooth, mut dips) = (true, false);
    for (color, course) in courses.iter().enumerate() {
        let of = |value: fn(&AgeingRow) -> f64| {
            Summary::of(&course.windows.iter().map(|row| value(row)).collect::<Vec<_>>())
        };
        let (Some(rate), Some(ageing), Some(longest), Some(worst)) =
            (of(|row| row.mpps), of(|row| row.ageing), of(|row| row.longest), course.worst_by_time())
        else {
            continue;
        };
        if course.name == AT_ONCE {
            dips = worst < DIP
        } else {
            smooth &= worst >= DIP
        }
        all.text.push_str(&format!(
            "| `{}` | {:.2} | {worst:.2} | {:.1} | {:.0} |\n",
            course.name, rate.median, ageing.mean, longest.most
        ));
        let points = course.windows.iter().map(|row| (f64::from(row.window) * WINDOW, row.mpps)).collect();
        curves.push(Curve { name: course.name.to_owned(), color, is_detail: false, points });
    }
    let verdict = |agrees: bool| if agrees { "agrees" } else { "**does not agree**" };
    all.text.push_str(&format!(
        "\nLooking through all at once shows as a dip, as in the paper (a window below {DIP} of the median by time): {}.\n\
         With the other mechanisms ageing does not show: {}.\n\n",
        verdict(dips),
        verdict(smooth)
    ));
    let title = "Throughput over time while all flows are exchanged once per timeout".to_owned();
    let colors = curves.len();
    let (below, beside) = ("seconds of traffic", "Mpps of processor time");
    let drawing = Curves { title: title.clone(), below, beside, logarithmic: false, colors, curves };
    if let Some(svg) = drawing.svg()? {
        all.text.push_str(&format!("![{title}](figures/classification-ageing.svg)\n\n"));
        all.figures.push(("ageing".to_owned(), title, svg));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(mechanism: &str, ageing: [f64; 4]) -> Vec<AgeingRow> {
        let row = |(window, ageing): (u32, f64)| AgeingRow {
            mechanism: mechanism.to_owned(),
            window,
            mpps: 5.0,
            ageing,
            longest: 10.0,
            connections: 100,
            machine: "a machine".to_owned(),
            date: "2026-01-31".to_owned(),
        };
        (0..).zip(ageing).map(row).collect()
    }

    fn text(rows: &[AgeingRow]) -> String {
        let mut all = Sections::default();
        write(&mut all, rows).unwrap();
        all.text
    }

    #[test]
    fn planted_dip_turns_the_verdict() {
        let at_once = rows(AT_ONCE, [0.0, 60.0, 0.0, 0.0]);
        let good = text(&[at_once.clone(), rows("stamps", [3.0, 4.0, 3.0, 3.0])].concat());
        assert!(good.contains("by time): agrees") && good.contains("does not show: agrees"), "{good}");
        let planted = text(&[at_once, rows("stamps", [3.0, 30.0, 3.0, 3.0])].concat());
        assert!(planted.contains("does not show: **does not agree**"), "{planted}");
        let smooth = text(&rows(AT_ONCE, [1.0; 4]));
        assert!(smooth.contains("by time): **does not agree**"), "{smooth}");
        assert_eq!(text(&[]), "");
    }
}
