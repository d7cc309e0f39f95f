//! The bounds as a page, as text and as JSON.

use super::{Counter, GROUPS, Limit, LimitView, Value};
use crate::config::wrapped;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Columns of the text for people.
const COLUMNS: usize = 100;
/// Columns in front of what is said of a bound.
const INDENT: usize = 16;

const BEGINNING: &str = "<!-- Printed by `hairpin limits --markdown`; change crates/hairpin/src/limits instead. -->

# Limits

Everything has a bound and a stated behaviour when the bound is reached. Established connections are never evicted.

```mermaid
flowchart LR
    card[\"interface\"] --> policer[\"policer:<br/>token buckets\"]
    policer --> tap[\"TAP queue:<br/>tap_queue\"]
    tap --> table[\"connection table:<br/>connections_max\"]
    table --> pool[\"full-NAT ports:<br/>[pool] ports\"]
    table --> answers[\"answers<br/>per second\"]
    table --> queue[\"requests<br/>to the engine\"]
    queue --> rules[\"rules:<br/>rules_max\"]
```

";

const COLUMNS_DOC: &str = "\
`hairpin limits` prints all of this, with `-o json` for programs. *Bound* is the default where an *option* of the
[configuration](configuration.md) sets it; the option is written as a dotted key. *Counter* is the [metric](metrics.md) that
grows when the bound is reached; `hairpin status` shows the same reasons. \"none\" means that no counter shows it.
";

/// The documentation page `docs/reference/limits.md`.
pub fn markdown() -> String {
    let mut out = format!("{BEGINNING}{COLUMNS_DOC}");
    for group in GROUPS {
        let _ = writeln!(out, "\n## {}\n", group.title);
        if !group.doc.is_empty() {
            let _ = writeln!(out, "{}\n", wrapped(group.doc, 118));
        }
        out.push_str("| what | bound | option | counter | when it is reached |\n|---|---|---|---|---|\n");
        for limit in group.limits {
            let option = limit.option().map_or(String::new(), |option| format!("`{option}`"));
            let counters: Vec<String> = limit.counters.iter().map(|counter| format!("`{}`", counter.text())).collect();
            let counters = if counters.is_empty() { "none".to_string() } else { counters.join("<br>") };
            let (name, bound, then) = (limit.name, limit.text(), limit.when_reached);
            let _ = writeln!(out, "| {name} | {bound} | {option} | {counters} | {then} |");
        }
    }
    out
}

/// The bounds for people, on lines of at most `width` columns if that is given: a paragraph for each. Counters stand on lines of
/// their own, so that they can be searched and copied whole; in a column of a table they would be broken.
pub(crate) fn table(width: Option<usize>) -> String {
    let columns = width.map_or(COLUMNS, |width| width.clamp(2 * INDENT, COLUMNS));
    let mut out = String::new();
    for group in GROUPS {
        let _ = writeln!(out, "{}{}", if out.is_empty() { "" } else { "\n" }, group.title.to_uppercase());
        if !group.doc.is_empty() {
            let _ = writeln!(out, "{}", wrapped(group.doc, columns));
        }
        for limit in group.limits {
            let _ = writeln!(out, "\n{}", wrapped(limit.name, columns));
            let bound = limit.option().map_or(limit.text(), |option| format!("{} ({option})", limit.text()));
            row(&mut out, "bound", wrapped(&bound, columns - INDENT));
            let counters: Vec<String> = limit.counters.iter().map(Counter::text).collect();
            row(&mut out, "counter", if counters.is_empty() { "none".to_string() } else { counters.join("\n") });
            row(&mut out, "when reached", wrapped(limit.when_reached, columns - INDENT));
        }
    }
    out
}

/// Lines of text behind a word that says what they are.
fn row(out: &mut String, word: &str, lines: String) {
    let words = std::iter::once(word).chain(std::iter::repeat(""));
    for (word, line) in words.zip(lines.lines()) {
        let _ = writeln!(out, "  {word:<width$}{line}", width = INDENT - 2);
    }
}

/// The bounds as one line of JSON.
///
/// # Errors
/// It is none.
pub(crate) fn json() -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Limits {
        limits: Vec<LimitView>,
    }
    let views = GROUPS.iter().flat_map(|group| group.limits.iter().map(|limit| limit.view(group.title)));
    crate::json::line(&Limits { limits: views.collect() })
}

impl Limit {
    /// How far it goes, with its unit.
    pub(super) fn text(&self) -> String {
        let unit = self.unit();
        match self.value() {
            Value::Number(bytes) if unit == "bytes" => size(bytes),
            Value::Number(number) => format!("{} {unit}", grouped(number)),
            Value::OneFor(1) => format!("1 {unit}"),
            Value::OneFor(number) => format!("1/{number} {unit}"),
            Value::Time(time) => self.given().map_or_else(|| span(time), str::to_string),
            Value::Unlimited => "unlimited".to_string(),
            Value::Automatic => "automatic".to_string(),
        }
    }
}

/// A time: exact below a second, else to the second.
fn span(time: Duration) -> String {
    let shown =
        if time < Duration::from_secs(1) { time } else { Duration::from_secs(time.as_secs_f64().round() as u64) };
    humantime::format_duration(shown).to_string()
}

/// Bytes, in the largest unit of which they are a multiple.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", grouped(bytes >> 20)),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", grouped(bytes >> 10)),
        _ => format!("{} bytes", grouped(bytes)),
    }
}

/// A number with a comma between each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = (0..digits.len().div_ceil(3))
        .map(|group| {
            let end = digits.len() - 3 * group;
            &digits[end.saturating_sub(3)..end]
        })
        .collect();
    groups.into_iter().rev().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_and_sizes_their_largest_unit() {
        assert_eq!(
            [0, 12, 999, 1000, 1_000_000, 12_345].map(grouped),
            ["0", "12", "999", "1,000", "1,000,000", "12,345"]
        );
        assert_eq!(
            [1, 1023, 1024, 98_304, 1 << 20, 77_720].map(size),
            ["1 bytes", "1,023 bytes", "1 KiB", "96 KiB", "1 MiB", "77,720 bytes"]
        );
    }
}
