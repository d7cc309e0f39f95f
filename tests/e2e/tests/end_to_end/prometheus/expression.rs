//! What an expression of PromQL names: selectors of series, and labels by which it groups and joins.
//!
//! Prometheus answers `sum by (nonsense) (...)` and `{nonsense!~"x"}` without a complaint, so that an answer alone does not show that
//! an expression names what there is.

use std::collections::BTreeSet;

/// Words before a list of labels.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that stand alone and are no metrics.
const WORDS: [&str; 15] = [
    "and", "or", "unless", "offset", "bool", "sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "inf",
    "nan",
];

/// What stands before the names of several metrics and the bars between them.
const ALTERNATIVES: &str = "__name__=~\"";

/// The names in an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Metrics with their matchers, as they stand there; of a selector of several metrics one for each.
    pub(super) selectors: BTreeSet<String>,
    /// Labels of matchers and of lists.
    pub(super) labels: BTreeSet<String>,
}

impl Names {
    /// Reads an expression that Prometheus has understood.
    pub(super) fn of(expression: &str) -> Names {
        let mut names = Names::default();
        let mut rest = expression;
        while let Some(first) = rest.chars().next() {
            let word = &rest[..rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len())];
            if first == '{' {
                rest = names.selector("", rest);
            } else if word.is_empty() {
                rest = &rest[first.len_utf8()..];
            } else if first.is_ascii_digit() {
                // A number or a duration.
                rest = &rest[word.len()..];
            } else {
                rest = names.word(rest, word);
            }
        }
        names
    }

    /// Takes a word that is no number at the beginning of `rest`, and what belongs to it; gives what follows.
    fn word<'a>(&mut self, rest: &'a str, word: &str) -> &'a str {
        let after = &rest[word.len()..];
        if LISTS.contains(&word) {
            let Some((list, after)) = after.trim_start().strip_prefix('(').and_then(|list| list.split_once(')')) else {
                return after;
            };
            self.labels.extend(list.split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty()));
            return after;
        }
        if WORDS.contains(&word) || after.trim_start().starts_with('(') {
            return after;
        }
        self.selector(word, after)
    }

    /// Takes a selector: a metric, which may be empty, and the matchers that may follow; gives what follows them.
    fn selector<'a>(&mut self, metric: &str, after: &'a str) -> &'a str {
        let matchers = if after.starts_with('{') { matchers(after) } else { "" };
        let alternatives =
            matchers.split_once(ALTERNATIVES).and_then(|(before, rest)| Some((before, rest.split_once('"')?)));
        match alternatives {
            Some((before, (metrics, rest))) => {
                let each = metrics.split('|').map(|metric| format!("{before}__name__=\"{metric}\"{rest}"));
                self.selectors.extend(each);
            }
            None => _ = self.selectors.insert(format!("{metric}{matchers}")),
        }
        let inside = matchers.trim_matches(['{', '}']);
        // Between two texts in quotes stand a comma and the next label, with its operator.
        for label in inside.split('"').step_by(2) {
            let label = label.trim_matches(|c: char| !is_of_word(c));
            if !label.is_empty() && label != "__name__" {
                self.labels.insert(label.to_owned());
            }
        }
        &after[matchers.len()..]
    }
}

/// The matchers at the beginning of a text, with their braces. A regular expression in quotes may have braces of its own.
fn matchers(text: &str) -> &str {
    let mut is_quoted = false;
    let end = text.find(|c| {
        is_quoted ^= c == '"';
        c == '}' && !is_quoted
    });
    &text[..end.map_or(text.len(), |end| end + 1)]
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// What a wrong reading would let through.
pub(super) fn are_read() -> anyhow::Result<()> {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let names = Names::of(
        "histogram_quantile(0.99, sum by (service, le) (rate(a_bucket{service=~\"x{2}|y\", b!=\"\"}[5m]))) > 1e3 and on \
         (le) c:d unless ignoring() up{job=\"j\"} offset 5m / {__name__=~\"e|f\", class=\"5xx\"}",
    );
    let selectors = set(&[
        "a_bucket{service=~\"x{2}|y\", b!=\"\"}",
        "c:d",
        "up{job=\"j\"}",
        "{__name__=\"e\", class=\"5xx\"}",
        "{__name__=\"f\", class=\"5xx\"}",
    ]);
    let right = Names { selectors, labels: set(&["service", "le", "b", "job", "class"]) };
    anyhow::ensure!(names == right, "{names:?}");
    Ok(())
}
