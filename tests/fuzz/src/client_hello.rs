//! The begin of a TLS client's stream.

use hairpin_core::l7::client_hello::{BadHello, ParseStatus, parse};

const BYTES_MAX: usize = 16_384;

/// The contents of a hello, on its own.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    name: Option<Vec<u8>>,
    protocols: Vec<Vec<u8>>,
    bytes: usize,
}

fn said(stream: &[u8], bytes_max: usize) -> Result<Option<Said>, BadHello> {
    let mut scratch = vec![0; bytes_max];
    Ok(match parse(stream, &mut scratch, bytes_max)? {
        ParseStatus::Partial => None,
        ParseStatus::Complete(hello) => Some(Said {
            name: hello.name.map(<[u8]>::to_vec),
            protocols: hello.protocols.map(<[u8]>::to_vec).collect(),
            bytes: hello.bytes,
        }),
    })
}

/// Reads a ClientHello, as it comes and cut otherwise. Whether it is one.
pub fn client_hello(input: &[u8]) -> bool {
    let outcome = said(input, BYTES_MAX);
    // As it arrives: undecided up to some byte, and never decided otherwise. A few lengths stand for all.
    for end in (0..8).map(|part| input.len() * part / 8).chain([1, 2, 5, 9]).filter(|&end| end < input.len()) {
        let earlier = said(&input[..end], BYTES_MAX);
        assert!(earlier == Ok(None) || earlier == outcome, "{earlier:?} after {end} bytes, then {outcome:?}");
    }
    let hello = match outcome {
        Ok(Some(hello)) => hello,
        Ok(None) => {
            assert!(input.len() < BYTES_MAX);
            return false;
        }
        Err(_) => return false,
    };
    if let Some(name) = &hello.name {
        assert!((1..=253).contains(&name.len()) && name.split(|&byte| byte == b'.').all(|label| !label.is_empty()));
        assert!(name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte)));
    }
    assert!(hello.protocols.iter().all(|protocol| (1..=255).contains(&protocol.len())));
    let stream = &input[..hello.bytes];
    assert_eq!(said(&stream[..hello.bytes - 1], BYTES_MAX), Ok(None), "without its last byte");
    assert_eq!(said(stream, hello.bytes - 1), Err(BadHello::TooLong), "one byte more than allowed");
    for other in [joined(stream), cut(stream)].into_iter().flatten() {
        let bytes = other.len();
        assert_eq!(said(&other, bytes), Ok(Some(Said { bytes, ..hello.clone() })), "in other records");
    }
    true
}

/// The bytes in the records of `stream`.
fn message(mut stream: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = stream {
        let (fragment, behind) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        message.extend(fragment);
        stream = behind;
    }
    message
}

fn record(fragment: &[u8]) -> Vec<u8> {
    [&[22, 3, 3][..], &(fragment.len() as u16).to_be_bytes(), fragment].concat()
}

/// The hello of `stream` in one record, if it fits.
fn joined(stream: &[u8]) -> Option<Vec<u8>> {
    let message = message(stream);
    (message.len() <= 1 << 14).then(|| record(&message))
}

/// The hello of `stream` in 64 records, or as many as it has bytes.
fn cut(stream: &[u8]) -> Option<Vec<u8>> {
    let message = message(stream);
    let stream: Vec<u8> = message.chunks(message.len().div_ceil(64)).flat_map(record).collect();
    (stream.len() <= BYTES_MAX).then_some(stream)
}
