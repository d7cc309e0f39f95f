//! This program once more, as another process.

use super::memif;
use crate::start;
use hairpin_dpdk::EalPages;
use std::process::{Child, Command, Stdio};

const VARIABLE: &str = "HAIRPIN_TEST_CHILD";

/// Starts a process that plays a part; what it needs to know goes with it.
pub(crate) fn spawn(part: &str, rest: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env(VARIABLE, format!("{part} {rest}")).stdin(Stdio::null());
    command.spawn().expect("a process")
}

pub(crate) fn is_one() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Plays the part; panics if something is wrong.
pub(crate) fn run() {
    let part = std::env::var(VARIABLE).expect("a part");
    let (part, rest) = part.split_once(' ').expect("a part and the rest");
    match part {
        "memif" => {
            start(EalPages::None);
            memif::echo(rest);
        }
        "memif-server" => {
            start(EalPages::None);
            memif::serve(rest);
        }
        "huge" => {
            start(EalPages::Huge);
            super::memory::with_hugepages();
        }
        "none" => super::memory::without_hugepages(),
        "auto" => {
            start(EalPages::Auto);
            super::memory::with_ordinary_pages();
        }
        part => panic!("{part} is no part"),
    }
}
