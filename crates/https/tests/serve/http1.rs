//! Clients that speak HTTP/1.1.

use crate::fixture::{Site, block_on, http, pattern, server};
use hairpin_core::l7::splice::Refused;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

pub(crate) type Stream = TlsStream<TcpStream>;

/// Reads a response with a length: its head and body.
async fn response(stream: &mut Stream) -> (String, Vec<u8>) {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
    };
    let head = String::from_utf8(read[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let length: usize = length.unwrap_or(0);
    while read.len() < end + length {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    assert_eq!(read.len(), end + length, "nothing behind it");
    (head, read.split_off(end))
}

pub(crate) async fn ask(stream: &mut Stream, request: &str) -> (String, Vec<u8>) {
    stream.write_all(request.as_bytes()).await.unwrap();
    response(stream).await
}

/// All until the client's connection is closed.
async fn rest(stream: &mut Stream) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    read
}

#[test]
fn request_reaches_its_backend_with_the_fields_of_a_proxy() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        let (head, body) = ask(&mut stream, "GET /head?a=b HTTP/1.1\r\nHost: web.test\r\nX: y\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let body = String::from_utf8(body).unwrap();
        for line in
            ["GET /head?a=b", "host: web.test", "x: y", "x-forwarded-for: 127.0.0.1", "x-forwarded-proto: https"]
        {
            assert!(body.lines().any(|said| said == line), "{line}: {body}");
        }
        let counted = site.counted().statistics;
        assert_eq!((counted.handshakes, counted.http.requests, counted.services[0].requests), (1, 1, 1));
        assert_eq!((counted.http.responses[1], counted.backends[0].established), (1, 1));
    });
}

#[test]
fn requests_of_one_connection_share_a_backend_connection() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        for length in [0, 1, 1000, 100_000, 3_000_000, 10] {
            let request = format!("GET /bytes/{length} HTTP/1.1\r\nHost: web.test\r\n\r\n");
            let (_, body) = ask(&mut stream, &request).await;
            assert!(body == pattern(length), "{length}");
        }
        let counted = site.counted().statistics;
        assert_eq!((counted.http.requests, counted.http.reused, counted.backends[0].connections), (6, 5, 1));
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        let all: String = ["GET /bytes/3", "POST /echo", "GET /bytes/7"]
            .map(|line| format!("{line} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", line.len() % 2 * 5))
            .concat();
        let all = all.replace("Content-Length: 0\r\n", "");
        let all = all
            .replace("POST /echo HTTP/1.1\r\nHost: a\r\n", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n");
        let all = all.replacen("Content-Length: 5\r\n\r\n", "Content-Length: 5\r\n\r\nhello", 1);
        stream.write_all(all.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        while read.windows(4).filter(|four| four == b"\r\n\r\n").count() < 3 {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
        }
        let text = String::from_utf8_lossy(&read);
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
        assert!(text.contains("hello"), "{text}");
    });
}

#[test]
fn bodies_go_up_with_a_length_and_in_chunks() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        let data = pattern(2_000_000);
        let (mut read_half, mut write_half) = tokio::io::split(stream);
        let sent = data.clone();
        let upload = tokio::spawn(async move {
            let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", sent.len());
            write_half.write_all(head.as_bytes()).await.unwrap();
            write_half.write_all(&sent).await.unwrap();
            write_half
                .write_all(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await
                .unwrap();
            for piece in sent.chunks(70_000) {
                write_half.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await.unwrap();
                write_half.write_all(piece).await.unwrap();
                write_half.write_all(b"\r\n").await.unwrap();
            }
            write_half.write_all(b"0\r\n\r\n").await.unwrap();
            write_half
        });
        let mut read = Vec::new();
        let mut bodies = 0;
        while bodies < 2 {
            assert_ne!(read_half.read_buf(&mut read).await.unwrap(), 0);
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n")
                && read.len() >= end + 4 + data.len()
            {
                assert!(read[end + 4..][..data.len()] == data);
                read.drain(..end + 4 + data.len());
                bodies += 1;
            }
        }
        stream = read_half.unsplit(upload.await.unwrap());
        let (head, _) = ask(&mut stream, "GET /bytes/1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert!(head.contains("Connection: close\r\n"), "{head}");
        assert!(rest(&mut stream).await.is_empty());
    });
}

#[test]
fn chunked_response_passes_with_its_trailers() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut stream = site.connect(&[]).await;
        let request = "GET /chunked/5000 HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let text = rest(&mut stream).await;
        assert!(text.ends_with(b"0\r\n\r\n") || text.ends_with(b"x-sum: 5000\r\n\r\n"));
        assert!(text.windows(28).any(|some| some.eq_ignore_ascii_case(b"transfer-encoding: chunked\r\n")));
    });
}

#[test]
fn malformed_requests_are_refused_and_counted() {
    block_on(async {
        let site = Site::new(http(), server().await);
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
            ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", "505"),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "501"),
            ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "400"),
        ] {
            let mut stream = site.connect(&[b"http/1.1"]).await;
            let (head, _) = ask(&mut stream, request).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
        }
        let refused = site.counted().statistics.http.refused;
        assert_eq!((refused[Refused::Malformed as usize], refused[Refused::Tunnel as usize]), (4, 1));
    });
}

#[test]
fn backend_that_refuses_is_skipped_and_none_is_502() {
    block_on(async {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let site = Site::with(http(), &[closed, server().await], |_| {});
        let mut stream = site.connect(&[]).await;
        for _ in 0..4 {
            let (head, _) = ask(&mut stream, "GET /bytes/1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
        assert!(site.counted().statistics.http.retries >= 1);
        let site = Site::new(http(), closed);
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        let counted = site.counted().statistics;
        assert_eq!(counted.http.refused[Refused::Unreachable as usize], 1);
        assert_eq!(counted.backends[0].failed, 3);
    });
}

#[test]
fn upgraded_connection_is_a_tunnel() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut read).await.unwrap();
            }
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nfirst";
            stream.write_all(answer).await.unwrap();
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let site = Site::new(http(), address);
        let mut stream = site.connect(&[]).await;
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let data = pattern(300_000);
        let (mut read, mut write) = tokio::io::split(stream);
        let sent = data.clone();
        tokio::spawn(async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
            std::future::pending::<()>().await;
        });
        let mut all = Vec::new();
        read.read_to_end(&mut all).await.unwrap();
        let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        assert!(all.starts_with(b"HTTP/1.1 101 "));
        assert!(all[end..] == [&b"first"[..], &data].concat()[..]);
    });
}

/// A server whose every connection is given to `serve`.
async fn raw<F, Fut>(serve: F) -> std::net::SocketAddr
where
    F: Fn(TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

async fn head_of(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_ne!(stream.read(&mut byte).await.unwrap(), 0);
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

#[test]
fn slow_upload_behind_a_100_outlives_the_response_timeout() {
    block_on(async {
        let server = raw(|mut stream| async move {
            head_of(&mut stream).await;
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            let mut body = [0; 10];
            stream.read_exact(&mut body).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        })
        .await;
        let mut patient = http();
        patient.limits.response_timeout = Duration::from_millis(300);
        let site = Site::new(patient, server);
        let mut stream = site.connect(&[]).await;
        let request = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let (head, _) = response(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(80)).await;
            stream.write_all(b"x").await.unwrap();
        }
        let (head, _) = response(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    });
}

#[test]
fn client_that_never_sends_its_body_is_no_fault_of_the_backend() {
    block_on(async {
        let server = raw(|mut stream| async move {
            head_of(&mut stream).await;
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        let mut hasty = http();
        hasty.limits.response_timeout = Duration::from_millis(100);
        hasty.limits.body_timeout = Duration::from_millis(300);
        let site = Site::new(hasty, server);
        let mut stream = site.connect(&[]).await;
        let request = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let _ = response(&mut stream).await;
        let (head, _) = response(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
        assert_eq!(site.counted().statistics.backends[0].faults, [0, 0, 0]);
    });
}

#[test]
fn tunnel_ends_when_its_client_breaks_off() {
    block_on(async {
        let (ended, mut is_ended) = tokio::sync::mpsc::unbounded_channel();
        let server = raw(move |mut stream| {
            let ended = ended.clone();
            async move {
                head_of(&mut stream).await;
                let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
                ended.send(()).unwrap();
            }
        })
        .await;
        let site = Site::new(http(), server);
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").await.unwrap();
        let (head, _) = response(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // Without close_notify.
        drop(stream.into_inner().0);
        tokio::time::timeout(Duration::from_secs(2), is_ended.recv()).await.expect("the backend is told").unwrap();
    });
}

#[test]
fn response_that_breaks_off_is_not_taken_for_whole() {
    block_on(async {
        for framing in ["Content-Length: 100", "Transfer-Encoding: chunked", "X: y"] {
            let server = raw(move |mut stream| async move {
                head_of(&mut stream).await;
                let half = if framing.starts_with('T') { "5\r\nhello\r\n" } else { "hello" };
                let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{half}");
                stream.write_all(answer.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                stream.set_zero_linger().unwrap();
            })
            .await;
            let site = Site::new(http(), server);
            let mut stream = site.connect(&[]).await;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            let mut all = Vec::new();
            let ended = stream.read_to_end(&mut all).await;
            assert!(ended.is_err(), "{framing}: {}", String::from_utf8_lossy(&all));
        }
    });
}

#[test]
fn quiet_response_lives_by_the_time_of_bodies() {
    block_on(async {
        let server = raw(|mut stream| async move {
            head_of(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na").await.unwrap();
            tokio::time::sleep(Duration::from_millis(600)).await;
            stream.write_all(b"b").await.unwrap();
        })
        .await;
        let mut hasty = http();
        hasty.limits.response_timeout = Duration::from_millis(200);
        let site = Site::new(hasty, server);
        let mut stream = site.connect(&[]).await;
        let (_, body) = ask(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(body, b"ab");
    });
}

#[test]
fn kept_connection_that_its_backend_closes_costs_no_request() {
    block_on(async {
        let server = raw(|mut stream| async move {
            head_of(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na").await.unwrap();
            // Closed only when the next request is on its way.
            let _ = stream.read(&mut [0; 1]).await;
            stream.set_zero_linger().unwrap();
        })
        .await;
        let site = Site::new(http(), server);
        let mut stream = site.connect(&[]).await;
        for _ in 0..3 {
            let (head, body) = ask(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 ") && body == b"a", "{head}");
        }
        let (head, _) = ask(&mut stream, "POST / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "a POST may have been carried out: {head}");
        assert_eq!(site.counted().statistics.backends[0].faults, [0, 0, 0]);
    });
}
