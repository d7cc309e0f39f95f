//! The cost of a worker's core, as in a file (`lab/profiles/cores/*.toml`), each number with where it is from.
//!
//! An iteration of a core costs so much for itself (`burst_ns`: polling, the loops' beginnings, the misses that nothing
//! else overlaps with) and so much for each packet in it (`packet_ns`). What a packet of a known flow costs grows with the
//! flows in use on the core, as their entries leave one cache after the other: there are points, between which it is
//! interpolated in the logarithm of the number of flows; beyond the ends the outermost points hold.
//!
//! Times are those of the processor. Receiving and sending are a part of every one of them, as a packet that is worked on
//! has been received.

mod text;

use hairpin_core::table::LookupMethod;
use serde::{Deserialize, Deserializer};

/// No work of a core that a profile can speak of takes longer than this many nanoseconds.
const NS_MAX: f64 = 1e6;

/// A core. See the module.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CoreProfile {
    /// Its name.
    pub name: String,
    /// The source of the numbers as a whole, and the assumptions.
    pub source: String,
    /// An iteration that finds nothing.
    pub poll: Cost,
    /// Receiving and sending without reading the packet. For information: all that follow have it in them.
    pub io: IterationCost,
    /// The basic forwarder.
    pub forwarder: IterationCost,
    /// The balancer, by connection table; one of them is that of [`LookupMethod::DEFAULT`].
    pub method: Vec<MethodCost>,
    /// The end of a flow, or its expiry.
    pub end: Cost,
    /// Asking for a rule, and hearing of it. A device that waits for the card is occupied until then besides.
    pub rule: Cost,
    /// What a card's mark of a packet saves, where that is known.
    #[serde(default)]
    pub mark: Option<MarkSaving>,
}

/// What it saves that the card has told a packet's flow by a mark (`rte_flow` MARK): the table is not searched, but the
/// connection is still read, and the packet rewritten and sent.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MarkSaving {
    /// The part that is saved of what a packet costs more than without a table, 0 to 1.
    pub saves: f64,
    /// The source of that.
    pub source: String,
}

/// A cost.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: f64,
    /// The source of that.
    pub source: String,
}

/// The cost of an iteration.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct IterationCost {
    /// Nanoseconds for itself.
    pub burst_ns: f64,
    /// Nanoseconds for each packet.
    pub packet_ns: f64,
    /// The source of that.
    pub source: String,
}

/// The cost of the balancer with one kind of table.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct MethodCost {
    /// Which.
    #[serde(deserialize_with = "method_by_name")]
    pub table: LookupMethod,
    /// The source of the numbers.
    pub source: String,
    /// Iterations with packets of known flows.
    pub known: Vec<KnownFlowCost>,
    /// The further cost of a flow that comes and goes; nothing, if there are no points.
    #[serde(default)]
    pub new: Vec<New>,
}

/// Iterations with packets of known flows.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct KnownFlowCost {
    /// Flows in use on the core.
    pub flows: f64,
    /// Nanoseconds for the iteration.
    pub burst_ns: f64,
    /// Nanoseconds for each packet.
    pub packet_ns: f64,
}

/// First packets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct New {
    /// Flows in use on the core.
    pub flows: f64,
    /// Nanoseconds more than as many packets of a known flow.
    pub ns: f64,
    /// Nanoseconds more for each iteration in which any begins: what a burst of known flows' packets loses by the first
    /// packets among them, and by those that follow these.
    #[serde(default)]
    pub iteration_ns: f64,
}

fn method_by_name<'de, D: Deserializer<'de>>(from: D) -> Result<LookupMethod, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

impl CoreProfile {
    /// Reads a profile.
    ///
    /// # Errors
    /// Its defect, and the place of it.
    pub fn parse(text: &str) -> Result<CoreProfile, String> {
        let profile: CoreProfile = toml::from_str(text).map_err(|error| error.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    /// Whether it has points of its own for this table.
    pub fn has(&self, method: LookupMethod) -> bool {
        self.method.iter().any(|cost| cost.table == method)
    }

    /// Nanoseconds of an iteration that finds nothing.
    pub fn poll_ns(&self) -> f64 {
        self.poll.ns
    }

    /// Nanoseconds of a packet through the forwarder, receiving and sending included, in iterations of `burst` packets (0
    /// is taken for 1).
    pub fn forward_ns(&self, burst: usize) -> f64 {
        each(self.forwarder.burst_ns, self.forwarder.packet_ns, burst)
    }

    /// Nanoseconds of a packet of a known flow with `flows` flows in use on this core, receiving and sending included, in
    /// iterations of `burst` packets (0 is taken for 1).
    ///
    /// A table that the profile knows nothing of costs what the nearest of its kind does: see [`CoreProfile::has`].
    pub fn known_ns(&self, method: LookupMethod, flows: f64, burst: usize) -> f64 {
        let known = &self.of(method).known;
        let at =
            |value: fn(&KnownFlowCost) -> f64| between(flows, known.iter().map(|point| (point.flows, value(point))));
        each(at(|point| point.burst_ns), at(|point| point.packet_ns), burst)
    }

    /// Nanoseconds that a new flow costs on top of its packets, with `flows` flows in use on this core; and beside these
    /// each turn in which any begins.
    pub fn new_ns(&self, method: LookupMethod, flows: f64) -> (f64, f64) {
        let at = |value: fn(&New) -> f64| {
            between(flows, self.of(method).new.iter().map(|point| (point.flows, value(point))))
        };
        (at(|point| point.ns), at(|point| point.iteration_ns))
    }

    /// Nanoseconds of a flow's end or expiry.
    pub fn end_ns(&self) -> f64 {
        self.end.ns
    }

    /// Nanoseconds of asking for one rule, and of hearing of it.
    pub fn rule_ns(&self) -> f64 {
        self.rule.ns
    }

    /// Nanoseconds that a marked packet costs less than another of a known flow, with `flows` flows in use on this core; 0
    /// if the profile does not say.
    pub fn marked_saves_ns(&self, method: LookupMethod, flows: f64) -> f64 {
        let Some(mark) = &self.mark else { return 0.0 };
        let packet_ns = |method| self.known_ns(method, flows, usize::MAX);
        mark.saves * (packet_ns(method) - packet_ns(LookupMethod::Stateless)).max(0.0)
    }

    /// The costs of a table, or of the nearest of its kind: of those that keep no connections another such, else the
    /// default.
    fn of(&self, method: LookupMethod) -> &MethodCost {
        let find = |wanted: &dyn Fn(LookupMethod) -> bool| self.method.iter().find(|cost| wanted(cost.table));
        find(&|table| table == method)
            .or_else(|| find(&|table| !method.tracks_connections() && !table.tracks_connections()))
            .or_else(|| find(&|table| table == LookupMethod::DEFAULT))
            .unwrap_or(&self.method[0])
    }

    /// Whether its numbers make sense.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), String> {
        if !self.has(LookupMethod::DEFAULT) {
            return Err(format!("there is no [[method]] with table = \"{}\"", LookupMethod::DEFAULT.name()));
        }
        for (what, cost) in [("poll", &self.poll), ("end", &self.end), ("rule", &self.rule)] {
            time(&format!("{what}.ns"), cost.ns)?;
            sourced(what, &cost.source)?;
        }
        if let Some(mark) = &self.mark {
            if !(0.0..=1.0).contains(&mark.saves) {
                return Err(format!("mark.saves is a part, 0 to 1, and stands as {}", mark.saves));
            }
            sourced("mark", &mark.source)?;
        }
        for (what, iteration) in [("io", &self.io), ("forwarder", &self.forwarder)] {
            time(&format!("{what}.burst_ns"), iteration.burst_ns)?;
            time(&format!("{what}.packet_ns"), iteration.packet_ns)?;
            sourced(what, &iteration.source)?;
        }
        if self.forwarder.packet_ns <= 0.0 || self.poll.ns <= 0.0 {
            return Err("poll.ns and forwarder.packet_ns are above 0".into());
        }
        for (at, cost) in self.method.iter().enumerate() {
            let name = cost.table.name();
            if self.method[..at].iter().any(|other| other.table == cost.table) {
                return Err(format!("[[method]] {name} is there twice"));
            }
            sourced(name, &cost.source)?;
            if cost.known.is_empty() {
                return Err(format!("{name}.known has no point"));
            }
            rising(&format!("{name}.known"), cost.known.iter().map(|point| point.flows))?;
            rising(&format!("{name}.new"), cost.new.iter().map(|point| point.flows))?;
            for point in &cost.known {
                time(&format!("{name}.known.burst_ns"), point.burst_ns)?;
                time(&format!("{name}.known.packet_ns"), point.packet_ns)?;
                if point.packet_ns <= 0.0 {
                    return Err(format!("{name}.known.packet_ns is above 0"));
                }
            }
            for point in &cost.new {
                time(&format!("{name}.new.ns"), point.ns)?;
                time(&format!("{name}.new.iteration_ns"), point.iteration_ns)?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds of a packet in iterations of so many.
fn each(burst_ns: f64, packet_ns: f64, burst: usize) -> f64 {
    packet_ns + burst_ns / burst.max(1) as f64
}

/// The value at `at`, by the logarithm between the points on either side; the ends are held. 0 if there are no points.
fn between(at: f64, points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut before: Option<(f64, f64)> = None;
    for (flows, value) in points {
        match before {
            // Also when it is no number: then the first point is as good as any.
            None if at.is_nan() || at <= flows => return value,
            Some((less, low)) if at <= flows => {
                let part = (at / less).ln() / (flows / less).ln();
                return low + (value - low) * part;
            }
            _ => before = Some((flows, value)),
        }
    }
    before.map_or(0.0, |(_, value)| value)
}

fn time(what: &str, ns: f64) -> Result<(), String> {
    if (0.0..=NS_MAX).contains(&ns) { Ok(()) } else { Err(format!("{what} is 0 to {NS_MAX}, and stands as {ns}")) }
}

fn sourced(what: &str, source: &str) -> Result<(), String> {
    if source.trim().is_empty() { Err(format!("{what} does not say where its numbers are from")) } else { Ok(()) }
}

fn rising(what: &str, flows: impl Iterator<Item = f64> + Clone) -> Result<(), String> {
    let sound = flows.clone().all(|flows| flows.is_finite() && flows >= 1.0);
    if sound && flows.clone().zip(flows.skip(1)).all(|(less, more)| less < more) {
        Ok(())
    } else {
        Err(format!("the flows of {what} are 1 or more, and rise from point to point"))
    }
}

#[cfg(test)]
mod tests;
