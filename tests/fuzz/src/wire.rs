//! Targets of `wire`, `rewrite`, `l4::answer` and `l4::icmp`. An input is a fixed number of bytes of parameters, then a
//! frame.

use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::frame::{Checksum, Frame, VecFrame};
use hairpin_core::l4::answer::{self, Notice};
use hairpin_core::l4::icmp::translate;
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{self, IcmpError, Malformed, Parsed, Transport};

/// Bytes of parameters before the frame in inputs of [`rewrite`].
pub const REWRITE_PARAMETERS: usize = 45;
/// Bytes of parameters before the frame in inputs of [`answer()`].
pub const ANSWER_PARAMETERS: usize = 4;
/// Bytes of parameters before the frame in inputs of [`icmp_translate`].
pub const TRANSLATE_PARAMETERS: usize = 68;

/// Offsets lie within the frame and in order.
pub fn parse(frame: &[u8]) -> bool {
    match wire::parse(frame) {
        Ok(Parsed::Transport(at)) => {
            assert!(at.l3 < at.l4 && at.l4 < at.payload && at.payload <= at.end && at.end <= frame.len(), "{at:?}");
            assert!(at.checksum_offset() + 2 <= at.end, "{at:?}");
            assert!(at.transport_checksum(frame).is_some(), "{at:?}");
            assert_eq!(at.key.source.address.is_ipv4(), at.key.destination.address.is_ipv4());
            assert_ne!(at.key.source, at.key.destination);
            true
        }
        Ok(Parsed::IcmpError(error)) => {
            assert!(error.l3 < error.l4 && error.l4 + 8 <= error.quoted_l3 && error.quoted_l3 < error.quoted_l4);
            assert!(error.quoted_l4 + 8 <= error.end && error.end <= frame.len(), "{error:?}");
            assert_eq!(error.quoted.source.address.is_ipv4(), error.source.is_ipv4());
            assert_eq!(error.quoted.destination.address.is_ipv4(), error.source.is_ipv4());
            true
        }
        Ok(Parsed::Fragment | Parsed::Other) | Err(_) => false,
    }
}

/// A rewritten packet is the rewritten flow's, its checksum as right as before, and rewriting back restores it.
pub fn rewrite(input: &[u8]) -> bool {
    let Some((parameters, frame)) = input.split_at_checked(REWRITE_PARAMETERS) else { return false };
    let Ok(Parsed::Transport(at)) = wire::parse(frame) else { return false };
    let ipv4 = at.key.is_ipv4();
    let rewrite = Rewrite {
        source: endpoint(parameters, 0, ipv4),
        destination: endpoint(parameters, 18, ipv4),
        sequence_delta: number(parameters, 36),
        acknowledgement_delta: number(parameters, 40),
        timestamp_delta: 0x8000_0001,
        ..Rewrite::default()
    };
    if rewrite.source == rewrite.destination {
        return false;
    }
    let partial = parameters[44] & 1 != 0;
    let checksum = if partial { Checksum::Partial } else { Checksum::Complete };
    let mut bytes = frame.to_vec();
    rewrite.apply(&mut bytes, &at, checksum);
    let Ok(Parsed::Transport(now)) = wire::parse(&bytes) else { panic!("{:?}", wire::parse(&bytes)) };
    let ttl = at.ttl.saturating_sub(1);
    assert_eq!(now, Transport { key: rewrite.rewritten(&at.key), ttl, ..at });
    if !partial {
        assert_eq!(transport_right(&bytes, &now), transport_right(frame, &at));
    }
    assert_eq!(bytes[..at.l3], frame[..at.l3]);
    assert_eq!(bytes[at.payload..], frame[at.payload..]);

    rewrite.undone(&at.key).apply(&mut bytes, &now, checksum);
    let field = at.checksum_offset();
    assert_eq!(bytes[at.l4..field], frame[at.l4..field]);
    assert_eq!(bytes[field + 2..], frame[field + 2..]);
    assert_eq!(word(&bytes, field) % 0xffff, word(frame, field) % 0xffff);
    true
}

/// Answers are whole packets to the sender with right checksums, and fragments are all of the packet.
pub fn answer(input: &[u8]) -> bool {
    let Some((parameters, frame)) = input.split_at_checked(ANSWER_PARAMETERS) else { return false };
    let Ok(Parsed::Transport(at)) = wire::parse(frame) else { return false };
    let mtu = word(parameters, 0);
    let mut received = VecFrame::new(frame);
    received.meta.checksum = if parameters[2] & 1 != 0 { Checksum::Partial } else { Checksum::Complete };
    received.meta.gso_size = if parameters[2] & 2 != 0 { 1000 } else { 0 };
    let told = match parameters[3] % 4 {
        0 => Notice::TooBig { mtu },
        1 => Notice::TimeExceeded,
        2 => Notice::PortUnreachable,
        _ => Notice::AdministrativelyProhibited,
    };
    check_reset(received.clone(), &at);
    check_notice(received.clone(), &at, told);
    check_fragments(received, &at, mtu);
    true
}

fn check_reset(mut frame: VecFrame, at: &Transport) {
    if !answer::reset(&mut frame, at) {
        return;
    }
    let Ok(Parsed::Transport(reset)) = wire::parse(frame.bytes()) else { panic!("{:?}", wire::parse(frame.bytes())) };
    assert_eq!(reset.key, at.key.reversed());
    assert_eq!((reset.payload, reset.end), (frame.bytes().len(), frame.bytes().len()));
    assert!(transport_right(frame.bytes(), &reset));
    assert!(!answer::reset(&mut frame, &reset), "a reset is never answered by one");
}

fn check_notice(mut frame: VecFrame, at: &Transport, told: Notice) {
    let from = at.key.destination.address;
    assert!(answer::notice(&mut frame, at, told, from));
    match wire::parse(frame.bytes()) {
        Ok(Parsed::IcmpError(error)) => {
            assert_eq!((error.source, error.destination), (from, at.key.source.address));
            assert_eq!(error.quoted, at.key);
            assert!(icmp_right(frame.bytes(), &error));
        }
        // So many extension headers that the quote ends before the transport header.
        Err(Malformed::Quote) => assert!(at.l4 + 8 - at.l3 > 1280 - 48),
        other => panic!("{other:?}"),
    }
}

fn check_fragments(mut frame: VecFrame, at: &Transport, mtu: u16) {
    let whole = at.end - at.l4;
    let before = frame.data.clone();
    let mut pieces = Vec::new();
    if !answer::fragment(&mut frame, at, mtu, || Some(VecFrame::default()), |piece| pieces.push(piece)) {
        assert!(pieces.is_empty());
        return;
    }
    if pieces.is_empty() {
        assert_eq!(frame.data, before);
        return;
    }
    pieces.insert(0, frame);
    let mut data = 0;
    for piece in &pieces {
        let bytes = piece.bytes();
        assert_eq!(wire::parse(bytes), Ok(Parsed::Fragment));
        assert!(bytes.len() - at.l3 <= usize::from(mtu));
        data += bytes.len() - at.l3 - usize::from(bytes[at.l3] & 15) * 4;
    }
    assert_eq!(data, whole);
}

/// A translated error is one between the new ends about the new packet, its checksum as right as before.
pub fn icmp_translate(input: &[u8]) -> bool {
    let Some((parameters, frame)) = input.split_at_checked(TRANSLATE_PARAMETERS) else { return false };
    let Ok(Parsed::IcmpError(error)) = wire::parse(frame) else { return false };
    let ipv4 = error.source.is_ipv4();
    let (source, destination) = (host(parameters, 0, ipv4), host(parameters, 16, ipv4));
    let (quoted_source, quoted_destination) = (endpoint(parameters, 32, ipv4), endpoint(parameters, 50, ipv4));
    let mut bytes = frame.to_vec();
    translate(&mut bytes, &error, source, destination, quoted_source, quoted_destination);
    let Ok(Parsed::IcmpError(now)) = wire::parse(&bytes) else { panic!("{:?}", wire::parse(&bytes)) };
    let mut expected = IcmpError { source, destination, ttl: error.ttl.saturating_sub(1), ..error };
    (expected.quoted.source, expected.quoted.destination) = (quoted_source, quoted_destination);
    assert_eq!(now, expected);
    assert_eq!(icmp_right(&bytes, &now), icmp_right(frame, &error));
    true
}

/// Whether the transport checksum is right; a UDP checksum of 0 is.
fn transport_right(frame: &[u8], at: &Transport) -> bool {
    let field = word(frame, at.checksum_offset());
    let none = field == 0 && at.key.protocol == hairpin_core::flow::Protocol::Udp;
    none || at.transport_checksum(frame).is_some_and(|right| right % 0xffff == field % 0xffff)
}

fn icmp_right(frame: &[u8], error: &IcmpError) -> bool {
    let message = Sum::of(&frame[error.l4..error.end]);
    let sum = match error.source.is_ipv4() {
        true => message,
        false => {
            let (source, destination) = (&error.source.0, &error.destination.0);
            message + Sum::pseudo_header(source, destination, 58, error.end - error.l4)
        }
    };
    sum.folded() == 0xffff
}

/// A host's address made of the 16 bytes at `at`.
fn host(parameters: &[u8], at: usize, ipv4: bool) -> Address {
    let mut octets = [0; 16];
    octets.copy_from_slice(&parameters[at..at + 16]);
    match ipv4 {
        true => Address::from_ipv4([10, octets[13], octets[14], octets[15]]),
        false => {
            octets[0] = 0x20;
            Address(octets)
        }
    }
}

fn endpoint(parameters: &[u8], at: usize, ipv4: bool) -> Endpoint {
    Endpoint { address: host(parameters, at, ipv4), port: word(parameters, at + 16) }
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}
