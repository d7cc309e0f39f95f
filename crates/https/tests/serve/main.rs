//! Runtimes with real sockets: clients of HTTP/1.1 and HTTP/2 over TLS, servers of HTTP/1.1, some over TLS.

mod backend_tls;
mod client_certificates;
mod draining;
mod fixture;
mod frames;
mod front;
mod grpc;
mod h2spec;
mod http1;
mod http2;
mod http2_backends;
mod http2_bounds;
mod http2_streams;
mod names;
mod records;
mod retries;
mod sizes_and_traces;
mod tls;
