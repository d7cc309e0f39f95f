//! `hairpin import`: a Hairpin configuration out of another program's.
//!
//! What it writes passes `hairpin validate`. What it cannot say is told, each directive with its place: none is left out silently, and
//! where that would open what was closed, requests are refused instead.
//!
//! nginx's language is a dozen lines of grammar, read here (`parse`): the crate for it (nginx-config) has stood still since 2019, knows a
//! fixed list of directives and refuses files with others, and what is needed is just each directive with its line.

mod edits;
mod http;
mod location;
mod model;
mod parse;
mod reasons;
mod server;
mod stream;
mod upstream;
mod variables;

use crate::config;
use anyhow::{Result, anyhow};
use clap::Args;
use model::Output;
use parse::{Directive, Place};
use serde::Serialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// What another program's file does not say.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ImportArgs {
    /// The main configuration file, such as /etc/nginx/nginx.conf.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The address of services for which nginx listens on all addresses; may be given for each family.
    #[arg(long, value_name = "ADDRESS")]
    vip: Vec<IpAddr>,
    /// The address that backends on nginx's own host (127.0.0.1, localhost) have for Hairpin.
    #[arg(long, value_name = "ADDRESS")]
    local: Option<IpAddr>,
    /// An address of this host, from which connections go to backends; may be given for each family.
    #[arg(long, value_name = "ADDRESS")]
    pool: Vec<IpAddr>,
    /// An interface that packets of clients and backends come in on; may be given several times.
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
}

/// A directive that is not carried over, or not wholly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Note {
    /// Its file.
    pub(crate) file: String,
    /// Its line, from 1.
    pub(crate) line: usize,
    /// It, with its arguments.
    pub(crate) directive: String,
    /// Why, and what to do.
    pub(crate) why: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file, self.line, self.directive, self.why)
    }
}

/// Bytes of a directive in a note; what is beyond is left out.
const DIRECTIVE_MAX: usize = 120;

/// The notes so far.
#[derive(Debug, Default)]
struct Notes(Vec<Note>);

impl Notes {
    fn add(&mut self, directive: &Directive, why: impl Into<String>) {
        let Place { file, line } = &directive.at;
        let mut text: String = directive.text().chars().take(DIRECTIVE_MAX).collect();
        if text.len() < directive.text().len() {
            text.push_str("...");
        }
        let note = Note { file: file.display().to_string(), line: *line, directive: text, why: why.into() };
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }
}

/// What is known while a file is carried over.
struct Context {
    options: ImportArgs,
    /// Relative paths of files are relative to it.
    directory: PathBuf,
    notes: Notes,
    output: Output,
}

impl Context {
    /// The VIP of a family, for a directive that names none: that of the options, or one from the range for documentation.
    fn vip(&mut self, is_ipv6: bool) -> Option<IpAddr> {
        let given = self.options.vip.iter().find(|vip| vip.is_ipv6() == is_ipv6).copied();
        if given.is_none() && !is_ipv6 {
            self.output.has_placeholders = true;
        }
        given.or((!is_ipv6).then_some(IpAddr::from([192, 0, 2, 10])))
    }
}

/// The configuration in TOML, and what is not in it.
///
/// # Errors
/// The file cannot be read, or is no configuration of nginx.
pub(crate) fn nginx(options: &ImportArgs) -> Result<(String, Vec<Note>)> {
    let (directives, missing) = parse::read(&options.file)?;
    let directory = options.file.parent().unwrap_or(Path::new("")).to_path_buf();
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let output = Output::new(&options.interface, &options.pool);
    let mut context = Context { options: options.clone(), directory, notes: Notes::default(), output };
    for one in &missing {
        context.notes.add(&one.directive, &*one.why);
    }
    for directive in &directives {
        match &*directive.name {
            "http" => http::http(&mut context, directive),
            "stream" => stream::stream(&mut context, directive),
            // A file of conf.d by itself.
            "server" | "upstream" | "map" => {}
            _ => reasons::note(&mut context.notes, directive),
        }
    }
    if !directives.iter().any(|one| one.name == "http" || one.name == "stream") {
        http::loose(&mut context, &directives);
    }
    let mut notes = context.notes.0;
    notes.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    let text = context.output.text(&options.file);
    if !context.output.has_services() {
        return Err(anyhow!("{} has nothing that Hairpin could balance{}", options.file.display(), listed(&notes)));
    }
    // What is written is right, or it is not written.
    config::parse("the configuration that was made", &text).map_err(|problems| {
        anyhow!("{problems}\nthe configuration was not written, as it would not be valid:\n{text}")
    })?;
    Ok((text, notes))
}

fn listed(notes: &[Note]) -> String {
    notes.iter().map(|note| format!("\n{note}")).collect()
}

#[cfg(test)]
mod tests;
