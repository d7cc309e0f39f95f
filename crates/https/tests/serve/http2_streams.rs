//! Streams of HTTP/2 whose backends are written by hand.

use crate::fixture::{Site, block_on, http, server};
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use hairpin_core::l7::splice::{Fault, Refused};
use http::Request;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// A server that does this with each connection, once a head has come: what was read is given.
async fn scripted<F>(script: impl Fn(TcpStream, Vec<u8>) -> F + Clone + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let script = script.clone();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while !read.windows(4).any(|four| four == b"\r\n\r\n") {
                    if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                script(stream, read).await;
            });
        }
    });
    address
}

async fn rest_of(body: &mut h2::RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    Ok(all)
}

fn post() -> Request<()> {
    Request::post("https://web.test/").body(()).unwrap()
}

#[test]
fn response_that_stops_leaves_the_window_to_other_streams() {
    block_on(async {
        let server = scripted(|mut stream, read| async move {
            if read.starts_with(b"GET /stops") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
                sleep(Duration::from_secs(60)).await;
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        })
        .await;
        let site = Site::new(http(), server);
        let mut client = site.http2().await;
        let get = |path: &str| Request::get(format!("https://web.test{path}")).body(()).unwrap();
        let stopped = client.send_request(get("/stops"), true).unwrap().0.await.unwrap();
        let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
        assert_eq!(rest_of(&mut response.into_body()).await.unwrap(), b"ok");
        drop(stopped);
    });
}

#[test]
fn interim_responses_reach_the_client_before_it_sends() {
    block_on(async {
        let server = scripted(|mut stream, read| async move {
            assert!(String::from_utf8(read).unwrap().to_ascii_lowercase().contains("expect: 100-continue"));
            stream
                .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
                .await
                .unwrap();
            let mut body = Vec::new();
            while !body.ends_with(b"0\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        })
        .await;
        let site = Site::new(http(), server);
        let mut client = site.http2().await;
        let mut request = post();
        request.headers_mut().insert("expect", "100-continue".parse().unwrap());
        let (mut response, mut up) = client.send_request(request, false).unwrap();
        for status in [103, 100] {
            let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
            assert_eq!(interim.status(), status);
        }
        up.send_data(Bytes::from_static(b"body"), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(rest_of(&mut response.into_body()).await.unwrap(), b"ok");
    });
}

#[test]
fn body_that_does_not_come_is_no_fault_of_the_backend() {
    block_on(async {
        let server = scripted(|mut stream, _| async move {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let mut http = http();
        http.limits.body_timeout = Duration::from_millis(800);
        http.limits.response_timeout = Duration::from_millis(200);
        let site = Site::new(http, server);
        let mut client = site.http2().await;
        let (response, _up) = client.send_request(post(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 408);
        let counted = site.counted().statistics;
        assert_eq!(counted.http.refused[Refused::Slow as usize], 1);
        assert_eq!(counted.backends[0].faults[Fault::Silent as usize], 0);
    });
}

#[test]
fn silence_behind_a_whole_request_is_a_fault() {
    block_on(async {
        let server = scripted(|mut stream, _| async move {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let mut http = http();
        http.limits.response_timeout = Duration::from_millis(200);
        let site = Site::new(http, server);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(post(), false).unwrap();
        up.send_data(Bytes::from_static(b"body"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 504);
        assert_eq!(site.counted().statistics.backends[0].faults[Fault::Silent as usize], 1);
    });
}

#[test]
fn body_that_is_too_long_behind_the_response_resets_the_stream() {
    block_on(async {
        let server = scripted(|mut stream, _| async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345").await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
        .await;
        let mut http = http();
        http.limits.body_bytes_max = 1000;
        let site = Site::new(http, server);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(post(), false).unwrap();
        let mut body = response.await.unwrap().into_body();
        up.send_data(Bytes::from(vec![0; 2000]), false).unwrap();
        let error = rest_of(&mut body).await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
        assert_eq!(site.counted().statistics.http.refused[Refused::TooLarge as usize], 1);
    });
}

/// A backend that answers early and closes breaks the upload off, which is often known here before its answer is: when the runtime
/// has not heard of it yet, or its budget has run out. So there are many attempts, each a little later.
#[test]
fn early_response_is_delivered_whenever_it_comes() {
    const ATTEMPTS: u32 = 200;
    block_on(async {
        let attempts = Arc::new(AtomicU32::new(0));
        let server = scripted(move |mut stream, _| {
            let number = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                // Shorter than what the runtime's clock can tell apart.
                let until = Instant::now() + Duration::from_micros(u64::from(number * 37 % 1500));
                while Instant::now() < until {}
                let _ = stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").await;
            }
        })
        .await;
        let site = Site::new(http(), server);
        let mut client = site.http2().await;
        for number in 0..ATTEMPTS {
            client = client.ready().await.unwrap();
            let (response, mut body) = client.send_request(post(), false).unwrap();
            for _ in 0..600 {
                let _ = body.send_data(Bytes::from_static(b"sixteen bytes..."), false);
            }
            let _ = body.send_data(Bytes::new(), true);
            assert_eq!(response.await.unwrap().status(), 413, "attempt {number}");
        }
    });
}

#[test]
fn silent_request_goes_on_while_its_response_moves() {
    block_on(async {
        let server = scripted(|mut stream, _| async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n").await.unwrap();
            for _ in 0..10 {
                sleep(Duration::from_millis(100)).await;
                stream.write_all(b"x").await.unwrap();
            }
            sleep(Duration::from_secs(60)).await;
        })
        .await;
        let mut http = http();
        http.limits.body_timeout = Duration::from_millis(400);
        http.limits.response_timeout = Duration::from_millis(400);
        let site = Site::new(http, server);
        let mut client = site.http2().await;
        let (response, _up) = client.send_request(post(), false).unwrap();
        assert_eq!(rest_of(&mut response.await.unwrap().into_body()).await.unwrap(), b"xxxxxxxxxx");
    });
}

#[test]
fn silent_response_goes_on_while_its_request_moves() {
    block_on(async {
        let server = scripted(|mut stream, _| async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await.unwrap();
            let mut body = Vec::new();
            while !body.ends_with(b"0\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0);
            }
            stream.write_all(b"ok").await.unwrap();
        })
        .await;
        let mut http = http();
        http.limits.body_timeout = Duration::from_millis(400);
        http.limits.response_timeout = Duration::from_millis(400);
        let site = Site::new(http, server);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(post(), false).unwrap();
        let response = response.await.unwrap();
        for _ in 0..10 {
            sleep(Duration::from_millis(100)).await;
            up.send_data(Bytes::from_static(b"x"), false).unwrap();
        }
        up.send_data(Bytes::new(), true).unwrap();
        assert_eq!(rest_of(&mut response.into_body()).await.unwrap(), b"ok");
    });
}

#[test]
fn unsent_body_goes_to_another_connection() {
    block_on(async {
        // Each connection gets one response, and is closed by the next request.
        let server = scripted(|mut stream, read| async move {
            let mut body = read;
            while !body.ends_with(b"0\r\n\r\n") && body.starts_with(b"PUT") {
                if stream.read_buf(&mut body).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            let _ = stream.read(&mut [0; 10]).await;
        })
        .await;
        let site = Site::new(http(), server);
        let mut client = site.http2().await;
        let first = client.send_request(Request::get("https://web.test/").body(()).unwrap(), true).unwrap().0;
        assert_eq!(rest_of(&mut first.await.unwrap().into_body()).await.unwrap(), b"ok");
        let request = Request::put("https://web.test/").body(()).unwrap();
        let (response, mut up) = client.send_request(request, false).unwrap();
        // The second connection is there, so the request is on it.
        for _ in 0..200 {
            if site.counted().statistics.backends[0].connections == 2 {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        up.send_data(Bytes::from_static(b"body"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
        assert_eq!(site.counted().statistics.backends[0].connections, 2);
    });
}

#[test]
fn client_that_stops_in_a_body_frees_the_backend() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(post(), false).unwrap();
        up.send_data(Bytes::from_static(b"x"), false).unwrap();
        sleep(Duration::from_millis(100)).await;
        up.send_reset(h2::Reason::CANCEL);
        drop(response);
        for _ in 0..100 {
            if site.counted().statistics.http.backend_conns_now == 0 {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("the backend's connection is still there");
    });
}

/// The answer to the key of a request for a WebSocket (RFC 6455, 4.2.2).
fn accept_of(request: &str) -> String {
    let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    BASE64_STANDARD.encode(hash)
}

/// Asks for a WebSocket by HTTP/2 (RFC 8441), once the site has said that it takes such requests.
pub(crate) async fn ask_for_websocket(site: &Site, uri: &str) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let mut client = site.http2().await.ready().await.unwrap();
    while !client.is_extended_connect_protocol_enabled() {
        sleep(Duration::from_millis(10)).await;
    }
    let mut request = Request::connect(uri).body(()).unwrap();
    request.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    client.send_request(request, false).unwrap()
}

#[test]
fn websocket_with_a_wrong_accept_is_refused() {
    block_on(async {
        for accept in ["", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"] {
            let server = scripted(move |mut stream, _| async move {
                let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
                stream.write_all(format!("{head}{accept}\r\nhello").as_bytes()).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            })
            .await;
            let site = Site::new(http(), server);
            let (response, _up) = ask_for_websocket(&site, "https://web.test/chat").await;
            assert_eq!(response.await.unwrap().status(), 502, "{accept:?}");
        }
    });
}

#[test]
fn websocket_over_http2_is_a_tunnel_to_the_backend() {
    block_on(async {
        let server = scripted(|mut stream, read| async move {
            let sent = String::from_utf8(read).unwrap();
            let head = sent.to_ascii_lowercase();
            for line in ["get /chat http/1.1", "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"]
            {
                assert!(head.lines().any(|there| there == line), "{line}: {head}");
            }
            let accept = accept_of(&sent);
            let accepted = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: echo\r\n\r\nhello"
            );
            stream.write_all(accepted.as_bytes()).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
        })
        .await;
        let site = Site::new(http(), server);
        let (response, mut up) = ask_for_websocket(&site, "https://web.test/chat").await;
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["sec-websocket-protocol"], "echo");
        assert!(!response.headers().contains_key("sec-websocket-accept"));
        let mut down = response.into_body();
        assert_eq!(down.data().await.unwrap().unwrap(), "hello");
        up.send_data(Bytes::from_static(b"there"), true).unwrap();
        assert_eq!(rest_of(&mut down).await.unwrap(), b"there");
    });
}

#[test]
fn websocket_without_a_tunnel_is_no_success() {
    block_on(async {
        let mut refusing = http();
        refusing.upgrade = false;
        let site = Site::new(refusing, server().await);
        let client = site.http2().await;
        let mut client = client.ready().await.unwrap();
        let (first, _) = client.send_request(Request::get("https://web.test/").body(()).unwrap(), true).unwrap();
        first.await.unwrap();
        assert!(!client.is_extended_connect_protocol_enabled());
        // The server answers 200 to what asks it for an upgrade.
        let site = Site::new(http(), server().await);
        let (response, _up) = ask_for_websocket(&site, "https://web.test/head").await;
        assert_eq!(response.await.unwrap().status(), 502);
    });
}

#[test]
fn length_of_0_waits_for_the_end_of_the_stream() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let client = site.http2().await;
        for (pieces, is_right) in [(&[""][..], true), (&["", "", ""], true), (&["", "x"], false), (&["x"], false)] {
            let mut client = client.clone().ready().await.unwrap();
            let request = Request::post("https://web.test/head").header("content-length", "0").body(()).unwrap();
            let (response, mut up) = client.send_request(request, false).unwrap();
            for (at, piece) in pieces.iter().enumerate() {
                sleep(Duration::from_millis(50)).await;
                // The client's own h2 would refuse to send it as the last one.
                if up.send_data(Bytes::from_static(piece.as_bytes()), at + 1 == pieces.len()).is_err() {
                    break;
                }
            }
            match response.await {
                Ok(response) => assert!(is_right && response.status() == 200, "{pieces:?}"),
                Err(error) => {
                    assert!(!is_right && error.reason() == Some(h2::Reason::PROTOCOL_ERROR), "{pieces:?}: {error}")
                }
            }
        }
    });
}
