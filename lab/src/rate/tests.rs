//! Searches on modelled devices whose limit is known.

use super::*;
use crate::testbed::{Measurement, SendRate, Testbed, Trial, TrialProgress};
use anyhow::Result;

/// Carries `limit` packets a second and drops what is above; `noise` of it comes and goes; now and then a trial is
/// disturbed, whatever its load.
struct Model {
    limit: f64,
    source: f64,
    noise: f64,
    /// The part of trials that is disturbed, and the loss in one.
    disturbed: (f64, f64),
    random: fastrand::Rng,
    trials: u32,
    /// The part of trials in which the source is held up and sends half.
    held_up: f64,
    /// At full speed the source waits for the device.
    waits: bool,
    /// Disturbed trials say that they are.
    tells: bool,
}

impl Model {
    fn quiet(limit: f64) -> Model {
        let random = fastrand::Rng::with_seed(5);
        let (noise, disturbed, held_up) = (0.0, (0.0, 0.0), 0.0);
        Model { limit, source: 20e6, noise, disturbed, random, trials: 0, held_up, waits: false, tells: false }
    }

    fn noisy(limit: f64, seed: u64) -> Model {
        let random = fastrand::Rng::with_seed(seed);
        Model { noise: 0.003, disturbed: (0.15, 0.02), random, ..Model::quiet(limit) }
    }
}

impl Probe for Model {
    fn probe(&mut self, load: OfferedLoad, duration: Duration) -> Result<TrialObservation> {
        self.trials += 1;
        let offered = match load {
            OfferedLoad::Most if self.waits => self.source.min(self.limit * 0.9),
            OfferedLoad::Most => self.source,
            OfferedLoad::Rate(rate) => rate.min(self.source),
        };
        let offered = if self.random.f64() < self.held_up { offered / 2.0 } else { offered };
        let limit = self.limit * (1.0 + self.noise * (self.random.f64() * 2.0 - 1.0));
        let mut loss = (1.0 - limit / offered).max(0.0);
        let disturbed = self.random.f64() < self.disturbed.0;
        if disturbed {
            loss = loss.max(self.disturbed.1);
        }
        let sent = (offered * duration.as_secs_f64()) as u64;
        let lost = (sent as f64 * loss) as u64;
        let is_starved = disturbed && self.tells;
        Ok(TrialObservation { offered, forwarded: offered * (1.0 - loss), sent, lost, is_starved })
    }
}

fn find(model: &mut Model, goal: f64, options: &SearchOptions) -> SearchOutcome {
    search(model, goal, None, options, &mut |_| ()).unwrap()
}

#[test]
fn the_limit_of_a_quiet_device_lies_between_the_bounds() {
    let options = SearchOptions::default();
    for limit in [1500.0, 2e4, 333_333.0, 1e6, 7.77e6, 19.5e6] {
        for goal in [0.0, 0.005] {
            let outcome = find(&mut Model::quiet(limit), goal, &options);
            // With loss allowed, the rate is a little higher than what is forwarded.
            let highest = limit / (1.0 - goal);
            let SearchResult::Between { lower, upper } = outcome.found else { panic!("{limit} {goal}: {outcome:?}") };
            // A packet in a trial is the grain.
            assert!(lower <= highest * 1.0001 + 1.0 && upper >= highest * 0.9999, "{limit} {goal}: {outcome:?}");
            assert!(upper - lower <= upper * 0.01 + 1e-6 && outcome.settled, "{outcome:?}");
            assert!(outcome.forwarded <= limit + 1.0 && outcome.forwarded > limit * 0.98, "{outcome:?}");
            assert!(outcome.trials < 80, "{outcome:?}");
        }
    }
}

#[test]
fn noisy_device_rate_is_within_the_interval() {
    let mut held = 0;
    for seed in 0..40 {
        let mut model = Model::noisy(3e6, seed);
        let all = repeat(&mut model, &[0.005], 5, &SearchOptions::default(), &mut |_, _| ()).unwrap();
        let rate = all[0].rate.unwrap();
        assert_eq!(rate.count, 5, "seed {seed}");
        assert!((rate.mean / 3e6 - 1.0).abs() < 0.03, "seed {seed}: {rate:?}");
        let (low, high) = rate.interval();
        // The rate forwarded with 0.5 % loss is 0.5 % more, and a search ends within 1 % below it.
        held += u32::from(high > 3e6 * 0.995 && low < 3e6 / 0.995);
    }
    assert!(held >= 34, "{held} of 40");
}

/// The reason for a majority of trials: a search that lets one disturbed trial decide ends far below.
#[test]
fn disturbed_trials_do_not_decide() {
    let far_off = |options: &SearchOptions| {
        let off = |seed: &u64| {
            let found = find(&mut Model::noisy(3e6, *seed), 0.005, options).found.rate().unwrap_or(0.0);
            found < 3e6 * 0.985
        };
        (0..100).filter(off).count()
    };
    let short = Duration::from_millis(500);
    let majority = far_off(&SearchOptions { last: short, ..SearchOptions::default() });
    let single = far_off(&SearchOptions { last: short, first: Duration::from_millis(100), ..SearchOptions::rfc2544() });
    assert!(majority <= 5 && single > 3 * majority.max(1), "{single} of 100 far off, {majority} by majority");
}

/// If two trials of five are disturbed, a majority is no help, but knowing the disturbed ones is.
#[test]
fn trials_of_starved_threads_are_made_again() {
    let busy = |tells, seed| {
        let random = fastrand::Rng::with_seed(seed);
        find(
            &mut Model { disturbed: (0.4, 0.02), tells, random, ..Model::quiet(3e6) },
            0.005,
            &SearchOptions::default(),
        )
    };
    let far_off = |outcome: &SearchOutcome| outcome.found.rate().unwrap_or(0.0) < 3e6 * 0.985;
    let told: Vec<SearchOutcome> = (0..50).map(|seed| busy(true, seed)).collect();
    let untold = (0..50).filter(|&seed| far_off(&busy(false, seed))).count();
    assert!(told.iter().filter(|outcome| far_off(outcome)).count() <= 2 && untold >= 8, "{untold} {told:?}");
    assert!(told.iter().all(|outcome| outcome.starved < outcome.trials));
    assert!(told.iter().filter(|outcome| outcome.starved > 0).count() > 40, "{told:?}");
    // If all of them are, that is what there is.
    let hopeless = Model { disturbed: (1.0, 0.02), tells: true, ..Model::quiet(3e6) };
    let outcome = find(&mut { hopeless }, 0.005, &SearchOptions::default());
    assert!(!outcome.settled || outcome.found.rate().is_none(), "{outcome:?}");
}

#[test]
fn the_sources_limit_is_not_taken_for_the_devices() {
    let outcome = find(&mut Model { source: 2e6, ..Model::quiet(5e6) }, 0.0, &SearchOptions::default());
    let SearchResult::AtLeast(rate) = outcome.found else { panic!("{outcome:?}") };
    assert!(rate <= 2e6 / 0.97 + 1.0 && rate > 2e6 * 0.97 && outcome.settled, "{outcome:?}");
    let options = SearchOptions { highest: Some(1e6), ..SearchOptions::default() };
    assert_eq!(find(&mut Model::quiet(5e6), 0.0, &options).found, SearchResult::AtLeast(1e6));
    // More is allowed than the source can.
    let options = SearchOptions { highest: Some(8e6), ..SearchOptions::default() };
    let outcome = find(&mut Model { source: 2e6, ..Model::quiet(5e6) }, 0.0, &options);
    let SearchResult::AtLeast(rate) = outcome.found else { panic!("{outcome:?}") };
    assert!(rate <= 2e6 / 0.97 + 1.0 && rate > 2e6 * 0.97 && outcome.settled, "{outcome:?}");
}

/// Full speed without loss shows nothing then.
#[test]
fn waiting_source_is_not_the_limit() {
    for limit in [1e5, 3e6] {
        let outcome = find(&mut Model { waits: true, ..Model::quiet(limit) }, 0.0, &SearchOptions::default());
        let SearchResult::Between { lower, upper } = outcome.found else { panic!("{outcome:?}") };
        assert!(lower <= limit * 1.0001 && upper >= limit * 0.9999, "{outcome:?}");
    }
}

/// A source that other processes hold up now and then has not reached its limit.
#[test]
fn a_source_that_is_held_up_does_not_end_the_search() {
    for seed in 0..20 {
        let mut model = Model { held_up: 0.2, random: fastrand::Rng::with_seed(seed), ..Model::quiet(3e6) };
        let outcome = find(&mut model, 0.0, &SearchOptions::default());
        let rate = outcome.found.rate().unwrap();
        assert!(outcome.settled && (2.8e6..=3e6 + 1.0).contains(&rate), "seed {seed}: {outcome:?}");
    }
}

/// Nor does one that never gets to send what it should make the search run on.
#[test]
fn a_source_that_is_always_held_up_is_the_limit() {
    let outcome = find(&mut Model { held_up: 1.0, ..Model::quiet(3e6) }, 0.0, &SearchOptions::default());
    assert!(matches!(outcome.found, SearchResult::AtLeast(rate) if rate <= 3e6), "{outcome:?}");
    assert!(outcome.settled && outcome.trials < 40, "{outcome:?}");
}

#[test]
fn device_without_forwarding_is_reported() {
    let outcome = find(&mut Model::quiet(10.0), 0.0, &SearchOptions::default());
    assert_eq!((outcome.found, outcome.forwarded), (SearchResult::Below(1000.0), 0.0));
    assert_eq!(outcome.found.rate(), None);
    assert!(outcome.trials < 80, "{outcome:?}");
}

#[test]
fn lossy_device_is_found_by_a_tolerant_goal() {
    let mut model = Model { disturbed: (1.0, 0.001), ..Model::quiet(3e6) };
    let none = find(&mut model, 0.0, &SearchOptions::default());
    assert_eq!(none.found, SearchResult::Below(1000.0));
    let some = find(&mut model, 0.002, &SearchOptions::default());
    assert!((some.found.rate().unwrap() / 3e6 - 1.0).abs() < 0.012, "{some:?}");
}

#[test]
fn a_search_ends_after_so_many_trials_and_says_so() {
    let options = SearchOptions { trials_max: 6, ..SearchOptions::default() };
    let mut model = Model::quiet(3e6);
    let outcome = find(&mut model, 0.0, &options);
    assert!(!outcome.settled && outcome.trials <= 6 && model.trials == outcome.trials, "{outcome:?}");
}

#[test]
fn senseless_options_are_refused() {
    let refused =
        |options: SearchOptions, goal| search(&mut Model::quiet(1e6), goal, None, &options, &mut |_| ()).is_err();
    assert!(refused(SearchOptions { lowest: 0.0, ..SearchOptions::default() }, 0.0));
    assert!(refused(SearchOptions { highest: Some(10.0), ..SearchOptions::default() }, 0.0));
    assert!(refused(SearchOptions { resolution: 0.0, ..SearchOptions::default() }, 0.0));
    assert!(refused(SearchOptions { trials: 0, ..SearchOptions::default() }, 0.0));
    assert!(refused(SearchOptions { exceed_ratio: 1.0, ..SearchOptions::default() }, 0.0));
    assert!(refused(SearchOptions::default(), 1.0));
}

#[test]
fn progress_tells_every_trial_and_bounds_that_never_cross() {
    let mut steps = Vec::new();
    let options = SearchOptions::default();
    let outcome = search(&mut Model::quiet(3e6), 0.0, None, &options, &mut |step| steps.push(*step)).unwrap();
    assert_eq!(steps.len() as u32, outcome.trials);
    assert_eq!(steps[0].stage, SearchStage::Most);
    let crossed = |step: &SearchStep| matches!(step.bounds, (Some(lower), Some(upper)) if lower >= upper);
    assert!(!steps.iter().any(crossed), "{steps:?}");
}

/// A testbed whose device forwards a million a second.
struct Flat {
    seeds: Vec<u64>,
}

impl Testbed for Flat {
    fn obstacle(&self, _: &Trial) -> Option<String> {
        None
    }

    fn measure(&mut self, trial: &Trial, _: &mut dyn FnMut(TrialProgress)) -> Result<Measurement> {
        self.seeds.push(trial.seed);
        let offered: f64 = match trial.rate {
            SendRate::Packets(rate) => rate,
            _ => 4e6,
        };
        let seconds = trial.duration.as_secs_f64();
        let (sent, received) = ((offered * seconds) as u64, (offered.min(1e6) * seconds) as u64);
        let lost_by_reason = vec![("device-behind".to_owned(), sent - received)];
        let (tx_pps, rx_pps) = (offered, offered.min(1e6));
        Ok(Measurement { sent, received, lost_by_reason, tx_pps, rx_pps, ..Measurement::default() })
    }
}

#[test]
fn a_testbed_is_searched_with_a_new_seed_each_time() {
    let mut testbed = Flat { seeds: Vec::new() };
    let mut progress = |_| ();
    let mut probe = TestbedProbe::new(&mut testbed, &Trial::default(), &mut progress);
    let outcome = search(&mut probe, 0.0, None, &SearchOptions::default(), &mut |_| ()).unwrap();
    let rate = outcome.found.rate().unwrap();
    assert!((0.98e6..=1e6 + 1.0).contains(&rate), "{outcome:?}");
    assert!(testbed.seeds.windows(2).all(|pair| pair[1] == pair[0] + 1));
}
