//! One engine for all ports of a plane: the capabilities that all of them have, as probed.

use super::description::Does;
use super::probe::Findings;
use super::translate::{DeviceTerms, EgressAction};

/// How several ports take rules together.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// The terms, in which each port that takes part has been found to take rules, or in more.
    pub terms: DeviceTerms,
    /// Which ports take part, in their order.
    pub takes_part: Vec<bool>,
    /// Whether all of them have templates.
    pub templates: bool,
}

impl Agreement {
    /// The common abilities of the ports with these findings; `None` if none takes rules.
    ///
    /// A port that can turn packets round is worth more than any number that can only mark them. Of those that are left the
    /// first decides how packets leave and how changes are said; a port that does it otherwise takes no part, and what
    /// comes in there stays in software.
    pub fn of(findings: &[Findings]) -> Option<Agreement> {
        let with_terms = || findings.iter().filter_map(|findings| findings.terms);
        let first = with_terms().find(|terms| terms.egress != EgressAction::Mark).or_else(|| with_terms().next())?;
        let alike =
            |terms: &DeviceTerms| (terms.egress, terms.how, terms.counts) == (first.egress, first.how, first.counts);
        let takes_part: Vec<bool> =
            findings.iter().map(|findings| findings.terms.as_ref().is_some_and(alike)).collect();
        let terms = with_terms().filter(alike).fold(first, |all, one| DeviceTerms {
            jumps: all.jumps && one.jumps,
            sequence_numbers: if all.sequence_numbers == one.sequence_numbers {
                all.sequence_numbers
            } else {
                Does::NONE
            },
            options: all.options && one.options,
            supports: std::array::from_fn(|kind| all.supports[kind] && one.supports[kind]),
            ..all
        });
        let parts = || findings.iter().zip(&takes_part).filter(|(_, takes_part)| **takes_part);
        let templates = parts().all(|(findings, _)| findings.templates);
        terms.supports.contains(&true).then_some(Agreement { terms, takes_part, templates })
    }
}
