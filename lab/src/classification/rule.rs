//! The rules by which a finding is agreed with. Nothing is decided by hand: a rule makes claims on the means over all seeds,
//! each true or not, and their number decides.

use super::file::{ClassificationExperiment, methods_by_name};
use super::perform::CaseRow;
use crate::statistics::Summary;
use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Result, ensure};
use hairpin_sim::sharing::SharingMethod;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A quantity of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingMetric {
    /// Gbit/s of frames.
    Gbit,
    /// Mean round trip through the balancer, in microseconds.
    RoundTrip,
    /// Percent of the cores' time spent in waiting for a lock.
    Waiting,
}

impl SharingMetric {
    /// Its value.
    pub(super) fn of(self, row: &CaseRow) -> f64 {
        match self {
            SharingMetric::Gbit => row.gbit,
            SharingMetric::RoundTrip => row.rtt,
            SharingMetric::Waiting => row.waiting,
        }
    }

    /// Its unit.
    pub(super) fn unit(self) -> &'static str {
        match self {
            SharingMetric::Gbit => "Gbit/s",
            SharingMetric::RoundTrip => "us",
            SharingMetric::Waiting => "%",
        }
    }
}

/// A rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ClassificationRule {
    /// On so many cores each method is not below the next one by more than the part `by` of it.
    Order {
        /// What is compared.
        metric: SharingMetric,
        /// The methods, in order.
        #[serde(deserialize_with = "methods_by_name")]
        methods: Vec<SharingMethod>,
        /// Numbers of cores.
        cores: Vec<u16>,
        /// A part, 0 to 1.
        by: f64,
    },
    /// On so many cores the first is above the second, intervals apart.
    Above {
        /// What is compared.
        metric: SharingMetric,
        /// The methods, in order.
        #[serde(deserialize_with = "methods_by_name")]
        methods: Vec<SharingMethod>,
        /// Numbers of cores.
        cores: Vec<u16>,
    },
    /// On so many cores the largest is no more than the part `by` above the smallest.
    Alike {
        /// What is compared.
        metric: SharingMetric,
        /// The methods, in order.
        #[serde(deserialize_with = "methods_by_name")]
        methods: Vec<SharingMethod>,
        /// Numbers of cores.
        cores: Vec<u16>,
        /// A part, 0 to 1.
        by: f64,
    },
    /// A method has its highest throughput on `at` cores, and less on the most cores, intervals apart.
    Peak {
        /// The method.
        #[serde(deserialize_with = "method_by_name")]
        method: SharingMethod,
        /// The number of cores.
        at: u16,
    },
    /// By number of cores, no further from the paper's figure than `within`, in the metric's unit, or the part `by` of it.
    Figures {
        /// What is compared.
        metric: SharingMetric,
        /// The method.
        #[serde(deserialize_with = "method_by_name")]
        method: SharingMethod,
        /// The paper's figures by number of cores.
        theirs: BTreeMap<String, f64>,
        /// In the metric's unit; 0: see `by`.
        #[serde(default)]
        within: f64,
        /// A part, 0 to 1.
        #[serde(default)]
        by: f64,
    },
}

fn method_by_name<'de, D: Deserializer<'de>>(from: D) -> Result<SharingMethod, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

/// The rows of one device at one factor of the lines' costs.
#[derive(Clone, Copy, Debug)]
pub struct Sharing<'a> {
    rows: &'a [CaseRow],
    device: &'a str,
    line: f64,
}

impl<'a> Sharing<'a> {
    /// Of all rows those of a device, at a factor.
    pub fn of(rows: &'a [CaseRow], device: &'a str, line: f64) -> Sharing<'a> {
        Sharing { rows, device, line }
    }

    /// All seeds of a method on so many cores.
    pub fn cell(&self, method: SharingMethod, cores: u16) -> impl Iterator<Item = &'a CaseRow> {
        let (rows, device, line) = (self.rows, self.device, self.line);
        rows.iter().filter(move |row| {
            (row.device.as_str(), row.method.as_str(), row.cores, row.line) == (device, method.name(), cores, line)
        })
    }

    /// A quantity over all seeds.
    pub fn summary(&self, metric: SharingMetric, method: SharingMethod, cores: u16) -> Option<Summary> {
        Summary::of(&self.cell(method, cores).map(|row| metric.of(row)).collect::<Vec<_>>())
    }
}

/// A part of a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// In words, with our figures.
    pub text: String,
    /// Whether it is so.
    pub holds: bool,
}

/// A verdict, and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassificationVerdict {
    /// Whether it is so: all claims, half of them at least, or fewer.
    pub verdict: CaseVerdict,
    /// The claims.
    pub claims: Vec<Claim>,
}

fn said(value: &Summary, unit: &str) -> String {
    let half = value.half_width.map_or(String::new(), |half| format!(" ± {half:.1}"));
    format!("{:.1}{half} {unit}", value.mean)
}

impl ClassificationRule {
    /// Whether the experiment has what it names.
    ///
    /// # Errors
    /// What it has not.
    pub(super) fn check(&self, experiment: &ClassificationExperiment) -> Result<()> {
        let (methods, cores) = self.places();
        for method in methods {
            ensure!(experiment.methods.contains(&method), "the experiment has no method {method}");
        }
        for cores in cores {
            ensure!(experiment.cores.contains(&cores), "the experiment has no {cores} cores");
        }
        match self {
            ClassificationRule::Order { by, .. } | ClassificationRule::Alike { by, .. } => {
                ensure!((0.0..1.0).contains(by), "by is a part, 0 to 1");
            }
            ClassificationRule::Above { methods, .. } => ensure!(methods.len() == 2, "above names two methods"),
            ClassificationRule::Figures { theirs, within, by, .. } => {
                ensure!((*within > 0.0) != (*by > 0.0), "figures have either within or by");
                ensure!(theirs.keys().all(|cores| cores.parse::<u16>().is_ok()), "theirs is by number of cores");
            }
            ClassificationRule::Peak { .. } => {}
        }
        Ok(())
    }

    fn places(&self) -> (Vec<SharingMethod>, Vec<u16>) {
        match self {
            ClassificationRule::Order { methods, cores, .. }
            | ClassificationRule::Above { methods, cores, .. }
            | ClassificationRule::Alike { methods, cores, .. } => (methods.clone(), cores.clone()),
            ClassificationRule::Peak { method, at } => (vec![*method], vec![*at]),
            ClassificationRule::Figures { method, theirs, .. } => {
                (vec![*method], theirs.keys().filter_map(|cores| cores.parse().ok()).collect())
            }
        }
    }

    /// Judges it; `cores` are those that the experiment has.
    pub fn judge(&self, seen: &Sharing<'_>, cores: &[u16]) -> ClassificationVerdict {
        let claims = self.claims(seen, cores);
        let verdict = match &claims {
            None => CaseVerdict::NotMeasured,
            Some(claims) => CaseVerdict::of_places(claims.iter().filter(|claim| claim.holds).count(), claims.len()),
        };
        ClassificationVerdict { verdict, claims: claims.unwrap_or_default() }
    }

    /// All claims; `None` if something was not measured, or there is nothing to claim.
    fn claims(&self, seen: &Sharing<'_>, all_cores: &[u16]) -> Option<Vec<Claim>> {
        let mut claims = Vec::new();
        match self {
            ClassificationRule::Order { metric, methods, cores, by } => {
                for &cores in cores {
                    for pair in methods.windows(2) {
                        let [more, less] = [pair[0], pair[1]].map(|method| seen.summary(*metric, method, cores));
                        let (more, less) = (more?, less?);
                        claims.push(pair_claim(
                            pair,
                            cores,
                            (&more, &less),
                            *metric,
                            more.mean >= less.mean * (1.0 - by),
                        ));
                    }
                }
            }
            ClassificationRule::Above { metric, methods, cores } => {
                for &cores in cores {
                    let (more, less) =
                        (seen.summary(*metric, methods[0], cores)?, seen.summary(*metric, methods[1], cores)?);
                    let holds = more.interval().0 > less.interval().1;
                    claims.push(pair_claim(methods, cores, (&more, &less), *metric, holds));
                }
            }
            ClassificationRule::Alike { metric, methods, cores, by } => {
                for &cores in cores {
                    let means: Option<Vec<f64>> =
                        methods.iter().map(|method| Some(seen.summary(*metric, *method, cores)?.mean)).collect();
                    let means = means?;
                    let (least, most) =
                        (means.iter().copied().reduce(f64::min)?, means.iter().copied().reduce(f64::max)?);
                    let unit = metric.unit();
                    claims.push(Claim {
                        text: format!("{cores} core(s): {least:.1} to {most:.1} {unit}"),
                        holds: most <= least * (1.0 + by),
                    });
                }
            }
            ClassificationRule::Peak { method, at } => claims = peak(seen, *method, *at, all_cores)?,
            ClassificationRule::Figures { metric, method, theirs, within, by } => {
                for (cores, theirs) in theirs {
                    let ours = seen.summary(*metric, *method, cores.parse().ok()?)?;
                    let unit = metric.unit();
                    claims.push(Claim {
                        text: format!("{method}, {cores} core(s): {} beside {theirs} {unit}", said(&ours, unit)),
                        holds: (ours.mean - theirs).abs() <= within.max(by * theirs),
                    });
                }
            }
        }
        (!claims.is_empty()).then_some(claims)
    }
}

fn pair_claim(
    methods: &[SharingMethod],
    cores: u16,
    (more, less): (&Summary, &Summary),
    metric: SharingMetric,
    holds: bool,
) -> Claim {
    let (more, less) = (said(more, metric.unit()), said(less, metric.unit()));
    Claim { text: format!("{cores} core(s): {} {more}, {} {less}", methods[0], methods[1]), holds }
}

fn peak(seen: &Sharing<'_>, method: SharingMethod, at: u16, all_cores: &[u16]) -> Option<Vec<Claim>> {
    let metric = SharingMetric::Gbit;
    let values: Option<Vec<(u16, Summary)>> =
        all_cores.iter().map(|&cores| Some((cores, seen.summary(metric, method, cores)?))).collect();
    let values = values?;
    let (found, highest) = values.iter().max_by(|(_, one), (_, other)| one.mean.total_cmp(&other.mean))?;
    let (last, fewest) = values.last()?;
    Some(vec![
        Claim { text: format!("highest on {found} core(s): {}", said(highest, metric.unit())), holds: *found == at },
        Claim {
            text: format!("on {last} cores {}", said(fewest, metric.unit())),
            holds: fewest.interval().1 < highest.interval().0,
        },
    ])
}
