//! Reads what only HTTP and TLS services have.
//!
//! Whatever is wrong is reported and left out; a file with mistakes is not used.

pub(super) mod backend_tls;
mod basic;
mod conditions;
mod cors;
mod edits;
mod forward_auth;
mod http;
mod https;
mod pages;
mod route;
mod target;
mod tls;

/// Bounds of these tables.
pub(crate) mod limits {
    pub(crate) use super::backend_tls::ROOTS_MAX;
    pub(crate) use super::basic::FILE_BYTES_MAX as USERS_FILE_BYTES_MAX;
    pub(crate) use super::http::PATH_BYTES_MAX;
    pub(crate) use super::https::CERTIFICATES_MAX;
    pub(crate) use super::pages::{PAGE_BYTES_MAX, PAGES_BYTES_MAX};
    pub(crate) use super::route::BODY_BYTES_MAX;
    pub(crate) use super::target::SHARES_MAX;
    pub(crate) use super::{ENTRIES_MAX, ROUTES_MAX};
}

pub(crate) use conditions::network;
pub(super) use conditions::{header_name, is_token, networks};
pub(super) use http::{is_secure, is_terminated, redirects, redirects_said, terminates};
pub(super) use https::absolute;
pub(super) use pages::share as share_pages;
pub(super) use route::only;
pub(super) use target::{OWN, Targets};

use super::reader::TomlTable;
use super::words::{Preface, SettingWord, Spoken};
use super::{HttpSections, HttpsSettings};
use hairpin_core::l7::config::{Kind, ProxyVersion, Terminated};
use std::ops::Range;

/// Routes of a service at most, and access rules.
pub(crate) const ROUTES_MAX: usize = 1024;
/// Entries of a list at most, such as a route's hosts.
pub(crate) const ENTRIES_MAX: usize = 256;

/// What the service does with its connections, what the file says about that, and how it speaks TLS if TLS ends here.
pub(super) fn read(
    table: &TomlTable<'_>,
    spoken: Spoken,
    targets: &Targets,
) -> (Kind, HttpSections, Option<HttpsSettings>) {
    match spoken {
        Spoken::Http => {
            let (http, said) = http::read(table, spoken, targets);
            let kind = match is_terminated(table, spoken) {
                true => Kind::Terminated(Box::new(Terminated { http, tls: false, http2: http::takes_http2(table) })),
                false => Kind::Http(Box::new(http)),
            };
            (kind, said, None)
        }
        Spoken::Https => {
            let (http, mut said) = http::read(table, spoken, targets);
            let (settings, http2, fields) = https::read(table);
            said.fields.extend(fields);
            (Kind::Terminated(Box::new(Terminated { http, tls: true, http2 })), said, Some(settings))
        }
        Spoken::Tls => {
            let (tls, said) = tls::read(table, targets);
            (Kind::Tls(Box::new(tls)), said, None)
        }
        Spoken::Tcp | Spoken::Udp => (Kind::Forward, HttpSections::default(), None),
    }
}

/// The header that a TCP service's connections to backends begin with. Others have `proxy_protocol` in a table of theirs.
pub(super) fn of_tcp(table: &TomlTable<'_>, spoken: Option<Spoken>) -> Option<ProxyVersion> {
    read_proxy_protocol(table).filter(|_| spoken == Some(Spoken::Tcp))
}

/// The kind of a TCP service with such a header, whose number is `number`.
pub(super) fn plain(table: &TomlTable<'_>, version: ProxyVersion, number: u16) -> Kind {
    Kind::Tls(Box::new(tls::plain(table, version, number)))
}

/// The position of `acme` of [service.https], or of the table.
pub(super) fn span_of_acme(service: &TomlTable<'_>) -> Range<usize> {
    let https = service.given("https").and_then(|https| https.get_ref().as_table());
    https.and_then(|https| https.get("acme")).map_or_else(|| service.span.clone(), |acme| acme.span())
}

/// Reports tables that a service that speaks this has not.
pub(super) fn foreign(table: &TomlTable<'_>, spoken: Spoken, name: &str) {
    let routed = [Spoken::Http, Spoken::Https, Spoken::Tls];
    let of_http = [Spoken::Http, Spoken::Https];
    let tables: [(&str, &[Spoken]); 11] = [
        ("routes_of", &of_http),
        ("queue", &of_http),
        ("cors", &of_http),
        ("error_pages", &of_http),
        ("basic", &[Spoken::Https]),
        ("forward_auth", &of_http),
        ("group", &routed),
        ("route", &routed),
        ("http", &of_http),
        ("https", &[Spoken::Https]),
        ("tls", &[Spoken::Tls]),
    ];
    if table.has("proxy_protocol") && spoken != Spoken::Tcp {
        let what = format!("`proxy_protocol` is given, but service \"{name}\" is {}", spoken.word());
        let remedy = match spoken {
            Spoken::Http | Spoken::Https => "write it in [service.http]",
            Spoken::Tls => "write it in [service.tls]",
            Spoken::Tcp | Spoken::Udp => "it is for services with protocol = \"tcp\": leave it out",
        };
        table.error(&table.span_of("proxy_protocol"), what, remedy);
    }
    for (field, of) in tables {
        if table.has(field) && !of.contains(&spoken) {
            let what = format!("`{field}` is given, but service \"{name}\" is {}", spoken.word());
            let words: Vec<String> = of.iter().map(|spoken| format!("\"{}\"", spoken.word())).collect();
            let words = match &words[..] {
                [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
                words => words.concat(),
            };
            let remedy = format!("that is for services with protocol = {words}: write that, or leave it out");
            table.error(&table.span_of(field), what, remedy);
        }
    }
}

/// The header that connections to backends begin with.
fn read_proxy_protocol(table: &TomlTable<'_>) -> Option<ProxyVersion> {
    match table.choice::<Preface>("proxy_protocol").unwrap_or_default() {
        Preface::Off => None,
        Preface::V1 => Some(ProxyVersion::V1),
        Preface::V2 => Some(ProxyVersion::V2),
    }
}

/// A number that the reference keeps within `T`.
fn number<T: TryFrom<u64> + Default>(table: &TomlTable<'_>, name: &str) -> T {
    table.integer(name).and_then(|number| T::try_from(number).ok()).unwrap_or_default()
}

/// Reports a list that is too long.
pub(super) fn bounded(table: &TomlTable<'_>, name: &str, length: usize, max: usize) {
    if length > max {
        let what = format!("{length} entries in `{name}`");
        table.error(&table.span_of(name), what, format!("have {max} at most"));
    }
}
