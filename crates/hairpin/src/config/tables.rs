//! The connection tables by their names in the file: those of the data plane, and DPDK's for comparison.

use super::words::Word;
use hairpin_core::table::Method;

/// A word of the file and what it means.
type Described = (&'static str, &'static str);

/// DPDK's hash table, one for each worker or one for all with each of its flag sets (papers/003, section 4.2), in builds
/// with cargo feature `dpdk`.
const RTE_HASH: [Described; 9] = [
    ("rte-hash", "DPDK's table, one for each worker, for comparison; this and the following need a build with DPDK"),
    ("rte-hash/none", "one for all workers, protected by nothing: see `connection_table_unsafe`"),
    ("rte-hash/multi-writer", "one for all, readers unprotected: see `connection_table_unsafe`"),
    ("rte-hash/rw-concurrency", "one for all, a reader-writer lock; writers take turns"),
    ("rte-hash/multi-writer+rw-concurrency", "one for all, a reader-writer lock"),
    ("rte-hash/lock-free", "one for all, readers take no lock; writers take turns"),
    ("rte-hash/multi-writer+lock-free", "one for all, readers take no lock"),
    ("rte-hash/transactional", "one for all, the lock elided where the processor has transactions; writers take turns"),
    ("rte-hash/multi-writer+transactional", "one for all, the lock elided where the processor has transactions"),
];
/// Those that can corrupt.
const UNPROTECTED: [&str; 2] = ["rte-hash/none", "rte-hash/multi-writer"];

const COUNT: usize = Method::ALL.len() + RTE_HASH.len();

/// Which connection table workers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChoice {
    /// One of the data plane's own.
    Own(Method),
    /// DPDK's, by its word.
    RteHash(&'static str),
}

impl TableChoice {
    /// Its word in the file.
    pub fn name(self) -> &'static str {
        self.word()
    }

    /// Whether this program has it.
    pub fn is_built_in(self) -> bool {
        matches!(self, TableChoice::Own(_)) || cfg!(feature = "dpdk")
    }

    /// Whether workers share it although nothing protects them from each other.
    pub fn is_unprotected(self) -> bool {
        UNPROTECTED.contains(&self.name())
    }

    /// Whether connections are tracked; if not, every packet finds its backend by itself.
    pub fn tracks_connections(self) -> bool {
        match self {
            TableChoice::Own(method) => method.tracks_connections(),
            TableChoice::RteHash(_) => true,
        }
    }
}

/// Every choice and its word.
const CHOICES: [(TableChoice, &str); COUNT] = {
    let mut choices = [(TableChoice::Own(Method::DEFAULT), ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        choices[i] = if i < Method::ALL.len() {
            (TableChoice::Own(Method::ALL[i]), Method::ALL[i].name())
        } else {
            let word = RTE_HASH[i - Method::ALL.len()].0;
            (TableChoice::RteHash(word), word)
        };
        i += 1;
    }
    choices
};

/// The words as the reference lists them.
pub(super) const WORDS: [Described; COUNT] = {
    let mut words = [("", ""); COUNT];
    let mut i = 0;
    while i < COUNT {
        words[i] = if i < Method::ALL.len() {
            (Method::ALL[i].name(), Method::ALL[i].description())
        } else {
            RTE_HASH[i - Method::ALL.len()]
        };
        i += 1;
    }
    words
};

impl Word for TableChoice {
    const WORDS: &'static [(TableChoice, &'static str)] = &CHOICES;
}
