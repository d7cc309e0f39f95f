//! Properties of all heads: how they are cut makes no difference, nothing panics, and what we accept, httparse accepts
//! with the same parts.

use super::super::Version;
use super::*;
use crate::l7::body::Length;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::string::String;
use std::{format, vec};

/// Cases of each property; `HAIRPIN_HEADS_CASES` raises it.
#[expect(clippy::disallowed_methods, reason = "not the data plane, but how long its test runs")]
fn cases() -> ProptestConfig {
    let cases = std::env::var("HAIRPIN_HEADS_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Pieces of heads, good and bad: what is made of them gets far into the reader.
fn pieces(first: Vec<&'static str>) -> impl Strategy<Value = Vec<u8>> {
    let field = prop::sample::select(vec![
        "Host: a\r\n",
        "host: b:80\r\n",
        "Host: [::1]\r\n",
        "Content-Length: 5\r\n",
        "content-length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Connection: close\r\n",
        "Connection: keep-alive, x\r\n",
        "Connection: Upgrade\r\n",
        "Upgrade: websocket\r\n",
        "Expect: 100-continue\r\n",
        "Accept:  */* \t\r\n",
        "X:\r\n",
        "Cookie: a=b; c=\u{e9}\r\n",
        " folded\r\n",
        "a : b\r\n",
        "A: b\n",
        "\r",
        "\n",
        "\r\n",
        "x",
        ":",
        " ",
        "\t",
        "\0",
    ]);
    let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n", "", "\r\nGET / HTTP/1.1\r\n\r\n"]);
    (
        prop::sample::select(first),
        prop::collection::vec(field, 0..6),
        end,
        prop::collection::vec(any::<(u16, u8)>(), 0..2),
    )
        .prop_map(|(first, fields, end, changes)| {
            let mut bytes = format!("{first}{}{end}", fields.concat()).into_bytes();
            for (at, byte) in changes {
                // Half of them are left as they are.
                if at & 1 == 0 && !bytes.is_empty() {
                    let at = usize::from(at / 2) % bytes.len();
                    bytes[at] = byte;
                }
            }
            bytes
        })
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    pieces(vec![
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "GET /a?b HTTP/1.1\r\n",
        "POST / HTTP/1.0\r\n",
        "CONNECT a:80 HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "GET http://c/d HTTP/1.1\r\n",
        "\r\nPUT /x HTTP/1.1\r\n",
        "BREW /pot HTTP/1.1\r\n",
        "GET / HTTP/2.0\r\n",
        "GET",
        "",
    ])
}

fn responses() -> impl Strategy<Value = Vec<u8>> {
    pieces(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 304 Not Modified\r\n",
        "HTTP/1.1 204\r\n",
        "HTTP/1.1 100 Continue\r\n",
        "HTTP/1.1 101 \r\n",
        "HTTP/1.1",
        "",
    ])
}

/// A verdict on a prefix holds for all that begins with it.
fn same_however_cut(bytes: &[u8], read: impl Fn(&[u8]) -> String) -> Result<(), TestCaseError> {
    let mut decided: Option<String> = None;
    for length in 0..=bytes.len() {
        let now = read(&bytes[..length]);
        match &decided {
            Some(decided) => prop_assert_eq!(&now, decided, "{} of {:?}", length, bytes),
            None if now != "Ok(Partial)" => decided = Some(now),
            None => {}
        }
    }
    Ok(())
}

fn same_fields(ours: &super::super::Fields<'_>, theirs: &[httparse::Header<'_>]) -> Result<(), TestCaseError> {
    let ours: Vec<_> = ours.iter().collect();
    let theirs: Vec<_> = theirs.iter().map(|header| (header.name.as_bytes(), header.value)).collect();
    prop_assert_eq!(ours, theirs);
    Ok(())
}

fn like_httparse_request(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let Ok(ParseStatus::Complete(ours)) = request(bytes, &BOUNDS) else { return Ok(false) };
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Request::new(&mut headers);
    let end = theirs.parse(bytes);
    prop_assert_eq!(end, Ok(httparse::Status::Complete(ours.bytes.len())), "{:?}", ours);
    prop_assert_eq!(theirs.method.map(str::as_bytes), Some(ours.method_bytes));
    prop_assert_eq!(theirs.path.map(str::as_bytes), Some(ours.target.whole));
    prop_assert_eq!(theirs.version, Some(u8::from(ours.version == Version::Http11)));
    same_fields(&ours.fields, theirs.headers)?;
    // There is one reading of the length.
    let codings = ours.fields.find(b"transfer-encoding").count();
    let lengths: Vec<&[u8]> = ours.fields.find(b"content-length").collect();
    prop_assert!(codings + lengths.len() <= 1);
    let body = match lengths.first().map(|digits| core::str::from_utf8(digits).unwrap().parse().unwrap()) {
        None if codings == 1 => Length::Chunked,
        None | Some(0) => Length::None,
        Some(length) => Length::Bytes(length),
    };
    prop_assert_eq!(ours.body, body);
    prop_assert!(ours.host.is_some() || ours.version == Version::Http10);
    Ok(true)
}

fn like_httparse_response(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let Ok(ParseStatus::Complete(ours)) = response(bytes, &BOUNDS, Method::Get) else { return Ok(false) };
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Response::new(&mut headers);
    let end = theirs.parse(bytes);
    prop_assert_eq!(end, Ok(httparse::Status::Complete(ours.bytes.len())), "{:?}", ours);
    prop_assert_eq!(
        (theirs.code, theirs.version),
        (Some(ours.status), Some(u8::from(ours.version == Version::Http11)))
    );
    // It leaves a reason out that is not ASCII.
    prop_assert!(theirs.reason.map(str::as_bytes) == Some(ours.reason) || !ours.reason.is_ascii());
    same_fields(&ours.fields, theirs.headers)?;
    Ok(true)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn requests_cut_anywhere(bytes in requests()) {
        same_however_cut(&bytes, |bytes| format!("{:?}", request(bytes, &BOUNDS)))?;
        let tight = Bounds { bytes_max: 60, fields_max: 2, target_bytes_max: 3 };
        same_however_cut(&bytes, |bytes| format!("{:?}", request(bytes, &tight)))?;
    }

    #[test]
    fn responses_cut_anywhere(bytes in responses()) {
        for asked in [Method::Get, Method::Head, Method::Connect] {
            same_however_cut(&bytes, |bytes| format!("{:?}", response(bytes, &BOUNDS, asked)))?;
        }
        let tight = Bounds { bytes_max: 40, fields_max: 2, target_bytes_max: 0 };
        same_however_cut(&bytes, |bytes| format!("{:?}", response(bytes, &tight, Method::Get)))?;
    }

    #[test]
    fn httparse_accepts_our_requests(bytes in requests()) {
        like_httparse_request(&bytes)?;
    }

    #[test]
    fn httparse_accepts_our_responses(bytes in responses()) {
        like_httparse_response(&bytes)?;
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), start in 0..4usize) {
        let bytes = [[&b""[..], b"GET /", b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n"][start], &bytes[..]].concat();
        like_httparse_request(&bytes)?;
        like_httparse_response(&bytes)?;
    }
}

/// The properties above are about what is accepted; enough must be.
#[test]
fn pieces_are_often_accepted() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut accepted = [0; 2];
    for _ in 0..1000 {
        let bytes = requests().new_tree(&mut runner).unwrap().current();
        accepted[0] += u32::from(like_httparse_request(&bytes).unwrap());
        let bytes = responses().new_tree(&mut runner).unwrap().current();
        accepted[1] += u32::from(like_httparse_response(&bytes).unwrap());
    }
    assert!(accepted.iter().all(|count| *count > 50), "{accepted:?}");
}
