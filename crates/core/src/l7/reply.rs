//! Responses of our own: refusals, redirects, fixed texts.
//!
//! They have a `Date` once the worker has been told the time (RFC 9110, 6.6.1), and no edits of a service's or route's:
//! those are for what backends say.

use super::date::Date;
use super::edit::{NoRoom, Out, TextPart, Variable, asked, parts};
use super::head::Request;
use super::splice::Refused;

#[cfg(test)]
mod tests;

/// A response of our own.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// 200 to 599.
    pub status: u16,
    /// When it is written; `None`: the time is not known.
    pub date: Option<Date>,
    /// The value of `Location`.
    pub location: Option<&'a [u8]>,
    /// The value of `Retry-After`, seconds (RFC 9110, 10.2.3).
    pub retry_after_s: Option<u32>,
    /// The value of `WWW-Authenticate` (RFC 9110, 11.6.1).
    pub challenge: Option<&'a [u8]>,
    /// The body, plain text.
    pub body: &'a [u8],
    /// Whether the body is not sent, only its length: the answer to HEAD.
    pub head_only: bool,
    /// Whether the connection ends. Also for an HTTP/1.0 client, which is not told if it does not.
    pub close: bool,
}

/// When a client that is refused with 503 may try again, in seconds.
const RETRY_AFTER_S: u32 = 1;

/// What a refusal with this status says of when to try again.
pub fn retry_after_s(status: u16) -> Option<u32> {
    (status == 503).then_some(RETRY_AFTER_S)
}

/// Statuses that we answer with, or that a configuration may ask for, with the body that says so to a person.
const TEXTS: [(u16, &str); 44] = [
    (200, "200 OK\n"),
    (201, "201 Created\n"),
    (202, "202 Accepted\n"),
    (204, "204 No Content\n"),
    (205, "205 Reset Content\n"),
    (300, "300 Multiple Choices\n"),
    (301, "301 Moved Permanently\n"),
    (302, "302 Found\n"),
    (303, "303 See Other\n"),
    (304, "304 Not Modified\n"),
    (307, "307 Temporary Redirect\n"),
    (308, "308 Permanent Redirect\n"),
    (400, "400 Bad Request\n"),
    (401, "401 Unauthorized\n"),
    (402, "402 Payment Required\n"),
    (403, "403 Forbidden\n"),
    (404, "404 Not Found\n"),
    (405, "405 Method Not Allowed\n"),
    (406, "406 Not Acceptable\n"),
    (407, "407 Proxy Authentication Required\n"),
    (408, "408 Request Timeout\n"),
    (409, "409 Conflict\n"),
    (410, "410 Gone\n"),
    (411, "411 Length Required\n"),
    (412, "412 Precondition Failed\n"),
    (413, "413 Content Too Large\n"),
    (414, "414 URI Too Long\n"),
    (415, "415 Unsupported Media Type\n"),
    (416, "416 Range Not Satisfiable\n"),
    (417, "417 Expectation Failed\n"),
    (421, "421 Misdirected Request\n"),
    (422, "422 Unprocessable Content\n"),
    (426, "426 Upgrade Required\n"),
    (428, "428 Precondition Required\n"),
    (429, "429 Too Many Requests\n"),
    (431, "431 Request Header Fields Too Large\n"),
    (451, "451 Unavailable For Legal Reasons\n"),
    (500, "500 Internal Server Error\n"),
    (501, "501 Not Implemented\n"),
    (502, "502 Bad Gateway\n"),
    (503, "503 Service Unavailable\n"),
    (504, "504 Gateway Timeout\n"),
    (505, "505 HTTP Version Not Supported\n"),
    (511, "511 Network Authentication Required\n"),
];

/// The text that tells a person of `status`, with a line feed; empty for one that has no name here.
pub fn text(status: u16) -> &'static str {
    TEXTS.binary_search_by_key(&status, |&(known, _)| known).map_or("", |at| TEXTS[at].1)
}

/// The reason phrase of `status`, maybe empty (RFC 9112, 4).
fn reason(status: u16) -> &'static str {
    text(status).get(4..).unwrap_or_default().trim_end()
}

/// Writes the response, and says how long it is.
///
/// # Errors
/// It does not fit in `out`.
pub fn write(out: &mut [u8], reply: &Reply<'_>) -> Result<usize, NoRoom> {
    let mut out = Out::new(out);
    // RFC 9112, 6.3: these end with their head.
    let has_body = !matches!(reply.status, 100..200 | 204 | 304);
    out.put(b"HTTP/1.1 ");
    out.number(reply.status.into());
    out.put(b" ");
    out.put(reason(reply.status).as_bytes());
    out.put(b"\r\n");
    if let Some(date) = &reply.date {
        out.field(b"Date", date.bytes());
    }
    if has_body {
        if !reply.body.is_empty() {
            out.put(b"Content-Type: text/plain\r\n");
        }
        out.put(b"Content-Length: ");
        out.number(reply.body.len() as u64);
        out.put(b"\r\n");
    }
    if let Some(location) = reply.location {
        out.field(b"Location", location);
    }
    if let Some(seconds) = reply.retry_after_s {
        out.put(b"Retry-After: ");
        out.number(seconds.into());
        out.put(b"\r\n");
    }
    if let Some(challenge) = reply.challenge {
        out.field(b"WWW-Authenticate", challenge);
    }
    if reply.close {
        out.put(b"Connection: close\r\n");
    }
    out.put(b"\r\n");
    if has_body && !reply.head_only {
        out.put(reply.body);
    }
    out.end()
}

/// Whether a request names a host. HTTP/1.0 need not; `Host: .` does not.
fn names_host(request: &Request<'_>) -> bool {
    request.host.is_some_and(|host| !super::route::host::name(host).is_empty())
}

/// The response to a request for which [`location`] fails: its status, and why.
pub fn without_location(request: &Request<'_>) -> (u16, Refused) {
    if names_host(request) { (414, Refused::TooLarge) } else { (400, Refused::Malformed) }
}

/// Writes what `Location` says: the `template` (checked by [`edit::location`](super::edit::location)) for `request`,
/// and says how long it is. A path that would come first has one slash only: two would lead to another host.
///
/// # Errors
/// It does not fit in `out`; or the template needs the host, and the request names none. [`without_location`] has the response.
pub fn location(out: &mut [u8], template: &[u8], request: &Request<'_>, https: bool) -> Result<usize, NoRoom> {
    let mut out = Out::new(out);
    let path = request.target.path;
    for part in parts(template) {
        match part {
            Ok(TextPart::Text(text)) => out.put(text),
            Ok(TextPart::Variable(Variable::Scheme)) => out.put(if https { b"https" } else { b"http" }),
            Ok(TextPart::Variable(Variable::Host | Variable::Authority)) if !names_host(request) => {
                return Err(NoRoom);
            }
            // `*`, and the target of CONNECT, have no path.
            Ok(TextPart::Variable(Variable::Path)) if !path.starts_with(b"/") => out.put(b"/"),
            Ok(TextPart::Variable(Variable::Path)) if out.len() == 0 => {
                let slashes = path.iter().take_while(|&&byte| byte == b'/').count();
                out.put(&path[slashes - 1..]);
            }
            Ok(TextPart::Variable(variable)) => asked(&mut out, variable, request),
            Err(_) => return Err(NoRoom),
        }
    }
    out.end()
}
