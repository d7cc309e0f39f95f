//! Reads `[service.https]`: how a service speaks TLS that ends here.

use super::super::acme;
use super::super::reader::{TomlTable, is_empty_list};
use super::super::reference;
use super::super::words::SettingWord;
use super::super::{ClientCertificates, HttpsSettings};
use super::conditions::networks;
use super::{bounded, number};
use hairpin_diagnostics::At;
use std::path::PathBuf;

/// Files and directories with certificates of a service at most.
pub(crate) const CERTIFICATES_MAX: usize = 1024;

/// The settings, whether HTTP/2 is offered, and what the file says about both.
pub(super) fn read(service: &TomlTable<'_>) -> (HttpsSettings, bool, Vec<(String, String)>) {
    let table = service.table("https", &reference::HTTPS);
    let http2 = table.boolean("http2");
    if !http2 && table.has("streams_max") {
        let what = "`streams_max` means nothing without HTTP/2";
        table.warning(&table.span_of("streams_max"), what, "leave it out, or write http2 = true");
    }
    let (client_certificates, client_roots) = read_clients(&table);
    let settings = HttpsSettings {
        acme: acme::read_names(&table),
        certificates: read_certificates(&table),
        versions_min: table.choice("versions_min").unwrap_or_default(),
        client_certificates,
        client_roots,
        handshake_timeout: table.duration("handshake_timeout"),
        streams_max: number(&table, "streams_max"),
        accept_proxy: networks(&table, "accept_proxy"),
    };
    (settings, http2, table.said())
}

fn read_certificates(table: &TomlTable<'_>) -> Vec<PathBuf> {
    let Some(given) = table.given("certificates") else {
        if !table.has("acme") && !table.is_in_parts() {
            let what = "there is neither `certificates` nor `acme` in [service.https]";
            table.error(
                &table.span,
                what,
                "add certificates = \"/etc/hairpin/tls/www.pem\", or acme = \"www.example.com\"",
            );
        }
        return Vec::new();
    };
    if is_empty_list(given) {
        table.error(&given.span(), "`certificates` is an empty list", "name at least one file or directory");
        return Vec::new();
    }
    let texts = table.one_or_more("certificates");
    bounded(table, "certificates", texts.len(), CERTIFICATES_MAX);
    texts.iter().filter_map(|text| absolute(table, "certificates", text)).collect()
}

/// Whether clients are asked for certificates, as the file says it. What is wrong there is reported where it is read.
pub(super) fn asks_clients(service: &TomlTable<'_>) -> bool {
    let https = service.given("https").and_then(|https| https.get_ref().as_table());
    let chosen = https.and_then(|https| https.get("client_certificates")).and_then(|chosen| chosen.get_ref().as_str());
    chosen.and_then(ClientCertificates::from_word).is_some_and(|chosen| chosen != ClientCertificates::Off)
}

/// Whether clients are asked for certificates, and the file that these are judged by: each needs the other.
fn read_clients(table: &TomlTable<'_>) -> (ClientCertificates, Option<PathBuf>) {
    let chosen: Option<ClientCertificates> = table.choice("client_certificates");
    let roots = table.text("client_roots").and_then(|text| absolute(table, "client_roots", &text));
    match chosen {
        Some(ClientCertificates::Off) if table.has("client_roots") => {
            let what = "`client_roots` is given, but clients are not asked for certificates";
            let remedy = "write client_certificates = \"required\" or \"optional\", or leave it out";
            table.error(&table.span_of("client_roots"), what, remedy);
        }
        Some(asked @ (ClientCertificates::Optional | ClientCertificates::Required))
            if !table.has("client_roots") && !table.is_in_parts() =>
        {
            let what = format!("`client_certificates` is \"{}\", but `client_roots` is missing", asked.word());
            let remedy = "name the file with the CAs that sign them: client_roots = \"/etc/hairpin/tls/clients.pem\"";
            table.error(&table.span_of("client_certificates"), what, remedy);
        }
        _ => {}
    }
    (chosen.unwrap_or_default(), roots)
}

/// A path of a file that is read later, when the working directory may be another one.
pub(in crate::config) fn absolute(table: &TomlTable<'_>, name: &str, text: &At<String>) -> Option<PathBuf> {
    let path = PathBuf::from(&text.value);
    if path.is_absolute() && !text.value.contains('\0') {
        return Some(path);
    }
    let what = format!("`{name}` is \"{}\", not an absolute path", text.value);
    table.error(&text.span, what, "write an absolute path: start it with `/`");
    None
}
