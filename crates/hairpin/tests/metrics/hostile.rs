//! Clients that mean harm, or do it by mistake. A good one is served all the while.

use crate::client::{Client, PATIENCE, get, server};
use crate::exposition::{backend, full_status};
use crate::parser::{Format, parse};
use hairpin::metrics::MetricsServer;
use hairpin::status::{ServiceStatus, Status};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The server's counters of connections that ended out of order, up to 100 ms ago.
fn closed(address: SocketAddr, reason: &str) -> f64 {
    let page = parse(Format::Prometheus, &get(address, "/metrics").body).unwrap();
    page.value("hairpin_metrics_connections_closed_total", &[("reason", reason)])
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn serves(server: &MetricsServer) {
    assert_eq!(get(server.address(), "/metrics").code, 200);
}

#[test]
fn a_hundred_silent_connections_block_no_client() {
    let server = server(full_status());
    let mut silent = Vec::new();
    for number in 0..100 {
        let mut client = Client::connect(server.address());
        // Some say nothing at all, some begin.
        if number % 2 == 0 {
            client.send("GET /metrics HTTP/1.1\r\nHo");
        }
        silent.push(client);
        serves(&server);
    }
    // No more than 32 are kept; the others gave way, the oldest first.
    assert!(silent[0].is_closed());
    until("the oldest give way", || closed(server.address(), "gave-way") >= 68.0);
    serves(&server);
    drop(silent);
    serves(&server);
}

#[test]
fn idle_metrics_connections_are_evicted() {
    let server = server(full_status());
    let mut idle: Vec<Client> = (0..32).map(|_| Client::connect(server.address())).collect();
    for client in &mut idle {
        assert_eq!(client.get("/").expect("an answer").code, 200);
    }
    serves(&server);
    assert!(idle[0].is_closed());
}

#[test]
fn a_head_that_never_ends_is_cut_off() {
    let server = server(full_status());
    let mut silent = Client::connect(server.address());
    let mut half = Client::connect(server.address());
    half.send("GET /metrics HTTP/1.1\r\n");
    let mut dripping = Client::connect(server.address());
    dripping.send("GET /metrics HTTP/1.1\r\n");
    let deadline = Instant::now() + PATIENCE;
    // However often it sends another byte: the whole head has 5 s.
    while dripping.send("a") {
        assert!(Instant::now() < deadline, "it may go on for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(silent.is_closed() && half.is_closed());
    until("they are counted", || closed(server.address(), "timeout") >= 3.0);
}

#[test]
fn big_heads_are_refused() {
    let server = server(full_status());
    let big = "x".repeat(1 << 20);
    let many: String = (0..1000).map(|number| format!("a{number}: b\r\n")).collect();
    for (head, code) in [
        (format!("GET /metrics HTTP/1.1\r\nHost: h\r\nCookie: {big}\r\n\r\n"), 431),
        (format!("GET /{big} HTTP/1.1\r\nHost: h\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {}\r\n\r\n", &big[..20 << 10]), 431),
        (big.clone(), 431),
        (format!("GET / HTTP/1.1\r\nHost: h\r\n{many}\r\n"), 431),
    ] {
        let mut client = Client::connect(server.address());
        client.send(&head);
        // The server hangs up while the rest is under way, which may cost the client the answer.
        if let Some(response) = client.response(false) {
            assert_eq!(response.code, code, "{}", &head[..40]);
        }
        assert!(client.is_closed());
        serves(&server);
    }
    let mut fits = Client::connect(server.address());
    fits.send(format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {}\r\n\r\n", &big[..8 << 10]));
    assert_eq!(fits.response(false).expect("an answer").code, 200);
}

#[test]
fn garbage_is_refused() {
    let server = server(full_status());
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n";
    let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let noise: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let garbage: [&[u8]; 11] = [
        tls,
        http2,
        &noise,
        b"\0\0\0\0\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET  /metrics  HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n folded: a\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\0b\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nno colon\r\n\r\n",
    ];
    for bytes in garbage {
        let mut client = Client::connect(server.address());
        client.send(bytes);
        if let Some(response) = client.response(false) {
            assert_eq!(response.code, 400, "{}", String::from_utf8_lossy(bytes));
            assert!(client.is_closed());
        }
        serves(&server);
    }
    until("they are counted", || closed(server.address(), "malformed") >= 9.0);
}

#[test]
fn a_request_with_a_body_ends_its_connection() {
    let server = server(full_status());
    let hidden = "GET /status HTTP/1.1\r\nHost: h\r\n\r\n";
    for framing in [
        "Content-Length: 35",
        "Content-Length: 4000000000",
        "Transfer-Encoding: chunked",
        "Content-Length: 35\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 35",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \x0bchunked",
        "transfer-encoding: CHUNKED\r\ncontent-length: 0",
        "Content-Length: 0\r\nContent-Length: 35",
        "Content-Length: 35, 35",
        "Content-Length: +35",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999999",
        "Expect: 100-continue\r\nContent-Length: 35",
    ] {
        for method in ["GET", "POST"] {
            let mut client = Client::connect(server.address());
            client.send(format!("{method} / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n0\r\n\r\n{hidden}"));
            if let Some(response) = client.response(false) {
                assert!(matches!(response.code, 400 | 413), "{framing}: {}", response.code);
            }
            // A request hidden behind the body is never answered.
            assert!(client.is_closed(), "{framing}");
        }
        serves(&server);
    }
}

#[test]
fn clients_that_leave_early_do_no_harm() {
    let server = server(full_status());
    for number in 0..200 {
        let mut client = Client::connect(server.address());
        if number % 3 > 0 {
            client.send("GET /metrics HTTP/1.1\r\nHost: h\r\n");
        }
        if number % 3 > 1 {
            client.send("\r\n");
        }
    }
    serves(&server);
}

/// Its page has about 7 MB, more than the buffers of two sockets hold: Linux sends at most 4 MiB ahead (`tcp_wmem`).
fn large_status() -> Status {
    let backends = (0..16).map(|number| backend(&"b".repeat(64), &format!("10.0.0.{number}:80"))).collect();
    let service = ServiceStatus { name: "s".repeat(60), backends, ..ServiceStatus::default() };
    let services = (0..160).map(|number| ServiceStatus { listen: number.to_string(), ..service.clone() });
    Status { services: services.collect(), ..full_status() }
}

#[test]
fn clients_that_do_not_read_are_cut_off() {
    let server = server(large_status());
    // As many as there are places, each being answered: no client gives way to the next one.
    let mut stuck: Vec<Client> = (0..32).map(|_| Client::connect(server.address())).collect();
    // All at once: a connection whose request comes late is closed, and the answers take seconds on a busy machine.
    for client in &mut stuck {
        client.send("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    for client in &mut stuck {
        assert!(client.is_answered());
    }
    let mut refused = 0;
    until("clients that do not read are cut off", || {
        let mut client = Client::connect(server.address());
        let answer = client.get("/");
        refused += u32::from(answer.is_none());
        answer.is_some() && refused > 0
    });
    until("a whole page comes through again", || {
        let mut client = Client::connect(server.address());
        client.get("/metrics").is_some_and(|answer| answer.code == 200)
    });
    until("they are counted", || closed(server.address(), "timeout") >= 32.0);
    until("so are those they kept out", || closed(server.address(), "refused") >= f64::from(refused));
}
