//! Reads `error_pages` of services and routes.

use super::super::reader::TomlTable;
use super::super::secret_file;
use super::super::service::ServiceDraft;
use super::https;
use hairpin_diagnostics::{At, Sink, described};
use hairpin_https::{ErrorPage, ErrorPages};
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a page at most.
pub(crate) const PAGE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of the different pages of all services at most.
pub(crate) const PAGES_BYTES_MAX: usize = 1 << 20;
/// The field, in a service and in a route.
const FIELD: &str = "error_pages";

/// The pages that a table says, with those of `default` that it does not replace.
pub(super) fn read(of: &TomlTable<'_>, default: &ErrorPages, is_terminated: bool) -> ErrorPages {
    let mut pages = default.clone();
    if !of.has(FIELD) {
        return pages;
    }
    if !is_terminated {
        let what = format!("`{FIELD}` is given, but connections of the service are spliced, whose responses have none");
        of.error(&of.span_of(FIELD), what, "make it an https service, or leave it out");
        return pages;
    }
    for (name, value) in of.entries(FIELD) {
        let Some(key) = key(&name.value) else {
            let what = format!("`{FIELD}` names \"{}\"", name.value);
            of.error(&name.span, what, "write a status from \"400\" to \"599\", or \"4xx\" or \"5xx\" for the others");
            continue;
        };
        let Some(text) = value.get_ref().as_str() else {
            let what = format!("`{FIELD}` gives \"{}\" {}", name.value, described(value.get_ref()));
            of.error(&value.span(), what, format!("name a file: \"{}\" = \"/etc/hairpin/error.html\"", name.value));
            continue;
        };
        let file = At { value: text.to_string(), span: value.span() };
        let Some(path) = https::absolute(of, FIELD, &file) else { continue };
        match secret_file::read_bounded(&path, PAGE_BYTES_MAX, "write the page with fewer bytes, without pictures") {
            Ok(body) => {
                let page = ErrorPage { content_type: content_type(&path), body: body.into() };
                pages.0.insert(key, Arc::new(page));
            }
            Err((what, remedy)) => of.error(&file.span, format!("`{FIELD}` \"{text}\": {what}"), remedy),
        }
    }
    pages
}

/// How pages are written, with what tells their files from others.
pub(super) fn said(of: &TomlTable<'_>, pages: &ErrorPages) -> Option<String> {
    let written = of.written_of(FIELD)?;
    let mut hasher = DefaultHasher::new();
    pages.0.hash(&mut hasher);
    Some(format!("{written} ({:08x})", hasher.finish() as u32))
}

/// The key of a page.
fn key(text: &str) -> Option<u16> {
    match text {
        "4xx" => Some(4),
        "5xx" => Some(5),
        _ => text.parse().ok().filter(|status| (400..600).contains(status) && text.len() == 3),
    }
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "text/html; charset=utf-8",
    }
}

/// Keeps every page once, however many services and routes have it, and reports where they are too many.
pub(in super::super) fn share(sink: &Sink<'_>, drafts: &mut [ServiceDraft]) {
    let mut known: HashSet<Arc<ErrorPage>> = HashSet::new();
    let mut bytes = 0;
    for draft in drafts {
        let before = bytes;
        for page in draft.settings.said.pages.sets().flat_map(|pages| pages.0.values_mut()) {
            match known.get(page) {
                Some(other) => *page = Arc::clone(other),
                None => {
                    bytes += page.body.len();
                    known.insert(Arc::clone(page));
                }
            }
        }
        if bytes > PAGES_BYTES_MAX && before <= PAGES_BYTES_MAX {
            let what = format!("with this service, error pages of all services have {bytes} bytes");
            sink.error(&draft.name, what, format!("have {PAGES_BYTES_MAX} at most; equal pages count once"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_statuses_of_errors_and_their_classes() {
        let right = ["400", "499", "599", "4xx", "5xx"].map(key);
        assert_eq!(right, [Some(400), Some(499), Some(599), Some(4), Some(5)]);
        for wrong in ["4", "5", "399", "600", "0404", "+404", "+44", "4XX", "3xx", "xx", "", "404 "] {
            assert_eq!(key(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_a_page_is_its_name_says() {
        let of = |name| content_type(Path::new(name));
        assert_eq!([of("/a.json"), of("/a.txt")], ["application/json", "text/plain; charset=utf-8"]);
        for html in ["/a.html", "/a", "/a.b/c", "/json"] {
            assert_eq!(of(html), "text/html; charset=utf-8");
        }
    }
}
