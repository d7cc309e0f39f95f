//! A request's target (RFC 9112, 3.2; RFC 3986).

use super::octets::is_name;
use super::{BadHead, Method};
use core::net::Ipv6Addr;

/// How a target is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `/path?query`.
    Origin,
    /// `http://host/path?query`, also with `https`.
    Absolute,
    /// `host:port`, of CONNECT only.
    Authority,
    /// `*`, of OPTIONS only.
    Asterisk,
}

/// The target of a request. All of it is visible ASCII without `#`; percent-encodings are left as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestTarget<'a> {
    /// As it was written.
    pub whole: &'a [u8],
    /// How it was written.
    pub form: Form,
    /// Host and port, if any, of the absolute and the authority form.
    pub authority: Option<&'a [u8]>,
    /// The path: `/` where an absolute form has none (`*` for OPTIONS, RFC 9112, 3.2.4), `*` of the asterisk form, empty
    /// for the authority form.
    pub path: &'a [u8],
    /// The text behind `?`, maybe empty.
    pub query: Option<&'a [u8]>,
}

impl<'a> RequestTarget<'a> {
    /// Reads a target, visible ASCII without `#`.
    pub(super) fn read(whole: &'a [u8], method: Method) -> Result<RequestTarget<'a>, BadHead> {
        if method == Method::Connect {
            let ported = whole.last() != Some(&b']') && whole.contains(&b':');
            if !ported || !is_authority(whole) {
                return Err(BadHead::Target);
            }
            return Ok(RequestTarget { whole, form: Form::Authority, authority: Some(whole), path: b"", query: None });
        }
        if whole.first() == Some(&b'/') {
            let (path, query) = split_query(whole);
            return Ok(RequestTarget { whole, form: Form::Origin, authority: None, path, query });
        }
        if whole == b"*" && method == Method::Options {
            return Ok(RequestTarget { whole, form: Form::Asterisk, authority: None, path: whole, query: None });
        }
        let rest = without_scheme(whole).ok_or(BadHead::Target)?;
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if !is_authority(authority) {
            return Err(BadHead::Target);
        }
        let (path, query) = match split_query(rest) {
            (b"", None) if method == Method::Options => (&b"*"[..], None),
            (b"", query) => (&b"/"[..], query),
            parts => parts,
        };
        Ok(RequestTarget { whole, form: Form::Absolute, authority: Some(authority), path, query })
    }
}

fn split_query(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|byte| *byte == b'?') {
        Some(mark) => (&bytes[..mark], Some(&bytes[mark + 1..])),
        None => (bytes, None),
    }
}

fn without_scheme(whole: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let (start, rest) = whole.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

/// Whether this is a host (a name, an IPv4 address, an IPv6 address in brackets), maybe with a colon and a port number.
/// Neither may be empty, and there is no user information: a client sends any of these only to confuse.
pub(super) fn is_authority(bytes: &[u8]) -> bool {
    if let [b'[', rest @ ..] = bytes {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
        let address = core::str::from_utf8(&rest[..end]).ok().and_then(|text| text.parse::<Ipv6Addr>().ok());
        return address.is_some() && (rest.len() == end + 1 || is_port(&rest[end + 1..]));
    }
    let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
    let (name, port) = bytes.split_at(end);
    is_registered_name(name) && (port.is_empty() || is_port(port))
}

fn is_registered_name(mut name: &[u8]) -> bool {
    let mut some = false;
    loop {
        name = match name {
            [] => return some,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
            [byte, rest @ ..] if is_name(*byte) => rest,
            _ => return false,
        };
        some = true;
    }
}

/// Whether this is a colon and a number up to 65535.
fn is_port(bytes: &[u8]) -> bool {
    let [b':', digits @ ..] = bytes else { return false };
    (1..=5).contains(&digits.len())
        && digits.iter().all(u8::is_ascii_digit)
        && digits.iter().fold(0, |port, digit| port * 10 + u32::from(digit - b'0')) <= 65_535
}
