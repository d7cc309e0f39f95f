//! TOML text that follows a changed tree: what stays keeps its place, its form and the comments about it.

use serde_json::{Map, Value as Json};
use toml::de::DeTable;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

/// The text without the lines of a field of the top level.
pub(super) fn without(text: &str, field: &str) -> String {
    let (document, _) = DeTable::parse_recoverable(text);
    let found = document.get_ref().iter().find(|(name, _)| name.get_ref() == field);
    let Some((start, end)) = found.map(|(name, value)| (name.span().start, value.span().end)) else {
        return text.to_owned();
    };
    let first = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let behind = text[end..].find('\n').map_or(text.len(), |newline| end + newline + 1);
    format!("{}{}", &text[..first], &text[behind..])
}

/// The tree as a text of its own.
pub(super) fn written(tree: &Json) -> Result<String, String> {
    let fields = tree.as_object().ok_or("a configuration is an object")?;
    let mut document = DocumentMut::new();
    follow(document.as_table_mut(), &Map::new(), fields)?;
    Ok(document.to_string())
}

/// The text, which says `before`, changed so that it says `after`, as far as the places of its tables allow.
pub(super) fn merged(text: &str, before: &Json, after: &Json) -> Result<String, String> {
    let [before, after] = [before, after].map(|tree| tree.as_object().ok_or("a configuration is an object"));
    let mut document = parse(text)?;
    follow(document.as_table_mut(), before?, after?)?;
    Ok(document.to_string())
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())
}

/// Has a table say `after`, which says `before`.
fn follow(table: &mut Table, before: &Map<String, Json>, after: &Map<String, Json>) -> Result<(), String> {
    for gone in before.keys().filter(|name| !after.contains_key(*name)) {
        table.remove(gone);
    }
    for (name, value) in in_order(after) {
        match (before.get(name), table.get_mut(name)) {
            (Some(same), Some(_)) if same == value => {}
            (Some(Json::Object(was)), Some(Item::Table(inner))) if value.is_object() => {
                follow(inner, was, value.as_object().unwrap_or(was))?;
            }
            (Some(Json::Array(was)), Some(Item::ArrayOfTables(tables))) if are_tables(value) => {
                follow_tables(tables, was, value.as_array().unwrap_or(was))?;
            }
            (_, Some(there)) => {
                let decor = there.as_value().map(|value| value.decor().clone());
                *there = item(value)?;
                // With the comment behind it.
                if let (Some(decor), Some(value)) = (decor, there.as_value_mut()) {
                    *value.decor_mut() = decor;
                }
            }
            (_, None) => drop(table.insert(name, item(value)?)),
        }
    }
    Ok(())
}

/// Has tables say `after`: those that are still there are told by their names.
fn follow_tables(tables: &mut ArrayOfTables, before: &[Json], after: &[Json]) -> Result<(), String> {
    let mut left: Vec<Option<(&Json, Table)>> =
        before.iter().zip(tables.iter()).map(|(was, table)| Some((was, table.clone()))).collect();
    let mut followed = ArrayOfTables::new();
    for value in after {
        let fields = value.as_object().ok_or("a table was expected")?;
        let same = |was: &Json| was == value || (identity(was).is_some() && identity(was) == identity(value));
        let found = left.iter_mut().find(|entry| entry.as_ref().is_some_and(|(was, _)| same(was)));
        let table = match found.and_then(Option::take) {
            Some((was, mut table)) => {
                follow(&mut table, was.as_object().unwrap_or(fields), fields)?;
                table
            }
            None => new_table(fields)?,
        };
        followed.push(table);
    }
    *tables = followed;
    Ok(())
}

/// What tells a table of a list from the others.
fn identity(value: &Json) -> Option<&str> {
    ["name", "listen", "address"].iter().find_map(|field| value.get(field)).and_then(Json::as_str)
}

fn are_tables(value: &Json) -> bool {
    value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(Json::is_object))
}

fn item(value: &Json) -> Result<Item, String> {
    Ok(match value {
        Json::Object(fields) => Item::Table(new_table(fields)?),
        Json::Array(items) if are_tables(value) => {
            let tables = items.iter().filter_map(Json::as_object).map(new_table);
            Item::ArrayOfTables(tables.collect::<Result<Vec<Table>, String>>()?.into_iter().collect())
        }
        _ => Item::Value(plain(value)?),
    })
}

fn new_table(fields: &Map<String, Json>) -> Result<Table, String> {
    let mut table = Table::new();
    follow(&mut table, &Map::new(), fields)?;
    Ok(table)
}

/// A value on one line.
fn plain(value: &Json) -> Result<Value, String> {
    Ok(match value {
        Json::Null => return Err("null is no value of a configuration: leave the field out".to_owned()),
        Json::Bool(value) => Value::from(*value),
        Json::String(text) => Value::from(text.as_str()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(float)) if number.is_f64() => Value::from(float),
            _ => return Err(format!("the number {number} is too large")),
        },
        Json::Array(items) => Value::from(items.iter().map(plain).collect::<Result<Array, String>>()?),
        Json::Object(fields) => {
            let mut table = InlineTable::new();
            for (name, value) in in_order(fields) {
                table.insert(name, plain(value)?);
            }
            Value::from(table)
        }
    })
}

/// Fields in the order in which people write them: what names the table, then values, then tables in it.
fn in_order(fields: &Map<String, Json>) -> Vec<(&String, &Json)> {
    let rank = |name: &str, value: &Json| {
        let first = ["name", "listen", "address"].iter().position(|known| *known == name).unwrap_or(3);
        (value.is_object() || are_tables(value), first)
    };
    let mut fields: Vec<_> = fields.iter().collect();
    fields.sort_by_key(|(name, value)| rank(name, value));
    fields
}
