//! Layer 4: what a connection is, TCP's states as a balancer sees them, source ports for full NAT, ICMP.

pub mod answer;
pub mod connection;
pub mod icmp;
pub mod ports;
pub mod tcp;
