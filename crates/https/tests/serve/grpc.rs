//! gRPC: what it needs beside HTTP/2, at clients and backends.

use crate::fixture::{Site, block_on, http, server};
use crate::http2::get;
use crate::http2_backends::{scripted, site};
use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::TcpListener;

#[test]
fn grpc_response_of_trailers_alone_ends_with_its_head() {
    block_on(async {
        let (server, _) = scripted(|_, (_, mut respond)| async move {
            let response = Response::builder().header("content-type", "application/grpc").header("grpc-status", "5");
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let response = client.send_request(get("/"), true).unwrap().0.await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "5");
        assert!(response.body().is_end_stream());
    });
}

#[test]
fn trailers_stream_and_interim_responses_go_through() {
    block_on(async {
        let (server, _) = scripted(|_, (request, mut respond)| async move {
            respond.send_informational(Response::builder().status(103).header("link", "x").body(()).unwrap()).unwrap();
            let mut down = respond.send_response(Response::new(()), false).unwrap();
            let mut up = request.into_body();
            // Each message is answered before the next one is sent.
            while let Some(data) = up.data().await {
                let data = data.unwrap();
                let _ = up.flow_control().release_capacity(data.len());
                down.send_data(data, false).unwrap();
            }
            let mut trailers = up.trailers().await.unwrap().unwrap();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            down.send_trailers(trailers).unwrap();
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let request = Request::post("https://web.test/stream").body(()).unwrap();
        let (mut response, mut up) = client.send_request(request, false).unwrap();
        let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!((interim.status().as_u16(), &interim.headers()["link"]), (103, &HeaderValue::from_static("x")));
        let mut down = response.await.unwrap().into_body();
        for at in 0..20 {
            let message = Bytes::from(format!("message {at}"));
            up.send_data(message.clone(), false).unwrap();
            assert_eq!(down.data().await.unwrap().unwrap(), message);
            down.flow_control().release_capacity(message.len()).unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-last", HeaderValue::from_static("yes"));
        up.send_trailers(trailers).unwrap();
        assert!(down.data().await.is_none());
        let trailers = down.trailers().await.unwrap().unwrap();
        assert_eq!((&trailers["x-last"], &trailers["grpc-status"]), (&"yes".parse().unwrap(), &"0".parse().unwrap()));
    });
}

/// A call of gRPC without a message.
fn call() -> Request<()> {
    let request = Request::post("https://web.test/shop.Cart/Get");
    request.header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap()
}

#[test]
fn errors_of_hairpins_own_are_statuses_of_grpc() {
    block_on(async {
        let mut none = http();
        none.routes = Box::default();
        let site = Site::new(none, server().await);
        let response = site.http2().await.send_request(call(), true).unwrap().0.await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"12".parse().unwrap()));
        assert!(response.body().is_end_stream());
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let site = Site::new(http(), closed);
        let response = site.http2().await.send_request(call(), true).unwrap().0.await.unwrap();
        assert_eq!((response.status().as_u16(), &response.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
        assert_eq!(response.headers()["content-type"], "application/grpc");
    });
}

#[test]
fn deadline_of_a_call_ends_it_at_both_ends() {
    block_on(async {
        let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let (server, _) = scripted(move |number, (_, mut respond)| {
            let told = told.clone();
            async move {
                // The second one is answered, but not to its end.
                let mut down = (number == 1).then(|| respond.send_response(Response::new(()), false).unwrap());
                let reason = std::future::poll_fn(|cx| match &mut down {
                    Some(down) => down.poll_reset(cx),
                    None => respond.poll_reset(cx),
                });
                told.send(reason.await.unwrap()).unwrap();
            }
        })
        .await;
        let site = site(server);
        let mut client = site.http2().await;
        let mut request = call();
        request.headers_mut().insert("grpc-timeout", "200m".parse().unwrap());
        let response = client.send_request(request.clone(), true).unwrap().0.await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "4");
        assert_eq!(hears.recv().await, Some(Reason::CANCEL));
        client = client.ready().await.unwrap();
        let response = client.send_request(request, true).unwrap().0.await.unwrap();
        let error = response.into_body().data().await.unwrap().unwrap_err();
        assert_eq!((error.reason(), hears.recv().await), (Some(Reason::CANCEL), Some(Reason::CANCEL)));
    });
}
