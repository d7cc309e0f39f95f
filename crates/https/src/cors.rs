//! CORS: which scripts of other origins may read responses (Fetch standard, 3.2).
//!
//! Where a route has it, Hairpin is the one voice: preflights are answered here, and what backends say in these fields does not
//! go on.

use hairpin_core::l7::head::{Method, Request};

/// The fields of responses that are Hairpin's own where a route has CORS, in lower case.
const OWN: [&[u8]; 6] = [
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-expose-headers",
    b"access-control-allow-methods",
    b"access-control-allow-headers",
    b"access-control-max-age",
];

/// The CORS of a route. Its texts are values of fields, without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// Origins as browsers write them; `None`: any.
    pub origins: Option<Box<[Box<str>]>>,
    /// The value of `Access-Control-Allow-Methods`.
    pub methods: Box<str>,
    /// The value of `Access-Control-Allow-Headers`; empty: the field is left out.
    pub headers: Box<str>,
    /// The value of `Access-Control-Expose-Headers`; empty: the field is left out.
    pub expose: Box<str>,
    /// Whether cookies and the like may go with requests.
    pub credentials: bool,
    /// How long a browser remembers the answer to a preflight, seconds.
    pub max_age_s: u32,
}

/// The fields that a response gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorsFields {
    lines: Vec<u8>,
    /// Whether the response is another one for another origin.
    varies: bool,
}

fn is_preflight(request: &Request<'_>) -> bool {
    request.method == Method::Options && request.fields.find(b"access-control-request-method").next().is_some()
}

fn add(lines: &mut Vec<u8>, name: &str, value: &[u8]) {
    if !value.is_empty() {
        lines.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
}

impl Cors {
    /// What a request's `Access-Control-Allow-Origin` is answered with; `None`: its origin may not.
    fn allowed<'a>(&self, origin: &'a [u8]) -> Option<&'a [u8]> {
        match &self.origins {
            None => Some(b"*"),
            Some(origins) => origins.iter().any(|known| known.as_bytes() == origin).then_some(origin),
        }
    }

    /// The fields for a request's response.
    pub(crate) fn fields(&self, request: &Request<'_>) -> CorsFields {
        self.lines(request, |lines| add(lines, "Access-Control-Expose-Headers", self.expose.as_bytes()))
    }

    /// The fields of the answer to a request that is a preflight; `None`: it is none.
    pub(crate) fn preflight(&self, request: &Request<'_>) -> Option<CorsFields> {
        if !is_preflight(request) || request.fields.find(b"origin").next().is_none() {
            return None;
        }
        Some(self.lines(request, |lines| {
            add(lines, "Access-Control-Allow-Methods", self.methods.as_bytes());
            add(lines, "Access-Control-Allow-Headers", self.headers.as_bytes());
            add(lines, "Access-Control-Max-Age", self.max_age_s.to_string().as_bytes());
        }))
    }

    fn lines(&self, request: &Request<'_>, more: impl Fn(&mut Vec<u8>)) -> CorsFields {
        let mut lines = Vec::new();
        // A browser sends one. Of several, one reader takes the first, and another the last.
        let mut origins = request.fields.find(b"origin");
        let origin = origins.next().filter(|_| origins.next().is_none());
        if let Some(allowed) = origin.and_then(|origin| self.allowed(origin)) {
            add(&mut lines, "Access-Control-Allow-Origin", allowed);
            add(&mut lines, "Access-Control-Allow-Credentials", if self.credentials { b"true" } else { b"" });
            more(&mut lines);
        }
        CorsFields { lines, varies: self.origins.is_some() }
    }
}

impl CorsFields {
    /// The head of a response, with these fields instead of its own. `head` was read, or written, by the core: its lines end with
    /// CRLF, and the last one is empty.
    pub(crate) fn put_into(&self, head: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(head.len() + self.lines.len() + 16);
        let mut varies_there = false;
        for line in head.split_inclusive(|byte| *byte == b'\n') {
            if line == b"\r\n" {
                break;
            }
            let (name, value) = match line.iter().position(|byte| *byte == b':') {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &[][..]),
            };
            if OWN.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                continue;
            }
            varies_there |= name.eq_ignore_ascii_case(b"vary") && names_origin(value);
            out.extend_from_slice(line);
        }
        out.extend_from_slice(&self.lines);
        if self.varies && !varies_there {
            out.extend_from_slice(b"Vary: Origin\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Whether a value of `Vary` has `Origin`, or `*`, which stands for all fields.
fn names_origin(value: &[u8]) -> bool {
    let names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    names.into_iter().any(|name| name == b"*" || name.eq_ignore_ascii_case(b"origin"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_core::l7::head::{self, Bounds, ParseStatus};

    fn cors(origins: Option<&[&str]>) -> Cors {
        Cors {
            origins: origins.map(|origins| origins.iter().map(|origin| (*origin).into()).collect()),
            methods: "GET, PUT".into(),
            headers: "X-A".into(),
            expose: "X-B".into(),
            credentials: origins.is_some(),
            max_age_s: 600,
        }
    }

    fn with<T>(line: &str, fields: &str, then: impl Fn(&Request<'_>) -> T) -> T {
        let text = format!("{line} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let bounds = Bounds { bytes_max: 4096, fields_max: 20, target_bytes_max: 100 };
        let Ok(ParseStatus::Complete(request)) = head::request(text.as_bytes(), &bounds) else { panic!("{text}") };
        then(&request)
    }

    /// The head of a backend's response as it goes on.
    fn answered(cors: &Cors, fields: &str, head: &str) -> String {
        let fields = with("GET", fields, |request| cors.fields(request));
        String::from_utf8(fields.put_into(head.as_bytes())).unwrap()
    }

    const SHOP: &str = "https://shop.example";

    #[test]
    fn an_allowed_origin_gets_the_fields_and_the_backend_is_silent() {
        let cors = cors(Some(&[SHOP]));
        let head =
            "HTTP/1.1 200 OK\r\naccess-control-ALLOW-origin: *\r\nAccess-Control-Max-Age: 1\r\nVary: Accept\r\n\r\n";
        assert_eq!(
            answered(&cors, "Origin: https://shop.example\r\n", head),
            "HTTP/1.1 200 OK\r\nVary: Accept\r\nAccess-Control-Allow-Origin: https://shop.example\r\n\
             Access-Control-Allow-Credentials: true\r\nAccess-Control-Expose-Headers: X-B\r\nVary: Origin\r\n\r\n"
        );
    }

    #[test]
    fn other_origins_get_no_field() {
        let cors = cors(Some(&[SHOP]));
        let head = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\n\r\n";
        let others = [
            "",
            "Origin: null\r\n",
            "Origin:\r\n",
            "Origin: http://shop.example\r\n",
            "Origin: https://SHOP.example\r\n",
            "Origin: https://shop.example:443\r\n",
            "Origin: https://shop.example.evil.example\r\n",
            "Origin: https://shop.example\r\nOrigin: https://evil.example\r\n",
        ];
        for other in others {
            assert_eq!(answered(&cors, other, head), "HTTP/1.1 200 OK\r\nVary: Origin\r\n\r\n", "{other}");
        }
    }

    #[test]
    fn vary_is_said_once_and_only_where_the_answer_varies() {
        let (some, any) = (cors(Some(&[SHOP])), cors(None));
        for vary in ["accept, ORIGIN", "*"] {
            let head = format!("HTTP/1.1 200 OK\r\nVary: {vary}\r\n\r\n");
            assert_eq!(answered(&some, "", &head), head);
        }
        assert_eq!(
            answered(&any, "Origin: https://a.example\r\n", "HTTP/1.1 200 OK\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Expose-Headers: X-B\r\n\r\n"
        );
    }

    #[test]
    fn preflights_are_options_with_origin_and_method() {
        let cors = cors(Some(&[SHOP]));
        let asked = "Access-Control-Request-Method: PUT\r\nOrigin: https://shop.example\r\n";
        let answer = with("OPTIONS", asked, |request| cors.preflight(request)).unwrap();
        let expected = "HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: https://shop.example\r\n\
                        Access-Control-Allow-Credentials: true\r\nAccess-Control-Allow-Methods: GET, PUT\r\n\
                        Access-Control-Allow-Headers: X-A\r\nAccess-Control-Max-Age: 600\r\nVary: Origin\r\n\r\n";
        assert_eq!(answer.put_into(b"HTTP/1.1 204 No Content\r\n\r\n"), expected.as_bytes());
        let other = "Access-Control-Request-Method: PUT\r\nOrigin: https://evil.example\r\n";
        let answer = with("OPTIONS", other, |request| cors.preflight(request)).unwrap();
        assert_eq!(
            answer.put_into(b"HTTP/1.1 204 No Content\r\n\r\n"),
            b"HTTP/1.1 204 No Content\r\nVary: Origin\r\n\r\n"
        );
        for (line, fields) in
            [("GET", asked), ("OPTIONS", "Origin: a\r\n"), ("OPTIONS", "Access-Control-Request-Method: PUT\r\n")]
        {
            assert_eq!(with(line, fields, |request| cors.preflight(request)), None, "{line} {fields}");
        }
    }
}
