//! Heads of requests.

use super::fields::Fields;
use super::framing::{HeadSection, section};
use super::span::Span;
use super::target::{Form, RequestTarget, is_authority};
use super::{BadHead, Bounds, Method, ParseStatus, Version, incomplete, octets, window};
use crate::l7::body::Length;

/// Bytes of a method at most.
pub const METHOD_MAX: usize = 32;

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// All of it, with its last CRLF CRLF, and with the empty line that may come first: so many bytes of the stream are
    /// read. What goes on to a backend is made of the parts below, never of this.
    pub bytes: &'a [u8],
    /// The method.
    pub method: Method,
    /// The method as it was written, a token of at most 32 bytes.
    pub method_bytes: &'a [u8],
    /// The target.
    pub target: RequestTarget<'a>,
    /// The version of HTTP.
    pub version: Version,
    /// The fields.
    pub fields: Fields<'a>,
    /// The body behind the head: [`Length::None`], [`Length::Bytes`] of at least 1, or [`Length::Chunked`].
    pub body: Length,
    /// The host it is for: the target's authority if it has one (RFC 9112, 3.2.2), else `Host`. With its port, as it was
    /// written. `None` with HTTP/1.0 only.
    pub host: Option<&'a [u8]>,
    /// Whether the client keeps the connection (RFC 9112, 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for 100 before it sends the body. Never with HTTP/1.0.
    pub expects_continue: bool,
    /// Whether it asks for another protocol (`Connection: upgrade` and `Upgrade`, HTTP/1.1). Not if one of these is
    /// HTTP or TLS (h2c above all): through such a tunnel requests would pass by routes and access rules, so these are
    /// as if not asked for.
    pub upgrade: bool,
}

impl Request<'_> {
    /// Where its line, method and target with the space between them, and its host lie in its bytes; an empty one at their start.
    #[inline(always)]
    pub(crate) fn line_and_host(&self) -> [Span; 2] {
        // Both are in there, so nothing has to be checked here.
        let start = |part: &[u8]| (part.as_ptr() as usize).wrapping_sub(self.bytes.as_ptr() as usize) as u16;
        let line_bytes = self.method_bytes.len() + 1 + self.target.whole.len();
        let line = Span { start: start(self.method_bytes), bytes: line_bytes as u16 };
        let host = self.host.unwrap_or(&self.bytes[..0]);
        let host = Span { start: start(host), bytes: host.len() as u16 };
        debug_assert!(line.in_bytes(self.bytes).is_some() && host.in_bytes(self.bytes).is_some());
        [line, host]
    }
}

/// Reads the head of a request at the start of `bytes`. [`BadHead::status`] is the answer's.
pub fn request<'a>(bytes: &'a [u8], bounds: &Bounds) -> Result<ParseStatus<Request<'a>>, BadHead> {
    let (bytes, full) = window(bytes, bounds);
    let mut fields = Fields::new(bytes);
    let Some((RequestLine { method, method_bytes, target, version }, HeadSection { said, end })) =
        read(&mut fields, bytes, bounds)?
    else {
        return incomplete(full);
    };
    let host = host(&target, version, said.host)?;
    let body = match (said.is_chunked(version)?, said.length) {
        (true, _) => Length::Chunked,
        (false, None | Some(0)) => Length::None,
        (false, Some(length)) => Length::Bytes(length),
    };
    Ok(ParseStatus::Complete(Request {
        bytes: &bytes[..end],
        method,
        method_bytes,
        target,
        version,
        fields,
        body,
        host,
        keep_alive: said.is_kept(version),
        expects_continue: said.continues && version == Version::Http11,
        upgrade: said.is_upgrade(version),
    }))
}

/// The parts of a request line.
struct RequestLine<'a> {
    method: Method,
    method_bytes: &'a [u8],
    target: RequestTarget<'a>,
    version: Version,
}

/// The request line and the fields. `None`: there are not all of them yet.
fn read<'a>(
    fields: &mut Fields<'a>,
    bytes: &'a [u8],
    bounds: &Bounds,
) -> Result<Option<(RequestLine<'a>, HeadSection<'a>)>, BadHead> {
    let start = match bytes {
        [b'\r', b'\n', ..] => 2,
        [] | [b'\r'] => return Ok(None),
        [b'\r' | b'\n', ..] => return Err(BadHead::LineEnd),
        _ => 0,
    };
    let Some((line, at)) = read_line(bytes, start, bounds)? else { return Ok(None) };
    Ok(section(fields, bytes, at, bounds.fields_max, true)?.map(|section| (line, section)))
}

/// The request line, and where the next starts.
fn read_line<'a>(bytes: &'a [u8], start: usize, bounds: &Bounds) -> Result<Option<(RequestLine<'a>, usize)>, BadHead> {
    let line = &bytes[start..];
    let length = octets::token(&line[..line.len().min(METHOD_MAX + 1)]);
    let method_bytes = &line[..length.min(METHOD_MAX)];
    match line.get(length) {
        _ if length > METHOD_MAX => return Err(BadHead::RequestLine),
        None => return Ok(None),
        Some(b' ') if length > 0 => {}
        Some(_) => return Err(BadHead::RequestLine),
    }
    let method = Method::named(method_bytes);

    let rest = &line[length + 1..];
    let length = octets::target(&rest[..rest.len().min(bounds.target_bytes_max.saturating_add(1))]);
    if length > bounds.target_bytes_max {
        return Err(BadHead::TargetTooLong);
    }
    match rest.get(length) {
        None => return Ok(None),
        Some(b' ') if length > 0 => {}
        Some(b'\r' | b'\n' | b' ') => return Err(BadHead::RequestLine),
        Some(_) => return Err(BadHead::Target),
    }
    let (target, rest) = (&rest[..length], &rest[length + 1..]);

    let Some((version, end)) =
        rest.split_first_chunk::<8>().and_then(|(version, rest)| Some((version, rest.get(..2)?)))
    else {
        return Ok(None);
    };
    let version = match end {
        b"\r\n" => Version::named(version, BadHead::RequestLine)?,
        [b'\n', _] | [b'\r', _] => return Err(BadHead::LineEnd),
        _ => return Err(BadHead::RequestLine),
    };
    let target = RequestTarget::read(target, method)?;
    let next = bytes.len() - rest.len() + 10;
    Ok(Some((RequestLine { method, method_bytes, target, version }, next)))
}

/// The host of a request (RFC 9112, 3.2).
fn host<'a>(
    target: &RequestTarget<'a>,
    version: Version,
    field: Option<&'a [u8]>,
) -> Result<Option<&'a [u8]>, BadHead> {
    match field {
        Some(host) if !is_authority(host) => return Err(BadHead::Host),
        None if version == Version::Http11 => return Err(BadHead::Host),
        _ => {}
    }
    debug_assert_eq!(target.authority.is_some(), matches!(target.form, Form::Absolute | Form::Authority));
    Ok(target.authority.or(field))
}
