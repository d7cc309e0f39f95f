//! The soak's backend: contents of any length, echoes of bodies, echoes of WebSocket messages.
//!
//! `GET /STREAM/LENGTH` is answered with that many bytes of a [stream](super::bytes), `GET /STREAM/LENGTH/chunked` with the
//! same in chunks. `POST /echo` is answered with its body when that is complete, `POST /mirror` as it comes; in chunks if it
//! came in chunks. A request to become a WebSocket gets one that sends back what it receives.
//!
//! It notes in the [book](Book) which operation it has met, so that a failure can be told from one of its own backend's.

use super::book::{OPERATION, SoakBook};
use super::bytes::Contents;
use crate::namespace::Namespace;
use crate::tool::inside;
use anyhow::{Context, Result};
use futures_util::future::{Either, select};
use futures_util::{SinkExt, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

type BodyResponse = Response<BoxBody<Bytes, hyper::Error>>;

/// One of the servers, ended when dropped.
#[derive(Debug)]
pub(super) struct SoakServer {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl SoakServer {
    /// Starts server `number` (1 to 4) on `port`, both families.
    pub(super) fn start(namespace: &Namespace, port: u16, number: usize, book: &Arc<SoakBook>) -> Result<SoakServer> {
        let listener = inside::run(namespace, move || {
            let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
                .with_context(|| format!("could not listen on port {port}"))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let (end, ended) = oneshot::channel();
        let book = Arc::clone(book);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                // Whichever ends first: being told to.
                match select(pin!(serve(listener, number, book)), ended).await {
                    Either::Left((result, _)) => result,
                    Either::Right(_) => Ok(()),
                }
            })
        });
        Ok(SoakServer { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for SoakServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: tokio::net::TcpListener, number: usize, book: Arc<SoakBook>) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let book = Arc::clone(&book);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, number, Arc::clone(&book)));
            // It ends when its client goes, in whatever way: what that costs an operation the client sees.
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = connection.with_upgrades().await;
        });
    }
}

async fn answer(request: Request<Incoming>, number: usize, book: Arc<SoakBook>) -> Result<BodyResponse, hyper::Error> {
    let field = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    if let Some(operation) = field(OPERATION).and_then(|text| text.parse().ok()) {
        book.met(operation, number);
    }
    if let Some(key) = field(SEC_WEBSOCKET_KEY.as_str()) {
        let accept = derive_accept_key(key.as_bytes());
        tokio::spawn(async move {
            if let Ok(upgraded) = hyper::upgrade::on(request).await {
                echo(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await).await;
            }
        });
        let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(CONNECTION, "Upgrade");
        let answer = answer.header(UPGRADE, "websocket").header(SEC_WEBSOCKET_ACCEPT, accept);
        return Ok(complete(answer, empty()));
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match (request.method(), parts.as_slice()) {
        (&Method::POST, ["echo"]) => {
            let told = request.headers().contains_key(hyper::header::CONTENT_LENGTH);
            let body = request.into_body().collect().await?.to_bytes();
            // A stream's end is not told beforehand: chunks.
            let chunked = http_body_util::StreamBody::new(futures_util::stream::iter([Ok(hyper::body::Frame::data(
                body.clone(),
            ))]));
            let body = if told { whole(body) } else { BodyExt::boxed(chunked) };
            Ok(complete(Response::builder(), body))
        }
        (&Method::POST, ["mirror"]) => Ok(complete(Response::builder(), request.into_body().boxed())),
        (&Method::GET, [stream, length, rest @ ..]) => {
            let body = stream.parse().ok().zip(length.parse().ok());
            let body = body.map(|(stream, length)| Contents::of(stream, length, rest.is_empty()));
            Ok(body.map_or_else(not_found, |body| {
                complete(Response::builder(), body.map_err(|never| match never {}).boxed())
            }))
        }
        _ => Ok(not_found()),
    }
}

fn whole(body: Bytes) -> BoxBody<Bytes, hyper::Error> {
    Full::new(body).map_err(|never| match never {}).boxed()
}

fn empty() -> BoxBody<Bytes, hyper::Error> {
    Empty::new().map_err(|never| match never {}).boxed()
}

fn not_found() -> BodyResponse {
    complete(Response::builder().status(StatusCode::NOT_FOUND), empty())
}

/// The fields are ours, and in order.
fn complete(answer: hyper::http::response::Builder, body: BoxBody<Bytes, hyper::Error>) -> BodyResponse {
    answer.body(body).unwrap_or_default()
}

/// Sends back every message until the client closes.
async fn echo(mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>) {
    while let Some(Ok(message)) = socket.next().await {
        if (message.is_binary() || message.is_text()) && socket.send(message).await.is_err() {
            return;
        }
    }
}
