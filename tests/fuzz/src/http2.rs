//! A request by HTTP/2 on its way to a backend: the h2 crate reads its header block, the terminating path writes it as a head
//! of HTTP/1.1, `l7::head` reads that, and the head for the backend is written from what was read.
//!
//! An input is a byte of parameters, then fields: a byte for the name (its length, or with the highest bit one of [`NAMES`]), a
//! byte for the value's length, name, value. Bit 0 of the parameters: no body follows. Bits 1 and 2: how they come
//! (`Way`).
//!
//! The request is refused, or two readers, `l7::head` and httparse, read in both heads what the client has said: one
//! request with the same method, target, host, fields and length of its body.

mod said;

use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::keys::Secret;
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::{Action, Edits, Http, Route};
use hairpin_core::l7::decision::{self, Verdict};
use hairpin_core::l7::edit::{self, Facts, HEAD_ROOM};
use hairpin_core::l7::head::{self, Bounds, Method, ParseStatus, Request};
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{Conditions, Named, Test};
use hairpin_core::l7::trace::{IdMaker, Parents, RequestId, SAMPLE_ALL, TraceContext, Tracing};
use hairpin_core::limit::Limiting;
use hairpin_https::fuzzing;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use said::{Said, trimmed};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bounds of a head that was written from a header block, as `http2::stream` of the terminating path has them.
const BOUNDS: Bounds = Bounds { bytes_max: 64 * 1024, fields_max: 100, target_bytes_max: 8192 };
/// Bytes of a frame's payload.
const PAYLOAD_MAX: usize = 16_384;

/// Names that an input can say in one byte: those that have a meaning of their own.
pub const NAMES: [&str; 26] = [
    ":method",
    ":scheme",
    ":authority",
    ":path",
    ":protocol",
    ":status",
    "host",
    "cookie",
    "content-length",
    "transfer-encoding",
    "connection",
    "te",
    "upgrade",
    "expect",
    "trailer",
    "keep-alive",
    "proxy-connection",
    "content_length",
    "transfer_encoding",
    "max-forwards",
    "x-forwarded-for",
    "forwarded",
    "sec-websocket-key",
    "sec-websocket-version",
    "x-route",
    "Content-Length",
];

/// How fields come to what is under test.
enum Way {
    /// As a header block of literals, in frames.
    Literals,
    /// As what the h2 crate makes of a request.
    Parts,
    /// As the trailers of a request.
    Trailers,
    /// No fields: the bytes are the header block itself.
    Block,
}

type FieldList = Vec<(Vec<u8>, Vec<u8>)>;

/// See the module's documentation. Returns whether a request would have gone to a backend.
pub fn request(input: &[u8]) -> bool {
    let Some((&parameters, rest)) = input.split_first() else { return false };
    let is_whole = parameters & 1 != 0;
    match way(parameters) {
        Way::Trailers => trailers(&fields(rest)),
        Way::Block => {
            let Some(parts) = by_frames(rest, is_whole) else { return false };
            goes_on(&Said::of_parts(&parts), &parts, is_whole)
        }
        Way::Literals => {
            let fields = fields(rest);
            let Some(parts) = by_frames(&literals(&fields), is_whole) else { return false };
            let said = Said::of_fields(&fields);
            let gone = said.as_ref().is_ok_and(|said| goes_on(said, &parts, is_whole));
            if let Err(why) = said {
                // Refused by the h2 crate or later.
                let head = fuzzing::request_head(&parts, is_whole).unwrap_or_default();
                let read = head::request(&head, &BOUNDS);
                assert!(!matches!(read, Ok(ParseStatus::Complete(_))), "{why}, and yet {read:?}");
            }
            gone
        }
        Way::Parts => {
            let Ok(said) = Said::of_fields(&fields(rest)) else { return false };
            let Some(parts) = said.parts() else { return false };
            goes_on(&said, &parts, is_whole)
        }
    }
}

fn way(parameters: u8) -> Way {
    match parameters >> 1 & 3 {
        0 => Way::Literals,
        1 => Way::Parts,
        2 => Way::Trailers,
        _ => Way::Block,
    }
}

fn fields(mut rest: &[u8]) -> FieldList {
    let mut fields = Vec::new();
    let take = |rest: &mut &[u8], length: usize| {
        let (taken, left) = rest.split_at(length.min(rest.len()));
        *rest = left;
        taken.to_vec()
    };
    while let [name, length, behind @ ..] = rest {
        rest = behind;
        let name = match name {
            0x80.. => NAMES[usize::from(name & 0x7f) % NAMES.len()].as_bytes().to_vec(),
            _ => take(&mut rest, usize::from(*name)),
        };
        fields.push((name, take(&mut rest, usize::from(*length))));
    }
    fields
}

/// The header block of these fields: literals without indexing, new names (RFC 7541, 6.2.2), no Huffman code.
fn literals(fields: &FieldList) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // Up to 254 bytes (RFC 7541, 5.1).
            match text.len() {
                length @ ..127 => block.push(length as u8),
                length => block.extend([127, (length - 127) as u8 & 0x7f | 0x80, ((length - 127) >> 7) as u8]),
            }
            block.extend_from_slice(text);
        }
    }
    block
}

/// What the h2 crate reads of a request with this header block.
fn by_frames(block: &[u8], is_whole: bool) -> Option<Parts> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const END_HEADERS: u8 = 4;
    if block.len() > PAYLOAD_MAX {
        return None;
    }
    let [_, high, middle, low] = (block.len() as u32).to_be_bytes();
    let headers = [high, middle, low, 1, END_HEADERS | u8::from(is_whole), 0, 0, 0, 1];
    let said = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &SETTINGS, &headers, block].concat();
    let mut cx = Context::from_waker(Waker::noop());
    let mut builder = h2::server::Builder::new();
    builder.max_header_list_size(16_384).enable_connect_protocol();
    let mut handshake = pin!(builder.handshake::<_, &'static [u8]>(Wire { unread: &said }));
    let Poll::Ready(Ok(mut connection)) = handshake.as_mut().poll(&mut cx) else { panic!("no handshake") };
    match connection.poll_accept(&mut cx) {
        Poll::Ready(Some(Ok((request, _)))) => Some(request.into_parts().0),
        _ => None,
    }
}

/// A connection whose client has said all that it will say, and takes everything.
struct Wire<'a> {
    unread: &'a [u8],
}

impl AsyncRead for Wire<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Poll::Pending;
        }
        let (now, later) = self.unread.split_at(self.unread.len().min(into.remaining()));
        into.put_slice(now);
        self.unread = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What a reader has found at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    bytes: usize,
    method: Vec<u8>,
    target: Vec<u8>,
    /// In lower case, sorted.
    fields: FieldList,
    body: Length,
}

impl Found {
    fn by_core(request: &Request<'_>) -> Found {
        Found {
            bytes: request.bytes.len(),
            method: request.method_bytes.to_vec(),
            target: request.target.whole.to_vec(),
            fields: lower(request.fields.iter()),
            body: request.body,
        }
    }

    /// A reader that knows nothing of ours.
    fn by_httparse(head: &[u8]) -> Found {
        let mut fields = [httparse::EMPTY_HEADER; 128];
        let mut request = httparse::Request::new(&mut fields);
        let read = request.parse(head).expect("a head that httparse reads");
        let httparse::Status::Complete(bytes) = read else { panic!("httparse waits for more") };
        assert_eq!(request.version, Some(1));
        let fields = lower(request.headers.iter().map(|field| (field.name.as_bytes(), trimmed(field.value))));
        let of = |name: &[u8]| -> Vec<&[u8]> {
            fields.iter().filter(|(other, _)| other == name).map(|(_, value)| &value[..]).collect()
        };
        let body = match (&of(b"content-length")[..], &of(b"transfer-encoding")[..]) {
            ([], []) | ([b"0"], []) => Length::None,
            ([], [b"chunked"]) => Length::Chunked,
            ([length], []) => Length::Bytes(std::str::from_utf8(length).unwrap().parse().unwrap()),
            lengths => panic!("more than one length: {lengths:?}"),
        };
        let [method, target] = [request.method, request.path].map(|text| text.unwrap_or_default().as_bytes().to_vec());
        Found { bytes, method, target, fields, body }
    }

    /// Takes the fields of this name out, and gives their values.
    fn take(&mut self, name: &[u8]) -> Vec<Vec<u8>> {
        let taken = self.fields.extract_if(.., |(other, _)| other == name);
        taken.map(|(_, value)| value).collect()
    }
}

fn lower<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> FieldList {
    let mut fields: FieldList = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec())).collect();
    fields.sort();
    fields
}

/// Writes a request as the terminating path does. Whether it would go to a backend.
fn goes_on(said: &Said, parts: &Parts, is_whole: bool) -> bool {
    let Some(written) = fuzzing::request_head(parts, is_whole) else { return false };
    let request = match head::request(&written, &BOUNDS) {
        Ok(ParseStatus::Complete(request)) => request,
        Ok(ParseStatus::Partial) => panic!("no end: {}", written.escape_ascii()),
        Err(_) => return false,
    };
    // So it is refused there.
    if is_whole && request.body != Length::None {
        return false;
    }
    let mut found = Found::by_core(&request);
    assert_eq!(found, Found::by_httparse(&written), "{}", written.escape_ascii());
    assert_eq!(found.bytes, written.len(), "two requests: {}", written.escape_ascii());
    assert_eq!(found.method, if said.is_websocket() { b"GET".to_vec() } else { said.method.clone() });
    assert_eq!(found.target, said.target());
    assert_eq!(request.host, said.host());
    assert_eq!(found.body, said.body(is_whole));
    found.take(b"host");
    assert_eq!(found.take(b"transfer-encoding").len(), usize::from(found.body == Length::Chunked));
    if said.is_websocket() {
        assert_eq!(found.take(b"upgrade"), [b"websocket"]);
        assert_eq!(found.take(b"connection"), [b"Upgrade"]);
        assert_eq!(found.take(b"sec-websocket-key")[0].len(), 24);
        if !said.fields.iter().any(|(name, _)| name == b"sec-websocket-version") {
            assert_eq!(found.take(b"sec-websocket-version"), [b"13"]);
        }
    }
    assert_eq!(found.fields, said.sorted());
    request.method != Method::Connect && is_decided(said, &request, is_whole)
}

/// Judges a request, as it was written and as a client of HTTP/1.1 would have said it, and writes the head for the backend.
fn is_decided(said: &Said, request: &Request<'_>, is_whole: bool) -> bool {
    let (http, client) = (http(), Address::from_ipv4([192, 0, 2, 1]));
    let verdict = decision::judge(&http, request, &client, &mut Limiting::none());
    if !said.is_websocket() {
        let direct = in_http1(said, is_whole);
        let Ok(ParseStatus::Complete(direct)) = head::request(&direct, &BOUNDS) else {
            panic!("refused by HTTP/1.1: {}", direct.escape_ascii())
        };
        let direct = decision::judge(&http, &direct, &client, &mut Limiting::none());
        assert_eq!(format!("{verdict:?}"), format!("{direct:?}"), "another verdict than by HTTP/1.1");
    }
    let Verdict::Forward { route, .. } = verdict else { return false };
    let end = Endpoint::new(client, 1234);
    let ids = IdMaker::new(Secret::new([1, 2]), 0).ids(1);
    let trace = TraceContext::of(&http, request, &end.address, &ids);
    let facts = Facts {
        client_certificate: Default::default(),
        client: end,
        vip: end,
        backend: "backend",
        service: "service",
        https: true,
        trace: Some(&trace),
        sticky: None,
        close_client: false,
        chosen_in_us: 0,
    };
    let mut out = [0; HEAD_ROOM];
    let Ok(length) = edit::request_head(&mut out, request, &http, route, &facts) else { return false };
    let out = &out[..length];
    let Ok(ParseStatus::Complete(read)) = head::request(out, &BOUNDS) else { panic!("{}", out.escape_ascii()) };
    let found = Found::by_core(&read);
    assert_eq!(found, Found::by_httparse(out));
    assert_eq!(found.bytes, out.len(), "two requests: {}", out.escape_ascii());
    assert_eq!((read.method_bytes, read.host, read.body), (request.method_bytes, request.host, request.body));
    assert_eq!((read.target.path, read.target.query), (request.target.path, request.target.query));
    true
}

/// The request as a client of HTTP/1.1 would say it.
fn in_http1(said: &Said, is_whole: bool) -> Vec<u8> {
    let mut head = [&said.method, &b" "[..], said.target(), b" HTTP/1.1\r\n"].concat();
    let host = said.host().map(|host| (b"host".to_vec(), host.to_vec()));
    for (name, value) in host.into_iter().chain(said.sorted()) {
        head.extend([&name, &b": "[..], &value, b"\r\n"].concat());
    }
    if said.body(is_whole) == Length::Chunked {
        head.extend(b"Transfer-Encoding: chunked\r\n");
    }
    head.extend(b"\r\n");
    head
}

/// A service whose routes ask for all that a request has.
fn http() -> Http {
    let forward = |group| Action::Forward { groups: [(group, 1)].into(), replace_prefix: None };
    let route = |conditions, action| Route { conditions, action, edits: Edits::default(), terms: Default::default() };
    let host = HostPattern::parse("a.test").expect("a host");
    let path = PathPattern::prefix("/deny").expect("a path");
    let field = Named { name: (*b"x-route").into(), test: Test::Present };
    let query = Named { name: (*b"q").into(), test: Test::Exact((*b"1").into()) };
    Http {
        routes: [
            route(
                Conditions { paths: [path].into(), ..Conditions::default() },
                Action::Reply { status: 403, body: (*b"no").into() },
            ),
            route(
                Conditions { hosts: [host].into(), methods: [(*b"GET").into()].into(), ..Conditions::default() },
                forward(1),
            ),
            route(Conditions { headers: [field].into(), ..Conditions::default() }, forward(2)),
            route(Conditions { queries: [query].into(), ..Conditions::default() }, forward(3)),
            route(Conditions::default(), forward(0)),
        ]
        .into(),
        request_id: Some(RequestId { name: (*b"X-Id").into(), lower_name: (*b"x-id").into() }),
        tracing: Some(Tracing { parents: Parents::All, sample: SAMPLE_ALL / 2 }),
        upgrade: true,
        ..Http::default()
    }
}

/// Trailers are refused, or end the chunked body that they are written behind.
fn trailers(fields: &FieldList) -> bool {
    let mut trailers = HeaderMap::new();
    for (name, value) in fields {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) else { continue };
        trailers.append(name, value);
    }
    let end = [b"0\r\n", &fuzzing::trailer_lines(&trailers)[..], b"\r\n"].concat();
    let mut chunks = Chunks::default();
    match chunks.feed(&end) {
        Ok(fed) => {
            assert!(chunks.is_done() && fed == end.len(), "more behind: {}", end.escape_ascii());
            let (_, lines) = end.split_at(3);
            let mut read = [httparse::EMPTY_HEADER; 128];
            let read = httparse::parse_headers(lines, &mut read);
            assert!(
                matches!(read, Ok(httparse::Status::Complete((bytes, _))) if bytes == lines.len())
                    || read == Err(httparse::Error::TooManyHeaders),
                "{read:?} of {}",
                lines.escape_ascii()
            );
            true
        }
        Err(_) => false,
    }
}
