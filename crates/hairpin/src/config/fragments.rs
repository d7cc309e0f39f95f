//! Files that a configuration includes, and variables of the environment in its values.
//!
//! A configuration is one text: that of the file, and behind it that of each fragment, after a line that names it
//! ([`FILE_MARK`]). Variables keep their names in it. What they were is written behind the text of a configuration in force
//! ([`VARIABLE_MARK`]), so that it means the same in a process with another environment.

use super::{FILE_BYTES_MAX, limits::FRAGMENTS_MAX};
use hairpin_diagnostics::{FILE_MARK, Problems, Sink, parts, text_of};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Begins the line that keeps a variable's value: a JSON string behind its name and `=`. To TOML it is a comment.
pub(crate) const VARIABLE_MARK: &str = "#:variable ";

/// The text of the file at `path` and of the fragments that it includes.
///
/// # Errors
/// A file cannot be read, or there are too many.
pub fn joined(path: &Path) -> Result<String, Problems> {
    let mut text = read(path, "name the configuration with -c FILE (`hairpin config` prints every field)")?;
    for fragment in fragments(path, &text)? {
        let more = read(&fragment, "correct `include`, or make the file")?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let _ = write!(text, "{FILE_MARK}{}\n{more}", fragment.display());
        if text.len() as u64 > FILE_BYTES_MAX {
            let what =
                format!("the configuration has more than {FILE_BYTES_MAX} bytes with the files that it includes");
            return Err(Problems::unreadable(path, what, "include fewer files"));
        }
    }
    Ok(text)
}

fn read(path: &Path, missing: &str) -> Result<String, Problems> {
    text_of(path, FILE_BYTES_MAX).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => missing,
            ErrorKind::InvalidData => "it must be UTF-8 text",
            _ => "it must be a readable file",
        };
        Problems::unreadable(path, format!("cannot read the configuration: {error}"), remedy)
    })
}

/// The files that `include` of the text means, those of each pattern in the order of their names.
fn fragments(path: &Path, text: &str) -> Result<Vec<PathBuf>, Problems> {
    if !text.contains("include") {
        // Most have no such field, and reading a large text takes as long as all the rest.
        return Ok(Vec::new());
    }
    // What is wrong with the text, or with the field's form, is reported when all of it is read.
    let (document, _) = DeTable::parse_recoverable(text);
    let patterns: Vec<&str> = match document.get_ref().get("include").map(Spanned::get_ref) {
        Some(DeValue::String(one)) => vec![one],
        Some(DeValue::Array(several)) => several.iter().filter_map(|one| one.get_ref().as_str()).collect(),
        _ => Vec::new(),
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for pattern in patterns {
        let refused = |what: String, remedy: &str| Err(Problems::unreadable(path, what, remedy));
        let whole = directory.join(pattern);
        if !pattern.contains(['*', '?', '[']) {
            found.push(whole);
            continue;
        }
        let Some(files) = whole.to_str().and_then(|whole| glob::glob(whole).ok()) else {
            return refused(format!("`include` has \"{pattern}\", which is no pattern"), "write \"conf.d/*.toml\"");
        };
        for file in files {
            match file {
                Ok(file) if file.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")) => {
                    found.push(file);
                }
                Ok(_) => {}
                Err(error) => return refused(format!("cannot read the configuration: {error}"), "make it readable"),
            }
        }
    }
    if found.len() > FRAGMENTS_MAX {
        let what = format!("`include` means {} files", found.len());
        return Err(Problems::unreadable(path, what, &format!("include at most {FRAGMENTS_MAX}")));
    }
    Ok(found)
}

/// Reports what a fragment may not have: fields of the top level, which TOML would take for those of the last table of the file
/// before, and tables of a service before its `[[service]]`.
pub(super) fn check(sink: &Sink<'_>, text: &str) {
    for (_, part) in parts(text).into_iter().skip(1) {
        let (document, errors) = DeTable::parse_recoverable(&text[part.clone()]);
        if !errors.is_empty() {
            // They are reported of the whole text.
            continue;
        }
        for (key, value) in document.get_ref() {
            let at = part.start + key.span().start..part.start + key.span().end;
            let name = key.get_ref();
            if !text[part.start..at.start].trim_end().ends_with('[') {
                let what = format!("`{name}` stands before any table");
                sink.error(&at, what, "it belongs in the file that includes this one, or in a table of this one");
            } else if name == "service" && value.get_ref().is_table() {
                let what = "a table of a service stands before any [[service]]";
                sink.error(&at, what, "an included file has whole services: begin it with [[service]]");
            }
        }
    }
}

/// The values of variables that a text names.
#[derive(Debug, Default)]
pub(super) struct Variables {
    /// Those that stand in the text; `None`: that is not set.
    kept: BTreeMap<String, Option<String>>,
    /// Those that have been asked for.
    used: BTreeMap<String, Option<String>>,
}

impl Variables {
    /// Those that a text keeps.
    pub(super) fn of(text: &str) -> Variables {
        let kept = text.lines().filter_map(|line| line.strip_prefix(VARIABLE_MARK)?.split_once('='));
        let kept = kept.filter_map(|(name, value)| Some((name.to_owned(), serde_json::from_str(value).ok()?)));
        Variables { kept: kept.collect(), used: BTreeMap::new() }
    }

    /// The text with what has been used behind it.
    pub(super) fn keep(self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in self.used.iter().filter(|(name, _)| !self.kept.contains_key(*name)) {
            let value = serde_json::Value::from(value.clone());
            let newline = if text.ends_with('\n') { "" } else { "\n" };
            let _ = writeln!(text, "{newline}{VARIABLE_MARK}{name}={value}");
        }
        text
    }

    /// Replaces `${NAME}` and `${NAME:-default}` in every value of the document that is text; `$${` stands for `${`. Whether
    /// all could be replaced.
    pub(super) fn substitute(&mut self, sink: &Sink<'_>, document: &mut DeTable<'_>) -> bool {
        let mut is_whole = true;
        for (_, value) in document.iter_mut() {
            is_whole &= self.substitute_value(sink, value);
        }
        is_whole
    }

    fn substitute_value(&mut self, sink: &Sink<'_>, value: &mut Spanned<DeValue<'_>>) -> bool {
        let span = value.span();
        match value.get_mut() {
            DeValue::String(text) if text.contains("${") => match self.replaced(text) {
                Ok(replaced) => *text = replaced.into(),
                Err((what, remedy)) => {
                    sink.error(&span, what, remedy);
                    return false;
                }
            },
            DeValue::Array(items) => {
                let mut is_whole = true;
                for item in items.iter_mut() {
                    is_whole &= self.substitute_value(sink, item);
                }
                return is_whole;
            }
            DeValue::Table(table) => return self.substitute(sink, table),
            _ => {}
        }
        true
    }

    /// The text with its variables replaced; else what is wrong, and what would be right.
    fn replaced(&mut self, text: &str) -> Result<String, (String, String)> {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(at) = rest.find("${") {
            if let Some(before) = rest[..at].strip_suffix('$') {
                out += before;
                out += "${";
                rest = &rest[at + 2..];
                continue;
            }
            out += &rest[..at];
            let remedy = || "write ${NAME} or ${NAME:-default}, and $${ where ${ itself is meant".to_owned();
            let Some((inside, behind)) = rest[at + 2..].split_once('}') else {
                return Err(("a variable is not closed".to_owned(), remedy()));
            };
            let (name, default) = match inside.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            let legal =
                |index: usize, c: char| c == '_' || c.is_ascii_alphabetic() || (index > 0 && c.is_ascii_digit());
            if name.is_empty() || !name.chars().enumerate().all(|(index, c)| legal(index, c)) {
                return Err((format!("\"{inside}\" is no name of a variable"), remedy()));
            }
            out += &self.value(name, default)?;
            rest = behind;
        }
        out += rest;
        Ok(out)
    }

    fn value(&mut self, name: &str, default: Option<&str>) -> Result<String, (String, String)> {
        let found = match self.kept.get(name) {
            Some(value) => value.clone(),
            None => match std::env::var(name) {
                Ok(value) => Some(value),
                Err(std::env::VarError::NotPresent) => None,
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err((
                        format!("the variable {name} of the environment is not UTF-8"),
                        "set it anew".to_owned(),
                    ));
                }
            },
        };
        self.used.insert(name.to_owned(), found.clone());
        match (found, default) {
            // As in a shell, an empty one gives way to a default.
            (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
            (Some(value), _) => Ok(value),
            (None, Some(default)) => Ok(default.to_owned()),
            (None, None) => {
                let remedy = format!("set it where Hairpin is started, or write ${{{name}:-default}}");
                Err((format!("there is no variable {name} in the environment"), remedy))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_in_text() {
        let mut variables = Variables::of("a = 1\n#:variable HOST=\"ex\\\"ample\"\n#:variable EMPTY=\"\"\n");
        for (text, expected) in [
            ("plain $ {} text", "plain $ {} text"),
            ("https://${HOST}/${HOST}", "https://ex\"ample/ex\"ample"),
            ("$${HOST} $$${HOST}", "${HOST} $${HOST}"),
            ("${EMPTY}|${EMPTY:-other}|${HAIRPIN_NOT_SET:-a:-b}", "|other|a:-b"),
        ] {
            assert_eq!(variables.replaced(text).unwrap(), expected);
        }
        for wrong in ["${", "${}", "${1A}", "${A B}", "x${HOST", "${HAIRPIN_NOT_SET}"] {
            assert!(variables.replaced(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_used_is_kept_with_the_text() {
        let text = "instance = \"${HAIRPIN_NOT_SET:-a\\nb}\"";
        let mut variables = Variables::of(text);
        assert_eq!(variables.replaced("${HAIRPIN_NOT_SET:-a\nb}").unwrap(), "a\nb");
        let kept = variables.keep(text);
        assert_eq!(kept, format!("{text}\n#:variable HAIRPIN_NOT_SET=null\n"));
        let kept = kept.replace("null", "\"a\\nb\"");
        let mut again = Variables::of(&kept);
        assert_eq!(again.replaced("${HAIRPIN_NOT_SET:-c}").unwrap(), "a\nb");
        assert_eq!(again.keep(&kept), kept);
    }
}
