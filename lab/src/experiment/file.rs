//! The experiment file: what is measured, over which values, and what the papers found.

use super::offload::{self, MODELLED};
use super::reader::TomlTable;
use super::source;
use crate::rate;
use crate::testbed::offload::OffloadSetting;
use crate::testbed::{Device, FrameSize, PacketSource, SendRate, UnknownWord};
use hairpin_diagnostics::{Problems, Sink, text_of};
use hairpin_tables::OwnMethod;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Bytes of an experiment file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Devices under test at most.
const DEVICES_MAX: usize = 64;
/// Findings at most.
const FINDINGS_MAX: usize = 64;
/// Characters of a name at most.
const NAME_MAX: usize = 64;
/// Connection tables of DPDK, one for each worker, or one for all with each of its flag sets (KTH 2020, section 4.2).
const RTE_HASH: [&str; 9] = [
    "rte-hash",
    "rte-hash/none",
    "rte-hash/multi-writer",
    "rte-hash/rw-concurrency",
    "rte-hash/multi-writer+rw-concurrency",
    "rte-hash/lock-free",
    "rte-hash/multi-writer+lock-free",
    "rte-hash/transactional",
    "rte-hash/multi-writer+transactional",
];
/// Flow engines by name.
const ENGINES: [&str; 3] = ["none", "rte-flow", MODELLED];
/// Offload policies by name.
const POLICIES: [&str; 8] =
    ["never", "always", "first-n", "heavy-hitter", "fastest-flow", "decision-tree", "content-length", "auto"];

/// A device under test as the file names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSubject {
    /// Its name in figures; unique.
    pub name: String,
    /// Its kind.
    pub device: Device,
    /// The balancer's connection table.
    pub table: String,
    /// The flow engine it hands connections to, a modelled card with its name; `none` where all is software.
    pub engine: String,
    /// Which connections it hands over; `never` where all is software.
    pub policy: String,
}

/// How fast packets are to come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RateSetting {
    /// As the testbed has it: as fast as can be, or a rate.
    Rate(SendRate),
    /// This part of what the same device forwarded of `max`, on average over what has been measured: latency under a load
    /// that is the same to each.
    Share(f64),
    /// The highest rate for each loss ratio, searched.
    Search,
}

impl fmt::Display for RateSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateSetting::Rate(rate) => rate.fmt(f),
            RateSetting::Share(share) => write!(f, "{}%", (share * 1e6).round() / 1e4),
            RateSetting::Search => f.pad("search"),
        }
    }
}

impl FromStr for RateSetting {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<RateSetting, UnknownWord> {
        let wanted = "a rate such as \"max\", \"search\", \"80%\", \"2.5Mpps\", \"10Gbps\"";
        let unknown = || UnknownWord { word: word.to_owned(), wanted };
        if word == "search" {
            return Ok(RateSetting::Search);
        }
        match word.strip_suffix('%') {
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if (1.0..=200.0).contains(&percent) => Ok(RateSetting::Share(percent / 100.0)),
                _ => Err(unknown()),
            },
            None => word.parse().map(RateSetting::Rate).map_err(|_| unknown()),
        }
    }
}

/// The compared quantity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingMetric {
    /// Packets received per second.
    Throughput,
    /// Mean latency.
    Latency,
    /// The part of packets lost.
    Loss,
}

/// A finding, to be confirmed or refuted.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// In words, with its source.
    pub text: String,
    /// The compared quantity.
    pub metric: FindingMetric,
    /// Devices by name: each has more of it than the next, or all are alike.
    pub devices: Vec<String>,
    /// `Some`: they are alike, the largest no more than this part above the smallest.
    pub within: Option<f64>,
    /// On how many cores; on the most that were measured, if `None`.
    pub cores: Option<u16>,
    /// At which rate.
    pub rate: RateSetting,
}

/// A whole experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Short name.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Notes about it; may be empty.
    pub notes: String,
    /// The file's text.
    pub text: String,
    /// Devices under test.
    pub subjects: Vec<DeviceSubject>,
    /// Modelled cards and their policies, by the names of the devices that have one.
    pub offloads: BTreeMap<String, OffloadSetting>,
    /// How often everything is measured.
    pub repetitions: u32,
    /// How long each.
    pub duration: Duration,
    /// The seed of everything drawn; each repetition has its own.
    pub seed: u64,
    /// Backends behind balancers.
    pub backends: u16,
    /// Run 1 (empty tables), run 2 (warm ones), or both.
    pub runs: Vec<u8>,
    /// Packets go through balancers twice, to their backends and back.
    pub round_trip: bool,
    /// Cores of the device.
    pub cores: Vec<u16>,
    /// Connections that balancers have room for.
    pub table_entries: Vec<u32>,
    /// Flows.
    pub flows: Vec<u32>,
    /// Frame sizes.
    pub packet_sizes: Vec<FrameSize>,
    /// Rates.
    pub rates: Vec<RateSetting>,
    /// Loss ratios of searches.
    pub loss_ratios: Vec<f64>,
    /// How searches go.
    pub search: rate::SearchOptions,
    /// The source of packets.
    pub source: PacketSource,
    /// Whether a profile is taken of every cell, in a trial of its own.
    pub profile: bool,
    /// The papers' findings.
    pub findings: Vec<Finding>,
    /// The differences from the file's settings, for people.
    pub otherwise: Vec<String>,
}

impl Experiment {
    /// Reads the file at `path`; files it names are found from its directory.
    ///
    /// # Errors
    /// All of the file's mistakes, or that it cannot be read.
    pub fn load(path: &Path) -> Result<Experiment, Problems> {
        let text = text_of(path, FILE_BYTES_MAX).map_err(|error| {
            let what = format!("cannot read the experiment: {error}");
            Problems::unreadable(path, what, "see lab/scenarios/ for examples, and docs/guide/lab.md")
        })?;
        Experiment::parse(&path.display().to_string(), &text, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads `text`; `file` names it in messages, `directory` is where the files it names are found.
    ///
    /// # Errors
    /// All of its mistakes.
    pub fn parse(file: &str, text: &str, directory: &Path) -> Result<Experiment, Problems> {
        let sink = Sink::new(file, text);
        let document = sink.document();
        let read = document.as_ref().map(|document| {
            let top = TomlTable::root(&sink, document.get_ref());
            let read = read(&top, text, directory);
            top.end();
            read
        });
        match (read, sink.into_problems()) {
            (Some(experiment), problems) if problems.is_empty() => Ok(experiment),
            (_, problems) => Err(Problems(problems)),
        }
    }

    /// Each trial takes `duration` instead of what the file says, and those of searches no longer.
    ///
    /// # Errors
    /// It is out of range.
    pub fn shorten(&mut self, duration: Duration) -> anyhow::Result<()> {
        let [least, most] =
            [Self::DURATIONS.start(), Self::DURATIONS.end()].map(|end| humantime::format_duration(*end));
        anyhow::ensure!(Self::DURATIONS.contains(&duration), "a trial takes {least} to {most}");
        let said = [self.duration, duration].map(humantime::format_duration);
        self.otherwise.push(format!("trials of {} instead of {}", said[1], said[0]));
        self.duration = duration;
        self.search.last = self.search.last.min(duration);
        self.search.first = self.search.first.min(duration);
        Ok(())
    }

    /// Everything is measured so often instead of as the file says.
    pub fn repeat(&mut self, repetitions: u32) {
        self.otherwise.push(format!("{repetitions} repetition(s) instead of {}", self.repetitions));
        self.repetitions = repetitions;
    }

    /// The longest and shortest a trial may take.
    pub(super) const DURATIONS: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(10)..=Duration::from_secs(3600);
}

fn read(top: &TomlTable<'_>, text: &str, directory: &Path) -> Experiment {
    let (subjects, offloads) = read_subjects(top, directory);
    let narrow = |list: Vec<u64>| list.into_iter().map(|value| u16::try_from(value).unwrap_or(u16::MAX)).collect();
    let counts = |list: Vec<u64>| list.into_iter().map(|value| u32::try_from(value).unwrap_or(u32::MAX)).collect();
    let loss_ratios = top.numbers("loss_ratios", &[0.0, 0.001], 0.0..=0.5);
    let duration = top.duration("duration", Duration::from_secs(1), Experiment::DURATIONS);
    let rates = top.words("rates", &[RateSetting::Rate(SendRate::Max)]);
    let findings = read_findings(top, &subjects, &rates);
    let experiment = Experiment {
        name: read_name(top, "name").unwrap_or_default(),
        title: top.text("title").map(|text| text.value).unwrap_or_default(),
        notes: top.text("notes").map(|text| text.value).unwrap_or_default(),
        text: text.to_owned(),
        repetitions: top.integer("repetitions", 5, 1..=1000) as u32,
        duration,
        seed: top.integer("seed", 1, 0..=u64::MAX >> 1),
        backends: top.integer("backends", 4, 1..=1024) as u16,
        runs: top.integers("runs", &[1], 1..=2).into_iter().map(|run| run as u8).collect(),
        round_trip: top.boolean("round_trip", false),
        cores: narrow(top.integers("cores", &[1], 1..=1024)),
        table_entries: counts(top.integers("table_entries", &[1 << 21], 16..=1 << 30)),
        flows: counts(top.integers("flows", &[1000], 1..=1 << 28)),
        packet_sizes: top.words("packet_sizes", &[FrameSize::Fixed(64)]),
        rates,
        search: read_search(top, duration),
        loss_ratios,
        source: source::read(top.table("source", "[source]"), directory),
        profile: top.boolean("profile", false),
        findings,
        subjects,
        offloads,
        otherwise: Vec::new(),
    };
    if experiment.name.is_empty() && !top.has("name") {
        top.missing("name", "\"kth-2020\"");
    }
    let shares = experiment.rates.iter().any(|rate| matches!(rate, RateSetting::Share(_)));
    if shares && !experiment.rates.contains(&RateSetting::Rate(SendRate::Max)) {
        let what = "`rates` has a percentage but not \"max\", of which it is one";
        top.error(&top.span_of("rates"), what, "add \"max\"");
    }
    experiment
}

fn read_name(table: &TomlTable<'_>, field: &'static str) -> Option<String> {
    let text = table.text(field)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_+/.".contains(c);
    if text.value.is_empty() || text.value.len() > NAME_MAX || !text.value.chars().all(legal) {
        let what = format!("`{field}` is \"{}\"", text.value);
        table.error(&text.span, what, format!("use 1 to {NAME_MAX} letters, digits, `-`, `_`, `+`, `/` or `.`"));
        return None;
    }
    Some(text.value)
}

fn read_subjects(top: &TomlTable<'_>, directory: &Path) -> (Vec<DeviceSubject>, BTreeMap<String, OffloadSetting>) {
    let tables: Vec<&str> = OwnMethod::ALL.iter().map(|method| method.name()).chain(RTE_HASH).collect();
    let (mut subjects, mut offloads): (Vec<DeviceSubject>, _) = (Vec::new(), BTreeMap::new());
    for table in top.tables("device", "[[device]]") {
        let word = table.choice("kind", &["wire", "forwarder", "balancer"]);
        let device = word.and_then(|word| word.value.parse().ok()).unwrap_or_default();
        let method = table.choice("table", &tables).map(|text| text.value);
        if device != Device::Balancer && table.has("table") {
            let what = format!("a {device} has no connection table");
            table.error(&table.span_of("table"), what, "leave it out");
        }
        let engine = table.choice("engine", &ENGINES).map_or("none".to_owned(), |text| text.value);
        let policy = table.choice("policy", &POLICIES);
        let policy = policy.map_or(if engine == "none" { "never" } else { "always" }.to_owned(), |text| text.value);
        // Behind a modelled card `never` is what the others are compared with: the same way, and no rules.
        if (engine == "none") != (policy == "never") && !(engine == MODELLED && policy == "never") {
            let what = format!("policy \"{policy}\" with engine \"{engine}\"");
            let remedy = "give both an engine and a policy, or neither";
            table.error(&table.span_of("policy"), what, remedy);
        }
        let method = match device {
            Device::Wire | Device::Forwarder => String::new(),
            Device::Balancer => method.unwrap_or_else(|| OwnMethod::DEFAULT.name().to_owned()),
        };
        let own = if method.is_empty() { device.to_string() } else { method.clone() };
        let name = read_name(&table, "name").unwrap_or(own);
        if subjects.iter().any(|other| other.name == name) {
            let what = format!("two devices are named \"{name}\"");
            table.error(&table.span_of("name"), what, "give one of them another `name`");
        }
        let offload = offload::read(&table, &engine, &policy, directory);
        if engine == MODELLED && ["", "stateless", "maglev"].contains(&method.as_str()) {
            let what = "there are no connections that could go to a card";
            table.error(&table.span_of("engine"), what, "take a balancer with a connection table");
        }
        let engine = offload.as_ref().map_or(engine, |offload| format!("{MODELLED}:{}", offload.card.name));
        offloads.extend(offload.map(|offload| (name.clone(), offload)));
        subjects.push(DeviceSubject { name, device, table: method, engine, policy });
        table.end();
    }
    if subjects.is_empty() || subjects.len() > DEVICES_MAX {
        let what = format!("there are {} devices under test", subjects.len());
        top.error(&top.span_of("device"), what, format!("add 1 to {DEVICES_MAX} [[device]] tables"));
    }
    (subjects, offloads)
}

fn read_search(top: &TomlTable<'_>, duration: Duration) -> rate::SearchOptions {
    let table = top.table("search", "[search]");
    let default = rate::SearchOptions::default();
    let trials = table.integer("trials", u64::from(default.trials), 1..=99) as u16;
    let options = rate::SearchOptions {
        lowest: table.number("lowest_pps", default.lowest, 1.0..=1e9),
        highest: table.has("highest_pps").then(|| table.number("highest_pps", 1e9, 2.0..=1e12)),
        resolution: table.number("resolution", default.resolution, 0.0001..=0.5),
        first: table.duration("first", default.first.min(duration), Experiment::DURATIONS),
        last: table.duration("last", duration, Experiment::DURATIONS),
        trials,
        exceed_ratio: table.number("exceed_ratio", default.exceed_ratio, 0.0..=0.99),
        trials_max: table.integer("trials_max", u64::from(default.trials_max), 1..=10_000) as u32,
    };
    if options.highest.is_some_and(|most| most <= options.lowest) {
        table.error(&table.span_of("highest_pps"), "`highest_pps` is not above `lowest_pps`", "give more");
    }
    table.end();
    options
}

/// The text of a finding: the statement of the list that has its `id`, or its own `text`.
fn finding_text(table: &TomlTable<'_>) -> Option<String> {
    if !table.has("id") {
        if !table.has("text") {
            table.missing("id", "\"kth2020-stateless-fastest\"");
        }
        return table.text("text").map(|text| text.value);
    }
    let id = table.text("id")?.value;
    let listed = crate::findings::find(&id);
    if listed.is_none() {
        let remedy = "name one of docs/evidence/findings.toml, or give a `text` instead";
        table.error(&table.span_of("id"), format!("no finding is called \"{id}\""), remedy);
    }
    listed.map(|listed| format!("{} ({})", listed.statement, listed.source()))
}

fn read_findings(top: &TomlTable<'_>, subjects: &[DeviceSubject], rates: &[RateSetting]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in top.tables("finding", "[[finding]]") {
        let text = finding_text(&table);
        let metric = table.choice("metric", &["throughput", "latency", "loss"]);
        let metric = match metric.as_ref().map(|word| word.value.as_str()) {
            Some("latency") => FindingMetric::Latency,
            Some("loss") => FindingMetric::Loss,
            _ => FindingMetric::Throughput,
        };
        let devices: Vec<String> = table.words("devices", &[]);
        for device in devices.iter().filter(|device| !subjects.iter().any(|subject| subject.name == **device)) {
            let names = subjects.iter().map(|subject| subject.name.as_str()).collect::<Vec<_>>().join(", ");
            let what = format!("`devices` names \"{device}\"");
            table.error(&table.span_of("devices"), what, format!("the file's devices are {names}"));
        }
        if devices.len() < 2 {
            table.error(&table.span_of("devices"), "a finding compares at least two devices", "name them in `devices`");
        }
        let within = table.has("within").then(|| table.number("within", 0.1, 0.0..=10.0));
        let cores = table.has("cores").then(|| table.integer("cores", 1, 1..=1024) as u16);
        let rate = table.word("rate").unwrap_or(RateSetting::Rate(SendRate::Max));
        if rate == RateSetting::Search || !rates.contains(&rate) {
            let what = format!("the finding is about rate \"{rate}\", which is not measured");
            table.error(&table.span_of("rate"), what, "give it a `rate` of `rates`, but \"search\"");
        }
        findings.push(Finding { text: text.unwrap_or_default(), metric, devices, within, cores, rate });
        table.end();
    }
    if findings.len() > FINDINGS_MAX {
        let what = format!("there are {} findings", findings.len());
        top.error(&top.span_of("finding"), what, format!("at most {FINDINGS_MAX} can be given"));
    }
    findings
}

/// A file that the experiment names, found from the experiment's own directory.
pub(super) fn beside(directory: &Path, name: &str) -> PathBuf {
    directory.join(name)
}
