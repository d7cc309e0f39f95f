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

/// What names metrics beside the page. (The rules have names of their own in between; an end-to-end test asks all of them.)
const OTHERS: [&str; 3] =
    ["docs/guide/monitoring.md", "packaging/grafana/hairpin-overview.json", "packaging/grafana/hairpin-service.json"];

#[test]
fn pages_and_dashboards_name_only_metrics_that_are_there() {
    let known: BTreeSet<String> = families::all().map(|family| family.series()).collect();
    for file in ["docs/reference/metrics.md"].into_iter().chain(OTHERS) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        let text = std::fs::read_to_string(path).expect(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<&str> = words.filter(|word| word.starts_with("hairpin_")).collect();
        for name in named {
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            assert!(known.contains(name) || known.contains(base), "{file}: {name}");
        }
    }
}
