//! Reads what is changed in heads.

use super::super::reader::TomlTable;
use super::super::reference::ReferenceSection;
use super::conditions::parsed;
use super::{ENTRIES_MAX, bounded};
use hairpin_core::l7::config::{Field, HeadEdits};
use hairpin_diagnostics::described;
use toml::de::DeValue;

type Parse = fn(&str, &str) -> Result<Field, &'static str>;

/// The changes to requests' heads that a table gives, and what the file says there.
pub(super) fn requests(table: &TomlTable<'_>, section: &'static ReferenceSection) -> HeadEdits {
    read(&table.table("request_headers", section), Field::parse)
}

/// The changes to responses' heads that a table gives, and what the file says there.
pub(super) fn responses(table: &TomlTable<'_>, section: &'static ReferenceSection) -> HeadEdits {
    read(&table.table("response_headers", section), Field::parse_response)
}

fn read(table: &TomlTable<'_>, parse: Parse) -> HeadEdits {
    HeadEdits {
        remove: parsed(table, "remove", Field::parse_removed).into(),
        set: fields(table, "set", parse),
        add: fields(table, "add", parse),
    }
}

fn fields(table: &TomlTable<'_>, list: &str, parse: Parse) -> Box<[Field]> {
    let entries = table.entries(list);
    bounded(table, list, entries.len(), ENTRIES_MAX);
    let mut fields = Vec::new();
    for (name, value) in &entries {
        // By itself first, so that it is clear what is wrong.
        if let Err(right) = parse(&name.value, "") {
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
            match parse(&name.value, text) {
                Ok(field) => fields.push(field),
                Err(right) => {
                    let what = format!("`{list}` gives {} the value \"{text}\"", name.value);
                    table.error(&value.span(), what, right);
                }
            }
        }
    }
    fields.into()
}
