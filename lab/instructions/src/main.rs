//! The `hairpin-instructions` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    hairpin_instructions::main()
}
