//! The file's `[source]`: where packets come from.

use super::file::beside;
use super::reader::TomlTable;
use crate::testbed::{Arrivals, Masks, PacketSource, TransportProtocol};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Fields that only a replay has.
const OF_REPLAY: [&str; 6] =
    ["file", "payload", "source_mask", "destination_mask", "source_port_mask", "destination_port_mask"];
/// Fields that only a synthetic source has.
const OF_SYNTHETIC: [&str; 5] = ["transport", "arrivals", "flows_per_second", "sizes", "ipv6"];

/// Reads it; files are named from `directory`.
pub(super) fn read(table: TomlTable<'_>, directory: &Path) -> PacketSource {
    let source = read_kind(&table, directory);
    table.end();
    source
}

fn read_kind(table: &TomlTable<'_>, directory: &Path) -> PacketSource {
    let kind = table.choice("kind", &["synthetic", "replay"]).map(|word| word.value);
    let is_replay = kind.as_deref() == Some("replay");
    let misplaced = if is_replay { &OF_SYNTHETIC[..] } else { &OF_REPLAY[..] };
    for name in misplaced.iter().filter(|name| table.has(name)) {
        let what = format!("`{name}` does not belong to a {} source", if is_replay { "replay" } else { "synthetic" });
        table.error(&table.span_of(name), what, "leave it out, or change `kind`");
    }
    let source = if is_replay { read_replay(table, directory) } else { read_synthetic(table, directory) };
    // Both sets are known fields, whichever was read.
    for name in OF_REPLAY.iter().chain(&OF_SYNTHETIC) {
        table.has(name);
    }
    source
}

fn file(table: &TomlTable<'_>, field: &'static str, directory: &Path) -> Option<PathBuf> {
    let text = table.text(field)?;
    let path = beside(directory, &text.value);
    if !path.is_file() {
        let what = format!("`{field}` is \"{}\", and there is no such file", text.value);
        table.error(&text.span, what, format!("name it from {}", directory.display()));
    }
    Some(path)
}

fn read_replay(table: &TomlTable<'_>, directory: &Path) -> PacketSource {
    if !table.has("file") {
        table.missing("file", "\"trace.pcap\"");
    }
    let file = file(table, "file", directory).unwrap_or_default();
    let address = |field: &'static str, default: Ipv4Addr| match table.text(field) {
        Some(text) => text.value.parse().unwrap_or_else(|_| {
            table.error(&text.span, format!("`{field}` is no mask"), "write it as an address: \"0.0.255.255\"");
            default
        }),
        None => default,
    };
    let port = |field: &'static str, default: u16| table.integer(field, u64::from(default), 0..=0xffff) as u16;
    let default = Masks::default();
    let masks = Masks {
        source: address("source_mask", default.source),
        destination: address("destination_mask", default.destination),
        source_port: port("source_port_mask", default.source_port),
        destination_port: port("destination_port_mask", default.destination_port),
    };
    let given = OF_REPLAY.iter().any(|name| name.ends_with("_mask") && table.has(name));
    PacketSource::Replay { file, masks: given.then_some(masks), payload: table.boolean("payload", false) }
}

fn read_synthetic(table: &TomlTable<'_>, directory: &Path) -> PacketSource {
    let transport = match table.choice("transport", &["udp", "tcp"]) {
        Some(word) if word.value == "tcp" => TransportProtocol::Tcp,
        _ => TransportProtocol::Udp,
    };
    let word = table.choice("arrivals", &["fixed", "closed", "poisson"]).map(|word| word.value);
    let rate = table.number("flows_per_second", 0.0, 0.001..=1e9);
    let arrivals = match word.as_deref() {
        Some("closed") => Arrivals::Closed,
        Some("poisson") => Arrivals::Poisson(rate),
        _ => Arrivals::Fixed,
    };
    match (arrivals, table.has("flows_per_second")) {
        (Arrivals::Poisson(_), false) => table.missing("flows_per_second", "10000"),
        (Arrivals::Fixed | Arrivals::Closed, true) => {
            let what = "`flows_per_second` says how often flows of a Poisson process begin";
            table.error(&table.span_of("flows_per_second"), what, "add arrivals = \"poisson\", or leave it out");
        }
        _ => {}
    }
    let sizes = file(table, "sizes", directory);
    if sizes.is_some() && arrivals == Arrivals::Fixed {
        table.error(&table.span_of("sizes"), "fixed flows do not end", "add arrivals = \"closed\" or \"poisson\"");
    }
    PacketSource::Synthetic { transport, arrivals, sizes, ipv6: table.boolean("ipv6", false) }
}
