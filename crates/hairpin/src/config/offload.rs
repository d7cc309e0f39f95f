//! Reads the numbers of a policy.

use super::reader::TomlTable;
use super::words::PlaneChoice;
use super::{PolicyChoice, SetUpChoice};
use hairpin_core::offload::tree::{BUILT_IN, TEXT_MAX};
use hairpin_core::offload::{Choice, FirstN, HeavyHitter, Tree};
use hairpin_core::table::LookupMethod;
use hairpin_diagnostics::Sink;
use std::path::Path;
use std::sync::Arc;

/// Packets that make a heavy hitter if nothing else is said.
const HEAVY_PACKETS: u64 = 16;

/// Fields that mean something with one policy only.
const OF_POLICIES: [(&str, PolicyChoice); 7] = [
    ("connections", PolicyChoice::FirstN),
    ("packets", PolicyChoice::HeavyHitter),
    ("bytes", PolicyChoice::HeavyHitter),
    ("duration", PolicyChoice::HeavyHitter),
    ("combine", PolicyChoice::HeavyHitter),
    ("packets_per_s", PolicyChoice::FastestFlow),
    ("model", PolicyChoice::DecisionTree),
];

/// The policy with its numbers; `None` if one is wrong.
pub(super) fn read(sink: &Sink<'_>, offload: &TomlTable<'_>, policy: PolicyChoice) -> Option<Choice> {
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
        PolicyChoice::DecisionTree => Choice::DecisionTree(Arc::new(model(sink, offload)?)),
        PolicyChoice::Auto => Choice::Auto,
    })
}

/// Who sets connections up; `None` if what is said does not go with the rest.
pub(super) fn read_set_up(
    sink: &Sink<'_>,
    offload: &TomlTable<'_>,
    (plane, policy, table): (Option<PlaneChoice>, Option<PolicyChoice>, Option<LookupMethod>),
) -> Option<SetUpChoice> {
    let set_up: SetUpChoice = offload.choice("set_up")?;
    if set_up == SetUpChoice::Worker {
        return Some(set_up);
    }
    let refuse = |what: &str, remedy: &str| {
        let what = format!("`set_up` is \"engine\", but {what}");
        sink.error(&offload.span_of("set_up"), what, format!("{remedy}, or write set_up = \"worker\""));
    };
    if plane.is_some_and(|plane| plane != PlaneChoice::Linux) {
        refuse("the dpdk plane has no engine that sets connections up", "use plane = \"linux\"");
    } else if policy.is_some_and(|policy| policy == PolicyChoice::Never) {
        refuse("`policy = \"never\"` leaves nothing to the engine", "choose another policy");
    } else if table.is_some_and(|table| !table.tracks_connections()) {
        refuse("`connection_table` tracks no connections", "choose a table that does");
    } else {
        return Some(set_up);
    }
    None
}

/// The tree that `model` names.
fn model(sink: &Sink<'_>, offload: &TomlTable<'_>) -> Option<Tree> {
    let text = offload.text("model")?;
    let read = match text.value.as_str() {
        "built-in" => {
            Tree::parse(BUILT_IN).map_err(|wrong| (wrong.to_string(), "name one that `hairpin-lab train` wrote"))
        }
        path => from_file(Path::new(path)),
    };
    read.map_err(|(what, remedy)| sink.error(&text.span, format!("`model` \"{}\": {what}", text.value), remedy)).ok()
}

fn from_file(path: &Path) -> Result<Tree, (String, &'static str)> {
    let remedy = "name a file that `hairpin-lab train` wrote, or write model = \"built-in\"";
    if !path.is_absolute() {
        return Err(("not an absolute path".to_string(), "start it with `/`, or write model = \"built-in\""));
    }
    let file = std::fs::metadata(path).map_err(|error| (format!("cannot read it: {error}"), remedy))?;
    if !file.is_file() || file.len() > TEXT_MAX as u64 {
        return Err((format!("not a file of {TEXT_MAX} bytes or less"), remedy));
    }
    let text = std::fs::read_to_string(path).map_err(|error| (format!("cannot read it: {error}"), remedy))?;
    Tree::parse(&text).map_err(|wrong| (wrong.to_string(), "correct it, or train it anew with `hairpin-lab train`"))
}

fn heavy_hitter(offload: &TomlTable<'_>) -> Option<HeavyHitter> {
    let number = |name| offload.has(name).then(|| offload.integer(name)).flatten();
    let (packets, bytes, duration) = (number("packets"), number("bytes"), offload.duration_given("duration"));
    let packets = if bytes.is_none() && duration.is_none() { packets.or(Some(HEAVY_PACKETS)) } else { packets };
    Some(HeavyHitter { packets, bytes, duration, combine: offload.choice("combine")? })
}
