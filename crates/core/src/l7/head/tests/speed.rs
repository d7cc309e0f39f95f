//! How long reading a head takes. Said, not asserted: `cargo test --release -p hairpin-core l7::head::tests::speed --
//! --ignored --nocapture`, with httparse beside it as a limit (it finds names and values, and judges nothing).

#![expect(clippy::disallowed_types, reason = "not the data plane, but how long it takes")]

use super::*;
use std::hint::black_box;
use std::println;
use std::time::Instant;

const WRK: &str = "GET /1k HTTP/1.1\r\nHost: 192.0.2.10:8080\r\nUser-Agent: wrk/4.1.0\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n";

const BROWSER: &str = "GET /articles/2026/load-balancing?page=2&sort=newest HTTP/1.1\r\n\
    Host: www.hairpin.example\r\n\
    Connection: keep-alive\r\n\
    Cache-Control: max-age=0\r\n\
    sec-ch-ua: \"Chromium\";v=\"142\", \"Not_A Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    Upgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: navigate\r\n\
    Referer: https://www.hairpin.example/articles/\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=all\r\n\r\n";

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.26.3\r\nDate: Sun, 22 Nov 2026 09:00:00 GMT\r\n\
    Content-Type: text/html; charset=utf-8\r\nContent-Length: 1024\r\nConnection: keep-alive\r\n\
    ETag: \"6740d2a0-400\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// Nanoseconds a call takes, the best of many rounds.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    // Short rounds, so that some are not interrupted.
    const CALLS: u32 = 1000;
    let turn = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..2000).map(turn).fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn heads() {
    for (name, text) in [("wrk's request", WRK), ("a browser's request", BROWSER)] {
        let bytes = text.as_bytes();
        let ours = nanoseconds(|| assert!(matches!(request(black_box(bytes), &BOUNDS), Ok(ParseStatus::Complete(_)))));
        let theirs = nanoseconds(|| {
            let mut headers = [httparse::EMPTY_HEADER; 100];
            assert!(
                httparse::Request::new(&mut headers).parse(black_box(bytes)).is_ok_and(|status| status.is_complete())
            );
        });
        let fields = read(text).fields.len();
        println!("{name}, {} bytes, {fields} fields: {ours:.0} ns; httparse {theirs:.0} ns", bytes.len());
    }
    let bytes = RESPONSE.as_bytes();
    let ours = nanoseconds(|| {
        assert!(matches!(response(black_box(bytes), &BOUNDS, Method::Get), Ok(ParseStatus::Complete(_))))
    });
    println!("nginx's response, {} bytes, 7 fields: {ours:.0} ns", bytes.len());
}
