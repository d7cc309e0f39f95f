//! Hairpin's testbed on real packets: what KTH 2022 (chapter 3) and KTH 2020 (chapters 3 and 4) built from FastClick
//! and TRex.
//!
//! [`traffic`] makes packets, each with a [`traffic::stamp`]; [`forward`] is the basic forwarder; [`sink`] tells loss,
//! reordering, duplicates, corruption and latency from the stamps; [`testbed`] puts them and a device under test
//! together, in one process over DPDK's rings or over ports, and accounts for every frame.
//!
//! Two flaws of the papers' testbeds are not here: a latency is never negative (one clock, a packet is stamped just before
//! it is sent), and more received than sent is an error, not a figure.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod classification;
pub mod clock;
pub mod evidence;
pub mod experiment;
pub mod figure;
pub mod findings;
pub mod forward;
pub mod laconic;
pub mod measured;
pub mod profile;
pub mod rate;
pub mod records;
pub mod report;
pub mod sink;
pub mod statistics;
pub mod testbed;
pub mod trace;
pub mod traffic;
pub mod train;
pub mod virtual_time;
