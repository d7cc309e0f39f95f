//! The binary's parts: configuration, command line, the run loop, control socket and status.
//!
//! They form a library so that tests and the benchmark harness can read the status model; the one binary is
//! `hairpin` (`main.rs`).
#![forbid(unsafe_code)]

pub mod access_log;
pub mod api;
mod capture;
pub mod cli;
pub mod config;
pub mod control;
mod decapsulate;
pub mod diff;
mod events;
mod explain;
#[cfg(feature = "fake-flow")]
mod fake_flow;
pub mod health;
mod http_server;
mod import;
mod json;
pub mod limits;
mod live;
pub mod metrics;
pub mod monitor;
pub mod names;
mod probe;
pub mod registry;
pub mod render;
pub mod run;
pub mod spans;
pub mod status;
mod terminal;
mod top;
