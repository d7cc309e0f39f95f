//! Clients that speak HTTP/2.

use crate::fixture::{Site, block_on, http, pattern, server};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use std::time::Duration;

pub(crate) async fn body(response: Response<h2::RecvStream>) -> (Vec<u8>, Option<HeaderMap>) {
    let mut stream = response.into_body();
    let mut all = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        let _ = stream.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    (all, stream.trailers().await.unwrap())
}

pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(format!("https://web.test{path}")).body(()).unwrap()
}

#[test]
fn request_reaches_its_backend_as_http1() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let mut request = get("/head?a=b");
        let headers = request.headers_mut();
        headers.append("cookie", "a=1".parse().unwrap());
        headers.append("cookie", "b=2".parse().unwrap());
        headers.insert("x", "y".parse().unwrap());
        let (response, _) = client.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        let (said, _) = body(response).await;
        let said = String::from_utf8(said).unwrap();
        for line in ["GET /head?a=b", "host: web.test", "x: y", "cookie: a=1; b=2", "x-forwarded-proto: https"] {
            assert!(said.lines().any(|there| there == line), "{line}: {said}");
        }
        let counted = site.counted().statistics;
        assert_eq!((counted.http2_connections, counted.http.requests), (1, 1));
    });
}

#[test]
fn streams_at_a_time_get_their_own_bodies() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let mut asked = Vec::new();
        for at in 0..40 {
            let length = [0, 1, 1000, 20_000, 300_000, 1_500_000][at % 6] + at;
            let kind = if at % 2 == 0 { "bytes" } else { "chunked" };
            client = client.ready().await.unwrap();
            let (response, _) = client.send_request(get(&format!("/{kind}/{length}")), true).unwrap();
            asked.push(tokio::spawn(async move {
                let (all, trailers) = body(response.await.unwrap()).await;
                assert!(all == pattern(length), "{kind} {length}");
                assert!(trailers.is_none_or(|trailers| trailers["x-sum"] == length.to_string()));
            }));
        }
        for asked in asked {
            asked.await.unwrap();
        }
    });
}

#[test]
fn bodies_go_up_with_and_without_a_length() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let client = site.http2().await;
        let data = pattern(1_000_000);
        for with_length in [true, false] {
            let mut request = Request::post("https://web.test/echo").body(()).unwrap();
            if with_length {
                request.headers_mut().insert("content-length", data.len().into());
            }
            let mut client = client.clone().ready().await.unwrap();
            let (response, mut up) = client.send_request(request, false).unwrap();
            let sent = data.clone();
            tokio::spawn(async move {
                let mut rest = &sent[..];
                while !rest.is_empty() {
                    up.reserve_capacity(rest.len());
                    let room = std::future::poll_fn(|cx| up.poll_capacity(cx)).await.unwrap().unwrap();
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    up.send_data(Bytes::copy_from_slice(now), later.is_empty()).unwrap();
                    rest = later;
                }
            });
            let (echoed, _) = body(response.await.unwrap()).await;
            assert!(echoed == data, "{with_length}: {} bytes", echoed.len());
        }
    });
}

#[test]
fn reply_of_hairpins_own_and_head_have_their_forms() {
    block_on(async {
        let mut refusing = http();
        refusing.routes = Box::default();
        let site = Site::new(refusing, server().await);
        let mut client = site.http2().await;
        let (response, _) = client.send_request(get("/"), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 404);
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let request = Request::head("https://web.test/bytes/5").body(()).unwrap();
        let response = client.send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["content-length"]), (200, &"5".parse().unwrap()));
        assert!(body(response).await.0.is_empty());
    });
}

#[test]
fn requests_with_two_hosts_are_reset() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let mut request = get("/head");
        request.headers_mut().insert("host", "other.test".parse().unwrap());
        let error = client.send_request(request, true).unwrap().0.await.unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR));
    });
}

#[test]
fn stream_that_a_client_resets_ends_the_exchange() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut client = site.http2().await;
        let (response, mut up) = client.send_request(get("/bytes/50000000"), true).unwrap();
        let response = response.await.unwrap();
        up.send_reset(h2::Reason::CANCEL);
        drop(response);
        for _ in 0..100 {
            if site.counted().statistics.http.backend_conns_now == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the backend's connection is still there");
    });
}
