//! The cost of deciding and editing; figures, not assertions: `cargo test --release -p hairpin-core l7::edit::tests::speed
//! -- --ignored --nocapture`
#![expect(clippy::disallowed_types, reason = "not the data plane, but how long it takes")]

use super::super::super::route::{Decision, decide};
use super::*;
use std::hint::black_box;
use std::time::Instant;

const WRK: &str = "GET /index.html HTTP/1.1\r\nHost: web.example\r\nUser-Agent: wrk\r\nAccept: */*\r\n\r\n";
const BROWSER: &str = "GET /static/js/app.3f2a.js?v=12 HTTP/1.1\r\nHost: www.web.example\r\nConnection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"141\", \"Not?A_Brand\";v=\"8\"\r\nsec-ch-ua-mobile: ?0\r\n\
    sec-ch-ua-platform: \"Linux\"\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/141.0.0.0 Safari/537.36\r\nAccept: */*\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\n\
    Sec-Fetch-Dest: script\r\nReferer: https://www.web.example/\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-US,en;q=0.9\r\nCookie: session=0123456789abcdef; lb=0123456789abcdef\r\n\r\n";
const NGINX: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.26.3\r\nDate: Sun, 22 Nov 2026 09:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 1024\r\nLast-Modified: Sun, 22 Nov 2026 08:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"692174a0-400\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// Says how long `what` takes: the best of many rounds.
fn time(name: &str, mut what: impl FnMut()) {
    const TIMES: u32 = 10_000;
    let best = (0..50).map(|_| {
        let start = Instant::now();
        (0..TIMES).for_each(|_| what());
        start.elapsed() / TIMES
    });
    std::println!("{name}: {:?}", best.min().unwrap());
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let mut http = plain();
    http.forwarded = Forwarded { x_for: true, x_proto: true, x_host: true, ..Forwarded::default() };
    let prefixes = ["/api/", "/img/", "/admin/", "/"].map(|prefix| {
        let paths = [PathPattern::prefix(prefix).unwrap()].into();
        Route { conditions: Conditions { paths, ..Conditions::default() }, ..route() }
    });
    http.routes = prefixes.into();
    let facts = facts();
    let mut out = [0; 4096];
    for (name, head) in [("wrk", WRK), ("browser", BROWSER)] {
        let request = parsed(head.as_bytes());
        let client = &facts.client.address;
        time(&std::format!("{name}: parse"), || drop(black_box(parsed(black_box(head.as_bytes())))));
        time(&std::format!("{name}: decide"), || {
            black_box(decide(black_box(&http), black_box(&request), client));
        });
        let Decision::Take(route) = decide(&http, &request, client) else { panic!("no route") };
        time(&std::format!("{name}: request head"), || {
            black_box(request_head(&mut out, black_box(&request), &http, route, &facts)).unwrap();
        });
    }
    let response = answered(NGINX.as_bytes());
    time("nginx: response head as it is", || {
        black_box(response_head(&mut out, black_box(&response), Version::Http11, &http, &http.routes[0], &facts))
            .unwrap();
    });
    http.server_timing = true;
    time("nginx: response head with Server-Timing", || {
        black_box(response_head(&mut out, black_box(&response), Version::Http11, &http, &http.routes[0], &facts))
            .unwrap();
    });
    let disguised = parsed(b"GET /a/%2e%2e/%61dmin/x HTTP/1.1\r\nHost: a\r\n\r\n");
    time("disguised path: decide", || {
        black_box(decide(black_box(&http), black_box(&disguised), &facts.client.address));
    });
}
