//! Others' tables, to be compared with.

#[cfg(feature = "libcuckoo")]
pub(super) mod libcuckoo;
#[cfg(feature = "dpdk")]
pub(super) mod rte_hash;
pub(super) mod rust_maps;
