//! Heads of requests and responses, read strictly (RFC 9112, sections 2 to 5; RFC 9110, sections 5 and 7): what two
//! readers could read in two ways is refused, so that nothing ambiguous reaches a backend or a client.
//!
//! A head is read from its first byte on and judged in the order of its bytes: what is said of a prefix (refused, or
//! complete) is said of everything that begins with it, so that it does not matter how a head is cut into packets.
//! Nothing is copied, and nothing behind the head is read. Where this reader is stricter than the RFCs:
//!
//! - Lines end with CRLF and nothing else; no line is continued; control characters are nowhere but HTAB in values.
//! - One empty line before a request line is skipped, as RFC 9112 (2.2) asks; it is counted among the request's bytes.
//!   Backends never see it, because the head that goes on to them is always a new one. A second one is refused.
//! - `Content-Length` of a request is one number without leading zeros (some readers take these for octal), said once;
//!   lists and repetitions are refused even where all say the same. `Transfer-Encoding` is `chunked` and nothing else.
//!   Names that become the same as theirs where all but letters and digits becomes `_` (CGI, WSGI) are refused.
//! - `Host` is not empty, its port is a number; user information in an authority is refused.
//! - A response that contradicts itself, but says no more than one thing to a client once it is written anew, is taken:
//!   equal lengths, leading zeros, 204 with a length, `identity` ([`FramingFields`]).
//! - `Connection` must not name `Host` or `Content-Length`: an intermediary that removes them changes where a
//!   message goes or ends.

mod fields;
mod framing;
mod octets;
mod remembered;
mod request;
mod response;
mod span;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use fields::agent_and_referer_in;
pub use fields::{FIELDS_MAX, Fields};
pub(super) use octets::{is_token, is_value};
pub use remembered::RememberedRequest;
pub use request::{METHOD_MAX, Request, request};
pub use response::{FramingFields, Response, response};
pub(crate) use span::Span;
pub use target::{Form, RequestTarget};

use crate::stored::stored_leaf;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

stored_leaf!(Method: 1, Version: 1);

/// Bounds of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes, from the first to the last CRLF; at most 65,535, more count as that. Beyond: 431.
    pub bytes_max: usize,
    /// Fields; at most [`FIELDS_MAX`], more count as that. Beyond: 431.
    pub fields_max: usize,
    /// Bytes of a request's target. Beyond: 414.
    pub target_bytes_max: usize,
}

/// Whether there is all of what is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseStatus<T> {
    /// Nothing wrong so far, but more bytes are needed.
    Partial,
    /// All of it.
    Complete(T),
}

/// Why a head is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BadHead {
    /// The request line is not `method SP target SP version`, or the method is longer than 32 bytes.
    RequestLine,
    /// The status line is not `version SP status [SP reason]`, or the status is not 100 to 999.
    StatusLine,
    /// The target is of no form its method allows, or has a character that no target has.
    Target,
    /// The target is longer than allowed.
    TargetTooLong,
    /// A version of HTTP other than 1.0 and 1.1.
    Version,
    /// CR without LF or LF without CR.
    LineEnd,
    /// A line that is continued on the next (obsolete folding), or white space before the first field.
    Folded,
    /// A field's name is not a token directly followed by a colon.
    FieldName,
    /// A field's value has a control character.
    FieldValue,
    /// More bytes than allowed.
    TooLarge,
    /// More fields than allowed.
    TooManyFields,
    /// None (HTTP/1.1) or several `Host` fields, or one that is not a host with an optional port.
    Host,
    /// `Connection` is no list of tokens, or names `Host` or `Content-Length`.
    Connection,
    /// `Content-Length` is not one number up to 2^63 - 1, or where it must not be.
    ContentLength,
    /// `Transfer-Encoding` where `chunked` is not the last or not the only one of its kind, or where it must not be
    /// (HTTP/1.0, responses that have no body).
    TransferEncoding,
    /// Both `Content-Length` and `Transfer-Encoding`.
    TwoLengths,
    /// A name that some readers take for `Content-Length` or `Transfer-Encoding`.
    Lookalike,
    /// A transfer coding before `chunked`: known to RFC 9112, not to us.
    Coding,
    /// `Expect` with anything but `100-continue`.
    Expectation,
}

impl BadHead {
    /// All of them, in the order of their declaration.
    pub const ALL: [BadHead; 19] = [
        BadHead::RequestLine,
        BadHead::StatusLine,
        BadHead::Target,
        BadHead::TargetTooLong,
        BadHead::Version,
        BadHead::LineEnd,
        BadHead::Folded,
        BadHead::FieldName,
        BadHead::FieldValue,
        BadHead::TooLarge,
        BadHead::TooManyFields,
        BadHead::Host,
        BadHead::Connection,
        BadHead::ContentLength,
        BadHead::TransferEncoding,
        BadHead::TwoLengths,
        BadHead::Lookalike,
        BadHead::Coding,
        BadHead::Expectation,
    ];

    /// The status of the answer to a request that is refused: 400, 414, 417, 431, 501 or 505. For a refused response,
    /// the client is answered with 502, whatever the reason.
    pub fn status(self) -> u16 {
        match self {
            BadHead::TargetTooLong => 414,
            BadHead::Expectation => 417,
            BadHead::TooLarge | BadHead::TooManyFields => 431,
            BadHead::Coding => 501,
            BadHead::StatusLine => 502,
            BadHead::Version => 505,
            _ => 400,
        }
    }

    /// A name for counters and logs: lower case, words joined by `-`.
    pub fn name(self) -> &'static str {
        match self {
            BadHead::RequestLine => "request-line",
            BadHead::StatusLine => "status-line",
            BadHead::Target => "target",
            BadHead::TargetTooLong => "target-too-long",
            BadHead::Version => "version",
            BadHead::LineEnd => "line-end",
            BadHead::Folded => "folded",
            BadHead::FieldName => "field-name",
            BadHead::FieldValue => "field-value",
            BadHead::TooLarge => "head-too-large",
            BadHead::TooManyFields => "too-many-fields",
            BadHead::Host => "host",
            BadHead::Connection => "connection",
            BadHead::ContentLength => "content-length",
            BadHead::TransferEncoding => "transfer-encoding",
            BadHead::TwoLengths => "two-lengths",
            BadHead::Lookalike => "lookalike",
            BadHead::Coding => "transfer-coding",
            BadHead::Expectation => "expectation",
        }
    }
}

/// The method of a request (RFC 9110, 9; RFC 5789). Methods are case-sensitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Method {
    /// `GET`.
    Get,
    /// `HEAD`: as `GET`, but the response has no body.
    Head,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `DELETE`.
    Delete,
    /// `CONNECT`: a tunnel.
    Connect,
    /// `OPTIONS`.
    Options,
    /// `TRACE`.
    Trace,
    /// `PATCH`.
    Patch,
    /// Any other token of at most 32 bytes.
    Other,
}

impl Method {
    /// The method of `bytes`, a token.
    fn named(bytes: &[u8]) -> Method {
        match bytes {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// Whether a request may be sent once more when it is not known what became of it (RFC 9110, 9.2.2).
    pub fn is_idempotent(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Put | Method::Delete | Method::Options | Method::Trace)
    }
}

/// A version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl Version {
    /// The version in eight bytes; refused with [`BadHead::Version`] if they name another version, else with `malformed`.
    fn named(bytes: &[u8], malformed: BadHead) -> Result<Version, BadHead> {
        match bytes {
            b"HTTP/1.1" => Ok(Version::Http11),
            b"HTTP/1.0" => Ok(Version::Http10),
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => Err(BadHead::Version),
            _ => Err(malformed),
        }
    }
}

/// The part of `bytes` that is read, and whether there is no room for more.
fn window<'a>(bytes: &'a [u8], bounds: &Bounds) -> (&'a [u8], bool) {
    let bytes_max = bounds.bytes_max.min(usize::from(u16::MAX));
    (&bytes[..bytes.len().min(bytes_max)], bytes.len() >= bytes_max)
}

/// What is said of a window that has no complete head.
fn incomplete<T>(full: bool) -> Result<ParseStatus<T>, BadHead> {
    if full { Err(BadHead::TooLarge) } else { Ok(ParseStatus::Partial) }
}
