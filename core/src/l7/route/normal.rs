//! Paths made comparable (RFC 3986, 6.2.2).

use arrayvec::ArrayVec;

/// Bytes of a path that can be compared; a longer one is answered with 414.
pub const PATH_BYTES_MAX: usize = 8192;

/// Room for a path that has to be written anew.
pub type Scratch = ArrayVec<u8, PATH_BYTES_MAX>;

/// Why a path cannot be compared with anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// It is not one path to everybody: `%` without two hexadecimal digits, `%00`, a backslash, `..` above the root,
    /// `..` beside an empty segment (to some `//` is one slash), `..` or `.` hidden behind an encoded slash or in front
    /// of a parameter (`..;x`).
    Ambiguous,
    /// It is longer than [`PATH_BYTES_MAX`].
    TooLong,
}

impl Odd {
    /// The status that answers it.
    pub fn status(self) -> u16 {
        match self {
            Odd::Ambiguous => 400,
            Odd::TooLong => 414,
        }
    }
}

/// What `%2F` and `%5C` are taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// What they are: part of a segment.
    Kept,
    /// A slash, as backends take them for that decode before they look.
    Slash,
}

/// `path` with encoded letters, digits, `-`, `.`, `_` and `~` decoded, the other encodings in upper case, `.` and `..`
/// segments resolved, and several slashes made one. What does not begin with a slash (`*`, the target of CONNECT) is
/// no path and stays as it is.
///
/// # Errors
/// Why it cannot be compared.
pub fn normalise<'a>(path: &'a [u8], encoded: Encoded, scratch: &'a mut Scratch) -> Result<&'a [u8], Odd> {
    if is_normal(path) {
        return if path.len() > PATH_BYTES_MAX { Err(Odd::TooLong) } else { Ok(path) };
    }
    rewrite(path, encoded, scratch)?;
    Ok(scratch)
}

/// Whether there is nothing to do, as for almost all paths. May say no where there is nothing to do after all.
fn is_normal(path: &[u8]) -> bool {
    let mut last = 0;
    for &byte in path {
        if matches!(byte, b'%' | b'\\') || (last == b'/' && matches!(byte, b'/' | b'.')) {
            return false;
        }
        last = byte;
    }
    true
}

/// Whether `path` can be read in two ways: it has an encoded slash or backslash.
pub fn has_encoded_slash(path: &[u8]) -> bool {
    path.windows(3).any(|three| matches!(three, b"%2F" | b"%2f" | b"%5C" | b"%5c"))
}

#[inline(never)]
fn rewrite(path: &[u8], encoded: Encoded, out: &mut Scratch) -> Result<(), Odd> {
    out.clear();
    let Some(path) = path.strip_prefix(b"/") else {
        return out.try_extend_from_slice(path).map_err(|_| Odd::TooLong);
    };
    let (mut went_up, mut empty) = (false, false);
    let mut rest = Some(path);
    while let Some(from) = rest {
        let start = out.len();
        put(out, b'/')?;
        rest = segment(from, encoded, out)?;
        let segment = &out[start + 1..];
        match segment {
            b"" | b"." if rest.is_some() => {
                empty |= segment.is_empty();
                out.truncate(start);
            }
            b"." => out.truncate(start + 1),
            b".." => {
                went_up = true;
                let parent = out[..start].iter().rposition(|&byte| byte == b'/').ok_or(Odd::Ambiguous)?;
                out.truncate(if rest.is_some() { parent } else { parent + 1 });
            }
            _ if hides_dots(segment) => return Err(Odd::Ambiguous),
            _ => {}
        }
    }
    if went_up && empty { Err(Odd::Ambiguous) } else { Ok(()) }
}

/// Writes the first segment of `from` to `out`, decoded as far as that changes nothing; gives what comes after its
/// slash, `None` if there is none.
fn segment<'a>(from: &'a [u8], encoded: Encoded, out: &mut Scratch) -> Result<Option<&'a [u8]>, Odd> {
    let mut at = 0;
    while let Some(&byte) = from.get(at) {
        at += 1;
        match byte {
            b'/' => return Ok(Some(&from[at..])),
            b'\\' => return Err(Odd::Ambiguous),
            b'%' => {
                let digit = |at: usize| from.get(at).and_then(|&byte| char::from(byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(at), digit(at + 1)) else { return Err(Odd::Ambiguous) };
                at += 2;
                match (high << 4 | low) as u8 {
                    0 => return Err(Odd::Ambiguous),
                    b'/' | b'\\' if encoded == Encoded::Slash => return Ok(Some(&from[at..])),
                    plain if plain.is_ascii_alphanumeric() || b"-._~".contains(&plain) => put(out, plain)?,
                    _ => {
                        put(out, b'%')?;
                        put(out, from[at - 2].to_ascii_uppercase())?;
                        put(out, from[at - 1].to_ascii_uppercase())?;
                    }
                }
            }
            _ => put(out, byte)?,
        }
    }
    Ok(None)
}

fn put(out: &mut Scratch, byte: u8) -> Result<(), Odd> {
    out.try_push(byte).map_err(|_| Odd::TooLong)
}

/// Whether some backends would find `.` or `..` in this segment, which is neither: beside an encoded slash, or before a
/// parameter.
fn hides_dots(segment: &[u8]) -> bool {
    let mut rest = segment;
    loop {
        let end = rest.windows(3).position(|three| matches!(three, b"%2F" | b"%5C"));
        let piece = &rest[..end.unwrap_or(rest.len())];
        if matches!(piece.split(|&byte| byte == b';').next(), Some(b"." | b"..")) {
            return true;
        }
        match end {
            Some(end) => rest = &rest[end + 3..],
            None => return false,
        }
    }
}
