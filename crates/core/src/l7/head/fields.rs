//! The fields of a head (RFC 9112, 5): lines of name, colon and value.

use super::BadHead;
use super::octets::{self, trimmed};
use alloc::string::ToString;
use arrayvec::ArrayVec;
use core::fmt;

/// Fields of a head at most, whatever a service allows.
pub const FIELDS_MAX: usize = 128;

/// Fields of a head that is remembered at most; browsers send some 15 to 20.
const FIELDS_REMEMBERED_MAX: usize = 32;

/// The place of a field, in bytes from the head's first.
#[derive(Clone, Copy)]
struct FieldPlace {
    name: u16,
    name_bytes: u16,
    value: u16,
    value_bytes: u16,
}

/// A field that was read.
pub(super) struct FieldLine<'a> {
    pub(super) name: &'a [u8],
    /// Trimmed.
    pub(super) value: &'a [u8],
    /// The start of the next line, in bytes from the head's first.
    pub(super) next: usize,
}

/// The fields of a head, in order.
#[derive(Clone)]
pub struct Fields<'a> {
    head: &'a [u8],
    places: ArrayVec<FieldPlace, FIELDS_MAX>,
    /// Whether `Connection` names more than `close`, `keep-alive` and `upgrade`.
    names_others: bool,
}

/// Whether a token is this name, which is in lower case: of all characters that bit 5 makes a letter or `-` only these are in
/// tokens.
#[inline]
fn is_in_any_case<const N: usize>(token: &[u8], name: &[u8; N]) -> bool {
    let Ok(token) = <&[u8; N]>::try_from(token) else { return false };
    // All of it, so that it is compared by words.
    token.iter().zip(name).fold(0, |differs, (one, other)| differs | (one | 0x20) ^ other) == 0
}

impl<'a> Fields<'a> {
    /// None yet, of a head of at most 65,535 bytes.
    pub(super) fn new(head: &'a [u8]) -> Fields<'a> {
        Fields { head, places: ArrayVec::new(), names_others: false }
    }

    /// Reads the next field, whose line starts at `at`. `None`: there is not all of it yet.
    pub(super) fn read(&mut self, at: usize, fields_max: usize) -> Result<Option<FieldLine<'a>>, BadHead> {
        let line = &self.head[at..];
        let name = octets::token(line);
        match line.get(name) {
            None => return Ok(None),
            Some(b':') if name > 0 => {}
            Some(b' ' | b'\t') if name == 0 => return Err(BadHead::Folded),
            Some(b'\n') => return Err(BadHead::LineEnd),
            Some(_) => return Err(BadHead::FieldName),
        }
        let behind = &line[name + 1..];
        let length = octets::value(behind);
        match behind.get(length..) {
            Some([b'\r', b'\n', ..]) => {}
            Some([] | [b'\r']) | None => return Ok(None),
            Some([b'\r' | b'\n', ..]) => return Err(BadHead::LineEnd),
            Some(_) => return Err(BadHead::FieldValue),
        }
        if self.places.len() >= fields_max.min(FIELDS_MAX) {
            return Err(BadHead::TooManyFields);
        }
        let value = trimmed(&behind[..length]);
        let indent = behind[..length].iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(0);
        self.places.push(FieldPlace {
            name: at as u16,
            name_bytes: name as u16,
            value: (at + name + 1 + indent) as u16,
            value_bytes: value.len() as u16,
        });
        Ok(Some(FieldLine { name: &line[..name], value, next: at + name + 1 + length + 2 }))
    }

    /// The head ends after `end` bytes: what is behind is no concern of the fields'.
    pub(super) fn cut(&mut self, end: usize) {
        self.head = &self.head[..end];
    }

    /// Remembers that `Connection` names fields.
    pub(super) fn set_names_others(&mut self) {
        self.names_others = true;
    }

    /// The places of the fields, without the head. `None`: there are too many to be remembered.
    pub(super) fn places(&self) -> Option<FieldPlaces> {
        let mut places = ArrayVec::new();
        places.try_extend_from_slice(&self.places).ok()?;
        Some(FieldPlaces { places, names_others: self.names_others })
    }

    fn name(&self, place: &FieldPlace) -> &'a [u8] {
        &self.head[usize::from(place.name)..][..usize::from(place.name_bytes)]
    }

    fn value(&self, place: &FieldPlace) -> &'a [u8] {
        &self.head[usize::from(place.value)..][..usize::from(place.value_bytes)]
    }

    /// The values of `User-Agent` and `Referer`, of several fields the last; empty if there is none.
    #[inline]
    pub(crate) fn agent_and_referer(&self) -> [&'a [u8]; 2] {
        let mut found = [&[][..]; 2];
        for place in &self.places {
            match place.name_bytes {
                10 if is_in_any_case(self.name(place), b"user-agent") => found[0] = self.value(place),
                7 if is_in_any_case(self.name(place), b"referer") => found[1] = self.value(place),
                _ => {}
            }
        }
        found
    }

    /// Names, as they were written, and values, without the white space around them. Names are tokens; values have no
    /// control characters but HTAB, and may be empty.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.places.iter().map(|place| (self.name(place), self.value(place)))
    }

    /// The values of all fields of this name, in order. `lower_name` is in lower case.
    pub fn find(&self, lower_name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        self.places
            .iter()
            .filter(move |place| usize::from(place.name_bytes) == lower_name.len())
            .filter(move |place| self.name(place).eq_ignore_ascii_case(lower_name))
            .map(|place| self.value(place))
    }

    /// Whether the field `name` (in any case) is for the next hop only: one of those RFC 9110 (7.6.1) lists, or named
    /// in `Connection`. `Transfer-Encoding` is one of them: a caller that sends a chunked body on as it came must write
    /// it again. `Host` and `Content-Length` never are.
    pub fn is_hop_by_hop(&self, name: &[u8]) -> bool {
        let listed = match name.len() {
            2 => name.eq_ignore_ascii_case(b"te"),
            7 => name.eq_ignore_ascii_case(b"upgrade"),
            10 => name.eq_ignore_ascii_case(b"connection") || name.eq_ignore_ascii_case(b"keep-alive"),
            16 => name.eq_ignore_ascii_case(b"proxy-connection"),
            17 => name.eq_ignore_ascii_case(b"transfer-encoding"),
            _ => false,
        };
        listed || (self.names_others && self.options().any(|option| option.eq_ignore_ascii_case(name)))
    }

    /// The options of `Connection`, as they were written. None is empty.
    fn options(&self) -> impl Iterator<Item = &'a [u8]> {
        self.find(b"connection").flat_map(members).filter(|option| !option.is_empty())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// The places of the fields of a head with no more than [`FIELDS_REMEMBERED_MAX`].
#[derive(Clone)]
pub(super) struct FieldPlaces {
    places: ArrayVec<FieldPlace, FIELDS_REMEMBERED_MAX>,
    names_others: bool,
}

impl FieldPlaces {
    /// Makes `fields`, which are new, those of their head. `None`: it is too short for one of them.
    pub(super) fn put_into(&self, fields: &mut Fields<'_>) -> Option<()> {
        // Fields stand in order, each name before its value: the last value reaches farthest.
        let end = |place: &FieldPlace| usize::from(place.value) + usize::from(place.value_bytes);
        if self.places.last().is_some_and(|last| end(last) > fields.head.len()) {
            return None;
        }
        fields.names_others = self.names_others;
        fields.places.try_extend_from_slice(&self.places).ok()
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped =
            |(name, value): (&[u8], &[u8])| (name.escape_ascii().to_string(), value.escape_ascii().to_string());
        f.debug_map().entries(self.iter().map(escaped)).finish()
    }
}

/// What [`Fields::agent_and_referer`] finds in these bytes, which begin with a head that was read without a mistake.
pub(crate) fn agent_and_referer_in(head: &[u8]) -> [&[u8]; 2] {
    let mut found = [&[][..]; 2];
    for line in head.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let value = || trimmed(value.strip_suffix(b"\r").unwrap_or(value));
        if is_in_any_case(name, b"user-agent") {
            found[0] = value();
        } else if is_in_any_case(name, b"referer") {
            found[1] = value();
        }
    }
    found
}

/// The members of a comma-separated list without quoted strings, trimmed; some may be empty.
pub(super) fn members(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(trimmed)
}
