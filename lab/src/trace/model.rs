//! The file of a trace: what it is made of, and where each number is from.

use super::arrivals::Arrivals;
use super::distribution::{Distribution, WrittenDistribution};
use crate::traffic::sizes::FlowSizes;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_core::flow::Protocol;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Kinds of connections at most.
const KINDS_MAX: usize = 16;

/// The models that the program has: lab/traces.
const MODELS: [(&str, &str); 5] = [
    ("campus", include_str!("../../traces/campus.toml")),
    ("internet", include_str!("../../traces/internet.toml")),
    ("enterprise", include_str!("../../traces/enterprise.toml")),
    ("web-search", include_str!("../../traces/web-search.toml")),
    ("data-mining", include_str!("../../traces/data-mining.toml")),
];

/// What is counted in a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SizeUnit {
    /// Bytes of data, headers not among them.
    Bytes,
    /// Packets of the side that has the data: of TCP handshake and end among them.
    Packets,
}

/// A trace, by its numbers.
#[derive(Clone, Debug)]
pub struct TraceModel {
    /// Its name.
    pub name: String,
    /// Its title, for people.
    pub title: String,
    /// Where its sizes are from.
    pub source: String,
    /// What else is to be known; where the other numbers are from.
    pub notes: String,
    /// Connections, unless it is said otherwise.
    pub connections: u32,
    /// New connections a second.
    pub connections_per_s: f64,
    /// How they come.
    pub arrivals: Arrivals,
    /// Clients, and servers with the exponent of Zipf's law by which they are chosen.
    pub clients: u32,
    /// See `clients`.
    pub servers: u32,
    /// See `clients`.
    pub zipf: f64,
    pub(super) path: PathModel,
    pub(super) kinds: Vec<KindModel>,
    /// What was published of the trace that the model follows, by metric.
    pub published: BTreeMap<String, String>,
    /// The file's text.
    pub text: String,
}

/// Times between client and server.
#[derive(Clone, Debug)]
pub(super) struct PathModel {
    pub(super) round_trip_ms: Distribution,
    pub(super) mbit_s: Distribution,
    pub(super) server_part: f64,
    pub(super) window_bytes: u32,
}

/// A kind of connections.
#[derive(Clone, Debug)]
pub(super) struct KindModel {
    pub(super) name: String,
    pub(super) share: f64,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) request: Distribution,
    pub(super) size: Distribution,
    pub(super) unit: SizeUnit,
    pub(super) payload: Distribution,
    /// Up to so many packets, each has as many bytes as is drawn here.
    pub(super) short: Option<(u32, Distribution)>,
    pub(super) upload: f64,
    pub(super) reset: f64,
    pub(super) is_acknowledged: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenModel {
    name: String,
    title: String,
    source: String,
    #[serde(default)]
    notes: String,
    connections: u32,
    connections_per_s: f64,
    arrivals: Arrivals,
    clients: u32,
    servers: u32,
    zipf: f64,
    path: WrittenPath,
    kind: Vec<WrittenKind>,
    #[serde(default)]
    published: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPath {
    round_trip_ms: WrittenDistribution,
    mbit_s: WrittenDistribution,
    server_part: f64,
    window_bytes: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenKind {
    name: String,
    share: f64,
    transport: Transport,
    port: u16,
    request: WrittenDistribution,
    size: WrittenDistribution,
    unit: SizeUnit,
    payload: WrittenDistribution,
    #[serde(default)]
    short: Option<WrittenShort>,
    #[serde(default)]
    upload: f64,
    #[serde(default)]
    reset: f64,
    #[serde(default)]
    acknowledged: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenShort {
    packets: u32,
    payload: WrittenDistribution,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Transport {
    Tcp,
    Udp,
}

/// The names of the models that the program has.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

impl TraceModel {
    /// The model of this name, or of the file at this path if it ends in `.toml`.
    ///
    /// # Errors
    /// There is none, or what is wrong with it.
    pub fn find(name: &str) -> Result<TraceModel> {
        let path = Path::new(name);
        if path.extension().is_some_and(|ending| ending == "toml") {
            return TraceModel::read(path);
        }
        match MODELS.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => TraceModel::parse(text, None).with_context(|| format!("the model {name}")),
            None => {
                let known: Vec<&str> = built_in().collect();
                bail!("there is no model of a trace `{name}`: name one of {}, or a file (*.toml)", known.join(", "))
            }
        }
    }

    /// Reads a file. Curves that the program does not have are files `NAME.csv` beside it.
    ///
    /// # Errors
    /// It cannot be read, or what is wrong with it.
    pub fn read(path: &Path) -> Result<TraceModel> {
        let named = || format!("the model of a trace {}", path.display());
        let bytes = std::fs::metadata(path).with_context(named)?.len();
        ensure!(bytes <= FILE_BYTES_MAX, "{} has {bytes} bytes, more than {FILE_BYTES_MAX}", path.display());
        TraceModel::parse(&std::fs::read_to_string(path).with_context(named)?, path.parent()).with_context(named)
    }

    fn parse(text: &str, beside: Option<&Path>) -> Result<TraceModel> {
        let written: WrittenModel = toml::from_str(text)?;
        let distribution = |written: &WrittenDistribution, named: &str| {
            Distribution::of(written, |name| curve(name, beside)).with_context(|| named.to_owned())
        };
        ensure!((1..=KINDS_MAX).contains(&written.kind.len()), "a trace has 1 to {KINDS_MAX} kinds of connections");
        let kinds = written
            .kind
            .iter()
            .map(|kind| kind_of(kind, &distribution).with_context(|| format!("the kind of connections {}", kind.name)));
        let path = PathModel {
            round_trip_ms: distribution(&written.path.round_trip_ms, "round_trip_ms")?,
            mbit_s: distribution(&written.path.mbit_s, "mbit_s")?,
            server_part: written.path.server_part,
            window_bytes: written.path.window_bytes,
        };
        let model = TraceModel {
            kinds: kinds.collect::<Result<_>>()?,
            path,
            name: written.name,
            title: written.title,
            source: written.source,
            notes: written.notes,
            connections: written.connections,
            connections_per_s: written.connections_per_s,
            arrivals: written.arrivals,
            clients: written.clients,
            servers: written.servers,
            zipf: written.zipf,
            published: written.published,
            text: text.to_owned(),
        };
        model.check()?;
        Ok(model)
    }

    fn check(&self) -> Result<()> {
        let within = |name: &str, value: f64, least: f64, most: f64| {
            ensure!((least..=most).contains(&value), "{name} is {value}: use {least} to {most}");
            Ok(())
        };
        within("connections", self.connections.into(), 1.0, super::generator::CONNECTIONS_MAX.into())?;
        within("connections_per_s", self.connections_per_s, 0.001, 1e9)?;
        within("clients", self.clients.into(), 1.0, 16_000_000.0)?;
        within("servers", self.servers.into(), 1.0, 100_000.0)?;
        within("zipf", self.zipf, 0.0, 10.0)?;
        within("server_part", self.path.server_part, 0.0, 1.0)?;
        within("window_bytes", self.path.window_bytes.into(), 1460.0, 1e9)?;
        ensure!(self.arrivals.is_sound(), "the numbers of the arrivals make no sense: {:?}", self.arrivals);
        for kind in &self.kinds {
            let named = |what: &str| format!("{what} of {}", kind.name);
            within(&named("share"), kind.share, 1e-9, 1e9)?;
            within(&named("upload"), kind.upload, 0.0, 1.0)?;
            within(&named("reset"), kind.reset, 0.0, 1.0)?;
        }
        Ok(())
    }
}

fn kind_of(
    kind: &WrittenKind,
    distribution: &impl Fn(&WrittenDistribution, &str) -> Result<Distribution>,
) -> Result<KindModel> {
    let short = kind
        .short
        .as_ref()
        .map(|short| Ok::<_, anyhow::Error>((short.packets, distribution(&short.payload, "short")?)));
    Ok(KindModel {
        name: kind.name.clone(),
        share: kind.share,
        protocol: if kind.transport == Transport::Tcp { Protocol::Tcp } else { Protocol::Udp },
        port: kind.port,
        request: distribution(&kind.request, "request")?,
        size: distribution(&kind.size, "size")?,
        unit: kind.unit,
        payload: distribution(&kind.payload, "payload")?,
        short: short.transpose()?,
        upload: kind.upload,
        reset: kind.reset,
        is_acknowledged: kind.acknowledged,
    })
}

/// A published curve.
fn curve(name: &str, beside: Option<&Path>) -> Result<FlowSizes> {
    if let Some(published) = FlowSizes::published(name) {
        return published;
    }
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let beside = beside.filter(|_| is_name).ok_or_else(|| anyhow!("there is no curve `{name}`"))?;
    FlowSizes::read(&beside.join(format!("{name}.csv")))
}
