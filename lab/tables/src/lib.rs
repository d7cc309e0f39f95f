//! Connection tables and mechanisms of ageing that exist to be compared: with each other, with the product's
//! ([`hairpin_core::table`]) and with DPDK's, on the same work and behind the same traits.
//!
//! | name | module | what it is |
//! |---|---|---|
//! | `two-choice` | [`two_choice`] | 10-slot buckets, the emptier of two takes an entry, nothing moves |
//! | `inline` | [`inline`] | cuckoo hashing with the keys in the buckets |
//! | `global-lock` | [`global_lock`] | one table, one spinlock |
//! | `rte-hash/...` | `rte_hash` (feature `dpdk`) | DPDK's, in each of its flag sets |
//!
//! [`OwnTable`] is any of ours, the product's among them; `rte_hash::WorkerTable` any at all. A worker runs on either.
//! [`ageing`] has the mechanisms, [`store`] what indexes are measured with.

pub mod ageing;
mod any;
pub mod global_lock;
pub mod inline;
mod method;
#[cfg(feature = "dpdk")]
pub mod rte_hash;
pub mod store;
pub mod two_choice;
pub mod wheel;

pub use any::OwnTable;
pub use method::{OwnMethod, UnknownTable};
