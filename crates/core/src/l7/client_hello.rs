//! The requests of a TLS client: the server's name (RFC 6066, 3) and protocols (RFC 7301) of the ClientHello (RFC 8446,
//! 4.1.2) that its stream begins with. Nothing is decrypted, changed or answered: a connection is routed by it, and goes
//! on as it is.
//!
//! Read as a strict server reads it, so that Hairpin never understands a hello otherwise than the backend does: lengths
//! must add up to the byte, no extension may come twice, a name must be one name. What a hello says inside encrypted
//! extensions (ECH) stays unknown; its outer name counts. Values without meaning that clients send on purpose (GREASE,
//! RFC 8701) are extensions and protocols like any that Hairpin does not know.

mod message;
#[cfg(test)]
mod tests;

pub use message::{EXTENSIONS_MAX, PROTOCOLS_MAX, Protocols};

use super::config::{Tls, TlsRoute};
pub use super::head::ParseStatus;

/// Records a ClientHello may be spread over. One is usual; some clients cut it into a few.
pub const RECORDS_MAX: usize = 64;
/// Bytes of a record's header: type, version, length.
const RECORD_HEADER: usize = 5;
/// Bytes of a record, without its header.
const RECORD_MAX: usize = 1 << 14;
/// Record type: handshake.
const HANDSHAKE: u8 = 22;
/// Bytes of a handshake message's header: type, length.
const MESSAGE_HEADER: usize = 4;
/// Handshake message: ClientHello.
const CLIENT_HELLO: u8 = 1;

/// The contents of a ClientHello.
#[derive(Clone, Debug)]
pub struct Hello<'a> {
    /// The server's name: 1 to 253 letters, digits, `-`, `_` and `.`, in any case, nothing between its dots empty, no
    /// dot at its end.
    pub name: Option<&'a [u8]>,
    /// The protocols offered, the client's favourite first.
    pub protocols: Protocols<'a>,
    /// Bytes of the stream it takes, headers of records included.
    pub bytes: usize,
}

/// Why a stream's begin is refused. Nothing is sent back but a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BadHello {
    /// Not TLS: no handshake record of major version 3. That of SSL 2 is none either.
    NotTls,
    /// A record is empty, longer than 2^14 bytes, of another type before the hello is complete, holds more than the
    /// hello, or is the 65th.
    Record,
    /// The first message is not a ClientHello.
    NotHello,
    /// More bytes than allowed.
    TooLong,
    /// Lengths do not add up, or a field is shorter or longer than it may be.
    Malformed,
    /// An extension comes twice, or there are more than 128.
    Extensions,
    /// The server's name is not exactly one host name.
    Name,
    /// The list of protocols is empty, has an empty one, does not add up, or has more than 64.
    Protocols,
}

impl BadHello {
    /// All of them, in the order of their numbers.
    pub const ALL: [BadHello; 8] = [
        BadHello::NotTls,
        BadHello::Record,
        BadHello::NotHello,
        BadHello::TooLong,
        BadHello::Malformed,
        BadHello::Extensions,
        BadHello::Name,
        BadHello::Protocols,
    ];

    /// Its name in counters.
    pub fn name(self) -> &'static str {
        match self {
            BadHello::NotTls => "not-tls",
            BadHello::Record => "record",
            BadHello::NotHello => "not-hello",
            BadHello::TooLong => "too-long",
            BadHello::Malformed => "malformed",
            BadHello::Extensions => "extensions",
            BadHello::Name => "name",
            BadHello::Protocols => "protocols",
        }
    }
}

/// Reads the ClientHello that `bytes`, a TCP stream from its first byte on, begin with; what follows it is not read.
/// One that is spread over records is joined in `scratch`, which must then hold it: `bytes_max` bytes do.
///
/// `Partial` only while more bytes can make it complete: a stream of `bytes_max` bytes and more is never partial.
///
/// # Errors
/// See [`BadHello`]; said as early as it is certain, often from the first byte.
pub fn parse<'a>(bytes: &'a [u8], scratch: &'a mut [u8], bytes_max: usize) -> Result<ParseStatus<Hello<'a>>, BadHello> {
    let stream = &bytes[..bytes.len().min(bytes_max)];
    let mut header = [0; MESSAGE_HEADER];
    // Bytes of the message: those at hand, and those that the records so far announce.
    let (mut held, mut announced) = (0, 0);
    for record in TlsRecords::new(stream) {
        let record = record?;
        announced += record.length;
        let room = &mut header[held.min(MESSAGE_HEADER)..];
        let head = record.fragment.len().min(room.len());
        room[..head].copy_from_slice(&record.fragment[..head]);
        held += record.fragment.len();
        if held > 0 && header[0] != CLIENT_HELLO {
            return Err(BadHello::NotHello);
        }
        if held < MESSAGE_HEADER {
            continue;
        }
        let length = MESSAGE_HEADER + u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
        if length + RECORD_HEADER > bytes_max {
            return Err(BadHello::TooLong);
        }
        if announced > length {
            return Err(BadHello::Record);
        }
        if held == length {
            let message = if record.fragment.len() == length {
                record.fragment
            } else {
                join(&stream[..record.end], scratch.get_mut(..length).ok_or(BadHello::TooLong)?)
            };
            return message::read(&message[MESSAGE_HEADER..], record.end).map(ParseStatus::Complete);
        }
    }
    if bytes.len() < bytes_max { Ok(ParseStatus::Partial) } else { Err(BadHello::TooLong) }
}

/// The fragments of all records of `stream`, one behind the other in `scratch`, which is as long as they are.
fn join<'a>(stream: &[u8], scratch: &'a mut [u8]) -> &'a [u8] {
    let mut at = 0;
    for record in TlsRecords::new(stream).flatten() {
        let end = at + record.fragment.len();
        if let Some(room) = scratch.get_mut(at..end) {
            room.copy_from_slice(record.fragment);
        }
        at = end;
    }
    scratch
}

/// A record whose end may still be missing.
struct TlsRecord<'a> {
    /// The bytes of it that have arrived, without the header.
    fragment: &'a [u8],
    /// Bytes it will have, without the header.
    length: usize,
    /// The end, in the stream, of the bytes that have arrived.
    end: usize,
}

/// The handshake records a stream begins with, up to the first that is not complete or not allowed.
struct TlsRecords<'a> {
    stream: &'a [u8],
    at: usize,
    count: usize,
}

impl<'a> TlsRecords<'a> {
    fn new(stream: &'a [u8]) -> TlsRecords<'a> {
        TlsRecords { stream, at: 0, count: 0 }
    }

    /// The defect of the record that starts with `header`, of which the end may be missing.
    fn fault(&self, header: &[u8]) -> Option<BadHello> {
        let is_tls =
            header.first().is_none_or(|&kind| kind == HANDSHAKE) && header.get(1).is_none_or(|&major| major == 3);
        if !is_tls {
            // Another type of record may well be TLS once the first was.
            return Some(if self.count == 0 { BadHello::NotTls } else { BadHello::Record });
        }
        let length = header.get(3..5).map(|length| usize::from(u16::from_be_bytes([length[0], length[1]])));
        let is_record = length.is_none_or(|length| (1..=RECORD_MAX).contains(&length));
        (!is_record || (self.count == RECORDS_MAX && !header.is_empty())).then_some(BadHello::Record)
    }
}

impl<'a> Iterator for TlsRecords<'a> {
    type Item = Result<TlsRecord<'a>, BadHello>;

    fn next(&mut self) -> Option<Result<TlsRecord<'a>, BadHello>> {
        let rest = self.stream.get(self.at..)?;
        let header = &rest[..rest.len().min(RECORD_HEADER)];
        if let Some(fault) = self.fault(header) {
            self.at = usize::MAX;
            return Some(Err(fault));
        }
        let [_, _, _, high, low] = *header else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let fragment = &rest[RECORD_HEADER..rest.len().min(RECORD_HEADER + length)];
        self.at += RECORD_HEADER + fragment.len();
        self.count += 1;
        Some(Ok(TlsRecord { fragment, length, end: self.at }))
    }
}

/// The first route that the hello fits: by its name, if the route has any (in any case; `*.suffix` is everything below
/// the suffix, at any depth, but not the suffix itself, as in routes of HTTP), and by one of the protocols it offers, if
/// the route has any (byte by byte).
pub fn tls_route<'a>(tls: &'a Tls, hello: &Hello<'_>) -> Option<&'a TlsRoute> {
    tls.routes.iter().find(|route| {
        let is_named = || hello.name.is_some_and(|name| route.names.iter().any(|pattern| fits(pattern, name)));
        let is_offered =
            || hello.protocols.clone().any(|offered| route.protocols.iter().any(|known| **known == *offered));
        (route.names.is_empty() || is_named()) && (route.protocols.is_empty() || is_offered())
    })
}

/// Whether `name` is what `pattern` means.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [b'*', suffix @ ..] => {
            let above = name.len().checked_sub(suffix.len()).filter(|&above| above > 0);
            above.is_some_and(|above| name[above..].eq_ignore_ascii_case(suffix))
        }
        exact => name.eq_ignore_ascii_case(exact),
    }
}
