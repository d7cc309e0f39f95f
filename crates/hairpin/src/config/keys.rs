//! Reads the file of keys that several balancers share.

use super::instance::absolute_path;
use super::reader::TomlTable;
use super::secret_file::{self, SecretFileError};
use hairpin_core::keys::{KEYS_MAX, Keys, Secret};
use hairpin_diagnostics::Sink;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Hexadecimal digits of a key.
const DIGITS: usize = 32;
const FORM: &str = "write one key a line, 32 hexadecimal digits (`openssl rand -hex 16` prints one)";

/// The keys of the file that `keys_file` names, and its path: no keys and `None` if it names none, or if something is wrong
/// with it, which is reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> (Keys, Option<PathBuf>) {
    let path = top.has("keys_file").then(|| absolute_path(sink, top, "keys_file")).flatten();
    let Some(path) = path else { return (Keys::default(), None) };
    match secret_file::read(&path, "keys", FORM).and_then(|bytes| parse(&bytes)) {
        Ok(keys) => (keys, Some(path)),
        Err((what, remedy)) => {
            sink.error(&top.span_of("keys_file"), format!("`keys_file` \"{}\": {what}", path.display()), remedy);
            (Keys::default(), None)
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Keys, SecretFileError> {
    let mut secrets: Vec<(Secret, usize)> = Vec::new();
    for (text, number) in secret_file::lines(bytes) {
        let secret = key(text).map_err(|what| (format!("line {number} {what}"), FORM.to_string()))?;
        if let Some((_, earlier)) = secrets.iter().find(|(earlier, _)| *earlier == secret) {
            return Err((format!("line {number} has the key of line {earlier}"), "leave one out".to_string()));
        }
        secrets.push((secret, number));
    }
    if secrets.is_empty() {
        return Err(("it has no key".to_string(), FORM.to_string()));
    }
    if secrets.len() > KEYS_MAX {
        let remedy = format!("keep {KEYS_MAX} at most: the one in use first, those that are still accepted behind it");
        return Err((format!("it has {} keys", secrets.len()), remedy));
    }
    Ok(Keys::new(&secrets.into_iter().map(|(secret, _)| secret).collect::<Vec<_>>()))
}

/// The key that a line has.
fn key(text: &[u8]) -> Result<Secret, String> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let digits = text.iter().map(digit).collect::<Option<Vec<u8>>>();
    let digits = digits.ok_or("has something other than hexadecimal digits")?;
    if digits.len() != DIGITS {
        return Err(format!("has {} hexadecimal digits", digits.len()));
    }
    Ok(Secret::from_bytes(std::array::from_fn(|byte| digits[2 * byte] << 4 | digits[2 * byte + 1])))
}

/// Describes keys by their names, the one in use first. This reveals nothing about the keys.
pub(crate) fn said(keys: &Keys) -> String {
    let mut text = String::new();
    for (place, secret) in keys.all().iter().enumerate() {
        let before = if place == 0 { "" } else { ", " };
        let _ = write!(text, "{before}{:08x}", secret.fingerprint());
    }
    text
}
