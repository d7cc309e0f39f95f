//! The settings of a case: everything that can differ from one to the next, by name.

use crate::trace::TraceModel;
use serde::{Deserialize, Serialize};

/// The device under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The basic forwarder.
    Forwarder,
    /// The balancer.
    #[default]
    Balancer,
}

/// Which connections go to the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// There is no card that takes rules.
    #[default]
    Never,
    /// Every connection, as long as there is room.
    Always,
    /// The first so many.
    FirstN,
    /// Above thresholds.
    HeavyHitter,
    /// The fastest.
    FastestFlow,
    /// The decision of a trained tree.
    DecisionTree,
    /// Connections that are expected to pay.
    Auto,
    /// With each flow's future known.
    Yardstick,
    /// Nothing is simulated: the most that any policy can save.
    Bound,
}

/// Which of the thresholds counts, so that an axis can set all of them and another pick one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// All that are set, any of which is enough.
    #[default]
    All,
    /// Packets alone.
    Packets,
    /// Bytes alone.
    Bytes,
    /// Time since the first packet alone.
    Duration,
}

/// The source of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixKind {
    /// All flows in turn.
    #[default]
    Turns,
    /// Recordings with fresh addresses.
    Trace,
    /// Zipf's law.
    Zipf,
    /// Connections of the web-search sizes.
    WebSearch,
    /// Connections of the data-mining sizes.
    DataMining,
    /// Connections of about as many frames as `frames` says.
    Frames,
    /// The connections of the made trace `recording`, with their own times.
    Generated,
}

/// Everything of a case. Counts and rates are those of the whole testbed: what is simulated is a part of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseSettings {
    /// The device under test.
    pub device: DeviceKind,
    /// The balancer's connection table.
    pub table: String,
    /// Worker cores.
    pub cores: u16,
    /// Connections that all workers together have room for.
    pub entries: u32,
    /// Backends.
    pub backends: u16,
    /// The profile of a core: a file of lab/profiles/cores.
    pub core: String,
    /// The profile of the card: a file of profiles.
    pub card: String,
    /// Rules that the card holds at most; as its file says, if 0.
    pub rules: u32,
    /// Rules that the card holds at most where room is `tight`; each mix has its own number.
    pub tight_rules: u32,
    /// Whether there is only that room.
    pub tight: bool,
    /// The card's times for insertions and deletions are multiplied by this.
    pub insertion_factor: f64,
    /// Whether the worker is occupied until the card has done what it asked for.
    pub waits: bool,
    /// Whether the card only marks the packets that match, and a core forwards them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub marks: bool,
    /// Which connections go to the card.
    pub policy: PolicyKind,
    /// `first-n`: connections of all workers together.
    pub first: u32,
    /// Which thresholds count.
    pub by: By,
    /// `heavy-hitter`: packets; none if 0.
    pub packets: u64,
    /// `heavy-hitter`: bytes; none if 0.
    pub bytes: u64,
    /// `heavy-hitter`: milliseconds since the first packet; none if 0.
    pub duration_ms: u64,
    /// `fastest-flow`: packets per second.
    pub flow_pps: u32,
    /// `decision-tree`: a model's file; the one that is built in, if empty.
    pub model: String,
    /// The source of packets.
    pub mix: MixKind,
    /// Flows of `turns`, `trace` and `zipf`.
    pub flows: u32,
    /// Packets per second; what the device could do without a card at this part of its time, if `load` is given.
    pub pps: f64,
    /// The part of the cores' time that the balancer would need for these packets if it did all in software and knew all
    /// flows, 0 to 4; 0: `pps` says it.
    pub load: f64,
    /// Bytes of a frame in `turns`, `trace` and `zipf`, Ethernet header included; as recorded, or 1,514, if 0.
    pub frame: u16,
    /// How long a run takes, in seconds; 0, of `trace` only: until each flow had all its packets once.
    pub seconds: f64,
    /// Runs, one after the other, of a device that keeps what it knows: 1 or 2.
    pub runs: u8,
    /// `zipf`: the exponent.
    pub exponent: f64,
    /// `frames`: full frames of a response on average.
    pub frames: f64,
    /// Connections: how fast responses come, in Mbit/s, least and most.
    pub mbit_s: (f64, f64),
    /// Measured sizes are cut at so many bytes.
    pub size_max: u64,
    /// Whether connections end with FINs, or fall silent.
    pub ends: bool,
    /// Milliseconds after which a connection that is silent is forgotten; the worker's own timeouts, if 0.
    pub idle_ms: u64,
    /// `trace` and `generated`: the model of a made trace, by its name; the recordings, if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub recording: String,
    /// The seed of everything drawn.
    pub seed: u64,
}

impl Default for CaseSettings {
    fn default() -> CaseSettings {
        CaseSettings {
            device: DeviceKind::Balancer,
            table: hairpin_core::table::LookupMethod::DEFAULT.name().to_owned(),
            cores: 1,
            entries: 16_000_000,
            backends: 4,
            core: "this-machine".to_owned(),
            card: "connectx-5".to_owned(),
            rules: 0,
            tight_rules: 100_000,
            tight: false,
            insertion_factor: 1.0,
            waits: false,
            marks: false,
            policy: PolicyKind::Never,
            first: 1_000_000,
            by: By::All,
            packets: 0,
            bytes: 0,
            duration_ms: 0,
            flow_pps: 1000,
            model: String::new(),
            mix: MixKind::Turns,
            flows: 2_000_000,
            pps: 8.1e6,
            load: 0.0,
            frame: 1514,
            seconds: 4.0,
            runs: 1,
            exponent: 1.0,
            frames: 100.0,
            mbit_s: (50.0, 500.0),
            size_max: u64::MAX,
            ends: true,
            idle_ms: 0,
            recording: String::new(),
            seed: 1,
        }
    }
}

impl CaseSettings {
    /// The contradictions, in words.
    ///
    /// # Errors
    /// The first of it.
    pub fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: f64, least: f64, most: f64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(format!("{name} is {value}: use {least} to {most}"))
        };
        within("cores", f64::from(self.cores), 1.0, 64.0)?;
        within("entries", f64::from(self.entries), 64.0, f64::from(1 << 28))?;
        within("backends", f64::from(self.backends), 1.0, 1024.0)?;
        within("insertion_factor", self.insertion_factor, 0.0001, 10_000.0)?;
        within("flows", f64::from(self.flows), 1.0, f64::from(super::mix::FLOWS_MAX))?;
        within("pps", self.pps, 1.0, 1e10)?;
        within("load", self.load, 0.0, 4.0)?;
        within("seconds", self.seconds, 0.0, 3600.0)?;
        within("runs", f64::from(self.runs), 1.0, 2.0)?;
        within("exponent", self.exponent, 0.0, 10.0)?;
        within("frames", self.frames, 1.0, 1e7)?;
        within("mbit_s (least)", self.mbit_s.0, 0.001, 1e6)?;
        within("mbit_s (most)", self.mbit_s.1, self.mbit_s.0, 1e6)?;
        within("seed", self.seed as f64, 0.0, 1e15)?;
        if self.frame != 0 {
            within("frame", f64::from(self.frame), 60.0, 1514.0)?;
        }
        if self.seconds == 0.0 && self.mix != MixKind::Trace {
            return Err("seconds is 0, which only the mix `trace` can be played for".into());
        }
        if self.seconds == 0.0 && !self.recording.is_empty() {
            return Err("seconds is 0, which only recordings can be played for, not a made trace".into());
        }
        if self.mix == MixKind::Generated && self.recording.is_empty() {
            return Err("the mix `generated` needs the name of a made trace: recording = \"campus\"".into());
        }
        if !self.recording.is_empty() {
            TraceModel::find(&self.recording).map_err(|wrong| format!("{wrong:#}"))?;
        }
        if self.device == DeviceKind::Forwarder && self.policy != PolicyKind::Never {
            return Err("a forwarder has no policy".into());
        }
        let method = self.table.parse::<hairpin_core::table::LookupMethod>();
        method.map(|_| ()).map_err(|_| format!("no connection table is called `{}`", self.table))
    }
}
