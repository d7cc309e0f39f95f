//! How long a message's body is, and where a chunked one ends (RFC 9112, sections 6 and 7).
//!
//! Bodies pass by as they are: [`Chunks`] only watches for the end, which is why it is as strict as the reader of heads.
//! Bytes that it would read otherwise than a backend or a client could be the start of another message to them. The one thing
//! that backends may do and clients may not is to pad sizes with blanks, as old servers do: nginx and HAProxy take it too.

#[cfg(test)]
mod tests;

use super::head::{is_token, is_value};
use crate::stored::{stored, stored_leaf};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The body behind a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// There is none, or one of 0 bytes.
    None,
    /// So many bytes, at least 1 and at most 2^63 - 1.
    Bytes(u64),
    /// Chunks, until the last one and its trailers.
    Chunked,
    /// Everything until the sender closes; responses only.
    UntilClose,
    /// No more HTTP in either direction: behind 101, and behind 2xx to CONNECT.
    Tunnel,
}

/// Digits of a chunk's size at most.
const SIZE_DIGITS_MAX: u8 = 16;
/// The largest chunk.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of one chunk's extensions at most, with the semicolon and the blanks in front of it.
pub const EXTENSION_MAX: u16 = 256;
/// Bytes of all trailers at most, line ends included.
pub const TRAILERS_MAX: u16 = 8192;

/// Names that must not be in trailers, in lower case: those that say how long a message is, whom it is for, how it is to
/// be treated, who asks (RFC 9110, 6.5.1), and what we tell backends of the client. Some readers take trailers for fields
/// of the head, and trailers are never edited. At most 32.
const FORBIDDEN: [&[u8]; 24] = [
    b"authorization",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"keep-alive",
    b"max-forwards",
    b"proxy-authorization",
    b"proxy-connection",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
    b"x-real-ip",
];

/// A bit for each of [`FORBIDDEN`].
const ALL_FORBIDDEN: u32 = ((1u64 << FORBIDDEN.len()) - 1) as u32;

/// Why a chunked body is refused: the connection cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum BadChunk {
    /// A size is not 1 to 16 hexadecimal digits directly followed by `;` or CRLF (in responses there may be blanks
    /// between), or is beyond 2^63 - 1.
    Size,
    /// A chunk's extensions are longer than 256 bytes.
    ExtensionTooLong,
    /// A chunk's extensions have a control character.
    Extension,
    /// CR without LF or LF without CR.
    LineEnd,
    /// A chunk is not followed by CRLF.
    DataEnd,
    /// Trailers are longer than 8192 bytes.
    TrailersTooLong,
    /// A trailer's name is not a token directly followed by a colon, or its line continues another.
    TrailerName,
    /// A trailer's value has a control character.
    TrailerValue,
    /// A field that must not be in trailers.
    TrailerForbidden,
    /// The chunks have more bytes than the body may have.
    BodyTooLong,
}

impl BadChunk {
    /// All of them, in the order of their declaration.
    pub const ALL: [BadChunk; 10] = [
        BadChunk::Size,
        BadChunk::ExtensionTooLong,
        BadChunk::Extension,
        BadChunk::LineEnd,
        BadChunk::DataEnd,
        BadChunk::TrailersTooLong,
        BadChunk::TrailerName,
        BadChunk::TrailerValue,
        BadChunk::TrailerForbidden,
        BadChunk::BodyTooLong,
    ];

    /// A name for counters and logs: lower case, words joined by `-`.
    pub fn name(self) -> &'static str {
        match self {
            BadChunk::Size => "chunk-size",
            BadChunk::ExtensionTooLong => "chunk-extension-too-long",
            BadChunk::Extension => "chunk-extension",
            BadChunk::LineEnd => "chunk-line-end",
            BadChunk::DataEnd => "chunk-data-end",
            BadChunk::TrailersTooLong => "trailers-too-long",
            BadChunk::TrailerName => "trailer-name",
            BadChunk::TrailerValue => "trailer-value",
            BadChunk::TrailerForbidden => "trailer-forbidden",
            BadChunk::BodyTooLong => "body-too-long",
        }
    }
}

/// The position in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BodyState {
    /// In a chunk size, after this many digits.
    Size { digits: u8, size: u64 },
    /// In blanks behind a size, so many so far.
    Blanks { bytes: u16, size: u64 },
    /// In the extensions behind a size, so many bytes so far.
    Extension { bytes: u16, size: u64 },
    /// Behind the CR that ends a size's line.
    SizeEnd { size: u64 },
    /// In a chunk: so many bytes are still to come, at least 1.
    Data { left: u64 },
    /// Behind a chunk.
    DataCr,
    /// Behind a chunk and CR.
    DataLf,
    /// At the start of a trailer's line, or of the last, empty one.
    LineStart { trailers: u16 },
    /// In a trailer's name: so many bytes so far, and which of the forbidden names begin like that, a bit each.
    Name { trailers: u16, bytes: u16, like: u32 },
    /// In a trailer's value.
    Value { trailers: u16 },
    /// Behind the CR that ends a trailer.
    ValueEnd { trailers: u16 },
    /// Behind the CR of the last line.
    LastEnd,
    /// Behind the last byte.
    Done,
    /// Refused.
    Bad(BadChunk),
}

/// [`BodyState`] without its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
enum Step {
    Size,
    Blanks,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    LineStart,
    Name,
    Value,
    ValueEnd,
    LastEnd,
    Done,
    Bad,
}

/// Follows a chunked body to its end. It is fed the stream behind the head in any pieces; how it is cut makes no
/// difference. Plain data: it lies in connection entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Chunks {
    /// `size` and `left` of [`BodyState`]; 0 where it has none, as the other fields of it.
    size: u64,
    /// Bytes that chunks to come may have.
    room: u64,
    like: u32,
    trailers: u16,
    /// `bytes` and `digits` of [`BodyState`].
    bytes: u16,
    step: Step,
    why: BadChunk,
    /// Sizes may have blanks behind them.
    padded: bool,
    unused: [u8; 5],
}

stored_leaf!(BadChunk: 1, Step: 1);
stored!(Chunks: size, room, like, trailers, bytes, step, why, padded, unused);

impl Default for Chunks {
    /// At the start of a body, however long.
    fn default() -> Chunks {
        Chunks::at_most(u64::MAX)
    }
}

impl Chunks {
    /// At the start of a body of at most so many bytes, without what stands around the chunks. A chunk that is longer than
    /// what is left of them is refused before its first byte.
    pub fn at_most(bytes: u64) -> Chunks {
        Chunks {
            size: 0,
            room: bytes,
            like: 0,
            trailers: 0,
            bytes: 0,
            step: Step::Size,
            why: BadChunk::Size,
            padded: false,
            unused: [0; 5],
        }
    }

    /// At the start of a response's body, however long.
    pub fn of_response() -> Chunks {
        Chunks { padded: true, ..Chunks::default() }
    }

    /// Goes on with the next bytes of the stream. Returns how many of them belong to this body: all, unless it ends among
    /// them. An error is final, and said of the first byte that is wrong: bytes before it may already be underway.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        let (mut state, mut rest) = (self.state(), bytes);
        loop {
            match state {
                BodyState::Done | BodyState::Bad(_) => break,
                BodyState::Data { left } => {
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    let left = left - taken as u64;
                    state = if left == 0 { BodyState::DataCr } else { BodyState::Data { left } };
                    rest = &rest[taken..];
                }
                _ => {}
            }
            let [byte, behind @ ..] = rest else { break };
            if !matches!(state, BodyState::Data { .. }) {
                state = match (state, byte) {
                    (BodyState::Size { digits: 1.., size }, b' ' | b'\t') if self.padded => {
                        BodyState::Blanks { bytes: 1, size }
                    }
                    (state, byte) => state.step(*byte),
                };
                if let BodyState::Data { left } = state {
                    match self.room.checked_sub(left) {
                        Some(room) => self.room = room,
                        None => state = BodyState::Bad(BadChunk::BodyTooLong),
                    }
                }
                rest = behind;
            }
        }
        self.set_state(state);
        match state {
            BodyState::Bad(why) => Err(why),
            _ => Ok(bytes.len() - rest.len()),
        }
    }

    fn state(&self) -> BodyState {
        let &Chunks { size, like, trailers, bytes, .. } = self;
        match self.step {
            Step::Size => BodyState::Size { digits: bytes as u8, size },
            Step::Blanks => BodyState::Blanks { bytes, size },
            Step::Extension => BodyState::Extension { bytes, size },
            Step::SizeEnd => BodyState::SizeEnd { size },
            Step::Data => BodyState::Data { left: size },
            Step::DataCr => BodyState::DataCr,
            Step::DataLf => BodyState::DataLf,
            Step::LineStart => BodyState::LineStart { trailers },
            Step::Name => BodyState::Name { trailers, bytes, like },
            Step::Value => BodyState::Value { trailers },
            Step::ValueEnd => BodyState::ValueEnd { trailers },
            Step::LastEnd => BodyState::LastEnd,
            Step::Done => BodyState::Done,
            Step::Bad => BodyState::Bad(self.why),
        }
    }

    fn set_state(&mut self, state: BodyState) {
        (self.size, self.like, self.trailers, self.bytes) = (0, 0, 0, 0);
        self.step = match state {
            BodyState::Size { digits, size } => {
                (self.bytes, self.size) = (digits.into(), size);
                Step::Size
            }
            BodyState::Blanks { bytes, size } => {
                (self.bytes, self.size) = (bytes, size);
                Step::Blanks
            }
            BodyState::Extension { bytes, size } => {
                (self.bytes, self.size) = (bytes, size);
                Step::Extension
            }
            BodyState::SizeEnd { size } => {
                self.size = size;
                Step::SizeEnd
            }
            BodyState::Data { left } => {
                self.size = left;
                Step::Data
            }
            BodyState::DataCr => Step::DataCr,
            BodyState::DataLf => Step::DataLf,
            BodyState::LineStart { trailers } => {
                self.trailers = trailers;
                Step::LineStart
            }
            BodyState::Name { trailers, bytes, like } => {
                (self.trailers, self.bytes, self.like) = (trailers, bytes, like);
                Step::Name
            }
            BodyState::Value { trailers } => {
                self.trailers = trailers;
                Step::Value
            }
            BodyState::ValueEnd { trailers } => {
                self.trailers = trailers;
                Step::ValueEnd
            }
            BodyState::LastEnd => Step::LastEnd,
            BodyState::Done => Step::Done,
            BodyState::Bad(why) => {
                self.why = why;
                Step::Bad
            }
        };
    }

    /// Whether a body can have led there.
    pub fn is_plausible(&self) -> bool {
        let bytes = match self.step {
            Step::Size => u16::from(SIZE_DIGITS_MAX),
            Step::Blanks | Step::Extension => EXTENSION_MAX,
            _ => TRAILERS_MAX,
        };
        self.bytes <= bytes
            && self.trailers <= TRAILERS_MAX
            && self.size <= SIZE_MAX
            && (self.step != Step::Data || self.size > 0)
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// How many of the next bytes are certain to be of this body, and need no parsing before they go on: what is
    /// left of a chunk. 0 where every byte counts.
    pub fn data_left(&self) -> u64 {
        if self.step == Step::Data { self.size } else { 0 }
    }

    /// Skips bytes that need no parsing, at most [`data_left`](Chunks::data_left), as if they had been fed. Returns
    /// how many were skipped.
    pub fn skip(&mut self, bytes: u64) -> u64 {
        let left = self.data_left();
        let skipped = left.min(bytes);
        if left > 0 {
            self.size = left - skipped;
            if self.size == 0 {
                self.step = Step::DataCr;
            }
        }
        skipped
    }
}

impl BodyState {
    /// The next state after `byte`. Data is not stepped through.
    fn step(self, byte: u8) -> BodyState {
        match self {
            BodyState::Size { digits, size } => in_size(digits, size, byte),
            BodyState::Blanks { bytes, size } => match byte {
                b'\r' => BodyState::SizeEnd { size },
                b'\n' => BodyState::Bad(BadChunk::LineEnd),
                b';' | b' ' | b'\t' if bytes >= EXTENSION_MAX => BodyState::Bad(BadChunk::ExtensionTooLong),
                b';' => BodyState::Extension { bytes: bytes + 1, size },
                b' ' | b'\t' => BodyState::Blanks { bytes: bytes + 1, size },
                _ => BodyState::Bad(BadChunk::Size),
            },
            BodyState::Extension { bytes, size } => match byte {
                b'\r' => BodyState::SizeEnd { size },
                b'\n' => BodyState::Bad(BadChunk::LineEnd),
                _ if !is_value(byte) => BodyState::Bad(BadChunk::Extension),
                _ if bytes >= EXTENSION_MAX => BodyState::Bad(BadChunk::ExtensionTooLong),
                _ => BodyState::Extension { bytes: bytes + 1, size },
            },
            BodyState::SizeEnd { size } => match (byte, size) {
                (b'\n', 0) => BodyState::LineStart { trailers: 0 },
                (b'\n', left) => BodyState::Data { left },
                _ => BodyState::Bad(BadChunk::LineEnd),
            },
            BodyState::DataCr if byte == b'\r' => BodyState::DataLf,
            BodyState::DataLf if byte == b'\n' => BodyState::Size { digits: 0, size: 0 },
            BodyState::DataCr | BodyState::DataLf => BodyState::Bad(BadChunk::DataEnd),
            BodyState::LineStart { .. } if byte == b'\r' => BodyState::LastEnd,
            BodyState::LastEnd if byte == b'\n' => BodyState::Done,
            BodyState::LastEnd => BodyState::Bad(BadChunk::LineEnd),
            BodyState::LineStart { trailers }
            | BodyState::Name { trailers, .. }
            | BodyState::Value { trailers }
            | BodyState::ValueEnd { trailers }
                if trailers >= TRAILERS_MAX =>
            {
                BodyState::Bad(BadChunk::TrailersTooLong)
            }
            BodyState::LineStart { trailers } => in_name(trailers + 1, 0, ALL_FORBIDDEN, byte),
            BodyState::Name { trailers, bytes, like } => in_name(trailers + 1, bytes, like, byte),
            BodyState::Value { trailers } => match byte {
                b'\r' => BodyState::ValueEnd { trailers: trailers + 1 },
                b'\n' => BodyState::Bad(BadChunk::LineEnd),
                _ if !is_value(byte) => BodyState::Bad(BadChunk::TrailerValue),
                _ => BodyState::Value { trailers: trailers + 1 },
            },
            BodyState::ValueEnd { trailers } if byte == b'\n' => BodyState::LineStart { trailers: trailers + 1 },
            BodyState::ValueEnd { .. } => BodyState::Bad(BadChunk::LineEnd),
            BodyState::Data { .. } | BodyState::Done | BodyState::Bad(_) => self,
        }
    }
}

/// A byte of a size's line.
fn in_size(digits: u8, size: u64, byte: u8) -> BodyState {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        b'\r' if digits > 0 => return BodyState::SizeEnd { size },
        b';' if digits > 0 => return BodyState::Extension { bytes: 1, size },
        b'\n' => return BodyState::Bad(BadChunk::LineEnd),
        _ => return BodyState::Bad(BadChunk::Size),
    };
    // Sixteen digits fit into 64 bits.
    let size = size.wrapping_shl(4) | u64::from(digit);
    if digits >= SIZE_DIGITS_MAX || size > SIZE_MAX {
        return BodyState::Bad(BadChunk::Size);
    }
    BodyState::Size { digits: digits + 1, size }
}

/// A byte of a trailer's name, behind `bytes` others; `trailers` counts it.
fn in_name(trailers: u16, bytes: u16, like: u32, byte: u8) -> BodyState {
    let at = usize::from(bytes);
    match byte {
        b':' if bytes > 0 => {
            let forbidden = bits(like).any(|bit| FORBIDDEN[bit].len() == at);
            if forbidden { BodyState::Bad(BadChunk::TrailerForbidden) } else { BodyState::Value { trailers } }
        }
        b'\n' => BodyState::Bad(BadChunk::LineEnd),
        _ if !is_token(byte) => BodyState::Bad(BadChunk::TrailerName),
        _ => {
            // `_` counts as `-`: CGI makes them one.
            let lower = if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
            let begins = |bit: &usize| FORBIDDEN[*bit].get(at) == Some(&lower);
            let like = bits(like).filter(begins).fold(0, |like, bit| like | 1 << bit);
            BodyState::Name { trailers, bytes: bytes + 1, like }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (bit < 32).then_some(bit as usize)
    })
}
