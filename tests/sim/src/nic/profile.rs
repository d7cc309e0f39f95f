//! The profile of a card, as in a file (`lab/profiles/*.toml`), each number with its source.

use hairpin_core::engine::EngineCaps;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A card.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CardProfile {
    /// Its name.
    pub name: String,
    /// The source of the numbers, and which are guesses.
    pub source: String,
    /// Its abilities.
    pub abilities: CardAbilities,
    /// The tables of rules.
    pub tables: RuleTables,
    /// How rules come and go.
    pub updates: Updates,
    /// How packets are turned round.
    pub forwarding: ForwardingProfile,
    /// Its reports about rules.
    #[serde(default)]
    pub counters: Counting,
}

/// The abilities of a card for a packet.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CardAbilities {
    /// It adds to sequence and acknowledgement numbers.
    pub rewrites_sequence: bool,
    /// It translates SACK blocks.
    pub rewrites_sack: bool,
    /// It shifts windows.
    pub rewrites_window: bool,
    /// It adds to timestamps.
    pub rewrites_timestamps: bool,
    /// It checks ranges of numbers.
    pub checks_guards: bool,
}

/// Tables of rules. Rules go to the first one as long as it has room, if there are two.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTables {
    /// Rules in all, at most.
    pub rules_max: u32,
    /// Rules in the first table; 0: there is but one.
    #[serde(default)]
    pub first_rules_max: u32,
    /// How many times as long a change of the first table takes.
    #[serde(default = "one")]
    pub first_factor: f64,
}

/// Changes of rules. They are made one after the other, a batch at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Updates {
    /// The time of an insertion, in microseconds, in batches of so many; in between, and beyond, by the nearest smaller one.
    pub insert_us: Vec<ByBatch>,
    /// The time of a deletion, in microseconds, by the size of the batch as in `insert_us`.
    pub delete_us: Vec<ByBatch>,
    /// Changes in a batch at most.
    pub batch_max: u32,
    /// Requests that may wait.
    pub waiting_max: u32,
    /// From a change until it is confirmed, in microseconds: the least and the most. Later ones may be confirmed earlier.
    #[serde(default)]
    pub confirmed_us: (f64, f64),
    /// Of a million insertions, so many fail.
    #[serde(default)]
    pub failing_ppm: u32,
}

/// Microseconds for each change in a batch of `batch`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ByBatch {
    /// Changes in a batch.
    pub batch: u32,
    /// Microseconds for each of them.
    pub us: f64,
}

/// Packets that match.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardingProfile {
    /// Gigabits per second.
    pub gbit_s: f64,
    /// Millions of packets per second.
    pub mpps: f64,
    /// From arrival to departure of a packet that waits for nothing, in microseconds.
    pub latency_us: f64,
    /// Packets that may wait; others are lost.
    pub waiting_max: u32,
    /// The part of its speed that is left while rules change, 0 to 1.
    #[serde(default = "one")]
    pub while_changing: f64,
}

/// The reports about rules.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counting {
    /// Counters are as they were so many milliseconds ago, at most.
    pub stale_ms: f64,
    /// With more rules than that none are kept; 0: they always are.
    pub rules_max: u32,
}

fn one() -> f64 {
    1.0
}

/// The defect of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError(String);

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProfileError {}

impl CardProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Its defect, and the place of it.
    pub fn parse(text: &str) -> Result<CardProfile, ProfileError> {
        let profile: CardProfile = toml::from_str(text).map_err(|error| ProfileError(error.to_string()))?;
        profile.check().map_err(ProfileError)?;
        Ok(profile)
    }

    /// This card with all that is a rate or a number of rules times `scale`, and the fixed times divided by it. How
    /// many requests may wait stays ([`CardProfile::scale_waiting`]).
    pub fn scaled(&self, scale: f64) -> CardProfile {
        let mut card = self.clone();
        let rules = |rules: u32| (f64::from(rules) * scale).round() as u32;
        card.tables.rules_max = rules(card.tables.rules_max).max(2);
        card.tables.first_rules_max = rules(card.tables.first_rules_max);
        if card.counters.rules_max > 0 {
            card.counters.rules_max = rules(card.counters.rules_max).max(1);
        }
        for step in card.updates.insert_us.iter_mut().chain(&mut card.updates.delete_us) {
            step.us /= scale;
        }
        let (least, most) = card.updates.confirmed_us;
        card.updates.confirmed_us = (least / scale, most / scale);
        card.forwarding.gbit_s *= scale;
        card.forwarding.mpps *= scale;
        card.forwarding.latency_us /= scale;
        card
    }

    /// The limit of waiting requests is a time, at the card's rate of rules: where that is scaled, and how long flows live
    /// is not, so many fewer requests may. A batch may always.
    pub fn scale_waiting(&mut self, scale: f64) {
        let most = self.updates.waiting_max;
        let waiting = (f64::from(most) * scale).round() as u32;
        self.updates.waiting_max = waiting.max(self.updates.batch_max).min(most);
    }

    /// The worker's view of it.
    pub fn caps(&self) -> EngineCaps {
        EngineCaps {
            rules_max: self.tables.rules_max,
            families_apart: false,
            ops_in_flight_max: self.updates.waiting_max,
            rewrites_sequence: self.abilities.rewrites_sequence,
            rewrites_sack: self.abilities.rewrites_sack,
            rewrites_window: self.abilities.rewrites_window,
            rewrites_timestamps: self.abilities.rewrites_timestamps,
            checks_guards: self.abilities.checks_guards,
            counts: true,
            judges_access: false,
        }
    }

    fn check(&self) -> Result<(), String> {
        for (what, steps) in [("insert_us", &self.updates.insert_us), ("delete_us", &self.updates.delete_us)] {
            let rising = steps.windows(2).all(|pair| pair[0].batch < pair[1].batch);
            if steps.first().is_none_or(|first| first.batch != 1) || !rising {
                return Err(format!("updates.{what} begins with a batch of 1, and batches rise"));
            }
            if steps.iter().any(|step| !(step.us.is_finite() && step.us >= 0.0)) {
                return Err(format!("updates.{what} has a time that is none"));
            }
        }
        let forwarding = &self.forwarding;
        if [forwarding.gbit_s, forwarding.mpps].iter().any(|speed| !(speed.is_finite() && *speed > 0.0)) {
            return Err("forwarding.gbit_s and forwarding.mpps are above 0".into());
        }
        if !(forwarding.latency_us.is_finite() && (0.0..1e6).contains(&forwarding.latency_us)) {
            return Err("forwarding.latency_us is 0 to 1,000,000".into());
        }
        if !(0.01..=1.0).contains(&forwarding.while_changing) {
            return Err("forwarding.while_changing is a part, 0.01 to 1".into());
        }
        if self.tables.rules_max < 2 || self.updates.batch_max == 0 || self.updates.waiting_max < 2 {
            return Err("tables.rules_max and updates.waiting_max are at least 2, updates.batch_max at least 1".into());
        }
        let (least, most) = self.updates.confirmed_us;
        if !(0.0..=most).contains(&least) || !(1.0..1e6).contains(&self.tables.first_factor) {
            return Err("updates.confirmed_us rises, and tables.first_factor is at least 1".into());
        }
        Ok(())
    }
}

/// Nanoseconds for each change in a batch of `size`.
pub(super) fn each_ns(steps: &[ByBatch], size: usize) -> u64 {
    let step = steps.iter().rev().find(|step| step.batch as usize <= size).or(steps.first());
    (step.map_or(0.0, |step| step.us) * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_that_come_along_are_right() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/profiles");
        let mut names = Vec::new();
        for file in std::fs::read_dir(directory).expect("profiles/") {
            let path = file.expect("an entry").path();
            // lab/profiles/cores/ is about processors.
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a text");
            let profile = CardProfile::parse(&text).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
            assert_eq!(path.file_stem().and_then(|stem| stem.to_str()), Some(profile.name.as_str()));
            assert!(profile.source.len() > 40, "{}: where are the numbers from?", profile.name);
            names.push(profile.name);
        }
        names.sort();
        assert_eq!(names, ["agilio", "bluefield-2", "connectx-5", "connectx-5-waiting", "connectx-6", "liquidio3"]);
    }

    #[test]
    fn batches_cost_what_the_nearest_smaller_one_does() {
        let steps = [ByBatch { batch: 1, us: 300.0 }, ByBatch { batch: 8, us: 40.0 }];
        assert_eq!([1, 7, 8, 500].map(|size| each_ns(&steps, size)), [300_000, 300_000, 40_000, 40_000]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = include_str!("../../../../lab/profiles/bluefield-2.toml");
        for (from, to, why) in [
            ("batch = 1,", "batch = 2,", "begins with a batch of 1"),
            ("mpps = ", "mpps = -", "above 0"),
            ("rules_max = ", "rules_max = 1 #", "at least 2"),
            ("name =", "nom =", "unknown field"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let wrong = CardProfile::parse(&text).expect_err(to).to_string();
            assert!(wrong.contains(why), "{wrong}");
        }
    }
}
