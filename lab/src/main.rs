//! The `hairpin-lab` command.
#![forbid(unsafe_code)]

mod command;

use hairpin_linux::large_pages::LargePages;

/// Connection tables are large and read in random order, as in the daemon.
#[global_allocator]
static ALLOCATOR: LargePages = LargePages;

fn main() -> std::process::ExitCode {
    command::main()
}
