//! Routes of requests, and access rules.
//!
//! Hosts are compared without their port and a trailing dot, paths as RFC 3986 (6.2.2) normalises them ([`normal`]):
//! what guards `/admin` also guards `/a/../admin` and `/%61dmin`. The backend gets the path as the client wrote it. A
//! path that backends could read differently from us is refused with 400 ([`Odd`]), and one with parameters (`;x`) or
//! encoded slashes passes access rules only if it does so without the parameters and with the slashes decoded, too.

pub mod host;
pub mod normal;
pub mod path;
#[cfg(test)]
mod tests;

use super::config::{Http, Network, Route};
use super::head::{Method, Request};
use crate::flow::Address;
use alloc::boxed::Box;
use host::HostPattern;
use normal::{Odd, PathReading, PathScratch, normalise};
use path::PathPattern;

/// When a route is taken, or an access rule applies: every kind of condition that is given must hold. None given:
/// always.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Hosts asked for, one of which must be; empty: any, also none.
    pub hosts: Box<[HostPattern]>,
    /// Paths asked for, one of which must be; empty: any.
    pub paths: Box<[PathPattern]>,
    /// Methods, one of which must be, as they are written in a request (they are case-sensitive); `GET` also stands for
    /// `HEAD`, which asks for the same without its body (RFC 9110, 9.3.2). Empty: any.
    pub methods: Box<[Box<[u8]>]>,
    /// Conditions on fields; all must hold. Names in any case. A field that is there more than once fulfils what any of
    /// its lines fulfils.
    pub headers: Box<[Named]>,
    /// Conditions on the query's parameters (`name=value`, separated by `&`); all must hold. Compared byte by byte as
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
    /// The condition.
    pub test: Test,
}

/// A condition on a field or a query parameter.
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

/// The access rules: the first whose conditions hold decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The host, path and query it names.
    pub conditions: Conditions,
    /// The action.
    pub verdict: AccessVerdict,
    /// A request whose path fits in one reading and not in another is refused with 400, whatever the verdict.
    pub strict: bool,
}

/// The effect of an access rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The request passes.
    Allow,
    /// It is answered with this status, 400 to 599; 403 is the usual one.
    Deny {
        /// The status.
        status: u16,
    },
}

/// The decision for a request.
#[derive(Clone, Copy, Debug)]
pub enum Decision<'a> {
    /// It is answered with this status, and not because no route was found.
    Deny {
        /// 400 to 599.
        status: u16,
    },
    /// It takes this route.
    Take(&'a Route),
    /// No route's conditions hold: 404.
    NotFound,
}

/// The decision for `request` of `client`: 501 if it is a CONNECT or an upgrade and those are not for this service, 400
/// or 414 if its path cannot be compared ([`Odd`]), else what the first access rule says whose conditions
/// hold, else the first route whose conditions hold.
pub fn decide<'a>(http: &'a Http, request: &Request<'_>, client: &Address) -> Decision<'a> {
    if (request.method == Method::Connect && !http.connect) || (request.upgrade && !http.upgrade) {
        return Decision::Deny { status: 501 };
    }
    let mut scratch = PathScratch::new();
    let path = match normalise(request.target.path, PathReading::WRITTEN, &mut scratch) {
        Ok(path) => path,
        Err(odd) => return Decision::Deny { status: odd.status() },
    };
    let denied = denied(&http.access, request, path, client);
    let denied = denied.or_else(|| denied_otherwise(&http.access, request, path, client));
    if let Some(status) = denied {
        return Decision::Deny { status };
    }
    match http.routes.iter().find(|route| route.conditions.hold(request, path, client)) {
        Some(route) => Decision::Take(route),
        None => Decision::NotFound,
    }
}

/// The status that refuses the request, if an access rule does.
fn denied(access: &[Access], request: &Request<'_>, path: &[u8], client: &Address) -> Option<u16> {
    match access.iter().find(|rule| rule.conditions.hold(request, path, client))?.verdict {
        AccessVerdict::Allow => None,
        AccessVerdict::Deny { status } => Some(status),
    }
}

/// The status that refuses the request, if an access rule does for backends that read the path otherwise than it is
/// `written`.
fn denied_otherwise(access: &[Access], request: &Request<'_>, written: &[u8], client: &Address) -> Option<u16> {
    if access.is_empty() {
        return None;
    }
    PathReading::others(request.target.path).find_map(|reading| denied_read(access, request, written, client, reading))
}

/// The status that refuses the request, if an access rule does for backends whose reading of the path is `reading`.
#[inline(never)]
fn denied_read(
    access: &[Access],
    request: &Request<'_>,
    written: &[u8],
    client: &Address,
    reading: PathReading,
) -> Option<u16> {
    let mut scratch = PathScratch::new();
    let path = match normalise(request.target.path, reading, &mut scratch) {
        Ok(path) => path,
        Err(odd) => return Some(odd.status()),
    };
    for rule in access {
        let as_written = || rule.conditions.hold(request, written, client);
        let as_read = rule.conditions.hold(request, path, client);
        if rule.strict && as_read != as_written() {
            return Some(Odd::Ambiguous.status());
        }
        let holds = match rule.verdict {
            // An operator who writes parameters in the rule knows their meaning to the backend.
            AccessVerdict::Allow if rule.conditions.names_parameters() => as_written(),
            _ => as_read,
        };
        match rule.verdict {
            _ if !holds => {}
            AccessVerdict::Allow => return None,
            AccessVerdict::Deny { status } => return Some(status),
        }
    }
    None
}

impl Conditions {
    /// Whether they hold of `request` of `client`, whose normalised path is `path`.
    pub fn hold(&self, request: &Request<'_>, path: &[u8], client: &Address) -> bool {
        one(&self.clients, |network| network.contains(client))
            && one(&self.methods, |method| is_method(method, request))
            && one(&self.hosts, |host| request.host.is_some_and(|asked| host.matches(host::name(asked))))
            && one(&self.paths, |pattern| pattern.matches(path))
            && self.headers.iter().all(|header| {
                header.holds(request.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(&header.name)))
            })
            && self
                .queries
                .iter()
                .all(|query| query.holds(parameters(request.target.query).filter(|(name, _)| *name == &*query.name)))
    }

    /// Whether one of the paths asked for has parameters.
    fn names_parameters(&self) -> bool {
        self.paths.iter().any(PathPattern::names_parameters)
    }

    /// Bytes of the normalised `path` that a replaced prefix stands for: the prefix, or exact path, that it was found
    /// by.
    pub fn prefix_bytes(&self, path: &[u8]) -> Option<usize> {
        match self.paths.iter().find(|pattern| pattern.matches(path))? {
            PathPattern::Exact(text) | PathPattern::Prefix(text) => Some(text.len()),
            PathPattern::Regex(_) => None,
        }
    }
}

/// Whether one of `all` fits; none given: everything does.
fn one<T>(all: &[T], fits: impl FnMut(&T) -> bool) -> bool {
    all.is_empty() || all.iter().any(fits)
}

fn is_method(method: &[u8], request: &Request<'_>) -> bool {
    method == request.method_bytes || (method == b"GET" && request.method == Method::Head)
}

/// The parameters of a query: names and values.
fn parameters(query: Option<&[u8]>) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.unwrap_or_default().split(|&byte| byte == b'&').filter(|parameter| !parameter.is_empty()).map(|parameter| {
        match parameter.iter().position(|&byte| byte == b'=') {
            Some(equals) => (&parameter[..equals], &parameter[equals + 1..]),
            None => (parameter, &[][..]),
        }
    })
}

impl Named {
    /// Whether this holds of the values that its name has.
    fn holds<'a>(&self, mut values: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> bool {
        match &self.test {
            Test::Present => values.next().is_some(),
            Test::Absent => values.next().is_none(),
            Test::Exact(exact) => values.any(|(_, value)| value == &**exact),
            Test::Prefix(prefix) => values.any(|(_, value)| value.starts_with(prefix)),
        }
    }
}
