//! Reads the file of keys that several balancers share.

use super::instance::absolute_path;
use super::reader::TomlTable;
use hairpin_core::keys::{KEYS_MAX, Keys, Secret};
use hairpin_diagnostics::Sink;
use rustix::fs::OFlags;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Hexadecimal digits of a key.
const DIGITS: usize = 32;
/// Bytes of a file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 10;
const FORM: &str = "write one key a line, 32 hexadecimal digits (`openssl rand -hex 16` prints one)";

/// The problem and its remedy. The text never holds anything of a key.
type KeyFileError = (String, String);

/// The keys of the file that `keys_file` names, and its path: no keys and `None` if it names none, or if something is wrong
/// with it, which is reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> (Keys, Option<PathBuf>) {
    let path = top.has("keys_file").then(|| absolute_path(sink, top, "keys_file")).flatten();
    let Some(path) = path else { return (Keys::default(), None) };
    match from_file(&path) {
        Ok(keys) => (keys, Some(path)),
        Err((what, remedy)) => {
            sink.error(&top.span_of("keys_file"), format!("`keys_file` \"{}\": {what}", path.display()), remedy);
            (Keys::default(), None)
        }
    }
}

fn from_file(path: &Path) -> Result<Keys, KeyFileError> {
    let cannot = |error: std::io::Error| {
        let user = rustix::process::geteuid().as_raw();
        (
            format!("cannot read it: {error}"),
            format!("user {user}, as which this process runs, must have the right to read it"),
        )
    };
    // A FIFO must not make it wait.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(cannot)?;
    check(&file, path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err((format!("it has more than {FILE_BYTES_MAX} bytes"), FORM.to_string()));
    }
    parse(&bytes)
}

/// Whether only root and this user can read and change the file.
fn check(file: &File, path: &Path) -> Result<(), KeyFileError> {
    let facts = file.metadata().map_err(|error| (format!("cannot examine it: {error}"), String::new()))?;
    if !facts.is_file() {
        return Err(("it is not a regular file".to_string(), FORM.to_string()));
    }
    let user = rustix::process::geteuid().as_raw();
    if facts.uid() != 0 && facts.uid() != user {
        let what = format!("it belongs to user {}, who can read and change the keys", facts.uid());
        return Err((what, format!("give it to the user that Hairpin runs as: chown {user} {}", path.display())));
    }
    if facts.mode() & 0o077 != 0 {
        let what =
            format!("its mode is {:04o}: others than its owner can read or change the keys", facts.mode() & 0o7777);
        let remedy = format!("chmod 600 {}; if others may have read the keys, write new ones", path.display());
        return Err((what, remedy));
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Result<Keys, KeyFileError> {
    let mut secrets: Vec<(Secret, usize)> = Vec::new();
    for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
        let text = line.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
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
