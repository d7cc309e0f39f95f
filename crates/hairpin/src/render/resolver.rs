//! Backends by name, as a table.

use super::{add, aligned, fitted, span};
use crate::status::{NameStatus, ResolverStatus};
use comfy_table::Table;
use std::fmt::Write;

/// Names that are shown: those that are not resolved first.
const SHOWN: usize = 8;
/// Addresses of a name that are shown.
const ADDRESSES_SHOWN: usize = 4;

/// What is not as it should be, and the names.
pub(super) fn resolver(resolver: &ResolverStatus, width: Option<usize>) -> String {
    let mut text = format!("names looked up at {}", resolver.servers.join(", "));
    for name in resolver.names.iter().filter(|name| !name.error.is_empty()).take(SHOWN) {
        let _ = write!(text, "\n{} cannot be looked up: {}", name.name, name.error);
    }
    let _ = write!(text, "\n\n{}", fitted(names(resolver), width, &[3]));
    text
}

fn names(resolver: &ResolverStatus) -> Table {
    let mut table = aligned(&["NAME", "RECORDS", "STATE", "ADDRESSES"], &["REFUSED", "FAILURES", "NEXT"]);
    let mut names: Vec<&NameStatus> = resolver.names.iter().collect();
    names.sort_by_key(|name| name.state == "resolved");
    for name in names.iter().take(SHOWN) {
        let mut addresses: Vec<&str> = name.addresses.iter().take(ADDRESSES_SHOWN).map(String::as_str).collect();
        let more = format!("and {} more", name.addresses.len().saturating_sub(ADDRESSES_SHOWN));
        if name.addresses.len() > ADDRESSES_SHOWN {
            addresses.push(&more);
        }
        let numbers = [name.refused.to_string(), name.failures.to_string(), format!("in {}", span(name.next_s as f64))];
        add(&mut table, &[&name.name, &name.records, &name.state, &addresses.join(" ")], &numbers);
    }
    if names.len() > SHOWN {
        let more = format!("and {} more", names.len() - SHOWN);
        add(&mut table, &[&more, "", "", ""], &[const { String::new() }; 3]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::squeezed;
    use super::*;

    #[test]
    fn names_that_are_not_resolved_come_first() {
        let name = |name: &str, state: &str, addresses: &[&str], error: &str| NameStatus {
            name: name.into(),
            records: "A".into(),
            state: state.into(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            failures: u32::from(!error.is_empty()),
            error: error.into(),
            next_s: 7,
            ..NameStatus::default()
        };
        let names = vec![
            name("a.test", "resolved", &["10.0.0.1", "10.0.0.2"], ""),
            name("b.test", "stale", &["10.0.0.3"], "no answer"),
        ];
        let status = ResolverStatus { servers: vec!["10.0.0.53:53".into()], names, ..ResolverStatus::default() };
        let lines = squeezed(&resolver(&status, None));
        assert_eq!(lines[..2], ["names looked up at 10.0.0.53:53", "b.test cannot be looked up: no answer"]);
        assert_eq!(lines[4], "b.test A stale 10.0.0.3 0 1 in 7s");
        assert_eq!(lines[5], "a.test A resolved 10.0.0.1 10.0.0.2 0 0 in 7s");
    }
}
