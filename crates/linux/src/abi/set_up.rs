//! Layouts of what sets connections up without a worker (`crates/linux/bpf/setup.h`).

use super::{Bytes, EndKey};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU16, AtomicU32};

/// Schedules there can be.
pub const SCHEDULES_MAX: usize = 64;
/// Entries of a schedule at most, and of one by hash always.
pub const SCHEDULE_MAX: usize = 65_537;

/// For a service: its connections are set up by the programs.
pub const END_SET_UP: u16 = 64;
/// A backend of such a service, and of no other.
pub const END_SET_UP_BACKEND: u16 = 128;
/// With `END_SET_UP`: the service has direct server return.
pub const END_SET_UP_DIRECT: u16 = 256;

/// By the hash of the client's flow.
pub const SCHEDULE_FLOW: u32 = 1;
/// By the hash of the client's address.
pub const SCHEDULE_SOURCE: u32 = 2;
/// One entry after the other.
pub const SCHEDULE_TURNS: u32 = 3;

/// There is no such backend.
pub const TARGET_NONE: u8 = 0;
/// It takes no new connections.
pub const TARGET_CLOSED: u8 = 1;
/// It takes new connections.
pub const TARGET_OPEN: u8 = 2;

/// `Pending::answered`: of direct server return, the client has sent FIN or RST.
pub const PENDING_ENDED: u8 = 2;

/// Nothing came of it.
pub const REPORT_VOID: u8 = 0;
/// A connection was set up.
pub const REPORT_SET_UP: u8 = 1;
/// A segment with SYN, FIN or RST has been sent on.
pub const REPORT_SEGMENT: u8 = 2;
/// Of direct server return: the client has gone on after its SYN, or has begun anew.
pub const REPORT_BEGUN: u8 = 3;
/// Reports that a queue holds.
pub const REPORTS_MAX: usize = 4096;

/// Element of `schedules`, shared.
#[repr(C)]
pub struct Schedule {
    /// `SCHEDULE_*`.
    pub kind: AtomicU32,
    /// Entries; 0: workers choose.
    pub length: AtomicU32,
    /// Of turns: connections so far.
    pub turn: AtomicU32,
    /// First packets so far.
    pub begun: AtomicU32,
    /// Those of UDP that were answered.
    pub answered: AtomicU32,
    /// Zeros.
    pub zero: [AtomicU32; 3],
    /// Backends' numbers.
    pub backends: [AtomicU16; SCHEDULE_MAX + 3],
}

/// Value of `targets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Target {
    /// The backend's end.
    pub backend: EndKey,
    /// Its service's end.
    pub vip: EndKey,
    /// Its service's number.
    pub service: u16,
    /// Its service's schedule.
    pub schedule: u8,
    /// `TARGET_*`.
    pub state: u8,
    /// How long what is half-open lives, in ticks.
    pub lifetime: u32,
}

/// Key of `pending`: the client's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PendingKey {
    /// The client's end.
    pub client: EndKey,
    /// The service's.
    pub vip: EndKey,
}

/// Value of `pending`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pending {
    /// Of the key.
    pub tag: u32,
    /// Ticks.
    pub begun: u32,
    /// TCP, once answered: what the client acknowledges at least. Of direct server return: what follows its SYN's number.
    pub proof: u32,
    /// Its backend's number.
    pub backend: u16,
    /// 1: the backend has answered; of direct server return, the client has gone on. Or `PENDING_ENDED`.
    pub answered: u8,
    /// Datagrams of the client; of direct server return, packets.
    pub sent: u8,
    /// Of both directions: as in a rule.
    pub until: [u32; 2],
    /// Likewise.
    pub next_hops: [u16; 2],
}

/// What a worker is told.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Report {
    /// Its place plus one, once it is whole.
    pub sequence: u32,
    /// The backend's number.
    pub backend: u16,
    /// `REPORT_*`.
    pub kind: u8,
    /// 1: the backend has answered.
    pub answered: u8,
    /// The connection; of a segment, its source and destination.
    pub key: PendingKey,
    /// Of a segment.
    pub tcp_flags: u8,
    /// Of `REPORT_BEGUN`: packets of the client.
    pub sent: u8,
    /// Zero.
    pub zero: [u8; 2],
    /// Of `REPORT_BEGUN`: as in [`Pending`].
    pub proof: u32,
    /// Nothing.
    pub reserved: [u8; 8],
}

/// Words of a [`Report`].
const REPORT_WORDS: usize = size_of::<Report>() / 4;

/// Element of `reports`, shared: a worker's queue.
#[repr(C)]
pub struct Reports {
    /// Reports so far.
    pub head: AtomicU32,
    /// Those that the worker has done with.
    pub tail: AtomicU32,
    /// Connections set up so far.
    pub made: AtomicU32,
    /// The worker has room for so many, counted as `made`.
    pub allowed: AtomicU32,
    /// Zeros.
    pub zero: [AtomicU32; 12],
    /// By place, as words of [`Report`].
    pub reports: [[AtomicU32; REPORT_WORDS]; REPORTS_MAX],
}

// SAFETY: `repr(C)`, integers and arrays of integers only, and the assertions below leave no room for padding.
unsafe impl Bytes for Target {}
// SAFETY: as above.
unsafe impl Bytes for PendingKey {}
// SAFETY: as above.
unsafe impl Bytes for Pending {}
// SAFETY: as above.
unsafe impl Bytes for Report {}

const _: () = {
    assert!(
        SCHEDULES_MAX == hairpin_core::engine::SET_UP_SERVICES_MAX && SCHEDULE_MAX == hairpin_core::balance::TABLE_SIZE
    );
    assert!(size_of::<Schedule>() == 131_112 && offset_of!(Schedule, backends) == 32);
    assert!(size_of::<Target>() == 48 && size_of::<PendingKey>() == 40);
    assert!(size_of::<Pending>() == 28);
    assert!(size_of::<Report>() == 64 && offset_of!(Report, key) == 8 && offset_of!(Report, proof) == 52);
    assert!(size_of::<Reports>() == 64 + REPORTS_MAX * 64 && offset_of!(Reports, reports) == 64);
};
