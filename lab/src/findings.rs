//! The papers' claims that can be checked, and their figures: `docs/evidence/findings.toml`, as part of the program.

use serde::Deserialize;
use std::sync::OnceLock;

const TEXT: &str = include_str!("../../docs/evidence/findings.toml");

/// A finding of a paper, or a claim of our own.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Its name in experiments and pages: unique.
    pub id: String,
    /// The paper by its short name of `docs/references.md`; `Hairpin` for a claim of our own.
    pub paper: String,
    /// The place in the paper; empty for a claim of our own.
    #[serde(default)]
    pub section: String,
    /// The claim.
    pub statement: String,
    /// The criterion of reproduction.
    pub reproduced: String,
    /// Its checks: names of files in `lab/experiments` and `lab/scenarios`, and of commands; `laconic-cards` for `lab/laconic`.
    #[serde(default)]
    pub by: Vec<String>,
    /// Why nothing checks it.
    #[serde(default)]
    pub not_checked: String,
}

impl Listed {
    /// The paper and where in it, for people.
    pub fn source(&self) -> String {
        match self.section.as_str() {
            "" => self.paper.clone(),
            section => format!("{}, {section}", self.paper),
        }
    }
}

/// A figure of a paper's evaluation, or a table, or several of a kind.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ListedFigure {
    /// The paper, as of a finding.
    pub paper: String,
    /// Its number there.
    pub number: String,
    /// What it shows.
    pub about: String,
    /// Drawings of `docs/evidence/figures` that show the same here, without their ending.
    #[serde(default)]
    pub drawn: Vec<String>,
    /// Where else its values are, or why nothing is drawn.
    #[serde(default)]
    pub elsewhere: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    finding: Vec<Listed>,
    figure: Vec<ListedFigure>,
}

fn list() -> &'static List {
    static LIST: OnceLock<List> = OnceLock::new();
    // The tests of this module read the file, which cannot change after that.
    LIST.get_or_init(|| toml::from_str(TEXT).unwrap_or_default())
}

/// All findings, in the file's order.
pub fn all() -> &'static [Listed] {
    &list().finding
}

/// All figures, in the file's order.
pub fn figures() -> &'static [ListedFigure] {
    &list().figure
}

/// The one with this id.
pub fn find(id: &str) -> Option<&'static Listed> {
    all().iter().find(|listed| listed.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laconic::CardExperiment;
    use crate::virtual_time::ModelExperiment;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    /// The ids that each file names: of `lab/experiments`, `lab/scenarios` and `lab/laconic`, and `lab/classification.toml`.
    fn named() -> BTreeMap<String, BTreeSet<String>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for directory in ["experiments", "experiments/traces"] {
            for experiment in ModelExperiment::load_all(&root.join(directory)).unwrap() {
                let ids = experiment.findings.iter().map(|finding| finding.id.clone()).collect();
                named.insert(experiment.name, ids);
            }
        }
        let scenarios = std::fs::read_dir(root.join("scenarios")).unwrap().map(|entry| entry.unwrap().path());
        for path in scenarios.chain([root.join("classification.toml")]) {
            let scenario: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let findings = scenario.get("finding").and_then(toml::Value::as_array).cloned().unwrap_or_default();
            let ids = findings.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect();
            named.insert(path.file_stem().unwrap().to_str().unwrap().to_owned(), ids);
        }
        let cards = CardExperiment::read(&root.join("laconic/cards.toml")).unwrap();
        named.insert("laconic-cards".to_owned(), cards.finding.iter().map(|finding| finding.id.clone()).collect());
        named
    }

    #[test]
    fn findings_list_is_complete_and_ids_are_unique() {
        let list: List = toml::from_str(TEXT).unwrap();
        let ids: BTreeSet<&str> = list.finding.iter().map(|listed| listed.id.as_str()).collect();
        assert_eq!((ids.len(), all().len()), (list.finding.len(), list.finding.len()));
        let references =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/references.md")).unwrap();
        for listed in all() {
            let is_ours = listed.paper == "Hairpin";
            let is_known = references.lines().any(|line| line.starts_with(&format!("| {} |", listed.paper)));
            assert!(is_ours || is_known, "{}: docs/references.md has no paper {}", listed.id, listed.paper);
            assert_eq!(listed.section.is_empty(), is_ours, "{}: a paper's finding names its section", listed.id);
            assert!(!listed.statement.is_empty() && !listed.reproduced.is_empty(), "{}", listed.id);
        }
        for figure in figures() {
            let is_known = references.lines().any(|line| line.starts_with(&format!("| {} |", figure.paper)));
            assert!(is_known, "{}: docs/references.md has no paper {}", figure.number, figure.paper);
            assert!(!figure.drawn.is_empty() || !figure.elsewhere.is_empty(), "{} {}", figure.paper, figure.number);
        }
    }

    #[test]
    fn findings_and_experiments_name_each_other() {
        let named = named();
        for (file, ids) in &named {
            for id in ids {
                let listed = find(id).unwrap_or_else(|| panic!("{file} names {id}, which is not listed"));
                assert!(listed.by.contains(file), "{id} does not say that {file} checks it");
            }
        }
        for listed in all() {
            let files = listed.by.iter().filter(|by| !COMMANDS.contains(&by.as_str()));
            for file in files {
                let names_it = named.get(file).is_some_and(|ids| ids.contains(&listed.id));
                assert!(names_it, "{} says that {file} checks it, which does not name it", listed.id);
            }
            assert_eq!(
                listed.by.is_empty(),
                !listed.not_checked.is_empty(),
                "{}: either something checks it, or it says why nothing does",
                listed.id
            );
        }
    }

    /// Their own tests compare what they name: `measured/laconic.rs`, `measured/middleboxes.rs`.
    const COMMANDS: [&str; 2] = ["l7-figures", "middlebox-figures"];
}
