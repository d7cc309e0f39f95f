//! Hairpin in virtual time: the very worker of the data plane, an engine, TCP peers (smoltcp) and
//! links with faults. No clock, no randomness of the system's, no order of a hash map: a run is a function of one seed, so
//! a failure is reproduced by its number.
//!
//! | module | what it is |
//! |---|---|
//! | [`network`] | hosts around a middle, and the order of events |
//! | [`link`](mod@link) | one direction of a wire: delay, reordering, loss, duplication, corruption, bandwidth |
//! | [`host`] | smoltcp, and [`host::Role`]s that speak over it |
//! | [`balancer`] | the middle as Hairpin: engine, worker, kernel; the mistakes it can be told to make |
//! | [`carrier`] | one of the two that follow |
//! | [`engine`] | a flow engine whose rules come late, or not at all |
//! | [`nic`] | a card with rules: as fast, as roomy and as late as a profile says |
//! | [`segments`] | super-packets put together and taken apart |
//! | [`stream`] | exact bytes both ways, every kind of ending |
//! | [`http`] | HTTP/1.1 clients and servers, and what a service promises them |
//! | [`scenario`] | what a seed means, and the checkers |
//! | [`http_testbed`] | Laconic: the HTTP balancer on the cores and the flow engine of a SmartNIC, with hosts of a light TCP |
//! | [`testbed`] | KTH 2022's generator, device and sink, at any scale: what cores, tables, cards and policies make of it |
//! | [`sharing`] | cores that share a connection table: locks, cache lines, waiting (KTH 2020) |
//! | [`trace`] | what is shown of a failure; `HAIRPIN_SIM_PCAP=1` writes captures to `target/sim` |
//!
//! The checks of every run of a [`scenario`]: each byte of each connection at both ends, every connection closed at both ends
//! in bounded time, one backend for each, the offload state equal to what the engine holds whenever nothing is under way,
//! super-packets well formed; and that in the end the worker has no connection, the engine no rule, and every frame was
//! given back.

pub mod balancer;
pub mod carrier;
mod clock;
pub mod engine;
pub mod host;
pub mod http;
pub mod http_testbed;
pub mod link;
pub mod network;
pub mod nic;
mod port;
pub mod scenario;
pub mod segments;
pub mod sharing;
pub mod stream;
pub mod testbed;
pub mod trace;
