//! Header fields: `proxy_set_header`, `add_header`, `proxy_hide_header`.

use super::Context;
use super::http::Server;
use super::model::{Fields, Service, inline, list, quoted};
use super::server::Levels;
use super::variables::{TextPlace, translated};

/// Headers of requests that Hairpin takes care of.
const OWN_HEADERS: [&str; 8] = [
    "host",
    "connection",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-real-ip",
    "forwarded",
];

/// Changes of fields.
pub(super) fn edits(context: &mut Context, service: &mut Service, server: &Server<'_>, levels: &Levels<'_>) -> Fields {
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for directive in levels.all("proxy_set_header") {
        let [name, value] = &directive.args[..] else { continue };
        let lower = name.to_ascii_lowercase();
        match (lower.as_str(), value.as_str()) {
            ("host", "$host" | "$http_host" | "$host:$server_port") | ("connection" | "upgrade", _) => {}
            ("x-real-ip", "$remote_addr") => service.set("http.forwarded", "x_real_ip", "true".to_string()),
            ("x-forwarded-for", "$remote_addr" | "$proxy_add_x_forwarded_for")
            | ("x-forwarded-proto", "$scheme")
            | ("x-forwarded-host", "$host" | "$http_host") => {}
            (own, _) if OWN_HEADERS.contains(&own) => {
                context.notes.add(
                    directive,
                    "Hairpin writes this field itself: [service.http.forwarded], and the client's Host",
                );
            }
            (_, "") => removed.push(name.clone()),
            (_, value) => match translated(value, TextPlace::Request, server.name()) {
                Ok(value) => set.push((name.clone(), quoted(&value))),
                Err(variable) => context.notes.add(directive, format!("a field of requests has no {variable}")),
            },
        }
    }
    let mut added = Vec::new();
    for directive in levels.all("add_header") {
        let [name, value, ..] = &directive.args[..] else { continue };
        match translated(value, TextPlace::Response, server.name()) {
            Ok(value) if !added.iter().any(|(known, _)| known == name) => added.push((name.clone(), quoted(&value))),
            Ok(_) => context.notes.add(directive, "a field is added once"),
            Err(variable) => context.notes.add(directive, format!("a field of responses has no {variable}")),
        }
    }
    let hidden: Vec<String> = levels.all("proxy_hide_header").iter().map(|one| one.first().to_string()).collect();
    let mut fields = Fields::new();
    for (field, tables) in [("request_headers", ("set", set, removed)), ("response_headers", ("add", added, hidden))] {
        let (verb, entries, without) = tables;
        let mut parts = Vec::new();
        if !entries.is_empty() {
            parts.push((verb.to_string(), inline(&entries)));
        }
        if !without.is_empty() {
            parts.push(("remove".to_string(), list(&without)));
        }
        if !parts.is_empty() {
            fields.push((field, inline(&parts)));
        }
    }
    fields
}
