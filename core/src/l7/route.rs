//! Which route a request takes, who may pass.
//!
//! Hosts are compared without their port and a trailing dot, paths as RFC 3986 (6.2.2) normalises them ([`path`]): what
//! guards `/admin` also guards `/a/../admin` and `/%61dmin`. What goes on to a backend is what the client wrote. A path
//! that backends could read differently from us is refused with 400.

pub mod host;
pub mod path;

use super::config::Network;
use alloc::boxed::Box;
use host::HostPattern;
use path::PathPattern;

/// When a route is taken, or an access rule applies: every kind of condition that is given must hold. None given: always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Hosts asked for, one of which must be; empty: any, also none.
    pub hosts: Box<[HostPattern]>,
    /// Paths asked for, one of which must be; empty: any.
    pub paths: Box<[PathPattern]>,
    /// Methods, one of which must be, as they are written in a request (they are case-sensitive); `GET` also stands for
    /// `HEAD`, which asks for the same without its body (RFC 9110, 9.3.2). Empty: any.
    pub methods: Box<[Box<[u8]>]>,
    /// What must hold of fields, all of it. Names in any case. A field that is there more than once fulfils what any of
    /// its lines fulfils.
    pub headers: Box<[Named]>,
    /// What must hold of the query's parameters (`name=value`, separated by `&`), all of it. Compared byte by byte as
    /// they were written: nothing is decoded.
    pub queries: Box<[Named]>,
    /// Clients' networks, one of which must be; empty: any.
    pub clients: Box<[Network]>,
}

/// A condition on something that has a name: a field or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: Box<[u8]>,
    /// What must hold of it.
    pub test: Test,
}

/// What must hold of a field or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is there, with any value or none.
    Present,
    /// It is not there.
    Absent,
    /// It is there with this value.
    Exact(Box<[u8]>),
    /// It is there with a value that begins so.
    Prefix(Box<[u8]>),
}

/// Who may pass: the first whose conditions hold decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whom and what it is about.
    pub conditions: Conditions,
    /// What happens to it.
    pub verdict: Verdict,
}

/// What an access rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request passes.
    Allow,
    /// It is answered with this status, 400 to 599; 403 is the usual one.
    Deny {
        /// The status.
        status: u16,
    },
}
