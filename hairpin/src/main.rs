//! The `hairpin` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hairpin::cli::main()
}
