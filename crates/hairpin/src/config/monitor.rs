//! Reads `[[monitor]]`.

use super::instance::{interface_name, number};
use super::l7::network;
use super::reader::TomlTable;
use super::reference;
use super::words::PlaneChoice;
use super::{Attach, INTERFACES_MAX, nearest};
use crate::access_log::Target;
use crate::monitor::{CollectorEnd, MONITORS_MAX, MonitorField, MonitorSettings, PROTOCOLS};
use hairpin_core::l7::config::Network;
use hairpin_diagnostics::{At, Sink};
use hairpin_linux::monitor::{FlowFilter, NETWORKS_MAX};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// The monitors that are right. All mistakes are reported.
pub(super) fn read<'a>(
    sink: &'a Sink<'a>,
    top: &TomlTable<'a>,
    plane: Option<(PlaneChoice, Attach)>,
) -> Vec<MonitorSettings> {
    if !top.has("monitor") {
        return Vec::new();
    }
    let tables = top.tables("monitor", &reference::MONITOR);
    let (mut names, mut interfaces) = (HashSet::new(), HashSet::new());
    let mut all = Vec::new();
    for table in &tables {
        if let Some(name) = table.name("name")
            && !names.insert(name.value.clone())
        {
            sink.error(&name.span, format!("two monitors are called \"{}\"", name.value), "give each its own name");
        }
        for name in table.texts("interfaces") {
            if !interfaces.insert(name.value.clone()) {
                let what = format!("interface \"{}\" is named twice", name.value);
                sink.error(&name.span, what, "an interface has one monitor at most: leave one out");
            }
        }
        all.extend(read_one(sink, table));
    }
    let span = top.span_of("monitor");
    if tables.len() > MONITORS_MAX {
        sink.error(&span, format!("{} monitors", tables.len()), format!("have {MONITORS_MAX} at most"));
    }
    match plane {
        Some((PlaneChoice::Dpdk, _)) => {
            let what = "[[monitor]] needs the kernel to see packets, and the ports of `plane = \"dpdk\"` bypass it";
            sink.error(&span, what, "leave it out, or write plane = \"linux\"");
        }
        Some((_, Attach::Xdp)) => {
            let what = "[[monitor]] does not see packets that are forwarded in XDP, as `attach = \"xdp\"` wants it";
            sink.error(&span, what, "write attach = \"tc\" in [linux]");
        }
        _ => {}
    }
    all
}

fn read_one<'a>(sink: &'a Sink<'a>, table: &TomlTable<'a>) -> Option<MonitorSettings> {
    for required in ["name", "interfaces"] {
        if !table.has(required) {
            table.missing(required);
        }
    }
    let names = table.texts("interfaces");
    for name in &names {
        interface_name(sink, name);
    }
    if table.has("interfaces") && names.is_empty() || names.len() > INTERFACES_MAX {
        let what = format!("{} interfaces", names.len());
        sink.error(&table.span_of("interfaces"), what, format!("name 1 to {INTERFACES_MAX}"));
    }
    let fields = read_fields(sink, table);
    let filter = FlowFilter {
        networks: read_networks(sink, table),
        ports: table.one_or_more("ports").iter().filter_map(|text| read_ports(sink, text)).collect(),
        protocols: table.one_or_more("protocols").iter().filter_map(|text| read_protocol(sink, text)).collect(),
        handshake: fields.contains(&MonitorField::RoundTrip),
        resent: fields.contains(&MonitorField::Resent),
    };
    let collector = if table.has("collector") { Some(read_collector(sink, table)?) } else { None };
    let file = if table.has("file") { Some(read_file(sink, table)?) } else { None };
    Some(MonitorSettings {
        name: table.name("name")?.value,
        interfaces: names.into_iter().map(|name| name.value).collect(),
        filter,
        fields,
        active_timeout: table.duration("active_timeout"),
        idle_timeout: table.duration("idle_timeout"),
        flows_max: number(table, "flows_max"),
        collector,
        observation_domain: number(table, "observation_domain"),
        file,
        top: table.integer("top").and_then(|count| usize::try_from(count).ok())?,
    })
}

fn read_networks(sink: &Sink<'_>, table: &TomlTable<'_>) -> Vec<Network> {
    let texts = table.one_or_more("networks");
    if texts.len() > NETWORKS_MAX {
        let what = format!("`networks` has {} entries", texts.len());
        sink.error(&table.span_of("networks"), what, format!("have {NETWORKS_MAX} at most"));
    }
    let read = |text: &At<String>| {
        let wrong = |remedy: String| sink.error(&text.span, format!("`networks` has \"{}\"", text.value), remedy);
        network(&text.value).map_err(wrong).ok()
    };
    texts.iter().filter_map(read).collect()
}

fn read_ports(sink: &Sink<'_>, text: &At<String>) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.value.split_once('-').unwrap_or((&text.value, &text.value));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if first <= last => Some(first..=last),
        _ => {
            let what = format!("`ports` has \"{}\"", text.value);
            sink.error(&text.span, what, "write a port or a range, such as \"443\" or \"8000-8999\"");
            None
        }
    }
}

fn read_protocol(sink: &Sink<'_>, text: &At<String>) -> Option<u8> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text.value).map(|(_, number)| *number);
    let found = named.or_else(|| text.value.parse().ok());
    if found.is_none() {
        let what = format!("`protocols` has \"{}\"", text.value);
        let names: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
        sink.error(&text.span, what, format!("write {} or a number from \"0\" to \"255\"", names.join(", ")));
    }
    found
}

fn read_fields(sink: &Sink<'_>, table: &TomlTable<'_>) -> Vec<MonitorField> {
    if !table.has("fields") {
        return MonitorField::ALL.iter().map(|(field, _)| *field).collect();
    }
    let mut fields = Vec::new();
    for text in table.texts("fields") {
        match MonitorField::ALL.iter().find(|(_, word)| *word == text.value) {
            Some((field, _)) if !fields.contains(field) => fields.push(*field),
            Some(_) => sink.error(&text.span, format!("`fields` has \"{}\" twice", text.value), "leave one out"),
            None => {
                let words = MonitorField::ALL.map(|(_, word)| word);
                let meant = nearest(&text.value, &words);
                let remedy = meant
                    .map_or(format!("write one of {}", words.join(", ")), |word| format!("did you mean \"{word}\"?"));
                sink.error(&text.span, format!("`fields` has \"{}\"", text.value), remedy);
            }
        }
    }
    fields
}

fn read_collector(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<CollectorEnd> {
    let text = table.text("collector")?;
    let remedy = "write \"udp:10.0.0.5:4739\" or \"tcp:[2001:db8::5]:4739\"";
    let wrong = |what: String| sink.error(&text.span, format!("`collector`: {what}"), remedy);
    text.value.parse().map_err(wrong).ok()
}

fn read_file(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<Target> {
    let text = table.text("file")?;
    match text.value.parse::<Target>() {
        Ok(target @ (Target::File(_) | Target::StandardOutput)) => Some(target),
        _ => {
            let what = format!("`file` is \"{}\"", text.value);
            sink.error(&text.span, what, "write a file's absolute path, or \"stdout\"");
            None
        }
    }
}
