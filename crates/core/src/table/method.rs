//! The methods of finding a packet's connection, by the names the papers and the field give them.

use core::fmt;
use core::str::FromStr;

/// How a worker finds the connection of a packet.
///
/// The laboratory (`lab/tables`) has others, to compare these with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// [`CuckooPlusPlus`](super::cuckoo::CuckooPlusPlus).
    CuckooPlusPlus,
    /// [`Concurrent`](super::concurrent::Concurrent).
    Concurrent,
    /// [`Stateless`](super::stateless::Stateless).
    Stateless,
    /// [`Maglev`](super::stateless::Maglev).
    Maglev,
}

impl Method {
    /// What is used where nothing else is asked for.
    pub const DEFAULT: Method = Method::CuckooPlusPlus;

    /// All methods.
    pub const ALL: &[Method] = &[Method::CuckooPlusPlus, Method::Concurrent, Method::Stateless, Method::Maglev];

    /// The name, as configuration and reports have it.
    pub const fn name(self) -> &'static str {
        match self {
            Method::CuckooPlusPlus => "cuckoo++",
            Method::Concurrent => "concurrent",
            Method::Stateless => "stateless",
            Method::Maglev => "maglev",
        }
    }

    /// What it is, in a line.
    pub const fn description(self) -> &'static str {
        match self {
            Method::CuckooPlusPlus => "a table per worker: cuckoo hashing with a filter of moved entries per bucket",
            Method::Concurrent => "one table for all workers: optimistic cuckoo hashing, no locks for lookups",
            Method::Stateless => {
                "no connections: the 5-tuple's hash is the backend; half of all flows move when one comes or goes"
            }
            Method::Maglev => {
                "no connections: Maglev's table leads from the 5-tuple's hash to the backend; few flows move"
            }
        }
    }

    /// Whether all workers use one table.
    pub const fn is_shared(self) -> bool {
        matches!(self, Method::Concurrent)
    }

    /// Whether connections are tracked at all. Of a method that does not, a packet's backend is found by a
    /// [`Lookup`](super::Lookup) that has no entries.
    pub const fn tracks_connections(self) -> bool {
        !matches!(self, Method::Stateless | Method::Maglev)
    }
}

impl Default for Method {
    fn default() -> Method {
        Method::DEFAULT
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no [`Method`] has; says which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownMethod;

impl fmt::Display for UnknownMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such connection table; there are ")?;
        for (i, method) in Method::ALL.iter().enumerate() {
            let before = match i {
                0 => "",
                _ if i + 1 == Method::ALL.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{method}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownMethod {}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Method, UnknownMethod> {
        Method::ALL.iter().copied().find(|method| method.name() == name).ok_or(UnknownMethod)
    }
}
