//! Included files, and variables of the environment.

use super::{GOOD, good, refuses, said};
use hairpin::config;
use std::path::PathBuf;

/// A directory with these files, which goes with it. The first one is the configuration.
struct Files(PathBuf);

impl Files {
    fn new(name: &str, files: &[(&str, &str)]) -> Files {
        let directory = std::env::temp_dir().join(format!("hairpin-fragments-{name}-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("conf.d")).unwrap();
        for (file, text) in files {
            std::fs::write(directory.join(file), text).unwrap();
        }
        Files(directory)
    }

    fn load(&self) -> Result<config::Config, String> {
        let problems = |problems: config::Problems| problems.to_string().replace(&self.0.display().to_string(), "DIR");
        config::load(&self.0.join("hairpin.toml")).map_err(problems)
    }

    fn names(&self) -> Vec<String> {
        let config = self.load().unwrap_or_else(|said| panic!("{said}"));
        config.snapshot.services.iter().map(|service| service.name.to_string()).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MAIN: &str = "interfaces = [\"eth0\"]\ninclude = [\"conf.d/*.toml\"]\n[limits]\nconnections_max = 1000\n";

fn service(name: &str, port: u16) -> String {
    format!("[[service]]\nname = \"{name}\"\nlisten = \"192.0.2.1:{port}/tcp\"\nbackends = [\"10.0.0.1:80\"]\n")
}

#[test]
fn files_are_read_in_the_order_of_their_names() {
    let (b, a, hidden) = (service("b", 81), service("a", 82), service("hidden", 83));
    let more =
        [("conf.d/20-a.toml", &*a), ("conf.d/10-b.toml", &b), ("conf.d/.c.toml", &hidden), ("conf.d/x.txt", "?")];
    // The main file may end within a table, and without a newline.
    let main = format!("{MAIN}{}", service("main", 80).trim_end());
    let files = Files::new("order", &[&[("hairpin.toml", &*main)], &more[..]].concat());
    assert_eq!(files.names(), ["main", "b", "a"]);
    // The text that is kept says it all, without the files.
    let text = files.load().unwrap().text;
    assert_eq!(config::parse("kept", &text).unwrap().snapshot.services.len(), 3);
}

#[test]
fn a_pattern_may_match_nothing_and_a_file_may_not_be_missing() {
    let main = format!("{MAIN}{}", service("main", 80));
    assert_eq!(Files::new("none", &[("hairpin.toml", &main)]).names(), ["main"]);
    let one = main.replace("[\"conf.d/*.toml\"]", "\"conf.d/one.toml\"");
    let refused = Files::new("missing", &[("hairpin.toml", &one)]).load().unwrap_err();
    assert_eq!(
        refused,
        "DIR/conf.d/one.toml: error: cannot read the configuration: No such file or directory (os error 2); correct \
         `include`, or make the file"
    );
    refuses(
        &with_include("5"),
        "1:11: error: `include` is the number 5, not a list; write a list of texts, such as include = \"conf.d/*.toml\"",
    );
}

#[test]
fn too_many_files_are_refused() {
    let many = vec!["\"conf.d/one.toml\""; 257].join(", ");
    let main = MAIN.replace("\"conf.d/*.toml\"", &many);
    let refused = Files::new("many", &[("hairpin.toml", &main), ("conf.d/one.toml", "")]).load().unwrap_err();
    assert_eq!(refused, "DIR/hairpin.toml: error: `include` means 257 files; include at most 256");
}

fn with_include(value: &str) -> String {
    format!("include = {value}\n{GOOD}")
}

#[test]
fn messages_name_the_file_and_its_line() {
    let main = format!("{MAIN}{}", service("main", 80));
    let wrong = service("other", 90).replace("10.0.0.1:80", "10.0.0.1");
    let files = Files::new("lines", &[("hairpin.toml", &main), ("conf.d/one.toml", &wrong)]);
    assert_eq!(
        files.load().unwrap_err(),
        "DIR/conf.d/one.toml:4:13: error: backend \"10.0.0.1\" has no port; write \"192.0.2.10:80\" or \
         \"[2001:db8::10]:80\""
    );
    let twice = format!("\n{}", service("main", 90));
    let files = Files::new("twice", &[("hairpin.toml", &main), ("conf.d/one.toml", &twice)]);
    assert_eq!(
        files.load().unwrap_err(),
        "DIR/conf.d/one.toml:3:8: error: two services are named \"main\"; the other one is on line 6: rename one"
    );
    let (one, two) = (service("x", 90), service("x", 91));
    let files = Files::new("both", &[("hairpin.toml", &main), ("conf.d/a.toml", &one), ("conf.d/b.toml", &two)]);
    assert_eq!(
        files.load().unwrap_err(),
        "DIR/conf.d/b.toml:2:8: error: two services are named \"x\"; the other one is on line 2 of DIR/conf.d/a.toml: \
         rename one"
    );
}

#[test]
fn an_included_file_has_whole_tables_only() {
    let main = format!("{MAIN}{}", service("main", 80));
    for (text, expected) in [
        (
            "workers = 1\n",
            "1:1: error: `workers` stands before any table; it belongs in the file that includes this one, or in a table of this one",
        ),
        (
            "mode = \"nat\"\n[[service]]\n",
            "1:1: error: `mode` stands before any table; it belongs in the file that includes this one, or in a table of this one",
        ),
        (
            "[service.health]\ncheck = \"tcp\"\n",
            "1:2: error: a table of a service stands before any [[service]]; an included file has whole services: begin it with [[service]]",
        ),
    ] {
        let files = Files::new("whole", &[("hairpin.toml", &main), ("conf.d/one.toml", text)]);
        let said = files.load().unwrap_err();
        assert!(said.starts_with(&format!("DIR/conf.d/one.toml:{expected}")), "{said}");
    }
    let files =
        Files::new("limits", &[("hairpin.toml", &main), ("conf.d/one.toml", "[limits]\ndrain_limit = \"1s\"\n")]);
    let said = files.load().unwrap_err();
    assert!(said.starts_with("DIR/conf.d/one.toml:1:2: error: duplicate key"), "{said}");
}

#[test]
fn variables_stand_for_text_numbers_and_truth_values() {
    let text = format!(
        "instance = \"${{HAIRPIN_TEST_NAME:-edge}}\"\nworkers = \"${{HAIRPIN_TEST_WORKERS:-3}}\"\n{}\
         name = \"${{HAIRPIN_TEST_KEPT:-other}}\"\n#:variable HAIRPIN_TEST_KEPT=\"kept\"\n",
        GOOD.replace("10.0.0.1:80", "${HAIRPIN_TEST_BACKEND:-10.0.0.9}:80")
    );
    let config = good(&text);
    assert_eq!((config.settings.instance.as_str(), config.settings.workers), ("edge", Some(3)));
    assert_eq!(config.snapshot.services[0].backends[0].endpoint.to_string(), "10.0.0.9:80");
    assert_eq!(&*config.snapshot.services[0].name, "kept");
    // What is kept means the same where the environment is another one.
    assert!(config.text.contains("#:variable HAIRPIN_TEST_NAME=null\n"), "{}", config.text);
}

#[test]
fn a_variable_that_is_missing_or_of_the_wrong_form_is_told() {
    let missing = format!("workers = \"${{HAIRPIN_TEST_NONE}}\"\n{GOOD}");
    refuses(
        &missing,
        "1:11: error: there is no variable HAIRPIN_TEST_NONE in the environment; set it where Hairpin is started, or write \
         ${HAIRPIN_TEST_NONE:-default}",
    );
    let wrong = said(&format!("workers = \"${{HAIRPIN_TEST_NONE:-many}}\"\n{GOOD}"));
    assert_eq!(
        wrong,
        ["t.toml:1:11: error: `workers` is the text \"many\", not a whole number; use 1 to 64 or \"auto\""]
    );
    // In quotes, but without a variable.
    assert!(said(&format!("workers = \"3\"\n{GOOD}"))[0].contains("not a whole number"));
}
