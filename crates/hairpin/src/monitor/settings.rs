//! What the configuration says of a monitor.

use crate::access_log::Target;
use hairpin_linux::monitor::FlowFilter;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// Settings of a `[[monitor]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorSettings {
    /// Its name.
    pub name: String,
    /// The interfaces whose packets it sees, each of one monitor only.
    pub interfaces: Vec<String>,
    /// The flows that it counts, and what the kernel notes of them.
    pub filter: FlowFilter,
    /// What records tell beside ends, times, packets and bytes.
    pub fields: Vec<MonitorField>,
    /// How often a flow that goes on is reported, 1 s to an hour.
    pub active_timeout: Duration,
    /// After what silence a flow has ended, 1 s to an hour.
    pub idle_timeout: Duration,
    /// Flows that the kernel counts at a time, 16 to [`hairpin_linux::monitor::FLOWS_MAX`].
    pub flows_max: u32,
    /// Where IPFIX goes; `None`: nowhere.
    pub collector: Option<CollectorEnd>,
    /// The number by which a collector tells monitors apart.
    pub observation_domain: u32,
    /// Where lines of JSON go; `None`: nowhere.
    pub file: Option<Target>,
    /// Top talkers that are shown; 0: none.
    pub top: usize,
}

impl MonitorSettings {
    /// Whether records have this field.
    pub(super) fn has(&self, field: MonitorField) -> bool {
        self.fields.contains(&field)
    }
}

/// With all that a reload may change. The filter's networks may be many, so it is shown by its hash.
impl fmt::Display for MonitorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.filter).hash(&mut hasher);
        let fields: Vec<&str> = self.fields.iter().map(|field| field.word()).collect();
        let ends = [self.collector.map(|end| end.to_string()), self.file.as_ref().map(|file| file.to_string())];
        let ends: Vec<String> = ends.into_iter().flatten().collect();
        let or_none = |joined: String| if joined.is_empty() { "none".to_owned() } else { joined };
        write!(
            f,
            "{} on {} (filter {:08x}, {}, {} and {}, {} flows, domain {}, top {}, to {})",
            self.name,
            self.interfaces.join(" and "),
            hasher.finish() as u32,
            or_none(fields.join(", ")),
            humantime::format_duration(self.active_timeout),
            humantime::format_duration(self.idle_timeout),
            self.flows_max,
            self.observation_domain,
            self.top,
            or_none(ends.join(", "))
        )
    }
}

/// What a record may tell beside ends, times, packets and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorField {
    /// TCP flags.
    Flags,
    /// The round trips of the handshake.
    RoundTrip,
    /// Packets that carried nothing new.
    Resent,
}

impl MonitorField {
    /// All of them, with their words.
    pub(crate) const ALL: [(MonitorField, &str); 3] =
        [(MonitorField::Flags, "flags"), (MonitorField::RoundTrip, "round_trip"), (MonitorField::Resent, "resent")];

    /// Its word in the file.
    pub(crate) fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// Where a collector of IPFIX listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectorEnd {
    /// At a UDP port (RFC 7011, 10.3).
    Udp(SocketAddr),
    /// At a TCP port (RFC 7011, 10.4).
    Tcp(SocketAddr),
}

impl FromStr for CollectorEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<CollectorEnd, String> {
        let (transport, end) = text.split_once(':').ok_or_else(|| format!("\"{text}\" names no transport"))?;
        let address = end.parse().map_err(|_| format!("\"{end}\" is no address and port"))?;
        match transport {
            "udp" => Ok(CollectorEnd::Udp(address)),
            "tcp" => Ok(CollectorEnd::Tcp(address)),
            _ => Err(format!("\"{transport}\" is no transport that it can be sent over")),
        }
    }
}

impl fmt::Display for CollectorEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectorEnd::Udp(address) => write!(f, "udp:{address}"),
            CollectorEnd::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_written_as_they_are_read() {
        for text in ["udp:10.0.0.5:4739", "tcp:[::1]:4739"] {
            assert_eq!(text.parse::<CollectorEnd>().unwrap().to_string(), text);
        }
        for text in ["10.0.0.5:4739", "sctp:10.0.0.5:4739", "udp:collector:4739", ""] {
            assert!(text.parse::<CollectorEnd>().is_err(), "{text}");
        }
    }

    #[test]
    fn fields_have_their_own_words() {
        for (field, word) in MonitorField::ALL {
            assert_eq!(field.word(), word);
        }
    }
}
