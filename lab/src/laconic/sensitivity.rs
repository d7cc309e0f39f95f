//! Numbers that were guessed, and what they may be instead.

use super::finding::Place;
use anyhow::{Result, anyhow, bail, ensure};
use hairpin_sim::http_testbed::HttpTestbedOptions;
use serde::Deserialize;

/// A guess.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guess {
    /// For people.
    pub name: String,
    /// Which number it is: see [`vary`]; `files` is the experiment's.
    pub number: String,
    /// Values that it may have instead.
    pub values: Vec<f64>,
    /// The cases that it has a part in; empty: all.
    #[serde(default)]
    pub at: Place,
    /// Why these.
    #[serde(default)]
    pub note: String,
}

impl Guess {
    /// Whether it can be varied.
    ///
    /// # Errors
    /// Its defect.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(!self.values.is_empty(), "it has no other values");
        ensure!(
            self.number == "files" || NUMBERS.contains(&self.number.as_str()),
            "no number is called {}",
            self.number
        );
        Ok(())
    }
}

/// The numbers that [`vary`] knows.
const NUMBERS: [&str; 15] = [
    "memory.gbyte_s",
    "memory.packet_bytes",
    "l2.factor",
    "work.rule_ns",
    "ports.queue",
    "card.mpps",
    "card.latency_us",
    "card.while_changing",
    "hosts.acknowledge_segments",
    "hosts.acknowledge_us",
    "hosts.window_bytes",
    "hosts.initial_segments",
    "hosts.hop_us",
    "hosts.buffer_bytes",
    "clients_per_core",
];

/// Gives a number another value.
///
/// # Errors
/// There is no such number, or this value is none for it.
pub(super) fn vary(options: &mut HttpTestbedOptions, number: &str, value: f64) -> Result<()> {
    let HttpTestbedOptions { nic, card, hosts, .. } = options;
    match number {
        "memory.gbyte_s" => nic.memory.gbyte_s = value,
        "memory.packet_bytes" => nic.memory.packet_bytes = value,
        "l2.factor" => nic.l2.factor = value,
        "work.rule_ns" => nic.work.rule_ns = value,
        "ports.queue" => nic.ports.queue = value as u32,
        "card.mpps" => card.iter_mut().for_each(|card| card.forwarding.mpps = value),
        "card.latency_us" => card.iter_mut().for_each(|card| card.forwarding.latency_us = value),
        "card.while_changing" => card.iter_mut().for_each(|card| card.forwarding.while_changing = value),
        "hosts.acknowledge_segments" => hosts.acknowledge_segments = value as u32,
        "hosts.acknowledge_us" => hosts.acknowledge_us = value,
        "hosts.window_bytes" => hosts.window_bytes = value as u32,
        "hosts.initial_segments" => hosts.initial_segments = value as u32,
        "hosts.hop_us" => hosts.hop_us = value,
        "hosts.buffer_bytes" => hosts.buffer_bytes = value,
        "clients_per_core" => options.clients = value as u32 * u32::from(options.cores),
        _ => bail!("no number is called {number}"),
    }
    options.nic.check().map_err(|wrong| anyhow!("{number} {value}: {wrong}"))
}
