//! Reads `[service.basic]` and `[service.route.basic]`: whose requests an HTTPS service takes.

use super::super::reader::TomlTable;
use super::super::reference::{self, ReferenceSection};
use super::super::secret_file::{self, SecretFileError};
use super::super::words::{SettingWord, Spoken};
use super::https;
use hairpin_core::l7::config::{Action, HeadEdits, Route};
use hairpin_https::BasicAuth;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a file of users at most.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// The field, in a service and in a route.
const BASIC: &str = "basic";
const FORM: &str = "write USER:HASH on each line, as htpasswd -B does";
/// The field with the credentials.
const AUTHORIZATION: &[u8] = b"authorization";

/// Who may ask for each route, in their order; `None`: all may.
pub(super) type RouteUsers = Vec<Option<Arc<BasicAuth>>>;

/// The users of a service or route. `users`: `None` for one that needs no credentials.
#[derive(Clone, Default)]
pub(super) struct Basic {
    users: Option<Arc<BasicAuth>>,
    /// Whether backends get the credentials.
    forwards: bool,
    /// How it is written, with what tells its file from another one.
    pub(super) said: String,
}

/// The users of the service.
pub(super) fn of_service(service: &TomlTable<'_>, spoken: Spoken, name: &str) -> Basic {
    // Of another service it is reported where foreign tables are.
    let basic = match spoken == Spoken::Https && service.has(BASIC) {
        true => read(service, &reference::BASIC, name),
        false => None,
    };
    basic.unwrap_or_else(|| Basic { said: "none".to_string(), ..Basic::default() })
}

/// The users of a route that has the table, `None` for one that has those of its service.
pub(super) fn of_route(table: &TomlTable<'_>, spoken: Spoken, name: &str) -> Option<Basic> {
    if !table.has(BASIC) {
        return None;
    }
    if spoken != Spoken::Https {
        let what = format!("`{BASIC}` is given, but the service is {}", spoken.word());
        let remedy = "passwords go over TLS only: give the route to a service with protocol = \"https\"";
        table.error(&table.span_of(BASIC), what, remedy);
        return None;
    }
    read(table, &reference::ROUTE_BASIC, name)
}

fn read(of: &TomlTable<'_>, section: &'static ReferenceSection, name: &str) -> Option<Basic> {
    let table = of.table(BASIC, section);
    let (is_enabled, forwards) = (table.boolean("enabled"), table.boolean("forward"));
    let realm = match table.text("realm") {
        Some(realm) if !realm.value.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b"\"\\".contains(&byte)) => {
            let what = format!("`realm` is {:?}", realm.value);
            table.error(&realm.span, what, "write visible ASCII characters without quotation marks and backslashes");
            return None;
        }
        realm => realm.map_or_else(|| name.to_string(), |realm| realm.value),
    };
    if !is_enabled {
        return Some(Basic { said: "off".to_string(), ..Basic::default() });
    }
    if !table.has("users_file") {
        if !table.is_in_parts() {
            let remedy = "name a file that htpasswd -B has written: users_file = \"/etc/hairpin/users\"";
            table.error(&table.span, format!("there is no `users_file` in {}", section.header), remedy);
        }
        return None;
    }
    let text = table.text("users_file")?;
    let path = https::absolute(&table, "users_file", &text)?;
    match read_file(&path, &realm) {
        Ok((users, fingerprint)) => {
            let said = format!("{} ({} users, {fingerprint:08x})", table.written(), users.users());
            Some(Basic { users: Some(Arc::new(users)), forwards, said })
        }
        Err((what, remedy)) => {
            table.error(&text.span, format!("`users_file` \"{}\": {what}", text.value), remedy);
            None
        }
    }
}

/// The users of a file, and a number that another content would hardly have.
fn read_file(path: &Path, realm: &str) -> Result<(BasicAuth, u32), SecretFileError> {
    let bytes = secret_file::read_long(path, FILE_BYTES_MAX, "hashes of passwords", FORM)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok((BasicAuth::read(realm, &bytes)?, hasher.finish() as u32))
}

/// Who may ask for each route, in their order, and takes the credentials from what goes to backends. `own`: what the routes
/// have themselves; those behind them, and those that have nothing, have the users of the service. Empty: all may ask for all.
pub(super) fn apply(of_service: &Basic, own: &[Option<Basic>], routes: &mut [Route]) -> RouteUsers {
    let mut all = Vec::with_capacity(routes.len());
    for (at, route) in routes.iter_mut().enumerate() {
        let basic = own.get(at).and_then(Option::as_ref).unwrap_or(of_service);
        let is_forwarded = matches!(route.action, Action::Forward { .. });
        if basic.users.is_some() && is_forwarded && !basic.forwards {
            hide(&mut route.edits.request);
        }
        all.push(basic.users.clone());
    }
    if all.iter().all(Option::is_none) { Vec::new() } else { all }
}

/// Removes the client's credentials. A field that the route itself sets replaces them anyway.
fn hide(edits: &mut HeadEdits) {
    if !edits.set.iter().any(|field| field.name.eq_ignore_ascii_case(AUTHORIZATION)) {
        edits.remove = edits.remove.iter().cloned().chain([Box::from(AUTHORIZATION)]).collect();
    }
}

/// Reports what would be removed with the client's credentials. `edits`: those of the service.
pub(super) fn judge_edits(service: &TomlTable<'_>, all: &[Option<Arc<BasicAuth>>], edits: &HeadEdits) {
    let of = edits.set.iter().chain(&*edits.add).any(|field| field.name.eq_ignore_ascii_case(AUTHORIZATION));
    if of && !all.is_empty() {
        let what = "`request_headers` of [service.http] give `Authorization`, which is removed where `basic` holds";
        service.error(&service.span_of("http"), what, "give it in `request_headers` of routes, with `set`");
    }
}
