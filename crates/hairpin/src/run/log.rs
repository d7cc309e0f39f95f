//! The process's log: lines on standard error, or entries of the journal where that is standard error; and the instance's
//! events.

use super::journal;
use crate::config::{LogFormat, LogLevel, LogSettings};
use crate::events::{self, Event, EventKind, Level};
use crate::json;
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
/// Whether lines are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether only warnings are logged.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on the log is as `settings` say.
pub(crate) fn configure(settings: &LogSettings) {
    IS_JSON.store(settings.format == LogFormat::Json, Ordering::Relaxed);
    IS_QUIET.store(settings.level == LogLevel::Warning, Ordering::Relaxed);
}

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
    let event = Event::new(kind, line, SystemTime::now());
    if event.level == Level::Warning || !IS_QUIET.load(Ordering::Relaxed) {
        say(&event);
    }
    keep_event(event);
}

/// Keeps it as an event alone.
pub(crate) fn keep(kind: EventKind, line: &str) {
    keep_event(Event::new(kind, line, SystemTime::now()));
}

fn say(event: &Event) {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let is_journal =
        *IS_JOURNAL.get_or_init(|| journal::is_standard_error(std::env::var("JOURNAL_STREAM").ok().as_deref()));
    if is_journal {
        // What the journal does not take as an entry it takes as lines, which have no fields.
        if journal::send(Path::new(journal::SOCKET), event, event.kind.word()).is_err() {
            eprintln!("hairpin: {}", event.message);
        }
    } else if IS_JSON.load(Ordering::Relaxed) {
        eprint!("{}", json::line(event).unwrap_or_default());
    } else {
        eprint!("{}", text(event));
    }
}

/// Every line of it with time and level.
fn text(event: &Event) -> String {
    let Event { time, level, message, .. } = event;
    message.lines().map(|line| format!("{time} {}: hairpin: {line}\n", level.word())).collect()
}

fn keep_event(event: Event) {
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

/// Writes an event. A file that cannot be written is told of once, until it can be.
fn write(file: &Path, event: &Event) {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    let written = events::append(file, event);
    if written.is_ok() {
        IS_TOLD.store(false, Ordering::Relaxed);
    } else if let Err(error) = written
        && !IS_TOLD.swap(true, Ordering::Relaxed)
    {
        let file = file.display();
        let told = format!("warning: `hairpin events` misses events: {file} cannot be written: {error}");
        say(&Event::new(EventKind::Other, &told, SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn lines_have_time_and_level() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        let text = |line| text(&Event::new(EventKind::Other, line, now));
        assert_eq!(
            text("it serves\n  web, 2 backends"),
            "2023-11-14T22:13:20.250Z info: hairpin: it serves\n2023-11-14T22:13:20.250Z info: hairpin:   web, 2 backends\n"
        );
        assert_eq!(text("warning: no metrics"), "2023-11-14T22:13:20.250Z warning: hairpin: no metrics\n");
    }
}
