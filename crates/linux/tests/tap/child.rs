//! A second process in the same namespaces: this test program, running one of its ignored tests.

use std::process::{Child, Command, Stdio};

const VARIABLE: &str = "HAIRPIN_TEST_CHILD";

/// Starts the ignored test `name` of this program with `input` as its standard input.
pub(crate) fn start(name: &str, input: impl Into<Stdio>) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args([name, "--exact", "--ignored", "--nocapture"]).env(VARIABLE, "1").stdin(input);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Whether this is such a process. An ignored test that is run by hand has nothing to do.
pub(crate) fn is_one() -> bool {
    let is_one = std::env::var_os(VARIABLE).is_some();
    if !is_one {
        eprintln!("skipped: part of another test");
    }
    is_one
}
