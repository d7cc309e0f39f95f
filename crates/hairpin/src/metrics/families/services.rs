//! The metrics of services as a whole.

use super::{MetricFamily, MetricKind, SampleValue, family};

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
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
    ),
    family!(
        Counter,
        "access_rule_packets",
        &["service", "rule", "action"],
        "Packets that would have begun a connection to a TCP, UDP or TLS service, and that its access rule of this number has \
         dropped (`deny`) or counted (`count`).",
        |view, emit| {
            for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
                for rule in &service.access {
                    emit(&[name, &rule.rule.to_string(), &rule.action], rule.packets_total.into());
                }
            }
        }
    ),
    family!(
        Counter,
        "limit_decisions",
        &["service", "limit", "decision"],
        "Requests or connections by what the limit of this number has decided: `admitted`, `refused`, or `would-refuse` in a dry run; \
         `displaced`: those of them for which another client had to be forgotten or, of `concurrent`, that are not counted for \
         want of room.",
        |view, emit| {
            for (service, (name, _)) in view.status.services.iter().zip(&view.names.services) {
                for limit in &service.limits {
                    let decided = [
                        ("admitted", limit.admitted_total),
                        ("refused", limit.refused_total),
                        ("would-refuse", limit.would_refuse_total),
                        ("displaced", limit.displaced_total),
                    ];
                    for (decision, count) in decided {
                        emit(&[name, &limit.limit.to_string(), decision], count.into());
                    }
                }
            }
        }
    ),
];
