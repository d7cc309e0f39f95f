//! Hairpin's view of DPDK (22.11, as Debian has it): `rte_hash` tables behind the traits of [`hairpin_core::table`],
//! to be compared with our own on the same work.
//!
//! Everything is behind the cargo feature `dpdk`; without it this crate is empty and builds anywhere. The C shim
//! (`shim/`) is called once per burst, so that crossing into C costs DPDK nothing that could be measured.
//!
//! [`Eal`] starts DPDK, once per process. [`RteHash`] is a table with one owner, of any [`Flags`]; [`SharedRteHash`] one
//! that any number of threads use, through a [`Handle`] each.
// An empty crate has nothing to link to.
#![cfg_attr(not(feature = "dpdk"), allow(rustdoc::broken_intra_doc_links))]
#![cfg(feature = "dpdk")]

mod eal;
mod error;
mod ffi;
mod flags;
mod key;
mod memory;
mod rte_hash;
mod transactions;

pub use eal::{Eal, EalOptions, Registration};
pub use error::Error;
pub use flags::{Flags, HashFunction, UnknownFlags};
pub use key::PackedKey;
pub use memory::Pages;
pub use rte_hash::{Handle, RteHash, SharedRteHash, Sharing, UNPROTECTED_WARNING};
pub use transactions::Transactions;
