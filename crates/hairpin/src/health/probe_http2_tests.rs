//! Checks by HTTP/2 and gRPC, against real servers.

use bytes::Bytes;
use h2::server::SendResponse;
use hyper::{HeaderMap, Request, Response};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;

use super::probe::{CheckFailure, CheckOutcome, probe};
use super::servers::{get, target};
use super::{Check, CheckTarget};

fn failed(reason: &str) -> CheckOutcome {
    Err(CheckFailure::Backend(reason.into()))
}

type Answer = fn(Request<h2::RecvStream>, SendResponse<Bytes>);

/// The outcome of a check of a server that answers like this by HTTP/2 in clear text.
fn checked(check: Check, answer: Answer) -> CheckOutcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(mut connection) = h2::server::handshake(tcp).await else { continue };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    answer(request, respond);
                }
            }
        });
        probe(&CheckTarget { http2: true, timeout: Duration::from_secs(5), ..target(1, address, check) }).await
    })
}

fn grpc(answer: Answer) -> CheckOutcome {
    checked(Check::Grpc { service: "shop.Cart".into() }, answer)
}

/// Sends a message and this status behind it.
fn message(mut respond: SendResponse<Bytes>, message: &'static [u8], status: &str) {
    let mut stream = respond.send_response(Response::new(()), false).unwrap();
    stream.send_data(Bytes::from_static(message), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}

#[test]
fn http_check_goes_by_http2() {
    let status = checked(Check::Http(get()), |request, mut respond| {
        let is_right = request.uri().path() == "/health" && request.uri().authority().is_some();
        let response = Response::builder().status(if is_right { 204 } else { 500 }).body(()).unwrap();
        respond.send_response(response, true).unwrap();
    });
    assert_eq!(status, Ok("HTTP status 204".into()));
}

#[test]
fn grpc_server_that_serves_is_well() {
    let serving = grpc(|request, respond| {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        assert_eq!((&request.headers()["te"], request.method().as_str()), (&"trailers".parse().unwrap(), "POST"));
        message(respond, b"\0\0\0\0\x02\x08\x01", "0");
    });
    assert_eq!(serving, Ok("gRPC: serving".into()));
}

#[test]
fn grpc_server_that_does_not_serve_is_ill() {
    let not_serving = grpc(|_, respond| message(respond, b"\0\0\0\0\x02\x08\x02", "0"));
    assert_eq!(not_serving, failed("gRPC: not serving"));
    let unknown = grpc(|_, mut respond| {
        let response = Response::builder().header("grpc-status", "5").body(()).unwrap();
        respond.send_response(response, true).unwrap();
    });
    assert_eq!(unknown, failed("the gRPC server does not know the service (status 5)"));
    assert_eq!(grpc(|_, respond| message(respond, b"", "14")), failed("gRPC status 14"));
    assert_eq!(
        grpc(|_, respond| message(respond, b"?", "0")),
        failed("the answer is no message of gRPC's health service")
    );
    let web =
        grpc(|_, mut respond| drop(respond.send_response(Response::builder().status(404).body(()).unwrap(), true)));
    assert_eq!(web, failed("HTTP status 404, where gRPC has 200"));
}
