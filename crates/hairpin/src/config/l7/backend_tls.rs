//! Reads `[service.backend_tls]` and `[service.group.backend_tls]`: TLS with the backends of an https service.

use super::super::reader::TomlTable;
use super::super::reference::ReferenceSection;
use super::super::words::{SettingWord, Spoken};
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
        BackendTlsOptions { roots: read_roots(&table), name: name.map(|name| name.value), verify, certificate };
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
    if spoken == Spoken::Https || !of.has("backend_tls") {
        return;
    }
    let what = format!("`backend_tls` is given, but service \"{name}\" is {}", spoken.word());
    let remedy = match spoken {
        Spoken::Http => {
            "bodies of an http service are spliced, so nothing could encrypt them: write protocol = \"https\" with \
             [service.https], or leave it out"
        }
        _ => {
            "only services with protocol = \"https\" speak TLS themselves, others pass on what clients send: leave it out"
        }
    };
    of.error(&of.span_of("backend_tls"), what, remedy);
}

/// Reports a check that does not speak as the backends do. `table`: the one that `at` stands in.
pub(in super::super) fn judge_check(
    table: &TomlTable<'_>,
    at: &Range<usize>,
    health: &HealthSettings,
    (spoken, has_tls): (Spoken, bool),
) {
    let what = format!("`check` is \"{}\"", health.kind().word());
    match health.kind() {
        CheckKind::Https if spoken != Spoken::Https => {
            let what = format!("{what}, but the service is {}", spoken.word());
            table.error(at, what, "only backends of https services are known to speak TLS: write \"http\" or \"tcp\"");
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
