//! Reads the numbers of a policy.

use super::PolicyChoice;
use super::problem::Sink;
use super::reader::Table;
use hairpin_core::offload::{Choice, FirstN, HeavyHitter};

/// Packets that make a heavy hitter if nothing else is said.
const HEAVY_PACKETS: u64 = 16;

/// Fields that mean something with one policy only.
const OF_POLICIES: [(&str, PolicyChoice); 6] = [
    ("connections", PolicyChoice::FirstN),
    ("packets", PolicyChoice::HeavyHitter),
    ("bytes", PolicyChoice::HeavyHitter),
    ("duration", PolicyChoice::HeavyHitter),
    ("combine", PolicyChoice::HeavyHitter),
    ("packets_per_s", PolicyChoice::FastestFlow),
];

/// The policy with its numbers; `None` if one is wrong.
pub(super) fn read(sink: &Sink<'_>, offload: &Table<'_>, policy: PolicyChoice) -> Option<Choice> {
    for (name, of) in OF_POLICIES {
        if of != policy && offload.has(name) {
            let what = format!("`{name}` means nothing with `policy = \"{}\"`", policy.name());
            let remedy = format!("leave it out, or write policy = \"{}\"", of.name());
            sink.warning(&offload.span_of(name), what, remedy);
        }
    }
    let small = |name| offload.integer(name).and_then(|number| u32::try_from(number).ok());
    Some(match policy {
        PolicyChoice::Always => Choice::Always,
        PolicyChoice::Never => Choice::Never,
        PolicyChoice::FirstN => Choice::FirstN(FirstN { connections: small("connections")? }),
        PolicyChoice::HeavyHitter => Choice::HeavyHitter(heavy_hitter(offload)?),
        PolicyChoice::FastestFlow => Choice::FastestFlow { packets_per_s: small("packets_per_s")? },
        PolicyChoice::Auto => Choice::Auto,
    })
}

fn heavy_hitter(offload: &Table<'_>) -> Option<HeavyHitter> {
    let number = |name| offload.has(name).then(|| offload.integer(name)).flatten();
    let (packets, bytes, duration) = (number("packets"), number("bytes"), offload.duration_given("duration"));
    let packets = if bytes.is_none() && duration.is_none() { packets.or(Some(HEAVY_PACKETS)) } else { packets };
    Some(HeavyHitter { packets, bytes, duration, combine: offload.choice("combine")? })
}
