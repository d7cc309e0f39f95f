//! rte_hash's concurrency flags by name, and its hash functions.

use std::fmt;
use std::str::FromStr;

const TRANS_MEM_SUPPORT: u8 = 0x01;
const MULTI_WRITER_ADD: u8 = 0x02;
const RW_CONCURRENCY: u8 = 0x04;
const RW_CONCURRENCY_LF: u8 = 0x20;

/// A set of rte_hash's concurrency flags (KTH 2020, section 4.2), by the name `rte-hash/<flags>`.
///
/// The protection of each, by DPDK 22.11's source:
/// - the readers' flags (`rw-concurrency`, `lock-free`) let any number of readers work beside *one* writer: positions
///   for new keys come from a ring with one consumer, outside the lock;
/// - `multi-writer` lets several writers work, and leaves readers unprotected from them;
/// - only both together make a table that any thread may use at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RteHashFlags {
    /// `none`: nothing; one thread.
    None,
    /// `multi-writer` (`MULTI_WRITER_ADD`): several writers, no reader meanwhile.
    MultiWriter,
    /// `rw-concurrency` (`RW_CONCURRENCY`): a reader-writer lock; one writer at a time.
    RwConcurrency,
    /// `multi-writer+rw-concurrency`: a reader-writer lock, several writers.
    MultiWriterRwConcurrency,
    /// `lock-free` (`RW_CONCURRENCY_LF`): readers take no lock, see version counters; one writer at a time.
    LockFree,
    /// `multi-writer+lock-free`: readers take no lock, writers one.
    MultiWriterLockFree,
    /// `transactional` (`TRANS_MEM_SUPPORT` with `RW_CONCURRENCY`): the reader-writer lock is elided by hardware
    /// transactions; one writer at a time.
    Transactional,
    /// `multi-writer+transactional`: the same, several writers.
    MultiWriterTransactional,
}

impl RteHashFlags {
    /// All of them, in the order of the papers.
    pub const ALL: [RteHashFlags; 8] = [
        RteHashFlags::None,
        RteHashFlags::MultiWriter,
        RteHashFlags::RwConcurrency,
        RteHashFlags::MultiWriterRwConcurrency,
        RteHashFlags::LockFree,
        RteHashFlags::MultiWriterLockFree,
        RteHashFlags::Transactional,
        RteHashFlags::MultiWriterTransactional,
    ];

    /// `rte-hash/<flags>`.
    pub fn name(self) -> &'static str {
        match self {
            RteHashFlags::None => "rte-hash/none",
            RteHashFlags::MultiWriter => "rte-hash/multi-writer",
            RteHashFlags::RwConcurrency => "rte-hash/rw-concurrency",
            RteHashFlags::MultiWriterRwConcurrency => "rte-hash/multi-writer+rw-concurrency",
            RteHashFlags::LockFree => "rte-hash/lock-free",
            RteHashFlags::MultiWriterLockFree => "rte-hash/multi-writer+lock-free",
            RteHashFlags::Transactional => "rte-hash/transactional",
            RteHashFlags::MultiWriterTransactional => "rte-hash/multi-writer+transactional",
        }
    }

    /// Whether readers may work beside a writer.
    pub fn protects_readers(self) -> bool {
        self.bits() & (RW_CONCURRENCY | RW_CONCURRENCY_LF) != 0
    }

    /// Whether several writers may work at a time. Such a table has a cache of free positions per lcore, so that who
    /// writes has to be registered with EAL.
    pub fn protects_writers(self) -> bool {
        self.bits() & MULTI_WRITER_ADD != 0
    }

    /// Whether readers take no lock, so that removed positions wait until every reader has been quiescent.
    pub fn is_lock_free(self) -> bool {
        self.bits() & RW_CONCURRENCY_LF != 0
    }

    /// Whether the processor's transactions are asked for.
    pub fn is_transactional(self) -> bool {
        self.bits() & TRANS_MEM_SUPPORT != 0
    }

    /// `extra_flag` of `rte_hash_parameters`.
    pub(crate) fn bits(self) -> u8 {
        match self {
            RteHashFlags::None => 0,
            RteHashFlags::MultiWriter => MULTI_WRITER_ADD,
            RteHashFlags::RwConcurrency => RW_CONCURRENCY,
            RteHashFlags::MultiWriterRwConcurrency => MULTI_WRITER_ADD | RW_CONCURRENCY,
            RteHashFlags::LockFree => RW_CONCURRENCY_LF,
            RteHashFlags::MultiWriterLockFree => MULTI_WRITER_ADD | RW_CONCURRENCY_LF,
            RteHashFlags::Transactional => TRANS_MEM_SUPPORT | RW_CONCURRENCY,
            RteHashFlags::MultiWriterTransactional => TRANS_MEM_SUPPORT | MULTI_WRITER_ADD | RW_CONCURRENCY,
        }
    }
}

impl fmt::Display for RteHashFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No flag set has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlags(pub String);

impl fmt::Display for UnknownFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no rte_hash flag set is called {:?}; there are", self.0)?;
        let mut before = " ";
        for flags in RteHashFlags::ALL {
            write!(f, "{before}{flags}")?;
            before = ", ";
        }
        Ok(())
    }
}

impl std::error::Error for UnknownFlags {}

/// `rte-hash/<flags>`; a plain `rte-hash` is `rte-hash/none`.
impl FromStr for RteHashFlags {
    type Err = UnknownFlags;

    fn from_str(name: &str) -> Result<RteHashFlags, UnknownFlags> {
        if name == "rte-hash" {
            return Ok(RteHashFlags::None);
        }
        RteHashFlags::ALL.into_iter().find(|flags| flags.name() == name).ok_or_else(|| UnknownFlags(name.to_owned()))
    }
}

/// How a table hashes keys, from a 32-bit seed.
///
/// Neither is a keyed hash in our sense. CRC is linear: two keys that collide under one seed collide under every seed,
/// so a client that chooses keys chooses collisions without knowing the secret. jhash mixes its seed in, but 32 bits of
/// it can be tried out, and it was not made to resist. An rte_hash table is a peer to measure against, not one to
/// expose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashFunction {
    /// `rte_hash_crc`, DPDK's default where the processor has SSE 4.2.
    #[default]
    Crc,
    /// `rte_jhash`.
    Jhash,
}
