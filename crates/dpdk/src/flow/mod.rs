//! A flow engine in network cards, by rte_flow (DPDK's programmer's guide, "Generic flow API"; Laconic, 3.5). **Not yet
//! run on hardware**: what is tested is what it asks for (golden dumps of every rule's arrays, also through
//! `rte_flow_conv`) and what it makes of the answers (a fake device that refuses, delays, reorders and fills up).
//!
//! A [`Description`] is a rule in plain words, from which the shim makes rte_flow's arrays. [`probe`] tries what a port
//! takes and what not, and in which [`DeviceTerms`]. [`OffloadThread`] is the thread that has the ports' rules,
//! [`RteFlowEngine`] a worker's [`FlowEngine`](hairpin_core::engine::FlowEngine). [`Hops`] is how it learns where packets
//! go next; [`LinkHops`] are those of the workers' link layer.
//!
//! The parts of a rule: it matches the 5-tuple, for TCP only without SYN, FIN and RST, and no fragments; it sets
//! Ethernet addresses, addresses and ports, lowers the TTL, counts, and sends the packet out again by a hairpin queue or
//! the embedded switch ([`EgressAction`]). Before all flows stand rules that keep packets with a TTL of 0 or 1 for
//! software, and where the device has groups, flows are in the second one: the first is slow and small (published
//! measurements of ConnectX cards: 40 to 250 thousand rules/s and 65,536 rules at most, against 360 to 510 thousand rules/s
//! and millions). The device corrects checksums.
//!
//! No device can do these, so they stay with software: ranges of TCP sequence numbers, SACK blocks, windows, that is
//! HTTP and TLS services; packets too big for the egress MTU (rules are refused where the egress MTU is smaller than the
//! ingress MTU); order at hand-over.
//!
//! [`SteeringRules`] are others, that stand before there is any traffic: they bring packets to their connection's worker.
//!
//! Marks: a device without hairpin queue and switch may still say whose a packet is ([`EgressAction::Mark`], KTH 2020's
//! FlowIPManagerHW). The mark is [`mark`] of the rule's id and arrives in
//! [`Meta::ticket`](hairpin_core::frame::Meta::ticket). A worker that uses it
//! ([`go_by_marks`](hairpin_core::worker::Worker::go_by_marks)) compares the key instead of hashing and looking it up.

mod agree;
mod description;
mod device;
mod engine;
#[cfg(feature = "fake-flow")]
pub mod fake;
mod handle;
mod hops;
mod machine;
mod opened;
mod probe;
mod raw;
mod records;
mod request;
mod service;
mod shared;
mod statistics;
mod steering;
mod subject;
#[cfg(all(test, feature = "fake-flow"))]
mod tests;
mod translate;
mod trial;

pub use agree::Agreement;
pub use description::{Description, Does, Family, How, Match, NoText};
pub use device::FlowError;
pub use engine::{OffloadError, OffloadOptions, OffloadThread, Submission};
pub use handle::RteFlowEngine;
pub use hops::{Hops, LinkHops, RouteHop};
pub use opened::Probed;
pub use probe::{Attempt, Findings, ProbeDepth, probe};
pub use shared::OffloadReader;
pub use statistics::EngineStatistics;
pub use steering::{SteeredStream, SteeringRefused, SteeringRules, steering_rules};
pub use subject::{Necessity, ProbeSubject};
pub use translate::{DeviceTerms, EgressAction, EnginePort, mark};
pub use trial::{TRIAL_MAX, TrialResult, trial};
