//! Which bytes of a connection are believed.

use super::{Adoptable, LAYOUT};
use crate::flow::{Endpoint, Protocol};
use crate::l4::connection::{Connection, Flags, State};
use crate::time::Time;
use core::mem::offset_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

const BYTES: usize = size_of::<Connection>();

fn bytes(connection: &Connection) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    // SAFETY: as many bytes, and a connection has no padding.
    unsafe { core::ptr::copy_nonoverlapping(core::ptr::from_ref(connection).cast(), bytes.as_mut_ptr(), BYTES) };
    bytes
}

fn connection(protocol: Protocol, state: State) -> Connection {
    let end = |host: u8| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), 80);
    Connection::new(Time::from_nanos(7), protocol, state, [end(1), end(2), end(3), end(4)])
}

#[test]
fn every_state_is_believed_of_its_protocol_only() {
    use State::*;
    for state in [SynSent, SynReceived, Established, FinClient, FinBackend, Closed, Reset] {
        assert!(Connection::is_valid(&bytes(&connection(Protocol::Tcp, state))));
        assert!(!Connection::is_valid(&bytes(&connection(Protocol::Udp, state))));
    }
    for state in [UdpNew, UdpEstablished] {
        assert!(Connection::is_valid(&bytes(&connection(Protocol::Udp, state))));
        assert!(!Connection::is_valid(&bytes(&connection(Protocol::Tcp, state))));
    }
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut pass = connection(protocol, Pass);
        pass.vip = Endpoint::default();
        assert!(Connection::is_valid(&bytes(&pass)));
    }
}

#[test]
fn one_wrong_field_is_enough() {
    let good = bytes(&connection(Protocol::Tcp, State::Established));
    assert!(Connection::is_valid(&good));
    let wrong = [
        (offset_of!(Connection, protocol), 7),
        (offset_of!(Connection, state), 10),
        (offset_of!(Connection, kept), 6),
        (offset_of!(Connection, pair), 0b0011_0000),
        (offset_of!(Connection, pair), 0b0100_0000),
        (offset_of!(Connection, client) + 10, 0),
        (offset_of!(Connection, vip) + 11, 0),
        (offset_of!(Connection, backend), 1),
        (offset_of!(Connection, source) + 5, 1),
    ];
    for (at, to) in wrong {
        let mut bad = good;
        bad[at] = to;
        assert!(!Connection::is_valid(&bad), "byte {at} as {to}");
    }
    assert!(!Connection::is_valid(&good[1..]));
    let mut ipv6 = connection(Protocol::Tcp, State::Established);
    ipv6.client = Endpoint::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 80);
    assert!(!Connection::is_valid(&bytes(&ipv6)), "ends of two families");
}

#[test]
fn direct_backend_of_the_other_family_is_believed() {
    let mut direct = connection(Protocol::Tcp, State::Established);
    direct.backend = Endpoint::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 80);
    assert!(!Connection::is_valid(&bytes(&direct)));
    direct.flags.set(Flags::DIRECT);
    assert!(Connection::is_valid(&bytes(&direct)));
    direct.vip = direct.backend;
    assert!(!Connection::is_valid(&bytes(&direct)));
}

#[test]
fn the_layout_is_the_one_that_has_this_number() {
    // Connections that lie in shared memory are adopted by the next version only while this does not change. If it
    // has to, every upgrade loses connections: say so in the notes of the release.
    let names = [BYTES, align_of::<Connection>(), offset_of!(Connection, created), offset_of!(Connection, forwarded)];
    assert_eq!(names, [184, 8, 128, 88]);
    assert_ne!(LAYOUT, 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 1000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Under Miri this fails if an enum is made of what it does not have.
    #[test]
    fn whatever_is_believed_can_be_used(mut bytes in prop::collection::vec(any::<u8>(), BYTES), small in any::<[u8; 6]>()) {
        for (at, to) in (offset_of!(Connection, protocol)..).zip(small) {
            bytes[at] = if at == offset_of!(Connection, protocol) { [6, 17, to][usize::from(to % 3)] } else { to % 12 };
        }
        for end in [0, 18, 36, 54] {
            bytes[end..end + 16].fill(1);
        }
        bytes[offset_of!(Connection, pair) + 1] &= 3;
        bytes[offset_of!(Connection, pair) + 2] &= 3;
        if Connection::is_valid(&bytes) {
            // SAFETY: that is what `is_valid` is for; the bytes need not be aligned.
            let connection = unsafe { bytes.as_ptr().cast::<Connection>().read_unaligned() };
            let text = std::format!("{connection:?}");
            let state = std::format!("{:?}", connection.state);
            prop_assert!(text.contains(&state));
        }
    }
}
