//! Runtimes with real sockets: clients of HTTP/1.1 and HTTP/2 over TLS, servers of HTTP/1.1.

mod draining;
mod fixture;
mod front;
mod http1;
mod http2;
mod tls;
