//! `docs/reference/cli.md`, written from the command line's own description.

use super::CommandLine;
use clap::{Arg, Command as Description, CommandFactory};
use std::fmt::Write;
use std::path::Path;

const BEGINNING: &str = "<!-- Written from the descriptions in crates/hairpin/src/cli; change those instead. -->\n\n\
    # Command line\n\n\
    `hairpin COMMAND --help` prints what stands here, and so do the manual pages (`man hairpin-status`) of the Debian\n\
    package. Wrong use exits with 2 and shows the usage; other failures exit with 1 unless a command says otherwise.\n\n";

#[test]
fn page_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let right = page_of_commands();
    if page != right && std::env::var_os("HAIRPIN_WRITE_DOCS").is_some() {
        std::fs::write(&path, right).unwrap();
        return;
    }
    assert!(page == right, "run: HAIRPIN_WRITE_DOCS=1 cargo test -p hairpin --lib page_of_commands");
}

fn page_of_commands() -> String {
    let mut program = CommandLine::command().disable_help_subcommand(true);
    program.build();
    let mut out = String::from(BEGINNING);
    out.push_str("| command | what it does |\n|---|---|\n");
    for command in commands(&program) {
        let name = command.get_bin_name().unwrap_or_default();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(out, "| [`{name}`](#{}) | {} |", name.replace(' ', "-"), cell(&about));
    }
    for command in commands(&program) {
        section(&mut out, command);
    }
    out
}

/// Every command that is not hidden, in the order of `--help`, each with its own subcommands behind it.
fn commands(program: &Description) -> Vec<&Description> {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set());
    shown.flat_map(|command| std::iter::once(command).chain(commands(command))).collect()
}

fn section(out: &mut String, command: &Description) {
    let _ = write!(out, "\n## {}\n\n", command.get_bin_name().unwrap_or_default());
    let text = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    for paragraph in text.split("\n\n") {
        let _ = writeln!(out, "{}\n", crate::config::wrapped(&escaped(&sentence(paragraph)), 118));
    }
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(out, "```text\n{usage}\n```\n");
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str()))
        .collect();
    if !shown.is_empty() {
        out.push_str("| argument | default | meaning |\n|---|---|---|\n");
        for argument in shown {
            row(out, argument);
        }
        out.push('\n');
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<&str> = after.lines().map(str::trim).collect();
    let _ = writeln!(out, "```text\n{}\n```", lines.join("\n"));
}

fn row(out: &mut String, argument: &Arg) {
    let values: Vec<&str> = argument.get_value_names().into_iter().flatten().map(|name| name.as_str()).collect();
    let value = if argument.get_action().takes_values() { values.join(" ") } else { String::new() };
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let written = match names.is_empty() {
        true => value,
        false => format!("{} {value}", names.join(", ")).trim_end().to_string(),
    };
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = if argument.get_action().takes_values() { defaults.join(", ") } else { String::new() };
    let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> =
        argument.get_possible_values().iter().map(|choice| format!("`{}`", choice.get_name())).collect();
    if argument.get_action().takes_values() && !choices.is_empty() {
        let _ = write!(help, " One of {}.", choices.join(", "));
    }
    let _ = writeln!(out, "| `{}` | {default} | {} |", written.replace('|', "\\|"), cell(&help));
}

/// The characters that may end a bar in a cell of a table.
fn cell(text: &str) -> String {
    escaped(&sentence(text)).replace('|', "\\|").replace('\n', " ")
}

/// The text with the full stop that clap takes from a single paragraph.
fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with(['.', ':']) { text.to_string() } else { format!("{text}.") }
}

/// Angle brackets would begin HTML, square ones a link.
fn escaped(text: &str) -> String {
    text.replace('<', "\\<").replace("[[", "\\[\\[").replace("]]", "\\]\\]")
}
