//! The C shim, as `shim/shim.h` declares it. Functions that return an error return 0 or a positive errno.

pub(crate) mod port;

use std::ffi::{c_char, c_int, c_uint};

unsafe extern "C" {
    pub(crate) fn hairpin_eal_start(memory_mib: c_uint, huge: c_int, pci: c_int) -> c_int;
    pub(crate) fn hairpin_log_listen();
    pub(crate) fn hairpin_log_heard(log: *mut c_char, log_size: usize);
    pub(crate) fn hairpin_strerror(error: c_int) -> *const c_char;
    pub(crate) fn hairpin_thread_register() -> c_int;
    pub(crate) fn hairpin_thread_unregister();
}
