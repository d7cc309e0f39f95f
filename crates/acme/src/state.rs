//! The files of an account and its certificates.
//!
//! ```text
//! STATE/lock                                  held by the process that orders
//! STATE/CA/account.json                       the account: its URL and its key
//! STATE/CA/account.json.unknown               the last account that the CA did not know any more
//! STATE/CA/attempts.json                      failures of the CA itself
//! STATE/CA/certificates/NAME/certificate.pem  the chain and its key
//! STATE/CA/certificates/NAME/attempts.json    failures of this name
//! ```
//!
//! `CA` is the host of the directory's URL and a digest of all that makes another account: URL and external account.

use crate::Authority;
use anyhow::{Context, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a file that is read, at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file with the certificate for `name`, and its key, of an instance whose state is in `state`.
pub fn certificate_file(state: &Path, authority: &Authority, name: &str) -> PathBuf {
    of_name(&of_authority(state, authority), name).join("certificate.pem")
}

/// The directory of an account.
pub(crate) fn of_authority(state: &Path, authority: &Authority) -> PathBuf {
    let host = authority.directory.split("://").nth(1).unwrap_or_default();
    let host: String = host.split(['/', ':']).next().unwrap_or_default().chars().filter(is_plain).take(100).collect();
    let external = authority.external_account.as_ref().map_or("", |(id, _)| id);
    let digest = digest(&SHA256, format!("{}\n{external}", authority.directory).as_bytes());
    let digits: String = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    state.join(format!("{host}-{digits}"))
}

fn is_plain(letter: &char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-')
}

/// The directory of a name.
pub(crate) fn of_name(of_authority: &Path, name: &str) -> PathBuf {
    of_authority.join("certificates").join(name)
}

/// The last attempt, kept so that a restart does not try again at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    /// Failures since the last success.
    pub(crate) failures: u32,
    /// Why the last one failed; empty if it did not.
    pub(crate) error: String,
    /// When it was, in seconds since 1970; 0: there was none.
    pub(crate) last_s: i64,
    /// Not to be tried again before.
    pub(crate) not_before_s: i64,
    /// When a certificate was obtained last.
    pub(crate) obtained_s: i64,
}

/// Reads `attempts.json` of a directory. What is missing or makes no sense is as if nothing had been tried.
pub(crate) fn read_attempts(directory: &Path) -> Attempts {
    read_json(&directory.join("attempts.json")).ok().flatten().unwrap_or_default()
}

pub(crate) fn write_attempts(directory: &Path, attempts: &Attempts) -> Result<()> {
    write_json(&directory.join("attempts.json"), attempts)
}

/// Reads a file; `None`: there is none.
pub(crate) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    let about = || format!("cannot read {}", file.display());
    let opened = match File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(about)?,
    };
    let mut bytes = Vec::new();
    opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes).with_context(about)?;
    serde_json::from_slice(&bytes).map(Some).with_context(|| format!("{} makes no sense", file.display()))
}

pub(crate) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    write(file, &serde_json::to_vec_pretty(value)?, |_| Ok(()))
}

/// Replaces a file as a whole, if `check` finds the new one right: after a crash there is the old one or the new one.
pub(crate) fn write(file: &Path, bytes: &[u8], check: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let about = || format!("cannot write {}", file.display());
    let directory = file.parent().with_context(about)?;
    make_directory(directory)?;
    // There is one writer, which holds the lock.
    let new = directory.join("new");
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&new).with_context(about)?;
    opened.set_permissions(Permissions::from_mode(0o600)).with_context(about)?;
    opened.write_all(bytes).and_then(|()| opened.sync_all()).with_context(about)?;
    if let Err(error) = check(&new) {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    std::fs::rename(&new, file).with_context(about)?;
    File::open(directory).and_then(|directory| directory.sync_all()).with_context(about)
}

/// Makes a directory, and those above it, that only this user may enter.
fn make_directory(directory: &Path) -> Result<()> {
    let about = || format!("cannot make the directory {}", directory.display());
    DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(about)?;
    let mode = std::fs::metadata(directory).with_context(about)?.permissions().mode();
    if mode & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700)).with_context(about)?;
    }
    Ok(())
}

/// The right to order, and to write. Two processes of an instance are there during an upgrade.
#[derive(Debug)]
pub(crate) struct StateLock {
    /// Locked as long as it is open.
    _file: File,
}

impl StateLock {
    /// Takes it; `None`: another process has it.
    pub(crate) fn take(state: &Path) -> Result<Option<StateLock>> {
        ensure!(state.is_absolute(), "the state directory {} is no absolute path", state.display());
        make_directory(state)?;
        let path = state.join("lock");
        let about = || format!("cannot use the lock file {}", path.display());
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path).with_context(about)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(StateLock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(about),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("hairpin-acme-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        directory
    }

    fn authority(directory: &str) -> Authority {
        let external_account = None;
        Authority { directory: directory.into(), roots: "/r".into(), contact: Vec::new(), external_account }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn keys_are_for_their_owner_alone() {
        let state = scratch("modes");
        let file = certificate_file(&state, &authority("https://ca.test:14000/dir"), "a.test");
        write(&file, b"key", |_| Ok(())).unwrap();
        let of_name = file.parent().unwrap();
        assert_eq!((mode(&file), mode(of_name), mode(&state)), (0o600, 0o700, 0o700));
        // Rights that others have got meanwhile are taken back.
        std::fs::set_permissions(of_name, Permissions::from_mode(0o755)).unwrap();
        write(&file, b"another key", |_| Ok(())).unwrap();
        assert_eq!((mode(&file), mode(of_name)), (0o600, 0o700));
        assert_eq!(std::fs::read(&file).unwrap(), b"another key");
        std::fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn file_that_is_found_wrong_replaces_nothing() {
        let state = scratch("check");
        let file = state.join("a.pem");
        write(&file, b"old", |_| Ok(())).unwrap();
        let seen = |new: &Path| -> Result<()> {
            assert_eq!((std::fs::read(new)?, mode(new)), (b"new".to_vec(), 0o600));
            bail!("it is wrong")
        };
        assert_eq!(write(&file, b"new", seen).unwrap_err().to_string(), "it is wrong");
        assert_eq!(std::fs::read(&file).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1);
        std::fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn each_directory_url_and_external_account_has_its_own() {
        let of = |authority: &Authority| of_authority(Path::new("/s"), authority);
        let one = authority("https://ca.test:14000/dir");
        assert!(of(&one).to_string_lossy().starts_with("/s/ca.test-"), "{:?}", of(&one));
        let bound = Authority { external_account: Some(("kid".into(), "/key".into())), ..one.clone() };
        assert!(of(&one) != of(&bound) && of(&one) != of(&authority("https://ca.test:14000/other")));
        assert_eq!(of(&one), of(&Authority { contact: vec!["mailto:a@b".into()], ..one.clone() }));
        // A path that leads elsewhere stays below.
        assert_eq!(of(&authority("https://../../x")).parent(), Some(Path::new("/s")));
    }

    #[test]
    fn lock_is_held_by_one() {
        let state = scratch("lock");
        let held = StateLock::take(&state).unwrap().unwrap();
        assert!(StateLock::take(&state).unwrap().is_none());
        drop(held);
        assert!(StateLock::take(&state).unwrap().is_some());
        std::fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn attempts_outlive_the_process() {
        let state = scratch("attempts");
        assert_eq!(read_attempts(&state), Attempts::default());
        let attempts = Attempts { failures: 3, error: "no".into(), last_s: 5, not_before_s: 7, obtained_s: 1 };
        write_attempts(&state, &attempts).unwrap();
        assert_eq!(read_attempts(&state), attempts);
        std::fs::write(state.join("attempts.json"), "nonsense").unwrap();
        assert_eq!(read_attempts(&state), Attempts::default());
        std::fs::remove_dir_all(&state).unwrap();
    }
}
