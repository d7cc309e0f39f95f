//! Health checks: which backends answer, found out by asking them and by watching clients' connections.
//!
//! A [`Checker`] makes TCP, HTTP and UDP checks on one thread, `health`, and knows nothing of workers, services'
//! balancing or BPF: its owner reads [`Checker::backends_health`] and acts on them. What happens when all backends of a
//! service are down is the owner's business too.
//!
//! *States.* A backend begins unknown, which counts as up. The first success decides at once; `fall` failures in a row take
//! it down and `rise` successes bring it up. Until the first checks have come to a verdict ([`BackendHealth::settled`])
//! they are made once a second, new connections go to other backends after one that failed, and nothing else depends on
//! them: after ten seconds the latest result is the verdict. Failures while an interface has no link
//! ([`Checker::set_links`]) do not count, for the first half minute. Where all of a service were down and one is up, the
//! others have to settle anew. Clients' failing connections ([`Checker::observe`]) can take it down as well; then the
//! active check brings it back, or, where there is none, a trial after a pause that doubles up to eightfold while trials
//! fail. A backend that comes back gets its share slowly if `slow_start` says so.
//!
//! *Outliers.* Apart from that, a backend that does worse than the others of its service may be left out for a while
//! ([`Outliers`]).
//!
//! *Bounds.* At most [`IN_FLIGHT_MAX`] checks are in flight, each with one socket, and at most 128 KiB of an answer's
//! head and 64 KiB of its body; others wait and are counted ([`CheckTotals::late`]). A check is under one timeout as a
//! whole, and a target is never checked twice at once. A lack on this host (descriptors, ports) does not count
//! against a backend; it is counted ([`CheckTotals::local_errors`]).

mod checker;
mod grpc;
mod outlier;
mod probe;
mod record;
mod schedule;
mod target;

#[cfg(test)]
mod checker_tests;
#[cfg(test)]
mod outlier_tests;
#[cfg(test)]
mod probe_http2_tests;
#[cfg(test)]
mod probe_tests;
#[cfg(test)]
mod probe_tls_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod servers;

/// Bounds of health checks.
pub(crate) mod limits {
    pub(crate) use super::probe::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX as ANSWER_DATAGRAM_BYTES_MAX, HEAD_BYTES_MAX};
    pub(crate) use super::{DATAGRAM_BYTES_MAX, IN_FLIGHT_MAX, STATUS_RANGES_MAX, TEXT_BYTES_MAX};
}

pub use checker::Checker;
pub use outlier::{EjectionChange, Ejections, Member, OutcomeTotals, OutlierSettings, Outliers};
pub use record::{BackendHealth, Health, HealthState, ObservedTotals, Saved};
pub use schedule::{Change, CheckTotals, IN_FLIGHT_MAX};
pub use target::{
    Check, CheckTarget, DATAGRAM_BYTES_MAX, DURATION_MAX, HttpCheck, IN_A_ROW_MAX, INTERVAL_MIN, Passive,
    STATUS_RANGES_MAX, StatusRanges, TEXT_BYTES_MAX,
};
