//! JSON output. docs/reference/json.md describes its form, and a test compares them.

use serde::Serialize;

/// The version of what docs/reference/json.md says. It becomes another when a field goes, gets another name or type, or means
/// something else; not when one is added.
const SCHEMA_VERSION: u32 = 1;

/// `value`, which is written as an object, behind the version of its description.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// A line with `value` as an object.
///
/// # Errors
/// It is none.
pub(crate) fn line(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Versioned { schema_version: SCHEMA_VERSION, value }).map(|text| text + "\n")
}
