//! `shim/flow.h`, as Rust calls it. Functions that return an error return 0 or a positive errno.

use super::description::Description;
use std::ffi::{c_char, c_int};

/// `struct rte_flow`, opaque.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RawFlow {
    _opaque: [u8; 0],
}

/// `struct hairpin_flow_error`.
#[repr(C)]
pub(super) struct RawError {
    pub(super) code: c_int,
    pub(super) kind: c_int,
    pub(super) message: [u8; 128],
}

/// `struct hairpin_flow_count`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawCount {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) idle_seconds: u32,
    pub(super) counted: u8,
    pub(super) aged: u8,
}

/// `struct hairpin_flow_hairpin`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawHairpin {
    pub(super) queues: u16,
    pub(super) rx_per_tx: u16,
    pub(super) tx_per_rx: u16,
    pub(super) descriptors: u16,
}

/// `struct hairpin_flow_result`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawResult {
    pub(super) ticket: u64,
    pub(super) succeeded: u8,
}

/// `struct hairpin_flow_table`: three pointers of DPDK's.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RawTable(pub(super) [*mut u8; 3]);

unsafe extern "C" {
    pub(super) fn hairpin_flow_rule_size() -> usize;
    pub(super) fn hairpin_flow_dump(
        rule: *const Description,
        template_masks: c_int,
        text: *mut c_char,
        size: usize,
    ) -> c_int;
    pub(super) fn hairpin_flow_dump_converted(rule: *const Description, text: *mut c_char, size: usize) -> c_int;
    pub(super) fn hairpin_flow_validate(port: u16, rule: *const Description, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_create(
        port: u16,
        rule: *const Description,
        flow: *mut *mut RawFlow,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_destroy(port: u16, flow: *mut RawFlow, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_query(port: u16, flow: *mut RawFlow, does: u32, count: *mut RawCount) -> c_int;
    pub(super) fn hairpin_flow_flush(port: u16, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_queue_info(port: u16, queues: *mut u32, size: *mut u32, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_configure(
        port: u16,
        counters: u32,
        ages: u32,
        queues: u16,
        size: u32,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_table_create(
        port: u16,
        shape: *const Description,
        rules: u32,
        table: *mut RawTable,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_table_destroy(port: u16, table: *mut RawTable, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_async_create(
        port: u16,
        queue: u32,
        table: *const RawTable,
        rule: *const Description,
        ticket: u64,
        flow: *mut *mut RawFlow,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_async_destroy(
        port: u16,
        queue: u32,
        flow: *mut RawFlow,
        ticket: u64,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_push(port: u16, queue: u32, error: *mut RawError) -> c_int;
    pub(super) fn hairpin_flow_pull(
        port: u16,
        queue: u32,
        results: *mut RawResult,
        count: u16,
        pulled: *mut u16,
        error: *mut RawError,
    ) -> c_int;
    pub(super) fn hairpin_flow_hairpin_capability(port: u16, capability: *mut RawHairpin) -> c_int;
}

/// Descriptions are handed to C as they are: checked once, before the first is.
pub(super) fn agrees_with_the_shim() -> bool {
    // SAFETY: returns a constant.
    (unsafe { hairpin_flow_rule_size() }) == size_of::<Description>()
}
