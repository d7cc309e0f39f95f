//! Which bytes may stand where.

/// Characters of tokens (RFC 9110, 5.6.2).
const TOKEN: u8 = 1;
/// Characters of targets: visible ASCII but `#`, which only begins fragments, and these are never sent.
const TARGET: u8 = 2;
/// Characters of a registered name in an authority (RFC 3986, 3.2.2) but `%`.
const NAME: u8 = 4;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        if byte.is_ascii_graphic() && byte != b'#' {
            classes[at] |= TARGET;
        }
        if byte.is_ascii_alphanumeric() {
            classes[at] |= TOKEN | NAME;
        }
        at += 1;
    }
    let mut marks: &[u8] = b"!#$%&'*+-.^_`|~";
    while let [mark, rest @ ..] = marks {
        classes[*mark as usize] |= TOKEN;
        marks = rest;
    }
    let mut marks: &[u8] = b"-._~!$&'()*+,;=";
    while let [mark, rest @ ..] = marks {
        classes[*mark as usize] |= NAME;
        marks = rest;
    }
    classes
};

/// Whether `byte` may be part of a token.
pub(crate) fn is_token(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & TOKEN != 0
}

/// Whether `byte` may be part of a registered name, percent-encodings aside.
pub(super) fn is_name(byte: u8) -> bool {
    CLASSES[usize::from(byte)] & NAME != 0
}

/// Whether `byte` may be part of a field's value.
pub(crate) fn is_value(byte: u8) -> bool {
    (byte >= 0x20 && byte != 0x7f) || byte == b'\t'
}

/// How many bytes from the start are of a token, or all of them.
pub(super) fn token(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !is_token(*byte)).unwrap_or(bytes.len())
}

/// How many bytes from the start are of a target, or all of them.
pub(super) fn target(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| CLASSES[usize::from(*byte)] & TARGET == 0).unwrap_or(bytes.len())
}

/// How many bytes from the start are of a field's value, or all of them. Eight at a time: most bytes of a head are in
/// its values.
pub(super) fn value(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = 0x80 * ONES;
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let word = u64::from_le_bytes(*word);
        // The lowest high bit that is set is right; those above it may be borrowed from it.
        let controls = word.wrapping_sub(0x20 * ONES) & !word;
        let difference = word ^ (0x7f * ONES);
        let deletes = difference.wrapping_sub(ONES) & !difference;
        let found = (controls | deletes) & HIGH;
        if found == 0 {
            at += 8;
            continue;
        }
        at += (found.trailing_zeros() / 8) as usize;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    let rest = &bytes[at..];
    at + rest.iter().position(|byte| !is_value(*byte)).unwrap_or(rest.len())
}

/// `value` without white space around it.
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
