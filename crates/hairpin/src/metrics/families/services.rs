//! The metrics of services as a whole.

use super::{MetricFamily, MetricKind, SampleValue, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[family!(
    Gauge,
    "service_ready",
    &["service"],
    "1 if a backend of the service (or of one of its groups) is up, after first checks that have come to a verdict; else 0.",
    |view, emit| {
        for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
            if service.state != "removed" {
                emit(&[name], SampleValue::from(service.ready));
            }
        }
    }
)];
