//! Reads the outer headers of packets to backends of direct server return.

use super::reader::{TomlTable, unicast};
use super::service::ServiceDraft;
use super::words::SettingWord;
use hairpin_core::config::{Backend, Encapsulation, Forwarding, Outer};
use hairpin_core::flow::Address;
use hairpin_diagnostics::At;
use std::net::IpAddr;

/// The fields of a service, for its draft, whose mode and backends are known.
pub(super) fn read(table: &TomlTable<'_>, draft: &ServiceDraft) -> Outer {
    let encapsulation = table.choice("encapsulation").unwrap_or_default();
    let port = table.integer("encapsulation_port").unwrap_or_default() as u16;
    let source = source(table, draft);
    let outer = Outer { encapsulation, port, source };
    let name = &draft.service.name;
    let wants = |field: &str, needed: &str| {
        if table.has(field) {
            let what = format!("`{field}` means nothing to service \"{name}\" without `encapsulation = {needed}`");
            table.warning(&table.span_of(field), what, "leave it out, or say which encapsulation it is for");
        }
    };
    match encapsulation {
        Encapsulation::None => {
            wants("encapsulation_port", "\"gue\"");
            wants("encapsulation_source", "\"ipip\"` or `\"gue\"");
            Outer::default()
        }
        _ if draft.service.forwarding != Forwarding::Direct => {
            let what = format!(
                "`encapsulation` is \"{}\", but service \"{name}\" is not dsr: Hairpin translates its packets' addresses, and \
                 needs no outer header",
                encapsulation.word()
            );
            table.error(&table.span_of("encapsulation"), what, "leave it out, or use mode = \"dsr\"");
            Outer::default()
        }
        Encapsulation::Ipip => {
            wants("encapsulation_port", "\"gue\"");
            Outer { port: 0, ..outer }
        }
        Encapsulation::Gue => outer,
    }
}

fn source(table: &TomlTable<'_>, draft: &ServiceDraft) -> Option<Address> {
    let text = table.text("encapsulation_source")?;
    let refuse = |wrong: &str, remedy: &str| {
        table.error(&text.span, format!("`encapsulation_source` \"{}\" {wrong}", text.value), remedy);
        None
    };
    let Ok(address) = text.value.parse::<IpAddr>() else {
        return refuse("is not an IP address", "write one of this host's, such as \"10.0.2.1\"");
    };
    if let Err(wrong) = unicast(address) {
        return refuse(&wrong, "");
    }
    let of_family = |backend: &At<Backend>| backend.value.endpoint.address.is_ipv4() == address.is_ipv4();
    // Names give backends of the VIP's family.
    let is_of_names = !draft.settings.named.is_empty() && draft.service.endpoint.address.is_ipv4() == address.is_ipv4();
    if !is_of_names && !draft.backends.iter().any(of_family) {
        let remedy = "name an address of the backends' family, which outer headers have, or leave it out";
        return refuse("is of another family than all backends of the service", remedy);
    }
    Some(Address::from(address))
}
