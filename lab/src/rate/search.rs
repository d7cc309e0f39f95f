//! One search: bounds of a goal, drawn together.

use super::{OfferedLoad, Probe, TrialObservation};
use anyhow::{Result, ensure};
use std::time::Duration;

/// A source that sends less than this part of what it was asked for has reached its own limit.
const OFFERED_MIN: f64 = 0.97;
/// So many trials of one load in which the source sent too little show that it cannot do more.
const SHORT_MAX: usize = 3;
/// So many lossy trials of one load are made again because a thread was kept from its processor; those after count.
const STARVED_MAX: u32 = 5;
/// How much coarser than the last stage the first one is.
const COARSE: f64 = 4.0;

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Packets per second below which nothing is tried; more than 0.
    pub lowest: f64,
    /// Packets per second above which nothing is tried; what the source can, if `None`.
    pub highest: Option<f64>,
    /// Width of the interval at which the search ends, as a part of its upper end: 0.01 is one percent.
    pub resolution: f64,
    /// How long the trials of the first, coarse stage take.
    pub first: Duration,
    /// How long the trials that decide take.
    pub last: Duration,
    /// Trials for each load in the last stage, at most; at least 1. An odd number has a majority.
    pub trials: u16,
    /// The part of a load's trials that may lose too much without making it a lossy one (MLRsearch's goal exceed ratio).
    pub exceed_ratio: f64,
    /// Trials in all for each goal; a search that has not ended by then says so.
    pub trials_max: u32,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions {
            lowest: 1000.0,
            highest: None,
            resolution: 0.01,
            first: Duration::from_millis(200),
            last: Duration::from_secs(1),
            trials: 3,
            exceed_ratio: 0.5,
            trials_max: 150,
        }
    }
}

impl SearchOptions {
    /// RFC 2544, section 26.1 and 24: trials of 60 seconds, one for each load, and none may lose too much.
    pub fn rfc2544() -> SearchOptions {
        let last = Duration::from_secs(60);
        SearchOptions { first: Duration::from_secs(1), last, trials: 1, exceed_ratio: 0.0, ..SearchOptions::default() }
    }

    /// Trials of one load that may lose too much.
    fn lossy_max(&self) -> u16 {
        (f64::from(self.trials) * self.exceed_ratio) as u16
    }

    fn check(&self, goal: f64) -> Result<()> {
        ensure!(self.lowest > 0.0 && self.lowest.is_finite(), "the lowest rate must be more than 0 packets a second");
        ensure!(self.highest.is_none_or(|most| most > self.lowest), "the highest rate must be above the lowest");
        ensure!((0.0001..=0.5).contains(&self.resolution), "the resolution must be 0.0001 to 0.5");
        ensure!(self.trials > 0 && self.trials_max > 0, "there must be at least one trial");
        ensure!((0.0..1.0).contains(&self.exceed_ratio), "the exceed ratio must be 0 to 1, without 1");
        ensure!((0.0..1.0).contains(&goal), "a loss ratio must be 0 to 1, without 1");
        Ok(())
    }
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStage {
    /// As fast as the source can.
    Most,
    /// Short trials.
    Coarse,
    /// The trials that decide.
    Final,
}

/// A trial has been made.
#[derive(Clone, Copy, Debug)]
pub struct SearchStep {
    /// Loss ratio of the goal that is searched for.
    pub goal: f64,
    /// The state of the search.
    pub stage: SearchStage,
    /// The offered rate.
    pub load: OfferedLoad,
    /// The result.
    pub observed: TrialObservation,
    /// The highest rate known to be forwarded, and the lowest known not to be, so far.
    pub bounds: (Option<f64>, Option<f64>),
    /// Trials made for this goal.
    pub trials: u32,
}

/// The result of a search, in packets per second.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchResult {
    /// The device's limit lies between these.
    Between {
        /// The highest rate that is forwarded.
        lower: f64,
        /// The lowest above it that is not.
        upper: f64,
    },
    /// Nothing was forwarded; this is the lowest rate that was tried.
    Below(f64),
    /// The source, or the highest rate allowed, is reached before the device's limit.
    AtLeast(f64),
}

impl SearchResult {
    /// The highest rate shown to be forwarded; `None` if none is.
    pub fn rate(self) -> Option<f64> {
        match self {
            SearchResult::Between { lower, .. } => Some(lower),
            SearchResult::AtLeast(rate) => Some(rate),
            SearchResult::Below(_) => None,
        }
    }
}

/// The outcome of one search.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SearchOutcome {
    /// The loss ratio allowed.
    pub goal: f64,
    /// The rate.
    pub found: SearchResult,
    /// Packets per second that arrived at that rate (its loss, if allowed, is not in it); 0 if none is forwarded.
    pub forwarded: f64,
    /// Trials made.
    pub trials: u32,
    /// Lossy trials among these that were repeated, since a thread of the testbed was kept from its processor.
    #[serde(default)]
    pub starved: u32,
    /// Whether the bounds are as close as was asked for; if not, [`SearchOptions::trials_max`] were too few.
    pub settled: bool,
}

/// Searches the highest rate with a loss ratio of at most `goal` (0: none).
///
/// `start`: where to begin, in packets per second; from what comes through at full speed, if `None`.
///
/// # Errors
/// When a trial failed, or the options make no sense.
pub fn search(
    probe: &mut dyn Probe,
    goal: f64,
    start: Option<f64>,
    options: &SearchOptions,
    progress: &mut dyn FnMut(&SearchStep),
) -> Result<SearchOutcome> {
    options.check(goal)?;
    let mut search =
        RateSearch { probe, goal, options, progress, trials: 0, starved: 0, lower: None, upper: None, cap: None };
    let found = search.run(start)?;
    let forwarded = search.lower.map_or(0.0, |bound| bound.forwarded);
    let close = match found {
        SearchResult::Between { lower, upper } => upper - lower <= upper * options.resolution * 1.000_001,
        SearchResult::Below(_) | SearchResult::AtLeast(_) => true,
    };
    let settled = close && search.trials < options.trials_max;
    Ok(SearchOutcome { goal, found, forwarded, trials: search.trials, starved: search.starved, settled })
}

/// The verdict on a load.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LoadJudgement {
    /// The load is forwarded.
    Forwarded,
    /// Too much of it is lost.
    Lossy,
    /// The source sends this much at most, and the load is forwarded.
    Short(Bound),
}

/// A load that was judged.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    rate: f64,
    forwarded: f64,
}

struct RateSearch<'a> {
    probe: &'a mut dyn Probe,
    goal: f64,
    options: &'a SearchOptions,
    progress: &'a mut dyn FnMut(&SearchStep),
    trials: u32,
    starved: u32,
    lower: Option<Bound>,
    upper: Option<Bound>,
    /// The rate that the source does not pass.
    cap: Option<f64>,
}

impl RateSearch<'_> {
    fn run(&mut self, start: Option<f64>) -> Result<SearchResult> {
        // Only a place to begin: a source at full speed may wait for the device, and then nothing is lost at any rate.
        let most = self.options.highest.map_or(OfferedLoad::Most, OfferedLoad::Rate);
        let first = self.trial(SearchStage::Most, most, self.options.first)?;
        let mut at = start.unwrap_or(first.forwarded);
        let coarse = (self.options.resolution * COARSE).min(0.5);
        for (stage, resolution) in [(SearchStage::Coarse, coarse), (SearchStage::Final, self.options.resolution)] {
            self.cap = self.options.highest;
            if let Some(found) = self.narrow(stage, at, resolution)? {
                return Ok(found);
            }
            // The next stage judges again what this one has found, from its lower bound on.
            if stage == SearchStage::Coarse && self.trials < self.options.trials_max {
                at = self.lower.map_or(at, |bound| bound.rate);
                (self.lower, self.upper) = (None, None);
            }
        }
        Ok(match (self.lower, self.upper) {
            (Some(lower), Some(upper)) => SearchResult::Between { lower: lower.rate, upper: upper.rate },
            // Trials ran out on one side.
            (Some(lower), None) => SearchResult::AtLeast(lower.rate),
            (None, upper) => SearchResult::Below(upper.map_or(self.options.lowest, |bound| bound.rate)),
        })
    }

    /// Finds bounds on both sides of `at`, and draws them together. What it gives is the end of the search.
    fn narrow(&mut self, stage: SearchStage, at: f64, resolution: f64) -> Result<Option<SearchResult>> {
        let mut step = resolution;
        let mut at = at.max(self.options.lowest);
        let mut confirmed = None;
        while self.trials < self.options.trials_max {
            let cap = self.cap.unwrap_or(f64::INFINITY).max(self.options.lowest);
            let (lower, upper) = (self.lower.map(|bound| bound.rate), self.upper.map(|bound| bound.rate));
            at = match (lower, upper) {
                (Some(lower), Some(upper)) if upper - lower <= upper * resolution => {
                    if confirmed == Some(upper) || stage != SearchStage::Final || self.options.trials == 1 {
                        break;
                    }
                    // Disturbed trials may have made it: it is judged once more, and if that is better the way is open.
                    confirmed = Some(upper);
                    if self.judge(stage, upper)? == LoadJudgement::Forwarded {
                        self.upper = None;
                        step = resolution;
                    }
                    continue;
                }
                // The source ends where the device does not yet.
                (Some(lower), _) if lower >= cap * (1.0 - resolution) => {
                    return Ok((stage == SearchStage::Final).then_some(SearchResult::AtLeast(lower)));
                }
                (Some(lower), Some(upper)) => (lower + upper) / 2.0,
                (Some(lower), None) => lower * (1.0 + step),
                (None, Some(upper)) if upper <= self.options.lowest => {
                    return Ok((stage == SearchStage::Final).then_some(SearchResult::Below(self.options.lowest)));
                }
                (None, Some(upper)) => (upper * (1.0 - step).max(0.1)).max(self.options.lowest),
                (None, None) => at,
            };
            at = at.min(cap);
            // Outwards each step is twice the last.
            if lower.is_none() != upper.is_none() {
                step = (step * 2.0).min(0.9);
            }
            if let LoadJudgement::Short(best) = self.judge(stage, at)?
                && upper.is_none_or(|upper| best.rate < upper)
            {
                // So much was sent, and forwarded; more is beyond the source, whatever holds it up.
                let lower = self.lower.filter(|lower| lower.rate >= best.rate).unwrap_or(best);
                self.lower = Some(lower);
                self.cap = Some(cap.min(lower.rate));
            }
        }
        Ok(None)
    }

    /// Whether this load is forwarded, by the majority of its trials in the last stage and by one before; moves a bound.
    /// Trials in which the source sent too little and nothing was lost show nothing, nor do lossy ones in which a thread
    /// was kept from its processor: they are made again.
    fn judge(&mut self, stage: SearchStage, rate: f64) -> Result<LoadJudgement> {
        let (trials, lossy_max, duration) = match stage {
            SearchStage::Final => (self.options.trials, self.options.lossy_max(), self.options.last),
            SearchStage::Most | SearchStage::Coarse => (1, 0, self.options.first),
        };
        let (mut good, mut short, mut lossy, mut starved) = (Vec::new(), Vec::new(), 0, 0);
        while lossy <= lossy_max && good.len() < usize::from(trials - lossy_max) && short.len() < SHORT_MAX {
            let observed = self.trial(stage, OfferedLoad::Rate(rate), duration)?;
            if observed.loss_ratio() > self.goal {
                if observed.is_starved && starved < STARVED_MAX {
                    starved += 1;
                } else {
                    lossy += 1;
                }
            } else if observed.offered < rate * OFFERED_MIN {
                short.push(observed);
            } else {
                good.push(observed);
            }
            if self.trials >= self.options.trials_max {
                break;
            }
        }
        self.starved += starved;
        let mean = |all: &[TrialObservation], of: fn(&TrialObservation) -> f64| {
            all.iter().map(of).sum::<f64>() / all.len().max(1) as f64
        };
        if lossy > lossy_max || (good.is_empty() && short.is_empty()) {
            self.upper = Some(Bound { rate, forwarded: 0.0 });
            return Ok(LoadJudgement::Lossy);
        }
        if good.is_empty() {
            let best = short.iter().max_by(|a, b| a.offered.total_cmp(&b.offered));
            let bound = best.map_or(Bound { rate: 0.0, forwarded: 0.0 }, |best| Bound {
                rate: best.offered,
                forwarded: best.forwarded,
            });
            return Ok(LoadJudgement::Short(bound));
        }
        self.lower = Some(Bound { rate, forwarded: mean(&good, |observed| observed.forwarded) });
        Ok(LoadJudgement::Forwarded)
    }

    fn trial(&mut self, stage: SearchStage, load: OfferedLoad, duration: Duration) -> Result<TrialObservation> {
        let observed = self.probe.probe(load, duration)?;
        self.trials += 1;
        let bounds = (self.lower.map(|bound| bound.rate), self.upper.map(|bound| bound.rate));
        let step = SearchStep { goal: self.goal, stage, load, observed, bounds, trials: self.trials };
        (self.progress)(&step);
        Ok(observed)
    }
}
