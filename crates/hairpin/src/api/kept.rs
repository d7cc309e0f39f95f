//! What the API changed, kept across restarts: the configuration in force, in a file of its own, while it differs from the
//! configuration file.
//!
//! The file is written whole beside its place and renamed there: before a change comes into force it lies beside, and it takes its
//! place when the change is in force. A start reads it in place of the configuration file.

use super::Document;
use crate::config::{self, Config};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The form of the file; another one is refused.
const FORM: u32 = 1;
/// Bytes of the file at most: a configuration, and what JSON makes of it.
pub(crate) const FILE_BYTES_MAX: u64 = 24 << 20;

/// The directory of the files, if the configuration names no other.
pub(crate) const STATE: &str = "/var/lib/hairpin/api";

#[derive(Serialize, Deserialize)]
struct KeptForm {
    form: u32,
    /// The version of the configuration file when the API changed something last.
    file_version: String,
    /// The configuration in force.
    text: String,
}

/// The place of an instance's file.
pub(crate) fn path(state: &Path, instance: &str) -> PathBuf {
    state.join(format!("{instance}.json"))
}

/// The configuration to begin with: what the API left, if it left anything, in place of the one that was read from `file`. The
/// second value is what the file says, if that is something else.
///
/// # Errors
/// What it left cannot be read, or is wrong by now.
pub(crate) fn resolve(from_file: Config, file: &Path, warn: impl Fn(&str)) -> Result<(Config, Option<Arc<str>>)> {
    let Some(api) = &from_file.settings.api else {
        let path = path(Path::new(STATE), &from_file.settings.instance);
        if path.exists() {
            warn(&format!(
                "warning: {} has what the API left, and is ignored: {} has no [api]; add it, or remove that file",
                path.display(),
                file.display()
            ));
        }
        return Ok((from_file, None));
    };
    let path = path(&api.state, &from_file.settings.instance);
    let remedy = || {
        format!(
            "{} has the configuration that the API left, and is used in place of {}; mend what it names, or remove it to begin \
             with the configuration file",
            path.display(),
            file.display()
        )
    };
    let Some(kept) = read(&path).with_context(remedy)? else { return Ok((from_file, None)) };
    let says = Document::of(&from_file.text).map_err(anyhow::Error::msg)?;
    let config = config::parse(&path.display().to_string(), &kept.text).with_context(remedy)?;
    if says.means(&Document::of(&config.text).map_err(anyhow::Error::msg)?) {
        // It was written back.
        remove(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        return Ok((from_file, None));
    }
    if let Some(what) = fixed(&from_file, &config) {
        bail!("{} has another {what} than what the API left; {}", file.display(), remedy());
    }
    if says.version() != kept.file_version {
        warn(&format!(
            "warning: {} has changed since the API changed the configuration; what the API left is in force until `hairpin reload \
             --discard`",
            file.display()
        ));
    }
    Ok((config, Some(from_file.text)))
}

/// What the API never changes, because it says where the instance and the API are found: the first field in which two
/// configurations differ.
pub(crate) fn fixed(one: &Config, other: &Config) -> Option<&'static str> {
    let [one, other] = [one, other].map(|config| &config.settings);
    let differs = [
        ("`instance`", one.instance != other.instance),
        ("`directory` of [control]", one.control_directory != other.control_directory),
        ("[api]", one.api != other.api),
    ];
    differs.into_iter().find_map(|(what, differs)| differs.then_some(what))
}

fn read(path: &Path) -> Result<Option<KeptForm>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("it cannot be opened"),
    };
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "it has more than {FILE_BYTES_MAX} bytes");
    let kept: KeptForm = serde_json::from_slice(&text).context("it makes no sense")?;
    ensure!(kept.form == FORM, "it has form {}, this version of Hairpin knows form {FORM}", kept.form);
    Ok(Some(kept))
}

/// Removes an instance's file; it need not be there.
///
/// # Errors
/// It is there, and cannot be removed.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file that lies beside its place, with another extension. Dropped, it goes.
#[derive(Debug)]
pub(crate) struct PreparedFile {
    path: PathBuf,
    new: Option<PathBuf>,
}

impl PreparedFile {
    /// Writes what is to be kept beside `path`, for root only; `says`: what the configuration file says.
    ///
    /// # Errors
    /// It cannot be written. What was kept before still is.
    pub(crate) fn write(path: &Path, document: &Document, says: &Document) -> Result<PreparedFile> {
        let kept = KeptForm { form: FORM, file_version: says.version().to_owned(), text: document.text().to_owned() };
        let bytes = serde_json::to_vec(&kept)?;
        ensure!(bytes.len() as u64 <= FILE_BYTES_MAX, "it would have more than {FILE_BYTES_MAX} bytes");
        Ok(PreparedFile::of(path, &bytes)?)
    }

    /// Writes `bytes` beside `path`, for root only.
    ///
    /// # Errors
    /// They cannot be written. What is at `path` stays.
    pub(crate) fn of(path: &Path, bytes: &[u8]) -> std::io::Result<PreparedFile> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let new = path.with_extension("new");
        // Left by a process that died here.
        remove(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let prepared = PreparedFile { path: path.to_path_buf(), new: Some(new) };
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(prepared)
    }

    /// Puts it into its place.
    ///
    /// # Errors
    /// It cannot be; what was kept before still is.
    pub(crate) fn commit(mut self) -> std::io::Result<()> {
        let Some(new) = &self.new else { return Ok(()) };
        fs::rename(new, &self.path)?;
        self.new = None;
        match self.path.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for PreparedFile {
    fn drop(&mut self) {
        if let Some(new) = &self.new {
            let _ = fs::remove_file(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let directory = std::env::temp_dir().join(format!("hairpin-api-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&directory);
            Scratch(directory)
        }

        fn text(&self, more: &str) -> String {
            format!(
                "instance = \"i\"\ninterfaces = [\"eth0\"]\napi.state = {:?}\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\n\
                 backends = [\"10.0.0.1:80\"]\n{more}",
                self.0
            )
        }

        fn path(&self) -> PathBuf {
            path(&self.0, "i")
        }

        /// The text to begin with where the file says `text`, and warnings.
        fn resolve(&self, text: &str) -> Result<(String, bool, usize)> {
            let warnings = Mutex::new(0);
            let config = config::parse("file", text).unwrap();
            let (config, says) = resolve(config, Path::new("file"), |_| *warnings.lock().unwrap() += 1)?;
            Ok((config.text.to_string(), says.is_some(), warnings.into_inner().unwrap()))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_the_api_left_is_used_until_the_file_says_it() {
        let scratch = Scratch::new("left");
        let (file, changed) = (scratch.text(""), scratch.text("balance = \"maglev\"\n"));
        assert_eq!(scratch.resolve(&file).unwrap(), (file.clone(), false, 0));
        let [says, document] = [&file, &changed].map(|text| Document::of(text).unwrap());
        drop(PreparedFile::write(&scratch.path(), &document, &says).unwrap());
        assert_eq!(scratch.resolve(&file).unwrap(), (file.clone(), false, 0), "one that was not committed");
        PreparedFile::write(&scratch.path(), &document, &says).unwrap().commit().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&scratch.path()), mode(&scratch.0)), (0o600, 0o700));
        assert_eq!(scratch.resolve(&file).unwrap(), (changed.clone(), true, 0));
        assert_eq!(scratch.resolve(&scratch.text("mode = \"nat\"\n")).unwrap(), (changed.clone(), true, 1));
        assert!(!scratch.resolve(&format!("# written back\n{changed}")).unwrap().1);
        assert!(!scratch.path().exists());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let scratch = Scratch::new("named");
        let file = scratch.text("");
        let says = Document::of(&file).unwrap();
        let wrong = Document::of(&scratch.text("balance = \"no such\"\n")).unwrap();
        PreparedFile::write(&scratch.path(), &wrong, &says).unwrap().commit().unwrap();
        let refused = format!("{:#}", scratch.resolve(&file).unwrap_err());
        assert!(refused.contains("remove it to begin") && refused.contains("`balance`"), "{refused}");
        for nonsense in ["", "{}", "{\"form\":2,\"file_version\":\"\",\"text\":\"\"}"] {
            fs::write(scratch.path(), nonsense).unwrap();
            assert!(scratch.resolve(&file).is_err(), "{nonsense}");
        }
        let elsewhere =
            Document::of(&scratch.text("").replace("[[service]]", "control.directory = \"/x\"\n[[service]]")).unwrap();
        PreparedFile::write(&scratch.path(), &elsewhere, &says).unwrap().commit().unwrap();
        let refused = format!("{:#}", scratch.resolve(&file).unwrap_err());
        assert!(refused.contains("another `directory` of [control]"), "{refused}");
    }
}
