//! The BPF programs, run one packet at a time by the kernel (`BPF_PROG_TEST_RUN`): packet in, maps, verdict, packet
//! out. Needs root; without it the tests say so and pass.

#[path = "bpf/packet.rs"]
mod packet;
#[path = "bpf/rig.rs"]
mod rig;

#[path = "bpf/access.rs"]
mod access;
#[path = "bpf/adoption.rs"]
mod adoption;
#[path = "bpf/capture.rs"]
mod capture;
#[path = "tap/child.rs"]
mod child;
#[path = "bpf/cookie.rs"]
mod cookie;
#[path = "bpf/cookie_clients.rs"]
mod cookie_clients;
#[path = "bpf/crash.rs"]
mod crash;
#[path = "bpf/differential.rs"]
mod differential;
#[path = "bpf/direct.rs"]
mod direct;
#[path = "bpf/encapsulation.rs"]
mod encapsulation;
#[path = "bpf/engine.rs"]
mod engine;
#[path = "bpf/guard.rs"]
mod guard;
#[path = "bpf/handover.rs"]
mod handover;
#[path = "bpf/hits.rs"]
mod hits;
#[path = "bpf/lifecycle.rs"]
mod lifecycle;
#[path = "bpf/lines.rs"]
mod lines;
#[path = "bpf/misses.rs"]
mod misses;
#[path = "bpf/monitor.rs"]
mod monitor;
#[path = "bpf/rules.rs"]
mod rules;
#[path = "bpf/setup.rs"]
mod setup;
#[path = "bpf/setup_direct.rs"]
mod setup_direct;
#[path = "bpf/table.rs"]
mod table;
#[path = "bpf/terminated.rs"]
mod terminated;
#[path = "bpf/traffic.rs"]
mod traffic;
#[path = "bpf/verifier.rs"]
mod verifier;
// Shared with the tests of TAP frames, which use the rest.
#[allow(dead_code)]
#[path = "tap/wire.rs"]
mod wire;
#[path = "bpf/worker.rs"]
mod worker;
#[path = "bpf/xdp.rs"]
mod xdp;
#[path = "bpf/xdp_attach.rs"]
mod xdp_attach;
#[path = "bpf/xdp_cookie.rs"]
mod xdp_cookie;
