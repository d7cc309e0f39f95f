//! Reads fields out of a parsed TOML document, reporting every mistake and continuing with the default.

use hairpin_diagnostics::{At, Sink, described, nearest, one_of};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Entries of a list at most.
const LIST_MAX: usize = 64;

/// One table of the document, or the absence of one. Fields are asked for by name; [`TomlTable::end`] reports the rest.
pub(super) struct TomlTable<'a> {
    sink: &'a Sink<'a>,
    place: &'static str,
    entries: Option<&'a DeTable<'a>>,
    span: Range<usize>,
    asked: RefCell<BTreeSet<&'static str>>,
}

impl<'a> TomlTable<'a> {
    /// The document's root.
    pub(super) fn root(sink: &'a Sink<'a>, entries: &'a DeTable<'a>) -> TomlTable<'a> {
        TomlTable::open(sink, "the file's first part", Some(entries), 0..0)
    }

    fn open(
        sink: &'a Sink<'a>,
        place: &'static str,
        entries: Option<&'a DeTable<'a>>,
        span: Range<usize>,
    ) -> TomlTable<'a> {
        TomlTable { sink, place, entries, span, asked: RefCell::default() }
    }

    /// Reports fields that the reader has not asked for.
    pub(super) fn end(self) {
        let asked: Vec<&str> = self.asked.borrow().iter().copied().collect();
        for (key, _) in self.entries.iter().flat_map(|entries| entries.iter()) {
            let name = key.get_ref().as_ref();
            if !asked.contains(&name) {
                let remedy = match nearest(name, &asked) {
                    Some(known) => format!("did you mean `{known}`?"),
                    None => format!("known fields: {}", asked.join(", ")),
                };
                self.sink.error(&key.span(), format!("unknown field `{name}` in {}", self.place), remedy);
            }
        }
    }

    fn given(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().insert(name);
        self.entries?.get(name)
    }

    /// Whether the file gives the field.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.given(name).is_some()
    }

    /// The position of the field, or else of the table.
    pub(super) fn span_of(&self, name: &'static str) -> Range<usize> {
        self.given(name).map_or_else(|| self.span.clone(), Spanned::span)
    }

    /// Reports what is wrong with something in this table.
    pub(super) fn error(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.sink.error(at, what, remedy);
    }

    /// Reports a required field that is absent.
    pub(super) fn missing(&self, name: &'static str, example: &str) {
        self.sink.error(
            &self.span,
            format!("`{name}` is missing in {}", self.place),
            format!("add {name} = {example}"),
        );
    }

    /// A table in this table, written `[name]`; an absent one reads as empty.
    pub(super) fn table(&self, name: &'static str, place: &'static str) -> TomlTable<'a> {
        let value = self.given(name);
        let entries = value.and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.wrong(value, name, "a table", &format!("write {place} on a line of its own"));
            }
            table
        });
        TomlTable::open(self.sink, place, entries, value.map_or_else(|| self.span.clone(), Spanned::span))
    }

    /// The tables of an array of tables, written `[[name]]`.
    pub(super) fn tables(&self, name: &'static str, place: &'static str) -> Vec<TomlTable<'a>> {
        let Some(value) = self.given(name) else { return Vec::new() };
        let remedy = format!("write {place} on a line of its own for each");
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(value, name, "a list of tables", &remedy);
            return Vec::new();
        };
        let open = |item: &'a Spanned<DeValue<'a>>| match item.get_ref().as_table() {
            Some(table) => Some(TomlTable::open(self.sink, place, Some(table), item.span())),
            None => {
                self.wrong(item, name, "a table", &remedy);
                None
            }
        };
        array.iter().filter_map(open).collect()
    }

    /// Text of a field, if the file gives it, right.
    pub(super) fn text(&self, name: &'static str) -> Option<At<String>> {
        let value = self.given(name)?;
        match value.get_ref().as_str() {
            Some(text) => Some(At { value: text.to_owned(), span: value.span() }),
            None => {
                self.wrong(value, name, "text", &format!("write it in quotes: {name} = \"...\""));
                None
            }
        }
    }

    /// A field whose text is one of these words.
    pub(super) fn choice(&self, name: &'static str, words: &[&str]) -> Option<At<String>> {
        let text = self.text(name)?;
        if words.contains(&text.value.as_str()) {
            return Some(text);
        }
        self.sink.error(&text.span, format!("`{name}` is \"{}\"", text.value), one_of(&text.value, words));
        None
    }

    /// A duration with its unit; the default if absent or wrong.
    pub(super) fn duration(&self, name: &'static str, default: Duration, range: RangeInclusive<Duration>) -> Duration {
        let Some(value) = self.given(name) else { return default };
        let text = value.get_ref().as_str();
        match text.and_then(|text| humantime::parse_duration(text).ok()) {
            Some(duration) if range.contains(&duration) => return duration,
            Some(_) => {
                let [least, most] = [range.start(), range.end()].map(|end| humantime::format_duration(*end));
                let what = format!("`{name}` is {}, out of range", described(value.get_ref()));
                self.sink.error(&value.span(), what, format!("use \"{least}\" to \"{most}\""));
            }
            None => self.wrong(value, name, "a duration", "write a number and its unit: \"500ms\", \"2s\", \"1m\""),
        }
        default
    }

    /// Whether something is to be; the default if absent or wrong.
    pub(super) fn boolean(&self, name: &'static str, default: bool) -> bool {
        let Some(value) = self.given(name) else { return default };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.wrong(value, name, "true or false", &format!("write {name} = true or {name} = false"));
            default
        })
    }

    /// A whole number; the default if absent or wrong.
    pub(super) fn integer(&self, name: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        self.given(name).and_then(|value| self.integer_of(value, name, &range)).unwrap_or(default)
    }

    /// A number, whole or not; the default if absent or wrong.
    pub(super) fn number(&self, name: &'static str, default: f64, range: RangeInclusive<f64>) -> f64 {
        self.given(name).and_then(|value| self.number_of(value, name, &range)).unwrap_or(default)
    }

    /// A list of whole numbers, each once; the default if absent or wrong.
    pub(super) fn integers(&self, name: &'static str, default: &[u64], range: RangeInclusive<u64>) -> Vec<u64> {
        self.list(name, default, "numbers", |value| self.integer_of(value, name, &range))
    }

    /// A list of numbers, each once; the default if absent or wrong.
    pub(super) fn numbers(&self, name: &'static str, default: &[f64], range: RangeInclusive<f64>) -> Vec<f64> {
        self.list(name, default, "numbers", |value| self.number_of(value, name, &range))
    }

    /// A list of what is written as text or as a number, each once; the default if absent or wrong.
    pub(super) fn words<T>(&self, name: &'static str, default: &[T]) -> Vec<T>
    where
        T: FromStr<Err: Display> + Clone + PartialEq,
    {
        self.list(name, default, "words", |value| self.word_of(value, &format!("an entry of `{name}`")))
    }

    /// One of them, if the file gives it, right.
    pub(super) fn word<T: FromStr<Err: Display>>(&self, name: &'static str) -> Option<T> {
        self.word_of(self.given(name)?, &format!("`{name}`"))
    }

    fn word_of<T: FromStr<Err: Display>>(&self, value: &Spanned<DeValue<'a>>, what: &str) -> Option<T> {
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            other => described(other),
        };
        match text.replace('_', "").parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.sink.error(&value.span(), what, format!("{error}"));
                None
            }
        }
    }

    fn list<T: Clone + PartialEq>(
        &self,
        name: &'static str,
        default: &[T],
        what: &str,
        mut read: impl FnMut(&'a Spanned<DeValue<'a>>) -> Option<T>,
    ) -> Vec<T> {
        let Some(value) = self.given(name) else { return default.to_vec() };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(value, name, &format!("a list of {what}"), &format!("write {name} = [...]"));
            return default.to_vec();
        };
        if array.is_empty() || array.len() > LIST_MAX {
            let what = format!("`{name}` has {} entries", array.len());
            self.sink.error(&value.span(), what, format!("give 1 to {LIST_MAX}"));
        }
        let mut list: Vec<T> = Vec::new();
        for item in array.iter().take(LIST_MAX) {
            match read(item) {
                Some(entry) if list.contains(&entry) => {
                    self.sink.error(&item.span(), format!("an entry of `{name}` stands twice"), "take one away");
                }
                Some(entry) => list.push(entry),
                None => {}
            }
        }
        list
    }

    fn integer_of(&self, value: &Spanned<DeValue<'a>>, name: &str, range: &RangeInclusive<u64>) -> Option<u64> {
        let form = format!("use {} to {}", range.start(), range.end());
        let Some(number) = value.get_ref().as_integer() else {
            self.wrong(value, name, "a whole number", &form);
            return None;
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                self.sink.error(&value.span(), format!("`{name}` is {number}, out of range"), form);
                None
            }
        }
    }

    fn number_of(&self, value: &Spanned<DeValue<'a>>, name: &str, range: &RangeInclusive<f64>) -> Option<f64> {
        let form = format!("use {} to {}", range.start(), range.end());
        let number: Option<f64> = match value.get_ref() {
            DeValue::Integer(number) => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        match number {
            Some(number) if range.contains(&number) => return Some(number),
            Some(number) => self.sink.error(&value.span(), format!("`{name}` is {number}, out of range"), form),
            None => self.wrong(value, name, "a number", &form),
        }
        None
    }

    fn wrong(&self, value: &Spanned<DeValue<'a>>, name: &str, wanted: &str, remedy: &str) {
        let what = format!("`{name}` is {}, not {wanted}", described(value.get_ref()));
        self.sink.error(&value.span(), what, remedy);
    }
}
