//! The begin of a connection that is to have a header of the PROXY protocol.

use hairpin_core::flow::Endpoint;
use hairpin_core::l7::config::ProxyVersion;
use hairpin_core::l7::head::ParseStatus;
use hairpin_core::l7::proxy_protocol::{HEADER_MAX, READ_MAX, Received, read, write};

/// Reads a header, as it comes, and writes what it says in both versions. Whether it is one.
pub fn proxy_protocol(input: &[u8]) -> bool {
    let outcome = read(input);
    // As it arrives: undecided up to some byte, and never decided otherwise.
    for end in 0..input.len().min(READ_MAX) {
        let earlier = read(&input[..end]);
        assert!(
            earlier == Ok(ParseStatus::Partial) || earlier == outcome,
            "{earlier:?} after {end} bytes, then {outcome:?}"
        );
    }
    let received = match outcome {
        Ok(ParseStatus::Complete(received)) => received,
        Ok(ParseStatus::Partial) => {
            assert!(input.len() < READ_MAX);
            return false;
        }
        Err(_) => return false,
    };
    assert!(received.bytes <= READ_MAX);
    assert_eq!(read(&input[..received.bytes]), outcome, "without what follows it");
    assert_eq!(read(&input[..received.bytes - 1]), Ok(ParseStatus::Partial), "without its last byte");
    received.ends.into_iter().for_each(rewritten);
    true
}

fn rewritten(ends: (Endpoint, Endpoint)) {
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let mut out = [0; HEADER_MAX];
        let bytes = write(&mut out, version, ends.0, ends.1).expect("room for the longest header");
        let again = Received { bytes, ends: Some(ends) };
        assert_eq!(read(&out), Ok(ParseStatus::Complete(again)), "{version:?}");
    }
}
