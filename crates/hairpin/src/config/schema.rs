//! The reference as a JSON Schema, by which editors complete and check a configuration file.
//!
//! Draft 7, which every editor's TOML support reads. It has each field's form, range, words and default. What compares one field
//! with another stays with `hairpin validate`, which has the last word.

use super::reference::{Fallback, ReferenceField, ReferenceSection, SECTIONS, TOP, ValueForm};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The schema, with a newline at its end.
pub fn schema() -> String {
    let mut root = object_of(&TOP);
    let definitions: Map<String, Value> = SECTIONS
        .iter()
        .filter(|section| !section.header.is_empty())
        .map(|section| (key(section.header), object_of(section).into()))
        .collect();
    // The one field that must be given but for what another one says.
    if let Some(Value::Array(required)) = root.get_mut("required") {
        required.retain(|name| name != "interfaces");
    }
    root.insert("if".into(), json!({"properties": {"plane": {"const": "dpdk"}}, "required": ["plane"]}));
    root.insert("else".into(), json!({"required": ["interfaces"]}));
    root.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
    root.insert("title".into(), "hairpin.toml".into());
    root.insert("definitions".into(), definitions.into());
    format!("{:#}\n", Value::from(root))
}

/// The name of a section's definition.
fn key(header: &str) -> String {
    header.trim_matches(['[', ']']).to_owned()
}

fn object_of(section: &ReferenceSection) -> Map<String, Value> {
    let properties: Map<String, Value> =
        section.fields.iter().map(|field| (field.name.to_owned(), described(field).into())).collect();
    let required: Vec<&str> = section
        .fields
        .iter()
        .filter(|field| matches!(field.fallback, Fallback::Required))
        // Where there is a field that may stand in its place, either does.
        .filter(|field| field.name != "address" || section.field("srv").is_none())
        .map(|field| field.name)
        .collect();
    let mut object = Map::new();
    object.insert("type".into(), "object".into());
    object.insert("description".into(), section.doc.into());
    object.insert("properties".into(), properties.into());
    object.insert("additionalProperties".into(), false.into());
    if !required.is_empty() {
        object.insert("required".into(), required.into());
    }
    object
}

/// A field: its form, its meaning and its default.
fn described(field: &ReferenceField) -> Map<String, Value> {
    let mut schema = match form(field) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    let mut doc = field.doc.to_owned();
    if let ValueForm::Choice(words) = field.kind {
        words.iter().for_each(|(word, meaning)| doc.push_str(&format!(" \"{word}\": {meaning}.")));
    }
    match field.fallback {
        Fallback::Value(value) => {
            schema.insert("default".into(), default(&field.kind, value));
        }
        Fallback::From(from) => doc.push_str(&format!(" Default: {from}.")),
        Fallback::Required => {}
    }
    schema.insert("description".into(), doc.into());
    schema
}

fn form(field: &ReferenceField) -> Value {
    let text = json!({"type": "string"});
    let list = json!({"type": "array", "items": text});
    match field.kind {
        ValueForm::Text | ValueForm::Listen | ValueForm::Endpoint | ValueForm::EndpointOrOff => text,
        ValueForm::Ports => json!({"type": "string", "pattern": r"^\s*[0-9]+\s*-\s*[0-9]+\s*$"}),
        ValueForm::Statuses => json!({"type": "string", "pattern": r"^[0-9][0-9,\s-]*$"}),
        ValueForm::Name { length_max } => {
            json!({"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "maxLength": length_max})
        }
        ValueForm::Choice(words) => json!({"enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>()}),
        ValueForm::Duration { min_ms, max_ms } => {
            let [min, max] =
                [min_ms, max_ms].map(|ms| humantime::format_duration(Duration::from_millis(ms)).to_string());
            let title = format!("a duration from {min} to {max}");
            json!({"type": "string", "title": title, "pattern": r"^\s*[0-9]+\s*[a-zA-Z]+(\s*[0-9]+\s*[a-zA-Z]+)*\s*$"})
        }
        ValueForm::Boolean => json!({"type": "boolean"}),
        ValueForm::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        ValueForm::IntegerOrAuto { min, max } => {
            json!({"anyOf": [{"type": "integer", "minimum": min, "maximum": max}, {"const": "auto"}]})
        }
        ValueForm::Share => json!({"type": "number", "minimum": 0, "maximum": 1}),
        ValueForm::Interfaces | ValueForm::Addresses | ValueForm::Endpoints => list,
        ValueForm::Texts | ValueForm::Networks => json!({"anyOf": [text, list]}),
        ValueForm::Map => json!({"type": "object"}),
        ValueForm::Tables => tables(field),
    }
}

/// The section of a field that is a table or a list of tables. Its documentation names the section: `See [[service.backend]].`
fn tables(field: &ReferenceField) -> Value {
    let header = field.doc.trim_start_matches("See ").trim_end_matches('.');
    let reference = json!({"$ref": format!("#/definitions/{}", key(header))});
    if header.starts_with("[[") {
        json!({"type": "array", "items": reference})
    } else {
        // Beside `$ref` draft 7 reads nothing else.
        json!({"allOf": [reference]})
    }
}

/// The default as a value of the field's form.
fn default(kind: &ValueForm, value: &str) -> Value {
    let is_text = !matches!(
        kind,
        ValueForm::Boolean
            | ValueForm::Integer { .. }
            | ValueForm::IntegerOrAuto { .. }
            | ValueForm::Share
            | ValueForm::Interfaces
            | ValueForm::Addresses
            | ValueForm::Networks
            | ValueForm::Endpoints
            | ValueForm::Texts
    );
    let parsed = if is_text { None } else { serde_json::from_str(value).ok() };
    parsed.unwrap_or_else(|| value.into())
}
