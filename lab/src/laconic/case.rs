//! A case: what it is, and performing it.

use super::file::CardExperiment;
use super::finding::Place;
use super::outcome::CardOutcome;
use super::sensitivity::vary;
use crate::traffic::sizes::FlowSizes;
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_sim::http_testbed::{HttpTestbedOptions, Load, SmartNicProfile, run};
use hairpin_sim::nic::CardProfile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// To be raised whenever the model changes in a way that profiles and cases do not show: earlier results count no more.
const MODEL: u32 = 1;
/// The size that stands for the enterprise workload, and the name of its flow sizes.
pub const ENTERPRISE: &str = "enterprise";

/// A case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaconicCase {
    /// The SmartNIC.
    pub nic: String,
    /// Ports in use.
    pub ports: u16,
    /// Cores with workers.
    pub cores: u16,
    /// The size of responses: `16 KB`, `1 MB`, or [`ENTERPRISE`].
    pub size: String,
    /// What goes to the flow engine: `none`, `all`, or from a size on.
    pub offload: String,
    /// Whether latency is measured at half load.
    pub latency: bool,
    /// Its seed.
    pub seed: u64,
    /// A guessed number that is another one here: the guess, and its factor or value.
    pub vary: Option<(String, f64)>,
}

impl LaconicCase {
    /// Its name: unique among all.
    pub fn name(&self) -> String {
        let LaconicCase { nic, ports, cores, size, offload, seed, .. } = self;
        let vary = self.vary.as_ref().map_or(String::new(), |(guess, value)| format!(", {guess} {value}"));
        format!("{nic}, {ports} port(s), {cores} core(s), {size}, offload {offload}, seed {seed}{vary}")
    }

    /// Its value on an axis, for people.
    pub fn on(&self, axis: &str) -> Option<String> {
        match axis {
            "nic" => Some(self.nic.clone()),
            "ports" => Some(self.ports.to_string()),
            "cores" => Some(self.cores.to_string()),
            "size" => Some(self.size.clone()),
            "offload" => Some(self.offload.clone()),
            _ => None,
        }
    }

    /// Whether it stands at a place.
    pub fn is_at(&self, place: &Place) -> bool {
        place.iter().all(|(axis, values)| self.on(axis).is_some_and(|here| values.contains(&here)))
    }
}

/// Bytes of a size as people write it.
pub fn bytes(size: &str) -> Result<u32> {
    let wrong = || format!("`{size}` is no size, such as 16 KB or 1 MB");
    let (number, unit) = size.split_once(' ').with_context(wrong)?;
    let number: u32 = number.parse().with_context(wrong)?;
    let unit = match unit {
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        _ => return Err(anyhow!(wrong())),
    };
    number.checked_mul(unit).with_context(wrong)
}

/// What all cases have in common: the file, and the profiles it names.
pub struct CardBench {
    /// The file.
    pub experiment: CardExperiment,
    nics: BTreeMap<String, SmartNicProfile>,
    cards: BTreeMap<String, CardProfile>,
    sizes: FlowSizes,
}

impl CardBench {
    /// `profiles` has cards, and SmartNICs in its directory `smart-nics`.
    ///
    /// # Errors
    /// A file is missing or wrong.
    pub fn load(experiment: &Path, profiles: &Path) -> Result<CardBench> {
        let experiment = CardExperiment::read(experiment)?;
        let (mut nics, mut cards) = (BTreeMap::new(), BTreeMap::new());
        for case in experiment.cases() {
            if nics.contains_key(&case.nic) {
                continue;
            }
            let path = profiles.join("smart-nics").join(format!("{}.toml", case.nic));
            let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
            let nic = SmartNicProfile::parse(&read(&path)?).map_err(|wrong| anyhow!("{}: {wrong}", path.display()))?;
            if !nic.card.is_empty() {
                let path = profiles.join(format!("{}.toml", nic.card));
                let card = CardProfile::parse(&read(&path)?).with_context(|| path.display().to_string())?;
                cards.insert(case.nic.clone(), card);
            }
            nics.insert(case.nic, nic);
        }
        let sizes = FlowSizes::published(ENTERPRISE).context("no flow sizes of the enterprise workload")??;
        Ok(CardBench { experiment, nics, cards, sizes })
    }

    /// The profile of a SmartNIC.
    pub fn nic(&self, name: &str) -> Option<&SmartNicProfile> {
        self.nics.get(name)
    }

    /// All that a case's outcome depends on, but for the program, as a short text. Of profiles only the numbers count.
    pub fn fingerprint(&self, case: &LaconicCase) -> String {
        let text = match self.options(case) {
            Ok((options, latency)) => {
                let mut nic = options.nic.clone();
                let mut card = options.card.clone();
                nic.source.clear();
                card.iter_mut().for_each(|card| card.source.clear());
                let numbers = serde_json::to_string(&(&nic, &card, &options.hosts)).unwrap_or_default();
                let HttpTestbedOptions { offload_bytes_min, cores, ports, clients, sizes, seed, .. } = &options;
                let times = (options.warm_up, options.measured);
                format!(
                    "{MODEL} {numbers} {offload_bytes_min} {cores} {ports} {clients} {sizes:?} {seed} {times:?} {latency}"
                )
            }
            Err(error) => error.to_string(),
        };
        // FNV-1a: the same everywhere and always.
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }

    /// Performs a case. `progress` hears now and then how many events there were.
    ///
    /// # Errors
    /// The missing input, or the testbed's complaints about itself.
    pub fn perform(&self, case: &LaconicCase, progress: &mut dyn FnMut(u64)) -> Result<CardOutcome> {
        let (mut options, latency) = self.options(case)?;
        let results = run(&options, progress);
        ensure!(results.failures.is_empty(), "the testbed contradicts itself: {}", results.failures.join("; "));
        ensure!(results.body_bytes > 0, "no client got anything");
        let mut outcome = CardOutcome::of(&results, case.cores);
        if latency {
            let mean = options.sizes.iter().map(|&size| f64::from(size)).sum::<f64>() / options.sizes.len() as f64;
            let rate = outcome.goodput * 1e9 / 8.0 / mean / 2.0;
            options.load = Load::Open { requests_per_s: rate };
            // So many requests are enough for a mean, and a request may take a while.
            let seconds = (1000.0 / rate).clamp(0.02, 0.1);
            (options.warm_up, options.measured) = (Duration::from_millis(20), Duration::from_secs_f64(seconds));
            let results = run(&options, progress);
            ensure!(results.failures.is_empty(), "at half load: {}", results.failures.join("; "));
            outcome.at_half(&results);
        }
        Ok(outcome)
    }

    /// The options of a case under full load, and whether latency is measured.
    fn options(&self, case: &LaconicCase) -> Result<(HttpTestbedOptions, bool)> {
        let nic = self.nics.get(&case.nic).with_context(|| format!("no profile {}", case.nic))?.clone();
        ensure!(case.cores <= nic.cores_max, "{} has {} cores", case.nic, nic.cores_max);
        let mut card = self.cards.get(&case.nic).filter(|_| case.offload != "none").cloned();
        // The engine turns round what its ports carry.
        card.iter_mut().for_each(|card| card.forwarding.gbit_s = nic.ports.gbit_s * f64::from(case.ports));
        let offload_bytes_min = match case.offload.as_str() {
            "none" => u64::MAX,
            "all" => 1,
            size => u64::from(bytes(size)?),
        };
        let sizes: Arc<[u32]> = match case.size.as_str() {
            ENTERPRISE => self.files(self.experiment.files),
            size => [bytes(size)?].into(),
        };
        let largest = sizes.iter().copied().max().unwrap_or(0);
        // Long responses need time to get going, and to end.
        let (warm_up, measured) = match largest {
            0..0x10_0000 => (15, 20),
            _ => (40, 60),
        };
        let mut options = HttpTestbedOptions {
            nic,
            card,
            offload_bytes_min,
            cores: case.cores,
            ports: case.ports,
            hosts: self.experiment.hosts,
            clients: self.experiment.clients_per_core * u32::from(case.cores),
            sizes,
            load: Load::Closed,
            warm_up: Duration::from_millis(warm_up),
            measured: Duration::from_millis(measured),
            seed: case.seed,
        };
        if let Some((guess, value)) = &case.vary {
            let guess = self.experiment.guess.iter().find(|other| other.name == *guess);
            let guess = guess.with_context(|| format!("no guess of {}", case.name()))?;
            match guess.number.as_str() {
                "files" => {
                    options.sizes = if case.size == ENTERPRISE { self.files(*value as u32) } else { options.sizes }
                }
                number => vary(&mut options, number, *value)?,
            }
        }
        Ok((options, case.latency))
    }

    /// So many files with sizes that lie evenly in the enterprise workload's distribution.
    fn files(&self, count: u32) -> Arc<[u32]> {
        let at = |number: u32| self.sizes.at((f64::from(number) + 0.5) / f64::from(count));
        (0..count).map(|number| u32::try_from(at(number)).unwrap_or(u32::MAX / 2).min(u32::MAX / 2)).collect()
    }
}
