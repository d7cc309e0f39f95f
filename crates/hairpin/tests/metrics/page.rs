//! `docs/reference/metrics.md` says what the code does.

use hairpin::metrics::families;
use std::collections::BTreeSet;
use std::path::Path;

const BEGIN: &str = "<!-- written from crates/hairpin/src/metrics/families.rs: begin -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).expect("docs/reference/metrics.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (_, after) = rest.split_once(END).expect("where the table ends");
    let right = format!("{before}{BEGIN}{}{END}{after}", families::markdown());
    if page != right && std::env::var_os("HAIRPIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, right).unwrap();
        return;
    }
    assert!(page == right, "run: HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --test metrics page");
}

#[test]
fn the_page_names_no_metric_that_is_not_there() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(path).expect("docs/reference/metrics.md");
    let known: BTreeSet<String> = families::all().map(|family| family.series()).collect();
    let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<&str> = words.filter(|word| word.starts_with("hairpin_")).collect();
    for name in named {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        assert!(known.contains(name) || known.contains(base), "{name}");
    }
}
