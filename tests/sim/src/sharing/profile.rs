//! What a device's work costs where cores share a table, as in a file (`lab/profiles/sharing/*.toml`), each number with where
//! it is from.

use super::line::LineCosts;
use super::program::SharingMethod;
use serde::{Deserialize, Deserializer};

/// No work that a profile can speak of takes longer than this many nanoseconds.
const NS_MAX: f64 = 1e6;

/// A device. See the module.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SharingProfile {
    /// Its name.
    pub name: String,
    /// The source of the numbers as a whole, and the assumptions.
    pub source: String,
    /// Cache lines.
    pub line: LineCosts,
    /// Packets, whatever the method.
    pub packets: PacketCosts,
    /// The methods that it can be asked for.
    pub method: Vec<MethodCosts>,
    /// A card that marks packets; without one [`SharingMethod::Marks`] cannot be simulated.
    #[serde(default)]
    pub card: Option<MarkingCard>,
}

/// Packets, whatever the method.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PacketCosts {
    /// Bytes of a frame.
    pub frame: u32,
    /// The most that all cores together get, in Gbit/s of frames: the testbed's limit.
    pub gbit_s: f64,
    /// Packets in a core's receive queue.
    pub queue: u32,
    /// Packets of an iteration at most.
    pub burst: u32,
    /// Nanoseconds of an iteration for itself.
    pub burst_ns: f64,
    /// Nanoseconds of each packet, without finding its connection.
    pub packet_ns: f64,
    /// The part of that which comes before the look-ups of the burst, 0 to 1.
    pub before: f64,
    /// How far the time of each piece of work lies from its mean, as a part of it, both ways alike.
    pub varies: f64,
    /// The part of the packets that begin a flow, and end one: those of clients.
    pub new: f64,
    /// Flows on all cores together.
    pub flows: u32,
    /// Whether packets of backends are looked up as well.
    pub returns_look_up: bool,
    /// The source of the numbers.
    pub source: String,
}

/// A method of finding connections.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MethodCosts {
    /// Which.
    #[serde(deserialize_with = "method_by_name")]
    pub table: SharingMethod,
    /// Nanoseconds of a look-up, with what the method's own instructions cost where no other core uses the table.
    pub lookup_ns: f64,
    /// Nanoseconds of a packet beyond that, outside of any lock.
    #[serde(default)]
    pub other_ns: f64,
    /// Nanoseconds of putting a flow in and taking one out.
    #[serde(default)]
    pub change_ns: f64,
    /// Keys that are looked up for each time that a lock is taken.
    #[serde(default = "one")]
    pub keys_per_lock: u32,
    /// The part of insertions that move other entries.
    #[serde(default)]
    pub moves: f64,
    /// The source of the numbers.
    pub source: String,
}

/// A card that marks packets.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MarkingCard {
    /// Nanoseconds of finding the connection of a marked packet.
    pub marked_ns: f64,
    /// Nanoseconds of the worker for asking for a rule and hearing of it, and as much for its removal.
    pub rule_ns: f64,
    /// Rules that the card puts in or takes out in a second.
    pub rules_per_s: f64,
    /// Whether the worker waits until the card has put its rule in.
    #[serde(default)]
    pub waits: bool,
    /// The source of the numbers.
    pub source: String,
}

fn one() -> u32 {
    1
}

fn method_by_name<'de, D: Deserializer<'de>>(from: D) -> Result<SharingMethod, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

impl SharingProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Its defect, and the place of it.
    pub fn parse(text: &str) -> Result<SharingProfile, String> {
        let profile: SharingProfile = toml::from_str(text).map_err(|error| error.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    /// The costs of a method, if it has them.
    pub fn of(&self, method: SharingMethod) -> Option<&MethodCosts> {
        self.method.iter().find(|costs| costs.table == method)
    }

    /// Whether its numbers make sense.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), String> {
        let PacketCosts {
            frame, gbit_s, queue, burst, burst_ns, packet_ns, before, varies, new, flows, source, ..
        } = &self.packets;
        let line = &self.line;
        let mut times = vec![
            ("line.held_ns", line.held_ns),
            ("line.transfer_ns", line.transfer_ns),
            ("line.clean_ns", line.clean_ns),
            ("line.pause_ns", line.pause_ns),
            ("packets.burst_ns", *burst_ns),
            ("packets.packet_ns", *packet_ns),
        ];
        let mut parts = vec![("packets.before", *before), ("packets.varies", *varies), ("packets.new", *new)];
        let mut sources = vec![("line", &line.source), ("packets", source)];
        for costs in &self.method {
            times.extend([
                ("method.lookup_ns", costs.lookup_ns),
                ("method.other_ns", costs.other_ns),
                ("method.change_ns", costs.change_ns),
            ]);
            parts.push(("method.moves", costs.moves));
            sources.push(("method", &costs.source));
            if !(1..=1024).contains(&costs.keys_per_lock) {
                return Err(format!("{}: keys_per_lock is 1 to 1,024", costs.table));
            }
        }
        if let Some(card) = &self.card {
            times.extend([("card.marked_ns", card.marked_ns), ("card.rule_ns", card.rule_ns)]);
            sources.push(("card", &card.source));
            if !(card.rules_per_s.is_finite() && card.rules_per_s >= 1.0) {
                return Err(format!("card.rules_per_s is 1 or more, and stands as {}", card.rules_per_s));
            }
        }
        if let Some((what, ns)) = times.into_iter().find(|(_, ns)| !(0.0..=NS_MAX).contains(ns)) {
            return Err(format!("{what} is 0 to {NS_MAX}, and stands as {ns}"));
        }
        if let Some((what, part)) = parts.into_iter().find(|(_, part)| !(0.0..=1.0).contains(part)) {
            return Err(format!("{what} is a part, 0 to 1, and stands as {part}"));
        }
        if let Some((what, _)) = sources.into_iter().find(|(_, source)| source.trim().is_empty()) {
            return Err(format!("{what} does not say where its numbers are from"));
        }
        let counts_fit = (64..=9216).contains(frame) && (1..=1 << 16).contains(queue) && (1..=64).contains(burst);
        if !(counts_fit && (1..=1 << 26).contains(flows) && (0.001..=1e6).contains(gbit_s)) {
            return Err("packets: frame is 64 to 9,216 bytes, queue 1 to 65,536, burst 1 to 64, flows 1 to 2^26, gbit_s above 0".into());
        }
        Ok(())
    }
}
