//! Reads fields out of a parsed TOML document, reporting every mistake and continuing with the default.

use super::reference::{Fallback, ReferenceField, ReferenceSection, SECTIONS, ValueForm};
use super::words::SettingWord;
use hairpin_diagnostics::{At, LineName, Sink, described, nearest, one_of};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// One table of the document, or the absence of one.
pub(super) struct TomlTable<'a> {
    sink: &'a Sink<'a>,
    section: &'static ReferenceSection,
    entries: Option<&'a DeTable<'a>>,
    /// The position of the table.
    pub(super) span: Range<usize>,
}

impl<'a> TomlTable<'a> {
    /// The document's root.
    pub(super) fn root(
        sink: &'a Sink<'a>,
        section: &'static ReferenceSection,
        entries: &'a DeTable<'a>,
    ) -> TomlTable<'a> {
        TomlTable::open(sink, section, Some(entries), 0..0)
    }

    fn open(
        sink: &'a Sink<'a>,
        section: &'static ReferenceSection,
        entries: Option<&'a DeTable<'a>>,
        span: Range<usize>,
    ) -> TomlTable<'a> {
        let table = TomlTable { sink, section, entries, span };
        table.refuse_unknown();
        table
    }

    fn refuse_unknown(&self) {
        for (key, value) in self.entries.iter().flat_map(|entries| entries.iter()) {
            let name = key.get_ref().as_ref();
            if self.section.field(name).is_none() {
                let what = format!("unknown field `{name}` in {}", self.section.place());
                let is_table = value.get_ref().as_table().is_some();
                self.sink.error(&key.span(), what, nearest_field(self.section, name, is_table));
            }
        }
    }

    /// The value of a field, if the file gives it.
    pub(super) fn given(&self, name: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(self.section.field(name).is_some(), "{name} is not in the reference");
        self.entries?.get(name)
    }

    /// Whether the file gives the field.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given(name).is_some()
    }

    /// The position of the field, or else of the table.
    pub(super) fn span_of(&self, name: &str) -> Range<usize> {
        self.given(name).map_or_else(|| self.span.clone(), Spanned::span)
    }

    /// A table in this table; an absent one reads as empty.
    pub(super) fn table(&self, name: &str, section: &'static ReferenceSection) -> TomlTable<'a> {
        let value = self.given(name);
        let entries = value.and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.wrong(value, name, "is not a table", &format!("write {} on a line of its own", section.header));
            }
            table
        });
        TomlTable::open(self.sink, section, entries, value.map_or_else(|| self.span.clone(), Spanned::span))
    }

    /// The tables of an array of tables.
    pub(super) fn tables(&self, name: &str, section: &'static ReferenceSection) -> Vec<TomlTable<'a>> {
        let Some(value) = self.given(name) else { return Vec::new() };
        let remedy = format!("write {} on a line of its own for each", section.header);
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(value, name, "is not a list of tables", &remedy);
            return Vec::new();
        };
        let open = |item: &'a Spanned<DeValue<'a>>| match item.get_ref().as_table() {
            Some(table) => Some(TomlTable::open(self.sink, section, Some(table), item.span())),
            None => {
                self.wrong(item, name, "has an entry that is not a table", &remedy);
                None
            }
        };
        array.iter().filter_map(open).collect()
    }

    /// Text of a field, or its default; `None` if it is wrong or it is absent and has no fixed default.
    pub(super) fn text(&self, name: &str) -> Option<At<String>> {
        let Some(value) = self.given(name) else { return self.default_text(name) };
        match value.get_ref().as_str() {
            Some(text) => Some(At { value: text.to_string(), span: value.span() }),
            None => {
                let remedy = format!("write it in quotes, such as {name} = {}", self.example(name));
                self.wrong(value, name, &format!("is {}, not text", described(value.get_ref())), &remedy);
                None
            }
        }
    }

    /// A short name.
    pub(super) fn name(&self, name: &str) -> Option<At<String>> {
        let text = self.text(name)?;
        let Some(ValueForm::Name { length_max }) = self.section.field(name).map(|field| field.kind) else {
            return None;
        };
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.value.is_empty() || text.value.len() > length_max || !text.value.chars().all(legal) {
            let what = format!("`{name}` is \"{}\"", text.value);
            let remedy = format!("use 1 to {length_max} letters, digits, `-` or `_`");
            self.sink.error(&text.span, what, remedy);
            return None;
        }
        Some(text)
    }

    /// The value that a choice's word stands for.
    pub(super) fn choice<T: SettingWord>(&self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        let Some(ValueForm::Choice(words)) = self.section.field(name).map(|field| field.kind) else { return None };
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        if words.contains(&text.value.as_str()) {
            return T::from_word(&text.value);
        }
        self.sink.error(&text.span, format!("`{name}` is \"{}\"", text.value), one_of(&text.value, &words));
        None
    }

    /// A duration; the default if absent or wrong. Zero if there is neither.
    pub(super) fn duration(&self, name: &str) -> Duration {
        self.duration_given(name).or_else(|| self.duration_default(name)).unwrap_or_default()
    }

    /// A duration, only if the file gives it, right.
    pub(super) fn duration_given(&self, name: &str) -> Option<Duration> {
        let value = self.given(name)?;
        let Some(ValueForm::Duration { min_ms, max_ms }) = self.section.field(name).map(|field| field.kind) else {
            return None;
        };
        if let Some(number) = value.get_ref().as_integer() {
            let remedy = format!("say the unit: {name} = \"{number}s\" or \"{number}ms\"");
            self.wrong(value, name, "is a bare number", &remedy);
            return None;
        }
        let text = self.text(name)?;
        match humantime::parse_duration(&text.value) {
            Ok(duration) if (u128::from(min_ms)..=u128::from(max_ms)).contains(&duration.as_millis()) => Some(duration),
            Ok(_) => {
                let [min, max] =
                    [min_ms, max_ms].map(|ms| humantime::format_duration(Duration::from_millis(ms)).to_string());
                let what = format!("`{name}` is \"{}\", out of range", text.value);
                self.sink.error(&text.span, what, format!("use \"{min}\" to \"{max}\""));
                None
            }
            Err(_) => {
                let what = format!("`{name}` is \"{}\", not a duration", text.value);
                let remedy = "write a number and its unit, such as \"500ms\", \"30s\", \"5m\" or \"1h\"";
                self.sink.error(&text.span, what, remedy);
                None
            }
        }
    }

    fn duration_default(&self, name: &str) -> Option<Duration> {
        humantime::parse_duration(&self.default_text(name)?.value).ok()
    }

    /// A whole number; the default if absent or wrong. `None` if it is `"auto"`.
    pub(super) fn integer(&self, name: &str) -> Option<u64> {
        let (min, max, auto) = match self.section.field(name).map(|field| field.kind) {
            Some(ValueForm::Integer { min, max }) => (min, max, false),
            Some(ValueForm::IntegerOrAuto { min, max }) => (min, max, true),
            _ => return None,
        };
        let default = || self.default_text(name).and_then(|text| text.value.parse().ok());
        let Some(value) = self.given(name) else { return default() };
        if auto && value.get_ref().as_str() == Some("auto") {
            return None;
        }
        let form = if auto { format!("{min} to {max} or \"auto\"") } else { format!("{min} to {max}") };
        let (text, radix) = match (value.get_ref().as_integer(), self.substituted(value)) {
            (Some(number), _) => (number.as_str(), number.radix()),
            (None, Some(text)) if text.bytes().all(|byte| byte.is_ascii_digit()) => (text, 10),
            _ => {
                let what = format!("is {}, not a whole number", described(value.get_ref()));
                self.wrong(value, name, &what, &format!("use {form}"));
                return default();
            }
        };
        match u64::from_str_radix(text, radix) {
            Ok(number) if (min..=max).contains(&number) => Some(number),
            _ => {
                let what = format!("is {}, out of range", written(value.get_ref()).trim_matches('"'));
                self.wrong(value, name, &what, &format!("use {form}"));
                default()
            }
        }
    }

    /// The text of a value that variables of the environment have made: it may stand for a number or a truth value, too.
    fn substituted(&self, value: &'a Spanned<DeValue<'a>>) -> Option<&'a str> {
        let text = value.get_ref().as_str()?;
        self.sink.source(&value.span()).contains("${").then_some(text)
    }

    /// A number from 0 to 1; the default if absent or wrong.
    pub(super) fn share(&self, name: &str) -> f64 {
        let default = || self.default_text(name).and_then(|text| text.value.parse().ok()).unwrap_or_default();
        let Some(value) = self.given(name) else { return default() };
        let number: Option<f64> = match value.get_ref() {
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => self.substituted(value).and_then(|text| text.parse().ok()),
        };
        number.filter(|number| (0.0..=1.0).contains(number)).unwrap_or_else(|| {
            let what = format!("is {}, not a number from 0 to 1", written(value.get_ref()));
            self.wrong(value, name, &what, &format!("write a share, such as {name} = {}", self.example(name)));
            default()
        })
    }

    /// Whether something is to be; the default if absent or wrong.
    pub(super) fn boolean(&self, name: &str) -> bool {
        let default = || self.default_text(name).is_some_and(|text| text.value == "true");
        let Some(value) = self.given(name) else { return default() };
        let given = value.get_ref().as_bool().or_else(|| self.substituted(value)?.parse().ok());
        given.unwrap_or_else(|| {
            let what = format!("is {}, neither true nor false", described(value.get_ref()));
            self.wrong(value, name, &what, &format!("write {name} = true or {name} = false, without quotes"));
            default()
        })
    }

    /// A list of texts; empty if absent or wrong.
    pub(super) fn texts(&self, name: &str) -> Vec<At<String>> {
        let Some(value) = self.given(name) else { return Vec::new() };
        let remedy = format!("write a list of texts, such as {name} = {}", self.example(name));
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(value, name, &format!("is {}, not a list", described(value.get_ref())), &remedy);
            return Vec::new();
        };
        let text = |item: &Spanned<DeValue<'a>>| match item.get_ref().as_str() {
            Some(text) => Some(At { value: text.to_string(), span: item.span() }),
            None => {
                self.wrong(item, name, &format!("has an entry that is {}", described(item.get_ref())), &remedy);
                None
            }
        };
        array.iter().filter_map(text).collect()
    }

    /// One text or a list of them, at least one; empty if absent or wrong.
    pub(super) fn one_or_more(&self, name: &str) -> Vec<At<String>> {
        match self.given(name) {
            Some(value) if value.get_ref().as_str().is_some() => self.text(name).into_iter().collect(),
            Some(value) if is_empty_list(value) => {
                self.wrong(value, name, "is an empty list", "leave it out, or name something");
                Vec::new()
            }
            _ => self.texts(name),
        }
    }

    /// The entries of a table whose keys are not known beforehand, in the order of the file.
    pub(super) fn entries(&self, name: &str) -> Vec<(At<String>, &'a Spanned<DeValue<'a>>)> {
        let Some(value) = self.given(name) else { return Vec::new() };
        let Some(table) = value.get_ref().as_table() else {
            let what = format!("is {}, not a table", described(value.get_ref()));
            self.wrong(value, name, &what, &format!("write it so: {name} = {}", self.example(name)));
            return Vec::new();
        };
        let entry = |(key, value): (&'a Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)| {
            (At { value: key.get_ref().to_string(), span: key.span() }, value)
        };
        let mut entries: Vec<_> = table.iter().map(entry).collect();
        entries.sort_by_key(|(key, _)| key.span.start);
        entries
    }

    /// Reports a required field that is absent.
    pub(super) fn missing(&self, name: &str) {
        if self.sink.is_in_parts() {
            return;
        }
        let what = format!("`{name}` is missing in {}", self.section.place());
        self.sink.error(&self.span, what, format!("add {name} = {}", self.example(name)));
    }

    fn default_text(&self, name: &str) -> Option<At<String>> {
        match self.section.field(name)?.fallback {
            Fallback::Value(text) => Some(At { value: text.to_string(), span: self.span.clone() }),
            Fallback::Required | Fallback::From(_) => None,
        }
    }

    fn example(&self, name: &str) -> &'static str {
        self.section.field(name).map_or("", |field| field.example)
    }

    /// Every field that is no table, with what holds for it: what the file says, or the default.
    pub(super) fn said(&self) -> Vec<(String, String)> {
        let place = self.section.header.trim_matches(['[', ']']).trim_start_matches("service.");
        let plain =
            self.section.fields.iter().filter(|field| !matches!(field.kind, ValueForm::Tables | ValueForm::Map));
        let said = |field: &'static ReferenceField| {
            let text = match (self.given(field.name), field.fallback) {
                (Some(value), _) => written(value.get_ref()).trim_matches('"').to_string(),
                (None, Fallback::Value(text) | Fallback::From(text)) => text.to_string(),
                (None, Fallback::Required) => "none".to_string(),
            };
            // However it is written. (What is wrong is reported where it is read.)
            let text = match humantime::parse_duration(&text) {
                Ok(duration) if matches!(field.kind, ValueForm::Duration { .. }) => {
                    humantime::format_duration(duration).to_string()
                }
                _ => text,
            };
            (format!("{place}.{}", field.name), text)
        };
        plain.map(said).collect()
    }

    /// All that the file says in this table, on one line.
    pub(super) fn written(&self) -> String {
        let given = |field: &&ReferenceField| self.given(field.name).map(|value| (field.name, value));
        let fields: Vec<String> = (self.section.fields.iter())
            .filter_map(|field| given(&field))
            .map(|(name, value)| format!("{name} = {}", written(value.get_ref())))
            .collect();
        fields.join(", ")
    }

    /// A field as the file says it, if it does.
    pub(super) fn written_of(&self, name: &str) -> Option<String> {
        self.given(name).map(|value| written(value.get_ref()))
    }

    /// Whether things may be absent only because the file cannot be read where they stand.
    pub(super) fn is_in_parts(&self) -> bool {
        self.sink.is_in_parts()
    }

    /// Reports what is wrong with something in this table.
    pub(super) fn error(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.sink.error(at, what, remedy);
    }

    /// Reports what is doubtful about something in this table.
    pub(super) fn warning(&self, at: &Range<usize>, what: impl Into<String>, remedy: impl Into<String>) {
        self.sink.warning(at, what, remedy);
    }

    /// The file and the line of a byte offset.
    pub(super) fn line(&self, offset: usize) -> LineName {
        self.sink.line(offset)
    }

    fn wrong(&self, value: &Spanned<DeValue<'a>>, name: &str, what: &str, remedy: &str) {
        self.sink.error(&value.span(), format!("`{name}` {what}"), remedy);
    }
}

/// A truth value, also one that a variable of the environment has made.
pub(super) fn truth(value: &DeValue<'_>) -> Option<bool> {
    value.as_bool().or_else(|| value.as_str()?.parse().ok())
}

/// Whether the value is a list without entries (and not something wrong, which is reported elsewhere).
pub(super) fn is_empty_list(value: &Spanned<DeValue<'_>>) -> bool {
    value.get_ref().as_array().is_some_and(|array| array.is_empty())
}

/// `address:port`, with what is wrong if it is not one.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let remedy = "write \"192.0.2.10:80\" or \"[2001:db8::10]:80\"";
    let parsed: SocketAddr = match text.parse() {
        Ok(parsed) => parsed,
        Err(_) if text.parse::<IpAddr>().is_ok() => return Err(format!("has no port; {remedy}")),
        Err(_) if text.rsplit_once(':').is_some_and(|(host, _)| host.parse::<std::net::Ipv6Addr>().is_ok()) => {
            return Err(format!("is an IPv6 address without brackets; {remedy}"));
        }
        Err(_) if port_beyond(text) => return Err("has a port that is out of range; use 1 to 65535".to_string()),
        Err(_) => return Err(format!("is not an address and port; {remedy}")),
    };
    if matches!(parsed, SocketAddr::V6(v6) if v6.scope_id() != 0) {
        return Err("has a zone; leave out `%` and what follows".to_string());
    }
    if parsed.port() == 0 {
        return Err("has port 0; use 1 to 65535".to_string());
    }
    unicast(parsed.ip()).map(|()| parsed)
}

/// Whether it would be an address and port, were its port's number not too large.
fn port_beyond(text: &str) -> bool {
    let digits = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    text.rsplit_once(':').is_some_and(|(host, port)| digits(port) && format!("{host}:1").parse::<SocketAddr>().is_ok())
}

/// Whether packets of other hosts can carry the address, with what is wrong if not.
pub(super) fn unicast(address: IpAddr) -> Result<(), String> {
    let wrong = match address {
        IpAddr::V4(v4) if v4.is_unspecified() => "is the unspecified address; name one address",
        IpAddr::V4(v4) if v4.is_loopback() => "is a loopback address, which never comes in on an interface",
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => "is not a unicast address",
        IpAddr::V4(_) => return Ok(()),
        IpAddr::V6(v6) if v6.is_unspecified() => "is the unspecified address; name one address",
        IpAddr::V6(v6) if v6.is_loopback() => "is a loopback address, which never comes in on an interface",
        IpAddr::V6(v6) if v6.is_multicast() => "is not a unicast address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "is a link-local address, which routers do not forward",
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "is an IPv4-mapped address; write it as IPv4",
        IpAddr::V6(_) => return Ok(()),
    };
    Err(wrong.to_string())
}

fn nearest_field(section: &ReferenceSection, name: &str, is_table: bool) -> String {
    let fits = |other: &&&ReferenceSection| {
        other.field(name).is_some_and(|field| matches!(field.kind, ValueForm::Tables | ValueForm::Map) == is_table)
    };
    // A list with one entry is easily written in the singular.
    let plural = format!("{name}s");
    if section.field(&plural).is_some_and(|field| !is_table && matches!(field.kind, ValueForm::Texts)) {
        return format!("did you mean `{plural}`?");
    }
    if let Some(elsewhere) = SECTIONS.iter().find(fits) {
        return format!("`{name}` belongs in {}", elsewhere.place());
    }
    let names: Vec<&str> = section.fields.iter().map(|field| field.name).collect();
    if let Some(known) = nearest(name, &names) {
        return format!("did you mean `{known}`?");
    }
    let near = |other: &&&ReferenceSection| {
        let names: Vec<&str> = other.fields.iter().map(|field| field.name).collect();
        nearest(name, &names).is_some()
    };
    if let Some(elsewhere) = SECTIONS.iter().find(near) {
        let names: Vec<&str> = elsewhere.fields.iter().map(|field| field.name).collect();
        if let Some(known) = nearest(name, &names) {
            return format!("did you mean `{known}` of {}?", elsewhere.place());
        }
    }
    format!("known fields: {}", names.join(", "))
}

/// A value as it could stand in a file, on one line.
fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => format!("{number}"),
        },
        DeValue::Float(number) => format!("{number}"),
        DeValue::Boolean(value) => format!("{value}"),
        DeValue::Datetime(value) => format!("{value}"),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(entries) => {
            let entry = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
                format!("{} = {}", key.get_ref(), written(value.get_ref()))
            };
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}
