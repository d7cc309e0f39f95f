//! The errors of an rte_hash.

use super::{CAPACITY_MAX, CAPACITY_MIN, HANDLES_MAX, RteHashFlags, Transactions};
use std::fmt;

/// Why a table was refused.
#[derive(Debug)]
pub enum Error {
    /// DPDK refused.
    Dpdk(hairpin_dpdk::Error),
    /// The table cannot be made for so many entries.
    Capacity(usize),
    /// The system gave no memory for a table.
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A flag set asks for transactions, which do not work here.
    NoTransactions(RteHashFlags, Transactions),
    /// The flag set does not protect several threads from each other.
    Unprotected(RteHashFlags),
    /// All handles of a shared table are taken.
    TooManyHandles,
}

impl Error {
    /// `Ok` of 0, else the error of a call.
    pub(crate) fn of(code: i32, what: &'static str) -> Result<(), Error> {
        Ok(hairpin_dpdk::Error::of(code, what)?)
    }
}

impl From<hairpin_dpdk::Error> for Error {
    fn from(error: hairpin_dpdk::Error) -> Error {
        Error::Dpdk(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Dpdk(error) => error.fmt(f),
            Error::Capacity(entries) => {
                write!(f, "rte_hash takes {CAPACITY_MIN} to {CAPACITY_MAX} entries, not {entries}")
            }
            Error::Memory { bytes, source } => write!(f, "no {} MiB for an rte_hash table: {source}", bytes >> 20),
            Error::NoTransactions(flags, found) => {
                write!(f, "{flags} needs hardware transactional memory, and {found}")
            }
            Error::Unprotected(flags) => write!(
                f,
                "{flags} does not protect threads from each other: one table per worker, other flags, or ask for it \
                 unprotected"
            ),
            Error::TooManyHandles => write!(f, "an rte_hash table has at most {HANDLES_MAX} handles at a time"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Dpdk(error) => Some(error),
            Error::Memory { source, .. } => Some(source),
            _ => None,
        }
    }
}
