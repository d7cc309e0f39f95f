//! The fields of a head about the message's length, about the connection and of where the request goes.

use super::fields::{FieldLine, Fields, members};
use super::octets::{is_token, trimmed};
use super::{BadHead, Version};

/// The largest `Content-Length`.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// The contents of the fields that matter to framing, gathered field by field.
#[derive(Clone, Copy, Default)]
pub(super) struct FramingFacts<'a> {
    /// `Host`.
    pub(super) host: Option<&'a [u8]>,
    /// `Content-Length`.
    pub(super) length: Option<u64>,
    /// A response says it otherwise than by one plain number: more than once, always the same, or with leading zeros.
    pub(super) is_roundabout: bool,
    /// `Transfer-Encoding`.
    codings: Option<Codings>,
    /// `Connection: close`.
    close: bool,
    /// `Connection: keep-alive`.
    keep_alive: bool,
    /// `Connection: upgrade`.
    upgrade: bool,
    /// Protocols in `Upgrade`: some, and all of them such that may be tunnelled.
    protocols: Option<bool>,
    /// `Expect: 100-continue`.
    pub(super) continues: bool,
}

/// What the fields of a head say.
pub(super) struct HeadSection<'a> {
    pub(super) said: FramingFacts<'a>,
    /// Bytes of the head, with its last CRLF.
    pub(super) end: usize,
}

/// Reads the fields of the head at the start of `bytes`, whose first line starts at `at`, into `fields`, which is new and
/// of `bytes`. `None`: there are not all of them yet.
///
/// `fields` is the caller's because it takes a kilobyte, which costs as much to move as some fields cost to read.
pub(super) fn section<'a>(
    fields: &mut Fields<'a>,
    bytes: &'a [u8],
    mut at: usize,
    fields_max: usize,
    is_request: bool,
) -> Result<Option<HeadSection<'a>>, BadHead> {
    let mut said = FramingFacts::default();
    loop {
        match &bytes[at..] {
            [b'\r', b'\n', ..] => {
                let end = at + 2;
                fields.cut(end);
                return Ok(Some(HeadSection { said, end }));
            }
            [] | [b'\r'] => return Ok(None),
            [b'\r', ..] => return Err(BadHead::LineEnd),
            _ => {}
        }
        let Some(FieldLine { name, value, next }) = fields.read(at, fields_max)? else { return Ok(None) };
        said.add(fields, name, value, is_request)?;
        at = next;
    }
}

/// Which transfer codings there are.
#[derive(Clone, Copy, Default)]
struct Codings {
    /// How often `chunked`.
    chunked: u32,
    /// Whether the last one is `chunked`.
    chunked_last: bool,
    /// Whether there is `identity`: none, as RFC 2616 (3.6) had it.
    identity: bool,
    /// Whether there are others.
    others: bool,
}

impl<'a> FramingFacts<'a> {
    /// Takes in one field of `fields`. `Host`, `Expect` and `Upgrade` mean something in requests only.
    pub(super) fn add(
        &mut self,
        fields: &mut Fields<'_>,
        name: &[u8],
        value: &'a [u8],
        is_request: bool,
    ) -> Result<(), BadHead> {
        match name.len() {
            4 if is_request && name.eq_ignore_ascii_case(b"host") && self.host.replace(value).is_some() => {
                Err(BadHead::Host)
            }
            6 if is_request && name.eq_ignore_ascii_case(b"expect") => self.expect(value),
            7 if is_request && name.eq_ignore_ascii_case(b"upgrade") => {
                self.protocols = Some(self.protocols.unwrap_or(true) && members(value).all(may_be_tunnelled));
                Ok(())
            }
            10 if name.eq_ignore_ascii_case(b"connection") => self.connection(fields, value),
            14 if is_like(name, b"content-length") => {
                if !name.eq_ignore_ascii_case(b"content-length") {
                    return Err(BadHead::Lookalike);
                }
                self.content_length(value, is_request)
            }
            17 if is_like(name, b"transfer-encoding") => {
                if !name.eq_ignore_ascii_case(b"transfer-encoding") {
                    return Err(BadHead::Lookalike);
                }
                self.transfer_encoding(value)
            }
            _ => Ok(()),
        }
    }

    /// A response may repeat itself (RFC 9112, 6.3), and its numbers may begin with zeros (RFC 9110, 8.6): a client is
    /// told one plain number.
    fn content_length(&mut self, value: &[u8], is_request: bool) -> Result<(), BadHead> {
        for member in value.split(|byte| *byte == b',') {
            let plain = if is_request { member } else { without_zeros(trimmed(member)) };
            self.is_roundabout |= plain.len() != member.len();
            let length = number(plain).ok_or(BadHead::ContentLength)?;
            match self.length.replace(length) {
                None => {}
                Some(before) if before == length && !is_request => self.is_roundabout = true,
                Some(_) => return Err(BadHead::ContentLength),
            }
        }
        Ok(())
    }

    fn expect(&mut self, value: &[u8]) -> Result<(), BadHead> {
        if self.continues || !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(BadHead::Expectation);
        }
        self.continues = true;
        Ok(())
    }

    fn connection(&mut self, fields: &mut Fields<'_>, value: &[u8]) -> Result<(), BadHead> {
        for option in members(value) {
            match option.len() {
                0 => {}
                5 if option.eq_ignore_ascii_case(b"close") => self.close = true,
                10 if option.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                7 if option.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
                4 if option.eq_ignore_ascii_case(b"host") => return Err(BadHead::Connection),
                14 if option.eq_ignore_ascii_case(b"content-length") => return Err(BadHead::Connection),
                _ if !option.iter().all(|byte| is_token(*byte)) => return Err(BadHead::Connection),
                _ => fields.set_names_others(),
            }
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), BadHead> {
        let codings = self.codings.get_or_insert_default();
        for coding in members(value) {
            // Parameters: of a coding we do not know anyway, and `chunked` has none.
            let name = coding.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default();
            if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
                return Err(BadHead::TransferEncoding);
            }
            codings.chunked_last = coding.eq_ignore_ascii_case(b"chunked");
            codings.chunked += u32::from(codings.chunked_last);
            let identity = coding.eq_ignore_ascii_case(b"identity");
            codings.identity |= identity;
            codings.others |= !codings.chunked_last && !identity;
        }
        Ok(())
    }

    /// Whether the body is chunked; refused where the length could be read in two ways.
    pub(super) fn is_chunked(&self, version: Version) -> Result<bool, BadHead> {
        let Some(codings) = self.codings else { return Ok(false) };
        if self.length.is_some() {
            return Err(BadHead::TwoLengths);
        }
        if version == Version::Http10 || codings.chunked != 1 || !codings.chunked_last {
            return Err(BadHead::TransferEncoding);
        }
        if codings.others || codings.identity { Err(BadHead::Coding) } else { Ok(true) }
    }

    /// Whether the only transfer coding is `identity`.
    pub(super) fn is_identity(&self) -> bool {
        self.codings.is_some_and(|codings| codings.identity && codings.chunked == 0 && !codings.others)
    }

    /// Whether the connection outlives the message (RFC 9112, 9.3).
    pub(super) fn is_kept(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }

    /// Whether the request asks for another protocol, and for none that would lead around us.
    pub(super) fn is_upgrade(&self, version: Version) -> bool {
        version == Version::Http11 && self.upgrade && self.protocols == Some(true)
    }
}

/// Whether a protocol of an `Upgrade` field may be spoken through us. HTTP/2 in clear text may not: requests in it would
/// pass all routes and access rules by. Nor TLS, in which anything could be.
fn may_be_tunnelled(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    !name.is_empty()
        && protocol.iter().all(|byte| is_token(*byte) || *byte == b'/')
        && ![&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Whether `name` is `lower`, in any case, also with `_`, `.` or the like where `lower` has `-`. They are of one length.
fn is_like(name: &[u8], lower: &[u8]) -> bool {
    let is = |(byte, lower): (&u8, &u8)| match lower {
        b'-' => !byte.is_ascii_alphanumeric(),
        _ => byte.eq_ignore_ascii_case(lower),
    };
    name.iter().zip(lower).all(is)
}

/// `digits` without leading zeros, but with a last one.
fn without_zeros(digits: &[u8]) -> &[u8] {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros.min(digits.len().saturating_sub(1))..]
}

/// A decimal number without leading zeros, at most 2^63 - 1.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    let mut number = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // 19 digits fit.
        number = number * 10 + u64::from(digit - b'0');
    }
    (number <= LENGTH_MAX).then_some(number)
}
