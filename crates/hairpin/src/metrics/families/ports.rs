//! The metrics of the dpdk plane's ports. On another plane there are no samples.

use super::{Emit, MetricFamily, MetricKind, MetricView, family};
use crate::status::PortStatus;

/// All of them, in the order in which they are written.
pub(super) const FAMILIES: &[MetricFamily] = &[
    family!(
        Counter,
        "port_frames",
        &["port", "direction"],
        "Frames of a port of the dpdk plane, as its driver counts them.",
        |view, emit| each(view, |port| {
            emit(&[name(port), "received"], port.received.into());
            emit(&[name(port), "sent"], port.transmitted.into());
        })
    ),
    family!(
        Counter,
        "port_bytes",
        &["port", "direction"],
        "Bytes of these frames, Ethernet headers included.",
        |view, emit| each(view, |port| {
            emit(&[name(port), "received"], port.received_bytes.into());
            emit(&[name(port), "sent"], port.transmitted_bytes.into());
        })
    ),
    family!(
        Counter,
        "port_drops",
        &["port", "reason"],
        "Frames that a port lost: missed (its receive queues were full), no-mbuf (no packet buffer was left), received \
         damaged, not sent.",
        |view, emit| each(view, |port| drops(port, emit))
    ),
    family!(
        Counter,
        "engine_rules",
        &["event"],
        "What became of rules in the ports' devices: put-in, taken-out, refused, not-let-go (refused to be taken out, and \
         asked again), lost; failed is 1 if the engine has failed and everything is in software.",
        |view, emit| view.status.offload.engine_counts.iter().for_each(|(event, count)| {
            emit(&[event], (*count).into());
        })
    ),
    family!(
        Gauge,
        "port_steering_rules",
        &["port", "state"],
        "Rules of a port that bring packets to their worker: in (it has them), missing (refused, or too many for a port: \
         workers hand these packets over).",
        |view, emit| each(view, |port| {
            emit(&[name(port), "in"], port.steering_rules.into());
            emit(&[name(port), "missing"], port.steering_rules_missing.into());
        })
    ),
    family!(Gauge, "port_up", &["port"], "Whether the port's link is up: 1 or 0.", |view, emit| each(view, |port| {
        emit(&[name(port)], u64::from(port.up).into());
    })),
];

fn each(view: &MetricView<'_>, visit: impl FnMut(&PortStatus)) {
    view.status.ports.iter().for_each(visit);
}

/// Without the device's arguments.
fn name(port: &PortStatus) -> &str {
    port.device.split(',').next().unwrap_or_default()
}

fn drops(port: &PortStatus, emit: &mut Emit<'_>) {
    emit(&[name(port), "missed"], port.missed.into());
    emit(&[name(port), "no-mbuf"], port.no_mbuf.into());
    emit(&[name(port), "receive-error"], port.receive_errors.into());
    emit(&[name(port), "transmit-error"], port.transmit_errors.into());
}
