//! HTTP and TLS services: real clients, real servers, and both misbehaving.

mod agreed;
mod bodies;
pub(crate) mod browser;
mod disguised;
mod failing;
mod hostile;
pub(crate) mod http_network;
mod listed;
mod loss;
mod messages;
mod routes;
mod servers;
mod tls;
mod told;

use http_network::{HttpNetworks, Which};
use libtest_mimic::Trial;
use std::sync::Arc;

pub(crate) fn tests() -> Vec<Trial> {
    let networks = Arc::new(HttpNetworks::default());
    let mut tests = Vec::new();
    tests.extend(messages::tests(&networks, Which::Dpdk));
    tests.extend(bodies::tests(&networks, Which::Dpdk));
    tests.extend(loss::tests(&networks, Which::Dpdk));
    for which in [Which::Software, Which::Wire, Which::Gso] {
        tests.extend(messages::tests(&networks, which));
        tests.extend(bodies::tests(&networks, which));
        tests.extend(loss::tests(&networks, which));
        tests.extend(browser::tests(&networks, which));
    }
    // Tests that depend little on how packets are forwarded: on the last network.
    tests.extend(routes::tests(&networks));
    tests.extend(disguised::tests(&networks));
    tests.extend(hostile::tests(&networks));
    tests.extend(servers::tests(&networks));
    // It counts on there being no connection for TLS yet.
    tests.extend(listed::tests(&networks));
    tests.extend(tls::tests(&networks));
    tests.extend(told::tests(&networks));
    tests.extend(failing::tests());
    tests.extend(agreed::tests());
    tests
}
