//! Flow sizes drawn from a measured distribution.

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use std::path::Path;

/// Lines of a file at most.
const POINTS_MAX: usize = 100_000;
/// Published distributions, by name: lab/flow-sizes.
pub const PUBLISHED: [(&str, &str); 3] = [
    ("web-search", include_str!("../../flow-sizes/web-search.csv")),
    ("data-mining", include_str!("../../flow-sizes/data-mining.csv")),
    ("enterprise", include_str!("../../flow-sizes/enterprise.csv")),
];

/// A cumulative distribution of flow sizes in bytes; between two points the logarithm of the size rises evenly.
#[derive(Clone, Debug)]
pub struct FlowSizes {
    /// Size and cumulative probability; sizes rise, probabilities do not fall, the last is 1.
    points: Vec<(f64, f64)>,
}

impl FlowSizes {
    /// The published distribution of this name; `None`: there is none.
    ///
    /// # Errors
    /// Its file is no distribution.
    pub fn published(name: &str) -> Option<Result<FlowSizes>> {
        let (_, text) = PUBLISHED.iter().find(|(known, _)| *known == name)?;
        Some(FlowSizes::parse(text).with_context(|| format!("the flow sizes {name}")))
    }

    /// Reads `bytes,cumulative probability` lines; a first line of words is a heading.
    ///
    /// # Errors
    /// The file cannot be read, or is no distribution: which line, and why.
    pub fn read(path: &Path) -> Result<FlowSizes> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        FlowSizes::parse(&text).with_context(|| format!("{} is no flow-size distribution", path.display()))
    }

    /// Parses a file's text, as [`FlowSizes::read`] reads it.
    ///
    /// # Errors
    /// It is no distribution: which line, and why.
    pub fn parse(text: &str) -> Result<FlowSizes> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || number == 0 && line.starts_with(|c: char| c.is_alphabetic())
            {
                continue;
            }
            let number = number + 1;
            let (bytes, probability) =
                line.split_once(',').with_context(|| format!("line {number}: not `bytes,probability`"))?;
            let read = |word: &str| word.trim().parse::<f64>().ok().filter(|value| value.is_finite());
            let (Some(bytes), Some(probability)) = (read(bytes), read(probability)) else {
                bail!("line {number}: not two numbers");
            };
            ensure!((0.0..=1e15).contains(&bytes), "line {number}: a size of {bytes} bytes");
            ensure!((0.0..=1.0).contains(&probability), "line {number}: a probability of {probability}");
            if let Some(&(before, reached)) = points.last() {
                ensure!(bytes >= before && probability >= reached, "line {number}: less than the line before");
            }
            ensure!(points.len() < POINTS_MAX, "line {number}: more than {POINTS_MAX} points");
            points.push((bytes.max(1.0), probability));
        }
        match points.last() {
            Some((_, last)) if *last == 1.0 => Ok(FlowSizes { points }),
            Some((_, last)) => bail!("the last probability is {last}, not 1"),
            None => bail!("it is empty"),
        }
    }

    /// Draws a size, one byte or more.
    pub fn draw(&self, random: &mut Rng) -> u64 {
        self.at(random.f64())
    }

    /// The size that a share of `probability` of all flows does not exceed.
    pub fn at(&self, probability: f64) -> u64 {
        let above = self.points.partition_point(|&(_, reached)| reached < probability);
        let Some(&(bytes, reached)) = self.points.get(above) else { return 1 };
        let size = match above.checked_sub(1).map(|below| self.points[below]) {
            Some((from, since)) if reached > since => {
                let share = (probability - since) / (reached - since);
                (from.ln() + share * (bytes.ln() - from.ln())).exp()
            }
            _ => bytes,
        };
        size.round().max(1.0) as u64
    }

    /// The share of all flows that are not larger than `bytes`: the inverse of [`FlowSizes::at`].
    pub fn below(&self, bytes: f64) -> f64 {
        let above = self.points.partition_point(|&(size, _)| size <= bytes);
        let Some(&(size, reached)) = self.points.get(above) else { return 1.0 };
        match above.checked_sub(1).map(|below| self.points[below]) {
            Some((from, since)) => since + (reached - since) * (bytes / from).ln() / (size / from).ln(),
            None => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_file() {
        let text = "bytes,cdf\n100,0\n1500,0.5\n3000,0.6\n400500,0.9\n1000000500,1\n";
        let sizes = FlowSizes::parse(text).unwrap();
        let mut random = Rng::with_seed(4);
        const DRAWS: usize = 200_000;
        let mut drawn: Vec<u64> = (0..DRAWS).map(|_| sizes.draw(&mut random)).collect();
        drawn.sort_unstable();
        // Kolmogorov and Smirnov's distance, at every hundredth; 1.95 / sqrt(n) is exceeded once in a thousand.
        for hundredth in 1..100 {
            let size = sizes.at(f64::from(hundredth) / 100.0);
            let share = drawn.partition_point(|&drawn| drawn <= size) as f64 / DRAWS as f64;
            assert!((share - f64::from(hundredth) / 100.0).abs() < 0.0044, "{hundredth}: {share}");
        }
        let share = |bytes| drawn.partition_point(|&drawn| drawn <= bytes) as f64 / DRAWS as f64;
        for (bytes, probability) in [(1500, 0.5), (3000, 0.6), (400_500, 0.9)] {
            assert!((share(bytes) - probability).abs() < 0.0044, "{bytes}: {}", share(bytes));
        }
    }

    #[test]
    fn halfway_is_the_geometric_mean() {
        let sizes = FlowSizes::parse("100,0\n10000,1\n").unwrap();
        assert_eq!(sizes.at(0.5), 1000);
        assert!((sizes.below(1000.0) - 0.5).abs() < 1e-9);
        assert_eq!((sizes.below(99.0), sizes.below(1e9)), (0.0, 1.0));
        assert_eq!((sizes.at(0.0), sizes.at(1.0)), (100, 10_000));
    }

    #[test]
    fn what_is_no_distribution_is_refused_with_its_line() {
        for (text, says) in [
            ("", "empty"),
            ("10,0\n20,0.5", "not 1"),
            ("10,0\n5,1", "line 2"),
            ("10,0.5\n20,0.4\n30,1", "line 2"),
            ("10,0\nx,1", "line 2"),
            ("10", "line 1"),
            ("10,2", "line 1"),
            ("-1,1", "line 1"),
        ] {
            let error = FlowSizes::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_published_ones_are_read() {
        for (name, _) in PUBLISHED {
            assert!(FlowSizes::published(name).unwrap().unwrap().at(0.5) > 1000);
        }
        assert!(FlowSizes::published("no-such").is_none());
    }
}
