//! The claims of Laconic: the findings of docs/evidence/findings.toml that the page answers, and the numbers of its tables.

use anyhow::{Context, Result};
use hairpin_lab::findings::{Listed, find};

/// Findings by section of the page.
pub(super) const GOODPUT: &str = "laconic-goodput-16mb";
pub(super) const LATENCY: &str = "laconic-latency-half-load";
pub(super) const OFFLOADING: &str = "laconic-offload-from-1mb";
pub(super) const THRESHOLD: &str = "laconic-threshold-rule";
pub(super) const UPDATES: &str = "laconic-rule-updates-batched";
pub(super) const PACKET_RATES: &str = "laconic-packets-by-size";
pub(super) const CORE: &str = "laconic-core-utilization";
pub(super) const TABLE: &str = "laconic-table-beats-rte-hash";
pub(super) const MIX: &str = "laconic-enterprise-mix";

/// A finding of the list.
pub(super) fn finding(id: &str) -> Result<&'static Listed> {
    find(id).with_context(|| format!("docs/evidence/findings.toml has no finding {id}"))
}

/// Table 2, time cost of updating flow rules on a BlueField-2: batch, microseconds to insert, to delete.
pub(super) const RULES: [(u64, f64, f64); 4] =
    [(1, 305.40, 57.49), (2, 100.48, 24.48), (8, 38.72, 19.42), (16, 25.39, 18.08)];

/// Table 3, throughput of the network stack on one ARM core of a BlueField-2: bytes of a response, million packets a
/// second.
pub(super) const PACKETS: [(u64, f64); 6] =
    [(1 << 10, 0.72), (4 << 10, 1.10), (16 << 10, 2.06), (1 << 20, 3.04), (4 << 20, 3.01), (16 << 20, 3.00)];

/// Table 4, utilization of one ARM core: operation, percent.
pub(super) const UTILIZATION: [(&str, f64); 6] = [
    ("DPDK_Rx", 40.55),
    ("Parse Resp. Header", 11.60),
    ("Insert Header Value", 8.01),
    ("Reassemble Packet", 7.36),
    ("Lookup Hashtable", 3.56),
    ("Others", 28.9),
];
