//! What `hairpin-bench` has measured for the figures of Laconic and KAIST 2018 on real packets, and what follows from it.
//!
//! The values lie in lab/results, a directory for each page. A verdict follows from them by a rule, here and nowhere else: the
//! pages and the index of the evidence ask the same functions.

mod counts;
mod laconic;
mod middleboxes;
mod values;

pub use counts::{InstructionCounts, ResponseCounts};
pub use laconic::{
    beside_nginx, cheaper_when_batched, cheaper_when_offloaded, is_cheaper_in_larger_responses, judge as judge_laconic,
    tables_beside_rte_hash, threshold_ratios,
};
pub use middleboxes::{ahead, judge as judge_middleboxes};
pub use values::{FigureResults, ResultPlace, shown};

use crate::virtual_time::finding::CaseVerdict;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// Files of a directory of results.
pub const VALUES: &str = "measurements.csv";
/// See [`VALUES`].
pub const CONTEXT: &str = "context.json";

/// Parts of Laconic's page: requests as fast as they are answered, the mix, requests at half of nginx's rate, the threshold
/// of offloading, updates of rules, and connection tables.
pub const THROUGHPUT: &str = "throughput";
/// See [`THROUGHPUT`].
pub const MIX: &str = "mix";
/// See [`THROUGHPUT`].
pub const LATENCY: &str = "latency";
/// See [`THROUGHPUT`].
pub const THRESHOLD: &str = "threshold";
/// See [`THROUGHPUT`].
pub const RULES: &str = "rules";
/// See [`THROUGHPUT`].
pub const HASHTABLE: &str = "hashtable";
/// The size from which on offloading is cheaper, as measured: the size, and whether there is one.
pub const CROSSING: &str = "crossing";
/// See [`CROSSING`].
pub const CROSSING_BYTES: &str = "bytes";
/// See [`CROSSING`].
pub const CROSSING_IS_THERE: &str = "is_there";
/// Parts of KAIST 2018's page.
pub const LOAD: &str = "load";
/// See [`LOAD`].
pub const INSTRUCTIONS: &str = "instructions";

/// Series: Hairpin as it comes, with every body in its worker, and with every body in the engine.
pub const HAIRPIN: &str = "hairpin";
/// See [`HAIRPIN`].
pub const SOFTWARE: &str = "hairpin, software only";
/// See [`HAIRPIN`].
pub const OFFLOADED: &str = "hairpin, all offloaded";
/// What stands beside it.
pub const NGINX: &str = "nginx";
/// See [`NGINX`].
pub const USER_STACK: &str = "user-level TCP proxy";

/// Ratios by position on the axis.
pub type Ratios = Vec<(u64, f64)>;

/// A finding, judged by what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredFinding {
    /// Its id in `docs/evidence/findings.toml`.
    pub id: &'static str,
    /// Places at which it holds, and all; `None`: no rule decides.
    pub held: Option<(usize, usize)>,
    /// In a line, with our figures.
    pub why: String,
}

impl MeasuredFinding {
    /// The verdict, in words.
    pub fn verdict(&self) -> &'static str {
        match self.held {
            Some((held, all)) => CaseVerdict::of_places(held, all).text(),
            None => "no rule decides",
        }
    }
}

/// Where and when values were measured.
#[derive(Clone, Debug, Deserialize)]
pub struct MeasuredContext {
    /// Processor, cores and kernel, in a line.
    pub machine: String,
    /// Date and time.
    pub date: String,
}

/// The values of a directory of results, and where and when they were measured; `None`: there are none.
///
/// # Errors
/// They cannot be read.
pub fn kept(directory: &Path) -> Result<Option<(FigureResults, MeasuredContext)>> {
    let (values, context) = (directory.join(VALUES), directory.join(CONTEXT));
    if !values.exists() {
        return Ok(None);
    }
    let named = || format!("could not read {}", context.display());
    let context = serde_json::from_slice(&std::fs::read(&context).with_context(named)?).with_context(named)?;
    Ok(Some((FigureResults::read_csv(&values)?, context)))
}
