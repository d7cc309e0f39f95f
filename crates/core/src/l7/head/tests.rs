//! Heads as they come: what is read from good ones, and which bad ones are refused with what.

mod properties;
mod requests;
mod responses;
mod speed;

use super::{BadHead, Bounds, ParseStatus, Request, Response, octets, request, response};
use crate::l7::head::Method;
use std::vec::Vec;

/// Bounds as a service has them by default.
const BOUNDS: Bounds = Bounds { bytes_max: 16_384, fields_max: 100, target_bytes_max: 8192 };

/// The complete head in `text`.
fn read(text: &str) -> Request<'_> {
    match request(text.as_bytes(), &BOUNDS) {
        Ok(ParseStatus::Complete(request)) => request,
        other => panic!("{text:?}: {other:?}"),
    }
}

/// The complete head of a response to `asked` in `text`.
fn answered(text: &str, asked: Method) -> Response<'_> {
    match response(text.as_bytes(), &BOUNDS, asked) {
        Ok(ParseStatus::Complete(response)) => response,
        other => panic!("{text:?}: {other:?}"),
    }
}

/// The result for `bytes`, without its parts.
fn verdict<T>(result: Result<ParseStatus<T>, BadHead>) -> Result<ParseStatus<()>, BadHead> {
    Ok(match result? {
        ParseStatus::Partial => ParseStatus::Partial,
        ParseStatus::Complete(_) => ParseStatus::Complete(()),
    })
}

/// Each of `cases`, a name, a text and why it is refused; also when it comes byte by byte. `read` is asked of prefixes.
fn refused(cases: &[(&str, &str, BadHead)], read: impl Fn(&[u8]) -> Result<ParseStatus<()>, BadHead>) {
    for (name, text, why) in cases {
        assert_eq!(read(text.as_bytes()), Err(*why), "{name}: {text:?}");
        let first = (0..=text.len())
            .map(|length| read(&text.as_bytes()[..length]))
            .find(|read| *read != Ok(ParseStatus::Partial));
        assert_eq!(first, Some(Err(*why)), "{name}, byte by byte");
    }
}

#[test]
fn refusals_have_names_and_statuses_of_their_own() {
    let mut names: Vec<_> = BadHead::ALL.iter().map(|refusal| refusal.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), BadHead::ALL.len());
    assert!(BadHead::ALL.windows(2).all(|pair| pair[0] < pair[1]), "in the order of their declaration");
    for refusal in BadHead::ALL {
        assert!([400, 414, 417, 431, 501, 502, 505].contains(&refusal.status()), "{refusal:?}");
    }
}

#[test]
fn classes_of_bytes() {
    for byte in 0..=255u8 {
        let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        assert_eq!(octets::is_token(byte), token, "{byte}");
        assert_eq!(octets::target(&[byte]) == 1, (0x21..=0x7e).contains(&byte) && byte != b'#', "{byte}");
        assert_eq!(octets::is_value(byte), byte == 9 || (byte >= 32 && byte != 127), "{byte}");
    }
}

#[test]
fn values_end_at_the_first_control_character() {
    for length in 0..40 {
        for at in 0..=length {
            for byte in [0, 1, 8, 10, 13, 31, 127] {
                for fill in [b'a', b'\t', b' ', 0x80, 0xff, 0x7e] {
                    let mut bytes = std::vec![fill; length];
                    bytes.insert(at, byte);
                    // Others behind it change nothing.
                    if let Some(last) = bytes[at + 1..].last_mut() {
                        *last = b'\r';
                    }
                    assert_eq!(octets::value(&bytes), at, "{bytes:?}");
                }
            }
        }
        assert_eq!(octets::value(&std::vec![b'\t'; length]), length);
        assert_eq!(octets::value(&std::vec![0xa0; length]), length);
    }
}
