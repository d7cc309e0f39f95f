//! The metrics server from outside: over real sockets, with friendly and hostile clients.

mod admin_page;
mod client;
mod exposition;
mod hostile;
mod http;
mod page;
mod parser;
