//! The pages in docs/evidence are what the program writes from the results in lab/results.

use hairpin_lab::virtual_time::{
    CaseContext, CaseStore, Circumstances, Gathered, ModelExperiment, OtherScale, write_evidence,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a page and bytes of a figure at most.
const LINES_MAX: usize = 260;
const FIGURE_BYTES_MAX: u64 = 60_000;
/// Page, scale.
const PAGES: [(&str, f64); 2] = [("reproduction", 0.1), ("reproduction-full", 1.0)];

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The results of a scale, where a store can be opened.
fn unpacked(scratch: &Path, root: &Path, name: &str) -> PathBuf {
    let directory = scratch.join(name);
    fs::create_dir_all(&directory).unwrap();
    let mut gzip = Command::new("gzip");
    gzip.args(["--decompress", "--stdout"]).arg(root.join(format!("lab/results/{name}.jsonl.gz")));
    let output = gzip.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(directory.join("cases.jsonl"), output.stdout).unwrap();
    directory
}

#[test]
fn evidence_pages_are_what_results_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let scratch = Scratch(std::env::temp_dir().join(format!("hairpin-evidence-{}", std::process::id())));
    let experiments = ModelExperiment::load_all(&root.join("lab/experiments")).unwrap();
    let loaded = PAGES.map(|(name, scale)| {
        let bench = CaseContext::load(scale, &root.join("lab/profiles"), None).unwrap();
        (bench, CaseStore::open(&unpacked(&scratch.0, root, name)).unwrap())
    });
    let gathered: Vec<Vec<Gathered<'_>>> = loaded
        .iter()
        .map(|(bench, store)| experiments.iter().map(|one| Gathered::new(one, bench, store)).collect())
        .collect();
    // Paths on the page are those of a run in the repository's root.
    std::env::set_current_dir(&scratch.0).unwrap();
    let mut written = String::new();
    for (index, (name, scale)) in PAGES.into_iter().enumerate() {
        let failures: Vec<_> = gathered[index].iter().flat_map(Gathered::failures).collect();
        assert!(failures.is_empty(), "results are not of these experiments and profiles: {failures:?}");
        let circumstances = Circumstances {
            scale,
            command: format!("hairpin-lab reproduce --scale {scale}"),
            ..Circumstances::default()
        };
        let beside = OtherScale { scale: PAGES[1 - index].1, gathered: &gathered[1 - index] };
        let (page, tables) = (PathBuf::from(format!("docs/evidence/{name}.md")), format!("lab/results/{name}"));
        fs::create_dir_all("docs/evidence").unwrap();
        write_evidence(&gathered[index], Some(beside), &circumstances, &page, Some(Path::new(&tables))).unwrap();
        written += &fs::read_to_string(&page).unwrap();
    }
    let mut compared = 0;
    for directory in
        ["docs/evidence", "docs/evidence/figures", "lab/results/reproduction", "lab/results/reproduction-full"]
    {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let (here, there) = (fs::read(&path).unwrap(), fs::read(root.join(&path)));
            assert!(there.is_ok_and(|there| there == here), "{}: run `make reproduce-pages`", path.display());
            let lines = here.iter().filter(|byte| **byte == b'\n').count();
            assert!(path.extension().is_none_or(|ending| ending != "md") || lines <= LINES_MAX, "{lines} lines");
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared} files");
    for entry in fs::read_dir(root.join("docs/evidence/figures")).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.metadata().unwrap().len() <= FIGURE_BYTES_MAX, "{:?}", entry.path());
    }
    // A reason that is on no page explains what has not been seen.
    let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
    for finding in experiments.iter().flat_map(|experiment| &experiment.findings) {
        let reason = finding.why_not.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(written.contains(&reason), "no page has why_not of {}: {reason}", finding.id);
    }
}
