//! Reads files with secrets: what only root and this process's user can read and change.

use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 10;

/// The problem and its remedy. The text never holds anything of a secret.
pub(crate) type SecretFileError = (String, String);

/// What the file at `path` says. `secrets`: what messages call them; `form`: how they are written.
pub(super) fn read(path: &Path, secrets: &str, form: &str) -> Result<Vec<u8>, SecretFileError> {
    read_checked(path, FILE_BYTES_MAX, form, |file| check(file, path, secrets))
}

/// [`read`] for a file of secrets that may have more bytes.
pub(super) fn read_long(path: &Path, bytes_max: u64, secrets: &str, form: &str) -> Result<Vec<u8>, SecretFileError> {
    read_checked(path, bytes_max, form, |file| check(file, path, secrets))
}

/// What the file at `path` says, which holds no secret: `bytes_max` bytes at most.
pub(super) fn read_bounded(path: &Path, bytes_max: u64, form: &str) -> Result<Vec<u8>, SecretFileError> {
    read_checked(path, bytes_max, form, |_| Ok(()))
}

fn read_checked(
    path: &Path,
    bytes_max: u64,
    form: &str,
    check: impl Fn(&File) -> Result<(), SecretFileError>,
) -> Result<Vec<u8>, SecretFileError> {
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
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(("it is not a regular file".to_string(), form.to_string()));
    }
    check(&file)?;
    let mut bytes = Vec::new();
    file.by_ref().take(bytes_max + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > bytes_max {
        return Err((format!("it has more than {bytes_max} bytes"), form.to_string()));
    }
    Ok(bytes)
}

/// Whether only root and this user can read and change the file.
fn check(file: &File, path: &Path, secrets: &str) -> Result<(), SecretFileError> {
    let facts = file.metadata().map_err(|error| (format!("cannot examine it: {error}"), String::new()))?;
    let user = rustix::process::geteuid().as_raw();
    if facts.uid() != 0 && facts.uid() != user {
        let what = format!("it belongs to user {}, who can read and change the {secrets}", facts.uid());
        return Err((what, format!("give it to the user that Hairpin runs as: chown {user} {}", path.display())));
    }
    if facts.mode() & 0o077 != 0 {
        let what = format!(
            "its mode is {:04o}: others than its owner can read or change the {secrets}",
            facts.mode() & 0o7777
        );
        let remedy = format!("chmod 600 {}; if others may have read the {secrets}, write new ones", path.display());
        return Err((what, remedy));
    }
    Ok(())
}

/// The lines that say something, with their numbers. What begins with `#` is a comment.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
    let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).zip(1..);
    lines.filter(|(line, _)| !line.is_empty() && !line.starts_with(b"#"))
}
