//! Experiments: a file says what is measured over which values, and everything is measured, unattended.
//!
//! [`Experiment`] is the file, checked as a whole; [`Plan`] the order of all measurements and what this machine cannot do;
//! [`ResultStore`] the results on disk, which a run that was killed goes on with; [`perform`] does it all over any
//! [`Testbed`](crate::testbed::Testbed). What is made of results is in [`crate::figure`] and [`crate::report`].

mod file;
mod offload;
mod perform;
mod plan;
mod reader;
mod results;
mod source;
mod store;
#[cfg(test)]
mod tests;

pub use file::{DeviceSubject, Experiment, Finding, FindingMetric, RateSetting};
pub use perform::{PlanEvent, PlanSummary, perform};
pub use plan::{CellKind, MatrixCell, Plan, Skipped, Task};
pub use results::{FindingVerdict, PlanResults, alike, is_starved, latency, summary};
pub use store::{FILE, RecordOutcome, ResultRecord, ResultStore};
