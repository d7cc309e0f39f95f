//! Hairpin's data plane without I/O: packet views and rewriting, connection tables, balancing, connection tracking
//! and the offload life cycle.
//!
//! Nothing here reads a clock, starts a thread, opens a socket or file, logs, or allocates per packet: time and
//! randomness are arguments, frames are owned by the plane that calls, and what must happen outside comes out of
//! `poll_*` methods. The crate is `no_std` and builds for wasm32, which proves it. `unsafe` lives in [`table`] only.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod access;
pub mod balance;
pub mod config;
pub mod engine;
pub mod event_loop;
pub mod flow;
pub mod frame;
pub mod keys;
pub mod l4;
pub mod l7;
pub mod limit;
pub mod link;
pub mod offload;
pub mod record;
pub mod rewrite;
pub mod stored;
pub mod table;
pub mod time;
pub mod wire;
pub mod worker;
