//! A small collector: takes OTLP over HTTP, and answers as a test says.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use prost::Message;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// An answer; `None`: there is never any.
pub(super) type Reply = Option<Response<Full<Bytes>>>;

/// A request that has come.
pub(super) struct Received {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) resource: ResourceSpans,
}

/// What a server has seen.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) requests: Mutex<Vec<Received>>,
    pub(super) connections: AtomicUsize,
}

impl Seen {
    /// The spans' numbers, in the order in which they came.
    pub(super) fn numbers(&self) -> Vec<u8> {
        let requests = self.requests.lock().unwrap();
        let spans = requests.iter().flat_map(|request| &request.resource.scope_spans[0].spans);
        spans.map(|span| span.span_id[0] & 0xf).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// A running server. It ends with this.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Seen>,
    ends: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.ends.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// An answer with this status.
pub(super) fn status(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::default()).unwrap()
}

/// Starts one that answers the request of each number, from 0, so.
pub(super) fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Server {
    start_with(None, reply)
}

/// Likewise, over TLS.
pub(super) fn start_with(tls: Option<ServerConfig>, reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Server {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let (sender, ends) = oneshot::channel::<()>();
    let (counted, reply) = (Arc::clone(&seen), Arc::new(reply));
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let body = move || {
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.connections.fetch_add(1, Ordering::Relaxed);
                let (seen, reply, tls) = (Arc::clone(&counted), Arc::clone(&reply), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, seen, reply).await,
                            Err(error) => eprintln!("no TLS: {error}"),
                        },
                        None => serve(stream, seen, reply).await,
                    }
                });
            }
        });
        let _ = runtime.block_on(ends);
        runtime.shutdown_background();
    };
    Server { address, seen, ends: Some(sender), thread: Some(std::thread::spawn(body)) }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Seen>, reply: Arc<impl Fn(usize) -> Reply>) {
    let answer = |request: Request<Incoming>| {
        let (seen, reply) = (&seen, &reply);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut message = ExportTraceServiceRequest::decode(body).unwrap();
            let received = Received {
                path: parts.uri.to_string(),
                headers: parts.headers,
                resource: message.resource_spans.remove(0),
            };
            assert!(message.resource_spans.is_empty());
            let number = {
                let mut requests = seen.requests.lock().unwrap();
                requests.push(received);
                requests.len() - 1
            };
            match reply(number) {
                Some(response) => Ok::<_, Infallible>(response),
                None => pending().await,
            }
        }
    };
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}
