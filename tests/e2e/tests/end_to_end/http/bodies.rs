//! Bodies: uploads, chunks, 100-continue, slow readers, half close, tunnels, clients that vanish.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, STICKY, WEB, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::recorder::{SUM_OF_NOTHING, letters, sum};
use hairpin_e2e::topology::{Family, vip};
use libtest_mimic::Trial;
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn tests(networks: &Arc<HttpNetworks>, which: Which) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, which, body);
    vec![
        test("a large upload arrives whole", upload),
        test("a large download arrives whole", download),
        test("uploads in chunks and after 100-continue", chunked),
        test("requests follow bodies", bodies_in_turn),
        test("uploads follow large answers", uploads_behind_answers),
        test("a client that does not read for a while", slow_reader),
        test("half close by the client", half_close),
        test("a tunnel forwards both directions", tunnel),
        test("clients that vanish leave nothing", vanish),
    ]
}

/// Bytes of the large upload and of the large download: `HAIRPIN_BODY_BYTES` (`make soak-http`).
fn body_bytes() -> Result<usize> {
    std::env::var("HAIRPIN_BODY_BYTES").map_or(Ok(100 << 20), |text| text.parse()).context("HAIRPIN_BODY_BYTES")
}

/// Longest that curl may take for a large body: at least 1 MB a second, as debug builds on a busy machine reach.
fn patience(length: usize) -> String {
    (120 + (length >> 20)).to_string()
}

fn expected(bytes: &[u8]) -> String {
    told(bytes.len(), sum(SUM_OF_NOTHING, bytes))
}

/// Length and sum of a body, as the recorder writes them.
fn told(length: usize, sum: u64) -> String {
    format!("{length}:{sum:016x}")
}

/// Writes a file of so many bytes, the page of 100 MB over and over; its length and sum.
fn write_body(net: &HttpNetwork, file: &Path, length: usize) -> Result<String> {
    let page = net.page("100m")?;
    let mut out = File::create(file)?;
    let (mut left, mut so_far) = (length, SUM_OF_NOTHING);
    while left > 0 {
        let part = &page[..left.min(page.len())];
        out.write_all(part)?;
        so_far = sum(so_far, part);
        left -= part.len();
    }
    Ok(told(length, so_far))
}

/// Length and sum of a file.
fn told_of(file: &Path) -> Result<String> {
    let mut file = File::open(file)?;
    let mut part = vec![0; 1 << 20];
    let (mut length, mut so_far) = (0, SUM_OF_NOTHING);
    loop {
        let bytes = file.read(&mut part)?;
        if bytes == 0 {
            return Ok(told(length, so_far));
        }
        length += bytes;
        so_far = sum(so_far, &part[..bytes]);
    }
}

/// Uploads a file by curl; what the backend says that it got.
fn put(net: &HttpNetwork, file: &Path, arguments: &[&str]) -> Result<String> {
    let file = file.display().to_string();
    let all = [&["--upload-file", &file, "--output", "/dev/null", "--dump-header", "-"], arguments].concat();
    let text = net.curl(PLAIN, "/upload", &all)?;
    let last = text.lines().filter_map(|line| line.strip_prefix("X-Body: ")).next_back();
    Ok(last.with_context(|| format!("no X-Body in {text}"))?.trim().to_owned())
}

fn upload(net: &mut HttpNetwork) -> Result<()> {
    let length = body_bytes()?;
    let file = net.topology.scratch.file("upload");
    let expected = write_body(net, &file, length)?;
    let got = put(net, &file, &["--header", "Expect:", "--max-time", &patience(length)])?;
    ensure!(got == expected, "{expected} arrived as {got}");
    std::fs::remove_file(file)?;
    Ok(())
}

fn download(net: &mut HttpNetwork) -> Result<()> {
    let length = body_bytes()?;
    let (page, file) = (net.topology.scratch.file("pages/large"), net.topology.scratch.file("large"));
    let expected = write_body(net, &page, length)?;
    net.curl(WEB, "/large", &["--max-time", &patience(length), "--output", &file.display().to_string()])?;
    let got = told_of(&file)?;
    ensure!(got == expected, "{expected} arrived as {got}");
    std::fs::remove_file(page)?;
    std::fs::remove_file(file)?;
    Ok(())
}

fn chunked(net: &mut HttpNetwork) -> Result<()> {
    let file = net.topology.scratch.file("pages/10m");
    let bytes = net.page("10m")?;
    for arguments in [
        &["--header", "Transfer-Encoding: chunked", "--header", "Expect:"][..],
        &["--header", "Expect: 100-continue"],
        &["--header", "Transfer-Encoding: chunked", "--header", "Expect: 100-continue"],
    ] {
        let got = put(net, &file, arguments).with_context(|| format!("{arguments:?}"))?;
        ensure!(got == expected(&bytes), "{arguments:?}: {} arrived as {got}", expected(&bytes));
    }
    Ok(())
}

/// Bodies of all sizes, in both framings, on one connection.
fn bodies_in_turn(net: &mut HttpNetwork) -> Result<()> {
    let page = net.page("10m")?;
    let mut connection = net.connect(PLAIN)?;
    for (i, length) in [0, 1, 1000, 1460, 65_536, 100_000, 3_000_000, 1, 17, 1_000_000].into_iter().enumerate() {
        let body = &page[i..i + length];
        let mut request = Vec::new();
        if i % 2 == 0 {
            request.extend(format!("POST /{i} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n").bytes());
            request.extend(body);
        } else {
            request.extend(format!("POST /{i} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").bytes());
            for part in body.chunks(1 + 777 * i) {
                request.extend(format!("{:X}\r\n", part.len()).bytes());
                request.extend(part);
                request.extend(b"\r\n");
            }
            request.extend(b"0\r\n\r\n");
        }
        connection.send(&request, PATIENCE).with_context(|| format!("body {i}"))?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("body {i} of {length} bytes"))?;
        ensure!(answer.header("X-Body") == Some(&expected(body)), "body {i} of {length} bytes: {}", answer.head());
    }
    Ok(())
}

/// Uploads on kept connections behind large exchanges, forwarded by the engine or by software: the client still uses the
/// window of the last backend. (Without a cookie the sticky service gives every request to the next one.)
fn uploads_behind_answers(net: &mut HttpNetwork) -> Result<()> {
    let page = net.page("10m")?;
    let rounds = [[(200_000, 200_000); 2], [(0, 1_000_000), (100_000, 10)], [(0, 1_000_000), (200_000, 10)]];
    for port in [PLAIN, STICKY] {
        for round in rounds {
            let mut connection = net.connect(port)?;
            for (i, (sent, asked)) in [round; 10].into_iter().flatten().enumerate() {
                let about = || format!("port {port}, request {i}: {sent} bytes, answered with {asked}");
                let method = if sent == 0 { "GET" } else { "POST" };
                let head = format!("{method} /bytes/{asked} HTTP/1.1\r\nHost: test\r\nContent-Length: {sent}\r\n\r\n");
                let body = &page[i..i + sent];
                connection.send(&[head.as_bytes(), body].concat(), PATIENCE).with_context(about)?;
                let answer = connection.answer(false, PATIENCE).with_context(about)?;
                ensure!(answer.header("X-Body") == Some(&expected(body)), "{}: {}", about(), answer.head());
                ensure!(answer.body == letters(asked).as_bytes(), "{}: other bytes are the answer", about());
            }
        }
    }
    Ok(())
}

/// Its window closes, stays closed for three seconds, and opens again.
fn slow_reader(net: &mut HttpNetwork) -> Result<()> {
    let got = inside::run(&net.topology.client, || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_recv_buffer_size(16 << 10)?;
        socket.connect(&SocketAddr::new(vip(Family::V4), WEB).into())?;
        let mut stream: std::net::TcpStream = socket.into();
        stream.write_all(b"GET /10m HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        std::thread::sleep(Duration::from_secs(3));
        let mut got = Vec::new();
        let mut part = vec![0; 512 << 10];
        loop {
            let length = stream.read(&mut part).with_context(|| format!("after {} bytes", got.len()))?;
            if length == 0 {
                return Ok(got);
            }
            // Twice more it closes on the way.
            if got.len() / (4 << 20) != (got.len() + length) / (4 << 20) {
                std::thread::sleep(Duration::from_millis(700));
            }
            got.extend_from_slice(&part[..length]);
        }
    })?;
    ensure!(got.ends_with(&net.page("10m")?), "{} bytes arrived, not those", got.len());
    Ok(())
}

fn half_close(net: &mut HttpNetwork) -> Result<()> {
    for page in ["1k", "10m"] {
        let mut connection = net.connect(WEB)?;
        connection.send(format!("GET /{page} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes(), PATIENCE)?;
        connection.finish()?;
        let answer = connection.answer(false, 3 * PATIENCE).with_context(|| format!("{page} after half close"))?;
        ensure!(answer.body == net.page(page)?, "other bytes of {page}");
        ensure!(connection.rest(PATIENCE)?.is_empty(), "something follows");
    }
    Ok(())
}

fn tunnel(net: &mut HttpNetwork) -> Result<()> {
    let page = net.page("128k")?;
    let mut connection = net.connect(PLAIN)?;
    connection.send(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", PATIENCE)?;
    let answer = connection.answer(true, PATIENCE)?;
    ensure!(answer.status == 101, "{}", answer.head());
    for part in [&page[..1], &page[..1460], &page[..], &page[7..20_000]] {
        connection.send(part, PATIENCE)?;
        ensure!(connection.bytes(part.len(), PATIENCE)? == part, "other bytes come back");
    }
    connection.finish()?;
    ensure!(connection.rest(PATIENCE)?.is_empty(), "something follows");
    Ok(())
}

fn vanish(net: &mut HttpNetwork) -> Result<()> {
    for i in 0..40 {
        let mut connection: HttpConnection = net.connect(WEB)?;
        connection.send(b"GET /10m HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
        connection.bytes(1 + 10_000 * i, PATIENCE)?;
        // Unread bytes make it a reset.
    }
    let answer = net.fetch(WEB, "/1k", "Connection: close\r\n")?;
    ensure!(answer.body == net.page("1k")?, "other bytes afterwards");
    net.until("all connections gone", |net| {
        let status = net.hairpin.status()?;
        Ok(status.service("web").context("no such service in the status")?.connections == 0)
    })
}
