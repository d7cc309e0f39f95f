//! The demo, and benchmarks of Hairpin beside real peers, in the network namespaces of `hairpin-e2e`.
//!
//! [`suite`] and [`l7`] measure what is between a client and servers; [`tables`] and [`ageing`] core's connection tables
//! by themselves, without any network; [`l4`] and [`calibrate`] packets through one core;
//! [`xdp`] the same through the kernel; [`monitor`] a monitor beside softflowd; [`user_stack`] is a proxy to compare with;
//! [`instructions`] counts what the worker executes for them.

#![deny(unsafe_code)]

pub mod ageing;
pub mod calibrate;
pub mod demo;
pub mod https;
pub mod instructions;
pub mod l4;
pub mod l7;
pub mod monitor;
pub mod suite;
pub mod tables;
pub mod user_stack;
pub mod xdp;
