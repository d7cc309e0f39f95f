//! Distributions of sizes, times and rates, as they were published.

use crate::traffic::sizes::FlowSizes;
use anyhow::{Result, bail, ensure};
use fastrand::Rng;
use serde::Deserialize;
use std::sync::Arc;

/// Parts of a mixture at most.
const PARTS_MAX: usize = 32;

/// A distribution as a file writes it: exactly one of its first four fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenDistribution {
    /// Always this.
    #[serde(default)]
    pub constant: Option<f64>,
    /// The name of a file of lab/flow-sizes, without its ending.
    #[serde(default)]
    pub points: Option<String>,
    /// Lognormal: the median, and the standard deviation of the logarithm.
    #[serde(default)]
    pub lognormal: Option<(f64, f64)>,
    /// Weighted parts.
    #[serde(default)]
    pub mixture: Option<Vec<Part>>,
    /// What is less is taken for this.
    #[serde(default)]
    pub least: f64,
    /// What is more is taken for this; without it nothing is cut.
    #[serde(default)]
    pub most: Option<f64>,
}

/// A part of a mixture as a file writes it: its weight, and one of the functions.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Weights need not add up to 1.
    pub weight: f64,
    /// Between 0 and this, evenly.
    #[serde(default)]
    pub uniform: Option<f64>,
    /// The median, and the standard deviation of the logarithm.
    #[serde(default)]
    pub lognormal: Option<(f64, f64)>,
    /// The least value, and the shape.
    #[serde(default)]
    pub pareto: Option<(f64, f64)>,
}

/// A function that was fitted to measurements; parameters as in [`Part`].
#[derive(Clone, Debug, PartialEq)]
enum Form {
    Uniform(f64),
    Lognormal(f64, f64),
    Pareto(f64, f64),
}

impl Part {
    fn form(&self) -> Result<Form> {
        match (self.uniform, self.lognormal, self.pareto) {
            (Some(most), None, None) => Ok(Form::Uniform(most)),
            (None, Some((median, sigma)), None) => Ok(Form::Lognormal(median, sigma)),
            (None, None, Some((least, shape))) => Ok(Form::Pareto(least, shape)),
            _ => bail!("a part of a mixture is one of `uniform`, `lognormal` and `pareto`"),
        }
    }
}

impl Form {
    fn draw(&self, random: &mut Rng) -> f64 {
        match *self {
            Form::Uniform(most) => random.f64() * most,
            Form::Lognormal(median, sigma) => median * (sigma * normal(random)).exp(),
            Form::Pareto(least, shape) => least * (1.0 - random.f64()).powf(-1.0 / shape),
        }
    }

    fn below(&self, x: f64) -> f64 {
        match *self {
            Form::Uniform(most) => (x / most).clamp(0.0, 1.0),
            Form::Lognormal(..) if x <= 0.0 => 0.0,
            Form::Lognormal(median, sigma) => {
                0.5 * (1.0 + libm::erf((x / median).ln() / (sigma * std::f64::consts::SQRT_2)))
            }
            Form::Pareto(least, shape) => 1.0 - (least / x.max(least)).powf(shape),
        }
    }

    fn is_sound(&self) -> bool {
        let (one, other) = match *self {
            Form::Uniform(most) => (most, 1.0),
            Form::Lognormal(a, b) | Form::Pareto(a, b) => (a, b),
        };
        one.is_finite() && other.is_finite() && one > 0.0 && other > 0.0
    }
}

/// A value of the standard normal distribution (Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958).
pub fn normal(random: &mut Rng) -> f64 {
    let (u, v) = (1.0 - random.f64(), random.f64());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[derive(Clone, Debug)]
enum Curve {
    Constant(f64),
    Points(Arc<FlowSizes>),
    /// Weights are cumulative, the last is 1.
    Mixture(Vec<(f64, Form)>),
}

/// A distribution.
#[derive(Clone, Debug)]
pub struct Distribution {
    curve: Curve,
    least: f64,
    most: f64,
}

impl Distribution {
    /// What a file says; `points` finds a published curve by its name.
    ///
    /// # Errors
    /// It says none, several, or numbers that make no distribution.
    pub fn of(written: &WrittenDistribution, points: impl Fn(&str) -> Result<FlowSizes>) -> Result<Distribution> {
        let said = [
            written.constant.is_some(),
            written.points.is_some(),
            written.lognormal.is_some(),
            written.mixture.is_some(),
        ];
        ensure!(
            said.iter().filter(|&&said| said).count() == 1,
            "a distribution is one of `constant`, `points`, `lognormal` and `mixture`"
        );
        let mixture = match (written.lognormal, &written.mixture) {
            (Some((median, sigma)), _) => vec![(1.0, Form::Lognormal(median, sigma))],
            (_, Some(parts)) => parts.iter().map(|part| Ok((part.weight, part.form()?))).collect::<Result<_>>()?,
            _ => Vec::new(),
        };
        let curve = match (written.constant, &written.points) {
            (Some(value), _) => {
                ensure!(value.is_finite() && value >= 0.0, "a constant of {value}");
                Curve::Constant(value)
            }
            (_, Some(name)) => Curve::Points(Arc::new(points(name)?)),
            _ => Curve::Mixture(cumulative(&mixture)?),
        };
        let most = written.most.unwrap_or(f64::INFINITY);
        ensure!(written.least >= 0.0 && written.least <= most, "`least` is 0 or more, and not above `most`");
        Ok(Distribution { curve, least: written.least, most })
    }

    /// Draws a value.
    pub fn draw(&self, random: &mut Rng) -> f64 {
        let value = match &self.curve {
            Curve::Constant(value) => *value,
            Curve::Points(points) => points.draw(random) as f64,
            Curve::Mixture(parts) => {
                let at = random.f64();
                let place = parts.partition_point(|(reached, _)| *reached < at).min(parts.len() - 1);
                parts[place].1.draw(random)
            }
        };
        value.clamp(self.least, self.most)
    }

    /// The probability of `x` or less.
    pub fn below(&self, x: f64) -> f64 {
        if x >= self.most {
            return 1.0;
        }
        if x < self.least {
            return 0.0;
        }
        match &self.curve {
            Curve::Constant(value) => f64::from(x >= *value),
            Curve::Points(points) => points.below(x),
            Curve::Mixture(parts) => {
                let mut before = 0.0;
                let weighted = parts.iter().map(|(reached, form)| {
                    let weight = reached - before;
                    before = *reached;
                    weight * form.below(x)
                });
                weighted.sum()
            }
        }
    }
}

fn cumulative(parts: &[(f64, Form)]) -> Result<Vec<(f64, Form)>> {
    ensure!((1..=PARTS_MAX).contains(&parts.len()), "a mixture has 1 to {PARTS_MAX} parts");
    let all: f64 = parts.iter().map(|(weight, _)| weight).sum();
    let mut reached = 0.0;
    let mut cumulative = Vec::new();
    for (weight, form) in parts {
        ensure!(*weight > 0.0 && weight.is_finite(), "a weight of {weight}");
        ensure!(form.is_sound(), "the numbers of a part are above 0: {form:?}");
        reached += weight / all;
        cumulative.push((reached, form.clone()));
    }
    if let Some((last, _)) = cumulative.last_mut() {
        *last = 1.0;
    }
    Ok(cumulative)
}
