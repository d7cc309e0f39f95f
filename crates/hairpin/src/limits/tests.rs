//! The list of bounds agrees with the page, the metrics and the configuration reference.

use super::{Bound, Counter, GROUPS, Limit, Value, markdown, table};
use crate::config::reference::SECTIONS;
use crate::metrics::{families, reasons};
use std::collections::BTreeSet;
use std::path::Path;

fn all() -> impl Iterator<Item = &'static Limit> {
    GROUPS.into_iter().flat_map(|group| group.limits)
}

#[test]
fn page_of_limits_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/limits.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let right = markdown();
    if page != right && std::env::var_os("HAIRPIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, right).unwrap();
        return;
    }
    assert!(page == right, "run: HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --lib page_of_limits");
}

#[test]
fn every_counter_is_a_metric_with_that_label() {
    let known: BTreeSet<String> = families::all().map(families::MetricFamily::series).collect();
    for limit in all() {
        for Counter { series, label } in limit.counters {
            assert!(known.contains(*series), "{series} of {}", limit.name);
            let Some((name, value)) = label else { continue };
            let values = reasons::values_of(series, name);
            assert!(values.iter().any(|known| known == value), "{series}, {name} {value} of {}", limit.name);
        }
    }
}

#[test]
fn every_option_is_in_the_configuration_reference() {
    for limit in all() {
        let Bound::Option(section, field, _) = limit.bound else { continue };
        let documented = SECTIONS.iter().any(|known| known.header == section.header && known.field(field).is_some());
        assert!(documented, "{field} of {}", section.place());
        // The one whose default the machine decides.
        assert!(limit.value() != Value::Automatic || field == "mbufs", "{field} has no default that can be read");
    }
}

#[test]
fn names_are_unique_and_texts_can_stand_in_cells() {
    let mut names = BTreeSet::new();
    for limit in all() {
        assert!(names.insert(limit.name), "{} twice", limit.name);
        assert!(!limit.text().is_empty() && limit.when_reached.ends_with('.'), "{}", limit.name);
        assert!(!(limit.name.to_string() + limit.when_reached).contains(['|', '\n', '<']), "{}", limit.name);
    }
}

#[test]
fn text_has_every_bound_and_whole_counters() {
    let text = table(None);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for limit in all() {
        assert!(text.contains(&crate::config::wrapped(limit.name, 100)), "{}", limit.name);
        for counter in limit.counters {
            assert!(lines.iter().any(|line| line.ends_with(&counter.text())), "{}", counter.text());
        }
    }
    assert!(text.contains("(limits.connections_max)"));
}
