//! Pools, ports, queues and rings, as `shim/port.h` declares them.

use crate::mbuf::Mbuf;
use std::ffi::{c_char, c_int, c_void};

/// `struct rte_mbuf`, opaque.
#[repr(C)]
pub(crate) struct RawMbuf {
    _opaque: [u8; 0],
}

/// `struct rte_mempool`, opaque.
#[repr(C)]
pub(crate) struct RawPool {
    _opaque: [u8; 0],
}

/// `struct rte_ring`, opaque.
#[repr(C)]
pub(crate) struct RawRing {
    _opaque: [u8; 0],
}

/// In the note of a frame that is sent: its checksum is the device's to fill in, the packet is one of IPv4.
pub(crate) const CHECKSUM_IPV4: u32 = 1 << 16;
/// The same: it is a UDP datagram.
pub(crate) const CHECKSUM_UDP: u32 = 1 << 17;
/// Where the length of the IP header stands in such a note; that of what is in front of it stands at 0.
pub(crate) const CHECKSUM_L3_SHIFT: u32 = 7;

/// `struct hairpin_port_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawOptions {
    pub(crate) queues: u16,
    pub(crate) rx_descriptors: u16,
    pub(crate) tx_descriptors: u16,
    pub(crate) mtu: u16,
    pub(crate) promiscuous: u8,
    pub(crate) rss: u8,
    pub(crate) hairpins: u16,
}

/// `struct hairpin_port_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawInfo {
    pub(crate) name: [u8; 64],
    pub(crate) driver: [u8; 32],
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
    pub(crate) queues: u16,
    pub(crate) rx_descriptors: u16,
    pub(crate) tx_descriptors: u16,
    pub(crate) max_queues: u16,
    pub(crate) numa_node: i32,
    pub(crate) rss_types: u64,
    pub(crate) rss_set: u64,
    pub(crate) rss_key_length: u8,
    pub(crate) rss_key_symmetric: u8,
    pub(crate) checksums: u8,
    pub(crate) promiscuous: u8,
}

impl RawInfo {
    /// Of no port.
    pub(crate) const EMPTY: RawInfo = RawInfo {
        name: [0; 64],
        driver: [0; 32],
        mac: [0; 6],
        mtu: 0,
        queues: 0,
        rx_descriptors: 0,
        tx_descriptors: 0,
        max_queues: 0,
        numa_node: -1,
        rss_types: 0,
        rss_set: 0,
        rss_key_length: 0,
        rss_key_symmetric: 0,
        checksums: 0,
        promiscuous: 0,
    };
}

/// `struct hairpin_port_statistics`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawStatistics {
    pub(crate) received: u64,
    pub(crate) transmitted: u64,
    pub(crate) received_bytes: u64,
    pub(crate) transmitted_bytes: u64,
    pub(crate) missed: u64,
    pub(crate) receive_errors: u64,
    pub(crate) transmit_errors: u64,
    pub(crate) no_mbuf: u64,
}

/// `struct hairpin_chains`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawChains {
    pub(crate) joined: u64,
    pub(crate) dropped: u64,
}

#[expect(improper_ctypes, reason = "the shim does not look into `Meta`, and `Mbuf` asserts where it stands")]
unsafe extern "C" {
    pub(crate) fn hairpin_pool_create(
        name: *const c_char,
        mbufs: u32,
        cache: u16,
        data_room: u16,
        memory: *mut c_void,
        length: usize,
        pool: *mut *mut RawPool,
    ) -> c_int;
    pub(crate) fn hairpin_pool_memory(mbufs: u32, data_room: u16) -> usize;
    pub(crate) fn hairpin_pool_in_use(pool: *const RawPool) -> u32;
    pub(crate) fn hairpin_pool_allocate(pool: *mut RawPool, frames: *mut Mbuf, count: u32) -> u32;
    pub(crate) fn hairpin_mbuf_free(raw: *mut RawMbuf);
    pub(crate) fn hairpin_mbuf_free_burst(frames: *const Mbuf, count: u32);

    pub(crate) fn hairpin_port_open(
        device: *const c_char,
        options: *const RawOptions,
        pool: *mut RawPool,
        port: *mut u16,
        what: *mut *const c_char,
    ) -> c_int;
    pub(crate) fn hairpin_port_pair(
        names: *const [*const c_char; 2],
        queues: u16,
        size: u32,
        options: *const RawOptions,
        pool: *mut RawPool,
        ports: *mut [u16; 2],
        rings: *mut *mut RawRing,
        what: *mut *const c_char,
    ) -> c_int;
    pub(crate) fn hairpin_port_wire_free(ring: *mut RawRing);
    pub(crate) fn hairpin_port_close(port: u16);
    pub(crate) fn hairpin_port_info(port: u16, info: *mut RawInfo) -> c_int;
    pub(crate) fn hairpin_port_is_up(port: u16) -> c_int;
    pub(crate) fn hairpin_port_statistics(port: u16, statistics: *mut RawStatistics) -> c_int;
    pub(crate) fn hairpin_queue_receive(
        port: u16,
        queue: u16,
        frames: *mut Mbuf,
        count: u32,
        chains: *mut RawChains,
    ) -> u32;
    pub(crate) fn hairpin_queue_transmit(port: u16, queue: u16, frames: *const Mbuf, count: u32) -> u32;

    pub(crate) fn hairpin_ring_create(
        name: *const c_char,
        size: u32,
        many_producers: c_int,
        many_consumers: c_int,
        socket: c_int,
        ring: *mut *mut RawRing,
    ) -> c_int;
    pub(crate) fn hairpin_ring_free(ring: *mut RawRing);
    pub(crate) fn hairpin_ring_send(ring: *mut RawRing, frames: *const Mbuf, count: u32) -> u32;
    pub(crate) fn hairpin_ring_receive(ring: *mut RawRing, frames: *mut Mbuf, count: u32) -> u32;
    pub(crate) fn hairpin_ring_count(ring: *const RawRing) -> u32;
}
