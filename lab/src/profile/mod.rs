//! The distribution of a device's time, as KTH 2020 shows for each method: from a sampling profiler.
//!
//! `perf record` samples the device's threads some thousand times a second, by the processor's clock: virtual machines
//! have no counters of cycles. What it finds in this program is resolved to the innermost function of ours with the
//! program's own debug information, inlined ones included; what it finds elsewhere keeps its symbol.
//! Functions are then sorted into [`DeviceStage`]s.

mod perf;
mod stages;
mod symbols;

pub use perf::{Profiler, obstacle};
pub use stages::{DeviceStage, by_stage};
