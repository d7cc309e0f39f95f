//! A request's head that was read, without the bytes that it lies in: so that a request which waits for its backend need not be
//! read a second time.

use super::fields::{FieldPlaces, Fields};
use super::span::Span;
use super::{Bounds, Form, Method, ParseStatus, Request, RequestTarget, Version, request};
use crate::l7::body::Length;

/// The findings of [`super::request`] in a head, as places.
#[derive(Clone)]
pub struct RememberedRequest {
    head: Span,
    method: Method,
    method_bytes: Span,
    target: Span,
    form: Form,
    authority: Option<Span>,
    path: Span,
    query: Option<Span>,
    version: Version,
    fields: FieldPlaces,
    body: Length,
    host: Option<Span>,
    keep_alive: bool,
    expects_continue: bool,
    upgrade: bool,
}

impl RememberedRequest {
    /// Remembers where the parts of a request are. `None`: it has too many fields, or a part is not in its bytes, as the
    /// path of `OPTIONS http://host` is not.
    pub fn of(request: &Request<'_>) -> Option<RememberedRequest> {
        let whole = request.bytes;
        let span = |part: &[u8]| Span::of(part, whole);
        let maybe = |part: Option<&[u8]>| match part {
            Some(part) => span(part).map(Some),
            None => Some(None),
        };
        Some(RememberedRequest {
            head: span(whole)?,
            method: request.method,
            method_bytes: span(request.method_bytes)?,
            target: span(request.target.whole)?,
            form: request.target.form,
            authority: maybe(request.target.authority)?,
            path: span(request.target.path)?,
            query: maybe(request.target.query)?,
            version: request.version,
            fields: request.fields.places()?,
            body: request.body,
            host: maybe(request.host)?,
            keep_alive: request.keep_alive,
            expects_continue: request.expects_continue,
            upgrade: request.upgrade,
        })
    }

    /// The request, in `bytes` that begin with the head it was remembered of. `None`: they are too few.
    pub fn in_bytes<'a>(&self, bytes: &'a [u8]) -> Option<Request<'a>> {
        let bytes = self.head.in_bytes(bytes)?;
        let maybe = |span: Option<Span>| match span {
            Some(span) => span.in_bytes(bytes).map(Some),
            None => Some(None),
        };
        let mut fields = Fields::new(bytes);
        self.fields.put_into(&mut fields)?;
        Some(Request {
            bytes,
            method: self.method,
            method_bytes: self.method_bytes.in_bytes(bytes)?,
            target: RequestTarget {
                whole: self.target.in_bytes(bytes)?,
                form: self.form,
                authority: maybe(self.authority)?,
                path: self.path.in_bytes(bytes)?,
                query: maybe(self.query)?,
            },
            version: self.version,
            fields,
            body: self.body,
            host: maybe(self.host)?,
            keep_alive: self.keep_alive,
            expects_continue: self.expects_continue,
            upgrade: self.upgrade,
        })
    }
}

impl Request<'_> {
    /// Whether reading `bytes` gives this request: for assertions.
    pub(crate) fn is_what_is_read(&self, bytes: &[u8], bounds: &Bounds) -> bool {
        let Ok(ParseStatus::Complete(read)) = request(bytes, bounds) else { return false };
        read.bytes == self.bytes
            && read.method_bytes == self.method_bytes
            && read.target == self.target
            && read.host == self.host
            && read.body == self.body
            && read.fields.iter().eq(self.fields.iter())
            && (read.keep_alive, read.expects_continue, read.upgrade)
                == (self.keep_alive, self.expects_continue, self.upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::l7::head::FIELDS_MAX;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use std::format;

    const BOUNDS: Bounds = Bounds { bytes_max: 8192, fields_max: FIELDS_MAX, target_bytes_max: 2048 };

    fn is_remembered(head: &[u8], behind: &[u8]) -> bool {
        let Ok(ParseStatus::Complete(parsed)) = request(head, &BOUNDS) else { panic!("a head is wanted") };
        let Some(remembered) = RememberedRequest::of(&parsed) else { return false };
        // The bytes lie elsewhere by then, and more may have come.
        let elsewhere: Vec<u8> = head.iter().chain(behind).copied().collect();
        let again = remembered.in_bytes(&elsewhere).expect("all of the head is there");
        assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
        let short = &elsewhere[..parsed.bytes.len() - 1];
        assert!(remembered.in_bytes(short).is_none());
        true
    }

    #[test]
    fn remembered_request_is_the_one_that_was_read() {
        for head in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"\r\nPOST /a?b=c HTTP/1.1\r\nHost: a:80\r\nContent-Length: 3\r\nConnection: x, close\r\nX: \r\n\r\nabc",
            b"GET http://other/p?q HTTP/1.1\r\nHost: a\r\n\r\n",
            b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /old HTTP/1.0\r\n\r\n",
            b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nExpect: 100-continue\r\n\r\n",
        ] {
            assert!(is_remembered(head, b"GET /next"), "{}", head.escape_ascii());
        }
    }

    #[test]
    fn remembered_request_needs_its_parts_in_its_bytes() {
        assert!(!is_remembered(b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", b""));
    }

    proptest! {
        #[test]
        fn remembered_request_of_any_head(
            path in "/[a-z/%?&=]{0,40}",
            fields in prop::collection::vec(("[A-Za-z-]{1,12}-x", "[ -~]{0,30}"), 0..20),
            behind in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{}\r\n", fields.concat());
            prop_assert!(is_remembered(head.as_bytes(), &behind));
        }
    }
}
