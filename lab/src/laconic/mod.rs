//! Laconic's evaluation on its own cards, in virtual time: `hairpin-lab reproduce-laconic`.
//!
//! The testbed is [`hairpin_sim::http_testbed`]. Here is what goes around it:
//!
//! | module | what it is |
//! |---|---|
//! | `file` | `lab/laconic/cards.toml`: which cases there are, findings with their rules, what was guessed |
//! | `case` | a case, its profiles, and performing it: under full load, then at half of what that gave |
//! | `outcome` | what came of a case: metrics by name |
//! | `store`, `perform` | all cases, several at a time, each kept on disk as soon as it is there |
//! | `finding` | the rules by which the paper is agreed with |
//! | `sensitivity` | what the verdicts become when guessed numbers are others |
//! | `drawing`, `document` | figures, and the page in docs/evidence |
//!
//! An outcome is a function of the case, the file and the profiles: no clock, no order of threads comes into it.

pub mod case;
pub mod document;
mod drawing;
pub mod file;
pub mod finding;
pub mod outcome;
pub mod perform;
mod sensitivity;
pub mod store;
#[cfg(test)]
mod tests;

pub use case::{CardBench, LaconicCase};
pub use document::{CardsPage, write_page};
pub use file::CardExperiment;
pub use outcome::CardOutcome;
pub use perform::{CardEvent, CardSummary, perform};
pub use store::{CardRecord, CardStore};
