//! KTH 2022's experiments in virtual time, and what is made of their results: `hairpin-lab reproduce`.
//!
//! The testbed is [`hairpin_sim::testbed`]: the very workers, tables and policies of the data plane, cores that cost what a
//! profile says, a modelled card. Here is what goes around it:
//!
//! | module | what it is |
//! |---|---|
//! | `mix` | which packets come |
//! | `settings`, `file` | experiments as files (`lab/experiments/*.toml`): axes, and a case for each combination |
//! | `case` | performing a case; [`perform()`] all of them, several at a time; `store` what is kept of one |
//! | `outcome` | what came of a case: metrics by name |
//! | `finding` | what the paper found, and the rule by which it is agreed with |
//! | `comparison` | policies beside each other, a greedy yardstick and an upper bound |
//! | `verdicts` | whether a finding depends on an axis |
//! | `sensitivity` | verdicts with the guessed constants of profiles at other values |
//! | `document`, `page`, `tables`, `drawing` | the page in docs/evidence, the page of a run, CSV, figures |
//!
//! An outcome is a function of the case, the scale and the profiles: no clock, no order of threads comes into it.

pub mod case;
pub mod comparison;
pub mod document;
mod drawing;
pub mod file;
pub mod finding;
pub mod mix;
pub mod outcome;
mod page;
mod perform;
mod results;
pub mod sensitivity;
pub mod settings;
mod store;
mod tables;
#[cfg(test)]
mod tests;
pub mod verdicts;
mod write;

pub use case::CaseContext;
pub use document::{OtherScale, sensitivity_page};
pub use file::{Case, ModelExperiment};
pub use perform::{CasesEvent, CasesSummary, PerformOptions, perform};
pub use results::Gathered;
pub use sensitivity::{Sensitivity, SensitivityInput, Variation, examine};
pub use store::{CaseOutcome, CaseRecord, CaseStore, Recordings};
pub use write::{Circumstances, WrittenPages, write, write_evidence};
