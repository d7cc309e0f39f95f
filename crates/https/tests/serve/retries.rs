//! What routes say of time, and of requests that are sent to another backend for the status of a response.

use crate::fixture::{Site, block_on, http};
use crate::http1::ask;
use crate::http2::{body, get};
use bytes::Bytes;
use hairpin_core::l7::config::{Http, RouteTerms};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// A server that answers with this status, after this time, and counts what it was asked.
async fn server(status: u16, after: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            let answer = move |request: Request<Incoming>| {
                counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    let _ = request.into_body().collect().await;
                    sleep(after).await;
                    let response = Response::builder().status(status).body(Full::new(Bytes::from_static(b"answer")));
                    Ok::<_, Infallible>(response.unwrap())
                }
            };
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(async move {
                let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    });
    (address, asked)
}

/// Of a service that sends requests again for 502 and 503.
fn retrying(retries: u8) -> Http {
    let mut http = http();
    http.routes[0].terms = RouteTerms { retry_status: [502, 503].into_iter().collect(), retries, ..Default::default() };
    http
}

fn now() -> Duration {
    Duration::ZERO
}

#[test]
fn status_of_the_route_has_another_backend_asked() {
    block_on(async {
        let ((ill, asked_ill), (well, asked_well)) = (server(503, now()).await, server(200, now()).await);
        let site = Site::with(retrying(1), &[ill, well], |_| {});
        let mut stream = site.connect(&[]).await;
        for at in 0..4 {
            let (head, said) = ask(&mut stream, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 ") && said == b"answer", "{at}: {head}");
        }
        let mut client = site.http2().await;
        for _ in 0..4 {
            client = client.ready().await.unwrap();
            let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
            assert_eq!((response.status().as_u16(), &body(response).await.0[..]), (200, &b"answer"[..]));
        }
        let ill = asked_ill.load(Ordering::Relaxed) as u64;
        assert_eq!(asked_well.load(Ordering::Relaxed), 8);
        assert!(ill > 0);
        let counted = site.counted().statistics;
        assert_eq!(counted.http.retries, ill);
        // The client has not seen what was replaced.
        assert_eq!(counted.http.responses, [0, 8, 0, 0, 0]);
        assert_eq!((counted.backends[0].responses, counted.backends[1].responses[1]), ([0; 5], 8));
    });
}

#[test]
fn request_that_cannot_be_repeated_is_sent_once() {
    block_on(async {
        let (ill, asked) = server(503, now()).await;
        let site = Site::with(retrying(3), &[ill], |_| {});
        let post = "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 2\r\n\r\nhi";
        let (head, _) = ask(&mut site.connect(&[]).await, post).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // The body of a request by HTTP/2 is not kept.
        let mut client = site.http2().await;
        let put = Request::put("https://web.test/").body(()).unwrap();
        let (response, mut up) = client.send_request(put, false).unwrap();
        up.send_data(Bytes::from_static(b"hi"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 503);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // A short one by HTTP/1.1 is there still.
        let put = "PUT / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 2\r\n\r\nhi";
        let (head, said) = ask(&mut site.connect(&[]).await, put).await;
        assert!(head.starts_with("HTTP/1.1 503 ") && said == b"answer", "{head}");
        assert_eq!(asked.load(Ordering::Relaxed), 6);
    });
}

#[test]
fn other_statuses_are_the_answer() {
    block_on(async {
        let (ill, asked) = server(500, now()).await;
        let site = Site::with(retrying(1), &[ill], |_| {});
        let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn backends_that_are_all_ill_are_not_sent_twice_as_much() {
    block_on(async {
        let (ill, asked) = server(503, now()).await;
        let site = Site::with(retrying(1), &[ill], |_| {});
        let mut stream = site.connect(&[]).await;
        for _ in 0..100 {
            let (head, _) = ask(&mut stream, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        }
        // A fifth, and ten more.
        assert_eq!(asked.load(Ordering::Relaxed), 130);
        assert_eq!(site.counted().statistics.retries_denied, 70);
    });
}

#[test]
fn route_has_its_own_time_for_a_response() {
    block_on(async {
        let (slow, _) = server(200, Duration::from_millis(600)).await;
        for (of_service, of_route, status) in [(10_000, 200, 504), (200, 10_000, 200)] {
            let mut http = http();
            http.limits.response_timeout = Duration::from_millis(of_service);
            http.routes[0].terms.response_timeout = Some(Duration::from_millis(of_route));
            let site = Site::new(http, slow);
            let (head, _) = ask(&mut site.connect(&[]).await, "GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let response = site.http2().await.send_request(get("/"), true).unwrap().0.await.unwrap();
            assert_eq!(response.status(), status);
        }
    });
}
