//! How far something is, on standard error: a line that is written over on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a line is written over.
const ON_TERMINAL: Duration = Duration::from_millis(200);
/// How often there is a line elsewhere.
const ELSEWHERE: Duration = Duration::from_secs(10);

/// The place of a command among several that are performed one after the other.
#[derive(Clone, Debug)]
pub(super) struct PartOfAll {
    /// Which one it is, for people.
    pub(super) name: String,
    /// How long those after it take, about.
    pub(super) after: Duration,
}

/// The destination of progress.
pub(super) struct ProgressOutput {
    is_terminal: bool,
    is_quiet: bool,
    /// What it is a part of, if it is one.
    part: Option<PartOfAll>,
    last: Option<Instant>,
    /// Characters of the line that stands there.
    width: usize,
}

impl ProgressOutput {
    /// On standard error, or nowhere.
    pub(super) fn new(is_quiet: bool) -> ProgressOutput {
        ProgressOutput { is_terminal: std::io::stderr().is_terminal(), is_quiet, part: None, last: None, width: 0 }
    }

    /// Of a command that is a part of several, if it is.
    pub(super) fn of_part(is_quiet: bool, part: Option<&PartOfAll>) -> ProgressOutput {
        ProgressOutput { part: part.cloned(), ..ProgressOutput::new(is_quiet) }
    }

    /// How far it is: done, of all, and how long it still takes, if that is known; `more` follows.
    pub(super) fn share(&mut self, (done, all): (usize, usize), left: Option<Duration>, more: impl FnOnce() -> String) {
        let said = |left: Option<Duration>| left.map_or("?".to_owned(), about);
        let head = match &self.part {
            None => format!("[{done}/{all}, {} left] ", said(left)),
            Some(PartOfAll { name, after }) => {
                let in_all = said(left.map(|left| left + *after));
                format!("{name} [{done}/{all}, {} left; {in_all} in all] ", said(left))
            }
        };
        self.state(|| head + &more());
    }

    /// Something that will be written over soon; left out if the last one is not long ago.
    pub(super) fn state(&mut self, text: impl FnOnce() -> String) {
        let every = if self.is_terminal { ON_TERMINAL } else { ELSEWHERE };
        if self.is_quiet || self.last.is_some_and(|last| last.elapsed() < every) {
            return;
        }
        self.last = Some(Instant::now());
        let text = text();
        if self.is_terminal {
            let width = text.chars().count();
            // Progress that cannot be written has no reader.
            let _ = write!(std::io::stderr(), "\r{text}{:1$}", "", self.width.saturating_sub(width));
            self.width = width;
        } else {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Something that stays.
    pub(super) fn line(&mut self, text: &str) {
        if self.is_quiet {
            return;
        }
        self.clear();
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// Takes the line away that would be written over.
    pub(super) fn clear(&mut self) {
        if self.width > 0 {
            let _ = write!(std::io::stderr(), "\r{:1$}\r", "", self.width);
            self.width = 0;
        }
    }
}

impl Drop for ProgressOutput {
    fn drop(&mut self) {
        self.clear();
    }
}

/// How a generator, sink or device is getting on.
#[cfg(feature = "dpdk")]
pub(super) fn running(progress: &mut ProgressOutput, state: &hairpin_lab::testbed::TrialProgress) {
    use hairpin_lab::testbed::TrialProgress as State;
    match state {
        State::Preparing { what } => progress.state(|| what.clone()),
        State::Started { .. } => progress.state(|| "running".to_owned()),
        State::Running { elapsed, sent, received } => {
            progress.state(|| format!("{:.1} s: {sent} sent, {received} received", elapsed.as_secs_f64()));
        }
    }
}

/// How long the rest takes, if all of it goes on as what was done in this time; `None`: nothing was done yet.
pub(super) fn left(elapsed: Duration, done: usize, all: usize) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

/// A time as people say it: hours and minutes, minutes and seconds, or seconds.
pub(super) fn about(duration: Duration) -> String {
    match duration.as_secs() {
        seconds if seconds >= 3600 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        seconds if seconds >= 60 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let said = [0, 59, 60, 3599, 7260].map(|seconds| about(Duration::from_secs(seconds)));
        assert_eq!(said, ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "2 h 1 min"]);
    }

    #[test]
    fn rest_takes_as_long_as_what_was_done() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(minute, 1, 4), Some(3 * minute));
        assert_eq!((left(minute, 4, 4), left(minute, 0, 4)), (Some(Duration::ZERO), None));
    }
}
