//! Reads `[service.queue]`.

use super::reader::TomlTable;
use super::reference::ReferenceSection;
use hairpin_https::QueueSettings;

/// The queue of a service or group that has the table, else that of `of`, its service. `None`: no request waits.
pub(super) fn read(
    table: &TomlTable<'_>,
    section: &'static ReferenceSection,
    of: Option<QueueSettings>,
) -> Option<QueueSettings> {
    if !table.has("queue") {
        return of;
    }
    let queue = table.table("queue", section);
    let requests_max = queue.integer("requests_max").and_then(|most| u32::try_from(most).ok())?;
    Some(QueueSettings { requests_max, timeout: queue.duration("timeout") })
}

/// A queue, for people.
pub(crate) fn said(queue: Option<QueueSettings>) -> String {
    let of = |queue: QueueSettings| {
        format!("{} requests for {}", queue.requests_max, humantime::format_duration(queue.timeout))
    };
    queue.map_or("none".to_string(), of)
}
