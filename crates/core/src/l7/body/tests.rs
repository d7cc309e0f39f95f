//! Chunked bodies as they come.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;
use std::{format, vec};

/// How a body ends: after so many bytes, not yet, or refused; fed at once.
fn read(bytes: &[u8]) -> Result<Option<usize>, BadChunk> {
    let mut chunks = Chunks::default();
    let taken = chunks.feed(bytes)?;
    assert!(taken <= bytes.len());
    if !chunks.is_done() {
        assert_eq!(taken, bytes.len());
        return Ok(None);
    }
    assert_eq!(chunks.feed(b"more"), Ok(0));
    Ok(Some(taken))
}

/// How a body ends that is fed in pieces, empty ones among them.
fn read_cut(mut bytes: &[u8], pieces: impl IntoIterator<Item = usize>) -> Result<Option<usize>, BadChunk> {
    let mut chunks = Chunks::default();
    let mut pieces = pieces.into_iter();
    let mut taken = 0;
    while !bytes.is_empty() && !chunks.is_done() {
        let (piece, rest) = bytes.split_at(pieces.next().unwrap_or(1).min(bytes.len()));
        taken += chunks.feed(piece)?;
        bytes = rest;
    }
    Ok(chunks.is_done().then_some(taken))
}

#[test]
fn whole_bodies() {
    for body in [
        "0\r\n\r\n",
        "000\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;a=b\r\nhello\r\n0;c\r\n\r\n",
        "5;\ta=\"\u{e4}; \\\"\"\r\nhello\r\n0\r\n\r\n",
        "A\r\n0123456789\r\n0b\r\n0123456789a\r\n0000000000000000\r\n\r\n",
        "2\r\n\r\n\r\n0\r\n\r\n",
        "0\r\nExpires: now\r\nX-Sum:\r\nEtag: \t\"\u{fc}\"\r\n\r\n",
        "0\r\ntE2: a\r\nhos: b\r\nhostx: c\r\n\r\n",
    ] {
        let behind = format!("{body}GET / HTTP/1.1\r\n");
        assert_eq!(read(behind.as_bytes()), Ok(Some(body.len())), "{body:?}");
        assert_eq!(read_cut(behind.as_bytes(), []), Ok(Some(body.len())), "{body:?}");
        for length in 0..body.len() {
            assert_eq!(read(&body.as_bytes()[..length]), Ok(None), "{length} of {body:?}");
        }
    }
}

#[test]
fn what_is_smuggled_is_refused() {
    use BadChunk::*;
    for (name, body, why) in [
        ("no size", "\r\n", Size),
        ("extension without size", ";a\r\n", Size),
        ("prefix", "0x5\r\n", Size),
        ("sign", "+5\r\n", Size),
        ("negative", "-1\r\n", Size),
        ("space before size", " 5\r\n", Size),
        ("space behind size", "5 \r\n", Size),
        ("space before extension", "5 ;a\r\n", Size),
        ("tab behind size", "5\t\r\n", Size),
        ("underscore", "1_0\r\n", Size),
        ("letter", "5g\r\n", Size),
        ("NUL", "5\0\r\n", Size),
        ("17 digits", "00000000000000005\r\n", Size),
        ("2^63", "8000000000000000\r\n", Size),
        ("2^64 - 1", "ffffffffffffffff\r\n", Size),
        ("2^64 + 5", "10000000000000005\r\n", Size),
        ("bare LF behind size", "5\nhello\r\n0\r\n\r\n", LineEnd),
        ("bare CR behind size", "5\rhello\r\n0\r\n\r\n", LineEnd),
        ("bare LF in extension", "5;a\nhello\r\n0\r\n\r\n", LineEnd),
        ("bare CR in extension", "5;a\rb\r\nhello\r\n0\r\n\r\n", LineEnd),
        ("CR and LF in quotes", "5;a=\"\r\n0\r\n\r\n\"\r\n", DataEnd),
        ("control in extension", "5;a\x0b\r\n", Extension),
        ("NUL in extension", "5;\0\r\n", Extension),
        ("longer than said", "5\r\nhello!\r\n0\r\n\r\n", DataEnd),
        ("bare LF behind data", "5\r\nhello\n0\r\n\r\n", DataEnd),
        ("bare CR behind data", "5\r\nhello\r0\r\n\r\n", DataEnd),
        ("nothing behind data", "5\r\nhello0\r\n\r\n", DataEnd),
        ("bare LF as last line", "0\r\n\n", LineEnd),
        ("bare CR as last line", "0\r\n\rX", LineEnd),
        ("bare LF behind last size", "0\n\r\n", LineEnd),
        ("bare LF behind trailer", "0\r\nA: b\n\r\n", LineEnd),
        ("bare LF in trailer's name", "0\r\nA\n\r\n", LineEnd),
        ("bare CR in trailer", "0\r\nA: b\rC: d\r\n\r\n", LineEnd),
        ("NUL in trailer", "0\r\nA: \0\r\n\r\n", TrailerValue),
        ("DEL in trailer", "0\r\nA: \x7f\r\n\r\n", TrailerValue),
        ("space before colon", "0\r\nA : b\r\n\r\n", TrailerName),
        ("no name", "0\r\n: b\r\n\r\n", TrailerName),
        ("no colon", "0\r\nGET / HTTP/1.1\r\n\r\n", TrailerName),
        ("CR in name", "0\r\nA\r\n\r\n", TrailerName),
        ("folded trailer", "0\r\nA: b\r\n c\r\n\r\n", TrailerName),
        ("folded first trailer", "0\r\n a: b\r\n\r\n", TrailerName),
        ("length in trailers", "0\r\nContent-Length: 5\r\n\r\n", TrailerForbidden),
        ("coding in trailers", "0\r\nA: b\r\ntransfer-encoding: chunked\r\n\r\n", TrailerForbidden),
        ("coding with underscore", "0\r\nTransfer_Encoding: chunked\r\n\r\n", TrailerForbidden),
        ("host in trailers", "0\r\nHOST:\r\n\r\n", TrailerForbidden),
        ("client in trailers", "0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n", TrailerForbidden),
    ] {
        assert_eq!(read(body.as_bytes()), Err(why), "{name}: {body:?}");
        assert_eq!(read_cut(body.as_bytes(), []), Err(why), "{name}, byte by byte");
    }
}

#[test]
fn only_responses_pad_sizes() {
    use BadChunk::*;
    let read = |body: &[u8]| {
        let mut chunks = Chunks::of_response();
        chunks.feed(body).map(|taken| chunks.is_done().then_some(taken))
    };
    for body in ["5 \r\nhello\r\n0\r\n\r\n", "5\t  ;a=b\r\nhello\r\n0  \r\n\r\n", "0 ;a \r\n\r\n"] {
        assert_eq!(read(body.as_bytes()), Ok(Some(body.len())), "{body:?}");
        assert_eq!(super::tests::read(body.as_bytes()), Err(Size), "{body:?}");
    }
    for (body, why) in [
        (" 5\r\n", Size),
        ("5 5\r\n", Size),
        ("5 a\r\n", Size),
        ("5 \n", LineEnd),
        ("5 \r\r\n", LineEnd),
        (" \r\n", Size),
        ("5 \x0b\r\n", Size),
    ] {
        assert_eq!(read(body.as_bytes()), Err(why), "{body:?}");
    }
    let padded = |bytes: usize| format!("5{}\r\nhello\r\n0\r\n\r\n", " ".repeat(bytes));
    assert!(matches!(read(padded(256).as_bytes()), Ok(Some(_))));
    assert_eq!(read(padded(257).as_bytes()), Err(ExtensionTooLong));
}

#[test]
fn forbidden_names_are_found_in_any_case_and_no_others() {
    assert!(FORBIDDEN.len() <= 32 && FORBIDDEN.is_sorted());
    for name in FORBIDDEN {
        let name = core::str::from_utf8(name).unwrap();
        assert_eq!(name, name.to_ascii_lowercase());
        let read = |name: &str| read(format!("0\r\n{name}: a\r\n\r\n").as_bytes());
        assert_eq!(read(name), Err(BadChunk::TrailerForbidden), "{name}");
        assert_eq!(read(&name.to_ascii_uppercase()), Err(BadChunk::TrailerForbidden), "{name}");
        assert_eq!(read(&name.replace('-', "_")), Err(BadChunk::TrailerForbidden), "{name}");
        assert!(matches!(read(&format!("{name}x")), Ok(Some(_))), "{name}x");
        assert!(matches!(read(&format!("x{name}")), Ok(Some(_))), "x{name}");
        if name != "te" {
            assert!(matches!(read(&name[..name.len() - 1]), Ok(Some(_))), "{name} without its last byte");
        }
    }
}

#[test]
fn bounds_hold() {
    // The semicolon counts.
    let extension = |bytes: usize| format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(bytes - 1));
    assert!(matches!(read(extension(256).as_bytes()), Ok(Some(_))));
    assert_eq!(read(extension(257).as_bytes()), Err(BadChunk::ExtensionTooLong));
    // Each chunk has its own.
    let both = format!("5;{0}\r\nhello\r\n0;{0}\r\n\r\n", "a".repeat(255));
    assert_eq!(read(both.as_bytes()), Ok(Some(both.len())));
    let trailers = |bytes: usize| format!("0\r\n{}A:{}\r\n\r\n", "B: c\r\n".repeat(100), "d".repeat(bytes - 604));
    assert!(matches!(read(trailers(8192).as_bytes()), Ok(Some(_))));
    assert_eq!(read(trailers(8193).as_bytes()), Err(BadChunk::TrailersTooLong));
    assert_eq!(read(&[b"0\r\n", &[b'a'; 9000][..]].concat()), Err(BadChunk::TrailersTooLong));
    let many = format!("0\r\n{}", "a:\r\n".repeat(3000));
    assert_eq!(read(many.as_bytes()), Err(BadChunk::TrailersTooLong));
}

#[test]
fn large_chunks_are_counted_without_being_seen() {
    let mut chunks = Chunks::default();
    assert_eq!(chunks.feed(b"7fffffffffffffff"), Ok(16));
    assert_eq!((chunks.data_left(), chunks.skip(1)), (0, 0), "in the size");
    assert_eq!(chunks.feed(b"\r\nab"), Ok(4));
    assert_eq!(chunks.data_left(), i64::MAX as u64 - 2);
    assert_eq!(chunks.skip(1 << 62), 1 << 62);
    let left = (1 << 62) - 3;
    assert_eq!(chunks.data_left(), left);
    assert_eq!(chunks.feed(&[b'\n'; 10]), Ok(10));
    assert_eq!(chunks.skip(u64::MAX), left - 10);
    assert_eq!((chunks.data_left(), chunks.skip(1), chunks.is_done()), (0, 0, false));
    assert_eq!(chunks.feed(b"\r\n0\r\n\r\nrest"), Ok(7));
    assert_eq!((chunks.is_done(), chunks.data_left()), (true, 0));
}

#[test]
fn chunks_together_respect_the_body_limit() {
    let body = b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nA: b\r\n\r\n";
    for (room, fed) in [(5, Ok(body.len())), (u64::MAX, Ok(body.len())), (4, Err(BadChunk::BodyTooLong))] {
        let mut chunks = Chunks::at_most(room);
        assert_eq!(chunks.feed(body), fed, "{room}");
        assert_eq!(chunks.is_done(), fed.is_ok());
    }
    let mut chunks = Chunks::at_most(4);
    assert_eq!(chunks.feed(b"5\r"), Ok(2));
    assert_eq!(chunks.feed(b"\n"), Err(BadChunk::BodyTooLong), "before the first byte of it");
    assert_eq!(Chunks::at_most(0).feed(b"0\r\n\r\n"), Ok(5));
}

#[test]
fn errors_are_final() {
    let mut chunks = Chunks::default();
    assert_eq!(chunks.feed(b"x"), Err(BadChunk::Size));
    assert_eq!(chunks.feed(b""), Err(BadChunk::Size));
    assert_eq!(chunks.feed(b"0\r\n\r\n"), Err(BadChunk::Size));
    assert!(!chunks.is_done());
    assert_eq!(chunks.skip(5), 0);
}

#[test]
fn errors_have_names_of_their_own() {
    let mut names: Vec<_> = BadChunk::ALL.iter().map(|bad| bad.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), BadChunk::ALL.len());
    assert!(BadChunk::ALL.windows(2).all(|pair| pair[0] < pair[1]), "in the order of their declaration");
}

/// Chunked bodies, most of them right.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let chunk = (prop::collection::vec(any::<u8>(), 1..60), prop::sample::select(vec!["", ";a", ";a=\"b\"", " "]));
    let trailer = prop::sample::select(vec!["A: b\r\n", "Sum:\r\n", "Host: a\r\n", "C : d\r\n", "E: f\n"]);
    let parts = (prop::collection::vec(chunk, 0..5), prop::collection::vec(trailer, 0..3), any::<(bool, u16, u8)>());
    parts.prop_map(|(chunks, trailers, (change, at, byte))| {
        let mut body = Vec::new();
        for (data, extension) in chunks {
            body.extend(format!("{:x}{extension}\r\n", data.len()).into_bytes());
            body.extend(data);
            body.extend(b"\r\n");
        }
        body.extend(format!("0\r\n{}\r\nGET / HTTP/1.1", trailers.concat()).into_bytes());
        if change {
            let at = usize::from(at) % body.len();
            body[at] = byte;
        }
        body
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cut_anywhere(body in bodies(), pieces in prop::collection::vec(0..20usize, 0..50)) {
        let whole = read(&body);
        prop_assert_eq!(read_cut(&body, pieces), whole);
        prop_assert_eq!(read_cut(&body, []), whole);
    }

    #[test]
    fn any_bytes(body in prop::collection::vec(any::<u8>(), 0..200), start in 0..4usize) {
        let body = [[&b""[..], b"5;", b"3\r\nabc\r\n", b"0\r\n"][start], &body[..]].concat();
        prop_assert_eq!(read_cut(&body, []), read(&body));
    }

    /// A body that we accept is accepted by another reader, which ends at the same byte: httparse reads the sizes.
    #[test]
    fn like_httparse(body in bodies()) {
        if let Ok(Some(end)) = read(&body) {
            let mut at = 0;
            loop {
                let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(&body[at..]) else {
                    return Err(TestCaseError::fail(format!("{body:?}")));
                };
                at += line + size as usize;
                if size == 0 {
                    break;
                }
                at += 2;
            }
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let trailers = httparse::parse_headers(&body[at..], &mut headers);
            let Ok(httparse::Status::Complete((trailers, _))) = trailers else { panic!("{body:?}: {trailers:?}") };
            prop_assert_eq!(at + trailers, end);
        }
    }
}
