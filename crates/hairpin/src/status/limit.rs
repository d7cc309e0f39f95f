//! What limits of clients have decided.

use serde::{Deserialize, Serialize};

/// A limit of what clients of a service may ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// Its number among the limits of its service, from 1.
    pub limit: u16,
    /// What it counts: `requests`, `connections` or `concurrent`.
    #[serde(default)]
    pub counts: String,
    /// `refuse` or `drop`.
    pub action: String,
    /// Whether it refuses nothing.
    pub dry_run: bool,
    /// Requests or connections so far that it has admitted.
    pub admitted_total: u64,
    /// Those that it has refused.
    pub refused_total: u64,
    /// Those that it would have refused, had it not been a dry run.
    pub would_refuse_total: u64,
    /// Those for which another client had to be forgotten; of `concurrent`, those that are not counted for want of room.
    pub displaced_total: u64,
}
