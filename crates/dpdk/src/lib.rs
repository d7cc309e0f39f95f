//! Hairpin's view of DPDK (22.11, as Debian has it): ports as a plane's frames come from and go to.
//!
//! Everything is behind the cargo feature `dpdk`; without it this crate is empty and builds anywhere. The C shim
//! (`shim/`) is called once per burst, so that crossing into C costs DPDK nothing that could be measured.
//!
//! [`Eal`] starts DPDK, once per process.
//!
//! Ports: a [`MbufPool`] has the buffers, a [`Port`] is an open device, a [`PortQueue`] of it lets one thread receive and send
//! [`Mbuf`]s, which are frames as the core knows them. [`PortIo`] makes a worker's queues what its core wants. A
//! [`Ring`] passes frames from thread to thread, [`Port::pair`] is a wire between two ports in one process. Threads that
//! use any of it should be registered ([`Eal::register_thread`]).
// An empty crate has nothing to link to.
#![cfg_attr(not(feature = "dpdk"), allow(rustdoc::broken_intra_doc_links))]
#![cfg(feature = "dpdk")]

mod checksum;
mod eal;
mod error;
mod ffi;
pub mod flow;
mod io;
mod mbuf;
pub mod memory;
mod pool;
mod port;
mod port_client;
mod queue;
mod ring;
mod rss;
mod segment;

pub use eal::{Eal, EalOptions, EalPages, Registration, ensure_registered};
pub use error::Error;
pub use io::PortIo;
pub use mbuf::Mbuf;
pub use pool::{MbufPool, PoolOptions};
pub use port::{Chained, Port, PortOptions, PortStatistics};
pub use queue::PortQueue;
pub use ring::{Ring, RingKind, RingReceiver, RingSender};
pub use rss::{PortSpread, Rss, SpreadAbilities};
