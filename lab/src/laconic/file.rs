//! The experiment as a file.
//!
//! ```toml
//! [[family]]                      # a case for each combination, and each seed
//! name = "figure 8 (b)"
//! nic = ["bluefield-2"]
//! ports = [2]
//! cores = [1, 2, 4, 7]
//! sizes = ["1 KB", "16 MB"]       # or "enterprise"
//! offload = ["none", "all", "1 MB"]
//! latency = true                  # at half load, too
//! ```

use super::case::LaconicCase;
use super::finding::{CardFinding, Place};
use super::sensitivity::Guess;
use anyhow::{Context, Result, ensure};
use hairpin_sim::http_testbed::HostProfile;
use serde::Deserialize;
use std::path::Path;

/// Cases of a file at most.
const CASES_MAX: usize = 5000;

/// The experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardExperiment {
    /// Seeds; each case is performed with each.
    pub seeds: Vec<u64>,
    /// Clients' connections for each core.
    pub clients_per_core: u32,
    /// Files of which requests of the enterprise workload ask for one or another.
    pub files: u32,
    /// Hosts.
    pub hosts: HostProfile,
    /// Cases.
    pub family: Vec<Family>,
    /// What the paper says.
    #[serde(default)]
    pub finding: Vec<CardFinding>,
    /// What was guessed.
    #[serde(default)]
    pub guess: Vec<Guess>,
    /// Figures.
    #[serde(default)]
    pub figure: Vec<FigureRequest>,
}

/// Cases: one for each combination.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// For people.
    pub name: String,
    /// Profiles of `lab/profiles/smart-nics`.
    pub nic: Vec<String>,
    /// Ports in use.
    pub ports: Vec<u16>,
    /// Cores with workers.
    pub cores: Vec<u16>,
    /// Sizes of responses.
    pub sizes: Vec<String>,
    /// What goes to the flow engine: `none`, `all`, or from a size on.
    pub offload: Vec<String>,
    /// Whether latency is measured.
    #[serde(default)]
    pub latency: bool,
}

/// A figure of the page.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FigureRequest {
    /// Its file's name.
    pub name: String,
    /// Its subject.
    pub title: String,
    /// The metric drawn.
    pub metric: String,
    /// The axis below: `size` or `cores`.
    pub across: String,
    /// The axis whose values have a line each.
    pub lines: String,
    /// Of which cases.
    pub at: Place,
    /// Whether nginx on one x86 core stands beside, from table 1.
    #[serde(default)]
    pub nginx: bool,
}

impl CardExperiment {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or its defect.
    pub fn read(path: &Path) -> Result<CardExperiment> {
        let named = || format!("experiment {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        CardExperiment::parse(&text).with_context(named)
    }

    /// Parses its text.
    ///
    /// # Errors
    /// Its defect.
    pub fn parse(text: &str) -> Result<CardExperiment> {
        let mut experiment: CardExperiment = toml::from_str(text)?;
        ensure!(!experiment.seeds.is_empty(), "there is no seed");
        ensure!(experiment.clients_per_core > 0 && experiment.files > 0, "clients_per_core and files are at least 1");
        for finding in &mut experiment.finding {
            finding.look_up()?;
            finding.check().with_context(|| format!("finding {}", finding.id))?;
        }
        let cases = experiment.cases();
        ensure!(cases.len() <= CASES_MAX, "{} cases, more than {CASES_MAX}", cases.len());
        for finding in &experiment.finding {
            ensure!(
                cases.iter().any(|case| case.is_at(&finding.at)),
                "finding {}: no case is at its place",
                finding.id
            );
        }
        for guess in &experiment.guess {
            guess.check().with_context(|| format!("guess {}", guess.name))?;
        }
        Ok(experiment)
    }

    /// All cases as they are guessed to be, each once.
    pub fn cases(&self) -> Vec<LaconicCase> {
        let mut all: Vec<LaconicCase> = Vec::new();
        for family in &self.family {
            for case in family.cases(&self.seeds) {
                match all.iter_mut().find(|other| other.name() == case.name()) {
                    Some(other) => other.latency |= case.latency,
                    None => all.push(case),
                }
            }
        }
        all
    }

    /// The cases of the main findings, with the first seed, where a guessed number is another one.
    pub fn varied(&self) -> Vec<LaconicCase> {
        let mut all: Vec<LaconicCase> = Vec::new();
        let wanted = |case: &LaconicCase| {
            let mut main = self.finding.iter().filter(|finding| finding.main);
            case.seed == self.seeds[0] && main.any(|finding| finding.needs(case))
        };
        let latency = |case: &LaconicCase| {
            let mut main = self.finding.iter().filter(|finding| finding.main);
            main.any(|finding| finding.is_of_latency() && finding.needs(case))
        };
        let cases = self.cases().into_iter().filter(wanted);
        let cases: Vec<LaconicCase> = cases.map(|case| LaconicCase { latency: latency(&case), ..case }).collect();
        for guess in &self.guess {
            for &value in &guess.values {
                let concerned = cases.iter().filter(|case| case.is_at(&guess.at));
                all.extend(
                    concerned.map(|case| LaconicCase { vary: Some((guess.name.clone(), value)), ..case.clone() }),
                );
            }
        }
        all
    }
}

impl Family {
    fn cases(&self, seeds: &[u64]) -> Vec<LaconicCase> {
        let mut cases = Vec::new();
        for nic in &self.nic {
            for &ports in &self.ports {
                for &cores in &self.cores {
                    for size in &self.sizes {
                        for offload in &self.offload {
                            cases.extend(seeds.iter().map(|&seed| LaconicCase {
                                nic: nic.clone(),
                                ports,
                                cores,
                                size: size.clone(),
                                offload: offload.clone(),
                                latency: self.latency,
                                seed,
                                vary: None,
                            }));
                        }
                    }
                }
            }
        }
        cases
    }
}
