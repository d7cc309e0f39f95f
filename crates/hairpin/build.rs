//! Notes the commit that a release is built from, for `hairpin --version`.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Otherwise every commit would build the crate again for each developer.
    if std::env::var("PROFILE").as_deref() != Ok("release") {
        return;
    }
    // Each commit, and each change to another one, adds a line there.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=HAIRPIN_COMMIT={commit}");
    }
}

/// The output of git; `None` outside a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (!text.is_empty()).then_some(text)
}
