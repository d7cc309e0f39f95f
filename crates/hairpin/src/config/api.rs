//! Reads `[api]`.

use super::instance::absolute_path;
use super::reader::TomlTable;
use super::reference;
use crate::api::ApiSettings;
use hairpin_diagnostics::Sink;

/// The settings; `None`: the file asks for no API, or it is wrong, which is reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<ApiSettings> {
    if !top.has("api") {
        return None;
    }
    let state = absolute_path(sink, &top.table("api", &reference::API), "state")?;
    Some(ApiSettings { state })
}
