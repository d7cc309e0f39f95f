//! Requests that no honest client sends, clients that are slow on purpose, backends that fail: statuses, and nothing gets
//! through.

use super::http_network::{DEAD, HALF_DEAD, HttpNetwork, HttpNetworks, LIMITS, PATIENCE, PLAIN, Which};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::differential::{self, Differential};
use libtest_mimic::Trial;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        crate::network::test("http: differences from nginx and HAProxy are justified", || {
            differences(Differential::Http1, include_str!("../../../../../docs/guide/http-differences.md"))
        }),
        crate::network::test("https: differences in HTTP/2 are justified", || {
            differences(Differential::Http2, include_str!("../../../../../docs/guide/http2-differences.md"))
        }),
        test("framing that can be read in two ways is refused", framing),
        test("bad chunks end the connection", chunks),
        test("limits of heads and bodies: 413, 414, 431", limits),
        test("slow heads and bodies: 408", slow),
        test("a silent backend: 504; one that closes: 502", failing),
        test("dead backends: 502, or another one", dead),
        test("requests on one connection are counted", counted),
    ]
}

/// Requests that are all answered with 400, whatever follows.
const AMBIGUOUS: &[&str] = &[
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5x\r\n\r\nhello",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: y\rz\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
    "GET /\r\nHost: a\r\n\r\n",
    "GE(T / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
];

fn framing(net: &mut HttpNetwork) -> Result<()> {
    for request in AMBIGUOUS {
        let mut connection = net.connect(PLAIN)?;
        connection.send(format!("{request}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(), PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("{request:?}"))?;
        ensure!(answer.status == 400, "{request:?} was answered {}", answer.head());
        let rest = connection.rest(PATIENCE).with_context(|| format!("{request:?}"))?;
        ensure!(rest.is_empty(), "{request:?}: {:?} follows", String::from_utf8_lossy(&rest));
        // The same request behind a good one.
        let mut connection = net.connect(PLAIN)?;
        connection.send(format!("GET /good HTTP/1.1\r\nHost: a\r\n\r\n{request}").as_bytes(), PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("a good one before {request:?}"))?;
        ensure!(answer.status == 200, "a good one before {request:?} was answered {}", answer.head());
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("{request:?}, behind a good one"))?;
        ensure!(answer.status == 400, "{request:?}, behind a good one, was answered {}", answer.head());
    }
    let heard = net.recorders[0].heard();
    ensure!(heard.len() == AMBIGUOUS.len(), "{} requests arrived of {}", heard.len(), AMBIGUOUS.len());
    ensure!(heard.iter().all(|heard| heard.line() == "GET /good HTTP/1.1"), "something got through: {heard:?}");
    for (request, status) in [
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", 501),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: a miracle\r\n\r\n", 417),
    ] {
        let answer = net.ask(PLAIN, request)?;
        ensure!(answer.status == status, "{request:?} was answered {}", answer.head());
    }
    Ok(())
}

fn chunks(net: &mut HttpNetwork) -> Result<()> {
    for bad in [
        "x\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5 \r\nhello!!\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "ffffffffffffffffff\r\nhello",
        "5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
    ] {
        let mut connection = net.connect(PLAIN)?;
        let head = "POST /bad HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        connection.send(format!("{head}{bad}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(), PATIENCE)?;
        let rest = connection.rest(PATIENCE).with_context(|| format!("{bad:?}"))?;
        let text = String::from_utf8_lossy(&rest);
        ensure!(rest.is_empty() || text.starts_with("HTTP/1.1 400"), "{bad:?} was answered {text}");
    }
    let heard = net.recorders[0].heard();
    ensure!(heard.is_empty(), "something got through: {heard:?}");
    Ok(())
}

fn limits(net: &mut HttpNetwork) -> Result<()> {
    let many = "X: y\r\n".repeat(21);
    let large = format!("X: {}\r\n", "y".repeat(1100));
    for (target, fields, status) in [
        ("/".to_owned(), many.as_str(), 431),
        ("/".to_owned(), large.as_str(), 431),
        (format!("/{}", "a".repeat(300)), "", 414),
        ("/".to_owned(), "", 200),
    ] {
        let answer = net.fetch(LIMITS, &target, fields)?;
        ensure!(answer.status == status, "{target:.20} {fields:.20} was answered {}", answer.head());
    }
    // A head without an end.
    let mut connection = net.connect(LIMITS)?;
    connection.send("GET / HTTP/1.1\r\nX: y".repeat(100).as_bytes(), PATIENCE)?;
    let answer = connection.answer(false, PATIENCE)?;
    ensure!(matches!(answer.status, 400 | 431), "{}", answer.head());
    let body = "x".repeat(1001);
    for (length, status) in [(1000, 200), (1001, 413)] {
        let body = &body[..length];
        for framed in [
            format!("Content-Length: {length}\r\n\r\n{body}"),
            format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
        ] {
            let answer = net.ask(LIMITS, format!("PUT / HTTP/1.1\r\nHost: a\r\n{framed}"))?;
            ensure!(answer.status == status, "a body of {length} bytes was answered {}", answer.head());
        }
    }
    let answer = net.fetch(LIMITS, "/", "Connection: Upgrade\r\nUpgrade: echo\r\n")?;
    ensure!(answer.status == 501, "an upgrade was answered {}", answer.head());
    Ok(())
}

fn slow(net: &mut HttpNetwork) -> Result<()> {
    let start = Instant::now();
    let mut connection = net.connect(LIMITS)?;
    for byte in b"GET / HTTP/1.1" {
        if connection.send(&[*byte], PATIENCE).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let answer = connection.answer(false, PATIENCE).context("a slow head")?;
    ensure!(answer.status == 408, "a slow head was answered {}", answer.head());
    ensure!(start.elapsed() < PATIENCE, "after {:?}", start.elapsed());
    let mut connection = net.connect(LIMITS)?;
    connection.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello", PATIENCE)?;
    let answer = connection.answer(false, PATIENCE).context("a slow body")?;
    ensure!(answer.status == 408, "a slow body was answered {}", answer.head());
    // A connection on which nothing comes any more.
    let mut connection = net.connect(LIMITS)?;
    connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", PATIENCE)?;
    ensure!(connection.answer(false, PATIENCE)?.status == 200);
    let rest = connection.rest(PATIENCE).context("an idle connection")?;
    ensure!(rest.is_empty(), "an idle connection was told {:?}", String::from_utf8_lossy(&rest));
    Ok(())
}

fn failing(net: &mut HttpNetwork) -> Result<()> {
    let answer = net.fetch(LIMITS, "/silent", "")?;
    ensure!(answer.status == 504, "{}", answer.head());
    let answer = net.ask(PLAIN, "POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")?;
    ensure!(answer.status == 502, "{}", answer.head());
    let answer = net.fetch(PLAIN, "/reset", "")?;
    ensure!(answer.status == 502, "{}", answer.head());
    Ok(())
}

fn dead(net: &mut HttpNetwork) -> Result<()> {
    let answer = net.fetch(DEAD, "/", "")?;
    ensure!(answer.status == 502, "{}", answer.head());
    for i in 0..10 {
        let answer = net.fetch(HALF_DEAD, "/", "").with_context(|| format!("request {i}"))?;
        ensure!(answer.header("X-Server") == Some("one"), "request {i}: {}", answer.head());
    }
    Ok(())
}

fn counted(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(LIMITS)?;
    for i in 1..=3 {
        connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("request {i}"))?;
        let close = answer.header("Connection").is_some_and(|options| options.eq_ignore_ascii_case("close"));
        ensure!(answer.status == 200 && close == (i == 3), "request {i}: {}", answer.head());
    }
    ensure!(connection.rest(PATIENCE)?.is_empty(), "something follows");
    Ok(())
}

/// Nothing ambiguous gets to a backend, every difference has a reason, and Hairpin does what the page says.
fn differences(protocol: Differential, document: &str) -> Result<()> {
    for comparison in differential::compare(protocol)? {
        let (name, row) = (&comparison.name, differential::row(&comparison));
        if let Some(fault) = &comparison.fault {
            bail!("{name} has become something else at the backend: {fault}; {comparison:?}");
        }
        if comparison.is_same() {
            continue;
        }
        let reason = differential::justification(protocol, name);
        ensure!(reason.is_some(), "no reason is given for {name}: {comparison:?}");
        ensure!(document.contains(&row), "the page of {protocol:?} does not say {row} (hairpin-bench differential)");
    }
    Ok(())
}
