//! Reads what is changed in heads.

use super::super::reader::TomlTable;
use super::super::reference::ReferenceSection;
use super::super::words::{SettingWord, Spoken};
use super::conditions::parsed;
use super::{ENTRIES_MAX, bounded, https};
use hairpin_core::l7::config::{Field, HeadEdits};
use hairpin_core::l7::edit::Variable;
use hairpin_diagnostics::{At, described};
use toml::de::DeValue;

/// Whose heads are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Responses,
}

impl Side {
    fn parse(self, name: &str, value: &str) -> Result<Field, &'static str> {
        match self {
            Side::Requests => Field::parse(name, value),
            Side::Responses => Field::parse_response(name, value),
        }
    }
}

/// What a service knows of its clients' certificates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Certificates {
    /// TLS does not end here; the service is what this word says.
    Unknown(&'static str),
    /// No client is asked for one.
    NotAsked,
    Asked,
}

impl Certificates {
    pub(super) fn of(service: &TomlTable<'_>, spoken: Spoken) -> Certificates {
        match spoken {
            Spoken::Https if https::asks_clients(service) => Certificates::Asked,
            Spoken::Https => Certificates::NotAsked,
            other => Certificates::Unknown(other.word()),
        }
    }
}

/// The changes to requests' heads that a table gives, and what the file says there.
pub(super) fn requests(
    table: &TomlTable<'_>,
    section: &'static ReferenceSection,
    certificates: Certificates,
) -> HeadEdits {
    read(&table.table("request_headers", section), Side::Requests, certificates)
}

/// The changes to responses' heads that a table gives, and what the file says there.
pub(super) fn responses(
    table: &TomlTable<'_>,
    section: &'static ReferenceSection,
    certificates: Certificates,
) -> HeadEdits {
    read(&table.table("response_headers", section), Side::Responses, certificates)
}

fn read(table: &TomlTable<'_>, side: Side, certificates: Certificates) -> HeadEdits {
    HeadEdits {
        remove: parsed(table, "remove", Field::parse_removed).into(),
        set: fields(table, "set", side, certificates),
        add: fields(table, "add", side, certificates),
    }
}

/// Reports a value that says something of the client's certificate where it cannot, or where a client could say the same.
fn check_certificate(table: &TomlTable<'_>, value: &At<&str>, field: &Field, of: (&str, Side, Certificates)) {
    let (list, side, certificates) = of;
    let Some(variable) = field.value.variables().find(|variable| variable.is_of_certificate()) else { return };
    let name = Variable::ALL.iter().find(|(_, other)| *other == variable).map_or("", |(name, _)| *name);
    let what = format!("`{list}` gives {} the value \"{}\"", String::from_utf8_lossy(&field.name), value.value);
    match certificates {
        Certificates::Unknown(word) => {
            let what = format!("{what}, but the service is {word}");
            let remedy = format!("{{{name}}} is known where TLS ends here: make the service https, or leave it out");
            table.error(&value.span, what, remedy);
        }
        Certificates::Asked | Certificates::NotAsked if list == "add" && side == Side::Requests => {
            let remedy =
                format!("a field of that name that the client sends would stay beside it: write {{{name}}} in `set`");
            table.error(&value.span, what, remedy);
        }
        Certificates::NotAsked => {
            let what = format!("{what}, but the service asks no client for a certificate");
            let remedy = "write client_certificates = \"optional\" or \"required\" in [service.https]";
            table.warning(&value.span, what, remedy);
        }
        Certificates::Asked => {}
    }
}

fn fields(table: &TomlTable<'_>, list: &str, side: Side, certificates: Certificates) -> Box<[Field]> {
    let entries = table.entries(list);
    bounded(table, list, entries.len(), ENTRIES_MAX);
    let mut fields = Vec::new();
    for (name, value) in &entries {
        // By itself first, so that it is clear what is wrong.
        if let Err(right) = side.parse(&name.value, "") {
            table.error(&name.span, format!("`{list}` names \"{}\"", name.value), right);
            continue;
        }
        let several = match value.get_ref() {
            DeValue::Array(items) if list == "add" && !items.is_empty() => items.iter().collect(),
            _ => vec![*value],
        };
        for value in several {
            let Some(text) = value.get_ref().as_str() else {
                let what = format!("`{list}` gives {} {} for a value", name.value, described(value.get_ref()));
                table.error(&value.span(), what, format!("write text: {} = \"...\"", name.value));
                continue;
            };
            match side.parse(&name.value, text) {
                Ok(field) => {
                    let value = At { value: text, span: value.span() };
                    check_certificate(table, &value, &field, (list, side, certificates));
                    fields.push(field);
                }
                Err(right) => {
                    let what = format!("`{list}` gives {} the value \"{text}\"", name.value);
                    table.error(&value.span(), what, right);
                }
            }
        }
    }
    fields.into()
}
