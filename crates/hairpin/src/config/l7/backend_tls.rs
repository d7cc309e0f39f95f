//! Reads `[service.backend_tls]`, `[service.group.backend_tls]` and `backend_protocol`: how backends of HTTP and HTTPS services
//! are spoken with.

use super::super::reader::TomlTable;
use super::super::reference::ReferenceSection;
use super::super::words::{BackendProtocol, SettingWord, Spoken};
use super::super::{CheckKind, HealthSettings};
use super::{bounded, https};
use hairpin_https::{BackendTlsOptions, SYSTEM_ROOTS, is_server_name};
use std::ops::Range;
use std::path::PathBuf;

/// Files with CAs of one service or group at most.
pub(crate) const ROOTS_MAX: usize = 64;
/// The word for the CAs that the system trusts.
const SYSTEM: &str = "system";

/// The settings of a service or group that gives the table, `None` if it is off, and what the file says of it.
pub(in super::super) fn read(
    of: &TomlTable<'_>,
    section: &'static ReferenceSection,
    http2: bool,
) -> (Option<BackendTlsOptions>, String) {
    const OFF: &str = "off";
    if !of.has("backend_tls") {
        return (None, OFF.to_string());
    }
    let table = of.table("backend_tls", section);
    let is_enabled = table.boolean("enabled");
    let verify = table.boolean("verify");
    let name = table.text("name").filter(|name| {
        let is_right = is_server_name(&name.value);
        if !is_right {
            let what = format!("`name` is \"{}\", which no certificate can have", name.value);
            table.error(&name.span, what, "write a name of DNS, such as \"shop.internal\", or an address");
        }
        is_right
    });
    let certificate = table.text("certificate").and_then(|text| https::absolute(&table, "certificate", &text));
    let options =
        BackendTlsOptions { roots: read_roots(&table), name: name.map(|name| name.value), verify, certificate, http2 };
    if !is_enabled {
        return (None, OFF.to_string());
    }
    if !verify {
        let what = "`verify` is false: every server that backends' addresses lead to is taken for the backend";
        let remedy = "name the CAs with `roots` and what their certificates are for with `name`";
        table.warning(&table.span_of("verify"), what, remedy);
        if table.has("roots") {
            table.warning(&table.span_of("roots"), "`roots` means nothing with verify = false", "leave one out");
        }
    }
    let written = table.written();
    (Some(options), if written.is_empty() { "on".to_string() } else { written })
}

fn read_roots(table: &TomlTable<'_>) -> Vec<PathBuf> {
    if !table.has("roots") {
        return vec![PathBuf::from(SYSTEM_ROOTS)];
    }
    let texts = table.one_or_more("roots");
    bounded(table, "roots", texts.len(), ROOTS_MAX);
    let root = |text: &_| match text {
        hairpin_diagnostics::At { value, .. } if value == SYSTEM => Some(PathBuf::from(SYSTEM_ROOTS)),
        text => https::absolute(table, "roots", text),
    };
    texts.iter().filter_map(root).collect()
}

/// Reports the table where the backends cannot speak TLS. `of`: the service, or the group of one, that has it.
pub(in super::super) fn refuse(of: &TomlTable<'_>, spoken: Spoken, name: &str) {
    if spoken.is_http() {
        return;
    }
    let given = [("backend_tls", of.has("backend_tls")), ("backend_protocol", read_protocol(of) == Some(true))];
    for (field, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
        let what = format!("`{field}` is given, but service \"{name}\" is {}", spoken.word());
        let remedy = "only HTTP and HTTPS services speak with backends, others pass on what clients send: leave it out";
        of.error(&of.span_of(field), what, remedy);
    }
}

/// Whether the backends speak HTTP/2. `None`: the file does not say.
pub(in super::super) fn read_protocol(of: &TomlTable<'_>) -> Option<bool> {
    let chosen: Option<BackendProtocol> = of.choice("backend_protocol");
    of.has("backend_protocol").then(|| chosen == Some(BackendProtocol::Http2))
}

/// The protocol, as a comparison of two files shows it.
pub(in super::super) fn said_protocol(http2: bool) -> (String, String) {
    let spoken = if http2 { BackendProtocol::Http2 } else { BackendProtocol::Http1 };
    ("backend_protocol".to_string(), spoken.word().to_string())
}

/// Reports a check that does not speak as the backends do. `table`: the one that `at` stands in.
pub(in super::super) fn judge_check(
    table: &TomlTable<'_>,
    at: &Range<usize>,
    health: &HealthSettings,
    (spoken, has_tls, http2): (Spoken, bool, bool),
) {
    let what = format!("`check` is \"{}\"", health.kind().word());
    match health.kind() {
        CheckKind::Https if !spoken.is_http() => {
            let what = format!("{what}, but the service is {}", spoken.word());
            table.error(at, what, "only HTTP and HTTPS services say how backends speak TLS: write \"http\" or \"tcp\"");
        }
        CheckKind::Grpc if spoken.is_http() && !http2 && health.port.is_none() && !table.is_in_parts() => {
            let remedy = "add backend_protocol = \"h2\", or name a port that speaks gRPC with `port`";
            table.error(at, format!("{what}, but requests go to the backends by HTTP/1.1"), remedy);
        }
        CheckKind::Https if !has_tls && !table.is_in_parts() => {
            let remedy = "add [service.backend_tls], or write check = \"http\"";
            table.error(at, format!("{what}, but the backends are sent clear text"), remedy);
        }
        CheckKind::Http if has_tls && health.port.is_none() => {
            let remedy = "write check = \"https\", or name a port that speaks clear text with `port`";
            table.warning(at, format!("{what}, but the backends speak TLS"), remedy);
        }
        _ => {}
    }
}
