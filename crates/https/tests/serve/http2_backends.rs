//! Backends that speak HTTP/2: a real server of it, and some whose streams are written by hand.

use crate::backend_tls::{ALL, Authority};
use crate::fixture::{Site, answer, block_on, http, pattern, server};
use crate::http1::ask;
use crate::http2::{body, get};
use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use hairpin_core::l7::splice::{Fault, Refused};
use hairpin_https::{BackendTls, BackendTlsOptions};
use http::{Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// The fixture's server by HTTP/2, in clear text or over TLS.
async fn http2_server(tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                server.enable_connect_protocol();
                match tls {
                    None => drop(server.serve_connection(TokioIo::new(tcp), service_fn(answer)).await),
                    Some(tls) => {
                        let Ok(stream) = tls.accept(tcp).await else { return };
                        let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
                    }
                }
            });
        }
    });
    address
}

type Asked = (Request<h2::RecvStream>, SendResponse<Bytes>);

/// A server of HTTP/2 that does this with each stream: its number in the connection, from 0, is given, too.
pub(crate) async fn scripted<F>(
    script: impl Fn(usize, Asked) -> F + Clone + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let script = script.clone();
            tokio::spawn(async move {
                let mut builder = h2::server::Builder::new();
                builder.max_concurrent_streams(10).enable_connect_protocol();
                let mut connection = builder.handshake::<_, Bytes>(tcp).await.unwrap();
                let mut number = 0;
                while let Some(Ok(asked)) = connection.accept().await {
                    tokio::spawn(script(number, asked));
                    number += 1;
                }
            });
        }
    });
    (address, connections)
}

/// A site whose only backend is this one, by HTTP/2 in clear text.
pub(crate) fn site(server: SocketAddr) -> Site {
    let site = Site::new(http(), server);
    site.set_backends(None, true);
    site
}

fn ok(respond: &mut SendResponse<Bytes>, text: &'static str) {
    let response = Response::builder().header("content-length", text.len()).body(()).unwrap();
    respond.send_response(response, false).unwrap().send_data(Bytes::from(text), true).unwrap();
}

#[test]
fn requests_of_both_protocols_reach_a_backend_by_http2() {
    block_on(async {
        let site = site(http2_server(None).await);
        let mut stream = site.connect(&[]).await;
        let (_, said) = ask(&mut stream, "GET /head?a=b HTTP/1.1\r\nHost: web.test\r\nX: y\r\nTE: gzip\r\n\r\n").await;
        let said = String::from_utf8(said).unwrap();
        for line in ["GET http://web.test/head?a=b", "x: y", "te: trailers", "x-forwarded-proto: https"] {
            assert!(said.lines().any(|there| there == line), "{line}: {said}");
        }
        assert!(!said.contains("host: "), "{said}");
        let mut client = site.http2().await;
        let (all, _) = body(client.send_request(get("/head?c=d"), true).unwrap().0.await.unwrap()).await;
        let said = String::from_utf8(all).unwrap();
        assert!(said.starts_with("GET http://web.test/head?c=d\n"), "{said}");
        let counted = site.counted().statistics;
        assert_eq!((counted.http.requests, counted.backends[0].connections, counted.http.reused), (2, 1, 1));
        assert_eq!((counted.backends[0].connections_now, counted.http.idle_now), (1, 1));
    });
}

#[test]
fn bodies_of_every_size_go_both_ways() {
    block_on(async {
        let ca = Authority::new("CA");
        let mut config = ca.server("127.0.0.1", None, ALL);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        for tls in [None, Some(acceptor)] {
            let is_tls = tls.is_some();
            let site = Site::new(http(), http2_server(tls).await);
            let options = BackendTlsOptions { http2: true, ..ca.options() };
            site.set_backends(is_tls.then(|| BackendTls::load(&options).unwrap()).as_ref(), true);
            let client = site.http2().await;
            let mut tasks = Vec::new();
            for at in 0..40 {
                let length = [0, 1, 1000, 20_000, 300_000, 1_500_000][at % 6] + at / 2;
                let kind = ["bytes", "chunked", "echo"][at % 3];
                let mut client = client.clone().ready().await.unwrap();
                tasks.push(tokio::spawn(async move {
                    let request = match kind {
                        "echo" => Request::post("https://web.test/echo").body(()).unwrap(),
                        kind => get(&format!("/{kind}/{length}")),
                    };
                    let (response, mut up) = client.send_request(request, kind != "echo").unwrap();
                    if kind == "echo" {
                        let sent = pattern(length);
                        tokio::spawn(async move {
                            for piece in sent.chunks(10_000) {
                                let mut rest = piece;
                                while !rest.is_empty() {
                                    up.reserve_capacity(rest.len());
                                    let room = std::future::poll_fn(|cx| up.poll_capacity(cx)).await.unwrap().unwrap();
                                    let (now, later) = rest.split_at(room.min(rest.len()));
                                    up.send_data(Bytes::copy_from_slice(now), false).unwrap();
                                    rest = later;
                                }
                            }
                            up.send_data(Bytes::new(), true).unwrap();
                        });
                    }
                    let (all, trailers) = body(response.await.unwrap()).await;
                    assert!(all == pattern(length), "{kind} {length}: {} bytes", all.len());
                    assert_eq!(trailers.is_some(), kind == "chunked");
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let mut stream = site.connect(&[]).await;
            for length in [0, 10, 2_000_000] {
                let request = format!("GET /bytes/{length} HTTP/1.1\r\nHost: web.test\r\n\r\n");
                assert!(ask(&mut stream, &request).await.1 == pattern(length));
            }
            let request =
                "POST /echo HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
            assert_eq!(ask(&mut stream, request).await.1, b"hello");
            assert_eq!(site.counted().statistics.backends[0].connections, 1, "TLS: {is_tls}");
        }
    });
}

#[test]
fn response_without_a_length_is_chunked_for_http1() {
    block_on(async {
        let site = site(http2_server(None).await);
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"GET /chunked/1500 HTTP/1.1\r\nHost: web.test\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n0\r\nx-sum: 1500\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
        }
        assert!(String::from_utf8_lossy(&read).contains("Transfer-Encoding: chunked\r\n"));
        // HTTP/1.0 has no chunks.
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"GET /chunked/1500 HTTP/1.0\r\nHost: web.test\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 200 ") && read.ends_with(&pattern(1500)[500..]));
        assert!(!String::from_utf8_lossy(&read).contains("chunked"));
        let mut stream = site.connect(&[]).await;
        let (head, none) = head_only(&mut stream).await;
        assert!(head.contains("content-length: 7\r\n") && none.is_empty(), "{head}");
    });
}

/// What a HEAD is answered.
async fn head_only(stream: &mut crate::http1::Stream) -> (String, Vec<u8>) {
    stream.write_all(b"HEAD /bytes/7 HTTP/1.1\r\nHost: web.test\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    (String::from_utf8(read).unwrap(), Vec::new())
}

#[test]
fn requests_at_a_time_share_a_connection_up_to_its_streams() {
    block_on(async {
        let (server, connections) = scripted(|_, (_, mut respond)| async move {
            sleep(Duration::from_millis(200)).await;
            ok(&mut respond, "ok");
        })
        .await;
        let site = site(server);
        let client = site.http2().await;
        let mut tasks = Vec::new();
        for _ in 0..25 {
            let mut client = client.clone().ready().await.unwrap();
            tasks.push(tokio::spawn(async move {
                let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
                assert_eq!(response.status(), 200);
                assert_eq!(body(response).await.0, b"ok");
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        // The server takes ten streams at a time.
        assert_eq!(connections.load(Ordering::Relaxed), 3);
        assert_eq!(site.counted().statistics.http.idle_now, 3);
    });
}

#[test]
fn refused_stream_goes_again_even_if_it_is_no_get() {
    block_on(async {
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused);
        let (server, _) = scripted(move |_, (_, mut respond)| {
            let counted = Arc::clone(&counted);
            async move {
                match counted.fetch_add(1, Ordering::Relaxed) {
                    0 => respond.send_reset(Reason::REFUSED_STREAM),
                    _ => ok(&mut respond, "ok"),
                }
            }
        })
        .await;
        let site = site(server);
        let request = "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 0\r\n\r\n";
        let (head, _) = ask(&mut site.connect(&[]).await, request).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(site.counted().statistics.http.retries, 1);
        assert_eq!(site.counted().statistics.backends[0].faults[Fault::Lost as usize], 0);
    });
}

#[test]
fn backend_that_refuses_every_stream_is_asked_twice() {
    block_on(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let (server, _) = scripted(move |_, (_, mut respond)| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { respond.send_reset(Reason::REFUSED_STREAM) }
        })
        .await;
        let site = site(server);
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn goaway_ends_no_request() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            // A connection takes three requests, and says so with the third.
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(tcp).await.unwrap();
                    let mut served = 0;
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        ok(&mut respond, "ok");
                        served += 1;
                        if served == 3 {
                            connection.graceful_shutdown();
                        }
                    }
                });
            }
        });
        let site = site(address);
        let client = site.http2().await;
        // Several at a time, until the backend has ended a few connections: how many it serves before, its timing decides.
        for _ in 0..200 {
            let mut tasks = Vec::new();
            for at in 0..8 {
                let mut client = client.clone().ready().await.unwrap();
                tasks.push(tokio::spawn(async move {
                    sleep(Duration::from_millis(at / 4)).await;
                    let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
                    assert_eq!(response.status(), 200);
                    assert_eq!(body(response).await.0, b"ok");
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            if site.counted().statistics.backends[0].connections > 5 {
                break;
            }
        }
        assert!(site.counted().statistics.backends[0].connections > 5);
    });
}

#[test]
fn backend_of_http1_is_one_that_cannot_be_connected_to() {
    block_on(async {
        let site = site(server().await);
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        let counted = site.counted().statistics;
        assert_eq!(counted.http.refused[Refused::Unreachable as usize], 1);
        assert_eq!((counted.backends[0].connections_now, counted.http.idle_now), (0, 0));
    });
}

#[test]
fn connection_that_does_not_answer_gets_no_further_request() {
    block_on(async {
        let (server, connections) = scripted(|number, (request, mut respond)| async move {
            if number == 0 && request.uri().path() == "/silent" {
                return sleep(Duration::from_secs(60)).await;
            }
            ok(&mut respond, "ok");
        })
        .await;
        let mut hasty = http();
        hasty.limits.response_timeout = Duration::from_millis(200);
        let site = Site::new(hasty, server);
        site.set_backends(None, true);
        let mut stream = site.connect(&[]).await;
        stream.write_all(b"GET /silent HTTP/1.1\r\nHost: web.test\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 504 "));
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(connections.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn early_response_behind_which_the_stream_is_reset_is_whole() {
    block_on(async {
        let (server, _) = scripted(|_, (_, mut respond)| async move {
            let mut down = respond.send_response(Response::builder().status(413).body(()).unwrap(), false).unwrap();
            down.send_data(Bytes::from_static(b"too long"), true).unwrap();
            sleep(Duration::from_millis(50)).await;
            down.send_reset(Reason::NO_ERROR);
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let request = Request::post("https://web.test/").body(()).unwrap();
        let (response, mut up) = client.send_request(request, false).unwrap();
        up.send_data(Bytes::from(pattern(1000)), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 413);
        assert_eq!(body(response).await.0, b"too long");
    });
}

#[test]
fn stream_that_a_backend_breaks_off_is_not_taken_for_whole() {
    block_on(async {
        let (server, _) = scripted(|_, (_, mut respond)| async move {
            let mut down = respond.send_response(Response::new(()), false).unwrap();
            down.send_data(Bytes::from_static(b"half"), false).unwrap();
            sleep(Duration::from_millis(50)).await;
            down.send_reset(Reason::INTERNAL_ERROR);
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let mut down = client.send_request(get("/"), true).unwrap().0.await.unwrap().into_body();
        assert_eq!(down.data().await.unwrap().unwrap(), "half");
        assert_eq!(down.data().await.unwrap().unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
    });
}

#[test]
fn response_with_too_long_a_header_list_is_502() {
    block_on(async {
        let (server, _) = scripted(|_, (_, mut respond)| async move {
            let mut response = Response::builder();
            for at in 0..80 {
                response = response.header(format!("x-{at}"), "x".repeat(1000));
            }
            let _ = respond.send_response(response.body(()).unwrap(), true);
        })
        .await;
        let site = site(server);
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
        assert_eq!(site.counted().statistics.http.refused[Refused::BackendClosed as usize], 1);
    });
}

#[test]
fn client_that_resets_its_stream_resets_the_backends() {
    block_on(async {
        let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let (server, _) = scripted(move |_, (_, mut respond)| {
            let told = told.clone();
            async move {
                let mut down = respond.send_response(Response::new(()), false).unwrap();
                let reason = std::future::poll_fn(|cx| down.poll_reset(cx)).await.unwrap();
                told.send(reason).unwrap();
            }
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(get("/"), true).unwrap();
        let response = response.await.unwrap();
        up.send_reset(Reason::CANCEL);
        assert_eq!(hears.recv().await, Some(Reason::CANCEL));
        drop(response);
        assert_eq!(site.counted().statistics.backends[0].connections_now, 1);
    });
}

#[test]
fn client_that_does_not_read_stops_no_other_stream() {
    block_on(async {
        let site = site(http2_server(None).await);
        let client = site.http2().await;
        let mut stalled = Vec::new();
        for _ in 0..20 {
            let mut client = client.clone().ready().await.unwrap();
            stalled.push(client.send_request(get("/bytes/3000000"), true).unwrap().0.await.unwrap());
        }
        // Another client's, over the same connection to the backend.
        let mut client = site.http2().await;
        let response = client.send_request(get("/bytes/1000000"), true).unwrap().0.await.unwrap();
        assert!(body(response).await.0 == pattern(1_000_000));
        assert_eq!(site.counted().statistics.backends[0].connections, 1);
    });
}

#[test]
fn websocket_goes_by_extended_connect() {
    block_on(async {
        let (server, _) = scripted(|_, (request, mut respond)| async move {
            let protocol = request.extensions().get::<h2::ext::Protocol>().map(|it| it.as_str().to_string());
            assert_eq!(protocol.as_deref(), Some("websocket"));
            assert!(!request.headers().contains_key("sec-websocket-key"));
            let mut down = respond.send_response(Response::new(()), false).unwrap();
            let mut up = request.into_body();
            while let Some(Ok(data)) = up.data().await {
                let _ = up.flow_control().release_capacity(data.len());
                down.send_data(data, false).unwrap();
            }
            down.send_data(Bytes::from_static(b"bye"), true).unwrap();
        })
        .await;
        let site = site(server);
        let mut stream = site.connect(&[]).await;
        let request = "GET /chat HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let (head, _) = ask(&mut stream, request).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // The example of RFC 6455, 1.3.
        assert!(
            head.to_ascii_lowercase().contains("\r\nsec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n"),
            "{head}"
        );
        stream.write_all(b"hello").await.unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"hello");
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"bye");
    });
}

#[test]
fn websocket_that_a_backend_does_not_take_is_501_at_once() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(tcp).await.unwrap();
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        ok(&mut respond, "ok");
                    }
                });
            }
        });
        // Far longer than a test may take.
        let mut patient = http();
        patient.limits.response_timeout = Duration::from_secs(600);
        let site = Site::new(patient, address);
        site.set_backends(None, true);
        let request = "GET /chat HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
        let (head, _) = ask(&mut site.connect(&[]).await, request).await;
        assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
        // The backend is not at fault.
        let counted = site.counted().statistics;
        assert_eq!(counted.backends[0].faults, [0; Fault::ALL.len()]);
        assert_eq!(counted.http.refused[Refused::Tunnel as usize], 1);
    });
}
