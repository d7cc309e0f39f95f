//! The terminating path: HTTP/1.1 and HTTP/2 whose connections end at sockets of this host, with TLS by rustls.
//!
//! The terminating path stands beside the splice and gives requests the same answers: what a request is, who may pass, where it
//! goes and how its head changes is decided by `hairpin_core::l7`, which reads HTTP/1.1 heads. A request that comes by HTTP/2 is
//! written as such a head first (`translate`), so there is no second reader of requests.
//!
//! | module | what it is |
//! |---|---|
//! | `runtime` | a thread for each core, its commands, what it counts |
//! | `setup` | what is in force: services, certificates, balancers |
//! | `stream` | a client's TLS stream |
//! | `client` | a client's connection: TLS, and which HTTP it speaks |
//! | `client_certificate` | who a client is, by the certificate that it showed |
//! | `proxy_header` | what a proxy in front says of its client |
//! | `http1`, `http2` | the client's side of requests |
//! | `exchange` | a request on its way: decision, backend, heads |
//! | `backend` | connections to backends, and the pool of idle ones |
//! | `backend_stream`, `backend_tls` | streams to backends, with or without TLS |
//! | `http2_backend` | connections to backends that speak HTTP/2, which requests share |
//! | `lease`, `queue` | a request's part of its backend's load, and waiting for one that has less than it may |
//! | `cors` | which scripts of other origins may read responses |
//! | `pages` | error pages of responses that Hairpin makes itself |
//! | `basic` | who may ask, by user and password |
//! | `forward_auth` | who may ask, by a server that is asked |
//! | `mirror` | copies of requests for another group |
//! | `aside` | requests of Hairpin's own beside a client's |
//! | `retry_budget` | how many requests are sent again |
//! | `pump` | bodies that are copied |
//! | `certificates` | certificates and keys, read and checked as a whole |
//! | `challenge`, `hello` | handshakes by which a CA looks whether a name leads here |
//!
//! A runtime shares nothing with the others while it serves requests but loads and effective weights of backends, and TLS
//! sessions with these. It holds no buffer for a connection that waits: what is read lies in a buffer of the core until it is
//! written.

#![forbid(unsafe_code)]

mod aside;
mod backend;
mod backend_stream;
mod backend_tls;
mod basic;
mod certificates;
mod challenge;
mod client;
mod client_certificate;
mod client_stream;
mod control;
mod cors;
mod deadline;
mod exchange;
mod forward_auth;
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod http1;
mod http2;
mod http2_backend;
mod lease;
mod local;
mod mirror;
mod pages;
mod proxy_header;
mod pump;
mod queue;
mod recording;
mod retry_budget;
mod runtime;
mod setup;
mod stream;
mod tickets;
mod translate;
mod unchunk;

pub use backend_tls::{BackendTls, BackendTlsOptions, SYSTEM_ROOTS, is_server_name, tls_failure};
pub use basic::BasicAuth;
pub use certificates::{
    CertificateFiles, CertificateSummary, ServedCertificates, TlsOptions, check_certificate, examine_certificate,
    has_private_key,
};
pub use challenge::Challenges;
pub use client_certificate::shown_certificate;
pub use control::ListedConnection;
pub use cors::Cors;
pub use pages::{ErrorPage, ErrorPages, ServicePages};
pub use queue::QueueSettings;
pub use runtime::{ConnectionLister, CoreReading, LISTED_MAX, Runtimes, RuntimesOptions};
pub use setup::{Configuration, TerminatedService};
pub use tickets::TicketSecret;

/// Bounds that no option sets; `hairpin limits` lists them.
pub mod limits {
    pub use crate::backend_tls::SESSIONS_MAX;
    pub use crate::basic::{CHECKS_MAX, COST_MAX, REMEMBERED_MAX, USERS_MAX};
    pub use crate::certificates::{CERTIFICATES_MAX, CHAIN_MAX, FILE_BYTES_MAX};
    pub use crate::client::TOLD_WITHIN;
    pub use crate::client_certificate::SUBJECT_BYTES_MAX;
    pub use crate::forward_auth::{BODY_BYTES_MAX as DENIED_BYTES_MAX, COPIED_BYTES_MAX};
    pub use crate::http1::{LINGER_BYTES_MAX, TUNNEL_SILENCE};
    pub use crate::http2::limits as http2;
    pub use crate::http2_backend::limits as http2_backend;
    pub use crate::mirror::RESPONSE_BYTES_MAX as MIRRORED_BYTES_MAX;
    pub use crate::retry_budget::{SAVED_MAX, SPARE};
}
