//! The process's log: lines on standard error, and the instance's events.

use crate::events::{self, Event, EventKind};
use rustix::fs::fstat;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// Lines that wait for the process to have its instance, at most; what comes then is no event.
pub(crate) const EARLY_MAX: usize = 64;

/// The file of the instance's events, once this process has its instance.
static EVENTS: OnceLock<PathBuf> = OnceLock::new();
/// What was said before.
static EARLY: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// This process's log is kept as events of the instance behind `socket`, too: what was said so far, and what will be.
pub(crate) fn keep_events(socket: &Path) {
    let mut early = EARLY.lock().unwrap_or_else(PoisonError::into_inner);
    // A process serves one instance.
    let file = EVENTS.get_or_init(|| events::path(socket));
    early.drain(..).for_each(|event| write(file, &event));
}

/// Says it. A line that begins with `warning: ` is one.
pub(crate) fn log(line: &str) {
    tell(EventKind::Other, line);
}

/// Says it, as an event of this kind.
pub(crate) fn tell(kind: EventKind, line: &str) {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let is_journal = *IS_JOURNAL.get_or_init(|| goes_to_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()));
    match is_journal {
        true => eprintln!("hairpin: {line}"),
        false => eprint!("{}", dated(line, SystemTime::now())),
    }
    keep(kind, line);
}

/// Keeps it as an event alone.
pub(crate) fn keep(kind: EventKind, line: &str) {
    let event = Event::new(kind, line, SystemTime::now());
    if EVENTS.get().is_none() {
        let mut early = EARLY.lock().unwrap_or_else(PoisonError::into_inner);
        if EVENTS.get().is_none() {
            if early.len() < EARLY_MAX {
                early.push(event);
            }
            return;
        }
    }
    EVENTS.get().into_iter().for_each(|file| write(file, &event));
}

/// Writes an event. A file that cannot be written is told of once.
fn write(file: &Path, event: &Event) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if let Err(error) = events::append(file, event)
        && !IS_TOLD.swap(true, Ordering::Relaxed)
    {
        let file = file.display();
        eprintln!("hairpin: warning: `hairpin events` misses events from now on: {file} cannot be written: {error}");
    }
}

/// Whether standard error is the journal, which knows the time of each line itself. `said`: what systemd says the device
/// and inode of the journal's stream are (systemd.exec(5)); a process whose standard error was redirected has it too.
fn goes_to_journal(said: Option<&str>) -> bool {
    let stat = fstat(std::io::stderr());
    stat.is_ok_and(|stat| said == Some(&*format!("{}:{}", stat.st_dev, stat.st_ino)))
}

/// Every line of it with time and level.
fn dated(text: &str, now: SystemTime) -> String {
    let (level, rest) = match text.strip_prefix("warning: ") {
        Some(rest) => ("warning", rest),
        None => ("info", text),
    };
    let time = humantime::format_rfc3339_millis(now);
    rest.lines().map(|line| format!("{time} {level}: hairpin: {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn lines_have_time_and_level() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        assert_eq!(
            dated("it serves\n  web, 2 backends", now),
            "2023-11-14T22:13:20.250Z info: hairpin: it serves\n2023-11-14T22:13:20.250Z info: hairpin:   web, 2 backends\n"
        );
        assert_eq!(dated("warning: no metrics", now), "2023-11-14T22:13:20.250Z warning: hairpin: no metrics\n");
    }

    #[test]
    fn only_the_journals_own_stream_is_the_journal() {
        assert!(!goes_to_journal(None));
        assert!(!goes_to_journal(Some("1:0")));
        let stat = fstat(std::io::stderr()).unwrap();
        assert!(goes_to_journal(Some(&format!("{}:{}", stat.st_dev, stat.st_ino))));
    }
}
