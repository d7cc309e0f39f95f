//! Serving HTTP/1.1 to few clients, hostile until shown otherwise: connections, heads, exchanges and their times have bounds, and
//! each bound that is reached is counted. The admin address and the API are served by it.
//!
//! What requests mean, and bodies, are the [`Answerer`]'s; TLS, if there is any, is the business of what opens connections.

mod accept;
mod connection;
mod counts;

pub(crate) use accept::accept;
pub(crate) use counts::{Closed, ServerCounts};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::time::Duration;

/// How far a server goes with its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerBounds {
    /// Connections at a time at most.
    pub(crate) connections_max: usize,
    /// Bytes of a request's head at most.
    pub(crate) head_bytes_max: usize,
    /// Lines of a request's head at most.
    pub(crate) headers_max: usize,
    /// How long a client may take to send a head.
    pub(crate) head_patience: Duration,
    /// How long an exchange may take from there.
    pub(crate) exchange_patience: Duration,
    /// Requests on a connection at most.
    pub(crate) requests_max: u32,
    /// How long a connection may take requests.
    pub(crate) connection_patience: Duration,
}

/// Answers requests of clients that are known as `P`.
pub(crate) trait Answerer<P>: Send + Sync + 'static {
    /// How far it goes with them.
    const BOUNDS: ServerBounds;

    /// The answer. If the request's body was not read to its end, it says `Connection: close`.
    fn respond(&self, request: Request<Incoming>, peer: &P) -> impl Future<Output = Response<Full<Bytes>>> + Send;

    /// Where answers and ends are counted.
    fn counts(&self) -> &ServerCounts;
}
