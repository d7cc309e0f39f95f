//! KTH 2020's methods of flow classification: cores that share a table in virtual time, the paper's findings with their rules,
//! and the page on all of it (`hairpin-lab classify`, docs/evidence/classification.md).
//!
//! | module | what it is |
//! |---|---|
//! | `file` | the experiment, `lab/classification.toml`: devices, methods, cores, seeds, findings |
//! | `perform` | its cases, simulated ([`hairpin_sim::sharing`]); results as CSV |
//! | `rule` | what the paper found, and the rule by which it is agreed with |
//! | `sections` | measurements beside the model |
//! | `ageing` | ageing in the whole balancer, as `hairpin-bench ageing` has measured it |
//! | `packets` | real packets, as `hairpin-lab run` has measured them |
//! | `figure` | whiskers, and lines by cores |
//! | `page` | the page |

mod ageing;
mod figure;
mod file;
mod packets;
mod page;
mod perform;
mod rule;
mod sections;
#[cfg(test)]
mod tests;

pub use ageing::{AGEING, AgeingRow};
pub use file::{ClassificationCase, ClassificationExperiment, ClassificationFinding};
pub use packets::{PacketResults, VerdictRow};
pub use page::{PageParts, write};
pub use perform::{CaseRow, perform, read_rows, write_rows};
pub use rule::{Claim, ClassificationRule, ClassificationVerdict, Sharing, SharingMetric};
pub use sections::{MARKS, MarksRow, Sections, TWO_CORES, TwoCoresRow, measure_marks, sections, today, write_measured};
