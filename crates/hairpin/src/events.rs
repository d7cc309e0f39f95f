//! What has happened to an instance: for each event a line of JSON, in two files beside the control socket (`hairpin events`).
//!
//! A file is opened and locked for each event, so that threads, and two processes during an upgrade, do not put aside what another
//! one has just begun. Events are rare, and nothing on a packet's way writes one.

use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a file of events. A full one is put aside in the place of the one before, so twice as many are kept at most.
pub(crate) const FILE_BYTES_MAX: u64 = 512 * 1024;
/// Bytes of an event's text; what is beyond is left out.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// How often a file may have been put aside between its opening and its locking.
const TRIES: usize = 16;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EventKind {
    /// A process began to serve.
    Start,
    /// A process ended.
    Stop,
    /// A reload was applied.
    Reload,
    /// A reload or an upgrade was refused, or failed: what was there goes on.
    Refusal,
    /// A backend was drained, disabled, enabled or given another weight by `hairpin backend`.
    Backend,
    /// The API changed the configuration.
    Api,
    /// A backend's health changed.
    Health,
    /// A process handed over to another one.
    Upgrade,
    /// Something is full or nearly so, or a time limit ended something.
    Limit,
    /// A certificate was obtained, replaced or refused, or is about to expire.
    Certificate,
    /// The link of an interface or port.
    Link,
    /// Anything else that the log says.
    #[serde(other)]
    Other,
}

/// How serious an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// All is well.
    Info,
    /// A person should look at it.
    Warning,
}

impl EventKind {
    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            EventKind::Start => "start",
            EventKind::Stop => "stop",
            EventKind::Reload => "reload",
            EventKind::Refusal => "refusal",
            EventKind::Backend => "backend",
            EventKind::Api => "api",
            EventKind::Health => "health",
            EventKind::Upgrade => "upgrade",
            EventKind::Limit => "limit",
            EventKind::Certificate => "certificate",
            EventKind::Link => "link",
            EventKind::Other => "other",
        }
    }
}

impl Level {
    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// When, in UTC (RFC 3339, milliseconds): texts of this form are ordered as their times are.
    pub(crate) time: String,
    /// How serious it is.
    pub(crate) level: Level,
    /// What it is about.
    pub(crate) kind: EventKind,
    /// The process that tells it.
    pub(crate) pid: u32,
    /// What has happened, for people; may have several lines.
    pub(crate) message: String,
}

impl Event {
    /// One of this process, at `now`. A text that begins with `warning: ` is a warning.
    pub(crate) fn new(kind: EventKind, text: &str, now: SystemTime) -> Event {
        let (level, text) = match text.strip_prefix("warning: ") {
            Some(rest) => (Level::Warning, rest),
            None if kind == EventKind::Refusal => (Level::Warning, text),
            None => (Level::Info, text),
        };
        Event { time: stamp(now), level, kind, pid: std::process::id(), message: text.to_owned() }
    }
}

/// A time as events have it. Where the clock is before 1970, it is that.
pub(crate) fn stamp(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.max(UNIX_EPOCH)).to_string()
}

/// The file with the newest events of the instance behind this control socket.
pub(crate) fn path(socket: &Path) -> PathBuf {
    socket.with_extension("events")
}

/// The file with those before.
fn older(file: &Path) -> PathBuf {
    file.with_extension("events.1")
}

/// Adds an event, with [`MESSAGE_BYTES_MAX`] of its text at most.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn append(file: &Path, event: &Event) -> Result<()> {
    let text = &event.message;
    let end = (0..=text.len().min(MESSAGE_BYTES_MAX)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let mut line = match end == text.len() {
        true => serde_json::to_vec(event)?,
        false => serde_json::to_vec(&Event { message: text[..end].to_owned(), ..event.clone() })?,
    };
    line.push(b'\n');
    for _ in 0..TRIES {
        let mut opened = open(file)?;
        // Until it is closed.
        flock(&opened, FlockOperation::LockExclusive)?;
        let metadata = opened.metadata()?;
        let is_there = std::fs::metadata(file).is_ok_and(|there| there.ino() == metadata.ino());
        if is_there && metadata.len() + line.len() as u64 > FILE_BYTES_MAX {
            std::fs::rename(file, older(file))?;
        } else if is_there {
            // A full disk may have cut the last line off.
            let mut last = [b'\n'];
            if metadata.len() > 0 {
                opened.read_exact_at(&mut last, metadata.len() - 1)?;
            }
            if last != [b'\n'] {
                line.insert(0, b'\n');
            }
            return opened.write_all(&line);
        }
    }
    Err(ErrorKind::WouldBlock.into())
}

fn open(file: &Path) -> Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(file)
}

/// Reads events, and later those that have come since.
#[derive(Debug)]
pub(crate) struct EventReader {
    file: PathBuf,
    /// The file that was read last, by its inode, and how far.
    place: Option<(u64, u64)>,
}

impl EventReader {
    /// Begins with the oldest event of `file`.
    pub(crate) fn new(file: PathBuf) -> EventReader {
        EventReader { file, place: None }
    }

    /// The events that have not been read, by their time. What is no event is left out: a line that a full disk has cut
    /// off.
    ///
    /// # Errors
    /// A file cannot be read. A missing one has no events.
    pub(crate) fn read(&mut self) -> Result<Vec<Event>> {
        let mut bytes = Vec::new();
        let Some(mut newest) = opened(&self.file)? else { return Ok(Vec::new()) };
        let inode = newest.metadata()?.ino();
        let from = match self.place {
            Some((before, from)) if before == inode => from,
            place => {
                // Else it was put aside since, or nothing was read yet.
                if let Some(mut aside) = opened(&older(&self.file))? {
                    let number = aside.metadata()?.ino();
                    // It may have been put aside just now.
                    if number != inode {
                        let from = place.filter(|(before, _)| *before == number).map_or(0, |(_, from)| from);
                        read_from(&mut aside, from, &mut bytes)?;
                    }
                }
                0
            }
        };
        read_from(&mut newest, from, &mut bytes)?;
        self.place = Some((inode, newest.stream_position()?));
        let lines = bytes.split(|&byte| byte == b'\n');
        let mut events: Vec<Event> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        // One that another thread has told earlier may be written later.
        events.sort_by(|one, other| one.time.cmp(&other.time));
        Ok(events)
    }
}

fn opened(file: &Path) -> Result<Option<File>> {
    match File::open(file) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads whole lines from `from` on, and leaves the file where the next one begins.
fn read_from(file: &mut File, from: u64, bytes: &mut Vec<u8>) -> Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let before = bytes.len();
    file.take(FILE_BYTES_MAX).read_to_end(bytes)?;
    let whole = bytes[before..].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    bytes.truncate(before + whole);
    file.seek(SeekFrom::Start(from + whole as u64))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A directory of one test's own.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let directory = std::env::temp_dir().join(format!("hairpin-events-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Scratch(directory)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn event(kind: EventKind, text: &str) -> Event {
        Event::new(kind, text, UNIX_EPOCH + Duration::from_millis(1_700_000_000_250))
    }

    #[test]
    fn event_is_read_back_as_it_was_written() {
        let directory = Scratch::new("back");
        let file = path(&directory.0.join("edge.sock"));
        let mut reader = EventReader::new(file.clone());
        assert_eq!(reader.read().unwrap(), []);
        let told = [event(EventKind::Start, "it serves\n  web"), event(EventKind::Other, "warning: no metrics")];
        told.iter().for_each(|event| append(&file, event).unwrap());
        assert_eq!(told[1].level, Level::Warning);
        assert_eq!((&*told[1].message, &*told[0].time), ("no metrics", "2023-11-14T22:13:20.250Z"));
        assert_eq!(reader.read().unwrap(), told);
        assert_eq!(reader.read().unwrap(), [], "they come once");
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn files_stay_within_their_bound_and_a_reader_misses_nothing() {
        let directory = Scratch::new("bound");
        let file = directory.0.join("edge.events");
        let mut reader = EventReader::new(file.clone());
        let mut read = 0;
        for number in 0..300 {
            append(&file, &event(EventKind::Health, &format!("{number} {}", "x".repeat(9000)))).unwrap();
            for event in reader.read().unwrap() {
                assert!(event.message.starts_with(&format!("{read} ")), "event {read} is missing");
                assert!(event.message.len() <= MESSAGE_BYTES_MAX);
                read += 1;
            }
        }
        assert_eq!(read, 300);
        let bytes = |file: &Path| std::fs::metadata(file).unwrap().len();
        assert!(bytes(&file) <= FILE_BYTES_MAX && bytes(&older(&file)) <= FILE_BYTES_MAX);
        let kept = EventReader::new(file).read().unwrap();
        assert!(kept.len() > 60 && kept.last().unwrap().message.starts_with("299 "), "{} are kept", kept.len());
    }

    #[test]
    fn words_of_kinds_are_those_of_json() {
        for kind in EventKind::value_variants() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
    }

    #[test]
    fn lines_that_are_no_events_are_left_out() {
        let directory = Scratch::new("lines");
        let file = directory.0.join("edge.events");
        append(&file, &event(EventKind::Link, "up")).unwrap();
        let later =
            r#"{"time":"2023-11-14T22:13:20.250Z","level":"info","kind":"of-a-later-version","pid":1,"message":"new"}"#;
        open(&file).unwrap().write_all(format!("{{\"time\": \n\u{1}\n{later}\n{{\"half").as_bytes()).unwrap();
        let mut reader = EventReader::new(file.clone());
        let mut kinds = || -> Vec<EventKind> { reader.read().unwrap().into_iter().map(|event| event.kind).collect() };
        assert_eq!(kinds(), [EventKind::Link, EventKind::Other]);
        append(&file, &event(EventKind::Stop, "behind half a line")).unwrap();
        assert_eq!(kinds(), [EventKind::Stop]);
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        const WRITERS: usize = 8;
        const EACH: usize = 40;
        let directory = Scratch::new("writers");
        let file = directory.0.join("edge.events");
        // So much that the file is put aside once, and not twice.
        let text = "x".repeat(FILE_BYTES_MAX as usize * 3 / 2 / (WRITERS * EACH));
        std::thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| (0..EACH).for_each(|_| append(&file, &event(EventKind::Health, &text)).unwrap()));
            }
        });
        assert!(older(&file).exists());
        assert_eq!(EventReader::new(file).read().unwrap().len(), WRITERS * EACH);
    }

    #[test]
    fn times_before_1970_are_shown_as_that() {
        assert_eq!(stamp(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}
