//! The experiment file.

use super::perform::CaseRow;
use super::rule::{ClassificationRule, ClassificationVerdict, Sharing};
use crate::findings;
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_sim::sharing::{CORES_MAX, SharingMethod, SharingProfile};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::Path;

/// The experiment: every method of every device on every number of cores, at every factor of the lines' costs, for every seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationExperiment {
    /// Its name: that of the file.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Notes about it, in paragraphs.
    pub notes: String,
    /// Profiles of `lab/profiles/sharing`, by name. Figures and verdicts are of the first, unless a finding names another.
    pub devices: Vec<String>,
    /// The methods.
    #[serde(deserialize_with = "methods_by_name")]
    pub methods: Vec<SharingMethod>,
    /// Numbers of cores, rising.
    pub cores: Vec<u16>,
    /// Factors of the costs of cache lines, of the first device; 1, which is of all devices, is among them.
    pub line: Vec<f64>,
    /// Seeds: a repetition each.
    pub seeds: Vec<u64>,
    /// Seconds of virtual time before anything is counted.
    pub warm_up: f64,
    /// Seconds of virtual time that are counted.
    pub seconds: f64,
    /// What the paper found.
    pub finding: Vec<ClassificationFinding>,
    /// The devices' profiles, which the file names.
    #[serde(skip)]
    profiles: BTreeMap<String, SharingProfile>,
}

/// A finding.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassificationFinding {
    /// Its id in `docs/evidence/findings.toml`.
    pub id: String,
    /// The device; the first, unless given.
    #[serde(default)]
    pub device: String,
    /// The paper's figures, for people.
    pub theirs: String,
    /// How it is judged.
    pub rule: ClassificationRule,
    /// Why it is so here, if it is.
    #[serde(default)]
    pub why: String,
    /// Why it is not, if it is not, or in part only; what has been measured of that.
    #[serde(default)]
    pub why_not: String,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassificationCase {
    /// The device.
    pub device: String,
    /// The method.
    pub method: SharingMethod,
    /// Cores.
    pub cores: u16,
    /// The factor of the lines' costs.
    pub line: f64,
    /// The seed.
    pub seed: u64,
}

pub(super) fn methods_by_name<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<SharingMethod>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}

impl ClassificationExperiment {
    /// Reads the file, and the profiles that it names from `profiles`.
    ///
    /// # Errors
    /// The mistake in it, or in a profile.
    pub fn load(path: &Path, profiles: &Path) -> Result<ClassificationExperiment> {
        let named = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(named)?;
        let mut experiment: ClassificationExperiment = toml::from_str(&text).with_context(named)?;
        for device in &experiment.devices {
            let path = profiles.join(format!("{device}.toml"));
            let named = || path.display().to_string();
            let text = std::fs::read_to_string(&path).with_context(named)?;
            let profile = SharingProfile::parse(&text).map_err(|wrong| anyhow!(wrong)).with_context(named)?;
            ensure!(profile.name == *device, "{}: its name is {}", path.display(), profile.name);
            experiment.profiles.insert(device.clone(), profile);
        }
        experiment.check().with_context(named)?;
        Ok(experiment)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.devices.is_empty() && !self.methods.is_empty() && !self.seeds.is_empty(), "something is missing");
        ensure!(self.line.contains(&1.0), "line has the factor 1");
        ensure!(self.line.iter().all(|factor| (0.01..=100.0).contains(factor)), "factors are 0.01 to 100");
        ensure!(self.cores.is_sorted_by(|less, more| less < more), "the numbers of cores rise");
        ensure!(self.cores.iter().all(|cores| (1..=CORES_MAX).contains(cores)), "there are 1 to {CORES_MAX} cores");
        for finding in &self.finding {
            let id = &finding.id;
            ensure!(findings::find(id).is_some(), "docs/evidence/findings.toml has no finding {id}");
            ensure!(self.profiles.contains_key(self.device_of(finding)), "{id}: there is no device {}", finding.device);
            finding.rule.check(self).with_context(|| format!("finding {id}"))?;
        }
        Ok(())
    }

    /// The device that a finding is about.
    pub fn device_of<'a>(&'a self, finding: &'a ClassificationFinding) -> &'a str {
        if finding.device.is_empty() { &self.devices[0] } else { &finding.device }
    }

    /// Judges a finding by all results, at a factor of the lines' costs.
    pub fn judge(&self, finding: &ClassificationFinding, rows: &[CaseRow], line: f64) -> ClassificationVerdict {
        finding.rule.judge(&Sharing::of(rows, self.device_of(finding), line), &self.cores)
    }

    /// A device's profile.
    pub fn profile(&self, device: &str) -> Option<&SharingProfile> {
        self.profiles.get(device)
    }

    /// All runs, without methods that a device's profile has no costs of.
    pub fn cases(&self) -> Vec<ClassificationCase> {
        let mut cases = Vec::new();
        for (device, profile) in &self.profiles {
            for &method in self.methods.iter().filter(|method| profile.of(**method).is_some()) {
                let is_first = self.devices.first() == Some(device);
                for &line in self.line.iter().filter(|line| is_first || **line == 1.0) {
                    for &cores in &self.cores {
                        let case =
                            |&seed: &u64| ClassificationCase { device: device.clone(), method, cores, line, seed };
                        cases.extend(self.seeds.iter().map(case));
                    }
                }
            }
        }
        cases
    }
}
