//! The message itself (RFC 8446, 4.1.2; the same since TLS 1.0).

use super::{BadHello, Hello};
use arrayvec::ArrayVec;

/// Extensions a hello may have: about 20 are usual.
pub const EXTENSIONS_MAX: usize = 128;
/// Protocols a hello may offer: 2 are usual. Routes ask for each.
pub const PROTOCOLS_MAX: usize = 64;
/// Bytes of a name (RFC 1035, 2.3.4, in text).
const NAME_MAX: usize = 253;
/// Bytes between two dots.
const LABEL_MAX: usize = 63;
/// Bytes of the client's random value.
const RANDOM: usize = 32;
/// Extension: the server's name.
const SERVER_NAME: u16 = 0;
/// Extension: application-layer protocols.
const APPLICATION_PROTOCOLS: u16 = 16;
/// Kind of a server's name: a host's.
const HOST_NAME: u8 = 0;

/// The protocols a hello offers, in the client's order: 1 to 255 bytes each.
#[derive(Clone, Debug, Default)]
pub struct Protocols<'a> {
    /// Each behind a byte that is its length. Always whole.
    list: &'a [u8],
}

impl<'a> Iterator for Protocols<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let mut rest = HelloReader(self.list);
        let protocol = rest.vector8()?;
        self.list = rest.0;
        Some(protocol)
    }
}

/// The rest to read. `None`: it ended too early.
struct HelloReader<'a>(&'a [u8]);

impl<'a> HelloReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes behind their length, which is one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.take(length.into())
    }

    /// Bytes behind their length, which is two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.word()?;
        self.take(length.into())
    }
}

/// Reads a ClientHello, without the header of the message, that took `bytes` of the stream.
pub(super) fn read(message: &[u8], bytes: usize) -> Result<Hello<'_>, BadHello> {
    let mut hello = Hello { name: None, protocols: Protocols::default(), bytes };
    let Some(mut extensions) = extensions(message).ok_or(BadHello::Malformed)? else { return Ok(hello) };
    let mut seen = ArrayVec::<u16, EXTENSIONS_MAX>::new();
    while !extensions.0.is_empty() {
        let (kind, data) = extensions.word().zip(extensions.vector16()).ok_or(BadHello::Malformed)?;
        if seen.contains(&kind) || seen.try_push(kind).is_err() {
            return Err(BadHello::Extensions);
        }
        match kind {
            SERVER_NAME => hello.name = Some(host_name(data).ok_or(BadHello::Name)?),
            APPLICATION_PROTOCOLS => hello.protocols = protocols(data).ok_or(BadHello::Protocols)?,
            _ => {}
        }
    }
    Ok(hello)
}

/// The extensions of a message: none in some hellos of TLS 1.2 and before. The outer `None`: it is malformed.
fn extensions(message: &[u8]) -> Option<Option<HelloReader<'_>>> {
    let mut rest = HelloReader(message);
    let major = rest.word()? >> 8;
    rest.take(RANDOM)?;
    let session = rest.vector8()?;
    let ciphers = rest.vector16()?;
    let compressions = rest.vector8()?;
    let is_valid = major == 3
        && session.len() <= 32
        && !ciphers.is_empty()
        && ciphers.len().is_multiple_of(2)
        && !compressions.is_empty();
    if !is_valid {
        return None;
    }
    if rest.0.is_empty() {
        return Some(None);
    }
    let extensions = rest.vector16()?;
    rest.0.is_empty().then_some(Some(HelloReader(extensions)))
}

/// The name in the extension that holds it: a list of exactly one, of a host. A dot at its end is dropped.
fn host_name(data: &[u8]) -> Option<&[u8]> {
    let mut data = HelloReader(data);
    let mut list = HelloReader(data.vector16()?);
    let kind = list.byte()?;
    let name = list.vector16()?;
    if kind != HOST_NAME || !list.0.is_empty() || !data.0.is_empty() {
        return None;
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    let is_label = |label: &[u8]| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.iter().all(|&byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    (name.len() <= NAME_MAX && name.split(|&byte| byte == b'.').all(is_label)).then_some(name)
}

/// The protocols in the extension that holds them.
fn protocols(data: &[u8]) -> Option<Protocols<'_>> {
    let mut data = HelloReader(data);
    let list = data.vector16()?;
    let mut rest = HelloReader(list);
    let mut count = 0;
    while !rest.0.is_empty() {
        if rest.vector8()?.is_empty() {
            return None;
        }
        count += 1;
    }
    (data.0.is_empty() && (1..=PROTOCOLS_MAX).contains(&count)).then_some(Protocols { list })
}
