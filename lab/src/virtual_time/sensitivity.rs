//! How far verdicts hang on constants that are guesses: all findings are judged again with each constant at other values.
//!
//! `lab/sensitivity.toml` lists the constants of the profiles (and of the port) that no publication gives, with ends that are
//! plausible. What is not touched by a constant is not simulated again. Verdicts with other constants are also what explains
//! a disagreement: where a cause is taken away, the finding must come.

use super::case::CaseContext;
use super::document::judgements;
use super::file::{Case, ModelExperiment};
use super::finding::CaseVerdict;
use super::perform::{CasesEvent, PerformOptions, perform};
use super::results::Gathered;
use super::store::CaseStore;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where a constant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConstantOf {
    /// In the profiles of cards.
    Card,
    /// In the profiles of cores.
    Core,
    /// Among the constants of the port.
    Port,
}

/// A constant that is a guess.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuessedConstant {
    /// Its name, for people.
    pub name: String,
    /// Where it stands.
    pub of: ConstantOf,
    /// Its place there, such as `forwarding.while_changing`; of arrays all elements.
    pub path: String,
    /// Values that it is given.
    #[serde(default)]
    pub values: Vec<f64>,
    /// What it is multiplied by.
    #[serde(default)]
    pub factors: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConstantsFile {
    constant: Vec<GuessedConstant>,
}

/// One constant at another value.
#[derive(Clone, Debug)]
pub struct Variation {
    /// The constant.
    pub name: String,
    /// Its value, for people.
    pub value: String,
    of: ConstantOf,
    path: Vec<String>,
    change: Change,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Set(f64),
    Times(f64),
}

impl Change {
    fn of(self, before: f64) -> f64 {
        match self {
            Change::Set(value) => value,
            Change::Times(factor) => before * factor,
        }
    }
}

impl Variation {
    /// All of a file.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it.
    pub fn load_all(path: &Path) -> Result<Vec<Variation>> {
        let named = || format!("constants in {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        let file: ConstantsFile = toml::from_str(&text).with_context(named)?;
        let mut variations = Vec::new();
        for constant in file.constant {
            ensure!(!(constant.values.is_empty() && constant.factors.is_empty()), "{} has no values", constant.name);
            let values = constant.values.iter().map(|value| (value.to_string(), Change::Set(*value)));
            let factors = constant.factors.iter().map(|factor| (format!("x {factor}"), Change::Times(*factor)));
            variations.extend(values.chain(factors).map(|(value, change)| Variation {
                name: constant.name.clone(),
                value,
                of: constant.of,
                path: constant.path.split('.').map(str::to_owned).collect(),
                change,
            }));
        }
        Ok(variations)
    }

    /// A profile's text with it; as it is, if it is of another kind or has no such constant.
    ///
    /// # Errors
    /// The text is no TOML, or what stands there is no number.
    pub(super) fn applied(&self, of: ConstantOf, text: &str) -> Result<(String, bool)> {
        if of != self.of {
            return Ok((text.to_owned(), false));
        }
        let mut root = toml::Value::Table(toml::from_str(text)?);
        let is_there = change_at(&mut root, &self.path, self.change)?;
        Ok((toml::to_string(&root)?, is_there))
    }

    /// A constant of the port with it, by its name.
    pub(super) fn port(&self, name: &str, before: f64) -> f64 {
        let is_it = self.of == ConstantOf::Port && self.path == [name];
        if is_it { self.change.of(before) } else { before }
    }

    /// Whether it is one of the port's.
    pub(super) fn is_of_port(&self) -> bool {
        self.of == ConstantOf::Port
    }
}

/// Changes what stands at a path; `false`: nothing does.
fn change_at(value: &mut toml::Value, path: &[String], change: Change) -> Result<bool> {
    if let toml::Value::Array(elements) = value {
        let mut is_there = false;
        for element in elements {
            is_there |= change_at(element, path, change)?;
        }
        return Ok(is_there);
    }
    let Some((name, rest)) = path.split_first() else {
        *value = match *value {
            toml::Value::Float(before) => toml::Value::Float(change.of(before)),
            // Counts stay counts.
            toml::Value::Integer(before) => match change.of(before as f64) {
                after if after.fract() == 0.0 => toml::Value::Integer(after as i64),
                after => toml::Value::Float(after),
            },
            _ => bail!("it is no number"),
        };
        return Ok(true);
    };
    match value.as_table_mut().and_then(|table| table.get_mut(name)) {
        Some(inner) => change_at(inner, rest, change),
        None => Ok(false),
    }
}

/// The verdict on a finding with a constant at some value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SensitivityRow {
    /// The constant; empty: all are as their profiles say.
    pub constant: String,
    /// Its value.
    pub value: String,
    /// The part of the paper's scale.
    pub scale: f64,
    /// The finding's experiment, and its number there.
    pub experiment: String,
    /// See `experiment`.
    pub number: usize,
    /// In words.
    pub finding: String,
    /// The verdict: 2 agrees, 1 in part, 0 does not agree.
    pub verdict: u8,
    /// The pairs that decided it.
    pub figures: String,
}

impl SensitivityRow {
    /// The verdict in words.
    pub fn said(&self) -> &'static str {
        match self.verdict {
            2 => "agrees",
            1 => "in part",
            _ => "does not agree",
        }
    }
}

/// All verdicts with all constants.
#[derive(Clone, Debug, Default)]
pub struct Sensitivity {
    /// All of them, those with no constant changed first.
    pub rows: Vec<SensitivityRow>,
}

impl Sensitivity {
    /// Reads a table.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn load(path: &Path) -> Result<Sensitivity> {
        let named = || format!("verdicts in {}", path.display());
        let mut reader = csv::Reader::from_path(path).with_context(named)?;
        let rows = reader.deserialize().collect::<Result<Vec<SensitivityRow>, _>>().with_context(named)?;
        Ok(Sensitivity { rows })
    }

    /// The table.
    ///
    /// # Errors
    /// Never, but for the memory.
    pub fn table(&self) -> Result<Vec<u8>> {
        let mut table = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            table.serialize(row).context("a table")?;
        }
        table.into_inner().context("a table")
    }

    /// The verdict on a finding with no constant changed.
    pub fn base(&self, experiment: &str, number: usize) -> Option<&SensitivityRow> {
        self.of(experiment, number).into_iter().find(|row| row.constant.is_empty())
    }

    /// All verdicts on a finding.
    pub fn of(&self, experiment: &str, number: usize) -> Vec<&SensitivityRow> {
        self.rows.iter().filter(|row| row.experiment == experiment && row.number == number).collect()
    }

    /// Those with which a finding's verdict is another one than without.
    pub fn turned(&self, experiment: &str, number: usize) -> Vec<&SensitivityRow> {
        let Some(base) = self.base(experiment, number).map(|row| row.verdict) else { return Vec::new() };
        self.of(experiment, number).into_iter().filter(|row| row.verdict != base).collect()
    }

    /// Each constant and value, in order.
    pub fn variations(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<(&str, &str)> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.constant.is_empty()) {
            if !all.contains(&(&row.constant, &row.value)) {
                all.push((&row.constant, &row.value));
            }
        }
        all
    }

    /// Adds the verdicts on all findings of some results.
    fn add(&mut self, variation: Option<&Variation>, scale: f64, gathered: &[Gathered<'_>]) {
        for one in gathered {
            for ((finding, judgement, _), number) in judgements(one).into_iter().zip(1..) {
                let verdict = match judgement.verdict {
                    CaseVerdict::Agrees => 2,
                    CaseVerdict::InPart => 1,
                    CaseVerdict::Disagrees => 0,
                    CaseVerdict::NotMeasured => continue,
                };
                self.rows.push(SensitivityRow {
                    constant: variation.map_or(String::new(), |variation| variation.name.clone()),
                    value: variation.map_or(String::new(), |variation| variation.value.clone()),
                    scale,
                    experiment: one.experiment.name.clone(),
                    number,
                    finding: finding.text.clone(),
                    verdict,
                    figures: judgement.figures,
                });
            }
        }
    }
}

/// The input of [`examine`].
#[derive(Clone, Copy, Debug)]
pub struct SensitivityInput<'a> {
    /// The part of the paper's scale.
    pub scale: f64,
    /// Directories of profiles and of recordings.
    pub profiles: &'a Path,
    /// See `profiles`.
    pub traces: Option<&'a Path>,
    /// What is varied.
    pub variations: &'a [Variation],
}

/// Judges all findings with no constant changed, and with each variation. Cases are kept in `store` as they come; those that
/// no finding is about are left out. `hear` is told which variation is at hand, and how far it is.
///
/// # Errors
/// A profile does not read with a variation, no profile has its constant, or the store cannot be written.
pub fn examine(
    experiments: &[ModelExperiment],
    input: SensitivityInput<'_>,
    effort: &PerformOptions,
    store: &mut CaseStore,
    hear: &mut dyn FnMut(&str, CasesEvent<'_>),
) -> Result<Sensitivity> {
    let judged: Vec<&ModelExperiment> =
        experiments.iter().filter(|experiment| !experiment.findings.is_empty()).collect();
    let cases: Vec<&Case> = judged.iter().flat_map(|experiment| &experiment.cases).collect();
    let mut all = Sensitivity::default();
    for variation in std::iter::once(None).chain(input.variations.iter().map(Some)) {
        let bench = CaseContext::load_varied(input.scale, input.profiles, input.traces, variation)?;
        let name =
            variation.map_or("as it is".to_owned(), |variation| format!("{}: {}", variation.name, variation.value));
        perform(&bench, &cases, effort, store, &mut |event| hear(&name, event))?;
        let gathered: Vec<Gathered<'_>> =
            judged.iter().map(|experiment| Gathered::new(experiment, &bench, store)).collect();
        if let Some((case, why)) = gathered.iter().flat_map(Gathered::failures).next() {
            bail!("{name}: no result for {case}: {why}");
        }
        all.add(variation, input.scale, &gathered);
    }
    Ok(all)
}
