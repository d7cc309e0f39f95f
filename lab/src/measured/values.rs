//! Everything that was measured, as one long table.

use crate::statistics::RepeatedValues;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// One value of one repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ResultPoint {
    part: String,
    setting: String,
    series: String,
    x: u64,
    /// Which time it was measured.
    repetition: usize,
    /// The name of the measured value.
    what: String,
    /// That, in the unit that `what` names.
    value: f64,
}

/// The place of a value, without its repetition and quantity.
#[derive(Clone, Copy, Debug)]
pub struct ResultPlace<'a> {
    /// The quantity: `throughput`, `latency`, `rules`, ...
    pub part: &'a str,
    /// The mode of the virtual cards, or another setting that all series of a figure share; empty if there is none.
    pub setting: &'a str,
    /// The series of the value: a line of a figure.
    pub series: &'a str,
    /// The position on the axis: bytes of a response, rules of a batch, threads, percent of the requests.
    pub x: u64,
}

/// All values.
#[derive(Clone, Debug, Default)]
pub struct FigureResults {
    points: Vec<ResultPoint>,
    /// Parts that could not be measured, and why.
    pub failures: Vec<String>,
}

impl FigureResults {
    /// Keeps why a part could not be measured, if it could not, and says so.
    pub fn note(&mut self, part: &str, done: Result<()>) {
        if let Err(error) = done {
            println!("  {part} could not be measured: {error:#}");
            self.failures.push(format!("{part}: {error:#}"));
        }
    }

    /// Whether that has happened to a part.
    pub fn has_failed(&self, part: &str) -> bool {
        self.failures.iter().any(|failure| failure.strip_prefix(part).is_some_and(|rest| rest.starts_with(':')))
    }

    /// Adds the values of one measurement.
    pub fn add(&mut self, place: ResultPlace<'_>, repetition: usize, values: &[(&'static str, f64)]) {
        for &(what, value) in values {
            let ResultPlace { part, setting, series, x } = place;
            let [part, setting, series, what] = [part, setting, series, what].map(str::to_owned);
            self.points.push(ResultPoint { part, setting, series, x, repetition, what, value });
        }
    }

    /// The values of one thing, one for each repetition; `None` if there are none.
    pub fn samples(&self, place: ResultPlace<'_>, what: &str) -> Option<RepeatedValues> {
        let here = self.points.iter().filter(|point| {
            let at = (point.part.as_str(), point.setting.as_str(), point.series.as_str(), point.x);
            at == (place.part, place.setting, place.series, place.x) && point.what == what
        });
        let values: Vec<f64> = here.map(|point| point.value).collect();
        (!values.is_empty()).then(|| RepeatedValues::from(values))
    }

    /// The middle one of them.
    pub fn median(&self, place: ResultPlace<'_>, what: &str) -> Option<f64> {
        self.samples(place, what).map(|samples| samples.median())
    }

    /// Series of a part, each once, as they were first measured.
    pub fn series(&self, part: &str, setting: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for point in self.points.iter().filter(|point| point.part == part && point.setting == setting) {
            if !all.contains(&point.series) {
                all.push(point.series.clone());
            }
        }
        all
    }

    /// Settings of a part, each once, as they were first measured.
    pub fn settings(&self, part: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for point in self.points.iter().filter(|point| point.part == part) {
            if !all.contains(&point.setting) {
                all.push(point.setting.clone());
            }
        }
        all
    }

    /// Places on the axis for which a part has values, in order.
    pub fn places(&self, part: &str, setting: &str) -> Vec<u64> {
        let here = self.points.iter().filter(|point| point.part == part && point.setting == setting);
        let mut all: Vec<u64> = here.map(|point| point.x).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Reads what [`FigureResults::write_csv`] has written.
    ///
    /// # Errors
    /// When the file cannot be read or is no such file.
    pub fn read_csv(path: &Path) -> Result<FigureResults> {
        let about = || format!("could not read {}", path.display());
        let mut reader = csv::Reader::from_path(path).with_context(about)?;
        let points = reader.deserialize().collect::<Result<Vec<ResultPoint>, _>>().with_context(about)?;
        Ok(FigureResults { points, failures: Vec::new() })
    }

    /// Writes them all.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_csv(&self, path: &Path) -> Result<()> {
        let about = || format!("could not write {}", path.display());
        let mut writer = csv::Writer::from_path(path).with_context(about)?;
        for point in &self.points {
            writer.serialize(point).with_context(about)?;
        }
        writer.flush().with_context(about)
    }
}

/// A median with its range, as tables show it.
pub fn shown(samples: Option<&RepeatedValues>, digits: usize) -> String {
    let Some(samples) = samples else { return "-".to_owned() };
    let (low, high) = samples.range();
    match samples.values().len() {
        1 => format!("{:.digits$}", samples.median()),
        _ => format!("{:.digits$} ({low:.digits$}-{high:.digits$})", samples.median()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_where_they_belong_and_read_back() {
        let mut results = FigureResults::default();
        let at = |x| ResultPlace { part: "throughput", setting: "gso", series: "nginx", x };
        for (repetition, value) in [3.0, 1.0, 2.0].into_iter().enumerate() {
            results.add(at(1024), repetition, &[("gbit_per_s", value), ("errors", 0.0)]);
        }
        results.add(ResultPlace { setting: "wire", ..at(4096) }, 0, &[("gbit_per_s", 9.0)]);
        assert_eq!(results.median(at(1024), "gbit_per_s"), Some(2.0));
        assert_eq!(results.median(at(4096), "gbit_per_s"), None);
        assert_eq!(results.places("throughput", "gso"), [1024]);
        assert_eq!(results.series("throughput", "gso"), ["nginx"]);
        assert_eq!(shown(results.samples(at(1024), "gbit_per_s").as_ref(), 1), "2.0 (1.0-3.0)");
        assert_eq!(shown(None, 1), "-");
        let path = std::env::temp_dir().join(format!("hb-results-{}.csv", std::process::id()));
        results.write_csv(&path).unwrap();
        let read = FigureResults::read_csv(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.samples(at(1024), "gbit_per_s").unwrap().values(), [3.0, 1.0, 2.0]);
    }
}
