//! docs/evidence/laconic-cards.md is what the program writes from the results in lab/results.

use hairpin_lab::laconic::{CardBench, CardStore, CardsPage, write_page};
use hairpin_lab::records::kept_lines;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of the page and bytes of a figure at most.
const LINES_MAX: usize = 260;
const FIGURE_BYTES_MAX: u64 = 60_000;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn page_is_what_results_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let bench = CardBench::load(&root.join("lab/laconic/cards.toml"), &root.join("lab/profiles")).unwrap();
    let store = CardStore::of(&kept_lines(&root.join("lab/results/laconic-cards.jsonl.gz")).unwrap().unwrap());
    let page = CardsPage::new(&bench, &store);
    let failures = page.failures();
    assert!(failures.is_empty(), "results are not of this experiment and these profiles: {failures:?}");
    // Every verdict against a finding is explained, and the text of verdicts that are others is not kept.
    for (finding, judgement) in page.judgements() {
        let is_against = judgement.verdict.text() != "agrees";
        assert_eq!(is_against, !finding.why_not.is_empty(), "{} {}: {judgement:?}", finding.id, finding.part);
    }
    let scratch = Scratch(std::env::temp_dir().join(format!("hairpin-laconic-page-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).unwrap();
    let written = scratch.0.join("laconic-cards.md");
    write_page(&page, &written).unwrap();
    let text = fs::read_to_string(&written).unwrap();
    let there = fs::read_to_string(root.join("docs/evidence/laconic-cards.md")).unwrap();
    assert!(text == there, "docs/evidence/laconic-cards.md: run `make laconic-cards-page`");
    assert!(text.lines().count() <= LINES_MAX, "{} lines", text.lines().count());
    let mut figures = 0;
    for entry in fs::read_dir(scratch.0.join("figures")).unwrap() {
        let path = entry.unwrap().path();
        let there = root.join("docs/evidence/figures").join(path.file_name().unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(&there).unwrap_or_default(), "{}", there.display());
        assert!(fs::metadata(&path).unwrap().len() <= FIGURE_BYTES_MAX, "{}", path.display());
        figures += 1;
    }
    assert!(figures >= 8, "{figures} figures");
}
