//! The tokens of the API's clients by TCP.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Digest, SHA256, digest};
use std::fmt;

/// Tokens at most.
pub(crate) const TOKENS_MAX: usize = 64;
/// Bytes of a token: 32 hexadecimal digits are 128 bits, which are not guessed.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 32..=512;
/// Bytes of a token's name at most.
const NAME_BYTES_MAX: usize = 64;
/// How the file is written.
pub(crate) const FORM: &str = "write a line for each token: a name, a space, and 32 to 512 characters that are drawn at random, such as those \
                               of `openssl rand -hex 32`";

/// Tokens and their names. Of a token only its SHA-256 is kept.
#[derive(Clone)]
pub(crate) struct Tokens(Vec<(String, Digest)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Tokens {
    /// Reads the lines of a file, each with its number.
    ///
    /// # Errors
    /// What is wrong with which line. The text has nothing of a token.
    pub(crate) fn read<'a>(lines: impl Iterator<Item = (&'a [u8], usize)>) -> Result<Tokens, String> {
        let mut tokens: Vec<(String, Digest)> = Vec::new();
        for (line, number) in lines {
            let (name, token) = token(line).ok_or_else(|| format!("line {number} is no name and token"))?;
            let digest = digest(&SHA256, token);
            if tokens.iter().any(|(known, other)| *known == name || other.as_ref() == digest.as_ref()) {
                return Err(format!("line {number} has the name or the token of a line before it"));
            }
            tokens.push((name, digest));
        }
        match tokens.len() {
            0 => Err("it has no token".to_owned()),
            count if count > TOKENS_MAX => Err(format!("it has {count} tokens, and {TOKENS_MAX} are read at most")),
            _ => Ok(Tokens(tokens)),
        }
    }

    /// The name of this token; `None`: it is none of them. How long that takes says nothing about any of them.
    pub(crate) fn name_of(&self, token: &[u8]) -> Option<&str> {
        let given = digest(&SHA256, token);
        let mut found = None;
        for (name, digest) in &self.0 {
            if verify_slices_are_equal(digest.as_ref(), given.as_ref()).is_ok() {
                found = Some(name.as_str());
            }
        }
        found
    }
}

/// The name and the token of a line.
fn token(line: &[u8]) -> Option<(String, &[u8])> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (name, token) = (words.next()?, words.next()?);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // What `Authorization: Bearer` can carry (RFC 6750, 2.1).
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    let is_right = words.next().is_none()
        && name.len() <= NAME_BYTES_MAX
        && name.iter().all(is_plain)
        && TOKEN_BYTES.contains(&token.len())
        && token.iter().all(is_token);
    is_right.then(|| (String::from_utf8_lossy(name).into_owned(), token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tokens, String> {
        Tokens::read(text.lines().map(str::as_bytes).zip(1..))
    }

    #[test]
    fn tokens_are_known_by_their_names() {
        let (one, other) = ("a".repeat(32), format!("{}==", "B~+/-._9".repeat(8)));
        let tokens = read(&format!("deploy {one}\nscaler-2\t {other}")).unwrap();
        assert_eq!([&one, &other].map(|token| tokens.name_of(token.as_bytes())), [Some("deploy"), Some("scaler-2")]);
        for wrong in ["", "a", &one[1..], &format!("{one}a"), &one.to_uppercase()] {
            assert_eq!(tokens.name_of(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(format!("{tokens:?}"), "[\"deploy\", \"scaler-2\"]");
    }

    #[test]
    fn wrong_lines_are_named_and_their_tokens_are_not() {
        let token = "0123456789abcdef0123456789abcdef";
        for (text, said) in [
            (String::new(), "it has no token"),
            (token.to_owned(), "line 1 is no name and token"),
            (format!("a {}", &token[1..]), "line 1 is no"),
            (format!("a {token}\nb {token}"), "line 2 has the name or the token"),
            (format!("a {token}\na {token}0"), "line 2 has the name or the token"),
            (format!("a {token} more"), "line 1 is no"),
            (format!("a: {token}"), "line 1 is no"),
            (format!("a {token}\u{e9}"), "line 1 is no"),
        ] {
            let wrong = read(&text).unwrap_err();
            assert!(wrong.contains(said) && !wrong.contains(&token[1..]), "{text}: {wrong}");
        }
        let many: String = (0..=TOKENS_MAX).map(|number| format!("n{number} {token}{number}\n")).collect();
        assert!(read(&many).unwrap_err().contains("65 tokens"));
    }
}
