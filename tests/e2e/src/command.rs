//! Running other programs and saying clearly what went wrong.

use anyhow::{Context, Result, bail};
use std::io::Write;
use std::process::{Command, Stdio};

/// How a command reads on a shell's line.
pub fn display(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        let argument = argument.to_string_lossy();
        if argument.is_empty() || argument.contains(|c: char| c.is_whitespace() || "\"'${}*;<>|&".contains(c)) {
            line.push('\'');
            line.push_str(&argument.replace('\'', "'\\''"));
            line.push('\'');
        } else {
            line.push_str(&argument);
        }
    }
    line
}

/// Runs a command to its end and returns what it printed; fails if it could not be started or did not exit with 0.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{}`: is it installed? (scripts/install-deps)", display(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}{}", display(command), output.status, stderr.trim(), tail(&stdout));
    }
    Ok(stdout)
}

/// [`output`], with `input` on the command's standard input.
pub fn output_with_input(command: &mut Command, input: &str) -> Result<String> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| {
            format!("could not start `{}`: is it installed? (scripts/install-deps)", display(command))
        })?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // A program that stops reading early reports its own reason below; the broken pipe is not the news.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}{}\n{input}", display(command), output.status, stderr.trim(), tail(&stdout));
    }
    Ok(stdout)
}

fn tail(stdout: &str) -> String {
    let lines: Vec<&str> = stdout.trim().lines().collect();
    let from = lines.len().saturating_sub(5);
    if lines.is_empty() { String::new() } else { format!(" | {}", lines[from..].join(" | ")) }
}
