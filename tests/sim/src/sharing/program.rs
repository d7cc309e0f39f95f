//! What a method does for a burst, as a list of steps: work by itself, and uses of lines that cores share.
//!
//! The steps are those of the code that is modelled: DPDK's `rte_hash` (`rte_cuckoo_hash.c`: `__hash_rw_reader_lock` around a
//! look-up, `tbl_chng_cnt` before and after one without locks, `free_slots` where new keys take their places) with its
//! `rte_rwlock` (`generic/rte_rwlock.h`: a load and a compare-and-swap to read, a subtraction to leave), and a spinlock that
//! tests before it tries again (FastClick's `Spinlock`, the laboratory's `GlobalLock`).

use super::profile::MethodCosts;
use std::fmt;
use std::str::FromStr;

/// How packets find their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharingMethod {
    /// They do not: a hash chooses the backend.
    Stateless,
    /// Each core has a table of its own.
    PerCore,
    /// One table, and nothing protects it: it corrupts. For what protection costs.
    Unprotected,
    /// One table; those that change it take turns, those that read are not protected.
    MultiWriter,
    /// One table with a reader-writer lock; free places from one ring.
    RwConcurrency,
    /// One table with a reader-writer lock; free places from a cache of each core's.
    MultiWriterRwConcurrency,
    /// One table whose readers take no lock; free places from one ring.
    LockFree,
    /// One table whose readers take no lock; free places from a cache of each core's, and a lock for those that change it.
    MultiWriterLockFree,
    /// One table under a spinlock.
    GlobalLock,
    /// A table for each core, and a card that says of a packet of a known flow which connection it is of.
    Marks,
}

impl SharingMethod {
    /// All of them, in the order of the paper's throughput.
    pub const ALL: [SharingMethod; 10] = [
        SharingMethod::Stateless,
        SharingMethod::PerCore,
        SharingMethod::Unprotected,
        SharingMethod::MultiWriter,
        SharingMethod::LockFree,
        SharingMethod::MultiWriterLockFree,
        SharingMethod::MultiWriterRwConcurrency,
        SharingMethod::RwConcurrency,
        SharingMethod::GlobalLock,
        SharingMethod::Marks,
    ];

    /// Its name: that of the laboratory's table, where there is one.
    pub const fn name(self) -> &'static str {
        match self {
            SharingMethod::Stateless => "stateless",
            SharingMethod::PerCore => "per-core",
            SharingMethod::Unprotected => "none",
            SharingMethod::MultiWriter => "multi-writer",
            SharingMethod::RwConcurrency => "rw-concurrency",
            SharingMethod::MultiWriterRwConcurrency => "multi-writer+rw-concurrency",
            SharingMethod::LockFree => "lock-free",
            SharingMethod::MultiWriterLockFree => "multi-writer+lock-free",
            SharingMethod::GlobalLock => "global-lock",
            SharingMethod::Marks => "marks",
        }
    }
}

impl fmt::Display for SharingMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SharingMethod {
    type Err = String;

    fn from_str(name: &str) -> Result<SharingMethod, String> {
        let found = SharingMethod::ALL.into_iter().find(|method| method.name() == name);
        let names = || SharingMethod::ALL.map(SharingMethod::name).join(", ");
        found.ok_or_else(|| format!("there is no method `{name}`; there are {}", names()))
    }
}

/// Lines that cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedLine {
    /// The lock's word.
    Lock,
    /// The ends of the ring of free places.
    Ring,
    /// The count of entries that have moved.
    Moves,
}

impl SharedLine {
    pub(super) const COUNT: usize = 3;
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Nanoseconds by itself.
    Work(f64),
    Read(SharedLine),
    Change(SharedLine),
    SpinLock,
    SpinUnlock,
    ReadLock,
    ReadUnlock,
    WriteLock,
    WriteUnlock,
}

/// A packet that is looked up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LookedUp {
    /// It begins a flow.
    pub(super) is_new: bool,
    /// Nanoseconds of the look-up.
    pub(super) lookup_ns: f64,
    /// Nanoseconds of the change, if it begins a flow.
    pub(super) change_ns: f64,
    /// The change moves other entries.
    pub(super) moves: bool,
}

/// The steps for the keys that a lock is taken for once.
pub(super) fn steps(method: SharingMethod, costs: &MethodCosts, packets: &[LookedUp], out: &mut Vec<Step>) {
    for packets in packets.chunks(costs.keys_per_lock as usize) {
        let lookup: f64 = packets.iter().map(|packet| packet.lookup_ns).sum();
        let new = packets.iter().filter(|packet| packet.is_new);
        match method {
            SharingMethod::Stateless => {}
            SharingMethod::PerCore | SharingMethod::Marks => {
                out.push(Step::Work(lookup + new.map(|packet| packet.change_ns).sum::<f64>()));
            }
            SharingMethod::GlobalLock => {
                let changes: f64 = new.map(|packet| packet.change_ns).sum();
                out.extend([Step::SpinLock, Step::Work(lookup + changes), Step::SpinUnlock]);
            }
            SharingMethod::Unprotected => {
                out.push(Step::Work(lookup));
                new.for_each(|packet| out.extend([Step::Change(SharedLine::Ring), Step::Work(packet.change_ns)]));
            }
            SharingMethod::MultiWriter => {
                out.push(Step::Work(lookup));
                new.for_each(|packet| out.extend([Step::WriteLock, Step::Work(packet.change_ns), Step::WriteUnlock]));
            }
            SharingMethod::RwConcurrency | SharingMethod::MultiWriterRwConcurrency => {
                out.extend([Step::ReadLock, Step::Work(lookup), Step::ReadUnlock]);
                for packet in new {
                    out.push(Step::WriteLock);
                    if method == SharingMethod::RwConcurrency {
                        out.push(Step::Change(SharedLine::Ring));
                    }
                    out.extend([Step::Work(packet.change_ns), Step::WriteUnlock]);
                }
            }
            SharingMethod::LockFree | SharingMethod::MultiWriterLockFree => {
                out.extend([Step::Read(SharedLine::Moves), Step::Work(lookup), Step::Read(SharedLine::Moves)]);
                for packet in new {
                    let alone = method == SharingMethod::MultiWriterLockFree;
                    out.push(if alone { Step::WriteLock } else { Step::Change(SharedLine::Ring) });
                    out.push(Step::Work(packet.change_ns));
                    if packet.moves {
                        out.push(Step::Change(SharedLine::Moves));
                    }
                    if alone {
                        out.push(Step::WriteUnlock);
                    }
                }
            }
        }
    }
}
