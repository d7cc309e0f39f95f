//! Automatic certificates, as tables.

use super::{add, aligned, fitted, span};
use crate::status::{AcmeNameStatus, AcmeStatus};
use comfy_table::Table;
use std::fmt::Write;

/// Names that are shown: those that are not held first, then those that are ordered first.
const SHOWN: usize = 8;

/// What is not as it should be, and the names, at the time `now` in seconds since 1970.
pub(super) fn acme(acme: &AcmeStatus, now: f64, width: Option<usize>) -> String {
    let mut text = format!("automatic certificates by {}", acme.directory);
    if !acme.error.is_empty() {
        let _ = write!(text, "\nnone is ordered now: {}", acme.error);
    }
    for name in acme.names.iter().filter(|name| !name.error.is_empty()).take(SHOWN) {
        let _ = write!(text, "\nno certificate for {}: {}", name.name, name.error);
    }
    let _ = write!(text, "\n\n{}", fitted(names(acme, now), width, &[1]));
    text
}

fn names(acme: &AcmeStatus, now: f64) -> Table {
    let mut table = aligned(&["NAME", "CHALLENGE", "STATE"], &["FAILURES", "NEXT ORDER"]);
    let mut names: Vec<&AcmeNameStatus> = acme.names.iter().collect();
    names.sort_by_key(|name| (name.state == "held", name.next_order_unix_s));
    for name in names.iter().take(SHOWN) {
        let left = name.next_order_unix_s as f64 - now;
        let next = if left <= 0.0 { "now".to_string() } else { format!("in {}", span(left)) };
        add(&mut table, &[&name.name, &name.challenge, &name.state], &[name.failures.to_string(), next]);
    }
    if names.len() > SHOWN {
        let more = format!("and {} more", names.len() - SHOWN);
        add(&mut table, &[&more, "", ""], &[String::new(), String::new()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;

    #[test]
    fn names_without_certificate_come_first() {
        let name = |name: &str, state: &str, next: i64, error: &str| AcmeNameStatus {
            name: name.into(),
            challenge: "http-01".into(),
            state: state.into(),
            next_order_unix_s: next,
            failures: u32::from(!error.is_empty()),
            error: error.into(),
            ..AcmeNameStatus::default()
        };
        let names = vec![name("a.test", "held", 7300, ""), name("b.test", "failed", 220, "connection: no route")];
        let status = AcmeStatus { directory: "https://ca.test/dir".into(), names, ..AcmeStatus::default() };
        let lines = squeezed(&acme(&status, 100.0, None));
        assert_eq!(
            lines[..2],
            ["automatic certificates by https://ca.test/dir", "no certificate for b.test: connection: no route"]
        );
        assert!(lines[4].starts_with("b.test http-01 failed 1 in 2"), "{lines:?}");
        assert!(lines[5].starts_with("a.test http-01 held 0 in 2"), "{lines:?}");
    }
}
