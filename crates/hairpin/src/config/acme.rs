//! Reads `[acme]`, and decides how the CA is shown that each name leads here.

use super::instance::absolute_path;
use super::reader::TomlTable;
use super::reference;
use super::service::ServiceDraft;
use super::words::SettingWord;
use super::{AcmeSettings, ChallengeChoice};
use hairpin_acme::{Authority, ChallengeKind, WantedName};
use hairpin_core::config::Service;
use hairpin_core::flow::Address;
use hairpin_core::l7::config::Kind;
use hairpin_diagnostics::{At, Sink};
use hairpin_https::SYSTEM_ROOTS;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Names of one service at most.
pub(crate) const NAMES_MAX: usize = 100;
/// Names of all services at most.
pub(crate) const NAMES_TOTAL_MAX: usize = 1000;
/// Addresses that the CA may write to, at most.
pub(crate) const CONTACTS_MAX: usize = 8;
/// The word for the CAs that the system has.
const SYSTEM: &str = "system";

/// The settings, and where the table stands; `None` if there is no such table.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<At<AcmeSettings>> {
    if !top.has("acme") {
        return None;
    }
    let table = top.table("acme", &reference::ACME);
    match table.given("terms_agreed") {
        None => table.missing("terms_agreed"),
        Some(given) if !table.boolean("terms_agreed") => {
            let remedy =
                "read them (the directory names their place) and write terms_agreed = true, or leave [acme] out";
            sink.error(&given.span(), "no certificate is given to those who do not agree to the CA's terms", remedy);
        }
        Some(_) => {}
    }
    let roots = match table.text("directory_roots") {
        Some(text) if text.value == SYSTEM => Some(PathBuf::from(SYSTEM_ROOTS)),
        Some(_) => absolute_path(sink, &table, "directory_roots"),
        None => None,
    };
    let directory = read_directory(&table);
    let contact = read_contact(&table);
    let external_account = read_external_account(sink, &table);
    let state = absolute_path(sink, &table, "state");
    let challenge: Option<ChallengeChoice> = table.choice("challenge");
    let authority = Authority { directory: directory?, roots: roots?, contact, external_account };
    let settings = AcmeSettings { authority, state: state?, challenge: challenge.unwrap_or_default() };
    Some(At { value: settings, span: table.span.clone() })
}

fn read_directory(table: &TomlTable<'_>) -> Option<String> {
    let text = table.text("directory")?;
    let rest = text.value.strip_prefix("https://").unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let is_visible = text.value.bytes().all(|byte| byte.is_ascii_graphic());
    if host.is_empty() || host.contains('@') || !is_visible || text.value.len() > 512 {
        let remedy = "write a URL that begins with https://, as the CA names it";
        table.error(&text.span, format!("`directory` is \"{}\"", text.value), remedy);
        return None;
    }
    Some(text.value)
}

fn read_contact(table: &TomlTable<'_>) -> Vec<String> {
    let texts = table.one_or_more("contact");
    if texts.len() > CONTACTS_MAX {
        let what = format!("{} entries in `contact`", texts.len());
        table.error(&table.span_of("contact"), what, format!("have {CONTACTS_MAX} at most"));
    }
    let url = |text: &At<String>| {
        let address = text.value.strip_prefix("mailto:").unwrap_or(&text.value);
        // RFC 8555, 7.3: one address each, without the fields that RFC 6068 allows.
        let is_right = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'?' | b'<' | b'>' | b'%');
        let halves = address.split_once('@').filter(|(user, host)| !user.is_empty() && !host.is_empty());
        if halves.is_none() || !address.bytes().all(is_right) || address.len() > 254 {
            table.error(
                &text.span,
                format!("`contact` is \"{}\"", text.value),
                "write an address such as \"admin@example.com\"",
            );
        }
        format!("mailto:{address}")
    };
    texts.iter().map(url).collect()
}

fn read_external_account(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<(String, PathBuf)> {
    let [id, key] = ["external_account", "external_account_key"];
    for (given, other) in [(id, key), (key, id)] {
        if table.has(given) && !table.has(other) && !table.is_in_parts() {
            let what = format!("`{given}` is given, but `{other}` is missing");
            table.error(&table.span_of(given), what, "write both, as the CA has given them, or neither");
        }
    }
    let key = if table.has(key) { absolute_path(sink, table, key) } else { None };
    Some((table.text(id)?.value, key?))
}

/// The names of a service's `acme`, how the CA is shown that they lead here not being decided yet.
pub(super) fn read_names(table: &TomlTable<'_>) -> Vec<WantedName> {
    let texts = table.one_or_more("acme");
    if texts.len() > NAMES_MAX {
        let what = format!("{} entries in `acme`", texts.len());
        table.error(&table.span_of("acme"), what, format!("have {NAMES_MAX} at most"));
    }
    let mut seen = BTreeSet::new();
    let mut name = |text: &At<String>| {
        let name = text.value.to_ascii_lowercase();
        let refuse = |remedy: &str| table.error(&text.span, format!("`acme` has \"{}\"", text.value), remedy);
        match () {
            () if name.contains('*') => {
                refuse("a wildcard needs the challenge dns-01, which is not offered: list the names, each by itself");
            }
            () if !is_dns_name(&name) => {
                refuse("write a DNS name such as \"www.example.com\"; one with other letters in its ASCII form (xn--)");
            }
            () if !seen.insert(name.clone()) => refuse("it is there twice: leave one out"),
            () => return Some(WantedName { name, challenge: ChallengeKind::Http01 }),
        }
        None
    };
    texts.iter().filter_map(&mut name).collect()
}

/// Whether it is a name that a certificate can be for (RFC 5280, 4.2.1.6), not an address.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_right)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last_is_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= 253 && !last_is_number && name.split('.').all(is_label)
}

/// Decides how the CA is shown that each name leads here, and reports names for which it cannot be. `top`: the file, whose [acme]
/// has been reported already if it is there and `acme` is `None`.
pub(super) fn resolve(
    sink: &Sink<'_>,
    top: &TomlTable<'_>,
    acme: Option<&At<AcmeSettings>>,
    drafts: &mut [ServiceDraft],
) {
    if acme.is_none() && top.has("acme") {
        return;
    }
    let plain: BTreeSet<Address> = drafts.iter().filter_map(|draft| plain_http(&draft.service)).collect();
    let mut names = BTreeSet::new();
    for draft in drafts {
        let service = &draft.service;
        let Some(https) = draft.settings.https.as_mut().filter(|https| !https.acme.is_empty()) else { continue };
        names.extend(https.acme.iter().map(|wanted| wanted.name.clone()));
        let Some(acme) = acme else {
            let what =
                format!("`acme` of service \"{}\" names certificates to obtain, but there is no [acme]", service.name);
            sink.error(&draft.acme, what, "add [acme] with terms_agreed = true, if you agree to the CA's terms");
            continue;
        };
        let (is_plain, is_443) = (plain.contains(&service.endpoint.address), service.endpoint.port == 443);
        let address = service.endpoint.address;
        let challenge = match acme.value.challenge {
            ChallengeChoice::Http01 if !is_plain => Err(format!("no http service listens on port 80 of {address}")),
            ChallengeChoice::TlsAlpn01 if !is_443 => Err("it does not listen on port 443".to_string()),
            ChallengeChoice::Auto if !is_plain && !is_443 => Err(format!(
                "no http service listens on port 80 of {address} (http-01), and this one not on port 443 (tls-alpn-01)"
            )),
            ChallengeChoice::Auto if is_plain => Ok(ChallengeKind::Http01),
            ChallengeChoice::Http01 => Ok(ChallengeKind::Http01),
            ChallengeChoice::TlsAlpn01 | ChallengeChoice::Auto => Ok(ChallengeKind::TlsAlpn01),
        };
        match challenge {
            Ok(challenge) => https.acme.iter_mut().for_each(|wanted| wanted.challenge = challenge),
            Err(why) => {
                let what =
                    format!("the CA cannot be shown that the names of service \"{}\" lead here: {why}", service.name);
                let remedy =
                    "add a service with listen = \"ADDRESS:80/http\" and [service.http] redirect_to_https = true";
                sink.error(&draft.acme, what, remedy);
            }
        }
    }
    if let Some(acme) = acme {
        if names.is_empty() {
            sink.warning(
                &acme.span,
                "[acme] means nothing: no service has `acme`",
                "list names in [service.https] acme",
            );
        }
        if names.len() > NAMES_TOTAL_MAX {
            let what = format!("{} names in `acme` of all services", names.len());
            sink.error(&acme.span, what, format!("have {NAMES_TOTAL_MAX} at most"));
        }
    }
}

/// The address at whose port 80 this service answers requests in clear text.
fn plain_http(service: &Service) -> Option<Address> {
    let is_plain = match &service.kind {
        Kind::Http(_) => true,
        Kind::Terminated(terminated) => !terminated.tls,
        Kind::Forward | Kind::Tls(_) | Kind::Group => false,
    };
    (is_plain && service.endpoint.port == 80).then_some(service.endpoint.address)
}

impl ChallengeChoice {
    /// Its word in the file.
    pub fn name(self) -> &'static str {
        self.word()
    }
}
