//! The `hairpin` command.
#![forbid(unsafe_code)]

use hairpin_linux::large_pages::LargePages;

/// Connection tables are large and read in random order.
#[global_allocator]
static ALLOCATOR: LargePages = LargePages;

fn main() -> std::process::ExitCode {
    hairpin::cli::main()
}
