//! Traces made from published distributions: `hairpin-lab trace`.
//!
//! A [model](TraceModel) (`lab/traces/*.toml`) says how connections come, where they go, how much they carry and how fast, each
//! with the source of its numbers. [`Generator`] makes their packets, in the order of their times, both directions; the same
//! model and seed give the same packets, byte for byte.
//!
//! | module | what it is |
//! |---|---|
//! | `model` | the file, and the models that the program has |
//! | `distribution` | sizes, times and rates: points of a published curve, or mixtures of published functions |
//! | `arrivals` | when connections come: Poisson, lognormal gaps, sources that are on and off |
//! | `connection` | the packets of one connection: handshake, windows by round trip, acknowledgements, end |
//! | `generator` | all connections' packets, in order |
//! | `capture` | a pcap file of them; a [`Recording`](crate::traffic::recording::Recording) to replay |
//! | `statistics` | what a trace is like, made or recorded; the distance from what was published |
//! | `page` | traces beside each other, as a table and as `docs/evidence/traces.md` |
//!
//! What is not modelled: losses and retransmissions, time of day, IPv6, and that clients come back to the same server.

mod arrivals;
pub mod capture;
mod connection;
pub mod distribution;
mod generator;
mod model;
pub mod page;
pub mod statistics;
#[cfg(test)]
mod tests;

pub use arrivals::Arrivals;
pub use connection::TracePacket;
pub use generator::{Bounds, DrawnSizes, Generator};
pub use model::{TraceModel, built_in};
