//! The page for people (`page/`): plain files that are part of the program. They ask for nothing outside of it.

/// The page itself.
pub(super) const INDEX: (&str, &str) = ("text/html; charset=utf-8", include_str!("page/index.html"));

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Type and contents of the file at this path.
pub(super) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => INDEX,
        "/page/page.css" => ("text/css; charset=utf-8", include_str!("page/page.css")),
        "/page/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        "/page/main.js" => (SCRIPT, include_str!("page/main.js")),
        "/page/model.js" => (SCRIPT, include_str!("page/model.js")),
        "/page/dom.js" => (SCRIPT, include_str!("page/dom.js")),
        "/page/services.js" => (SCRIPT, include_str!("page/services.js")),
        "/page/panels.js" => (SCRIPT, include_str!("page/panels.js")),
        _ => return None,
    })
}
