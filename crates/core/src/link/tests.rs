//! Link layers at the two ends of wires in memory.

mod guard;
mod inbound;
mod outbound;
mod resolve;
mod stations;
