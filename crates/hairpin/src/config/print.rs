//! The reference as a commented file and as a documentation page.

use super::reference::{
    COMMON, Fallback, LAYER7, OBSERVERS, PORTS, ReferenceField, ReferenceSection, SECTIONS, ValueForm,
};
use std::fmt::Write;
use std::time::Duration;

/// Columns of a commented file's text.
const COLUMNS: usize = 100;

/// A commented configuration file: every field with its default, those that must be given with an example. What only
/// HTTP and TLS services have is commented out as a whole, by `#` without a space.
pub fn template() -> String {
    let mut out = String::from("# Every field of hairpin.toml. A line that is commented out shows the default.\n");
    for section in COMMON {
        let header_mark = if section.header.starts_with("[[") { "" } else { "# " };
        // What must be given in a section that may be left out.
        let required = if section.header.is_empty() { "" } else { header_mark };
        commented(&mut out, section, [header_mark, required, "# "]);
    }
    out.push('\n');
    comment(&mut out, "", "What follows observes packets, beside services or without any: take the `#` away.");
    for section in OBSERVERS {
        commented(&mut out, section, ["#"; 3]);
    }
    out.push('\n');
    comment(
        &mut out,
        "",
        "What follows is for plane = \"dpdk\", in place of `interfaces` and [linux]: take the `#` away from what you need \
         of it.",
    );
    for section in PORTS {
        commented(&mut out, section, ["#"; 3]);
    }
    out.push('\n');
    comment(
        &mut out,
        "",
        "What follows is for services with protocol = \"http\", \"https\" or \"tls\": take the `#` away from what you \
         need of it.",
    );
    for section in LAYER7 {
        commented(&mut out, section, ["#"; 3]);
    }
    out
}

/// A section, with what stands before its header, before fields that must be given and before the others.
fn commented(out: &mut String, section: &ReferenceSection, [header, required, optional]: [&str; 3]) {
    out.push('\n');
    comment(out, "", section.doc);
    if !section.header.is_empty() {
        let _ = writeln!(out, "{header}{}", section.header);
    }
    for field in section.fields.iter().filter(|field| !matches!(field.kind, ValueForm::Tables)) {
        out.push('\n');
        comment(out, "", field.doc);
        if let ValueForm::Choice(words) = field.kind {
            for (word, doc) in words {
                comment(out, "  ", &format!("\"{word}\": {doc}"));
            }
        }
        let _ = match field.fallback {
            Fallback::Required => writeln!(out, "{required}{} = {}", field.name, field.example),
            Fallback::Value(_) => writeln!(out, "{optional}{} = {}", field.name, default(field)),
            Fallback::From(from) => writeln!(out, "{optional}{} = {}    # default: {from}", field.name, field.example),
        };
    }
}

/// The documentation page `docs/reference/configuration.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "<!-- Printed by `hairpin config --markdown`; change crates/hairpin/src/config/reference.rs instead. -->\n\n\
         # Configuration\n\n\
         Hairpin reads one TOML file, `/etc/hairpin/hairpin.toml` unless `-c FILE` names another. Unknown fields are\n\
         refused. Durations are text with a unit: `\"500ms\"`, `\"30s\"`, `\"5m\"`, `\"1h\"`.\n\
         In values that are text, `${NAME}` is replaced by that variable of the environment in which Hairpin was started, and\n\
         `${NAME:-default}` by the default if there is none or it is empty; `$${` stands for `${`. A number or truth value may be\n\
         given so, too, in quotes: `workers = \"${WORKERS:-auto}\"`.\n\
         `hairpin validate -c FILE` reports every mistake of a file at once; `examples/minimal.toml`,\n\
         `examples/full.toml`, `examples/http.toml` and `examples/dpdk.toml` are files to start from, and `hairpin config` prints a commented one.\n\
         [HTTP services](../guide/http.md) explains HTTP and TLS services, [The dpdk plane](../guide/dpdk.md) that plane.\n",
    );
    for section in SECTIONS {
        let title = if section.header.is_empty() { "Top level" } else { section.header };
        let _ = write!(out, "\n## {}\n\n{}\n\n", escaped(title), wrapped(section.doc, 118));
        out.push_str("| field | form | default | meaning |\n|---|---|---|---|\n");
        for field in section.fields.iter().filter(|field| !matches!(field.kind, ValueForm::Tables)) {
            let _ = writeln!(out, "| `{}` | {} | {} | {} |", field.name, form(field), fallback(field), meaning(field));
        }
    }
    out
}

fn fallback(field: &ReferenceField) -> String {
    match field.fallback {
        Fallback::Required => "required".to_string(),
        Fallback::Value(_) => format!("`{}`", default(field)),
        Fallback::From(from) => from.to_string(),
    }
}

fn meaning(field: &ReferenceField) -> String {
    let mut out = escaped(field.doc);
    if let ValueForm::Choice(words) = field.kind {
        for (word, doc) in words {
            let _ = write!(out, "<br>`\"{word}\"`: {doc}.");
        }
    }
    out
}

/// The default as it would stand in the file.
fn default(field: &ReferenceField) -> String {
    let Fallback::Value(value) = field.fallback else { return String::new() };
    match field.kind {
        ValueForm::Boolean
        | ValueForm::Integer { .. }
        | ValueForm::Share
        | ValueForm::Interfaces
        | ValueForm::Addresses
        | ValueForm::Networks
        | ValueForm::Endpoints => value.to_string(),
        _ => format!("\"{value}\""),
    }
}

fn form(field: &ReferenceField) -> String {
    match field.kind {
        ValueForm::Text => "text".to_string(),
        ValueForm::Name { length_max } => format!("name, up to {length_max} characters"),
        ValueForm::Choice(_) => "one of".to_string(),
        ValueForm::Duration { min_ms, max_ms } => {
            let [min, max] = [min_ms, max_ms].map(|ms| humantime::format_duration(Duration::from_millis(ms)));
            format!("duration, {min} to {max}")
        }
        ValueForm::Boolean => "`true` or `false`".to_string(),
        ValueForm::Integer { min, max } => format!("{min} to {max}"),
        ValueForm::Share => "0.0 to 1.0".to_string(),
        ValueForm::IntegerOrAuto { min, max } => format!("`\"auto\"` or {min} to {max}"),
        ValueForm::Interfaces => format!("list of names, such as `{}`", field.example),
        ValueForm::Addresses => format!("list of addresses, such as `{}`", field.example),
        ValueForm::Ports => "`\"first-last\"`".to_string(),
        ValueForm::Listen => "`\"address:port/protocol\"`".to_string(),
        ValueForm::Endpoint => "`\"address:port\"`".to_string(),
        ValueForm::EndpointOrOff => "`\"address:port\"` or `\"off\"`".to_string(),
        ValueForm::Statuses => "numbers and ranges".to_string(),
        ValueForm::Endpoints => "list of `\"address:port\"`".to_string(),
        ValueForm::Texts => format!("text or list of texts, such as `{}`", escaped(field.example)),
        ValueForm::Networks => format!("network or list of networks, such as `{}`", escaped(field.example)),
        ValueForm::Map => format!("table, such as `{}`", escaped(field.example)),
        ValueForm::Tables => "table".to_string(),
    }
}

fn escaped(text: &str) -> String {
    text.replace("[[", "\\[\\[").replace("]]", "\\]\\]").replace('|', "\\|")
}

fn comment(out: &mut String, indent: &str, text: &str) {
    for line in wrapped(text, COLUMNS - indent.len()).lines() {
        let _ = writeln!(out, "# {indent}{line}");
    }
}

pub(crate) fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > columns {
            out.push('\n');
            length = 0;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word_length;
    }
    out
}
