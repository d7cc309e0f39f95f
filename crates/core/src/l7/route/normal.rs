//! Paths made comparable (RFC 3986, 6.2.2).

use arrayvec::ArrayVec;

/// Bytes of a path that can be compared; a longer one is answered with 414.
pub const PATH_BYTES_MAX: usize = 8192;

/// Room for a path that has to be written anew.
pub type PathScratch = ArrayVec<u8, PATH_BYTES_MAX>;

/// Why a path cannot be compared with anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// Servers read it as different paths: `%` without two hexadecimal digits, `%00`, a backslash, `..` above the root,
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

/// How a path is read. Backends differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReading {
    /// `%2F` and `%5C` are slashes, as they are to backends that decode before they look; else part of a segment.
    pub decodes_slashes: bool,
    /// Parameters (what follows `;` or `%3B` in a segment) are removed before dot segments are resolved, as servlet
    /// containers do; else they are part of their segment.
    pub drops_parameters: bool,
    /// Several slashes stay several, as RFC 3986 has it; else they are made one.
    pub keeps_empty: bool,
}

impl PathReading {
    /// As the path is written; that is what routes go by.
    pub const WRITTEN: PathReading =
        PathReading { decodes_slashes: false, drops_parameters: false, keeps_empty: false };
    /// As written, but with empty segments: what goes on to a backend behind a replaced prefix.
    pub const WHOLE: PathReading = PathReading { keeps_empty: true, ..PathReading::WRITTEN };

    /// The other ways in which backends may read `path`.
    pub fn others(path: &[u8]) -> impl Iterator<Item = PathReading> + use<> {
        let (slash, parameter) = (has_encoded_slash(path), has_parameter(path));
        [(true, false), (false, true), (true, true)]
            .into_iter()
            .filter(move |(decodes, drops)| (slash || !decodes) && (parameter || !drops))
            .map(|(decodes_slashes, drops_parameters)| PathReading {
                decodes_slashes,
                drops_parameters,
                ..PathReading::WRITTEN
            })
    }
}

/// `path` with encoded letters, digits, `-`, `.`, `_` and `~` decoded, the other encodings in upper case, `.` and `..`
/// segments resolved, and several slashes made one. What does not begin with a slash (`*`, the target of CONNECT) is
/// no path and stays as it is.
///
/// # Errors
/// Why it cannot be compared.
pub fn normalise<'a>(path: &'a [u8], reading: PathReading, scratch: &'a mut PathScratch) -> Result<&'a [u8], Odd> {
    if !reading.drops_parameters && is_normal(path) {
        return if path.len() > PATH_BYTES_MAX { Err(Odd::TooLong) } else { Ok(path) };
    }
    rewrite(path, reading, scratch)?;
    Ok(scratch)
}

/// The rest behind `bytes` of the normalised path in `whole`, the same path with its empty segments
/// ([`PathReading::WHOLE`]).
pub fn behind(whole: &[u8], bytes: usize) -> &[u8] {
    let (mut at, mut passed, mut last) = (0, 0, 0);
    while passed < bytes {
        let Some(&byte) = whole.get(at) else { break };
        passed += usize::from(!(byte == b'/' && last == b'/'));
        (at, last) = (at + 1, byte);
    }
    &whole[at..]
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

/// Whether `path` has an encoded slash or backslash.
fn has_encoded_slash(path: &[u8]) -> bool {
    path.contains(&b'%') && path.windows(3).any(|three| matches!(three, b"%2F" | b"%2f" | b"%5C" | b"%5c"))
}

/// Whether `path` has parameters, or what some backends take for them.
fn has_parameter(path: &[u8]) -> bool {
    let is_encoded = || path.windows(3).any(|three| matches!(three, b"%3B" | b"%3b"));
    path.contains(&b';') || (path.contains(&b'%') && is_encoded())
}

#[inline(never)]
fn rewrite(path: &[u8], reading: PathReading, out: &mut PathScratch) -> Result<(), Odd> {
    out.clear();
    let Some(path) = path.strip_prefix(b"/") else {
        return out.try_extend_from_slice(path).map_err(|_| Odd::TooLong);
    };
    let (mut went_up, mut empty) = (false, false);
    let mut rest = Some(path);
    while let Some(from) = rest {
        let start = out.len();
        put(out, b'/')?;
        rest = segment(from, reading, out)?;
        let segment = &out[start + 1..];
        match segment {
            b"" if rest.is_some() => {
                empty = true;
                if !reading.keeps_empty {
                    out.truncate(start);
                }
            }
            b"." if rest.is_some() => out.truncate(start),
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
fn segment<'a>(from: &'a [u8], reading: PathReading, out: &mut PathScratch) -> Result<Option<&'a [u8]>, Odd> {
    let mut at = 0;
    // The end of the segment without its parameters.
    let mut name_end = None;
    let rest = loop {
        let Some(&byte) = from.get(at) else { break None };
        at += 1;
        match byte {
            b'/' => break Some(&from[at..]),
            b'\\' => return Err(Odd::Ambiguous),
            b';' => {
                name_end.get_or_insert(out.len());
                put(out, byte)?;
            }
            b'%' => {
                let digit = |at: usize| from.get(at).and_then(|&byte| char::from(byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(at), digit(at + 1)) else { return Err(Odd::Ambiguous) };
                at += 2;
                match (high << 4 | low) as u8 {
                    0 => return Err(Odd::Ambiguous),
                    b'/' | b'\\' if reading.decodes_slashes => break Some(&from[at..]),
                    plain if plain.is_ascii_alphanumeric() || b"-._~".contains(&plain) => put(out, plain)?,
                    other => {
                        if other == b';' {
                            name_end.get_or_insert(out.len());
                        }
                        put(out, b'%')?;
                        put(out, from[at - 2].to_ascii_uppercase())?;
                        put(out, from[at - 1].to_ascii_uppercase())?;
                    }
                }
            }
            _ => put(out, byte)?,
        }
    };
    if let Some(end) = name_end.filter(|_| reading.drops_parameters) {
        out.truncate(end);
    }
    Ok(rest)
}

fn put(out: &mut PathScratch, byte: u8) -> Result<(), Odd> {
    out.try_push(byte).map_err(|_| Odd::TooLong)
}

/// Whether some backends would find `.` or `..` in this segment, which is neither: beside an encoded slash, or before a
/// parameter.
fn hides_dots(segment: &[u8]) -> bool {
    let mut rest = segment;
    loop {
        let end = rest.windows(3).position(|three| matches!(three, b"%2F" | b"%5C"));
        let piece = &rest[..end.unwrap_or(rest.len())];
        let parameter = piece.iter().position(|&byte| byte == b';');
        let encoded = piece.windows(3).position(|three| three == b"%3B");
        let name = &piece[..parameter.into_iter().chain(encoded).min().unwrap_or(piece.len())];
        if matches!(name, b"." | b"..") {
            return true;
        }
        match end {
            Some(end) => rest = &rest[end + 3..],
            None => return false,
        }
    }
}
