//! The experiment file: settings, the axes over which they differ, what is drawn, what the paper found.
//!
//! ```toml
//! name = "matrix"
//! title = "Throughput, latency and loss"
//! notes = "What is to be known."
//!
//! [settings]              # of all cases; `CaseSettings` has the names
//! mix = "trace"
//! runs = 2
//!
//! [[axis]]                # each combination of all axes' values is a case
//! name = "device"
//! values = [{ as = "BF", device = "forwarder" }, { as = "LB" }]
//!
//! [[axis]]
//! name = "cores"
//! values = [1, 2, 4, 8]   # short for { as = "1", cores = 1 } and so on
//!
//! [[without]]             # combinations that are left out
//! device = ["BF"]
//! entries = ["4 M", "8 M"]
//!
//! [instead]               # findings are judged a second time, with these devices in place of those
//! title = "MARK only"
//! axis = "device"
//! values = { naive = "naive-mark" }
//!
//! [[finding]]             # see `finding`
//! [[figure]]
//! across = "cores"        # what stands below
//! lines = "device"        # what there is a line for; a figure for each combination of all others
//! metrics = ["throughput"]
//! at = { run = ["1"] }    # only there
//! page = true             # on the page in docs/evidence
//! ```

use super::finding::{CaseFinding, Where};
use super::settings::CaseSettings;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Cases of an experiment at most.
const CASES_MAX: usize = 4096;
/// Axes at most.
const AXES_MAX: usize = 8;

/// The place of a case: each axis and its value, in the file's order.
pub type CasePlace = Vec<(String, String)>;

/// An experiment.
#[derive(Clone, Debug)]
pub struct ModelExperiment {
    /// Its name, in files' names, too.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Notes; paragraphs.
    pub notes: String,
    /// Axes, with their values' names.
    pub axes: Vec<(String, Vec<String>)>,
    /// All cases.
    pub cases: Vec<Case>,
    /// The paper's findings, and its open questions.
    pub findings: Vec<CaseFinding>,
    /// The figures.
    pub figures: Vec<FigureRequest>,
    /// Whether policies are compared, by an axis of this name.
    pub comparison: Option<String>,
    /// Metrics of the table in the document; none: there is no table.
    pub table: Vec<String>,
    /// Devices that stand in for those of the findings.
    pub instead: Option<StandIns>,
}

/// A case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The experiment's name.
    pub experiment: String,
    /// Its place.
    pub place: CasePlace,
    /// Its settings.
    pub settings: CaseSettings,
    /// Which repetition of its place it is, each with a seed of its own: the first is 0.
    pub repetition: u32,
}

impl Case {
    /// Its name: unique among all.
    pub fn name(&self) -> String {
        let place: Vec<String> = self.place.iter().map(|(axis, value)| format!("{axis}={value}")).collect();
        let seed = if self.repetition == 0 { String::new() } else { format!(", seed {}", self.settings.seed) };
        format!("{}: {}{seed}", self.experiment, place.join(", "))
    }
}

/// Values of an axis that stand in for others: the findings are judged with them besides.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct StandIns {
    /// The heading of these verdicts.
    pub title: String,
    /// The axis.
    pub axis: String,
    /// The value that stands for each.
    pub values: BTreeMap<String, String>,
}

/// The figures.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct FigureRequest {
    /// The axis below; `time` for what happens during a run.
    pub across: String,
    /// The axis whose values have a line each.
    pub lines: String,
    /// The drawn metrics, by name.
    pub metrics: Vec<String>,
    /// Only where the other axes have these values.
    #[serde(default)]
    pub at: Where,
    /// Whether it stands on the page in docs/evidence, and there only.
    #[serde(default)]
    pub page: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    name: String,
    title: String,
    #[serde(default)]
    notes: String,
    settings: toml::Table,
    #[serde(default)]
    axis: Vec<CaseAxis>,
    #[serde(default)]
    without: Vec<BTreeMap<String, Vec<String>>>,
    #[serde(default)]
    finding: Vec<CaseFinding>,
    #[serde(default)]
    figure: Vec<FigureRequest>,
    #[serde(default)]
    comparison: Option<String>,
    #[serde(default)]
    table: Vec<String>,
    #[serde(default)]
    instead: Option<StandIns>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseAxis {
    name: String,
    values: Vec<toml::Value>,
}

impl ModelExperiment {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it.
    pub fn load(path: &Path) -> Result<ModelExperiment> {
        let named = || format!("the experiment {}", path.display());
        let bytes = std::fs::metadata(path).with_context(named)?.len();
        ensure!(bytes <= FILE_BYTES_MAX, "{} has {bytes} bytes, more than {FILE_BYTES_MAX}", path.display());
        ModelExperiment::parse(&std::fs::read_to_string(path).with_context(named)?).with_context(named)
    }

    /// Reads all files of a directory that end in `.toml`, by name.
    ///
    /// # Errors
    /// One cannot be read or is wrong, or there is none.
    pub fn load_all(directory: &Path) -> Result<Vec<ModelExperiment>> {
        let named = || format!("experiments in {}", directory.display());
        let entries = std::fs::read_dir(directory).with_context(named)?;
        let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        ensure!(!paths.is_empty(), "no experiment (*.toml) in {}", directory.display());
        let experiments = paths.iter().map(|path| ModelExperiment::load(path)).collect::<Result<Vec<_>>>()?;
        for (index, experiment) in experiments.iter().enumerate() {
            let is_twice = experiments[..index].iter().any(|other| other.name == experiment.name);
            ensure!(!is_twice, "two experiments are called {}", experiment.name);
        }
        Ok(experiments)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Its defect.
    pub fn parse(text: &str) -> Result<ModelExperiment> {
        let mut written: CaseFile = toml::from_str(text)?;
        written.finding.iter_mut().try_for_each(CaseFinding::look_up)?;
        let legal =
            |name: &str| (1..=40).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        ensure!(legal(&written.name), "name: use 1 to 40 letters, digits or `-`");
        ensure!(written.axis.len() <= AXES_MAX, "more than {AXES_MAX} axes");
        let mut axes = Vec::new();
        for axis in &written.axis {
            let values = values(axis).with_context(|| format!("axis {}", axis.name))?;
            ensure!(!axes.iter().any(|(name, _)| *name == axis.name), "axis {} is there twice", axis.name);
            axes.push((axis.name.clone(), values));
        }
        let cases = cases(&written, &axes)?;
        let axes: Vec<(String, Vec<String>)> = axes
            .into_iter()
            .map(|(name, values)| (name, values.into_iter().map(|(label, _)| label).collect()))
            .collect();
        let experiment = ModelExperiment {
            name: written.name,
            title: written.title,
            notes: written.notes,
            axes,
            cases,
            findings: written.finding,
            figures: written.figure,
            comparison: written.comparison,
            table: written.table,
            instead: written.instead,
        };
        experiment.check()?;
        Ok(experiment)
    }

    /// The experiment with `seeds` seeds for each case: all cases with the first seed, then all with the next.
    pub fn repeated(mut self, seeds: u32) -> ModelExperiment {
        let with_seed = |repetition: u32| {
            self.cases.iter().map(move |case| {
                let mut case = case.clone();
                case.settings.seed += u64::from(repetition);
                Case { repetition, ..case }
            })
        };
        self.cases = (0..seeds.max(1)).flat_map(with_seed).collect();
        self
    }

    /// Checks that the names in findings and figures exist.
    fn check(&self) -> Result<()> {
        let axis = |name: &str| self.axes.iter().find(|(axis, _)| axis == name);
        let is_place = |(name, values): (&String, &Vec<String>)| -> Result<()> {
            if name == "run" {
                ensure!(values.iter().all(|value| value == "1" || value == "2"), "a run is \"1\" or \"2\"");
                return Ok(());
            }
            let (_, known) = axis(name).with_context(|| format!("there is no axis `{name}`"))?;
            for value in values {
                ensure!(known.contains(value), "axis `{name}` has no value `{value}`");
            }
            Ok(())
        };
        for finding in &self.findings {
            let named = || format!("finding \"{}\"", finding.text);
            finding.places().try_for_each(is_place).with_context(named)?;
            finding.check().with_context(named)?;
        }
        for figure in &self.figures {
            for name in [&figure.across, &figure.lines] {
                ensure!(name == "time" || axis(name).is_some(), "figure: there is no axis `{name}`");
            }
            figure.at.iter().try_for_each(is_place).context("figure")?;
            for metric in &figure.metrics {
                super::outcome::metric(metric).with_context(|| format!("figure: there is no metric `{metric}`"))?;
            }
        }
        if let Some(StandIns { axis: name, values, .. }) = &self.instead {
            let (_, known) = axis(name).with_context(|| format!("instead: there is no axis `{name}`"))?;
            for value in values.iter().flat_map(|(of, by)| [of, by]) {
                ensure!(known.contains(value), "instead: axis `{name}` has no value `{value}`");
            }
        }
        for metric in &self.table {
            super::outcome::metric(metric).with_context(|| format!("table: there is no metric `{metric}`"))?;
        }
        if let Some(name) = &self.comparison {
            let (_, values) = axis(name).with_context(|| format!("comparison: there is no axis `{name}`"))?;
            for value in ["never", "auto", "yardstick", "bound"] {
                ensure!(values.iter().any(|known| known == value), "comparison: axis `{name}` has no `{value}`");
            }
        }
        Ok(())
    }
}

/// An axis' values: what each is called, and what it sets.
fn values(axis: &CaseAxis) -> Result<Vec<(String, toml::Table)>> {
    let mut values: Vec<(String, toml::Table)> = Vec::new();
    for value in &axis.values {
        let (label, sets) = match value {
            toml::Value::Table(table) => {
                let mut sets = table.clone();
                let label = match sets.remove("as") {
                    Some(toml::Value::String(label)) => label,
                    _ => bail!("a value that is a table has a name: as = \"...\""),
                };
                (label, sets)
            }
            toml::Value::Array(_) | toml::Value::Datetime(_) => bail!("a value is a number, a word or a table"),
            other => {
                let label = match other {
                    toml::Value::Integer(number) => {
                        u32::try_from(*number).map_or_else(|_| number.to_string(), crate::figure::count)
                    }
                    toml::Value::String(word) => word.clone(),
                    other => other.to_string(),
                };
                (label, toml::Table::from_iter([(axis.name.clone(), other.clone())]))
            }
        };
        ensure!(!values.iter().any(|(other, _)| *other == label), "value `{label}` is there twice");
        values.push((label, sets));
    }
    ensure!(!values.is_empty(), "it has no values");
    Ok(values)
}

/// Every combination that is not left out.
fn cases(written: &CaseFile, axes: &[(String, Vec<(String, toml::Table)>)]) -> Result<Vec<Case>> {
    let count: usize = axes.iter().map(|(_, values)| values.len()).product();
    ensure!(count <= CASES_MAX, "{count} cases, more than {CASES_MAX}");
    let mut cases = Vec::new();
    for mut index in 0..count {
        let (mut place, mut settings) = (CasePlace::new(), written.settings.clone());
        // The last axis changes fastest.
        let mut at = vec![0; axes.len()];
        for (number, (_, values)) in axes.iter().enumerate().rev() {
            at[number] = index % values.len();
            index /= values.len();
        }
        for ((name, values), at) in axes.iter().zip(at) {
            let (label, sets) = &values[at];
            place.push((name.clone(), label.clone()));
            settings.extend(sets.clone());
        }
        let is_out = |without: &BTreeMap<String, Vec<String>>| {
            let here = |axis: &String| place.iter().find(|(name, _)| name == axis).map(|(_, value)| value);
            without.iter().all(|(axis, values)| here(axis).is_some_and(|value| values.contains(value)))
        };
        if written.without.iter().any(is_out) {
            continue;
        }
        let settings: CaseSettings = settings.try_into().context("settings")?;
        settings.check().map_err(anyhow::Error::msg)?;
        cases.push(Case { experiment: written.name.clone(), place, settings, repetition: 0 });
    }
    ensure!(!cases.is_empty(), "no case is left");
    Ok(cases)
}
