//! Network-namespace topologies with real peers, shared by the end-to-end tests, `make demo` and `make bench`.
//!
//! A [`topology::Topology`] is a client, a balancer, four servers and a flooder, each a network namespace, joined by
//! veth pairs. A [`peer`] is what stands in the balancer: plain kernel routing, nftables, HAProxy, nginx or Hairpin, all
//! started through one function so that comparisons are symmetric. [`load`] drives real clients through it. All of it
//! disappears when dropped, on panic and on Ctrl-C; [`namespace::clean`] removes what a killed run left.
//!
//! [`tables`] and [`ageing`] measure core's connection tables by themselves, without any network; [`l4`] and
//! [`calibrate`] packets through one core.
//!
//! Nothing here touches the machine's own network: traffic stays inside the namespaces.

#![deny(unsafe_code)]

pub mod ageing;
pub mod calibrate;
pub mod cleanup;
pub mod command;
pub mod demo;
pub mod differential;
pub mod l4;
pub mod l7;
pub mod load;
pub mod namespace;
pub mod peer;
pub mod process;
pub mod remnants;
pub mod servers;
pub mod soak;
pub mod suite;
pub mod tables;
pub mod tool;
pub mod topology;
