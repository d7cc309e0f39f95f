//! Whether the processor's transactional memory (Intel's RTM) works.

use super::ffi;
use std::fmt;

/// The outcomes of a few trial transactions.
///
/// DPDK itself asks only for the processor's RTM flag and otherwise silently takes the lock each time, which would
/// measure something else. Processors whose microcode aborts every transaction may still show the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transactions {
    /// They commit.
    Work,
    /// The processor does not announce RTM.
    NotAnnounced,
    /// RTM is announced, but every transaction aborts.
    AlwaysAborted,
}

impl Transactions {
    /// Tries some out; takes microseconds.
    pub fn probe() -> Transactions {
        /// One that an interrupt hits aborts, so a few are not enough.
        const ATTEMPTS: u32 = 1000;
        // SAFETY: asks CPUID through DPDK; needs nothing to be started.
        if unsafe { ffi::hairpin_transactions_announced() } == 0 {
            return Transactions::NotAnnounced;
        }
        // SAFETY: RTM is announced, so its instructions exist.
        match unsafe { ffi::hairpin_transactions_committed(ATTEMPTS) } {
            0 => Transactions::AlwaysAborted,
            _ => Transactions::Work,
        }
    }
}

impl fmt::Display for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transactions::Work => "this processor's transactions work",
            Transactions::NotAnnounced => "this processor has none (no RTM)",
            Transactions::AlwaysAborted => {
                "this processor aborts every transaction although it announces RTM (switched off by microcode or the \
                 hypervisor)"
            }
        })
    }
}
