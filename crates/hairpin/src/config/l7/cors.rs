//! Reads `[service.cors]` and `[service.route.cors]`.

use super::super::reader::TomlTable;
use super::super::reference::{self, ReferenceSection};
use super::conditions::{header_name, method, parsed};
use hairpin_core::l7::route::Conditions;
use hairpin_https::Cors;

/// Bytes of an origin at most.
const ORIGIN_BYTES_MAX: usize = 255;
/// Bytes of a list of methods, or of names of fields, as responses have it, at most.
pub(crate) const LIST_BYTES_MAX: usize = 4096;

/// The CORS that a table says. `None`: it says none, or that backends' own fields go on. `is_terminated`: whether the service's
/// connections end here.
pub(super) fn read(of: &TomlTable<'_>, section: &'static ReferenceSection, is_terminated: bool) -> Option<Cors> {
    let table = of.table("cors", section);
    if !of.has("cors") {
        return None;
    }
    if !is_terminated {
        let what = "`cors` is given, but connections of the service are spliced: preflights go to backends";
        of.error(
            &of.span_of("cors"),
            what,
            "make it an https service, or leave it out and let backends say the fields",
        );
    }
    if !table.has("origins") {
        table.missing("origins");
        return None;
    }
    let is_off = table.given("origins").is_some_and(super::super::reader::is_empty_list);
    let origins = if is_off { Vec::new() } else { parsed(&table, "origins", origin) };
    let is_any = origins.iter().any(|origin| &**origin == "*");
    if is_any && origins.len() > 1 {
        let what = "`origins` has \"*\" and others";
        table.error(&table.span_of("origins"), what, "\"*\" is any origin: leave the others out, or leave it out");
    }
    let credentials = table.boolean("credentials");
    let lists = [
        list(&table, "methods", |text| if text == "*" { Ok(()) } else { method(text).map(drop) }),
        list(&table, "headers", |text| header_name(text).map_err(str::to_string)),
        list(&table, "expose", |text| header_name(text).map_err(str::to_string)),
    ];
    let has_star = |list: &String| list.split(", ").any(|entry| entry == "*");
    for field in ["origins", "methods", "headers", "expose"] {
        let is_star = match field {
            "methods" => has_star(&lists[0]),
            "headers" => has_star(&lists[1]),
            "expose" => has_star(&lists[2]),
            _ => is_any,
        };
        if credentials && is_star {
            let what = format!("`credentials` cannot be with \"*\" in `{field}`");
            table.error(&table.span_of(field), what, "browsers refuse it: name what may, or leave `credentials` out");
        }
    }
    let [methods, headers, expose] = lists.map(String::into_boxed_str);
    let methods = if methods.is_empty() { "GET, HEAD, POST".into() } else { methods };
    let max_age_s = super::number(&table, "max_age_s");
    let origins = (!is_any).then(|| origins.into());
    (!is_off).then_some(Cors { origins, methods, headers, expose, credentials, max_age_s })
}

/// The CORS of a route: its own, or else its service's.
pub(super) fn of_route(
    table: &TomlTable<'_>,
    conditions: &Conditions,
    default: Option<&Cors>,
    is_terminated: bool,
) -> Option<Cors> {
    let own = read(table, &reference::ROUTE_CORS, is_terminated);
    let takes_preflights = conditions.methods.is_empty() || conditions.methods.iter().any(|name| **name == *b"OPTIONS");
    if own.is_some() && !takes_preflights {
        let what = "preflights do not take the route, whose `method` has no OPTIONS";
        table.warning(&table.span_of("method"), what, "add \"OPTIONS\", or leave `method` out");
    }
    if table.has("cors") { own } else { default.cloned() }
}

/// The entries of a list as a field's value.
fn list(table: &TomlTable<'_>, name: &str, check: impl Fn(&str) -> Result<(), String>) -> String {
    let entries =
        if table.has(name) { parsed(table, name, |text| check(text).map(|()| text.to_string())) } else { Vec::new() };
    let value = entries.join(", ");
    if value.len() > LIST_BYTES_MAX {
        let what = format!("`{name}` has {} bytes", value.len());
        table.error(&table.span_of(name), what, format!("have {LIST_BYTES_MAX} at most, with `, ` between entries"));
    }
    value
}

/// An origin, written as browsers write it (Fetch standard, 3.2: by its ASCII serialisation), or `*`.
fn origin(text: &str) -> Result<Box<str>, String> {
    const RIGHT: &str = "write a scheme and a host, such as \"https://shop.example\" or \"http://localhost:3000\"";
    if text == "*" {
        return Ok(text.into());
    }
    if text == "null" {
        return Err("it is the origin of every sandboxed page, of any site: leave it out".to_string());
    }
    if text.len() > ORIGIN_BYTES_MAX {
        return Err(format!("have {ORIGIN_BYTES_MAX} bytes at most"));
    }
    let (scheme, rest) = text.split_once("://").ok_or(RIGHT)?;
    if rest.contains(['/', '?', '#']) {
        return Err("leave out the path: an origin ends with its host or port".to_string());
    }
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("write \"{}\": browsers write origins in small letters", text.to_ascii_lowercase()));
    }
    let is_scheme =
        |scheme: &str| scheme.bytes().all(|byte| byte.is_ascii_lowercase() || b"0123456789+-.".contains(&byte));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if rest.contains('*') {
        return Err("write each origin, or \"*\" alone for all: parts of origins are not compared".to_string());
    }
    if !scheme.starts_with(|first: char| first.is_ascii_lowercase()) || !is_scheme(scheme) || rest.is_empty() {
        return Err(RIGHT.to_string());
    }
    if !rest.bytes().all(is_host) {
        return Err(format!("{RIGHT}; names of other letters as `xn--...`"));
    }
    let default = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => return Ok(text.into()),
    };
    match text.strip_suffix(default) {
        Some(right) => Err(format!("write \"{right}\": browsers leave out the port of their scheme")),
        None => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::origin;

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        for right in ["*", "https://shop.example", "http://localhost:3000", "http://[::1]:8080", "https://a.example:80"]
        {
            assert_eq!(origin(right).as_deref(), Ok(right));
        }
        let wrong = [
            ("null", "sandbox"),
            ("shop.example", "scheme"),
            ("https://", "scheme"),
            ("://a", "scheme"),
            ("https://shop.example/", "path"),
            ("https://Shop.example", "\"https://shop.example\""),
            ("https://shop.example:443", "\"https://shop.example\""),
            ("http://a:80", "\"http://a\""),
            ("https://*.example", "compared"),
            ("https://b\u{fc}cher.example", "xn--"),
            ("https://a b", "scheme"),
        ];
        for (text, remedy) in wrong {
            let said = origin(text).unwrap_err();
            assert!(said.contains(remedy), "{text}: {said}");
        }
    }
}
