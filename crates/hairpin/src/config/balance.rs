//! Reads how the backends of a service or group are chosen.

use super::l7;
use super::reader::TomlTable;
use super::words::{SettingWord, Spoken};
use hairpin_core::config::{Algorithm, Service};

/// Bytes of a field's or cookie's name at most.
const NAME_MAX: usize = 64;

/// The algorithm, and the field or cookie that it goes by. `of`: the service whose group the table is.
pub(super) fn read(table: &TomlTable<'_>, spoken: Option<Spoken>, of: Option<&Service>) -> (Algorithm, Box<[u8]>) {
    let chosen: Option<Algorithm> = table.choice("balance");
    // The default that the reference has is the service's.
    let algorithm = match of {
        Some(of) if !table.has("balance") => of.algorithm,
        _ => chosen.unwrap_or_default(),
    };
    let has_requests = spoken.is_none_or(Spoken::is_http);
    if algorithm.is_of_requests() && !has_requests {
        if table.has("balance") {
            let what = format!("`balance` is \"{}\", but the service has no requests", algorithm.word());
            let remedy = match algorithm {
                Algorithm::LeastLatency => "use \"least-connections\", or make the service http or https",
                _ => "use \"source-hash\", or make the service http or https",
            };
            table.error(&table.span_of("balance"), what, remedy);
        }
        return (Algorithm::default(), Box::default());
    }
    let follows = of.filter(|_| !table.has("balance"));
    (algorithm, read_hash_name(table, algorithm, follows))
}

/// `follows`: the service that says how the group's backends are chosen.
fn read_hash_name(table: &TomlTable<'_>, algorithm: Algorithm, follows: Option<&Service>) -> Box<[u8]> {
    if !algorithm.has_hash_name() {
        if table.has("hash_name") {
            let what = format!("`hash_name` is given, but `balance` is \"{}\"", algorithm.word());
            let remedy = "leave it out, or use balance = \"header-hash\" or \"cookie-hash\"";
            table.error(&table.span_of("hash_name"), what, remedy);
        }
        return Box::default();
    }
    if !table.has("hash_name") {
        if follows.is_none() {
            table.missing("hash_name");
        }
        return follows.map(|of| of.hash_name.clone()).unwrap_or_default();
    }
    let Some(name) = table.text("hash_name") else { return Box::default() };
    if !l7::is_token(&name.value) || name.value.len() > NAME_MAX {
        let remedy = format!("a name is made of 1 to {NAME_MAX} letters, digits and !#$%&'*+-.^_`|~");
        table.error(&name.span, format!("`hash_name` is \"{}\"", name.value), remedy);
        return Box::default();
    }
    match algorithm {
        Algorithm::HeaderHash => name.value.to_ascii_lowercase().into_bytes().into(),
        _ => name.value.into_bytes().into(),
    }
}
