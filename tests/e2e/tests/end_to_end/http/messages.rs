//! Messages of every form: versions, methods, bodies of all kinds, pipelines, one client asking different backends.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, ROUTES, WEB, Which, missing};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, end, vip};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn tests(networks: &Arc<HttpNetworks>, which: Which) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, which, body);
    vec![
        test("curl: HTTP/1.0 and 1.1, ranges, HEAD", curl),
        test("requests follow large responses", large),
        test("wrk has no errors", wrk),
        test("ab has no errors", ab),
        test("one connection, two groups in turn", alternating),
        test("pipelined requests are answered in order", pipelined),
        test("a head in single bytes", dribbled),
        test("every kind of response", responses),
        test("HTTP/1.0 closes unless kept alive", old),
        test("IPv6", version_6),
        test("one port of a client's, again and again", same_port),
    ]
}

fn curl(net: &mut HttpNetwork) -> Result<()> {
    let file = net.topology.scratch.file("curl");
    let out = file.display().to_string();
    let page = net.page("128k")?;
    for version in ["--http1.0", "--http1.1"] {
        net.curl(WEB, "/128k", &[version, "--output", &out])?;
        ensure!(std::fs::read(&file)? == page, "{version}: other bytes");
    }
    net.curl(WEB, "/128k", &["--range", "1000-99999", "--output", &out])?;
    ensure!(std::fs::read(&file)? == page[1000..=99_999], "a range is other bytes");
    let head = net.curl(WEB, "/128k", &["--head"])?;
    ensure!(head.contains(&format!("Content-Length: {}", page.len())), "HEAD is answered {head}");
    // One connection: a head, a page, a range, a page.
    let url = net.url(WEB, "/128k");
    let text =
        net.curl(WEB, "/1k", &["--output", &out, "--write-out", "%{num_connects}", &url, "--output", "/dev/null"])?;
    ensure!(text == "10", "two pages took these connections: {text}");
    Ok(())
}

fn large(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(WEB)?;
    for name in ["10m", "1k", "10m", "128k", "10m", "1k"] {
        let answer =
            connection.get(name, false, 6 * PATIENCE).with_context(|| format!("{name}, one after the other"))?;
        ensure!(answer.status == 200 && answer.body == net.page(name)?, "{name} arrived changed");
    }
    Ok(())
}

fn wrk(net: &mut HttpNetwork) -> Result<()> {
    let target = end(vip(Family::V4), WEB);
    for (page, connections, close) in [("1k", 64, false), ("1k", 64, true), ("128k", 32, false)] {
        let options = WrkOptions { page, connections, duration: Duration::from_secs(2), close };
        let wrk = load::wrk(&net.topology, &[target.clone(), target.clone()], &options)?;
        ensure!(wrk.requests > 100, "{options:?}: only {} answers", wrk.requests);
        ensure!(wrk.errors == 0, "{options:?}: {wrk:?}");
    }
    Ok(())
}

fn ab(net: &mut HttpNetwork) -> Result<()> {
    if let Some(why) = missing("ab") {
        crate::lane::skip(why);
        return Ok(());
    }
    for keep in [&["-k"][..], &[]] {
        let mut ab = net.topology.client.command("ab");
        ab.args(["-q", "-s", "20", "-n", "2000", "-c", "50"]).args(keep).arg(net.url(WEB, "/1k"));
        let text = command::output(&mut ab)?;
        let number = |label: &str| text.lines().find_map(|line| line.strip_prefix(label)).map(str::trim);
        ensure!(number("Complete requests:") == Some("2000"), "ab {keep:?}: {text}");
        ensure!(number("Failed requests:") == Some("0"), "ab {keep:?}: {text}");
        ensure!(number("Non-2xx responses:").is_none(), "ab {keep:?}: {text}");
    }
    Ok(())
}

/// The service that a path leads to.
fn target(i: usize) -> (String, &'static str) {
    match i % 3 {
        0 => (format!("/{i}"), "one"),
        1 => (format!("/two/{i}"), "two"),
        _ => (format!("/{i}.png"), "three"),
    }
}

fn alternating(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(ROUTES)?;
    for i in 0..300 {
        let (path, server) = target(i);
        let body = "x".repeat(i % 7 * 300);
        let request = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        connection.send(request.as_bytes(), PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("request {i}"))?;
        ensure!(answer.header("X-Server") == Some(server), "request {i} was answered by {:?}", answer.head());
        ensure!(answer.text().starts_with(&format!("POST {path} HTTP/1.1\r\n")), "request {i}: {}", answer.text());
        let body_was = answer.header("X-Body").and_then(|text| text.split_once(':')).map(|(length, _)| length);
        ensure!(body_was == Some(&body.len().to_string()), "request {i} of {} had {body_was:?}", body.len());
    }
    Ok(())
}

fn pipelined(net: &mut HttpNetwork) -> Result<()> {
    const REQUESTS: usize = 60;
    let all: String = (0..REQUESTS).map(|i| format!("GET {} HTTP/1.1\r\nHost: test\r\n\r\n", target(i).0)).collect();
    let mut connection = net.connect(ROUTES)?;
    connection.send(all.as_bytes(), PATIENCE)?;
    for i in 0..REQUESTS {
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("pipelined request {i}"))?;
        let (path, server) = target(i);
        ensure!(answer.header("X-Server") == Some(server), "request {i} was answered by {:?}", answer.head());
        ensure!(answer.text().starts_with(&format!("GET {path} ")), "answer {i} is to {}", answer.text());
    }
    Ok(())
}

fn dribbled(net: &mut HttpNetwork) -> Result<()> {
    let request = b"POST /two/x HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5;a=\"b\"\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: t\r\n\r\n";
    let mut connection = net.connect(ROUTES)?;
    for _ in 0..2 {
        for byte in request {
            connection.send(&[*byte], PATIENCE)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = connection.answer(false, PATIENCE)?;
        ensure!(answer.header("X-Server") == Some("two"), "{}", answer.head());
        ensure!(answer.header("X-Body").is_some_and(|body| body.starts_with("11:")), "{}", answer.head());
    }
    Ok(())
}

fn responses(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(PLAIN)?;
    let mut ask = |method: &str, path: &str| -> Result<_> {
        connection.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes(), PATIENCE)?;
        let mut answers = vec![];
        loop {
            let answer = connection.answer(method == "HEAD", PATIENCE).with_context(|| format!("{method} {path}"))?;
            let is_last = answer.status >= 200;
            answers.push(answer);
            if is_last {
                return Ok(answers);
            }
        }
    };
    for round in 0..3 {
        for (method, path, statuses, body) in [
            ("GET", "/chunked", &[200][..], true),
            ("HEAD", "/a", &[200], false),
            ("GET", "/a", &[200], true),
            ("HEAD", "/chunked", &[200], false),
            ("GET", "/status/204", &[204], false),
            ("GET", "/status/304", &[304], false),
            ("GET", "/hints", &[103, 200], true),
            ("OPTIONS", "/a", &[200], true),
            ("GET", "/status/404", &[404], true),
            ("PATCH", "/a", &[200], true),
            ("GET", "/status/500", &[500], true),
            ("DELETE", "/a", &[200], true),
        ] {
            let answers = ask(method, path)?;
            let had: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
            ensure!(had == statuses, "round {round}, {method} {path}: {had:?}");
            let last = &answers[answers.len() - 1];
            let expected = if body { format!("{method} {path} HTTP/1.1\r\n") } else { String::new() };
            ensure!(last.text().starts_with(&expected), "{method} {path} was answered {:?}", last.text());
            ensure!(last.body.is_empty() != body, "{method} {path} was answered with {} bytes", last.body.len());
        }
    }
    // A response that ends with its connection.
    let answer = net.fetch(PLAIN, "/until-close", "")?;
    ensure!(answer.text().starts_with("GET /until-close "), "{:?}", answer.text());
    // OPTIONS of the server as a whole, an absolute target.
    let answer = net.ask(PLAIN, "OPTIONS * HTTP/1.1\r\nHost: test\r\n\r\n")?;
    ensure!(answer.text().starts_with("OPTIONS * HTTP/1.1"), "{:?}", answer.text());
    let answer = net.ask(PLAIN, "GET http://other.example/a?b HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let text = answer.text();
    ensure!(text.contains("\r\nHost: other.example\r\n") && !text.contains("test"), "absolute form became {text:?}");
    Ok(())
}

fn old(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(WEB)?;
    connection.send(b"GET /1k HTTP/1.0\r\n\r\n", PATIENCE)?;
    let answer = connection.answer(false, PATIENCE)?;
    ensure!(answer.body == net.page("1k")?, "other bytes");
    ensure!(connection.rest(PATIENCE)?.is_empty(), "something follows");
    let mut connection = net.connect(WEB)?;
    for _ in 0..3 {
        connection.send(b"GET /1k HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", PATIENCE)?;
        let answer = connection.answer(false, PATIENCE)?;
        ensure!(answer.body == net.page("1k")?, "other bytes");
    }
    Ok(())
}

fn version_6(net: &mut HttpNetwork) -> Result<()> {
    let target = end(vip(Family::V6), WEB);
    for page in ["1k", "10m"] {
        let got = load::curl(&net.topology.client, &net.topology, &target, page, "v6")?;
        ensure!(std::fs::read(got.body)? == net.page(page)?, "{page} arrived changed");
    }
    Ok(())
}

/// The numbers of a connection are near those of the one before it between the same ends, which Hairpin still remembers.
fn same_port(net: &mut HttpNetwork) -> Result<()> {
    let page = net.page("1k")?;
    inside::run(&net.topology.client, move || {
        let (to, start) = (SocketAddr::new(vip(Family::V4), WEB), Instant::now());
        for i in 0..20 {
            let mut stream = from_port(29_999, to).with_context(|| format!("connection {i}"))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"GET /1k HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
            let mut got = Vec::new();
            // Hairpin closes first, so that the port is free at once.
            stream.read_to_end(&mut got).with_context(|| format!("connection {i}"))?;
            ensure!(got.ends_with(&page), "connection {i} got other bytes");
        }
        // Taken for the old one, each would wait until that is forgotten.
        ensure!(start.elapsed() < PATIENCE, "20 connections took {:?}", start.elapsed());
        Ok(())
    })
}

/// Connects from a port, as soon as it is free.
fn from_port(port: u16, to: SocketAddr) -> Result<TcpStream> {
    let start = Instant::now();
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
        match socket.connect(&to.into()) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result.map(|()| socket.into()).context("connect"),
        }
    }
}
