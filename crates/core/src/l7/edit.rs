//! The head to forward, made from the head received (RFC 9110, 7.6; RFC 7239).
//!
//! A request's head is always written anew. Its version is the client's: a backend that is asked by HTTP/1.0 does not
//! answer with chunks, which such a client could not read. `Connection` is Hairpin's own on both sides; fields that are
//! for one hop only do not go on, except `Transfer-Encoding`, since bodies go on as they are, and `Upgrade` with
//! requests that are allowed to ask for it. `TE` does not go on; trailers do. There is exactly one `Host`. A field
//! whose name becomes one that Hairpin sets when `_`, `.` and the like are taken for `-`, as CGI and its heirs do, does
//! not go on. `Max-Forwards` of TRACE and OPTIONS counts down (RFC 9110, 7.6.2).
//!
//! A response's head goes on as it is where nothing has to be changed, as with most.
//!
//! Edits of a service come before those of the route: first what Hairpin says of the client, then removed, set and
//! added by the service, then removed, set and added by the route, each acting on what came before. A name that is set
//! twice has the last value.

mod forwarded;
mod hops;
mod marks;
mod out;
mod plan;
mod request;
mod response;
mod sticky;
#[cfg(test)]
mod tests;
mod value;

pub use hops::{NoNumber, forwards_left};
pub use request::request_head;
pub use response::{can_go_to, response_head};
pub use sticky::{cookies, sticky_value};
pub use value::{FieldValue, NAME_BYTES_MAX, VALUE_BYTES_MAX, ValuePiece, Variable, location};

pub(super) use out::Out;
pub(super) use value::{TextPart, parts};

use super::config::Field;
use super::head::Request;
use super::route::host;
use super::trace::TraceContext;
use crate::flow::Endpoint;

/// Bytes of a head that is written anew, and of a response of Hairpin's own, at most.
pub const HEAD_ROOM: usize = 20_480;

/// The output does not fit. What was written must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The certificate that a client showed in its TLS handshake, verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCertificate<'a> {
    /// Its subject, as RFC 4514 writes it, in visible ASCII and spaces; bytes of other kinds become `_`.
    pub subject: &'a [u8],
    /// Its SHA-256, in hexadecimal digits.
    pub fingerprint: &'a [u8],
}

/// The facts of an exchange besides its heads.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The client.
    pub client: Endpoint,
    /// The address that the client connected to.
    pub vip: Endpoint,
    /// The chosen backend's name.
    pub backend: &'a str,
    /// The service's name.
    pub service: &'a str,
    /// Whether the client came by TLS.
    pub https: bool,
    /// The certificate that the client showed; `None`: none.
    pub client_certificate: Option<ClientCertificate<'a>>,
    /// The trace that a request belongs to, where its service's [`Http::is_marked`](super::config::Http::is_marked).
    pub trace: Option<&'a TraceContext>,
    /// The value of the sticky cookie to set in the response, if one is to be set.
    pub sticky: Option<u64>,
    /// Whether the client's connection ends with this response.
    pub close_client: bool,
    /// How long choosing the backend took, microseconds.
    pub chosen_in_us: u32,
}

/// The values of variables.
struct Meaning<'a> {
    facts: &'a Facts<'a>,
    request: Option<&'a Request<'a>>,
}

impl Meaning<'_> {
    /// Writes a field that is set or added, unless its variables are all empty and it has no other text.
    fn edit(&self, out: &mut Out<'_>, field: &Field) {
        let is_blank = |piece: &ValuePiece| match piece {
            ValuePiece::Text(text) => text.iter().all(|byte| matches!(byte, b' ' | b'\t')),
            ValuePiece::Variable(variable) => self.is_empty(*variable),
        };
        let is_left_out = field.value.variables().next().is_some() && field.value.pieces().iter().all(is_blank);
        if !is_left_out {
            self.field(out, &field.name, &field.value);
        }
    }

    /// Writes a field.
    fn field(&self, out: &mut Out<'_>, name: &[u8], value: &FieldValue) {
        out.put(name);
        out.put(b": ");
        for piece in value.pieces() {
            match piece {
                ValuePiece::Text(text) => out.put(text),
                ValuePiece::Variable(variable) => self.variable(out, *variable),
            }
        }
        out.put(b"\r\n");
    }

    fn variable(&self, out: &mut Out<'_>, variable: Variable) {
        match variable {
            Variable::ClientIp => out.address(&self.facts.client.address),
            Variable::ClientPort => out.number(self.facts.client.port.into()),
            Variable::Vip => out.address(&self.facts.vip.address),
            Variable::VipPort => out.number(self.facts.vip.port.into()),
            Variable::Scheme => out.put(scheme(self.facts.https)),
            Variable::Service => out.name(self.facts.service),
            Variable::Backend => out.name(self.facts.backend),
            Variable::Method => out.put(self.request.map_or(b"", |request| request.method_bytes)),
            Variable::Host | Variable::Authority | Variable::Path | Variable::Query => {
                if let Some(request) = self.request {
                    asked(out, variable, request);
                }
            }
            Variable::ClientSubject | Variable::ClientFingerprint | Variable::ClientVerify => {
                out.text(self.of_certificate(variable));
            }
        }
    }

    /// The value of a variable of the client's certificate.
    fn of_certificate(&self, variable: Variable) -> &[u8] {
        match (variable, &self.facts.client_certificate) {
            (Variable::ClientSubject, Some(shown)) => shown.subject,
            (Variable::ClientFingerprint, Some(shown)) => shown.fingerprint,
            (Variable::ClientVerify, Some(_)) => b"SUCCESS",
            (Variable::ClientVerify, None) => b"NONE",
            _ => b"",
        }
    }

    fn is_empty(&self, variable: Variable) -> bool {
        let asked = self.request;
        match variable {
            Variable::ClientIp | Variable::ClientPort | Variable::Vip | Variable::VipPort | Variable::Scheme => false,
            Variable::Service => self.facts.service.is_empty(),
            Variable::Backend => self.facts.backend.is_empty(),
            Variable::Method => asked.is_none_or(|request| request.method_bytes.is_empty()),
            Variable::Host | Variable::Authority => asked.and_then(|request| request.host).is_none_or(<[u8]>::is_empty),
            Variable::Path => asked.is_none_or(|request| request.target.path.is_empty()),
            Variable::Query => asked.is_none_or(|request| request.target.query.is_none()),
            Variable::ClientSubject | Variable::ClientFingerprint | Variable::ClientVerify => {
                self.of_certificate(variable).is_empty()
            }
        }
    }
}

fn scheme(https: bool) -> &'static [u8] {
    if https { b"https" } else { b"http" }
}

/// Writes a variable of the request itself.
pub(super) fn asked(out: &mut Out<'_>, variable: Variable, request: &Request<'_>) {
    match variable {
        Variable::Host => out.put(request.host.map_or(b"", host::name)),
        Variable::Authority => out.put(request.host.unwrap_or_default()),
        Variable::Path => out.put(request.target.path),
        Variable::Query => query(out, request),
        _ => {}
    }
}

/// A request's query with its `?`, if there is one.
fn query(out: &mut Out<'_>, request: &Request<'_>) {
    if let Some(query) = request.target.query {
        out.put(b"?");
        out.put(query);
    }
}
