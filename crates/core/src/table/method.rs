//! The methods of finding a packet's connection, by the names the papers and the field give them.

use core::fmt;
use core::str::FromStr;

/// How a worker finds the connection of a packet.
///
/// The laboratory (`lab/tables`) has others, to compare these with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupMethod {
    /// [`CuckooPlusPlus`](super::cuckoo::CuckooPlusPlus).
    CuckooPlusPlus,
    /// [`Concurrent`](super::concurrent::Concurrent).
    Concurrent,
    /// [`Stateless`](super::stateless::Stateless).
    Stateless,
    /// [`Maglev`](super::stateless::Maglev).
    Maglev,
}

impl LookupMethod {
    /// The default method.
    pub const DEFAULT: LookupMethod = LookupMethod::CuckooPlusPlus;

    /// All methods.
    pub const ALL: &[LookupMethod] =
        &[LookupMethod::CuckooPlusPlus, LookupMethod::Concurrent, LookupMethod::Stateless, LookupMethod::Maglev];

    /// The name, as configuration and reports have it.
    pub const fn name(self) -> &'static str {
        match self {
            LookupMethod::CuckooPlusPlus => "cuckoo++",
            LookupMethod::Concurrent => "concurrent",
            LookupMethod::Stateless => "stateless",
            LookupMethod::Maglev => "maglev",
        }
    }

    /// A description in one line.
    pub const fn description(self) -> &'static str {
        match self {
            LookupMethod::CuckooPlusPlus => {
                "a table per worker: cuckoo hashing with a filter of moved entries per bucket"
            }
            LookupMethod::Concurrent => "one table for all workers: optimistic cuckoo hashing, no locks for lookups",
            LookupMethod::Stateless => {
                "no connections: the 5-tuple's hash is the backend; half of all flows move when one comes or goes"
            }
            LookupMethod::Maglev => {
                "no connections: Maglev's table leads from the 5-tuple's hash to the backend; few flows move"
            }
        }
    }

    /// Whether all workers use one table.
    pub const fn is_shared(self) -> bool {
        matches!(self, LookupMethod::Concurrent)
    }

    /// Whether connections are tracked at all. Of a method that does not, a packet's backend is found by a
    /// [`Lookup`](super::Lookup) that has no entries.
    pub const fn tracks_connections(self) -> bool {
        !matches!(self, LookupMethod::Stateless | LookupMethod::Maglev)
    }
}

impl Default for LookupMethod {
    fn default() -> LookupMethod {
        LookupMethod::DEFAULT
    }
}

impl fmt::Display for LookupMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no [`LookupMethod`] has; says which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMethod;

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such connection table; there are ")?;
        for (i, method) in LookupMethod::ALL.iter().enumerate() {
            let before = match i {
                0 => "",
                _ if i + 1 == LookupMethod::ALL.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{method}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownMethod {}

impl FromStr for LookupMethod {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<LookupMethod, UnknownMethod> {
        LookupMethod::ALL.iter().copied().find(|method| method.name() == name).ok_or(UnknownMethod)
    }
}
