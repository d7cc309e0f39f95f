//! The methods of finding a packet's connection, the product's and those to compare them with, by the names the papers and
//! the field give them.

use hairpin_core::table::LookupMethod;
use std::fmt;
use std::str::FromStr;

/// How a worker finds the connection of a packet.
///
/// Those of DPDK are in `rte_hash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnMethod {
    /// [`TwoChoice`](crate::two_choice::TwoChoice).
    TwoChoice,
    /// [`CuckooPlusPlus`](hairpin_core::table::cuckoo::CuckooPlusPlus).
    CuckooPlusPlus,
    /// [`Inline`](crate::inline::Inline).
    Inline,
    /// The default method's table under a [`GlobalLock`](crate::global_lock::GlobalLock).
    GlobalLock,
    /// [`Concurrent`](hairpin_core::table::concurrent::Concurrent).
    Concurrent,
    /// [`Stateless`](hairpin_core::table::stateless::Stateless).
    Stateless,
    /// [`Maglev`](hairpin_core::table::stateless::Maglev).
    Maglev,
}

impl OwnMethod {
    /// The default method.
    pub const DEFAULT: OwnMethod = OwnMethod::CuckooPlusPlus;

    /// All methods.
    pub const ALL: &[OwnMethod] = &[
        OwnMethod::TwoChoice,
        OwnMethod::CuckooPlusPlus,
        OwnMethod::Inline,
        OwnMethod::GlobalLock,
        OwnMethod::Concurrent,
        OwnMethod::Stateless,
        OwnMethod::Maglev,
    ];

    /// The name, as configuration and reports have it.
    pub const fn name(self) -> &'static str {
        match self {
            OwnMethod::TwoChoice => "two-choice",
            OwnMethod::CuckooPlusPlus => LookupMethod::CuckooPlusPlus.name(),
            OwnMethod::Inline => "inline",
            OwnMethod::GlobalLock => "global-lock",
            OwnMethod::Concurrent => LookupMethod::Concurrent.name(),
            OwnMethod::Stateless => LookupMethod::Stateless.name(),
            OwnMethod::Maglev => LookupMethod::Maglev.name(),
        }
    }

    /// The product's method of this name, if it has it.
    pub const fn product(self) -> Option<LookupMethod> {
        match self {
            OwnMethod::CuckooPlusPlus => Some(LookupMethod::CuckooPlusPlus),
            OwnMethod::Concurrent => Some(LookupMethod::Concurrent),
            OwnMethod::Stateless => Some(LookupMethod::Stateless),
            OwnMethod::Maglev => Some(LookupMethod::Maglev),
            OwnMethod::TwoChoice | OwnMethod::Inline | OwnMethod::GlobalLock => None,
        }
    }

    /// Whether all workers use one table.
    pub const fn is_shared(self) -> bool {
        matches!(self, OwnMethod::GlobalLock | OwnMethod::Concurrent)
    }

    /// Whether connections are tracked at all. Of a method that does not, a packet's backend is found by a
    /// [`Lookup`](hairpin_core::table::Lookup) that has no entries.
    pub const fn tracks_connections(self) -> bool {
        !matches!(self, OwnMethod::Stateless | OwnMethod::Maglev)
    }
}

impl From<LookupMethod> for OwnMethod {
    fn from(method: LookupMethod) -> OwnMethod {
        match method {
            LookupMethod::CuckooPlusPlus => OwnMethod::CuckooPlusPlus,
            LookupMethod::Concurrent => OwnMethod::Concurrent,
            LookupMethod::Stateless => OwnMethod::Stateless,
            LookupMethod::Maglev => OwnMethod::Maglev,
        }
    }
}

impl Default for OwnMethod {
    fn default() -> OwnMethod {
        OwnMethod::DEFAULT
    }
}

impl fmt::Display for OwnMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no [`OwnMethod`] has; says which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTable;

impl fmt::Display for UnknownTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such connection table; there are ")?;
        for (i, method) in OwnMethod::ALL.iter().enumerate() {
            let before = match i {
                0 => "",
                _ if i + 1 == OwnMethod::ALL.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{method}")?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownTable {}

impl FromStr for OwnMethod {
    type Err = UnknownTable;

    fn from_str(name: &str) -> Result<OwnMethod, UnknownTable> {
        OwnMethod::ALL.iter().copied().find(|method| method.name() == name).ok_or(UnknownTable)
    }
}
