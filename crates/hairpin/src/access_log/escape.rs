//! Text of clients in lines: whatever they send, a line stays one line with the fields that it has.

use std::fmt::Write;

/// Adds `text` as it stands in a line of text: what is no printable character of ASCII, `"` and `\` become `\xHH`, as nginx
/// writes them.
pub(super) fn plain(out: &mut Vec<u8>, text: &[u8]) {
    if is_plain(text) {
        return out.extend_from_slice(text);
    }
    for &byte in text {
        match byte {
            b'"' | b'\\' | ..0x20 | 0x7f.. => {
                let mut hex = String::with_capacity(4);
                let _ = write!(hex, "\\x{byte:02X}");
                out.extend_from_slice(hex.as_bytes());
            }
            _ => out.push(byte),
        }
    }
}

/// Whether each byte stands for itself in any form. All are looked at, so that many are at a time.
fn is_plain(text: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~');
    text.iter().fold(true, |all, byte| all & is_plain(byte))
}

/// Adds `text` as a string of JSON, quotes included. What is not UTF-8 becomes U+FFFD.
pub(super) fn json(out: &mut Vec<u8>, text: &[u8]) {
    if is_plain(text) {
        out.push(b'"');
        out.extend_from_slice(text);
        return out.push(b'"');
    }
    let text = String::from_utf8_lossy(text);
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, &*text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_line_or_a_field() {
        let forged = b"/a\" 200 5\r\n10.0.0.9 - \\ \x1b[2J\x7f\xff\xc3\xa9";
        let mut out = Vec::new();
        plain(&mut out, forged);
        assert_eq!(String::from_utf8(out).unwrap(), r"/a\x22 200 5\x0D\x0A10.0.0.9 - \x5C \x1B[2J\x7F\xFF\xC3\xA9");
        let mut out = Vec::new();
        json(&mut out, forged);
        let line = String::from_utf8(out).unwrap();
        assert!(!line.contains(|c: char| c.is_control() && c != '\u{7f}'), "{line}");
        let read: String = serde_json::from_str(&line).unwrap();
        assert!(read.starts_with("/a\" 200 5\r\n10.0.0.9") && read.ends_with('\u{e9}'), "{read:?}");
    }
}
