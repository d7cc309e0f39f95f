//! A device's modelled card, and the numbers of its policy.

use super::file::beside;
use super::reader::TomlTable;
use crate::testbed::offload::{OffloadSetting, PolicySetting};
use hairpin_diagnostics::text_of;
use hairpin_sim::nic::CardProfile;
use std::path::Path;
use std::time::Duration;

/// The engine that is a modelled card.
pub(super) const MODELLED: &str = "modelled";
/// Bytes of a card's profile at most.
const PROFILE_BYTES_MAX: u64 = 1 << 16;
/// Packets that make a heavy hitter if nothing else is said, as in `hairpin run`.
const HEAVY_PACKETS: u64 = 16;
/// Fields that mean something with one policy only.
const OF_POLICIES: [(&str, &str); 6] = [
    ("connections", "first-n"),
    ("packets", "heavy-hitter"),
    ("bytes", "heavy-hitter"),
    ("duration", "heavy-hitter"),
    ("packets_per_s", "fastest-flow"),
    ("model", "decision-tree"),
];

/// Reads it; files are named from `directory`. `None`: the engine is no modelled card, or something is wrong.
pub(super) fn read(table: &TomlTable<'_>, engine: &str, policy: &str, directory: &Path) -> Option<OffloadSetting> {
    let is_modelled = engine == MODELLED;
    for name in ["card", "card_scale", "marks"] {
        if table.has(name) && !is_modelled {
            let what = format!("`{name}` is of a modelled card, and the engine is \"{engine}\"");
            table.error(&table.span_of(name), what, "write engine = \"modelled\", or leave it out");
        }
    }
    for (name, of) in OF_POLICIES {
        if table.has(name) && (of != policy || !is_modelled) {
            let what = format!("`{name}` means nothing with engine \"{engine}\" and policy \"{policy}\"");
            let remedy = format!("leave it out, or write engine = \"modelled\" and policy = \"{of}\"");
            table.error(&table.span_of(name), what, remedy);
        }
    }
    if !is_modelled {
        return None;
    }
    let (card, policy) = (read_card(table, directory), read_policy(table, policy, directory));
    let marks = table.boolean("marks", false);
    Some(OffloadSetting { card: card?, policy: policy?, marks })
}

fn read_card(table: &TomlTable<'_>, directory: &Path) -> Option<CardProfile> {
    let Some(text) = table.text("card") else {
        if !table.has("card") {
            table.missing("card", "\"../profiles/connectx-5.toml\"");
        }
        return None;
    };
    let path = beside(directory, &text.value);
    let read = text_of(&path, PROFILE_BYTES_MAX).map_err(|error| format!("cannot read it: {error}"));
    let profile = read.and_then(|text| CardProfile::parse(&text).map_err(|wrong| wrong.to_string()));
    let scale = table.number("card_scale", 1.0, 0.0001..=1.0);
    match profile {
        Ok(profile) => {
            let mut card = profile.scaled(scale);
            card.scale_waiting(scale);
            Some(card)
        }
        Err(what) => {
            let remedy = format!("name a card's profile from {}", directory.display());
            table.error(&text.span, format!("`card` \"{}\": {what}", text.value), remedy);
            None
        }
    }
}

fn read_policy(table: &TomlTable<'_>, policy: &str, directory: &Path) -> Option<PolicySetting> {
    Some(match policy {
        "never" => PolicySetting::Never,
        "always" => PolicySetting::Always,
        "first-n" => PolicySetting::FirstN(table.integer("connections", 4096, 1..=1 << 25) as u32),
        "heavy-hitter" => {
            let number = |name, most| table.has(name).then(|| table.integer(name, 1, 1..=most));
            let (packets, bytes) = (number("packets", 1 << 40), number("bytes", 1 << 50));
            let (least, most) = (Duration::from_millis(1), Duration::from_secs(86_400));
            let duration = table.has("duration").then(|| table.duration("duration", least, least..=most));
            let none = packets.is_none() && bytes.is_none() && duration.is_none();
            PolicySetting::HeavyHitter { packets: if none { Some(HEAVY_PACKETS) } else { packets }, bytes, duration }
        }
        "fastest-flow" => PolicySetting::FastestFlow(table.integer("packets_per_s", 100, 0..=100_000_000) as u32),
        "decision-tree" => {
            let model = table.text("model").filter(|model| model.value != "built-in");
            let policy = PolicySetting::DecisionTree(model.as_ref().map(|model| beside(directory, &model.value)));
            if let (Err(wrong), Some(model)) = (policy.choice(), model) {
                let remedy = "name a file that `hairpin-lab train` wrote, or write model = \"built-in\"";
                table.error(&model.span, format!("{wrong:#}"), remedy);
                return None;
            }
            policy
        }
        "auto" => PolicySetting::Auto,
        other => {
            let what = format!("policy \"{other}\" is about HTTP, which the testbed does not send");
            table.error(&table.span_of("policy"), what, "take another one");
            return None;
        }
    })
}
