//! Traffic tools of our own, where no packaged program does it: UDP echo and its client, a blast of small packets over
//! many flows, a flood of unsolicited frames.
//!
//! They run on threads of this process that enter a namespace; other threads stay where they are.

pub mod blast;
pub mod echo;
pub mod flood;
pub mod frames;
pub mod handshakes;
pub mod http;
pub mod http2;
pub mod inside;
pub mod paced;
pub mod packet_socket;
pub mod pcapng;
pub mod recorder;
pub mod requests;
pub mod tls;
pub mod transfers;
