//! Error pages: bodies of responses that Hairpin makes itself.

use crate::setup::Setup;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields of a response that are those of its page, in lower case.
const OF_PAGE: [&[u8]; 3] = [b"content-type", b"content-length", b"cache-control"];

/// A body, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorPage {
    /// The value of `Content-Type`, without control characters.
    pub content_type: &'static str,
    /// The body.
    pub body: Box<[u8]>,
}

/// Pages by their keys: a status, 400 to 599, or 4 or 5 for the rest of its class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPages(pub BTreeMap<u16, Arc<ErrorPage>>);

/// The pages of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePages {
    /// Those of requests that take no route, or one behind `routes`.
    pub own: ErrorPages,
    /// Those of each route in order, among them those of the service that the route does not replace.
    pub routes: Box<[ErrorPages]>,
}

/// The route of a request that Hairpin answers itself, which says what page the response has.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) setup: &'a Setup,
    /// The number of the service.
    pub(crate) service: u16,
    /// The place of the route in the service; [`hairpin_core::record::NONE`]: none.
    pub(crate) route: u16,
}

impl ErrorPages {
    fn find(&self, status: u16) -> Option<&ErrorPage> {
        self.0.get(&status).or_else(|| self.0.get(&(status / 100))).map(|page| &**page)
    }
}

impl ServicePages {
    /// The page of a status, of a request that takes the route at this place.
    pub(crate) fn find(&self, route: u16, status: u16) -> Option<&ErrorPage> {
        self.routes.get(usize::from(route)).unwrap_or(&self.own).find(status)
    }

    /// All sets of pages.
    pub fn sets(&mut self) -> impl Iterator<Item = &mut ErrorPages> {
        std::iter::once(&mut self.own).chain(&mut self.routes)
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.own.0.is_empty() && self.routes.iter().all(|pages| pages.0.is_empty())
    }
}

impl ErrorPage {
    /// An HTTP/1.1 response, with this page instead of its body. `response` was written by the core: the lines of its head end
    /// with CRLF, and the last one is empty. `head_only`: it is the answer to HEAD.
    pub(crate) fn put_into(&self, response: &[u8], head_only: bool) -> Vec<u8> {
        let body = if head_only { &[][..] } else { &self.body };
        let mut out = Vec::with_capacity(response.len() + 160 + body.len());
        for line in response.split_inclusive(|byte| *byte == b'\n').take_while(|line| *line != b"\r\n") {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            if !OF_PAGE.iter().any(|of_page| name.eq_ignore_ascii_case(of_page)) {
                out.extend_from_slice(line);
            }
        }
        let (kind, length) = (self.content_type, self.body.len());
        let lines = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nCache-Control: no-store\r\n\r\n");
        out.extend_from_slice(lines.as_bytes());
        out.extend_from_slice(body);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::record;

    fn pages(keys: &[u16]) -> ErrorPages {
        let page = |key: &u16| {
            let body = key.to_string().into_bytes().into();
            (*key, Arc::new(ErrorPage { content_type: "text/html", body }))
        };
        ErrorPages(keys.iter().map(page).collect())
    }

    #[test]
    fn a_status_has_its_own_page_or_that_of_its_class() {
        let pages = ServicePages { own: pages(&[404, 5]), routes: Box::new([pages(&[4, 502, 5]), pages(&[])]) };
        let found =
            |route, status| pages.find(route, status).map(|page| String::from_utf8(page.body.to_vec()).unwrap());
        let cases = [
            (record::NONE, 404, Some("404")),
            (record::NONE, 403, None),
            (record::NONE, 599, Some("5")),
            (0, 404, Some("4")),
            (0, 502, Some("502")),
            (0, 503, Some("5")),
            (0, 308, None),
            (1, 404, None),
            (2, 404, Some("404")),
        ];
        for (route, status, body) in cases {
            assert_eq!(found(route, status).as_deref(), body, "{status} of route {route}");
        }
    }

    #[test]
    fn the_page_replaces_the_body_and_other_fields_stay() {
        let page = ErrorPage { content_type: "text/html; charset=utf-8", body: b"<p>back soon\r\n\r\n"[..].into() };
        let response = b"HTTP/1.1 503 Service Unavailable\r\nDate: now\r\nCONTENT-TYPE: text/plain\r\nContent-Length: \
                         4\r\nRetry-After: 1\r\nWWW-Authenticate: Basic realm=\"a\"\r\nConnection: close\r\n\r\n503\n";
        let head = "HTTP/1.1 503 Service Unavailable\r\nDate: now\r\nRetry-After: 1\r\nWWW-Authenticate: Basic \
                    realm=\"a\"\r\nConnection: close\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: \
                    16\r\nCache-Control: no-store\r\n\r\n";
        let text = |head_only| String::from_utf8(page.put_into(response, head_only)).unwrap();
        assert_eq!(text(false), format!("{head}<p>back soon\r\n\r\n"));
        assert_eq!(text(true), head);
    }
}
