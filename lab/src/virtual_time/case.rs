//! A case is performed: settings become a testbed and its traffic, and its results an outcome.

use super::file::Case;
use super::mix::{Connections, ConnectionsOptions, GeneratedMix, Mix, Popular, ReplayMix, ResponseSize, Structure};
use super::outcome::{Outcome, OutcomeBound};
use super::sensitivity::{ConstantOf, Variation};
use super::settings::{By, CaseSettings, DeviceKind, MixKind, PolicyKind};
use super::store::Recordings;
use crate::trace::TraceModel;
use crate::traffic::sizes::{FlowSizes, PUBLISHED};
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_core::config::Timeouts;
use hairpin_core::offload::{BUILT_IN, Choice, FirstN, HeavyHitter, Tree};
use hairpin_core::table::LookupMethod;
use hairpin_core::time::Duration;
use hairpin_sim::nic::{ByBatch, CardProfile};
use hairpin_sim::testbed::bound::{BoundLimits, saving_bound};
use hairpin_sim::testbed::cores::CoreProfile;
use hairpin_sim::testbed::yardstick::{Budget, OffloadPlan};
use hairpin_sim::testbed::{
    BalancerSettings, CardAction, CardOffload, CardPolicy, ModelDevice, ModelPort, ModelTestbed, TestbedOptions,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// KTH 2022's line, in Gbit/s, and packets in a receive queue.
const GBIT_S: f64 = 100.0;
const QUEUE: f64 = 1024.0;
/// The time of a packet between line and core, both ways, in microseconds. A guess for PCIe and a card's buffers.
const PORT_LATENCY_US: f64 = 5.0;
/// A connection's round trip at full scale, in nanoseconds: within a data centre.
const ROUND_TRIP: f64 = 200_000.0;
/// Intervals of a run.
const INTERVALS: u32 = 100;
/// Flows that a core has in use at a time in mixes of connections, to tell the load from: a guess of the order.
const CONNECTIONS_IN_USE: f64 = 10_000.0;
/// The longest a run may take, in seconds of virtual time.
const SECONDS_MAX: f64 = 600.0;

/// The common input of cases: the scale, and the files they name.
pub struct CaseContext {
    /// 1 for all of it; 0.1: a tenth.
    pub scale: f64,
    cores: BTreeMap<String, Read<CoreProfile>>,
    cards: BTreeMap<String, Read<CardProfile>>,
    /// Packets in a receive queue, and microseconds of a packet through the port.
    port: (f64, f64),
    // A missing file is reported by the cases that need it.
    structure: Result<Arc<Structure>, String>,
    sizes: BTreeMap<&'static str, Result<Arc<FlowSizes>, String>>,
    models: PathBuf,
}

/// A profile that was read: its numbers as a text, and as they are in the file.
struct Read<P> {
    profile: P,
    numbers: String,
    unvaried: String,
}

impl CaseContext {
    /// `profiles` has cards, and cores in a directory of its own; `traces` has recordings, without which cases that replay
    /// them fail.
    ///
    /// # Errors
    /// The scale makes no sense, or a profile is wrong.
    pub fn load(scale: f64, profiles: &Path, traces: Option<&Path>) -> Result<CaseContext> {
        CaseContext::load_varied(scale, profiles, traces, None)
    }

    /// Loads what cases are made of, as [`CaseContext::load`] does, with one constant at another value.
    ///
    /// # Errors
    /// As of [`CaseContext::load`], or no profile has that constant.
    pub fn load_varied(
        scale: f64,
        profiles: &Path,
        traces: Option<&Path>,
        variation: Option<&Variation>,
    ) -> Result<CaseContext> {
        ensure!((1e-4..=1.0).contains(&scale), "the scale is 0.0001 to 1, not {scale}");
        let mut is_there = variation.is_none_or(Variation::is_of_port);
        let mut varied = |of, text: &str| -> Result<String> {
            let Some(variation) = variation else { return Ok(text.to_owned()) };
            let (text, has_it) = variation.applied(of, text)?;
            is_there |= has_it;
            Ok(text)
        };
        let mut cores = BTreeMap::new();
        for (name, unvaried) in texts(&profiles.join("cores"))? {
            let text = varied(ConstantOf::Core, &unvaried).with_context(|| format!("core profile {name}"))?;
            let profile = CoreProfile::parse(&text).map_err(|wrong| anyhow!("core profile {name}: {wrong}"))?;
            cores.insert(name, Read { profile, numbers: numbers(&text)?, unvaried: numbers(&unvaried)? });
        }
        let mut cards = BTreeMap::new();
        for (name, unvaried) in texts(profiles)? {
            let text = varied(ConstantOf::Card, &unvaried).with_context(|| format!("card profile {name}"))?;
            let profile = CardProfile::parse(&text).with_context(|| format!("card profile {name}"))?;
            cards.insert(name, Read { profile, numbers: numbers(&text)?, unvaried: numbers(&unvaried)? });
        }
        ensure!(is_there, "no profile has the constant {}", variation.map_or("", |variation| &variation.name));
        let port = |name, value| variation.map_or(value, |variation| variation.port(name, value));
        let sizes = PUBLISHED.map(|(name, text)| {
            let read = FlowSizes::parse(text);
            (name, read.map(Arc::new).map_err(|error| format!("{error:#}")))
        });
        let structure = match traces {
            Some(traces) => Structure::read(traces).map(Arc::new).map_err(|error| format!("{error:#}")),
            None => Err("it needs recordings; name their directory with --traces".to_owned()),
        };
        Ok(CaseContext {
            scale,
            cores,
            cards,
            port: (port("queue", QUEUE), port("latency_us", PORT_LATENCY_US)),
            structure,
            sizes: sizes.into_iter().collect(),
            models: profiles.join("models"),
        })
    }

    /// The recordings present.
    pub fn recordings(&self) -> Option<Recordings> {
        let structure = self.structure.as_ref().ok()?;
        Some(Recordings { units: structure.units.len(), packets: structure.packets(), flows: structure.flows() })
    }

    /// The recordings that a case replays: none if it replays none.
    pub fn recordings_of(&self, case: &Case) -> Option<Recordings> {
        self.recordings().filter(|_| case.settings.mix == MixKind::Trace && case.settings.recording.is_empty())
    }

    /// Whether the profiles that a case names are there.
    pub fn knows(&self, settings: &CaseSettings) -> bool {
        self.cores.contains_key(&settings.core) && self.cards.contains_key(&settings.card)
    }

    /// All that a case's outcome depends on, but for the program and the recordings, as a short text. Of profiles only the
    /// numbers count: what is said of them may be worded anew.
    pub fn fingerprint(&self, case: &Case) -> String {
        let settings = serde_json::to_string(&case.settings).unwrap_or_default();
        let core = self.cores.get(&case.settings.core).map_or("", |read| &read.numbers);
        let has_card = case.settings.policy != PolicyKind::Never;
        let card = self.cards.get(&case.settings.card);
        let card = card.map_or("", |read| if has_card { &read.numbers } else { &read.unvaried });
        let mut all = format!("{settings}\n{}\n{core}\n{card}", self.scale);
        if case.settings.marks {
            all.push_str(&format!("\n{}", self.mark_saves(&case.settings)));
        }
        if let Ok(model) = TraceModel::find(&case.settings.recording) {
            all.push_str(&format!("\n{}", model.text));
        }
        if self.port != (QUEUE, PORT_LATENCY_US) {
            all.push_str(&format!("\n{:?}", self.port));
        }
        // FNV-1a: the same everywhere and always.
        let hash = all
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        format!("{hash:016x}")
    }

    /// Packets that a case will take, about: what its time depends on.
    pub fn packets(&self, case: &Case) -> f64 {
        let settings = &case.settings;
        let seconds = self.seconds(settings).unwrap_or(0.0);
        let rate = self.core(settings).map_or(settings.pps, |core| rate(settings, &core));
        let looks = f64::from(settings.runs) + if settings.policy == PolicyKind::Yardstick { 0.3 } else { 0.0 };
        rate * self.scale * seconds * looks
    }

    /// Performs a case: an outcome for each run. `progress` hears now and then how many packets there were.
    ///
    /// # Errors
    /// The missing input, or the testbed's complaints about itself.
    pub fn perform(&self, case: &Case, progress: &mut dyn FnMut(u64)) -> Result<Vec<Outcome>> {
        let settings = &case.settings;
        if settings.policy == PolicyKind::Bound {
            return self.bound(settings).map(|outcome| vec![outcome]);
        }
        let options = self.options(settings)?;
        let mut testbed = ModelTestbed::new(options).map_err(anyhow::Error::msg)?;
        let mut outcomes = Vec::new();
        let mut done = 0;
        for _ in 0..settings.runs {
            let mut mix = self.mix(settings)?;
            let results = testbed.run(&mut mix, &mut |_, packets| progress(done + packets));
            ensure!(results.failures.is_empty(), "the testbed contradicts itself: {}", results.failures.join("; "));
            ensure!(results.offered > 0, "nothing was offered");
            done += results.offered;
            let mut outcome = Outcome::of(&results, self.scale, settings.cores, self.seconds(settings)?);
            if case.repetition > 0 {
                // What happens over time is shown of the first.
                outcome.samples.clear();
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn core(&self, settings: &CaseSettings) -> Result<CoreProfile> {
        let read = self.cores.get(&settings.core).with_context(|| format!("no core profile {}", settings.core))?;
        ensure!(!settings.marks || read.profile.mark.is_some(), "core profile {} has no [mark]", settings.core);
        Ok(read.profile.clone())
    }

    fn mark_saves(&self, settings: &CaseSettings) -> f64 {
        let read = self.cores.get(&settings.core);
        read.and_then(|read| read.profile.mark.as_ref()).map_or(0.0, |mark| mark.saves)
    }

    fn card(&self, settings: &CaseSettings) -> Result<CardProfile> {
        let read = self.cards.get(&settings.card).with_context(|| format!("no card profile {}", settings.card))?;
        let mut card = read.profile.clone();
        for change in card.updates.insert_us.iter_mut().chain(&mut card.updates.delete_us) {
            change.us *= settings.insertion_factor;
        }
        card.scale_waiting(self.scale);
        let rules = if settings.tight { settings.tight_rules } else { settings.rules };
        if rules > 0 {
            card.tables.rules_max = rules;
            card.tables.first_rules_max = card.tables.first_rules_max.min(rules);
        }
        Ok(card)
    }

    /// Flows as they are simulated.
    fn scaled(&self, count: u32) -> u32 {
        ((f64::from(count) * self.scale).round() as u32).max(1)
    }

    fn options(&self, settings: &CaseSettings) -> Result<TestbedOptions> {
        let device = match settings.device {
            DeviceKind::Forwarder => ModelDevice::Forwarder,
            DeviceKind::Balancer => ModelDevice::Balancer(BalancerSettings {
                table: method(settings)?,
                entries: self.scaled(settings.entries),
                backends: settings.backends,
                timeouts: timeouts(settings),
                offload: match settings.policy {
                    PolicyKind::Never => None,
                    _ => Some(CardOffload {
                        card: self.card(settings)?,
                        policy: self.policy(settings)?,
                        action: if settings.marks { CardAction::Mark } else { CardAction::Forward },
                        waits: settings.waits,
                    }),
                },
            }),
        };
        let seconds = self.seconds(settings)?;
        let (queue, latency_us) = self.port;
        let port = ModelPort {
            gbit_s: GBIT_S,
            queue: queue as u32,
            latency: Duration::from_nanos((latency_us * 1000.0) as u64),
        };
        Ok(TestbedOptions {
            scale: self.scale,
            cores: settings.cores,
            core: self.core(settings)?,
            port,
            device,
            seed: settings.seed,
            interval: Duration::from_secs_f64((seconds / f64::from(INTERVALS)).max(1e-4)),
        })
    }

    fn policy(&self, settings: &CaseSettings) -> Result<CardPolicy> {
        let above = |by: By, threshold: u64| {
            (threshold > 0 && (settings.by == by || settings.by == By::All)).then_some(threshold)
        };
        let choice = match settings.policy {
            PolicyKind::Never => Choice::Never,
            PolicyKind::Always => Choice::Always,
            PolicyKind::FirstN => {
                let each = self.scaled(settings.first) / u32::from(settings.cores.max(1));
                Choice::FirstN(FirstN { connections: each.max(1) })
            }
            PolicyKind::HeavyHitter => Choice::HeavyHitter(HeavyHitter {
                packets: above(By::Packets, settings.packets),
                bytes: above(By::Bytes, settings.bytes),
                duration: above(By::Duration, settings.duration_ms).map(Duration::from_millis),
                ..HeavyHitter::default()
            }),
            PolicyKind::FastestFlow => Choice::FastestFlow { packets_per_s: settings.flow_pps },
            PolicyKind::DecisionTree => Choice::DecisionTree(Arc::new(self.tree(settings)?)),
            PolicyKind::Auto => Choice::Auto,
            PolicyKind::Yardstick => return self.plan(settings).map(CardPolicy::Yardstick),
            PolicyKind::Bound => anyhow::bail!("an upper bound is no policy"),
        };
        Ok(CardPolicy::Choice(choice))
    }

    fn tree(&self, settings: &CaseSettings) -> Result<Tree> {
        if settings.model.is_empty() {
            return Tree::parse(BUILT_IN).map_err(|wrong| anyhow!("the model that is built in: {wrong}"));
        }
        let path = self.models.join(&settings.model);
        let text = std::fs::read_to_string(&path).with_context(|| format!("model {}", path.display()))?;
        Tree::parse(&text).map_err(|wrong| anyhow!("model {}: {wrong}", path.display()))
    }

    /// The yardstick's, from a look at all packets.
    fn plan(&self, settings: &CaseSettings) -> Result<OffloadPlan> {
        let (card, core) = (self.card(settings)?, self.core(settings)?);
        let comes_and_goes = is_connections(settings);
        let fastest = |steps: &[ByBatch]| steps.last().map_or(0.0, |step| step.us);
        let in_first = card.tables.rules_max <= card.tables.first_rules_max;
        let factor = if in_first { card.tables.first_factor } else { 1.0 };
        let mut pair_us = 2.0 * factor * fastest(&card.updates.insert_us);
        let mut asked = 2.0;
        if comes_and_goes {
            pair_us += 2.0 * factor * fastest(&card.updates.delete_us);
            asked += 2.0;
        }
        let packet_ns = core.known_ns(method(settings)?, CONNECTIONS_IN_USE, 32).max(1.0);
        let budget = Budget {
            pairs: self.scaled(card.tables.rules_max / 2),
            pairs_per_s: self.scale * 1e6 / pair_us.max(1e-6),
            // A handshake, or the packet that is picked up.
            packets_before: if comes_and_goes { 3 } else { 1 },
            worth: (asked * core.rule_ns() / packet_ns).ceil() as u32,
        };
        Ok(OffloadPlan::greedy(&mut self.mix(settings)?, budget))
    }

    /// The most that any policy can save, from a look at all packets.
    fn bound(&self, settings: &CaseSettings) -> Result<Outcome> {
        let (card, core) = (self.card(settings)?.scaled(self.scale), self.core(settings)?);
        let least = |steps: &[ByBatch]| steps.iter().map(|step| step.us).fold(f64::INFINITY, f64::min) * 1000.0;
        let in_first = card.tables.rules_max <= card.tables.first_rules_max;
        let factor = if in_first { card.tables.first_factor } else { 1.0 };
        let packet_ns = core.known_ns(method(settings)?, CONNECTIONS_IN_USE, 32).max(1.0);
        let rule_packets = core.rule_ns() / packet_ns;
        let limits = BoundLimits {
            pairs: card.tables.rules_max / 2,
            insert_ns: 2.0 * factor * least(&card.updates.insert_us),
            delete_ns: 2.0 * factor * least(&card.updates.delete_us),
            // A handshake, or the packet that is picked up.
            packets_before: if is_connections(settings) { 3 } else { 1 },
            pair_packets: 2.0 * rule_packets,
        };
        let bound = saving_bound(&mut self.mix(settings)?, limits);
        let saved = bound.packets / bound.offered.max(1) as f64;
        Ok(Outcome { bound: Some(OutcomeBound { saved, rule_packets }), ..Outcome::default() })
    }

    fn mix(&self, settings: &CaseSettings) -> Result<Mix> {
        let seconds = self.seconds(settings)?;
        let pps = rate(settings, &self.core(settings)?) * self.scale;
        let (flows, seed) = (self.scaled(settings.flows), settings.seed);
        let length = if settings.frame == 0 { 1514 } else { settings.frame };
        let exponent = Some(settings.exponent);
        Ok(match settings.mix {
            MixKind::Turns => Mix::Popular(Popular::new(flows, None, pps, seconds, length, seed)),
            MixKind::Zipf => Mix::Popular(Popular::new(flows, exponent, pps, seconds, length, seed)),
            MixKind::Trace => {
                let frame = (settings.frame > 0).then_some(settings.frame);
                let (structure, flows) = match settings.recording.as_str() {
                    "" => (self.structure()?.clone(), flows),
                    // As many flows as the trace has.
                    name => {
                        let packets = (pps * seconds).ceil() as u64;
                        let made = Structure::made(&TraceModel::find(name)?, packets, seed);
                        let flows = made.flows().min(super::mix::FLOWS_MAX.into()) as u32;
                        (Arc::new(made), flows)
                    }
                };
                Mix::Replay(ReplayMix::new(structure, flows, pps, seconds, frame, seed))
            }
            MixKind::Generated => {
                let model = TraceModel::find(&settings.recording)?;
                Mix::Generated(Box::new(GeneratedMix::new(&model, pps, seconds, seed)))
            }
            MixKind::WebSearch => self.connections(settings, self.measured("web-search", settings)?, pps),
            MixKind::DataMining => self.connections(settings, self.measured("data-mining", settings)?, pps),
            MixKind::Frames => self.connections(settings, ResponseSize::Frames(settings.frames), pps),
        })
    }

    fn connections(&self, settings: &CaseSettings, size: ResponseSize, packets_per_s: f64) -> Mix {
        let options = ConnectionsOptions {
            size,
            mbit_s: settings.mbit_s,
            packets_per_s,
            seconds: settings.seconds,
            // As cores take as much longer, so do round trips: nothing is answered before it came through.
            round_trip: (ROUND_TRIP / self.scale) as u64,
            ends: settings.ends,
        };
        Mix::Connections(Connections::new(options, settings.seed))
    }

    fn structure(&self) -> Result<&Arc<Structure>> {
        self.structure.as_ref().map_err(|missing| anyhow!("{missing}"))
    }

    fn measured(&self, name: &'static str, settings: &CaseSettings) -> Result<ResponseSize> {
        match self.sizes.get(name) {
            Some(Ok(sizes)) => Ok(ResponseSize::Measured(sizes.clone(), settings.size_max)),
            Some(Err(missing)) => Err(anyhow!("{missing}")),
            None => Err(anyhow!("no sizes are called {name}")),
        }
    }

    /// How long a run is.
    fn seconds(&self, settings: &CaseSettings) -> Result<f64> {
        if settings.seconds > 0.0 {
            return Ok(settings.seconds);
        }
        let pps = rate(settings, &self.core(settings)?) * self.scale;
        let seconds = ReplayMix::pass_seconds(self.structure()?, self.scaled(settings.flows), pps);
        ensure!(seconds <= SECONDS_MAX, "a run would take {seconds:.0} s of virtual time, more than {SECONDS_MAX}");
        Ok(seconds)
    }
}

/// Whether connections come and go in this mix.
fn is_connections(settings: &CaseSettings) -> bool {
    matches!(settings.mix, MixKind::WebSearch | MixKind::DataMining | MixKind::Frames | MixKind::Generated)
}

fn method(settings: &CaseSettings) -> Result<LookupMethod> {
    settings.table.parse().map_err(|_| anyhow!("no connection table is called `{}`", settings.table))
}

fn timeouts(settings: &CaseSettings) -> Timeouts {
    let mut timeouts = Timeouts::default();
    if settings.idle_ms > 0 {
        let idle = Duration::from_millis(settings.idle_ms);
        timeouts.tcp_established = idle;
        // A connection is judged first when its handshake would have timed out, whatever has become of it since.
        timeouts.tcp_handshake = idle.min(timeouts.tcp_handshake);
        timeouts.udp_established = idle;
        timeouts.tcp_half_closed = idle.min(timeouts.tcp_half_closed);
        timeouts.tcp_closed = idle.min(timeouts.tcp_closed);
    }
    timeouts
}

/// Packets per second at full scale.
fn rate(settings: &CaseSettings, core: &CoreProfile) -> f64 {
    if settings.load <= 0.0 {
        return settings.pps;
    }
    let cores = f64::from(settings.cores);
    let flows = match settings.mix {
        MixKind::Turns | MixKind::Trace | MixKind::Zipf => f64::from(settings.flows) / cores,
        _ => CONNECTIONS_IN_USE,
    };
    let method = method(settings).unwrap_or(LookupMethod::DEFAULT);
    settings.load * cores * 1e9 / core.known_ns(method, flows, 32).max(1.0)
}

/// A profile's text without comments and without where each number is from.
fn numbers(text: &str) -> Result<String> {
    fn strip(value: &mut toml::Value) {
        match value {
            toml::Value::Table(table) => {
                table.remove("source");
                // Only devices whose card marks depend on it: see the fingerprint.
                table.remove("mark");
                table.iter_mut().for_each(|(_, value)| strip(value));
            }
            toml::Value::Array(values) => values.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = toml::Value::Table(toml::from_str(text)?);
    strip(&mut value);
    Ok(value.to_string())
}

/// Texts of the `.toml` files of a directory, by name without ending.
fn texts(directory: &Path) -> Result<Vec<(String, String)>> {
    let named = || format!("profiles in {}", directory.display());
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(named)? {
        let path = entry.with_context(named)?.path();
        let is_profile = path.extension().is_some_and(|ending| ending == "toml");
        if let (true, Some(name)) = (is_profile, path.file_stem().and_then(|name| name.to_str())) {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            texts.push((name.to_owned(), text));
        }
    }
    texts.sort();
    Ok(texts)
}
