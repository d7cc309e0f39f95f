//! The configuration in force as a document that can be read, changed and written back.
//!
//! It is kept twice: as text, with the comments that people wrote, and as a tree, which has the file's own names and values. A
//! change is made to the tree, and the text follows it (`text`). What a file includes has become a part of it, and variables
//! of the environment keep their names.

use super::text;
use aws_lc_rs::digest::{SHA256, digest};
use hairpin_diagnostics::FILE_MARK;
use serde_json::Value;
use std::fmt::Write;

/// Bytes of the text's hash that a version has.
const VERSION_BYTES: usize = 16;

/// A configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    text: String,
    tree: Value,
    version: String,
}

impl Document {
    /// The document of a text as [`crate::config::joined`] makes it, or as a configuration in force keeps it.
    ///
    /// # Errors
    /// It is no TOML.
    pub(crate) fn of(text: &str) -> Result<Document, String> {
        let is_own = |line: &&str| !line.starts_with(FILE_MARK) && !line.starts_with(crate::config::VARIABLE_MARK);
        let mut text: String = text.split_inclusive('\n').filter(is_own).collect();
        let mut tree = read(&text)?;
        if tree.get("include").is_some() {
            // What it names stands in the text already.
            text = text::without(&text, "include");
            tree = read(&text)?;
        }
        Ok(Document { version: version(&text), text, tree })
    }

    /// This document with another tree; its text keeps what people wrote about what stays.
    ///
    /// # Errors
    /// The tree has something that TOML has no form for.
    pub(crate) fn with(&self, tree: Value) -> Result<Document, String> {
        if tree == self.tree {
            return Ok(self.clone());
        }
        let text = match text::merged(&self.text, &self.tree, &tree) {
            // Tables are written in the places they had, which need not be the order of the tree.
            Ok(text) if read(&text).is_ok_and(|read| read == tree) => text,
            _ => text::written(&tree)?,
        };
        Ok(Document { version: version(&text), text, tree })
    }

    /// As TOML.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// As JSON.
    pub(crate) fn tree(&self) -> &Value {
        &self.tree
    }

    /// What it is told apart by from any other: the beginning of its text's SHA-256, in hexadecimal digits.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Whether it says the same as another, comments and the order of fields aside.
    pub(crate) fn means(&self, other: &Document) -> bool {
        self.tree == other.tree
    }
}

fn read(text: &str) -> Result<Value, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

fn version(text: &str) -> String {
    let mut version = String::with_capacity(2 * VERSION_BYTES);
    for byte in &digest(&SHA256, text.as_bytes()).as_ref()[..VERSION_BYTES] {
        let _ = write!(version, "{byte:02x}");
    }
    version
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "# The edge.\ninclude = \"conf.d/*.toml\"\ninterfaces = [\"eth0\"] # to clients\n\n# The shop.\n\
        [[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:80/http\"\n\n# Old and slow.\n[[service.backend]]\nname = \
        \"a\"\naddress = \"10.0.0.1:80\"\n\n[[service.backend]]\nname = \"b\"\naddress = \"10.0.0.2:80\" # new\n\
        #:file conf.d/mail.toml\n# Mail.\n[[service]]\nname = \"mail\"\nlisten = \"192.0.2.1:25/tcp\"\nbackends = \
        [\"10.0.0.3:25\"]\n#:variable HOST=\"x\"\n";

    #[test]
    fn a_document_has_the_text_of_all_files_and_includes_none() {
        let document = Document::of(FILE).unwrap();
        for gone in ["include", "#:file", "#:variable"] {
            assert!(!document.text().contains(gone), "{gone}: {}", document.text());
        }
        for kept in ["# The edge.", "# to clients", "# Old and slow.", "# Mail."] {
            assert!(document.text().contains(kept), "{kept}: {}", document.text());
        }
        assert_eq!(document.tree()["service"][1]["name"], "mail");
        let again = Document::of(document.text()).unwrap();
        assert_eq!(again, document, "what it writes is read back as itself");
        assert_ne!(Document::of("a = 1").unwrap().version(), Document::of("a = 2").unwrap().version());
    }

    #[test]
    fn a_change_keeps_the_comments_of_what_stays() {
        let document = Document::of(FILE).unwrap();
        let mut tree = document.tree().clone();
        tree["service"][0]["backend"][1]["weight"] = json!(5);
        let more = json!({"name": "new", "listen": "192.0.2.1:81/tcp", "backend": [{"address": "10.0.0.4:81"}]});
        tree["service"].as_array_mut().unwrap().push(more);
        tree["service"][1]["backends"] = json!(["10.0.0.3:25", "10.0.0.5:25"]);
        tree["log"] = json!({"level": "warning"});
        let changed = document.with(tree.clone()).unwrap();
        assert_eq!(changed.tree(), &tree);
        assert_eq!(Document::of(changed.text()).unwrap().tree(), &tree, "{}", changed.text());
        for kept in ["# The edge.", "# The shop.", "# Old and slow.", "# Mail.", "# new"] {
            assert!(changed.text().contains(kept), "{kept}: {}", changed.text());
        }
        assert!(changed.text().contains("[[service.backend]]\naddress = \"10.0.0.4:81\""), "{}", changed.text());
        let undone = changed.with(document.tree().clone()).unwrap();
        assert!(undone.means(&document));
    }

    #[test]
    fn whatever_a_tree_says_its_text_says_too() {
        let document = Document::of(FILE).unwrap();
        let service = |name: &str| {
            json!({"name": name, "listen": "a", "http": {"limits": {"x": 1}}, "route": [
            {"group": "g", "header": {"X": {"prefix": "a"}, "Y": true}}, {"path": ["/a", "/b"]}]})
        };
        for tree in [
            json!({}),
            json!({"interfaces": [], "service": []}),
            json!({"service": [service("mail"), service("shop")], "share": 0.5}),
            json!({"service": [{"name": "shop", "backend": [{"name": "b"}, {"name": "a"}]}]}),
            json!({"service": {"name": "\"quoted\"\n"}, "mixed": [1, {"a": 1}], "tables": [[], [{}]]}),
            json!({"a b": {"c.d": {"e": 1}}, "": 1}),
        ] {
            let changed = document.with(tree.clone()).unwrap();
            assert_eq!(Document::of(changed.text()).unwrap().tree(), &tree, "{}", changed.text());
        }
        for wrong in [json!({"a": null}), json!({"a": u64::MAX})] {
            assert!(document.with(wrong).is_err());
        }
    }
}
