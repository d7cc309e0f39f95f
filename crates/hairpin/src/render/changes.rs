//! The changes that a reload has made, or would make.

use crate::control::Changes;
use std::fmt::Write;

/// A line for each change, then for what has to wait, then for what is doubtful; `none` if nothing changes.
pub fn changes(changes: &Changes, none: &str) -> String {
    let mut out = String::new();
    if changes.changes.is_empty() && changes.later.is_empty() {
        let _ = writeln!(out, "{none}");
    }
    for change in &changes.changes {
        let _ = writeln!(out, "{change}");
    }
    if !changes.later.is_empty() {
        let _ = writeln!(out, "only after a restart or `hairpin upgrade`:");
        changes.later.iter().for_each(|change| out.push_str(&format!("  {change}\n")));
    }
    for warning in &changes.warnings {
        let _ = writeln!(out, "{}{warning}", if warning.contains("warning: ") { "" } else { "warning: " });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_first_then_what_waits_then_warnings() {
        let all = Changes {
            changes: vec!["service web: backend 10.0.2.13:8080 added".into()],
            later: vec!["workers: 2 -> 4".into()],
            warnings: vec!["x.toml:3:1: warning: odd".into(), "ports overlap".into()],
        };
        assert_eq!(
            changes(&all, "nothing"),
            "service web: backend 10.0.2.13:8080 added\n\
             only after a restart or `hairpin upgrade`:\n\
             \x20 workers: 2 -> 4\n\
             x.toml:3:1: warning: odd\n\
             warning: ports overlap\n"
        );
        assert_eq!(
            changes(&Changes { changes: vec![], later: vec![], ..all }, "nothing").lines().next(),
            Some("nothing")
        );
        assert_eq!(changes(&Changes::default(), "nothing"), "nothing\n");
    }
}
