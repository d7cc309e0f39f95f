//! Network-namespace topologies with real peers, shared by the end-to-end tests, `make demo` and the benchmarks.
//!
//! A [`topology::Topology`] is a client, a balancer, four servers and a flooder, each a network namespace, joined by
//! veth pairs. A [`peer`] is what stands in the balancer: plain kernel routing, nftables, HAProxy, nginx or Hairpin, all
//! started through one function so that comparisons are symmetric. [`load`] drives real clients through it. All of it
//! disappears when dropped, on panic and on Ctrl-C; [`namespace::clean`] removes what a killed run left.
//!
//! Nothing here touches the machine's own network: traffic stays inside the namespaces.

#![deny(unsafe_code)]

pub mod browser;
pub mod cleanup;
pub mod command;
pub mod differential;
pub mod load;
pub mod namespace;
pub mod peer;
pub mod process;
pub mod remnants;
pub mod servers;
pub mod soak;
pub mod tool;
pub mod topology;
