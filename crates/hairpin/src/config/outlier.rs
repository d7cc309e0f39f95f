//! Reads `[service.outlier]`.

use super::reader::TomlTable;
use super::reference::ReferenceSection;
use super::words::Spoken;
use crate::health::OutlierSettings;

/// The settings of a service or group that has the table, else those of `of`, its service. `None`: no backend is ejected.
pub(super) fn read(
    table: &TomlTable<'_>,
    section: &'static ReferenceSection,
    spoken: Option<Spoken>,
    of: Option<OutlierSettings>,
) -> Option<OutlierSettings> {
    if !table.has("outlier") {
        return of;
    }
    let outlier = table.table("outlier", section);
    let number = |name| outlier.integer(name).unwrap_or_default();
    let settings = OutlierSettings {
        consecutive: number("consecutive") as u32,
        error_percent: number("error_percent") as u8,
        latency_factor: number("latency_factor") as u32,
        latency_min: outlier.duration("latency_min"),
        requests_min: number("requests_min").max(1),
        interval: outlier.duration("interval"),
        ejection_time: outlier.duration("ejection_time"),
        ejection_time_max: outlier.duration("ejection_time_max"),
        max_ejected_percent: number("max_ejected_percent") as u8,
    };
    if settings.ejection_time > settings.ejection_time_max {
        let given = if outlier.has("ejection_time_max") { "ejection_time_max" } else { "ejection_time" };
        let what = "`ejection_time_max` is shorter than `ejection_time`";
        outlier.error(&outlier.span_of(given), what, "name a longer one, or a shorter `ejection_time`");
    }
    if settings.latency_factor > 0 && spoken.is_some_and(|spoken| !spoken.is_http()) {
        let what = "`latency_factor` is given, but the service has no requests";
        outlier.error(&outlier.span_of("latency_factor"), what, "leave it out, or make the service http or https");
    }
    outlier.boolean("enabled").then_some(settings)
}
