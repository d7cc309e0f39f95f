//! Pools, ports, queues and rings, as `shim/port.h` declares them.

use crate::mbuf::Mbuf;
use hairpin_core::frame::Meta;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of};

/// `struct rte_mbuf`: the fields that we read and write, where `shim/port.h` asserts that they are.
#[repr(C, align(64))]
pub(crate) struct RawMbuf {
    pub(crate) buffer: *mut u8,
    _address: u64,
    /// The offset of the frame in the buffer.
    pub(crate) data_offset: u16,
    _references: u16,
    pub(crate) segments: u16,
    /// For a frame without [`WRITTEN`]: the place of its port.
    pub(crate) port: u16,
    /// Its flags: [`MARKED`], [`WRITTEN`], [`EXAMINED`], [`ELSEWHERE`] and others.
    pub(crate) flags: u64,
    _packet_type: u32,
    /// Bytes of all segments, and of this one.
    pub(crate) packet_length: u32,
    pub(crate) data_length: u16,
    _vlan: u16,
    _hash: u32,
    /// With [`MARKED`]: the mark that a rule has set.
    pub(crate) mark: u32,
    _vlan_outer: u16,
    /// Bytes of the buffer.
    pub(crate) buffer_length: u16,
    _rest: [u64; 7],
    /// Ours (a dynamic field, `shim/eal.c`), with [`WRITTEN`].
    pub(crate) meta: MaybeUninit<Meta>,
}

const META: usize = 112;
const _: () = assert!(size_of::<Meta>() <= 16 && align_of::<Meta>() <= 16);
const _: () = assert!(size_of::<RawMbuf>() == 128 && offset_of!(RawMbuf, meta) == META);
const _: () = assert!(offset_of!(RawMbuf, data_offset) == 16 && offset_of!(RawMbuf, segments) == 20);
const _: () = assert!(offset_of!(RawMbuf, port) == 22);
const _: () = assert!(offset_of!(RawMbuf, flags) == 24 && offset_of!(RawMbuf, packet_length) == 36);
const _: () = assert!(offset_of!(RawMbuf, data_length) == 40 && offset_of!(RawMbuf, mark) == 48);
const _: () = assert!(offset_of!(RawMbuf, buffer_length) == 54);

/// A rule has marked the packet (RTE_MBUF_F_RX_FDIR_ID).
pub(crate) const MARKED: u64 = 1 << 13;
/// Our field is initialised (a dynamic flag).
pub(crate) const WRITTEN: u64 = 1 << 40;
/// [`Frame::is_examined`](hairpin_core::frame::Frame::is_examined) (a dynamic flag).
pub(crate) const EXAMINED: u64 = 1 << 39;
/// The buffer is not the mbuf's own (RTE_MBUF_F_EXTERNAL, RTE_MBUF_F_INDIRECT).
pub(crate) const ELSEWHERE: u64 = 3 << 61;

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

/// With a checksum for the device to fill in: the packet is one of IPv4.
pub(crate) const CHECKSUM_IPV4: u32 = 1 << 16;
/// With a checksum for the device to fill in: the packet is a UDP datagram.
pub(crate) const CHECKSUM_UDP: u32 = 1 << 17;
/// The shift of the length of the IP header in that; that of what is in front of it stands at 0.
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
    pub(crate) waits: u8,
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
}

impl RawInfo {
    /// For no port.
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

#[expect(improper_ctypes, reason = "the shim does not look into `Meta`, and asserts where it stands")]
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
    pub(crate) fn hairpin_mbuf_free_burst(frames: *mut Mbuf, count: u32);
    pub(crate) fn hairpin_mbuf_join(raw: *mut RawMbuf) -> c_int;
    pub(crate) fn hairpin_mbuf_checksum(raw: *mut RawMbuf, note: u32);

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
    pub(crate) fn hairpin_events_pass(patience: u32) -> c_int;
    pub(crate) fn hairpin_port_restart(port: u16) -> c_int;
    pub(crate) fn hairpin_port_info(port: u16, info: *mut RawInfo) -> c_int;
    pub(crate) fn hairpin_port_is_up(port: u16) -> c_int;
    pub(crate) fn hairpin_port_statistics(port: u16, statistics: *mut RawStatistics) -> c_int;
    pub(crate) fn hairpin_queue_receive(port: u16, queue: u16, frames: *mut Mbuf, count: u32) -> u32;
    pub(crate) fn hairpin_queue_transmit(port: u16, queue: u16, frames: *mut Mbuf, count: u32) -> u32;

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
