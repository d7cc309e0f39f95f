//! The C shim, as `shim/hash.h` declares it. Functions that return an error return 0 or a positive errno.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct rte_hash`, opaque.
#[repr(C)]
pub(crate) struct RawHash {
    _opaque: [u8; 0],
}

/// `struct rte_rcu_qsbr`, opaque.
#[repr(C)]
pub(crate) struct RawQsbr {
    _opaque: [u8; 0],
}

/// The thread has no lcore id, which the table needs.
pub(crate) const NOT_REGISTERED: c_int = -1;

unsafe extern "C" {
    pub(crate) fn hairpin_transactions_committed(attempts: c_uint) -> c_uint;
    pub(crate) fn hairpin_transactions_announced() -> c_int;

    pub(crate) fn hairpin_heap_create(
        name: *const c_char,
        memory: *mut c_void,
        length: usize,
        page: usize,
        socket: *mut c_int,
    ) -> c_int;
    pub(crate) fn hairpin_heap_destroy(name: *const c_char, memory: *mut c_void, length: usize) -> c_int;
    pub(crate) fn hairpin_heap_used(socket: c_int) -> usize;

    pub(crate) fn hairpin_hash_memory(entries: u32, key_length: u32, flags: u8) -> usize;
    pub(crate) fn hairpin_hash_create(
        name: *const c_char,
        entries: u32,
        key_length: u32,
        seed: u32,
        jhash: c_int,
        flags: u8,
        socket: c_int,
        hash: *mut *mut RawHash,
        qsbr: *mut *mut RawQsbr,
        queue_bytes: *mut usize,
    ) -> c_int;
    pub(crate) fn hairpin_hash_free(hash: *mut RawHash, qsbr: *mut RawQsbr);
    pub(crate) fn hairpin_hash_find_one(hash: *const RawHash, key: *const u8, value: *mut u32) -> c_int;
    pub(crate) fn hairpin_hash_find(
        hash: *const RawHash,
        keys: *const u8,
        key_length: u32,
        count: u32,
        values: *mut u32,
    ) -> u64;
    pub(crate) fn hairpin_hash_insert(
        hash: *mut RawHash,
        per_lcore: c_int,
        keys: *const u8,
        key_length: u32,
        values: *const u32,
        count: u32,
    ) -> c_int;
    pub(crate) fn hairpin_hash_remove(
        hash: *mut RawHash,
        per_lcore: c_int,
        keys: *const u8,
        key_length: u32,
        values: *const u32,
        count: u32,
    ) -> c_int;
    pub(crate) fn hairpin_hash_remove_keys(
        hash: *mut RawHash,
        per_lcore: c_int,
        keys: *const u8,
        key_length: u32,
        count: u32,
    ) -> c_int;
    pub(crate) fn hairpin_hash_scan(hash: *const RawHash, next: *mut u32, values: *mut u32, count: u32) -> u32;

    pub(crate) fn hairpin_reader_register(qsbr: *mut RawQsbr, reader: c_uint) -> c_int;
    pub(crate) fn hairpin_reader_unregister(qsbr: *mut RawQsbr, reader: c_uint);
    pub(crate) fn hairpin_reader_online(qsbr: *mut RawQsbr, reader: c_uint);
    pub(crate) fn hairpin_reader_offline(qsbr: *mut RawQsbr, reader: c_uint);
    pub(crate) fn hairpin_reader_quiescent(qsbr: *mut RawQsbr, reader: c_uint);
}
