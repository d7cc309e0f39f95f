//! Manual pages and shell completions, written from the command line's own description.

use super::{CommandLine, stdout};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;

/// The text of `--version`; left out of the manual pages, which would change with each commit.
pub(super) fn version() -> &'static str {
    let features: Vec<&str> = [("dpdk", cfg!(feature = "dpdk")), ("fake-flow", cfg!(feature = "fake-flow"))]
        .into_iter()
        .filter_map(|(name, is_built_in)| is_built_in.then_some(name))
        .collect();
    let features = if features.is_empty() { "none".to_string() } else { features.join(", ") };
    let commit = option_env!("HAIRPIN_COMMIT").unwrap_or("not recorded");
    // Once in the life of the process.
    format!("{}\nfeatures: {features}\ncommit: {commit}", env!("CARGO_PKG_VERSION")).leak()
}

/// Prints the manual page, or writes one for each command into `directory`.
pub(super) fn manual(directory: Option<&Path>) -> Result<()> {
    match directory {
        None => {
            let mut page = Vec::new();
            // As in the pages that are written below: `help` has none.
            clap_mangen::Man::new(CommandLine::command().disable_help_subcommand(true)).render(&mut page)?;
            stdout().write_all(&page)?;
            Ok(())
        }
        Some(directory) => clap_mangen::generate_to(CommandLine::command(), directory)
            .with_context(|| format!("cannot write manual pages into {}", directory.display())),
    }
}

/// Prints what `shell` needs.
pub(super) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "hairpin", &mut script);
    let script = String::from_utf8(script).context("a completion script is text")?;
    stdout().write_all(with_names(shell, script).as_bytes())?;
    Ok(())
}

/// The script, and what makes it ask `hairpin names` first.
fn with_names(shell: Shell, script: String) -> String {
    match shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH,
        // It is read as a function's body, or sourced: the end tells which.
        Shell::Zsh => match script.rsplit_once("if [ \"$funcstack[1]\" = \"_hairpin\" ]") {
            Some((functions, _)) => functions.to_string() + ZSH,
            None => script,
        },
        _ => script,
    }
}

/// Bash breaks words at colons, which backends' names may have: the line is read anew, and what precedes the last colon
/// is not to be put in again.
const BASH: &str = r#"
_hairpin_names() {
    local line=${COMP_LINE:0:COMP_POINT} current='' names prefix
    local -a words
    read -ra words <<<"$line"
    if [[ $line != *[[:space:]] && ${#words[@]} -gt 0 ]]; then
        current=${words[${#words[@]}-1]}
        unset "words[${#words[@]}-1]"
    fi
    if names=$("${words[0]:-hairpin}" names -- "${words[@]}" 2>/dev/null); then
        local IFS=$'\n'
        COMPREPLY=($(compgen -W "$names" -- "$current"))
        if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
            prefix=${current%"${current##*:}"}
            COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
        fi
    else
        _hairpin "$@"
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _hairpin_names -o nosort -o bashdefault -o default hairpin
else
    complete -F _hairpin_names -o bashdefault -o default hairpin
fi
"#;

const ZSH: &str = r#"functions[_hairpin_options]=$functions[_hairpin]

_hairpin() {
    local names
    if names=$("${words[1]}" names -- "${(@)words[1,CURRENT-1]}" 2>/dev/null); then
        compadd -- "${(@f)names}"
    else
        _hairpin_options "$@"
    fi
}

if [ "$funcstack[1]" = "_hairpin" ]; then
    _hairpin "$@"
else
    compdef _hairpin hairpin
fi
"#;

const FISH: &str = r#"complete -c hairpin -n 'hairpin names -- (commandline -opc) >/dev/null 2>&1' -f -a '(hairpin names -- (commandline -opc) 2>/dev/null)'
"#;
