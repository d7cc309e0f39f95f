//! The status of backends by name.

use serde::{Deserialize, Serialize};

/// Look-ups of names, and what became of their answers. Totals count since the process began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResolverStatus {
    /// The DNS servers that are asked, or `/etc/resolv.conf`.
    pub servers: Vec<String>,
    /// Look-ups that found addresses.
    pub lookups_found_total: u64,
    /// Look-ups whose answer is that there are none.
    pub lookups_empty_total: u64,
    /// Look-ups without an answer: the one before holds.
    pub lookups_failed_total: u64,
    /// Changes of backends that other answers have made.
    pub changes_applied_total: u64,
    /// Changes that could not come into force when they came; they are tried again.
    pub changes_refused_total: u64,
    /// The names.
    pub names: Vec<NameStatus>,
}

/// A name of backends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// What is looked up: `A`, `AAAA` or `SRV`.
    pub records: String,
    /// `waiting` (there was no answer yet), `resolved`, `stale` (the last look-up failed, the answer before it holds) or `empty`.
    pub state: String,
    /// The addresses of the answer in force.
    pub addresses: Vec<String>,
    /// Addresses of it that are no backends: they cannot be, or are beyond `addresses_max`.
    pub refused: u64,
    /// Seconds until it is looked up again.
    pub next_s: u64,
    /// Seconds since the answer was confirmed; missing if this process has had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u64>,
    /// Look-ups that have failed since the last one that did not.
    pub failures: u32,
    /// Why the last one failed; empty if it did not.
    pub error: String,
}
