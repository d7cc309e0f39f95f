//! What the access log has done.

use crate::access_log::{AccessLogReading, AccessLogSettings};
use serde::{Deserialize, Serialize};

/// The access log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessLogStatus {
    /// Where lines go, as in the configuration.
    pub to: String,
    /// Lines written.
    pub lines_total: u64,
    /// Lines that could not be written.
    pub lines_lost_total: u64,
    /// Records that found a worker's ring full.
    pub records_lost_total: u64,
}

impl AccessLogStatus {
    pub(crate) fn new(settings: &AccessLogSettings, reading: &AccessLogReading) -> AccessLogStatus {
        AccessLogStatus {
            to: settings.to.to_string(),
            lines_total: reading.written,
            lines_lost_total: reading.lines_lost,
            records_lost_total: reading.records_lost,
        }
    }
}
