//! Every bound of the program, once: what is bounded, how far, by which option, which counter shows that it was reached,
//! and what happens then.
//!
//! Values are the constants that the code goes by, or the defaults of the configuration reference: no number is written
//! here a second time. `hairpin limits` and `docs/reference/limits.md` are printed from here. Bounds on work that is done at
//! a time (bursts, batches, entries looked at per call) are not listed: reaching one only means that the rest comes next.

mod api;
mod connections;
mod dpdk;
mod file;
mod http;
mod https;
mod monitor;
mod print;
mod process;
#[cfg(test)]
mod tests;

pub use print::markdown;
pub(crate) use print::{json, table};

use crate::config::reference::{Fallback, ReferenceSection, ValueForm};
use serde::Serialize;
use std::time::Duration;

/// How far something may go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    /// So many of a unit.
    Number(u64, &'static str),
    /// One for so many others; the unit says of one of them.
    OneFor(u64, &'static str),
    /// So long.
    Time(Duration),
    /// What a field of the configuration says, here its default; of a number, its unit. A default of 0 sets no bound.
    Option(&'static ReferenceSection, &'static str, &'static str),
}

/// A counter that shows that a bound was reached: a series, and a label of it with its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    series: &'static str,
    label: Option<(&'static str, &'static str)>,
}

impl Counter {
    const fn of(series: &'static str, label: &'static str, value: &'static str) -> Counter {
        Counter { series, label: Some((label, value)) }
    }

    fn text(&self) -> String {
        match self.label {
            Some((label, value)) => format!("{}{{{label}=\"{value}\"}}", self.series),
            None => self.series.to_string(),
        }
    }
}

/// Packets dropped for this reason.
pub(super) const fn drops(reason: &'static str) -> Counter {
    Counter::of("hairpin_drops_total", "reason", reason)
}

/// What else became of packets.
pub(super) const fn events(event: &'static str) -> Counter {
    Counter::of("hairpin_events_total", "event", event)
}

/// Connections that are not offloaded for this reason.
pub(super) const fn rule_refusals(reason: &'static str) -> Counter {
    Counter::of("hairpin_rule_refusals_total", "reason", reason)
}

/// Requests refused, or connections reset, for this reason.
pub(super) const fn http_refusals(reason: &'static str) -> Counter {
    Counter::of("hairpin_http_refusals_total", "reason", reason)
}

/// A series without a label that matters.
pub(super) const fn series(series: &'static str) -> Counter {
    Counter { series, label: None }
}

/// One bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// What is bounded; unique.
    name: &'static str,
    bound: Bound,
    /// None: no counter shows that it was reached.
    counters: &'static [Counter],
    /// What happens when it is reached, in sentences.
    when_reached: &'static str,
}

pub(super) const fn limit(
    name: &'static str,
    bound: Bound,
    counters: &'static [Counter],
    when_reached: &'static str,
) -> Limit {
    Limit { name, bound, counters, when_reached }
}

/// Bounds that belong together.
#[derive(Debug)]
pub(super) struct Group {
    title: &'static str,
    /// What holds for all of them; may be empty.
    doc: &'static str,
    limits: &'static [Limit],
}

/// All bounds, in the order they are printed in.
const GROUPS: [&Group; 9] = [
    &connections::CONNECTIONS,
    &connections::PACKETS,
    &http::HTTP,
    &https::HTTPS_SERVICES,
    &file::FILE,
    &process::PROCESS,
    &api::API,
    &monitor::MONITORS,
    &dpdk::DPDK,
];

/// A bound as JSON; docs/reference/json.md describes it.
#[derive(Debug, Serialize)]
struct LimitView {
    group: &'static str,
    name: &'static str,
    value: Option<f64>,
    unit: &'static str,
    option: Option<String>,
    counters: Vec<String>,
    when_reached: &'static str,
}

/// How far something may go, as a number; `None`: as far as it likes, or as far as fits the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Number(u64),
    OneFor(u64),
    Time(Duration),
    Unlimited,
    Automatic,
}

impl Limit {
    /// The option that sets it, as a dotted key of the configuration file.
    fn option(&self) -> Option<String> {
        let Bound::Option(section, field, _) = self.bound else { return None };
        let table = section.header.trim_matches(['[', ']']);
        Some(if table.is_empty() { field.to_string() } else { format!("{table}.{field}") })
    }

    fn unit(&self) -> &'static str {
        match (self.bound, self.value()) {
            (_, Value::Time(_)) => "s",
            (Bound::Number(_, unit) | Bound::OneFor(_, unit) | Bound::Option(_, _, unit), _) => unit,
            (Bound::Time(_), _) => "s",
        }
    }

    fn value(&self) -> Value {
        match self.bound {
            Bound::Number(number, _) => Value::Number(number),
            Bound::OneFor(number, _) => Value::OneFor(number),
            Bound::Time(time) => Value::Time(time),
            Bound::Option(section, name, _) => default_of(section, name),
        }
    }

    /// The default of the option that sets it, as it stands in the configuration.
    fn given(&self) -> Option<&'static str> {
        let Bound::Option(section, name, _) = self.bound else { return None };
        match section.field(name)?.fallback {
            Fallback::Value(text) => Some(text),
            Fallback::Required | Fallback::From(_) => None,
        }
    }

    fn view(&self, group: &'static str) -> LimitView {
        let value = match self.value() {
            Value::Number(number) => Some(number as f64),
            Value::OneFor(number) => Some(1.0 / number as f64),
            Value::Time(time) => Some(time.as_secs_f64()),
            Value::Unlimited | Value::Automatic => None,
        };
        LimitView {
            group,
            name: self.name,
            value,
            unit: self.unit(),
            option: self.option(),
            counters: self.counters.iter().map(Counter::text).collect(),
            when_reached: self.when_reached,
        }
    }
}

/// The default of a field. What the reference does not say counts as automatic; a test finds that there is none such.
fn default_of(section: &ReferenceSection, name: &str) -> Value {
    let Some((kind, Fallback::Value(text))) = section.field(name).map(|field| (field.kind, field.fallback)) else {
        return Value::Automatic;
    };
    match kind {
        ValueForm::Duration { .. } => {
            humantime::parse_duration(text).map_or(Value::Automatic, |time| match time.is_zero() {
                true => Value::Unlimited,
                false => Value::Time(time),
            })
        }
        ValueForm::Ports => {
            let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
            ends.map_or(Value::Automatic, |(first, last): (u64, u64)| Value::Number(last - first + 1))
        }
        _ => match text.parse() {
            Ok(0) => Value::Unlimited,
            Ok(number) => Value::Number(number),
            Err(_) => Value::Automatic,
        },
    }
}
