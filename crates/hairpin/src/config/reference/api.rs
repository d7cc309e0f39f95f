//! The section about the API.

use super::Fallback::Value;
use super::{ReferenceSection, ValueForm, field};

/// `[api]`
pub const API: ReferenceSection = ReferenceSection {
    header: "[api]",
    doc: "An API that reads and changes the configuration while the instance runs, as JSON over HTTP/1.1, on a Unix socket for root \
          only beside the control socket (`<instance>.api.sock`; docs/guide/api.md). Without this section there is none. \
          Changes are in force after a reload; the API does not change this section.",
    fields: &[field(
        "state",
        ValueForm::Text,
        Value("/var/lib/hairpin/api"),
        "\"/var/lib/hairpin/api\"",
        "The directory with a file for each instance (`<instance>.json`) that keeps what the API changed, for the next start; on a \
         file system that outlives the machine's own restart. Absolute.",
    )],
};
