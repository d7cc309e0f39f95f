//! The results: a table for people, rows for the bars, a line per window for everyone else.

use super::Course;
use super::figure;
use super::mechanism_bench::WorkWindow;
use crate::suite::report::{self, Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, ensure};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use hairpin_lab::classification::{AgeingRow, today, write_measured};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The worker's own mechanism.
const CHOSEN: &str = "stamps";
/// A window below this share of the median is a dip.
const DIP: f64 = 0.9;

/// Shares of their median, one for each window.
struct MedianShares(Vec<f64>);

impl MedianShares {
    fn of(values: Vec<f64>) -> MedianShares {
        let median = RepeatedValues::from(values.clone()).median();
        MedianShares(values.into_iter().map(|value| value / median).collect())
    }

    fn worst(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn dips(&self) -> usize {
        self.0.iter().filter(|share| **share < DIP).count()
    }

    fn text(&self) -> String {
        format!("{:.3} ({} of {})", self.worst(), self.dips(), self.0.len())
    }
}

/// One course, as it is judged.
struct CourseVerdict<'a> {
    course: &'a Course,
    /// Packets a second of processor time.
    throughput: f64,
    /// The windows' throughput.
    plain: MedianShares,
    /// Each as a multiple of that of the window without ageing beside it.
    beside: MedianShares,
    /// The rate if no time were spent on ageing.
    by_time: MedianShares,
    /// Median throughput as a multiple of that without ageing.
    speed: f64,
}

impl WorkWindow {
    /// Time spent on ageing, as a share of all.
    fn share(&self) -> f64 {
        (self.ageing + self.removal).as_secs_f64() / self.cpu.as_secs_f64()
    }
}

impl<'a> CourseVerdict<'a> {
    fn new(course: &'a Course, without: &Course, packets: usize) -> CourseVerdict<'a> {
        let rate = |window: &WorkWindow| packets as f64 / window.cpu.as_secs_f64();
        let rates: Vec<f64> = course.windows.iter().map(rate).collect();
        let beside: Vec<f64> = rates.iter().zip(&without.windows).map(|(ours, window)| ours / rate(window)).collect();
        let remaining = course.windows.iter().map(|window| 1.0 - window.share()).collect();
        CourseVerdict {
            course,
            throughput: RepeatedValues::from(rates.clone()).median(),
            speed: RepeatedValues::from(beside.clone()).median(),
            plain: MedianShares::of(rates),
            beside: MedianShares::of(beside),
            by_time: MedianShares::of(remaining),
        }
    }

    fn cells(&self) -> [String; 10] {
        let windows = &self.course.windows;
        let total = |of: fn(&WorkWindow) -> Duration| windows.iter().map(of).sum::<Duration>().as_secs_f64();
        let percent = |of: fn(&WorkWindow) -> Duration| 100.0 * total(of) / total(|window| window.cpu);
        let longest: Vec<f64> = windows.iter().map(|window| window.longest.as_secs_f64() * 1e6).collect();
        let late = windows.iter().map(|window| window.late).max().unwrap_or_default();
        let late_max = self.course.late_max.map_or("-".to_owned(), |max| format!("{} ms", max.as_millis()));
        [
            self.course.name.to_owned(),
            metric(self.throughput),
            format!("{:.3}", self.speed),
            self.plain.text(),
            self.beside.text(),
            self.by_time.text(),
            format!("{:.2} + {:.2} %", percent(|window| window.ageing), percent(|window| window.removal)),
            format!("{:.0} µs", RepeatedValues::from(longest).median()),
            format!("{} ms of {late_max}", late.as_millis()),
            format!("{:.2}", self.course.bytes_per_connection),
        ]
    }
}

/// Prints and writes everything.
pub(super) fn write(directory: &Path, courses: &[Course], packets: usize) -> Result<()> {
    let without = courses.first().context("nothing was measured")?;
    let verdicts: Vec<CourseVerdict<'_>> =
        courses.iter().map(|course| CourseVerdict::new(course, without, packets)).collect();
    println!("{}", table(&verdicts));
    println!("worst window, as a share of the median (windows below {DIP}): by processor time; beside the one without");
    println!("ageing; by the time not spent on ageing. Work: finding what is over + taking it away.");
    let rows = rows(&verdicts)?;
    println!("{}", report::table(&rows));
    report::write(directory, "ageing", &rows)?;
    let directory = directory.join("ageing");
    std::fs::create_dir_all(&directory).with_context(|| format!("could not make {}", directory.display()))?;
    write_windows(&directory.join("windows.csv"), courses, packets)?;
    figure::draw(&directory.join("throughput.svg"), courses, packets)
}

/// Keeps all windows for the page on flow classification.
pub(super) fn keep(path: &Path, courses: &[Course], packets: usize) -> Result<()> {
    let (machine, date) = (hairpin_lab::report::machine().name, today());
    let mut rows = Vec::new();
    for course in courses {
        for (number, window) in (0..).zip(&course.windows) {
            let rounded = |value: f64| (value * 1e3).round() / 1e3;
            rows.push(AgeingRow {
                mechanism: course.name.to_owned(),
                window: number,
                mpps: rounded(packets as f64 / window.cpu.as_secs_f64() / 1e6),
                ageing: rounded(window.share() * 100.0),
                longest: rounded(window.longest.as_secs_f64() * 1e6),
                connections: window.connections,
                machine: machine.clone(),
                date: date.clone(),
            });
        }
    }
    write_measured(path, &rows)
}

fn table(verdicts: &[CourseVerdict<'_>]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header([
        "mechanism",
        "packet/s",
        "beside none",
        "worst window",
        "beside none",
        "by time",
        "work",
        "longest turn",
        "late",
        "byte/conn.",
    ]);
    for verdict in verdicts {
        table.add_row(verdict.cells());
    }
    for column in 1..10 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The worker's mechanism against the bar, the others beside it.
fn rows(verdicts: &[CourseVerdict<'_>]) -> Result<Vec<ReportRow>> {
    ensure!(verdicts.iter().any(|verdict| verdict.course.name == CHOSEN), "{CHOSEN} was not measured");
    let row = |case: &str, against: &str, limit: f64, value: &dyn Fn(&CourseVerdict<'_>) -> f64| {
        let all: BTreeMap<String, f64> =
            verdicts.iter().map(|verdict| (verdict.course.name.to_owned(), value(verdict))).collect();
        let ours = RepeatedValues::from(vec![all[CHOSEN]]);
        let beside = all.into_iter().filter(|(name, _)| name != CHOSEN).collect();
        let row = ReportRow::against_value(format!("ageing: {case}"), "", &ours, against, limit, Bar::AtLeast(DIP));
        ReportRow { beside, ..row }
    };
    // Neighbours make dips as well, with ageing and without.
    let without = verdicts.first().map_or(f64::NAN, |verdict| verdict.plain.worst());
    Ok(vec![
        row("worst 100 ms, as ageing alone would have it", "median", 1.0, &|verdict| verdict.by_time.worst()),
        row("worst 100 ms, share of the median", "worst without ageing", without, &|verdict| verdict.plain.worst()),
        row("throughput", "without ageing", 1.0, &|verdict| verdict.speed),
    ])
}

fn write_windows(path: &Path, courses: &[Course], packets: usize) -> Result<()> {
    let mut lines = csv::Writer::from_path(path).with_context(|| format!("could not write {}", path.display()))?;
    lines.write_record([
        "mechanism",
        "window",
        "packets",
        "processor_s",
        "wall_s",
        "ageing_s",
        "removal_s",
        "longest_turn_s",
        "over",
        "connections",
        "late_ms",
    ])?;
    for course in courses {
        for (number, window) in course.windows.iter().enumerate() {
            let seconds = |time: Duration| format!("{:.9}", time.as_secs_f64());
            lines.write_record([
                course.name.to_owned(),
                number.to_string(),
                packets.to_string(),
                seconds(window.cpu),
                seconds(window.wall),
                seconds(window.ageing),
                seconds(window.removal),
                seconds(window.longest),
                window.over.to_string(),
                window.connections.to_string(),
                window.late.as_millis().to_string(),
            ])?;
        }
    }
    Ok(lines.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(name: &'static str, windows: &[(u64, u64)]) -> Course {
        let window = |&(cpu, ageing): &(u64, u64)| WorkWindow {
            cpu: Duration::from_millis(cpu),
            ageing: Duration::from_millis(ageing),
            ..WorkWindow::default()
        };
        Course { name, bytes_per_connection: 0.0, late_max: None, windows: windows.iter().map(window).collect() }
    }

    #[test]
    fn dips_are_told_apart() {
        // The second window is slow for both: a neighbour. The third is slow because of ageing.
        let without = course("none", &[(100, 0), (200, 0), (100, 0), (100, 0), (100, 0)]);
        let wheel = course(CHOSEN, &[(100, 0), (200, 0), (150, 50), (100, 0), (100, 0)]);
        let verdict = CourseVerdict::new(&wheel, &without, 1000);
        assert_eq!((verdict.plain.dips(), verdict.beside.dips(), verdict.by_time.dips()), (2, 1, 1));
        assert_eq!(verdict.plain.worst(), 0.5);
        assert!(
            (verdict.beside.worst() - 2.0 / 3.0).abs() < 1e-9 && (verdict.by_time.worst() - 2.0 / 3.0).abs() < 1e-9
        );
        assert_eq!(verdict.speed, 1.0);
        let rows = rows(&[CourseVerdict::new(&without, &without, 1000), verdict]).unwrap();
        assert_eq!(rows.iter().map(|row| row.held).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(rows[0].beside["none"], 1.0);
    }
}
