//! The bodies of the fuzz targets, as plain functions from an input to whether it reached what is under test. They
//! panic on what must not be.
//!
//! `cargo fuzz run TARGET` (nightly) looks for new inputs; `cargo test` replays `corpus/`, changed in many small ways,
//! and the traces beside the checkout; `cargo run --bin TARGET -- FILE...` replays files.

pub mod adoption;
pub mod client_hello;
pub mod http;
pub mod http2;
pub mod link;
pub mod model;
pub mod proxy_protocol;
pub mod splice;
pub mod tables;
pub mod wire;
pub mod worker;

/// Runs `target` on the files named on the command line.
pub fn replay(target: fn(&[u8]) -> bool) {
    for path in std::env::args_os().skip(1) {
        match std::fs::read(&path) {
            Ok(input) => println!("{}: {}", path.display(), if target(&input) { "reached" } else { "not reached" }),
            Err(error) => println!("{}: {error}", path.display()),
        }
    }
}
