//! A strict reader of both text formats: whatever is doubtful is an error.
//!
//! Prometheus text format 0.0.4 and OpenMetrics 1.0.0, without exemplars and timestamps, which Hairpin does not write.

use std::collections::{BTreeMap, BTreeSet};

/// The contents of a page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Type and meaning by family, as the format calls it.
    pub(crate) families: BTreeMap<String, (String, String)>,
    /// Value by series: its name and labels.
    pub(crate) series: BTreeMap<(String, Labels), f64>,
}

/// Labels by name.
pub(crate) type Labels = BTreeMap<String, String>;

impl Page {
    /// The value of the series with exactly these labels.
    #[track_caller]
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        match self.series.get(&(name.to_string(), labels.clone())) {
            Some(value) => *value,
            None => panic!("no series {name} {labels:?}"),
        }
    }

    /// All series of this name.
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Labels, f64)> {
        self.series.iter().filter(move |((of, _), _)| of == name).map(|((_, labels), value)| (labels, *value))
    }
}

/// Which format to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// 0.0.4.
    Prometheus,
    /// 1.0.0.
    OpenMetrics,
}

/// Reads a page; the error names the line.
pub(crate) fn parse(format: Format, text: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let mut current: Option<Open> = None;
    let lines = text.strip_suffix('\n').ok_or("no newline at the end")?.split('\n').enumerate();
    let mut ended = false;
    for (number, line) in lines {
        let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
        if ended {
            return Err(wrong("something after the end"));
        }
        if format == Format::OpenMetrics && line == "# EOF" {
            ended = true;
        } else if let Some(rest) = line.strip_prefix("# ") {
            read_comment(&mut page, &mut current, rest).map_err(|what| wrong(&what))?;
        } else {
            let open = current.as_mut().ok_or_else(|| wrong("a sample of no family"))?;
            let (name, labels, value) = read_sample(line).map_err(|what| wrong(&what))?;
            open.check(format, &name, &labels, value).map_err(|what| wrong(&what))?;
            if page.series.insert((name, labels), value).is_some() {
                return Err(wrong("a series twice"));
            }
        }
    }
    if format == Format::OpenMetrics && !ended {
        return Err("no # EOF".to_string());
    }
    check_histograms(&page)?;
    Ok(page)
}

/// The family whose samples may follow.
struct Open {
    family: String,
    kind: Option<String>,
}

fn read_comment(page: &mut Page, current: &mut Option<Open>, rest: &str) -> Result<(), String> {
    let mut words = rest.splitn(3, ' ');
    let mut word = || words.next().filter(|word| !word.is_empty()).ok_or("a word is missing");
    let (keyword, name, text) = (word()?, word()?, word()?);
    check_name(name, true)?;
    match keyword {
        "HELP" => {
            if text.contains(['\\', '"']) {
                return Err("meanings are to need no escaping".into());
            }
            if page.families.insert(name.into(), (String::new(), text.into())).is_some() {
                return Err("a family twice".into());
            }
            *current = Some(Open { family: name.into(), kind: None });
        }
        "TYPE" => {
            let open = current.as_mut().filter(|open| open.family == name).ok_or("a type without a meaning")?;
            if !["counter", "gauge", "histogram", "info"].contains(&text) || open.kind.is_some() {
                return Err("a wrong or second type".into());
            }
            open.kind = Some(text.into());
            page.families.get_mut(name).ok_or("no such family")?.0 = text.into();
        }
        _ => return Err("an unknown comment".into()),
    }
    Ok(())
}

impl Open {
    fn check(&self, format: Format, series: &str, labels: &Labels, value: f64) -> Result<(), String> {
        let suffix = series.strip_prefix(&*self.family).ok_or("a sample of another family")?;
        let kind = self.kind.as_deref().ok_or("a sample before its type")?;
        let suffixes: &[&str] = match (kind, format) {
            ("counter", Format::OpenMetrics) => &["_total"],
            ("info", Format::OpenMetrics) => &["_info"],
            ("info", Format::Prometheus) => return Err("there is no such type".into()),
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        if !suffixes.contains(&suffix) {
            return Err(format!("a {kind} with this suffix"));
        }
        if kind == "counter" && !self.family.ends_with("_total") && format == Format::Prometheus {
            return Err("a counter that does not say so".into());
        }
        if kind != "gauge" && (value.is_nan() || value < 0.0) || kind == "info" && value != 1.0 {
            return Err("an impossible value".into());
        }
        if labels.contains_key("le") != (suffix == "_bucket") {
            return Err("`le` at the wrong place".into());
        }
        Ok(())
    }
}

fn read_sample(line: &str) -> Result<(String, Labels, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_name(name, true)?;
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = read_labels(inside, &mut labels)?;
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    if !value.starts_with(|c: char| c.is_ascii_digit() || "-+.NI".contains(c)) || value.contains(' ') {
        return Err("not a value".into());
    }
    Ok((name.into(), labels, value.parse().map_err(|_| "not a number")?))
}

/// `a="b",c="d"} ...`; returns what follows the brace.
fn read_labels<'a>(mut rest: &'a str, labels: &mut Labels) -> Result<&'a str, String> {
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without value")?;
        check_name(name, false)?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().ok_or("a label without end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().map(|(_, escaped)| escaped) {
                    Some('\\') => '\\',
                    Some('"') => '"',
                    Some('n') => '\n',
                    _ => return Err("an unknown escape".into()),
                }),
                (_, c) => value.push(c),
            }
        };
        if labels.insert(name.into(), value).is_some() {
            return Err("a label twice".into());
        }
        rest = &after[end + 1..];
        if let Some(after) = rest.strip_prefix('}') {
            return Ok(after);
        }
        rest = rest.strip_prefix(',').ok_or("no comma between labels")?;
    }
}

fn check_name(name: &str, colons: bool) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || colons && c == ':';
    match name.chars().next() {
        Some(first) if !first.is_ascii_digit() && name.chars().all(legal) => Ok(()),
        _ => Err(format!("not a name: {name:?}")),
    }
}

/// Buckets grow, and the last one is +Inf and holds everything.
fn check_histograms(page: &Page) -> Result<(), String> {
    for name in page.families.iter().filter(|(_, (kind, _))| kind == "histogram").map(|(name, _)| name) {
        let bucket = format!("{name}_bucket");
        let mut by_labels: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for (labels, value) in page.named(&bucket) {
            let mut labels = labels.clone();
            let upper: f64 = labels.remove("le").and_then(|le| le.parse().ok()).ok_or("`le` is not a number")?;
            by_labels.entry(labels).or_default().push((upper, value));
        }
        let count = format!("{name}_count");
        let counted: BTreeSet<&Labels> = page.named(&count).map(|(labels, _)| labels).collect();
        if counted != by_labels.keys().collect() {
            return Err(format!("{name}: buckets and counts do not match"));
        }
        for (labels, mut buckets) in by_labels {
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (upper, all) = *buckets.last().ok_or("no bucket")?;
            let grows = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
            if !grows || upper != f64::INFINITY || page.series.get(&(count.clone(), labels)) != Some(&all) {
                return Err(format!("{name}: impossible buckets {buckets:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_parser_refuses_what_is_wrong() {
    let head = "# HELP a_total Something.\n# TYPE a_total counter\n";
    let good = format!("{head}a_total{{b=\"c\\\"\\\\\\n\"}} 1\na_total 2\n");
    let page = parse(Format::Prometheus, &good).unwrap();
    assert_eq!(page.value("a_total", &[("b", "c\"\\\n")]), 1.0);
    for wrong in [
        "a_total 1",
        "a_total 1\na_total 2\n",
        "a_total{b=\"c\"} 1\na_total{b=\"c\"} 1\n",
        "b_total 1\n",
        "a_total{b=\"c} 1\n",
        "a_total{b=\"\\c\"} 1\n",
        "a_total{b=\"c\"\"} 1\n",
        "a_total{1b=\"c\"} 1\n",
        "a_total{b=\"c\",b=\"d\"} 1\n",
        "a_total -1\n",
        "a_total one\n",
        "a_total 1 2 3\n",
        "a_total  1\n",
        "# EOF\n",
        "# HELP a_total Again.\n",
    ] {
        assert!(parse(Format::Prometheus, &format!("{head}{wrong}")).is_err(), "{wrong}");
    }
    let open = "# HELP a Something.\n# TYPE a histogram\n";
    let buckets = |text: &str| parse(Format::OpenMetrics, &format!("{open}{text}# EOF\n"));
    assert!(buckets("a_sum 1\na_count 2\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\n").is_ok());
    assert!(buckets("a_sum 1\na_count 3\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\n").is_err());
    assert!(buckets("a_sum 1\na_count 2\na_bucket{le=\"1\"} 3\na_bucket{le=\"+Inf\"} 2\n").is_err());
    assert!(buckets("a_sum 1\na_count 1\na_bucket{le=\"1\"} 1\n").is_err());
    assert!(parse(Format::OpenMetrics, open).is_err());
}
