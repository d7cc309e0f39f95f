//! The process's log: lines on standard error.

use rustix::fs::fstat;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Says it. A line that begins with `warning: ` is one.
pub(crate) fn log(line: &str) {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    let is_journal = *IS_JOURNAL.get_or_init(|| goes_to_journal(std::env::var("JOURNAL_STREAM").ok().as_deref()));
    match is_journal {
        true => eprintln!("hairpin: {line}"),
        false => eprint!("{}", dated(line, SystemTime::now())),
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
