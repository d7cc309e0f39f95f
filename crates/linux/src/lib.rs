//! Hairpin's linux plane: the BPF programs that forward offloaded flows, their loader, the flow engine on top of them,
//! and the TAP devices through which everything else reaches the workers.
//!
//! This crate decides how packets and rules get into and out of the kernel; `hairpin-core` decides which flows are
//! offloaded and what software does with a packet. docs/internals/linux-plane.md is the overview.
#![warn(missing_docs)]

pub mod abi;
pub mod capture;
pub mod control;
pub mod cost;
pub mod cpu;
pub mod decapsulate;
pub mod device;
pub mod engine;
pub mod large_pages;
pub mod memory;
pub mod monitor;
pub mod network;
pub mod one_worker;
pub mod programs;
mod query;
mod set_up;
pub mod shared;
pub mod tap;
