//! The command line as users meet it: the built binary, what it prints and how it exits.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn hairpin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hairpin")).args(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file that is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hairpin-cli-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn validate_accepts_the_examples() {
    for (name, counts) in [("minimal", "1 service, 2 backends"), ("full", "3 services, 7 backends")] {
        let path = root().join(format!("examples/{name}.toml"));
        let output = hairpin(&["validate", "-c", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", err(&output));
        assert_eq!(out(&output), format!("{}: right: {counts}\n", path.display()));
    }
}

#[test]
fn validate_reports_every_mistake_and_fails() {
    let file = Scratch::new("bad", "interfces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:80\"\n");
    let output = hairpin(&["validate", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out(&output), "");
    let path = file.path();
    assert_eq!(
        err(&output),
        format!(
            "{path}:1:1: error: unknown field `interfces` in the top level; did you mean `interfaces`?\n\
             {path}:1:1: error: `interfaces` is missing in the top level; add interfaces = [\"eth0\", \"eth1\"]\n\
             {path}:2:1: error: the service has no backend; add backends = [\"10.0.2.11:8080\"] or a \
             [[service.backend]]\n\
             {path}:3:10: error: `listen` \"192.0.2.1:80\" names no protocol; write \"192.0.2.1:80/tcp\" or \
             \"192.0.2.1:80/udp\"\n"
        )
    );
}

#[test]
fn run_refuses_a_bad_file_and_interfaces_that_are_not_there() {
    let file = Scratch::new("run-bad", "interfaces = []\n");
    let output = hairpin(&["run", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("`interfaces` names none"), "{}", err(&output));

    let text =
        "interfaces = [\"surely-absent\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.1:80\"]\n";
    let file = Scratch::new("run-absent", text);
    let output = hairpin(&["run", "-c", file.path()]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    let unprivileged = said.contains("this process lacks CAP_");
    assert!(unprivileged || said.contains("there is no interface surely-absent; "), "{said}");
}

#[test]
fn status_and_stop_say_that_nobody_is_there() {
    for arguments in [&["status", "--socket", "/nonexistent/x.sock"][..], &["stop", "--socket", "/nonexistent/x.sock"]]
    {
        let output = hairpin(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).starts_with("no instance answers at /nonexistent/x.sock; "), "{}", err(&output));
    }
}

#[test]
fn config_prints_a_file_that_validates() {
    let output = hairpin(&["config"]);
    let file = Scratch::new("template", &out(&output));
    let output = hairpin(&["validate", "-c", file.path()]);
    assert!(output.status.success(), "{}", err(&output));
}

#[test]
fn the_manual_page_is_up_to_date() {
    let output = hairpin(&["man"]);
    assert!(output.status.success());
    let page = std::fs::read_to_string(root().join("docs/hairpin.1")).expect("docs/hairpin.1");
    assert!(page == out(&output), "run: cargo run -p hairpin -- man > docs/hairpin.1");
    for command in ["run", "validate", "status", "stop", "config", "man"] {
        assert!(page.contains(&format!("hairpin\\-{command}(1)")), "{command}");
    }
}

#[test]
fn manual_pages_of_all_commands_can_be_written() {
    let directory = std::env::temp_dir().join(format!("hairpin-man-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let output = hairpin(&["man", "--directory", directory.to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(directory.join("hairpin.1").exists() && directory.join("hairpin-status.1").exists());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn wrong_use_exits_with_2_and_shows_the_usage() {
    for arguments in [&["--wrong"][..], &["staus"], &["status", "-o", "xml"], &[]] {
        let output = hairpin(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(err(&output).contains("Usage:") || err(&output).contains("--help"), "{}", err(&output));
    }
}

#[test]
fn version_is_told() {
    let output = hairpin(&["--version"]);
    assert_eq!(out(&output), format!("hairpin {}\n", env!("CARGO_PKG_VERSION")));
}
