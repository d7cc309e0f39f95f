//! Searches again and again, for a mean and its confidence interval.

use super::{Probe, SearchOptions, SearchOutcome, SearchStep, search};
use crate::statistics::Summary;
use anyhow::Result;

/// All searches for one goal.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Repeated {
    /// The loss ratio allowed.
    pub goal: f64,
    /// Each search.
    pub outcomes: Vec<SearchOutcome>,
    /// Packets per second forwarded, over the searches that found a rate; `None` if none did.
    pub rate: Option<Summary>,
}

impl Repeated {
    /// These searches together.
    pub fn of(goal: f64, outcomes: Vec<SearchOutcome>) -> Repeated {
        let rates: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.found.rate()).collect();
        Repeated { goal, outcomes, rate: Summary::of(&rates) }
    }
}

/// Searches for every goal `repetitions` times. Goals take turns, in changing order, so that what drifts falls on all of
/// them; each search begins anew and knows nothing of those before. `progress` hears of the repetition, from 0, and of
/// every trial.
///
/// # Errors
/// When a trial failed, or the options make no sense.
pub fn repeat(
    probe: &mut dyn Probe,
    goals: &[f64],
    repetitions: u32,
    options: &SearchOptions,
    progress: &mut dyn FnMut(u32, &SearchStep),
) -> Result<Vec<Repeated>> {
    let mut outcomes = vec![Vec::new(); goals.len()];
    for repetition in 0..repetitions {
        let mut order: Vec<usize> = (0..goals.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        for goal in order {
            let found = search(probe, goals[goal], None, options, &mut |step| progress(repetition, step))?;
            outcomes[goal].push(found);
        }
    }
    Ok(goals.iter().zip(outcomes).map(|(goal, outcomes)| Repeated::of(*goal, outcomes)).collect())
}
