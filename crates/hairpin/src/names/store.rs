//! The file with the last good answers, by which a start has backends when no server answers.

use super::{Answers, Found, Question, ResolverSettings};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of the file that are read at most.
pub(crate) const FILE_BYTES_MAX: u64 = 16 << 20;
/// The form of the file; another one is not read.
const VERSION: u32 = 1;

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    question: Question,
    found: Vec<Found>,
    /// When it was confirmed last, in seconds since 1970.
    confirmed_unix_s: u64,
}

impl Stored {
    /// One that was confirmed `age` ago.
    pub(super) fn new(question: &Question, found: &[Found], age: Duration) -> Stored {
        let confirmed_unix_s = unix_s().saturating_sub(age.as_secs());
        Stored { question: question.clone(), found: found.to_vec(), confirmed_unix_s }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredForm {
    version: u32,
    answers: Vec<Stored>,
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn file(settings: &ResolverSettings, instance: &str) -> PathBuf {
    settings.state.join(format!("{instance}.json"))
}

/// What the file has. One that is not there, or makes no sense, has nothing.
fn read(settings: &ResolverSettings, instance: &str) -> Vec<Stored> {
    let mut text = Vec::new();
    let read = File::open(file(settings, instance)).map(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text));
    let form = read.ok().and_then(|_| serde_json::from_slice::<StoredForm>(&text).ok());
    form.filter(|form| form.version == VERSION).map(|form| form.answers).unwrap_or_default()
}

/// The answers that were stored and are no older than `keep`; of each `addresses_max` addresses.
pub(crate) fn load(settings: &ResolverSettings, instance: &str) -> Answers {
    let now = unix_s();
    let mut answers = Answers::new();
    for mut stored in read(settings, instance) {
        // One from the future is of a clock that was wrong.
        let age = now.checked_sub(stored.confirmed_unix_s);
        if age.is_some_and(|age| age <= settings.keep.as_secs()) {
            stored.found.truncate(settings.addresses_max);
            answers.insert(stored.question, stored.found);
        }
    }
    answers
}

/// Writes answers, and keeps of the file what it has about `others`, in the place of what was there: after a crash there are the old
/// ones or the new ones.
///
/// # Errors
/// They cannot be written.
pub(super) fn save(
    settings: &ResolverSettings,
    instance: &str,
    mut answers: Vec<Stored>,
    others: &[&Question],
) -> Result<()> {
    let path = file(settings, instance);
    let about = || format!("cannot write {}", path.display());
    if !others.is_empty() {
        answers.extend(read(settings, instance).into_iter().filter(|stored| others.contains(&&stored.question)));
    }
    DirBuilder::new().recursive(true).mode(0o755).create(&settings.state).with_context(about)?;
    // During an upgrade two processes write.
    let new = settings.state.join(format!("{instance}.{}.new", std::process::id()));
    let text = serde_json::to_vec(&StoredForm { version: VERSION, answers })?;
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o644).open(&new).with_context(about)?;
    opened.write_all(&text).and_then(|()| opened.sync_all()).with_context(about)?;
    fs::rename(&new, &path).with_context(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_answers_are_found_again() {
        let directory = std::env::temp_dir().join(format!("hairpin-names-{}", std::process::id()));
        let settings = ResolverSettings {
            servers: Vec::new(),
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            retries: 0,
            addresses_max: 1,
            hold: Duration::ZERO,
            keep: Duration::from_secs(100),
            state: directory.clone(),
        };
        let question = |name: &str| Question { name: name.into(), is_srv: false, is_ipv6: false };
        let found: Vec<Found> = [1, 2].map(|last| Found { address: [10, 0, 0, last].into(), srv: None }).to_vec();
        assert_eq!(load(&settings, "i"), Answers::new());
        let young = Stored::new(&question("young."), &found, Duration::from_secs(50));
        let old = Stored::new(&question("old."), &found, Duration::from_secs(150));
        save(&settings, "i", vec![young, old], &[]).unwrap();
        let loaded = [load(&settings, "i"), load(&settings, "other")];
        // What was not asked for since keeps its time.
        save(&settings, "i", Vec::new(), &[&question("young.")]).unwrap();
        let kept = read(&settings, "i");
        fs::write(directory.join("i.json"), "{").unwrap();
        let broken = load(&settings, "i");
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(loaded, [Answers::from([(question("young."), found[..1].to_vec())]), Answers::new()]);
        assert_eq!((broken, kept.len(), &kept[0].question), (Answers::new(), 1, &question("young.")));
    }
}
